"""Every shipped recipe and every example file runs two steps with a tiny encoder laid over it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import tiny
import torch
import yaml

from contrastive_text.cli import run
from contrastive_text.losses import NTXent
from contrastive_text.module import ContrastiveModule
from contrastive_text.poolers import MeanPooler
from contrastive_text.recipes import BASE, recipe_names, recipe_path
from contrastive_text.sentence_encoder import SentenceEncoder
from contrastive_text.views import DeleteTokens

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Options that make a run two steps long, with validation."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return [
        "--data.train", tiny.write_texts(tmp_path / "texts.txt"), "--data.validation",
        tiny.write_pairs(tmp_path / "pairs.tsv"), "--data.batch_size", "8", "--data.num_workers", "0",
        "--trainer.max_steps", "2", "--trainer.val_check_interval", "2", "--trainer.accelerator", "cpu",
        "--trainer.log_every_n_steps", "1", "--trainer.enable_progress_bar", "false",
    ]  # fmt: skip


def finished(folder: Path) -> ContrastiveModule:
    """The module of the one checkpoint that a run left, after two steps with a score."""
    (checkpoint,) = folder.rglob("*.ckpt")
    saved = torch.load(checkpoint, weights_only=True)
    assert saved["global_step"] == 2
    metrics = next(folder.rglob("metrics.csv")).read_text()
    assert "val/spearman" in metrics.splitlines()[0]
    module = ContrastiveModule.load_from_checkpoint(checkpoint)
    vectors = SentenceEncoder.from_pretrained(checkpoint.parents[1] / "model").encode(tiny.TEXTS)
    assert len({tuple(vector) for vector in vectors.round(4).tolist()}) == len(tiny.TEXTS)
    return module


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_runs_two_steps_with_a_tiny_encoder(name: str, words: list[str], tmp_path: Path) -> None:
    bert = tiny.save_bert(tmp_path / "bert")
    assert run(["fit", "--recipe", name, "--model.encoder.model_name_or_path", bert, *words]) == 0
    module = finished(tmp_path)
    built = ContrastiveModule.from_recipe(name, bert)
    assert module.hparams == built.hparams  # from the shell and from Python


def test_the_minilm_example_lays_itself_over_the_recipe(words: list[str], tmp_path: Path) -> None:
    bert = tiny.save_bert(tmp_path / "bert")
    chosen = ["--recipe", "simcse", "--config", str(EXAMPLES / "minilm.yaml")]
    assert run(["fit", *chosen, "--model.encoder.model_name_or_path", bert, *words]) == 0
    module = finished(tmp_path)
    objective = module.objectives["contrastive"]
    assert isinstance(module.pooler, MeanPooler)
    assert isinstance(objective.loss, NTXent)
    assert objective.head is None
    assert module.encoder.max_length == 32  # the recipe's
    assert module.optimizer.lr == 1e-4


def test_the_example_from_nothing_learns_its_vocabulary_from_the_text(words: list[str], tmp_path: Path) -> None:
    chosen = ["--recipe", "simcse", "--config", str(EXAMPLES / "from_scratch.yaml")]
    small = ["--model.encoder.config.hidden_size", "16", "--model.encoder.config.intermediate_size", "32"]
    assert run(["fit", *chosen, *small, *words]) == 0
    module = finished(tmp_path)
    assert module.encoder.features == 16
    assert module.objectives["contrastive"].head is None
    assert module.encoder.tokenizer is not None
    assert module.encoder.tokenizer.tokenize("the old bird") == ["the", "old", "bird"]
    assert [type(view) for role in ("anchor", "positive") for view in module.plan.chains[role]] == [
        DeleteTokens
    ] * 2


@pytest.mark.parametrize("name", recipe_names())
def test_the_head_of_a_recipe_says_how_true_it_is_and_what_to_expect(name: str) -> None:
    text = recipe_path(name).read_text()
    head = " ".join(line.removeprefix("#").strip() for line in text.splitlines() if line.startswith("#"))
    assert "fidelity:" in head
    assert "expect:" in head
    assert "http" in head  # where the method comes from
    assert yaml.safe_load(text).keys() <= {"model", "trainer", "data", "seed_everything"}


def test_the_base_is_no_recipe_and_keeps_lightning_from_repeating_rows() -> None:
    assert "base" not in recipe_names()
    base = yaml.safe_load(BASE.read_text())
    assert base["trainer"]["use_distributed_sampler"] is False
    with pytest.raises(ValueError, match=r"expected one of .*, got 'base'"):
        recipe_path("base")
