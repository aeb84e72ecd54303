"""The commands, from fit to evaluate, and the order in which recipe, files and options count."""

from __future__ import annotations

import csv
import json
import re
import runpy
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
import yaml
from covering import rest_slow
from shells import Shell

import contrastive_text
from contrastive_text.cli.words import expand_recipes
from contrastive_text.data import read_pairs
from contrastive_text.evaluation import evaluate_pairs
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.poolers import MeanPooler
from contrastive_text.recipes import BASE
from contrastive_text.recipes.layers import value_at
from contrastive_text.training.module import ContrastiveModule

# Lightning on the place of the best checkpoint, where validate, test and predict load one of another run
pytestmark = pytest.mark.filterwarnings("ignore:The dirpath has changed from")

COMMANDS = ("fit", "validate", "test", "predict", "views", "embed", "evaluate", "ensemble")


# Before a command


@pytest.mark.parametrize(("line", "status"), [("", 2), ("-h", 0), ("--help", 0)])
def test_help_names_every_command(shell: Shell, line: str, status: int) -> None:
    assert shell.status(line) == status
    said = shell.capture.readouterr().out
    assert all(f"\n  {command} " in said for command in COMMANDS)
    assert "contrastive-text recipes simcse" in said


def test_version(shell: Shell) -> None:
    assert shell("--version").out.strip() == contrastive_text.__version__


