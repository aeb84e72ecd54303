"""The documentation site, built strictly and looked at in a browser: first page, part, interface, search."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from browsers import DESK, INSTALLED, MISSING, PHONE, Browser, browsing
from selenium.webdriver.support.ui import WebDriverWait

ROOT = Path(__file__).parents[2]
PAGES = ("index.html", "choose.html", "parts/SwapWords.html", "api/losses.html", "tutorials/1_own_texts.html")

pytestmark = pytest.mark.skipif(
    not all(map(find_spec, ("mkdocs", "material", "mkdocstrings"))), reason="there is no mkdocs: make docs"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as ``make docs`` builds it, or the one that ``.ci/run`` has built so a moment ago."""
    if built_before := os.environ.get("CONTRASTIVE_TEXT_SITE"):
        return ROOT / built_before
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(folder)],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if not INSTALLED:
        pytest.skip(MISSING)
    with browsing(tmp_path_factory.mktemp("browser")) as driver:
        yield driver


def test_nothing_comes_from_another_host(site: Path) -> None:
    pages = [*site.rglob("*.html")]
    assert len(pages) > 60
    loaded = r"<(?:script|img|iframe)[^>]+src=\"?(https?:[^\"> ]+)|<link[^>]+href=\"?(https?:[^\"> ]+)"
    found = {match[0] for page in pages for match in re.finditer(loaded, page.read_text(encoding="utf-8"))}
    assert not found


def test_every_public_name_has_its_place_in_the_interface(site: Path) -> None:
    for page in sorted((site / "api").glob("*.html")):
        if page.stem != "index":
            module = importlib.import_module(f"contrastive_text.{page.stem}")
            places = {*re.findall(r'id="([\w.]+)"', page.read_text(encoding="utf-8"))}
            assert {f"{module.__name__}.{name}" for name in vars(module).get("__all__", ())} <= places


@pytest.mark.parametrize("screen", [PHONE, DESK], ids=["phone", "desk"])
@pytest.mark.parametrize("page", PAGES)
def test_a_page_fits_and_shows_its_pictures(
    site: Path, browser: Browser, page: str, screen: tuple[int, int, bool]
) -> None:
    browser.get_log("browser")
    browser.opened(site / page, screen)
    assert browser.told("return document.documentElement.scrollWidth") <= screen[0]
    pictures = browser.told("return [...document.querySelectorAll('article img')].map(i => i.naturalWidth)")
    assert all(pictures) and (pictures or not page.startswith("parts/"))
    assert browser.get_log("browser") == []


def test_search_finds_a_page(site: Path, browser: Browser) -> None:
    browser.opened(site / "index.html", DESK)
    browser.told("document.querySelector('#__search').click()")
    browser.find_element("css selector", ".md-search__input").send_keys("SwapWords")
    titles = "return [...document.querySelectorAll('.md-search-result__item h1')].map(h => h.textContent)"
    WebDriverWait(browser, 60).until(lambda browser: "SwapWords" in browser.told(titles))
