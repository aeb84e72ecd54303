"""The mean of the weights of models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import tiny
import torch
from huggingface_hub import ModelCard

from contrastive_text import SentenceEncoder
from contrastive_text.cli.main import run
from contrastive_text.inference import merge
from contrastive_text.poolers import MeanPooler

Answer = Callable[[Sequence[str]], str]


def save(folder: Path, seed: int, **changes: int) -> str:
    """Saves a random model; gives the folder's name."""
    tiny.save_bert(folder / "bert", seed=seed, **changes)
    model = SentenceEncoder.from_pretrained(folder / "bert", pooler=MeanPooler())
    model.save_pretrained(folder / "model")
    return str(folder / "model")


@pytest.fixture
def members(here: Path) -> list[str]:
    """Two models of one architecture."""
    return [save(here / name, seed) for seed, name in enumerate(("a", "b"))]


def states(*folders: str) -> list[dict[str, torch.Tensor]]:
    return [SentenceEncoder.from_pretrained(folder).encoder.state_dict() for folder in folders]


def test_weights_are_the_mean_rounded_once_and_the_members_are_scored_beside_it(
    members: list[str], files: dict[str, str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["merge", "out", *members, "--weights", "3", "1", "--pairs", files["pairs"]]) == 0
    one, other, made = states(*members, "out")
    for name, value in made.items():
        assert value.dtype == one[name].dtype
        if value.is_floating_point():
            expected = 0.75 * one[name].double() + 0.25 * other[name].double()
            assert torch.equal(value, expected.to(value.dtype))
    said = capsys.readouterr().out
    model = SentenceEncoder.from_pretrained("out")
    assert model.encode("a bird").shape == (16,)
    card = ModelCard.load(here / "out" / "README.md")
    assert "| members (share) | a/model (0.75)<br>b/model (0.25) |" in card.text
    assert "2203.05482" in card.text and "12 pairs of pairs.tsv." in card.text and str(here) not in card.content
    for name in ("a/model", "b/model", "this model"):
        assert f"{name}, Spearman x 100" in said and f"| {name}, Spearman | " in card.text
    assert run(["verify", "out"]) == 0


def test_a_model_merged_with_itself_is_itself(members: list[str]) -> None:
    vectors = [
        model.encode(tiny.TEXTS)
        for model in (merge([members[0]] * 2), SentenceEncoder.from_pretrained(members[0]))
    ]
    assert (vectors[0] == vectors[1]).all()


def test_what_differs_in_more_than_values_is_refused(members: list[str], here: Path, answer: Answer) -> None:
    one = members[0]
    wide = save(here / "wide", 0, intermediate_size=48)
    assert "to have the architecture of" in answer(["merge", "out", one, wide])
    model = SentenceEncoder.from_pretrained(one, pooler="CLSPooler")
    model.save_pretrained(here / "cls")
    assert "cls to have the pooler of model" in answer(["merge", "out", one, "cls"])
    SentenceEncoder.from_pretrained(one, max_length=8).save_pretrained(here / "short")
    assert "to have the length limit of model, 32, got 8" in answer(["merge", "out", one, "short"])
    tiny.write_texts(here / "texts.txt")
    assert run(["postprocess", one, "texts.txt", "white", "--whiten"]) == 0
    assert "white: expected a model that ends with its pooler" in answer(["merge", "out", one, "white"])
    assert not (here / "out" / "modules.json").exists()
