"""What a hostile case is: a command over files that it makes, and the outcome that is expected of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

Outcome: TypeAlias = Literal["answer", "counted", "right"]
Make: TypeAlias = Callable[[Path, Mapping[str, str]], None]
"""Makes a file at a path; the second argument has the places of the sound model, texts, run, ... by name."""
Check: TypeAlias = Callable[[Path, str], bool]
"""Tells from the folder and from what was printed whether a result is right."""


@dataclass(frozen=True, slots=True)
class Case:
    """One hostile input.

    Args:
        name: What is odd about it, in words; the test's name.
        command: As it is typed in a shell after ``contrastive-text``; ``$bert``, ``$texts``, ``$pairs``, ... are
            the sound files.
        files: Name in the working directory -> its text, its bytes, or what makes it.
        outcome: ``answer``: status 2, one ``error:``, nothing changed or left on the disk. ``counted``: status 0,
            and what was left out or cut is said. ``right``: status 0, and the stated result.
        says: Words that are printed, all of them.
        check: What else must be true of the result.
        may_change: Inputs that the command itself has made and may replace or take away.
        slow: Whether it belongs to the slow suite.
    """

    name: str
    command: str
    files: Mapping[str, str | bytes | Make]
    outcome: Outcome
    says: tuple[str, ...]
    check: Check | None = None
    may_change: tuple[str, ...] = ()
    slow: bool = False


def answer(name: str, command: str, files: Mapping[str, str | bytes | Make], *says: str) -> Case:
    """Returns a case that is answered in words."""
    return Case(name, command, files, "answer", says)


def counted(name: str, command: str, files: Mapping[str, str | bytes | Make], *says: str) -> Case:
    """Returns a case whose losses are said."""
    return Case(name, command, files, "counted", says)


def right(
    name: str, command: str, files: Mapping[str, str | bytes | Make], *says: str, check: Check | None = None
) -> Case:
    """Returns a case with a result."""
    return Case(name, command, files, "right", says, check)
