"""Writes a page for each public package of the library, from its names and docstrings.

    python docs/api/write.py

A package with ``__all__`` shows those names; a package of one file shows what it defines without an underscore. A
name has its place on one page; the others, the package's own among them, link there.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, ForwardRef, NamedTuple

from markup import documented, prose, sections, summary

import contrastive_text

FOLDER = Path(__file__).parent
TOP = contrastive_text.__name__
INTERNAL = {"__main__", "cli"}
"""What nothing of a user's imports: the shell."""
_WIDTH = 100


class Entry(NamedTuple):
    """A public name: what it is called, what it is, and the page and anchor of its place."""

    name: str
    value: object
    module: ModuleType
    page: str
    anchor: str

    @property
    def link(self) -> str:
        """A link to it."""
        return f"[`{self.name}`]({self.page}.md#{self.anchor})"


def packages() -> dict[str, ModuleType]:
    """Returns the public packages by name, without the package itself."""
    names = sorted(found.name for found in pkgutil.iter_modules(contrastive_text.__path__))
    modules = {name: importlib.import_module(f"{TOP}.{name}") for name in names if name not in INTERNAL}
    return {name: module for name, module in modules.items() if _public(module)}


def _public(module: ModuleType) -> list[str]:
    """Returns the public names of a package; none of a folder that promises nothing."""
    if "__all__" in vars(module) or "__path__" in vars(module):
        return [*vars(module).get("__all__", ())]
    own = {name for name, value in vars(module).items() if vars_of(value).get("__module__") == module.__name__}
    return [name for name in _assigned(module) if name[0] != "_" and (name in own or _note(module, name)[1])]


def vars_of(value: object) -> Mapping[str, Any]:
    """Returns the attributes of a class or a function; nothing of another value."""
    return {"__module__": value.__module__} if inspect.isclass(value) or inspect.isfunction(value) else {}


@cache
def _source(module: ModuleType) -> tuple[str, list[ast.stmt]]:
    source = inspect.getsource(module)
    return source, ast.parse(source).body


def _assigned(module: ModuleType) -> list[str]:
    """Returns the names that a file defines, in their order."""
    names = []
    for node in _source(module)[1]:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.append(node.name)
        names += _targets(node)
    return names


def _note(module: ModuleType, name: str) -> tuple[str, str]:
    """Returns the source of an assignment and the docstring under it; empty where a file has none."""
    source, body = _source(module)
    for node, after in zip(body, [*body[1:], None], strict=True):
        if name in _targets(node):
            text = ast.get_source_segment(source, node) or ""
            said = after.value if isinstance(after, ast.Expr) else None
            return text, inspect.cleandoc(str(said.value)) if isinstance(said, ast.Constant) else ""
    return "", ""


def _targets(node: ast.stmt) -> list[str]:
    """Returns the names that a statement assigns."""
    if not isinstance(node, ast.Assign | ast.AnnAssign):
        return []
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def entries() -> dict[str, Entry]:
    """Returns every public name with its one place, the package that is first by the alphabet."""
    found: dict[str, Entry] = {}
    for page, module in packages().items():
        anchors: list[str] = []
        for name in _public(module):
            base = name.lower()
            anchor = f"{base}-{anchors.count(base)}" if base in anchors else base  # as GitHub numbers them
            anchors.append(base)
            if name not in found:
                value = getattr(module, name)  # a public name
                found[name] = Entry(name, value, _home(module, name, value), page, anchor)
    return found


def _home(package: ModuleType, name: str, value: object) -> ModuleType:
    """Returns the file that defines a name."""
    if "__module__" in vars_of(value):
        return sys.modules[vars_of(value)["__module__"]]
    files = [module for key, module in sorted(sys.modules.items()) if key.startswith(package.__name__)]
    return next((module for module in files if _note(module, name)[0]), package)


def pages() -> dict[str, str]:
    """Returns the pages by the names of their files."""
    known = entries()
    links = {name: entry.link for name, entry in known.items()}
    each = {
        name: _page(name, [known[own] for own in _public(module)], links) for name, module in packages().items()
    }
    index = [
        "# The library's names",
        "",
        "Written from the docstrings by `python docs/api/write.py`. Letters of shapes: [core](core.md).",
        "",
        "| package | what it holds |",
        "| --- | --- |",
        f"| [`{TOP}`]({TOP}.md) | {summary(contrastive_text.__doc__, links)} |",
        *(f"| [`{name}`]({name}.md) | {summary(module.__doc__, links)} |" for name, module in packages().items()),
    ]
    top = [f"# {TOP}", "", *prose(sections(contrastive_text.__doc__)[""], links), ""]
    top += ["| name | what it is |", "| --- | --- |"]
    for name in contrastive_text.__all__:
        top.append(f"| {links[name]} | {summary(_docstring(known[name]), links)} |")
    each = {"index": "\n".join(index) + "\n", TOP: "\n".join(top) + "\n", **each}
    return {f"{name}.md": text for name, text in each.items()}


