import re
import shutil
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import pytest
import tiny
import torch
from covering import rest_slow
from safetensors.torch import load_file, save_file

from contrastive_text.core.storage.manifests import MANIFEST
from contrastive_text.data import read_rows
from contrastive_text.evaluation.cached import CachedEncoder
from contrastive_text.evaluation.diagnosis import diagnose
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.runs.report.charts import Note
from contrastive_text.runs.report.material import embed, gather, read_run_files
from contrastive_text.runs.report.page import write_report
from contrastive_text.runs.report.runs import read_runs

SECTIONS = ("training", "pairs", "geometry", "map", "neighbors", "views", "provenance")


class Reader(HTMLParser):
    """Collects the tags of a page, and its text outside of script and style."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._inside = ""
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_data(self, data: str) -> None:
        if self._inside not in ("script", "style"):
            self.text += data


@pytest.fixture
def copied(trained: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of a run, to take something from."""
    return Path(shutil.copytree(trained["plain"] / "version_0", tmp_path / "run"))


@pytest.mark.slow
def test_a_page_has_every_section_and_a_picture_of_every_chart(page: Path) -> None:
    reader = Reader(page)
    assert [attributes["id"] for tag, attributes in reader.tags if tag == "section"] == list(SECTIONS)
    charts = [
        str(attributes["aria-labelledby"]).split("-title")[0] for tag, attributes in reader.tags if tag == "svg"
    ]
    assert {path.stem for path in page.parent.glob("*.png")} == {*charts}
    assert {"train-contrastive", "val-spearman", "cosines", "gold", "spectrum", "map-1"} <= {*charts}


