"""The page as a browser shows it: on a phone and a desk, in light and dark, under a finger, on paper."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from browsers import DESK, INSTALLED, MISSING, PHONE, Browser, browsing

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not INSTALLED, reason=MISSING)]

SHOWN = """
const own = element => [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
const unseen = "script, style, title, desc, defs, details pre";
const shown = [...document.querySelectorAll("body *")].filter(
  element => element.checkVisibility() && !element.closest(unseen));
"""
LAYOUT = (
    SHOWN
    + """
const width = document.documentElement.clientWidth, outside = [], small = [];
for (const element of shown) {
  const box = element.getBoundingClientRect(), inBox = element.closest(".scroll table");
  const inside = inBox || !box.width || (box.left > -1 && box.right < width + 1);
  if (!inside) outside.push(element.outerHTML.slice(0, 120));
  const svg = element.closest("svg");
  const scale = svg ? svg.getBoundingClientRect().width / svg.viewBox.baseVal.width : 1;
  const size = scale * parseFloat(getComputedStyle(element).fontSize);
  if (own(element) && size < 11) small.push([size, element.outerHTML.slice(0, 120)]);
}
const boxes = [...document.querySelectorAll("figure, .missing, .scroll, .key, .reader")].map(
  element => element.getBoundingClientRect());
const shared = (a, b, start, end) => Math.min(a[end], b[end]) - Math.max(a[start], b[start]) > 1;
const overlapping = boxes.flatMap((a, i) => boxes.slice(i + 1).filter(
  b => shared(a, b, "left", "right") && shared(a, b, "top", "bottom")));
return { width: document.documentElement.scrollWidth, outside, small, overlapping: overlapping.length };
"""
)
CONTRAST = (
    SHOWN
    + """
const channel = value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
const light = color => {
  const [r, g, b] = color.match(/[\\d.]+/g).map(value => channel(value / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ground = element => {
  const color = getComputedStyle(element).backgroundColor;
  return /, 0\\)$/.test(color) ? ground(element.parentElement) : color;
};
const poor = [];
for (const element of shown.filter(own)) {
  const style = getComputedStyle(element);
  const [one, other] = [light(element.closest("svg") ? style.fill : style.color), light(ground(element))];
  const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
  if (!(contrast >= 4.5)) poor.push([contrast, element.outerHTML.slice(0, 120)]);
}
return { poor, ground: ground(document.body), seen: shown.filter(own).length };
"""
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("browser")) as driver:
        yield driver


@pytest.mark.parametrize("screen", [PHONE, DESK], ids=["phone", "desk"])
@pytest.mark.parametrize("name", ["page", "page_of_two"])
def test_everything_fits_and_can_be_read(
    browser: Browser, request: pytest.FixtureRequest, name: str, screen: tuple[int, int, bool]
) -> None:
    browser.opened(request.getfixturevalue(name), screen)
    found = browser.told(LAYOUT)
    assert found["width"] <= screen[0]
    assert found["outside"] == []
    assert found["small"] == []
    assert found["overlapping"] == 0


@pytest.mark.parametrize(("theme", "ground"), [("light", "rgb(255, 255, 255)"), ("dark", "rgb(20, 22, 26)")])
def test_all_text_stands_out_in_both_themes(browser: Browser, page_of_two: Path, theme: str, ground: str) -> None:
    browser.opened(page_of_two, PHONE, theme)
    found = browser.told(CONTRAST)
    assert found["ground"] == ground
    assert found["seen"] > 100
    assert found["poor"] == []


def test_nothing_is_asked_of_the_network_and_nothing_goes_wrong(browser: Browser, page: Path) -> None:
    browser.get_log("browser"), browser.get_log("performance")  # those of other pages
    browser.opened(page, DESK)
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert {url for url in asked if not url.startswith("data:")} == {page.as_uri()}
    assert browser.get_log("browser") == []


def test_a_dot_of_the_map_shows_its_text_under_the_pointer_and_the_keys(
    browser: Browser, page_of_two: Path
) -> None:
    browser.opened(page_of_two, PHONE)
    place = """
        const point = document.querySelectorAll(".point")[7];
        point.scrollIntoView({block: "center"});
        const box = point.getBoundingClientRect();
        return [box.x + box.width / 2, box.y + box.height / 2]"""
    x, y = browser.told(place)
    for kind in ("mouseMoved", "mousePressed"):
        event = {"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1}
        browser.execute_cdp_cmd("Input.dispatchMouseEvent", event)
    lit = """return [document.querySelector(".reader").textContent,
        [...document.querySelectorAll(".point.on")].map(point => point.querySelector("title").textContent)]"""
    text, points = browser.told(lit)
    assert len(points) == 2  # the same text on the map of each run
    assert points == [text, text]

    start = browser.told(
        """const point = document.querySelector('.point[tabindex="0"]'); point.focus();
        return point.querySelector("title").textContent""",
    )
    assert browser.told(lit)[0] == start
    read = {start}
    for key in ("ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"):
        browser.execute_cdp_cmd("Input.dispatchKeyEvent", {"type": "keyDown", "key": key, "code": key})
        read.add(browser.told(lit)[0])
    assert len(read) > 1


def test_texts_of_the_map_can_be_searched(browser: Browser, page_of_two: Path) -> None:
    browser.opened(page_of_two, DESK)
    texts = browser.told(
        """const map = document.querySelector("#map svg");
        return [...map.querySelectorAll(".point title")].map(title => title.textContent)""",
    )
    wanted = texts[3].split()[-1]
    found = [text for text in texts if wanted.lower() in text.lower()]
    browser.find_element("css selector", "#map input").send_keys(wanted.upper())
    lit = """return [...document.querySelectorAll(".point.hit title")].map(title => title.textContent)"""
    assert browser.told(lit) == 2 * found
    assert browser.told("""return document.querySelectorAll(".point.dim").length""") == 2 * (
        len(texts) - len(found)
    )
    assert browser.told("""return document.querySelector(".search output").textContent""").startswith(
        f"{len(found)} of {len(texts)} texts"
    )
    listed = browser.told("""return [...document.querySelectorAll(".found button")].map(e => e.textContent)""")
    assert listed == found[:20]
    browser.find_element("css selector", ".found button").click()
    assert browser.told("""return document.querySelector(".reader").textContent""") == found[0]


def test_the_page_prints_on_a_few_sheets_in_light_colors(browser: Browser, page: Path) -> None:
    browser.opened(page, DESK, theme="dark")
    printed = browser.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True, "printBackground": True})
    content = base64.b64decode(printed["data"])
    assert 3 <= len(re.findall(rb"/Type\s*/Page\b", content)) <= 10
    boxes = {
        tuple(round(float(side)) for side in box.split())
        for box in re.findall(rb"/MediaBox \[([^\]]*)\]", content)
    }
    assert boxes == {(0, 0, 595, 842)} or boxes == {(0, 0, 596, 842)}  # A4 in points
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert browser.told(CONTRAST)["ground"] == "rgb(255, 255, 255)"
