"""The bounds of data files as an option of every command that reads some."""

from __future__ import annotations

import argparse

from contrastive_text.cli.options import Parser
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.text_files import USUAL, Bounds


def add_bounds(parser: Parser) -> None:
    """Adds the option."""
    parser.add_argument(
        "--bounds",
        nargs="+",
        metavar="NAME=NUMBER",
        help=f"of data files: line={USUAL.line} bytes, depth={USUAL.depth} levels of JSON, ratio={USUAL.ratio} "
        "bytes out of one of a .gz; raise them for files that you trust",
    )


def bounds_of(options: argparse.Namespace) -> Bounds:
    """Returns the bounds that the options name.

    Raises:
        ValueError: Something else than names and numbers.

    Example:
        >>> bounds_of(argparse.Namespace(bounds=["depth=9"])).depth
        9
    """
    given = {}
    for word in options.bounds or ():
        name, _, number = word.partition("=")
        if not number.isdecimal():
            raise InvalidValueError(f"--bounds: expected NAME=NUMBER, got {word}; write line={USUAL.line}")
        given[name] = int(number)
    return Bounds.of(given)
