"""The papers behind the recipes: every table and figure of each, and the commands that make it.

One YAML file a paper; ``contrastive-text paper NAME`` prints it, and the page of the documentation is made of it.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from contrastive_text.core.config.misspelt import nearest
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.recipes.layers import read_yaml

_FOLDER = Path(__file__).parent
_WIDTH = 100
"""Characters of a line of a command, where it has a place to be broken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A table or a figure of a paper.

    Args:
        name: As the paper numbers it: ``Table 1``.
        shows: What it shows.
        commands: What makes it, each as it is typed in a shell; none where it can't be made.
        needs: Files and folders in the commands that the reader puts their own in place of.
        paper: The paper's result, in words.
        here: What was run of it with this library, on what, with its result.
        differs: In what the commands differ from the paper's protocol.
        why_not: Why it can't be made, where there is no command.

    Raises:
        ValueError: Neither commands nor a reason, or both; or something else than a command of this library.
    """

    name: str
    shows: str
    commands: Sequence[str] = ()
    needs: Sequence[str] = ()
    paper: str = ""
    here: str = ""
    differs: str = ""
    why_not: str = ""

    def __post_init__(self) -> None:
        if bool(self.commands) == bool(self.why_not):
            got = "both" if self.commands else "neither"
            raise InvalidValueError(f"{self.name}: expected commands, or why_not, got {got}")
        for command in self.commands:
            if shlex.split(command)[:1] != ["contrastive-text"]:
                raise InvalidValueError(f"{self.name}: expected contrastive-text ..., got {command!r}")

    def markdown(self) -> str:
        """Returns the section of a page: the commands as a block, below and above them what is known."""
        lines = [f"## {self.name}: {self.shows}", ""]
        if self.why_not:
            return "\n".join([*lines, f"Can't be made: {self.why_not}"])
        if self.needs:
            lines += [f"Needs {', '.join(f'`{need}`' for need in self.needs)}.", ""]
        lines += ["```bash", *map(broken, self.commands), "```"]
        notes = {"Paper": self.paper, "Here": self.here or "not run", "Differs": self.differs}
        for name, note in notes.items():
            lines += ["", f"{name}: {' '.join(note.split())}"] if note else []
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Paper:
    """A paper whose tables and figures the library makes.

    Args:
        title: With authors, venue and year.
        intro: What it shows, and what stands in for its data here.
        items: Its tables and figures, in its order.

    Example:
        >>> paper = read_paper("simcse")
        >>> [item.name for item in paper.items][:2]
        ['Figure 1', 'Table 1']
    """

    title: str
    intro: str
    items: Sequence[Item]

    def markdown(self) -> str:
        """Returns the page."""
        return "\n\n".join([f"# {self.title}", " ".join(self.intro.split()), *(i.markdown() for i in self.items)])


def paper_names() -> list[str]:
    """Returns the names that ``contrastive-text paper`` takes.

    Example:
        >>> paper_names()
        ['clear', 'consert', 'cs224n', 'declutr', 'simcse']
    """
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def read_paper(name: str) -> Paper:
    """Returns what is known of a paper.

    Raises:
        ValueError: No paper of that name.

    Example:
        >>> read_paper("simsce")
        Traceback (most recent call last):
        contrastive_text.core.errors.InvalidValueError: paper: expected one of ...; did you mean simcse?
    """
    names = paper_names()
    if name not in names:
        advice = nearest(name, names)
        raise InvalidValueError(f"paper: expected one of {', '.join(names)}, got {name!r}{advice}")
    read: Mapping[str, Any] = read_yaml(_FOLDER / f"{name}.yaml", "paper")
    known = [field.name for field in fields(Item)]
    for item in read["items"]:
        if other := [key for key in item if key not in known]:
            raise InvalidValueError(
                f"paper {name}, {item.get('name')}: expected {', '.join(known)}, got {other[0]}"
            )
    return Paper(read["paper"], read["intro"], [Item(**item) for item in read["items"]])


def broken(command: str) -> str:
    r"""Returns a command in lines of at most 100 characters, where options leave a place to break it.

    Example:
        >>> name = "a" * 60
        >>> print(broken(f"contrastive-text fit --recipe simcse --data.train {name}.txt --trainer.max_steps 2"))
        contrastive-text fit --recipe simcse \
          --data.train aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.txt \
          --trainer.max_steps 2
    """
    first, *options = command.split(" --")
    lines = [first]
    for option in options:
        if len(lines[-1]) + len(option) + len(" -- \\") > _WIDTH:
            lines[-1] += " \\"
            lines.append(f"  --{option}")
        else:
            lines[-1] += f" --{option}"
    return "\n".join(lines)
