"""The card of a real run, held against the hub's rules, and its blocks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import tiny
from huggingface_hub import ModelCard, ModelCardData

from contrastive_text import SentenceEncoder
from contrastive_text.training.callbacks.export_model import _without_places
from contrastive_text.training.run import Run


def trained(folder: Path, encoder: str, texts: str, **options: Any) -> Run:
    """Returns a run of a step that has ended, whose folder is ``run`` in this one."""
    own = {"num_workers": 0, "accelerator": "cpu", "enable_progress_bar": False, "folder": str(folder / "run")}
    run = Run.from_recipe("dcl", encoder=encoder, train=texts, batch_size=8, max_steps=1, **own, **options)
    run.fit()
    return run


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("/home/me/a b/texts.txt: 3 rows", "texts.txt: 3 rows"),
        ("C:\\Users\\me\\texts.txt: 3 rows", "texts.txt: 3 rows"),
        ("../../texts.txt: 3 rows; ~/other.tsv", "texts.txt: 3 rows; other.tsv"),
        ("n/a, 1/2 of a/b", "n/a, 1/2 of a/b"),
        ("AdamW(lr=3e-05, betas=[0.9, 0.999])", "AdamW(lr=3e-05, betas=[0.9, 0.999])"),
    ],
)
def test_of_a_path_the_last_part_is_left(text: str, said: str) -> None:
    assert _without_places(text, ["/home/me/a b/texts.txt"]) == said


@pytest.mark.slow
def test_a_run_in_python_gives_its_model_the_card_of_its_folder(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    encoder, texts = tiny.save_bert(secret / "bert"), tiny.write_texts(secret / "mine.txt")
    run = trained(tmp_path, encoder, texts)
    run.model.save_pretrained(tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert card == (tmp_path / "run" / "model" / "README.md").read_text(encoding="utf-8")
    assert "| recipe | dcl |" in card and "mine.txt: text -> text; 40 rows" in card
    assert "No score was measured." in card and "secret" not in card


@pytest.mark.slow
def test_the_card_of_a_model_with_prompts_encodes_queries_and_documents(
    bert: str, texts: str, tmp_path: Path
) -> None:
    prompts = {"model.prompts.named": {"query": "query: ", "document": "passage: "}}
    run = trained(tmp_path, bert, texts, config=prompts)
    folder = tmp_path / "run" / "model"
    blocks = python_blocks((folder / "README.md").read_text(encoding="utf-8"))
    found = [run_block(block, folder) for block in blocks]
    assert len(found) == 2
    query = run.model.encode("query: which animal sings?", prompt="")[None]
    for names in found:
        assert names["queries"] == pytest.approx(query, abs=1e-5)
        assert names["documents"] == pytest.approx(found[0]["documents"], abs=1e-5)


def python_blocks(card: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", card, flags=re.MULTILINE | re.DOTALL)


def run_block(block: str, folder: Path) -> dict[str, Any]:
    """Runs a block of a card, and returns its names."""
    names: dict[str, Any] = {}
    exec(compile(block.replace("path/to/this/folder", str(folder)), "card", "exec"), names)
    return names


@pytest.mark.slow
def test_the_card_of_a_run_is_as_the_hub_wants_it_and_its_blocks_run(
    bert: str, texts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = tiny.write_pairs(tmp_path / "dev.tsv")
    run = trained(tmp_path, bert, texts, validation=pairs, val_check_interval=1)
    folder = tmp_path / "run" / "model"
    card = ModelCard.load(folder / "README.md")
    assert isinstance(card.data, ModelCardData)
    assert ModelCard(f"---\n{card.data.to_yaml()}\n---\n{card.text}").data.to_dict() == card.data.to_dict()
    held = card.data.to_dict()
    assert held["library_name"] == "sentence-transformers" and held["pipeline_tag"] == "sentence-similarity"
    assert not {"license", "language", "base_model", "datasets"} & {*held}  # nothing that isn't known
    (result,) = held["model-index"]
    measured = {each["type"]: each["value"] for each in result["results"][0]["metrics"]}
    figures = run.trainer.callback_metrics
    assert measured["spearman_cosine"] == pytest.approx(float(figures["val/spearman"]), abs=0.006)
    for place in (str(tmp_path), bert, texts):
        assert place not in card.content
    monkeypatch.chdir(tmp_path)
    found = [run_block(block, folder)["vectors"] for block in python_blocks(card.text)]
    assert len(found) == 2
    assert found[0] == pytest.approx(found[1], abs=1e-5)
    SentenceEncoder.from_pretrained(folder).save_pretrained(tmp_path / "again")
    assert (tmp_path / "again" / "README.md").read_text(encoding="utf-8") == card.content
