"""The public names, as docs/api shows them: what a user may build on. A change there is one for the changelog."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from pathlib import Path
from types import ModuleType

import pytest

import contrastive_text

PAGES = Path(__file__).parents[1] / "docs" / "api"
INTERNAL = {"__main__", "cli"}
"""Modules of the shell command, which no program imports."""
MODULES = {
    found.name: importlib.import_module(f"contrastive_text.{found.name}")
    for found in pkgutil.iter_modules(contrastive_text.__path__)
    if found.name not in INTERNAL
}


def public(module: ModuleType) -> list[str]:
    """Returns the names that a package promises; those of a single file are what it defines."""
    if "__path__" in vars(module) or "__all__" in vars(module):
        return [*vars(module).get("__all__", ())]
    own = vars(module).items()
    return [name for name, value in own if name[0] != "_" and getattr(value, "__module__", "") == module.__name__]


PACKAGES = {name: module for name, module in MODULES.items() if public(module)}


def index() -> str:
    return (PAGES / "index.md").read_text(encoding="utf-8")


def test_every_public_package_has_a_page_that_the_first_one_lists() -> None:
    assert {path.stem for path in PAGES.glob("*.md")} == {*PACKAGES, "index"}
    assert sorted(re.findall(r"^\| \[(\w+)\]\(\1\.md\) \|", index(), flags=re.MULTILINE)) == sorted(PACKAGES)
    for name in PACKAGES:
        page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
        assert page == f"::: contrastive_text.{name}\n"


def test_the_first_page_lists_the_names_that_a_program_starts_from() -> None:
    rows = re.findall(r"^\| \[(\w+)\]\((\w+)\.md#contrastive_text\.(\w+)\.(\w+)\)", index(), flags=re.MULTILINE)
    assert [name for name, *_ in rows] == contrastive_text.__all__
    for name, page, package, anchor in rows:
        assert (page, anchor) == (package, name) and name in public(PACKAGES[package])


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_there_and_documented(package: str) -> None:
    for name in public(PACKAGES[package]):
        value = getattr(PACKAGES[package], name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__doc__, name


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_hides_a_public_name(package: str) -> None:
    """A name that is its package's file too is the one or the other, by what was imported last."""
    modules = {found.name for found in pkgutil.iter_modules(vars(PACKAGES[package]).get("__path__", []))}
    assert not modules & {*public(PACKAGES[package])}


def test_public_names_have_examples() -> None:
    """A base class, a record or what needs a running trainer may go without; nothing else joins them."""
    values = {name: getattr(module, name) for module in PACKAGES.values() for name in public(module)}
    shown = {name: value for name, value in values.items() if inspect.isclass(value) or inspect.isfunction(value)}
    members = {name: [value, *vars(value).values()] for name, value in shown.items()}
    without = {
        name
        for name, own in members.items()
        if not any(">>> " in str(getattr(member, "__doc__", "")) for member in own)
    }
    assert len(shown) - len(without) >= 260
    assert len(without) <= 51, "an example under Example: in the docstring, please"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="NoSuchPart"):
        importlib.import_module("contrastive_text").NoSuchPart  # noqa: B018  # asking is the test
