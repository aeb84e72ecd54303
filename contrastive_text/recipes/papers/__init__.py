"""Papers of the recipes: BibTeX entries, and tables and figures with the commands that reproduce them.

A reproduced paper has a YAML file. ``contrastive-text paper NAME`` prints it, and a page of the documentation is
generated from it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

from contrastive_text.core.config.suggestions import suggest_name
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.recipes import recipe_names, recipe_texts
from contrastive_text.recipes.layers import is_shipped, read_yaml, split_variant

_FOLDER = Path(__file__).parent
_CITATIONS = _FOLDER / "citations.bib"
_FIELD = re.compile(r"^ +(\w+) = \{(.*)\},?$", flags=re.MULTILINE)
_OVER = re.compile(r"^recipe: *([\w./-]+)", flags=re.MULTILINE)
_WIDTH = 100
"""Largest number of characters in a line of a command, if the command can be broken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """Table or figure of a paper, with the commands that reproduce it.

    Args:
        name: Number of the table or figure in the paper: ``Table 1``.
        shows: Content of the table or figure.
        commands: Shell commands that reproduce it; empty if it can't be reproduced.
        needs: Files and folders in the commands that the reader replaces by their own.
        paper: Result of the paper, as text.
        here: Result of this library -> cells and scores that docs/papers/write.py shows. The repository has the
            results; the package prints the names of their files.
        differs: Differences of the commands from the paper's protocol.
        why_not: Reason why it can't be reproduced, if there are no commands.
        not_run: Reason why there is no result yet, with the hours of a processor core that one takes.

    Raises:
        ValueError: There are commands and a reason, or neither; or a command isn't one of this library.
    """

    name: str
    shows: str
    commands: Sequence[str] = ()
    needs: Sequence[str] = ()
    paper: str = ""
    here: Mapping[str, Any] = field(default_factory=dict)  # Any: what YAML holds
    differs: str = ""
    why_not: str = ""
    not_run: str = ""

    def __post_init__(self) -> None:
        if bool(self.commands) == bool(self.why_not):
            got = "both" if self.commands else "neither"
            raise InvalidValueError(f"{self.name}: expected either commands or why_not, got {got}")
        for command in self.commands:
            if shlex.split(command)[:1] != ["contrastive-text"]:
                raise InvalidValueError(f"{self.name}: expected contrastive-text ..., got {command!r}")

    def markdown(self, here: str = "") -> str:
        """Returns the item's section of the paper's page as Markdown: needed files, commands and notes.

        Args:
            here: Figures of ``self.here``. Default: the names of the result files.
        """
        lines = [f"## {self.name}: {self.shows}", ""]
        if self.why_not:
            return "\n".join([*lines, f"Can't be made: {self.why_not}"])
        if self.needs:
            lines += [f"Needs {', '.join(f'`{need}`' for need in self.needs)}.", ""]
        lines += ["```bash", *map(broken, self.commands), "```"]
        files = dict.fromkeys(f"`benchmarks/results/*{name.partition('/')[0]}.md`" for name in self.here)
        notes = {
            "Paper": self.paper,
            "Here": here or ", ".join(files) or f"not run: {self.not_run}",
            "Differs": self.differs,
        }
        return "\n".join(lines + [f"\n{name}: {note.strip()}" for name, note in notes.items() if note])


@dataclass(frozen=True, slots=True)
class Paper:
    """Paper with all its tables and figures.

    Args:
        title: Title with authors, venue and year.
        intro: Method of the paper, and names of its data in the commands.
        items: Tables and figures of the paper, in order.

    Example:
        >>> paper = read_paper("simcse")
        >>> [item.name for item in paper.items][:2]
        ['Figure 1', 'Table 1']
    """

    title: str
    intro: str
    items: Sequence[Item]

    def markdown(self, here: Callable[[Item], str] = lambda _: "") -> str:
        """Returns the page of the paper as Markdown; ``here`` returns the figures of an item."""
        return "\n\n".join([f"# {self.title}", self.intro.strip(), *(i.markdown(here(i)) for i in self.items)])


def paper_names() -> list[str]:
    """Returns the names of the papers for ``contrastive-text paper``.

    Example:
        >>> paper_names()
        ['clear', 'consert', 'cs224n', 'declutr', 'simcse']
    """
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def read_paper(name: str) -> Paper:
    """Reads a paper with its tables and figures from the YAML file of this package.

    Raises:
        ValueError: There is no paper of this name.

    Example:
        >>> read_paper("simsce")
        Traceback (most recent call last):
        contrastive_text.core.errors.InvalidValueError: paper: expected one of ...; did you mean simcse?
    """
    names = paper_names()
    if name not in names:
        advice = suggest_name(name, names)
        raise InvalidValueError(f"paper: expected one of {', '.join(names)}, got {name!r}{advice}")
    content: Mapping[str, Any] = read_yaml(_FOLDER / f"{name}.yaml", "paper")
    names_of_fields = [field.name for field in fields(Item)]
    for item in content["items"]:
        if unknown := [key for key in item if key not in names_of_fields]:
            raise InvalidValueError(
                f"paper {name}, {item.get('name')}: expected {', '.join(names_of_fields)}, got {unknown[0]}"
            )
    return Paper(content["paper"], content["intro"], [Item(**item) for item in content["items"]])


def broken(command: str) -> str:
    r"""Breaks a command before options into lines of at most 100 characters.

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


def shipped(file: str | Path) -> str | None:
    """Returns the recipe of this package that a YAML file is or overrides; None if there is no such recipe.

    Example:
        >>> from contrastive_text.recipes import BASE
        >>> shipped(BASE.parent / "simcse.yaml" / "sup")
        'simcse/sup'
    """
    path, variant = split_variant(file)
    if is_shipped(path):
        name = "/".join(filter(None, (path.stem, variant)))
        return name if name in recipe_names() else None
    base = _OVER.search(path.read_text(encoding="utf-8")) if path.is_file() else None
    return base[1] if base and base[1] in recipe_names() else None


def citations(recipes: Sequence[str]) -> list[str]:
    """Returns the BibTeX entries of the papers that recipes, or the recipes that they override, cite.

    Args:
        recipes: Names of recipes. Unknown names are ignored.

    Example:
        >>> print(citations(["simcse"])[0].splitlines()[1])
          title = {SimCSE: Simple Contrastive Learning of Sentence Embeddings},
    """
    names = set(recipe_names())
    return list(dict.fromkeys(entry for name in recipes if name in names for entry in _cited(name)))


def entry_of(key: str) -> str:
    """Returns the BibTeX entry with a citation key."""
    return next(text for text in _entries().values() if f"{{{key}," in text)


def _cited(recipe: str) -> list[str]:
    text = recipe_texts()[recipe]
    header = text.partition("\nmodel:")[0]
    cited = sorted((header.find(mark), entry) for mark, entry in _entries().items() if mark in header)
    base = _OVER.search(text)
    return [entry for _, entry in cited] or (_cited(base[1]) if base else [])


@cache
def _entries() -> dict[str, str]:
    """Returns preprint number or title, which a recipe's header cites -> BibTeX entry."""
    texts = re.findall(r"^@.*?^}", _CITATIONS.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    fields: list[dict[str, str]] = [dict(_FIELD.findall(text)) for text in texts]
    return {entry.get("eprint") or entry["title"]: text for entry, text in zip(fields, texts, strict=True)}
