"""The mean of the weights of models."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import torch
from huggingface_hub import ModelCard
from shells import Shell

from contrastive_text import SentenceEncoder
from contrastive_text.inference import merge
from contrastive_text.poolers import MeanPooler


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


def test_weights_are_the_mean_rounded_once_and_the_members_are_scored_beside_it(
    shell: Shell, members: list[str], here: Path
) -> None:
    said = shell(f"merge out {' '.join(members)} --weights 3 1 --pairs PAIRS").out
    folders = (*members, "out")
    one, other, made = (SentenceEncoder.from_pretrained(each).encoder.state_dict() for each in folders)
    for name, value in made.items():
        assert value.dtype == one[name].dtype
        if value.is_floating_point():
            expected = 0.75 * one[name].double() + 0.25 * other[name].double()
            assert torch.equal(value, expected.to(value.dtype))
    card = ModelCard.load(here / "out" / "README.md")
    assert "| members (share) | a/model (0.75)<br>b/model (0.25) |" in card.text
    assert "2203.05482" in card.text and "12 pairs of pairs.tsv." in card.text and str(here) not in card.content
    for name in ("a/model", "b/model", "this model"):
        assert f"{name}, Spearman x 100" in said and f"| {name}, Spearman | " in card.text
    shell("verify out")


@pytest.mark.slow
def test_a_model_merged_with_itself_is_itself(members: list[str]) -> None:
    merged, itself = merge([members[0]] * 2), SentenceEncoder.from_pretrained(members[0])
    assert (merged.encode(tiny.TEXTS) == itself.encode(tiny.TEXTS)).all()


@pytest.mark.slow
def test_what_differs_in_more_than_values_is_refused(shell: Shell, members: list[str], here: Path) -> None:
    one = members[0]
    SentenceEncoder.from_pretrained(one, pooler="CLSPooler").save_pretrained(here / "cls")
    SentenceEncoder.from_pretrained(one, max_length=8).save_pretrained(here / "short")
    shell(f"postprocess {one} TEXTS white --whiten")
    for other, said in {
        save(here / "wide", 0, intermediate_size=48): "to have the architecture of",
        "cls": "cls to have the pooler of model",
        "short": "to have the length limit of model (32), got 8",
        "white": "white: expected a model that ends with its pooler",
    }.items():
        assert said in shell.refused(f"merge out {one} {other}")
    assert not (here / "out" / "modules.json").exists()
