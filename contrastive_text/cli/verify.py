"""Command ``verify``: reads all bytes of files and compares the files with their digests."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from contrastive_text.cli.paths import ReadPath
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.terminal import print_message

if TYPE_CHECKING:
    from contrastive_text.runs.verification import FileCheck


@dataclass(frozen=True)
class Verify:
    """Compare all bytes of a model, a checkpoint or a run with the digests that were saved with them."""

    path: Annotated[
        Path,
        ReadPath(),
        "Model folder, checkpoint (.ckpt), run folder, vector file, unfinished output, cache, or a folder of "
        "these.",
    ]


_NAMED = 4
"""Largest number of files without digest that are named per folder."""
_LINES = 100
"""Largest number of damaged files that the output names. A manifest can name any number of missing files."""


def verify(options: Verify) -> None:
    """Prints a line for each file with a digest, and a line for all files of a folder without digests.

    Raises:
        ValueError: A file is damaged, or no file has a digest.
    """
    from contrastive_text.runs.verification import verify as verified

    checks: list[FileCheck] = []
    damaged = 0
    for check in verified(options.path):
        checks.append(check)
        damaged += check.damage is not None
        if check.has_digest and (check.damage is None or damaged <= _LINES):
            print_message(f"{_in_a_line(check.path)}: {_verdict(check)}")
    unknown = [check.path for check in checks if not check.has_digest]
    for folder, files in groupby(unknown, key=lambda path: path.parent):
        names = [_in_a_line(file.name) for file in files]
        listing = ", ".join(names[:_NAMED]) + f" and {len(names) - _NAMED} more" * (len(names) > _NAMED)
        print_message(f"{_in_a_line(folder)}: no digest of this library for {listing}")
    checked = len(checks) - len(unknown)
    if damaged > _LINES:
        print_message(f"{damaged - _LINES:,} more are damaged")
    if damaged:
        raise InvalidValueError(
            f"{options.path}: expected files that match their digests, got {damaged:,} damaged of {checked:,} "
            "files; create or download them again"
        )
    if not checked:
        raise InvalidValueError(
            f"{options.path}: expected files with digests, got files without a digest. This version of the "
            "library did not write them; if they load, save them again to get digests"
        )
    if whole := sum(check.has_digest and check.every_byte for check in checks):
        print_message(f"{whole:,} files are byte for byte what was written")


def _in_a_line(name: object) -> str:
    r"""Escapes the newlines of a file name, so that the name can't imitate a line of the output.

    Example:
        >>> print(_in_a_line("a\nmodel.safetensors: ok"))
        a\nmodel.safetensors: ok
    """
    return str(name).replace("\n", "\\n")


def _verdict(check: FileCheck) -> str:
    if check.damage is not None:
        return f"damaged: {check.damage}"
    return "ok" if check.every_byte else "ok by the checksums of its archive"