@pytest.mark.parametrize("name", rest_slow(["page", "page_of_two"], quick=0))
def test_a_page_is_small_and_whole_and_no_text_or_name_of_a_run_becomes_markup(
    name: str, nasty: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    path: Path = request.getfixturevalue(name)
    reader = Reader(path)
    for tag, attributes in reader.tags:
        assert tag not in ("iframe", "img", "i", "object", "embed")
        for attribute in ("src", "href", "data", "action"):
            assert (attributes.get(attribute) or "#").startswith(("#", "data:,")), (tag, attributes)
        assert not any(key.startswith("on") for key in attributes)
    assert not re.search(r"@import|url\((?!#)|https?://", path.read_text(encoding="utf-8"))
    assert path.stat().st_size < 1.5e6
    ids = [attributes["id"] for _, attributes in reader.tags if "id" in attributes]
    assert len({*ids}) == len(ids)
    assert {str(attributes["href"])[1:] for tag, attributes in reader.tags if tag == "a"} <= {*ids}
    assert all(text in reader.text for text in nasty)
    assert name == "page" or "al<i>tered" in reader.text
    tags = [tag for tag, _ in reader.tags]
    assert tags.count("script") == tags.count("style") == 1


@pytest.mark.slow  # a second page, drawn whole
def test_a_page_is_the_same_when_it_is_written_again(
    page: Path, trained: dict[str, Path], tmp_path: Path
) -> None:
    again = write_report([trained["plain"]], tmp_path)
    names = sorted(path.name for path in page.parent.iterdir())
    assert names == sorted(path.name for path in tmp_path.iterdir())
    for name in names:
        assert (page.parent / name).read_bytes() == (again.parent / name).read_bytes(), name


def test_the_template_escapes_all_but_the_librarys_own_markup() -> None:
    template = files("contrastive_text.runs.report").joinpath("page.html").read_text(encoding="utf-8")
    assert re.findall(r"([\w.]+) \| safe", template) == ["part.svg", "style_sheet", "script"]
    assert "autoescape false" not in template


@pytest.mark.slow
def test_the_figures_are_those_of_diagnose(page: Path, trained: dict[str, Path]) -> None:
    texts = [str(row["text"]) for row in read_rows(trained["texts"], reads=("text",))]
    encoder = CachedEncoder(
        SentenceEncoder.from_pretrained(trained["plain"] / "version_0" / "model", device="cpu")
    )
    found = diagnose(encoder, texts)
    row = f'<th scope="row">mean cosine</th><td>{found.mean_cosine:.3f}</td>'
    assert row in page.read_text(encoding="utf-8")
    assert f"effective rank, {found.effective_rank:.1f} of 16" in Reader(page).text


@pytest.mark.slow
def test_two_runs_stand_side_by_side_with_what_differs_and_what_their_views_change(page_of_two: Path) -> None:
    text = page_of_two.read_text(encoding="utf-8").replace("<wbr>", "")
    differ = re.search(r"Where the configurations differ.*?</table>", text, flags=re.DOTALL)
    assert differ is not None
    assert "model.optimizer.lr" in differ[0] and "DeleteTokens(rate=0.5" in differ[0]
    assert "data.batch_size" not in differ[0]
    assert "plain: " in text and "al&lt;i&gt;tered: " in text
    assert {"map-1.png", "map-2.png"} <= {path.name for path in page_of_two.parent.iterdir()}
    views = text[text.index('<section id="views"') : text.index('<section id="provenance"')]
    assert views.count("<del>") > 3
    assert "views.positive[0]" in views and "% of tokens" in views and "% of entries" in views
    assert "No view alters these texts" in views  # of the plain run


@pytest.mark.slow
def test_a_bare_folder_of_figures_is_a_run_too(copied: Path, tmp_path: Path) -> None:
    for name in ("checkpoints", "model"):
        shutil.rmtree(copied / name)
    (copied / "config.yaml").unlink()
    text = Reader(write_report([copied], tmp_path / "out")).text
    assert f"there is no checkpoint in {copied / 'checkpoints'}" in text
    assert text.count(f"there is no saved model in {copied / 'model'}") == 4  # a section each
    assert "configuration: not shown." in text and "Samples of the views: not shown." in text
    assert "Loss: contrastive" in text


@pytest.mark.slow
def test_a_run_whose_files_are_gone_falls_back_and_says_why(
    copied: Path, trained: dict[str, Path], tmp_path: Path
) -> None:
    (run,) = read_runs([copied])
    moved = trained["texts"].rename(tmp_path / "elsewhere.txt")
    try:
        told = read_run_files(run)
    finally:
        moved.rename(trained["texts"])
    assert not told.views and str(trained["texts"]) in told.lacks
    without = gather({run.name: told}, pairs=None, texts=None, limit=1000)
    own = {str(row[side]) for row in told.pairs["pairs"] for side in ("anchor", "positive")}
    assert {*without.texts} == own
    assert without.source == f"all 24 pairs of pairs and all {len(own)} different texts of pairs"


def test_pairs_and_texts_can_be_named_and_are_drawn_with_a_seed(trained: dict[str, Path], tmp_path: Path) -> None:
    pairs = tiny.write_pairs(tmp_path / "others.tsv", count=30, start=5)
    given = gather({}, pairs=pairs, texts=trained["texts"], limit=20)
    assert given.source == (
        "20 of 30 (drawn with seed 42) pairs of others.tsv and "
        "20 of 42 (drawn with seed 42) different texts of texts.txt"
    )
    assert given.pairs is not None and len(given.pairs) == 20 and len({*given.texts}) == 20
    assert given == gather({}, pairs=pairs, texts=trained["texts"], limit=20)
    with pytest.raises(ValueError, match="expected 20 texts or more, got 5"):
        gather({}, pairs=pairs, texts=None, limit=5)


def test_a_model_that_diverged_is_named(copied: Path, trained: dict[str, Path]) -> None:
    path = copied / "model" / "model.safetensors"
    broken = {name: torch.full_like(weight, torch.nan) for name, weight in load_file(path).items()}
    save_file(broken, path, metadata={"format": "pt"})
    (copied / "model" / MANIFEST).unlink()  # with it, the weights are refused as changed
    (run,) = read_runs([copied])
    note = embed(run, gather({}, pairs=None, texts=trained["texts"], limit=20), device="cpu")
    assert isinstance(note, Note) and "expected finite vectors" in note.why
