"""The source of the package: floors and files of the design pages, circles of imports, and who prints."""

from __future__ import annotations

import ast
import inspect
import re
from types import CodeType

import pytest
import walks
from size import PACKAGE, ROOT, circles, imports

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
"""Package -> lower packages that it must not import."""
LOSSES = {f"contrastive_text.core.{name}" for name in ("similarity", "errors")}
"""All that losses may import of lower packages."""
LIGHTNING = ("training/", "cli/", "data/datamodule.py", "data/loader.py")
"""Files that may import Lightning."""
BUILT_IN = {
    "Exception", "ValueError", "TypeError", "OSError", "FileNotFoundError", "FileExistsError", "ImportError",
    "KeyError", "IndexError",
}  # fmt: skip
PRINTING = {"print", "Console", "rich.print", "traceback.print_exc", "sys.stdout.write", "sys.stderr.write"}
DESIGN = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
"""docs/design.md"""


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    """Module of a package -> the modules that it imports, also in functions and for annotations."""
    return {name: others for name, others in imports().items() if package(name) not in ("", "__main__")}


def package(module: str) -> str:
    return module.partition(".")[2].partition(".")[0]


def test_every_file_that_the_design_pages_name_is_there() -> None:
    pages = [DESIGN, *(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "design").glob("*.md"))]
    named = {name for page in pages for name in re.findall(r"`([\w/]+\.py)`", page)}
    assert len(named) > 100
    assert not [name for name in named if not any((root / name).is_file() for root in (PACKAGE, ROOT))]


def test_the_design_has_the_same_floors(graph: dict[str, set[str]]) -> None:
    rows = re.findall(r"^\| (\d+) \| ([^|]+) \|", DESIGN, flags=re.MULTILINE)
    assert {int(floor): {*re.findall(r"`(\w+)`", names)} for floor, names in rows} == dict(
        enumerate(FLOORS, start=1)
    )
    assert {package(module) for module in graph} == set(FLOOR)


def test_a_package_imports_from_lower_floors_only(graph: dict[str, set[str]]) -> None:
    for module, others in graph.items():
        own = package(module)
        for other in others:
            if package(other) != own:
                assert FLOOR[package(other)] < FLOOR[own], f"{module} imports {other}"
                assert package(other) not in BELOW.get(own, ()), f"{module} imports {other}"
                assert own != "losses" or other in LOSSES, f"{module} imports {other}"


def test_no_two_files_import_each_other(graph: dict[str, set[str]]) -> None:
    assert circles(graph) == []


@pytest.fixture(scope="module")
def nodes() -> dict[str, list[ast.AST]]:
    """File of the package -> the nodes of its source."""
    return {
        path.relative_to(PACKAGE).as_posix(): [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def test_only_training_the_shell_and_the_data_module_import_lightning(nodes: dict[str, list[ast.AST]]) -> None:
    for file, each in nodes.items():
        names = [alias.name for node in each if isinstance(node, ast.Import) for alias in node.names]
        names += [node.module or "" for node in each if isinstance(node, ast.ImportFrom)]
        tops = {name.split(".")[0] for name in names}
        assert "lightning" not in tops, "a second family of the same classes"
        assert "pytorch_lightning" not in tops or file.startswith(LIGHTNING), file


def test_no_file_raises_a_built_in_error_and_the_terminal_alone_prints(nodes: dict[str, list[ast.AST]]) -> None:
    """A command prints errors of the library as answers; a built-in error is a bug with its traceback."""
    raised, printing = [], {}
    for file, each in nodes.items():
        for node in each:
            match node:
                case ast.Raise(exc=ast.Call(func=ast.Name(id="OSError"), args=[ast.Attribute(), _])):
                    pass  # with a number of errno, as the system raises it
                case ast.Raise(exc=ast.Call(func=ast.Name(id=name))) | ast.Return(
                    ast.Call(func=ast.Name(id=name))
                ):
                    raised += [f"{file}:{node.lineno}"] if name in BUILT_IN else []
            if isinstance(node, ast.Call) and (called := ast.unparse(node.func)) in PRINTING:
                printing[file] = called
    assert not raised
    assert printing == {"core/terminal.py": "Console"}


def test_every_folder_is_a_package() -> None:
    """Python imports a folder without ``__init__`` as a namespace without a name in it."""
    assert not [path for path in PACKAGE.rglob("*.py") if not (path.parent / "__init__.py").is_file()]


# Reading a step


def test_a_step_is_read_in_the_nine_files_of_the_design() -> None:
    section = re.search(r"## Reading a step\n(.*?)\n## ", DESIGN, flags=re.DOTALL)
    assert section is not None
    ran: dict[str, list[CodeType]] = {}
    for code, file in walks.step_codes().items():
        ran.setdefault(file, []).append(code)
    table = re.findall(r"^\| \[`([\w/.]+)`\]\S+ \| (\d+) \| (.+) \|$", section[1], flags=re.MULTILINE)
    read = [file for file, _, _ in table]
    assert len(read) <= 9
    assert read == [file for file in ran if file in read], "in the order in which a batch passes them"
    linked = dict(re.findall(r"\[`([\w/.]+\.py)`\]\(\.\./contrastive_text/([^)]+)\)", section[1]))
    assert linked == {file: file for file in ran}, "the other files are named too, each with a link"
    for file, lines, words in table:
        assert set(re.findall(r"`(\w+)`", words)) <= {code.co_name for code in ran[file]}, file
        outer = [code for code in ran[file] if "<locals>" not in code.co_qualname]
        length = sum(len(inspect.getsourcelines(code)[0]) for code in outer)
        assert abs(length - int(lines)) <= max(10, 0.2 * int(lines)), f"{file}: {length} lines run"