def _page(package: str, own: Sequence[Entry], links: Mapping[str, str]) -> str:
    about = sections(packages()[package].__doc__)[""]
    lines = [f"# {TOP}.{package}", "", *prose(about, links), "", "| name | what it is |", "| --- | --- |"]
    lines += [f"| {entry.link} | {summary(_docstring(entry), links)} |" for entry in own]
    for entry in own:
        if entry.page == package:
            lines += ["", f"## {entry.name}", "", *_entry(entry, links)]
    return "\n".join(lines) + "\n"


def _docstring(entry: Entry) -> str:
    if vars_of(entry.value):
        return inspect.cleandoc(entry.value.__doc__ or "")
    source, said = _note(entry.module, entry.name)
    return said or f"``{source}``"


def _entry(entry: Entry, links: Mapping[str, str]) -> list[str]:
    value = entry.value
    if not vars_of(value):
        source, said = _note(entry.module, entry.name)
        return ["```python", source, "```", *([""] if said else []), *prose(said.splitlines(), links)]
    lines = [*_signature(entry.name, value), ""]
    if inspect.isclass(value):
        bases = [base for own in value.__bases__ for base in (own.__bases__ if own.__name__[0] == "_" else [own])]
        named = [base.__name__ for base in bases if base.__module__.startswith(f"{TOP}.")]
        if ours := [links[name] for name in named if name in links]:
            lines += [f"Base: {', '.join(ours)}.", ""]
    lines += documented(_docstring(entry), links)
    if inspect.isclass(value):
        for name, method in _methods(value):
            lines += ["", f"### {entry.name}.{name}", "", *_method(name, method, links)]
    return lines


def _methods(cls: type) -> Iterator[tuple[str, Any]]:  # Any: functions, properties, class and static methods
    """Yields the public methods and properties that a class itself defines and documents, in their order."""
    for name, value in vars(cls).items():
        function = getattr(value, "__func__", getattr(value, "fget", value))  # of a class method, of a property
        if (not name.startswith("_") or name == "__call__") and inspect.isfunction(function) and function.__doc__:
            yield name, value


def _method(name: str, method: Any, links: Mapping[str, str]) -> list[str]:  # Any: as above
    if isinstance(method, property):
        assert method.fget is not None
        gives = _annotation(inspect.signature(method.fget).return_annotation)
        head = ["```python", f"{name}: {gives}  # property", "```"]
    else:
        function = getattr(method, "__func__", method)
        head = _signature(name, function)
        if isinstance(method, classmethod | staticmethod):
            head.insert(1, f"@{type(method).__name__}")
    return [*head, "", *documented(inspect.cleandoc(method.__doc__ or ""), links)]


def _signature(name: str, value: Any) -> list[str]:  # Any: a class or a function
    """Returns how it is called, on one line if that is short."""
    kind = "class" if inspect.isclass(value) else "def"
    if kind == "class" and not _has_constructor(value):
        return ["```python", f"class {name}()", "```"]
    signature = inspect.signature(value)
    parts = _parameters(list(signature.parameters.values()))
    gives = "" if kind == "class" else _annotation(signature.return_annotation)
    end = f" -> {gives}" if gives else ""
    line = f"{kind} {name}({', '.join(parts)}){end}"
    if len(line) <= _WIDTH:
        return ["```python", line, "```"]
    return ["```python", f"{kind} {name}(", *(f"    {part}," for part in parts), f"){end}", "```"]


def _has_constructor(cls: type) -> bool:
    """Whether the library says how an object is made; a bare torch module would take anything."""
    ours = [base for base in cls.__mro__ if base.__module__.split(".")[0] == TOP]
    return any(name in vars(base) for base in ours for name in ("__init__", "__new__"))


def _parameters(parameters: Sequence[inspect.Parameter]) -> list[str]:
    parts, starred = [], False
    for parameter in parameters:
        if parameter.name in ("self", "cls"):
            continue
        starred = starred or parameter.kind is parameter.VAR_POSITIONAL
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            parts.append("*")
            starred = True
        stars = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(parameter.kind.name, "")
        type_ = _annotation(parameter.annotation)
        part = f"{stars}{parameter.name}" + (f": {type_}" if type_ else "")
        if parameter.default is not parameter.empty:
            part += f" = {_default(parameter.default)}"
        parts.append(part)
    return parts


def _annotation(annotation: object) -> str:
    if annotation is inspect.Signature.empty:
        return ""
    if isinstance(annotation, ForwardRef):
        return annotation.__forward_arg__
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _default(value: object) -> str:
    if inspect.isclass(value) or inspect.isfunction(value):
        return value.__name__
    said = repr(value)
    return "..." if " at 0x" in said else said  # an address changes from run to run


def main() -> None:
    """Writes the pages, and removes those of packages that are gone."""
    written = pages()
    for name, text in written.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    for old in FOLDER.glob("*.md"):
        if old.name not in written:
            old.unlink()
    print(f"{len(written)} pages in {FOLDER}")


if __name__ == "__main__":
    main()
