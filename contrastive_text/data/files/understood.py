"""What is said of a file that was read: what was taken, ignored and left out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from contrastive_text.data.files.columns import plain
from contrastive_text.data.files.formats import counted, listed, short
from contrastive_text.data.files.hub import PREFIX

_NAMED = 24
"""Ignored columns that are named; objects of differing keys can have thousands."""


def say_left_out(blank: int, empty: int, folder: bool) -> list[str]:
    """Returns what to say of blank lines, or empty files of a folder, and of rows with an empty text."""
    blanks = f"{counted(blank, 'empty file' if folder else 'blank line')} left out"
    return [
        *([blanks] if blank else []),
        *([f"{counted(empty, 'row')} with an empty text left out"] if empty else []),
    ]


def say_ignored(header: Sequence[str], used: Collection[str], splits: Sequence[str], unread: int) -> list[str]:
    """Returns what to say of columns, or of a folder's other files, that are not read."""
    columns = [name for name in header if name not in used and not (splits and plain(name) == "split")]
    more = [f"{len(columns) - _NAMED:,} more"] if len(columns) > _NAMED else []
    named = listed([*map(short, columns[:_NAMED]), *more])
    ignored = counted(unread, "other file") if unread else named
    return [f"{ignored} ignored"] if ignored else []


def say_understood(path: Path, taken: Sequence[str], rest: Sequence[str]) -> str:
    """Returns the line that says how a file was understood."""
    name = str(path) if str(path).startswith(PREFIX) else path.name or path
    return f"{name}: {'; '.join([listed(taken), *rest])}"
