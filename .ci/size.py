"""Prints the size of the package and of its tests next to the targets, and how far a reader has to go."""

from __future__ import annotations

import ast
import inspect
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "contrastive_text"
TESTS = ROOT / "tests"
LONGEST = 500
"""Lines of a module."""
SILENT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(path: Path) -> int:
    """Returns the number of lines of a file without docstrings, comments and blank lines."""
    source = path.read_text(encoding="utf-8")
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                docstrings.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in SILENT:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def python_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def has_tests(path: Path) -> bool:
    return re.search(r"^\s*(async )?def test_", path.read_text(encoding="utf-8"), flags=re.MULTILINE) is not None


def imports() -> dict[str, set[str]]:
    """Returns the modules that each module imports, also inside functions and for type checkers."""
    names = {
        path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__"): path
        for path in python_files(PACKAGE)
    }
    graph: dict[str, set[str]] = {}
    for name, path in names.items():
        targets: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                targets.update(f"{node.module}.{alias.name}" for alias in node.names)
            elif isinstance(node, ast.Import):
                targets.update(alias.name for alias in node.names)
        modules = set()
        for target in targets:
            while target not in names and "." in target:
                target = target.rpartition(".")[0]
            if target in names:
                modules.add(target)
        graph[name] = modules - {name, PACKAGE.name}
    return graph


def reached(graph: dict[str, set[str]], start: str) -> set[str]:
    """Returns a module and every module that it imports, directly or not."""
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += graph[name]
    return seen


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Returns the groups of modules that import each other, directly or not."""
    reach: dict[str, set[str]] = {}
    for name in graph:
        reach[name] = set().union(*(reached(graph, other) for other in graph[name]))
    cyclic = [name for name in graph if name in reach[name]]
    groups = {frozenset(other for other in reach[name] if name in reach[other]) for name in cyclic}
    return sorted(sorted(group) for group in groups)


def arguments(of: Any) -> int:
    return len(inspect.signature(of).parameters)


def rows() -> Iterator[tuple[str, str, str]]:
    """Yields the name, the value and the target of each measure."""
    from contrastive_text.data import TextDataModule
    from contrastive_text.losses import NTXent
    from contrastive_text.objectives import Contrastive
    from contrastive_text.training import ContrastiveModule

    sys.path.insert(0, str(Path(__file__).parent))
    from walks import step_codes, yaml_codes

    package, tests = python_files(PACKAGE), python_files(TESTS)
    graph = imports()
    yield "package, lines of code", str(sum(map(code_lines, package))), "<= 26000"
    yield "package, modules without __init__", str(len([p for p in package if p.stem != "__init__"])), "<= 220"
    longest = max(package, key=code_lines)
    yield (
        f"longest module ({longest.relative_to(PACKAGE)}), lines of code",
        str(code_lines(longest)),
        f"<= {LONGEST}",
    )
    yield "tests, lines of code", str(sum(map(code_lines, tests))), "<= 30000"
    helpers = [path for path in tests if not has_tests(path)]
    yield "modules of tests without a test, lines of code", str(sum(map(code_lines, helpers))), "<= 3000"
    yield "recipe files", str(len(list((PACKAGE / "recipes").glob("*.yaml")))), "<= 50"
    design = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    yield "docs/design.md, words", str(len(design.split())), "<= 3000"
    yield "circles of imports, with those of annotations", str(len(circles(graph))), "0"
    yield "arguments of ContrastiveModule", str(arguments(ContrastiveModule)), "<= 13"
    yield "arguments of TextDataModule", str(arguments(TextDataModule)), "<= 15"
    yield "arguments of Contrastive", str(arguments(Contrastive)), "<= 6"
    files = [name for name in reached(graph, NTXent.__module__) if not is_empty(name)]
    yield "files that NT-Xent reaches", str(len(files)), "<= 7"
    yield "files that a step of SimCSE executes", str(len(set(step_codes().values()))), "<= 18"
    yield "files from a YAML key to its object", str(len(set(yaml_codes().values()))), "<= 4"


def is_empty(module: str) -> bool:
    """Returns whether a module is a package without code of its own."""
    path = ROOT / module.replace(".", "/") / "__init__.py"
    return path.is_file() and code_lines(path) == 0


if __name__ == "__main__":
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    print(f"Sizes at commit {commit.stdout.strip() or 'unknown'}")
    for name, value, target in rows():
        print(f"{name:<60} {value:>7}   {target}")
    for circle in circles(imports()):
        print("circle:", ", ".join(circle))
    for path in python_files(PACKAGE):
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > LONGEST:
            print(f"more than {LONGEST} lines with docstrings: {path.relative_to(PACKAGE)}, {lines}")
