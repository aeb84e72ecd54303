"""Every shipped recipe comes to its frozen figures with a tiny encoder laid over it; example files run."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
import wordnet_files
import yaml
from covering import rest_slow
from freezing import FILE, RECIPES, STEPS, TOTALS_FILE, Figures, figures_of, totals_of
from recipe_options import built, first_and_second_layers, own_options

from contrastive_text import Classifier, Reranker
from contrastive_text.cli import run
from contrastive_text.inference.head_models import folder_kind
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.losses import NTXent
from contrastive_text.poolers import MeanPooler
from contrastive_text.recipes import recipe_names, recipe_texts
from contrastive_text.recipes.layers import read_recipe
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.views import DeleteTokens

EXAMPLES = Path(__file__).parents[1] / "examples"
Trained = Callable[[str], tuple[Path, Figures]]
"""From a recipe's name to the folder in which it ran and what it came to."""


def two_steps(folder: Path) -> list[str]:
    """Returns options that make a run two steps long, with validation."""
    return [
        "--data.validation", tiny.write_pairs(folder / "pairs.tsv"), "--data.batch_size", "8",
        "--data.num_workers", "0", "--trainer.max_steps", "2", "--trainer.val_check_interval", "2",
        "--trainer.accelerator", "cpu", "--trainer.log_every_n_steps", "1",
        "--trainer.enable_progress_bar", "false",
    ]  # fmt: skip


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Those options, in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return two_steps(tmp_path)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny.save_bert(tmp_path_factory.mktemp("bert"), max_position_embeddings=512)


