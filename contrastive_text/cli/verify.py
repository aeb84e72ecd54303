"""The command that reads every byte of what was written, and says whether it is still that."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from contrastive_text.cli.options import Parser
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.terminal import say
from contrastive_text.verification import Found
from contrastive_text.verification import verify as verified

_NAMED = 4


def verify(words: Sequence[str]) -> None:
    """Prints a line for each file that has a digest, and one for those of a folder that have none.

    Raises:
        ValueError: A damaged file, or none that anything vouches for.
    """
    parser = Parser(
        prog="contrastive-text verify",
        description="Read all bytes of a model, a checkpoint or a run: are they what was written?",
    )
    parser.add_argument(
        "path",
        type=Path,
        help="a model, a .ckpt file, a run's folder, vectors, an unfinished output, a cache, or a folder of them",
    )
    options = parser.understand(words)
    every: list[Found] = []
    for found in verified(options.path):
        every.append(found)
        if found.known:
            say(f"{found.path}: {_words(found)}")
    unknown = [found.path for found in every if not found.known]
    for folder, files in groupby(unknown, key=lambda path: path.parent):
        names = [file.name for file in files]
        named = ", ".join(names[:_NAMED]) + f" and {len(names) - _NAMED} more" * (len(names) > _NAMED)
        say(f"{folder}: no digest of this library for {named}")
    known, damaged = sum(found.known for found in every), sum(found.damage is not None for found in every)
    if damaged:
        raise InvalidValueError(
            f"{options.path}: expected what was written, got {damaged:,} damaged of {known:,} files; make or "
            "fetch them again"
        )
    if not known:
        raise InvalidValueError(
            f"{options.path}: expected a digest of what was written, got none: this version did not write it, so "
            "nothing can be said of it; where it loads, save it again, and it has one"
        )
    if whole := sum(found.known and found.every_byte for found in every):
        say(f"{whole:,} files are byte for byte what was written")


def _words(found: Found) -> str:
    if found.damage is not None:
        return f"damaged: {found.damage}"
    return "ok" if found.every_byte else "whole by the archive's own checksums, which leave out its directory"
