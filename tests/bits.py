"""Finds the tests that compare bits or digits by their source, so that new tests are included.

A mark to put by hand would be forgotten at the very tests that nobody suspects.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

EXACT = {"equal", "array_equal", "assert_array_equal", "read_bytes"}
"""Attributes whose use is a comparison of bits, or of the bytes of files."""
DIGITS = re.compile(r"\d\.\d")


def compares_bits(item: pytest.Item) -> bool:
    """Returns whether the outcome of a test may depend on the rounding of the last bit.

    Of a doctest that is so where it prints a decimal fraction; of a test where it, or a function of its file that
    it calls, compares tensors, arrays or files bit by bit, a number with a float, or a text with decimals.
    """
    if isinstance(item, pytest.DoctestItem):
        return item.dtest is not None and any(DIGITS.search(example.want) for example in item.dtest.examples)
    return isinstance(item, pytest.Function) and item.originalname in _bitwise(item.path)


@cache
def _bitwise(path: Path) -> set[str]:
    """Returns the names of a file's functions that compare bits, themselves or by what they call."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    found = {name for name, function in functions.items() if any(map(_is_exact, _body(function)))}
    calls = {
        name: {node.id for node in _body(function) if isinstance(node, ast.Name)}
        for name, function in functions.items()
    }
    while more := {name for name in functions.keys() - found if calls[name] & found}:
        found |= more
    return found


def _body(function: ast.FunctionDef) -> Iterator[ast.AST]:
    for statement in function.body:
        yield from ast.walk(statement)


def _is_exact(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(attr=name):
            return name in EXACT
        case ast.Call(keywords=keywords):
            none = {
                each.arg for each in keywords if isinstance(each.value, ast.Constant) and each.value.value == 0
            }
            return {"rtol", "atol"} <= none
        case ast.Compare(ops=[ast.Eq() | ast.In()]):
            return any(_is_digits(each) for side in (node.left, *node.comparators) for each in _plain(side))
        case _:
            return False


def _plain(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the parts of a side of a comparison, but for what stands in a call: ``approx`` has a tolerance."""
    yield node
    if not isinstance(node, ast.Call):
        for child in ast.iter_child_nodes(node):
            yield from _plain(child)


def _is_digits(node: ast.AST) -> bool:
    match node:
        case ast.Constant(value=float()):
            return True
        case ast.Constant(value=str(text)):
            return DIGITS.search(text) is not None
        case _:
            return False