def test_python_m_runs_the_same_commands(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of its own is started by tests/cli/test_own_parts.py."""
    monkeypatch.setattr(sys, "argv", ["contrastive-text", *shell.words("evaluate BERT PAIRS")])
    with pytest.raises(SystemExit) as left, warnings.catch_warnings():
        runpy.run_path(str(Path(contrastive_text.__file__).parent / "__main__.py"), run_name="__main__")
    assert left.value.code == 0
    said = shell.capture.readouterr().out
    assert "pairs.tsv" in said and "taking the mean over tokens" in said


# Recipe, files, options


def test_a_recipe_is_its_file_put_where_its_name_stands() -> None:
    file = str(BASE.parent / "simcse.yaml")
    assert expand_recipes(["--a", "1", "--recipe", "simcse", "--b"]) == ["--a", "1", "--config", file, "--b"]
    assert expand_recipes(["--recipe=simcse"]) == ["--config", file]
    with pytest.raises(ValueError, match=r"expected one of .*simcse.*, got ''"):
        expand_recipes(["--recipe"])


CONTRASTIVE = "model.objectives.contrastive.init_args"
MINE = "model: {pooler: MeanPooler}\ndata: {batch_size: 32}\ntrainer: {max_epochs: 3}\n"
PRINTED = [
    (
        "FIT --model.objectives.contrastive.loss.temperature 0.3 --model.optimizer.lr 7e-4 "
        "--model.pooler MaxPooler --data.batch_size 9",
        {
            f"{CONTRASTIVE}.loss.class_path": "contrastive_text.InfoNCE",
            f"{CONTRASTIVE}.loss.init_args.temperature": 0.3,
            f"{CONTRASTIVE}.head.class_path": "contrastive_text.heads.TanhHead",  # the rest of the recipe stays
            "model.optimizer.init_args.lr": 7e-4,
            "model.pooler.class_path": "contrastive_text.poolers.MaxPooler",
            "data.batch_size": 9,
            "trainer.gradient_clip_val": 1.0,  # from base.yaml
        },
    ),
    (
        "FIT --config mine.yaml --data.batch_size 16",
        {
            "model.pooler.class_path": "contrastive_text.poolers.MeanPooler",
            "data.batch_size": 16,
            "trainer.max_epochs": 3,
            "trainer.val_check_interval": 125,  # the recipe's
        },
    ),
    (
        "fit --config mine.yaml --recipe simcse",  # a recipe's pooler gives way to any other
        {"model.pooler.class_path": "contrastive_text.poolers.MeanPooler", "data.batch_size": 64},
    ),
    ("FIT --model.objectives.contrastive.between views", {f"{CONTRASTIVE}.between": "views"}),
    (
        "FIT --model.objectives.contrastive.between BetweenViews",
        {f"{CONTRASTIVE}.between": {"class_path": "contrastive_text.objectives.BetweenViews"}},
    ),
]


@pytest.mark.parametrize(("line", "expected"), rest_slow(PRINTED, quick=4))
def test_later_files_override_earlier_ones_and_options_all_files(
    shell: Shell, here: Path, line: str, expected: dict[str, object]
) -> None:
    (here / "mine.yaml").write_text(MINE)
    config = shell.config(line)
    assert {place: value_at(config, place) for place in expected} == expected


@pytest.mark.slow
def test_one_seed_goes_to_the_data_too(shell: Shell, here: Path) -> None:
    config = shell.config("FIT --seed_everything 5")
    assert config["seed_everything"] == 5
    # the run's own file says what the data got
    (here / "run.yaml").write_text(yaml.safe_dump(config))
    assert "data.seed: expected no value in a run" in shell.refused("fit --config run.yaml --data.seed 6")
    (here / "other.yaml").write_text("data: {seed: 6}")
    assert "set seed_everything" in shell.refused("fit --config other.yaml")
    assert shell.config("fit --config run.yaml") == config


# Training


def test_a_run_leaves_its_configuration_figures_checkpoint_and_model(
    finished: dict[str, str], files: dict[str, str]
) -> None:
    folder = Path(finished["folder"])
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["data"]["train"] == files["texts"]
    rows = list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))
    for name in (
        "train/loss", "train/contrastive", "train/contrastive/accuracy", "train/contrastive/positive_similarity",
        "train/contrastive/negative_similarity", "train/contrastive/alignment", "train/contrastive/uniformity",
    ):  # fmt: skip
        assert len([row for row in rows if row[name]]) == 5, name  # a step each
    assert len([row for row in rows if row["val/spearman"]]) == 1
    saved = torch.load(finished["checkpoint"], weights_only=True)
    assert saved["global_step"] == 5
    assert saved["callbacks"]["RunSummary"]["pooler"] == "CLSPooler() in training, CLSPooler() in use"
    module = ContrastiveModule.load_from_checkpoint(finished["checkpoint"])
    model = SentenceEncoder.from_pretrained(finished["model"])
    ours = dict(model.encoder.model.named_parameters())
    assert all(torch.equal(p, ours[name]) for name, p in module.encoder.model.named_parameters())


@pytest.mark.parametrize(
    ("command", "part", "said"), rest_slow([("validate", "validation", "val"), ("test", "test", "test")])
)
def test_validate_and_test_give_the_score_that_the_saved_model_has(
    shell: Shell, finished: dict[str, str], files: dict[str, str], command: str, part: str, said: str
) -> None:
    (score, *_) = evaluate_pairs(SentenceEncoder.from_pretrained(finished["model"]), read_pairs(files["pairs"]))
    out = shell(f"{command} --ckpt_path CHECKPOINT --data.{part} PAIRS --trainer.accelerator cpu").out
    assert f"{said}/spearman" in out
    # a rank correlation of the same order, printed with 15 digits of a float32
    scores = [float(number) for number in re.findall(r"-?\d+\.\d+", out)]
    assert scores[:2] == pytest.approx([score.pearson, score.spearman], abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "pooler"),
    [("", None), pytest.param("--model.pooler MeanPooler", MeanPooler(), marks=pytest.mark.slow)],
)
def test_predict_writes_the_vectors_of_the_saved_model_but_for_parts_beside_the_checkpoint(
    shell: Shell, finished: dict[str, str], here: Path, option: str, pooler: MeanPooler | None
) -> None:
    words = f"predict --ckpt_path CHECKPOINT --data.predict TEXTS --trainer.accelerator cpu {option}"
    said = shell(f"{words} --data.eval_batch_size 7").out
    (file,) = here.rglob("predictions.npy")
    model = SentenceEncoder.from_pretrained(finished["model"])
    expected = (SentenceEncoder(model.encoder, pooler) if pooler else model).encode(tiny.TEXTS)
    # float32: other batches, other widths of padding
    np.testing.assert_allclose(np.load(file), expected, rtol=0, atol=1e-5)
    assert "40 vectors of 16 features" in " ".join(said.split())


@pytest.mark.slow
def test_runs_in_one_folder_have_places_of_their_own_and_a_models_is_taken_if_it_is_named(shell: Shell) -> None:
    validated = "FIT TINY --data.validation PAIRS --trainer.val_check_interval null"
    said = shell(validated).out  # five steps, fewer than the recipe's validation interval
    assert "best val/spearman" in said and "Model saved to runs/version_0/model" in said
    said = shell.refused("embed TEXTS v.npy --model runs/version_0")
    assert "the folder of a run; give runs/version_0/model" in said
    said = shell(f"{validated} --trainer.max_steps 1 --export.dirpath runs/version_0/model").out
    assert "runs/version_0/model contains a model, which this run will replace" in said
    assert "Model saved to runs/version_2/model" in shell("FIT TINY --trainer.max_steps 1").out


@pytest.mark.slow
def test_early_stopping_comes_from_a_file(shell: Shell, here: Path) -> None:
    (here / "stop.yaml").write_text(
        "trainer:\n"
        "  max_epochs: 20\n"
        "  callbacks:\n"
        "    - class_path: pytorch_lightning.callbacks.EarlyStopping\n"
        # no score rises by 1000: the first validation is the best, the third ends the run
        "      init_args: {monitor: val/spearman, mode: max, patience: 2, min_delta: 1000}\n"
    )
    shell("FIT TINY --config stop.yaml --data.validation PAIRS")
    rows = list(csv.DictReader((here / "runs" / "version_0" / "metrics.csv").read_text().splitlines()))
    assert len([row for row in rows if row["val/spearman"]]) == 3
    saved = torch.load(next((here / "runs").rglob("*.ckpt")), weights_only=True)
    assert "RunSummary" in saved["callbacks"]  # a callback of one's own takes nothing away


# A user's own part


SWAP = """\
from contrastive_text.views import TokenView

class TurnAround(TokenView):
    def __init__(self, rate: float = 0.1):
        self.rate = rate
    def __call__(self, tokens, rng):
        order = list(range(len(tokens)))
        return tokens.take(order[::-1] if rng.random() < self.rate else order)
"""


@pytest.mark.slow
def test_a_view_in_the_working_directory_runs_is_printed_and_survives_its_checkpoint(
    shell: Shell, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "views_of_mine.py").write_text(SWAP)
    (here / "swap.yaml").write_text(
        "model:\n  views:\n    positive:\n"
        "      - class_path: views_of_mine.TurnAround\n"
        "        init_args: {rate: 1.0}\n"
        "      - FeatureCutoff\n"
    )
    chosen = "--recipe simcse TINY --config swap.yaml"
    said = shell(f"views {chosen} --n 2").out
    lines = said.splitlines()
    (turned,) = (line for line in lines if "views.positive[0]" in line)
    (cut,) = (line for line in lines if "views.positive[1]" in line)
    assert "TurnAround(rate=1.0)" in turned and "% of tokens" in turned
    assert "FeatureCutoff(rate=0.2)" in cut and "18.8% of entries" in cut  # int(0.2 * 16) = 3 of 16
    assert f"[CLS] {tiny.TEXTS[0]} [SEP]" in said  # the anchor is whole
    assert "[-" in said and "{+" in said
    assert tiny.TEXTS[1] in said
    assert tiny.TEXTS[2] not in said  # two rows were asked for
    assert "TurnAround(rate=1.0)" in shell(f"fit {chosen} --trainer.max_steps 2").out
    (checkpoint,) = here.rglob("*.ckpt")
    torch.load(checkpoint, weights_only=True)
    monkeypatch.delitem(sys.modules, "views_of_mine")
    with pytest.raises(ValueError, match=r"got views_of_mine\.TurnAround.*--trust views_of_mine"):
        ContrastiveModule.load_from_checkpoint(checkpoint)
    assert "views_of_mine" not in sys.modules
    monkeypatch.syspath_prepend(here)
    module = ContrastiveModule.load_from_checkpoint(checkpoint, trust=["views_of_mine"])
    mine, ours = module.plan.chains["positive"]
    assert (type(mine).__module__, type(mine).__name__, mine.rate) == ("views_of_mine", "TurnAround", 1.0)
    assert ours.rate == 0.2


# A saved model in use


@pytest.mark.parametrize("suffix", rest_slow([".npy", ".tsv", ".parquet"]))
def test_embed_writes_one_vector_per_text(
    shell: Shell, finished: dict[str, str], here: Path, suffix: str
) -> None:
    said = shell(f"embed TEXTS vectors{suffix} --model MODEL --batch_size 40").out
    out = here / f"vectors{suffix}"
    if suffix == ".npy":
        vectors = np.load(out)
    elif suffix == ".tsv":
        vectors = np.loadtxt(out, delimiter="\t", dtype=np.float32)
    else:
        parquet = pytest.importorskip("pyarrow.parquet", reason="needs the parquet extra")
        vectors = np.array(parquet.read_table(out)["embedding"].to_pylist(), dtype=np.float32)
    expected = SentenceEncoder.from_pretrained(finished["model"]).encode(tiny.TEXTS, batch_size=40)
    assert np.array_equal(vectors, expected)  # nine digits hold a float32
    assert "texts.txt: text -> text; 40 rows" in said


def test_embed_takes_a_column_and_gives_unit_length(shell: Shell, here: Path) -> None:
    (here / "notes.jsonl").write_text("".join(f"{json.dumps({'note': t, 'id': 1})}\n" for t in tiny.TEXTS[:5]))
    shell("embed notes.jsonl v.npy --model MODEL --column note --normalize")
    vectors = np.load(here / "v.npy")
    assert vectors.shape == (5, 16)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=0, atol=1e-6)  # float32


def test_evaluate_prints_every_file_and_sub_set(
    shell: Shell, finished: dict[str, str], files: dict[str, str], here: Path
) -> None:
    lines = Path(files["pairs"]).read_text().splitlines()
    marked = [f"{line}\t{'news' if i % 2 else 'forum'}" for i, line in enumerate(lines[1:])]
    (here / "marked.tsv").write_text("\n".join([f"{lines[0]}\tgenre", *marked]) + "\n")
    said = shell("evaluate MODEL PAIRS marked.tsv").out
    model = SentenceEncoder.from_pretrained(finished["model"])
    for path, count in ((files["pairs"], 1), ("marked.tsv", 3)):
        scores = evaluate_pairs(model, read_pairs(path))
        assert len(scores) == count
        for score in scores:
            named = (
                each for each in said.splitlines() if Path(path).name in each and f" {score.subset} " in each
            )
            row = next(named)
            assert f"{score.spearman:.2f}" in row and f" {score.pairs} " in row
    assert "CLSPooler, at most 32 tokens" in said