@pytest.fixture(scope="module")
def trained(bert: str, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Runs each recipe once for all tests that look at it."""

    @cache
    def ran(name: str) -> tuple[Path, Figures]:
        folder = tmp_path_factory.mktemp(name.replace("/", "_"))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "path", [*sys.path])
            if "subs" in name:
                patch.setenv("NLTK_DATA", wordnet_files.write_wordnet(folder / "nltk_data"))
            return folder, figures_of(name, folder, bert)

    return ran


@pytest.fixture
def words(tmp_path: Path, steps: list[str]) -> list[str]:
    """The same, with texts to train on."""
    return ["--data.train", tiny.write_texts(tmp_path / "texts.txt"), *steps]


def finished(folder: Path, steps: int = 2) -> ContrastiveModule:
    """The module of the one checkpoint that a run left, after some steps with a score."""
    (checkpoint,) = folder.rglob("*.ckpt")
    saved = torch.load(checkpoint, weights_only=True)
    assert saved["global_step"] == steps
    metrics = next(folder.rglob("metrics.csv")).read_text()
    assert "val/spearman" in metrics.splitlines()[0]
    module = ContrastiveModule.load_from_checkpoint(checkpoint)
    model = checkpoint.parents[1] / "model"
    if folder_kind(model) is None:
        vectors = SentenceEncoder.from_pretrained(model).encode(tiny.TEXTS)
        results = np.round(vectors if isinstance(vectors, np.ndarray) else vectors.toarray(), 4)
    else:  # a head of two texts in one sequence
        loaded = Classifier if folder_kind(model) == "classifier" else Reranker
        results = loaded.from_pretrained(model).logits([(text, tiny.TEXTS[0]) for text in tiny.TEXTS]).numpy()
    assert len({tuple(result) for result in results.tolist()}) == len(tiny.TEXTS)
    return module


FROZEN, TOTALS = (json.loads(file.read_text(encoding="utf-8")) for file in (FILE, TOTALS_FILE))
# In float64; what is left is the order of sums, which processors and numbers of threads choose.
TOLERANCE = 1e-10


def check_frozen(name: str, figures: Figures) -> None:
    """Compares what a recipe comes to with the frozen figures: a change of the code that moves a number fails."""
    assert len(figures["losses"]) == len(figures["gradient_norms"]) == STEPS
    found, totals = totals_of(figures), TOTALS[name]
    assert found["names"] == totals["names"]
    for key in ("losses", "gradient_norms", "totals"):
        assert found[key] == pytest.approx(totals[key], rel=TOLERANCE), key
    for key, sums in FROZEN.get(name, {"tensors": {}})["tensors"].items():
        assert figures["tensors"][key] == pytest.approx(sums, rel=TOLERANCE, abs=TOLERANCE), key


def test_every_recipe_has_frozen_figures() -> None:
    assert TOTALS.keys() == {*recipe_names()}
    assert FROZEN.keys() == {*RECIPES}


# By default the simplest recipe.
@pytest.mark.parametrize("name", rest_slow(["simcse", *(name for name in recipe_names() if name != "simcse")]))
def test_a_recipe_comes_to_its_frozen_figures_a_score_and_a_model(
    name: str, trained: Trained, bert: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, figures = trained(name)
    check_frozen(name, figures)
    if "subs" in name:
        monkeypatch.setenv("NLTK_DATA", str(folder / "nltk_data"))
    module = finished(folder, STEPS)
    header = next(folder.rglob("metrics.csv")).read_text().splitlines()[0].split(",")
    config = yaml.safe_load(next(folder.rglob("config.yaml")).read_text())
    predicting = [task for task in (config["data"].get("tasks") or {}).values() if task["validation"]]
    assert ("val/overall" in header) == bool(predicting)
    if name.startswith("diffcse"):  # its generator is a tiny one, too
        named = module.hparams["objectives"]["replaced"]["init_args"]
        named["generator"] = read_recipe(name)["model"]["objectives"]["replaced"]["init_args"]["generator"]
    assert module.hparams == built(name, bert).hparams  # from the shell and from Python
    assert class_paths(config["model"]) <= class_paths(module.hparams)  # one spelling in both files
    if name == "cs224n":  # the multi-task system is chosen by the mean of its scores
        assert {"val/sentiment/accuracy", "val/paraphrase/accuracy", "val/similarity/pearson"} <= {*header}
        saved = torch.load(next(folder.rglob("*.ckpt")), weights_only=True)["callbacks"]
        assert "val/overall" in {state.get("monitor") for state in saved.values()}


def class_paths(plain: Any) -> set[str]:  # Any: what YAML can hold
    """Every class path in plain data."""
    if isinstance(plain, dict):
        own = {plain["class_path"]} if "class_path" in plain else set()
        return own.union(*map(class_paths, plain.values()))
    return set().union(*map(class_paths, plain)) if isinstance(plain, list) else set()


@pytest.mark.slow
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


@pytest.mark.slow
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
    text = recipe_texts()[name]
    head = " ".join(line.removeprefix("#").strip() for line in text.splitlines() if line.startswith("#"))
    assert re.search(r"fidelity: (paper|code|corrected)\b", head)
    assert re.search(r"[Nn]ot reproduced here|benchmarks/results|Out of reach", head)
    assert "expect:" in head
    assert "http" in head  # where the method comes from
    assert yaml.safe_load(text).keys() <= {
        "recipe", "pooler_is_method", "model", "trainer", "data", "seed_everything",
    }  # fmt: skip


@pytest.mark.slow  # what keeps heads is tested on two modules by default
def test_supervised_first_keeps_the_head_of_sentiment_and_scores_all_three(
    trained: Trained, steps: list[str], tmp_path: Path, bert: str
) -> None:
    start, name = trained("cs224n/vanilla")[0] / "runs" / "version_0", "cs224n/pretrain_after_sentiment"
    words = ["--model.encoder.model_name_or_path", bert, *steps, *own_options(name, tmp_path)]
    assert run(["fit", "--recipe", name, *words, "--init_from", str(start), "--keep_heads"]) == 0
    first, second = (
        ContrastiveModule.load_from_checkpoint(next(folder.rglob("*.ckpt"))) for folder in (start, tmp_path)
    )
    heads = [first_and_second_layers(each)["sentiment"] for each in (first, second)]
    assert all(torch.equal(a, b) for a, b in zip(*heads, strict=True))  # scored, not trained
    before, after = (torch.cat([p.flatten() for p in each.encoder.parameters()]) for each in (first, second))
    assert not torch.equal(before, after)
    header = next(tmp_path.rglob("metrics.csv")).read_text().splitlines()[0].split(",")
    tasks = ("sentiment/accuracy", "paraphrase/accuracy", "similarity/pearson", "overall")
    assert {f"val/{score}" for score in tasks} <= {*header}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second"), [("consert/joint_base", "consert/joint_unsup_base"), ("cs224n/pretrain_3sets", "cs224n")]
)
def test_a_second_stage_starts_from_the_first_one_s_encoder(
    first: str, second: str, steps: list[str], tmp_path: Path, bert: str, trained: Trained
) -> None:
    start = trained(first)[0] / "runs" / "version_0"
    words = ["--model.encoder.model_name_or_path", bert, *steps, *own_options(second, tmp_path)]
    assert (
        run(["fit", "--recipe", second, *words, "--model.optimizer.lr", "1e-12", "--init_from", str(start)]) == 0
    )
    saved = [start, tmp_path / "runs" / "version_0"]
    encoders = [ContrastiveModule.load_from_checkpoint(next(run.rglob("*.ckpt"))).encoder for run in saved]
    fresh = ContrastiveModule.from_recipe(second, bert).encoder
    mine, after, untrained = (torch.cat([p.flatten() for p in e.parameters()]) for e in (*encoders, fresh))
    torch.testing.assert_close(mine, after)
    assert not torch.equal(mine, untrained)
