"""The public names, as docs/api lists them: what a user may build on. A change there is one for the changelog."""

import importlib
import re
from pathlib import Path

import pytest

PAGES = Path(__file__).parents[1] / "docs" / "api"
PACKAGES = sorted({path.stem.removeprefix("contrastive_text") for path in PAGES.glob("*.md")} - {"index"})


def module_of(package: str) -> object:
    return importlib.import_module(f"contrastive_text.{package}".rstrip("."))


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_exports_exactly_its_public_names(package: str) -> None:
    page = (PAGES / f"{package or 'contrastive_text'}.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| \[`(\w+)`\]", page, flags=re.MULTILINE)
    names = vars(module_of(package)).get("__all__", listed)  # a package of one file has no list of its own
    assert listed == names, "run make pages, and say what is new in CHANGELOG.md"


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_there_and_documented(package: str) -> None:
    module = module_of(package)
    for name in vars(module).get("__all__", ()):
        value = getattr(module, name)
        assert value is not None
        if callable(value) and isinstance(value, type):
            assert value.__doc__, name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="NoSuchPart"):
        importlib.import_module("contrastive_text").NoSuchPart  # noqa: B018  # asking is the test
