"""Plugin of mkdocstrings for our docstrings: names in double backticks become links, examples become code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from griffe import Class, Extension, Module, Object

_NAME = re.compile(r"``(\w+)``")
_TABLE = re.compile(r"^=+ +=+.*\n(?:.+\n)*=+ +=+.*$", flags=re.M)
_FIELDS = {"NamedTuple", "TypedDict"}
"""Bases whose arguments are attributes."""


class Docstrings(Extension):
    """Rewrites all docstrings of a package before they are parsed."""

    def on_package(self, *, pkg: Module, **kwargs: Any) -> None:  # noqa: ARG002  # Any: griffe's
        """Rewrites the docstrings, knowing every public name."""
        places = dict(_places(pkg))
        for member in _objects(pkg):
            if member.docstring:
                member.docstring.value = _rewritten(member.docstring.value, _is_record(member), places)


def _places(package: Module) -> Iterator[tuple[str, str]]:
    """Yields each public name with its full path, the first package by the alphabet last, so that it counts."""
    for name in sorted(package.modules, reverse=True):
        module = package.modules[name]
        own = [each for each, member in module.members.items() if not member.is_alias and each[0] != "_"]
        for each in module.exports or ([] if module.is_init_module else own):
            yield str(each), f"{module.path}.{each}"


def _objects(parent: Object) -> Iterator[Object]:
    yield parent
    for member in parent.members.values():
        if not member.is_alias:
            yield from _objects(member)  # type: ignore[arg-type]  # no alias is left


def _is_record(member: Object) -> bool:
    bases = {str(base).rpartition(".")[2] for base in member.bases} if isinstance(member, Class) else set()
    return bool(bases & _FIELDS)


def _table(lines: list[str]) -> str:
    """Returns a table with rules of ``=`` over its columns as a Markdown table; text under a row continues it."""
    columns = [slice(*match.span()) for match in re.finditer("=+", lines[0])]
    columns[-1] = slice(columns[-1].start, None)
    rows: list[list[str]] = []
    for line in lines[1:]:
        cells = [line[column].strip() for column in columns]
        if cells[0].startswith("="):
            continue
        if cells[0]:
            rows.append(cells)
        else:
            rows[-1] = [f"{old} {new}".strip() for old, new in zip(rows[-1], cells, strict=True)]
    head = rows.pop(0) if any(line.startswith("=") for line in lines[1:-1]) else [""] * len(columns)
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(columns), *rows])


def _rewritten(text: str, is_record: bool, places: Mapping[str, str]) -> str:
    """Returns a docstring with the headings, links, code and tables of Markdown."""
    if is_record:
        text = re.sub(r"^Args:$", "Attributes:", text, flags=re.M)
    text = re.sub(r"^Example:$", "Examples:", text, flags=re.M)
    text = re.sub(r"::$", ":", text, flags=re.M)
    text = _TABLE.sub(lambda match: _table(match[0].splitlines()), text)
    return _NAME.sub(
        lambda match: f"[`{match[1]}`][{places[match[1]]}]" if match[1] in places else match[0], text
    )
