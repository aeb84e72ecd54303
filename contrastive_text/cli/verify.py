"""Command ``verify``: reads every byte of files and compares them with their digests."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from contrastive_text.cli.paths import ReadPath
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.terminal import say

if TYPE_CHECKING:
    from contrastive_text.runs.verification import Found


@dataclass(frozen=True)
class Verify:
    """Read all bytes of a model, a checkpoint or a run: are they what was written?"""

    path: Annotated[
        Path,
        ReadPath(),
        "Model folder, checkpoint (.ckpt), run folder, vector file, unfinished output, cache, or a folder of "
        "these.",
    ]


_NAMED = 4
_LINES = 100
"""Damaged files that are named at most: a manifest can name any number that isn't there."""


def verify(options: Verify) -> None:
    """Prints a line for each file that has a digest, and one for those of a folder that have none.

    Raises:
        ValueError: A damaged file, or none that anything vouches for.
    """
    from contrastive_text.runs.verification import verify as verified

    every: list[Found] = []
    damaged = 0
    for found in verified(options.path):
        every.append(found)
        damaged += found.damage is not None
        if found.known and (found.damage is None or damaged <= _LINES):
            say(f"{_in_a_line(found.path)}: {_words(found)}")
    unknown = [found.path for found in every if not found.known]
    for folder, files in groupby(unknown, key=lambda path: path.parent):
        names = [_in_a_line(file.name) for file in files]
        named = ", ".join(names[:_NAMED]) + f" and {len(names) - _NAMED} more" * (len(names) > _NAMED)
        say(f"{_in_a_line(folder)}: no digest of this library for {named}")
    known = sum(found.known for found in every)
    if damaged > _LINES:
        say(f"{damaged - _LINES:,} more are damaged")
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


def _in_a_line(name: object) -> str:
    r"""Returns a name whose newlines can't pass for lines of this command's.

    Example:
        >>> print(_in_a_line("a\nmodel.safetensors: ok"))
        a\nmodel.safetensors: ok
    """
    return str(name).replace("\n", "\\n")


def _words(found: Found) -> str:
    if found.damage is not None:
        return f"damaged: {found.damage}"
    return "ok" if found.every_byte else "ok by the checksums of its archive"
