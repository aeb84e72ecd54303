"""The pages of docs/api are what the docstrings say today, and their links lead somewhere."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "docs" / "api"
LINK = re.compile(r"\]\(([\w.]+\.md)(?:#([\w-]+))?\)")


@pytest.fixture(scope="module")
def pages() -> Iterator[dict[str, str]]:
    """The pages as they would be written now."""
    sys.path.insert(0, str(FOLDER))
    import write

    yield write.pages()
    sys.path.remove(str(FOLDER))


def anchors(text: str) -> set[str]:
    """Returns the anchors of a page's headings, as GitHub makes them."""
    found: list[str] = []
    for title in re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE):
        base = re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
        found.append(base if base not in found else f"{base}-{found.count(base)}")
    return set(found)


def test_the_pages_are_up_to_date(pages: dict[str, str]) -> None:
    there = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
    old = sorted(name for name in pages.keys() | there.keys() if pages.get(name) != there.get(name))
    assert not old, f"{', '.join(old)}: run python docs/api/write.py"


def test_every_link_leads_to_a_heading(pages: dict[str, str]) -> None:
    known = {name: anchors(text) for name, text in pages.items()}
    for name, text in pages.items():
        for page, anchor in LINK.findall(text):
            assert page in known, f"{name}: {page}"
            assert not anchor or anchor in known[page], f"{name}: {page}#{anchor}"


def test_every_name_says_what_it_is(pages: dict[str, str]) -> None:
    for name, text in pages.items():
        for row in re.findall(r"^\| \[`.*$", text, flags=re.MULTILINE):
            assert not row.endswith("|  |"), f"{name}: {row}"


def test_names_stand_where_they_are_expected(pages: dict[str, str]) -> None:
    losses = pages["losses.md"]
    assert "## NTXent\n\n```python\nclass NTXent(" in losses
    assert "### Loss.terms\n" in losses
    assert "[`InfoNCE`](losses.md#infonce)" in pages["contrastive_text.md"]
    assert "**Raises**\n\n- `ValueError`: " in losses
    assert "```python\n>>> " in losses
    assert "__init__" not in losses
