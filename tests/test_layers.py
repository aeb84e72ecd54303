"""Floors and files of the design pages: imports go to lower floors, and no two files import each other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import contrastive_text

PACKAGE = Path(contrastive_text.__file__).parent
FLOORS = [
    {"core"},
    {"pairings", "views", "poolers", "heads", "losses", "metrics", "recipes"},
    {"data", "encoders"},
    {"objectives", "inference"},
    {"training", "evaluation"},
    {"runs"},
    {"cli"},
]
FLOOR = {name: number for number, names in enumerate(FLOORS, start=1) for name in names}
BELOW = {"objectives": {"views", "pairings"}, "inference": {"losses", "objectives"}}
"""Package -> what lies below it that it does without."""
LIGHTNING = ("training/", "cli/", "data/datamodule.py", "data/loader.py")
"""Where Lightning may be imported."""


@cache  # where a test asks: every worker of a run collects this file
def modules() -> dict[str, ast.Module]:
    """Returns the files of the package by the name of their module, but for those of the package itself."""
    files = [path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or path.stem[0] != "_"]
    named = {
        path.relative_to(PACKAGE.parent).with_suffix("").as_posix().replace("/", "."): path for path in files
    }
    return {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in sorted(named.items())}


def imported(tree: ast.AST) -> Iterator[str]:
    """Yields the modules and names of the package that a file imports, anywhere in it but for type checkers."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        else:
            yield from imported(node)


def own_imports(module: str) -> set[str]:
    """Returns the modules of the package that a file imports: where a folder gives a name, the folder."""
    found = set()
    for name in imported(modules()[module]):
        while (
            name.startswith(f"{PACKAGE.name}.") and name not in modules() and f"{name}.__init__" not in modules()
        ):
            name = name.rpartition(".")[0]
        if name in modules() or f"{name}.__init__" in modules():
            found.add(name)
    return found


def package(module: str) -> str:
    return module.split(".")[1]


DOCS = Path(__file__).parents[1] / "docs"
DESIGN = (DOCS / "design.md").read_text(encoding="utf-8")


def test_every_file_that_the_design_pages_name_is_there() -> None:
    pages = [DESIGN, *(page.read_text(encoding="utf-8") for page in (DOCS / "design").glob("*.md"))]
    named = {name for page in pages for name in re.findall(r"`([\w/]+\.py)`", page)}
    assert len(named) > 100
    assert not [name for name in named if not any((root / name).is_file() for root in (PACKAGE, PACKAGE.parent))]


def test_the_design_has_the_same_floors() -> None:
    rows = re.findall(r"^\| (\d+) \| ([^|]+) \|", DESIGN, flags=re.MULTILINE)
    expected = dict(enumerate(FLOORS, start=1))
    assert {int(floor): {*re.findall(r"`(\w+)`", names)} for floor, names in rows} == expected


def test_every_package_has_a_floor() -> None:
    assert {package(module) for module in modules()} == set(FLOOR)


def test_a_package_imports_from_lower_floors_only() -> None:
    offences = [
        f"{module} imports {other}"
        for module in modules()
        for other in own_imports(module)
        if package(other) != package(module)
        and (
            FLOOR[package(other)] >= FLOOR[package(module)]
            or package(other) in BELOW.get(package(module), ())
            or (
                package(module) == "losses"
                and other
                not in (
                    "contrastive_text.core.similarity",
                    "contrastive_text.core.checks",
                    "contrastive_text.core.errors",
                )
            )
        )
    ]
    assert not offences, "\n".join(offences)


def test_no_two_files_import_each_other() -> None:
    """An import inside of a function counts."""
    files = {name.removesuffix(".__init__"): own_imports(name) for name in modules()}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name not in done:
            for other in sorted(files[name] - {name}):
                visit(other, (*path, name))
            done.add(name)

    for name in files:
        visit(name, ())


def test_only_training_the_shell_and_the_data_module_know_lightning() -> None:
    knowing = {
        name
        for name, tree in modules().items()
        if any("lightning" in each.split(".")[0] for each in imported(tree))
    }
    paths = {name: name.removeprefix("contrastive_text.").replace(".", "/") + ".py" for name in knowing}
    assert not [path for path in paths.values() if not path.startswith(LIGHTNING)]
    # "lightning" is a second family of the same classes.
    assert not [
        name for name in knowing if any(each.split(".")[0] == "lightning" for each in imported(modules()[name]))
    ]


def test_every_folder_is_a_package() -> None:
    """A folder without ``__init__`` is imported all the same, as a namespace without a name in it."""
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    assert not [folder for folder in folders if not (folder / "__init__.py").is_file()]
