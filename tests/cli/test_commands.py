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

import contrastive_text
from contrastive_text.cli import run
from contrastive_text.cli.words import expand_recipes
from contrastive_text.data import read_pairs
from contrastive_text.evaluation import evaluate_pairs
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.poolers import MeanPooler
from contrastive_text.recipes import BASE
from contrastive_text.training.module import ContrastiveModule

# Lightning on the place of the best checkpoint, where validate, test and predict load one of another run
pytestmark = pytest.mark.filterwarnings("ignore:The dirpath has changed from")

COMMANDS = ("fit", "validate", "test", "predict", "views", "embed", "evaluate", "ensemble")


def printed_config(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    """The configuration of a run, as ``--print_config`` shows it."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as left:
        run([*words, "--print_config"])
    assert left.value.code in (0, None)
    loaded: dict[str, object] = yaml.safe_load(capsys.readouterr().out)
    return loaded


def at(config: object, path: str) -> object:
    for key in path.split("."):
        assert isinstance(config, dict)
        config = config[key]
    return config


def scores_in(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+\.\d+", text)]


# Before a command


@pytest.mark.parametrize(("words", "status"), [([], 2), (["-h"], 0), (["--help"], 0)])
def test_help_names_every_command(words: list[str], status: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == status
    said = capsys.readouterr().out
    assert all(f"\n  {command} " in said for command in COMMANDS)
    assert "contrastive-text recipes simcse" in said


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.strip() == contrastive_text.__version__


def test_python_m_runs_the_same_commands(
    files: dict[str, str], here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    del here  # a process of its own is started by tests/cli/test_working_directory.py
    monkeypatch.setattr(sys, "argv", ["contrastive-text", "evaluate", files["bert"], files["pairs"]])
    with pytest.raises(SystemExit) as left, warnings.catch_warnings():
        runpy.run_path(str(Path(contrastive_text.__file__).parent / "__main__.py"), run_name="__main__")
    assert left.value.code == 0
    said = capsys.readouterr()
    assert "pairs.tsv" in said.out
    assert "taking the mean over tokens" in said.out


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
        "--recipe simcse --model.objectives.contrastive.loss.temperature 0.3 --model.optimizer.lr 7e-4 "
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
        "--recipe simcse --config mine.yaml --data.batch_size 16",
        {
            "model.pooler.class_path": "contrastive_text.poolers.MeanPooler",
            "data.batch_size": 16,
            "trainer.max_epochs": 3,
            "trainer.val_check_interval": 125,  # the recipe's
        },
    ),
    (
        "--config mine.yaml --recipe simcse",  # a recipe's pooler gives way to any other
        {"model.pooler.class_path": "contrastive_text.poolers.MeanPooler", "data.batch_size": 64},
    ),
]


@pytest.mark.parametrize(("words", "expected"), PRINTED)
def test_later_files_override_earlier_ones_and_options_all_files(
    words: str, expected: dict[str, object], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "mine.yaml").write_text(MINE)
    config = printed_config(["fit", *words.split()], capsys)
    assert {place: at(config, place) for place in expected} == expected


def test_what_is_compared_may_be_a_name_or_a_class(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    del here
    place = "model.objectives.contrastive.init_args.between"
    words = ["fit", "--recipe", "simcse", "--model.objectives.contrastive.between"]
    assert at(printed_config([*words, "views"], capsys), place) == "views"
    spec = {"class_path": "contrastive_text.objectives.BetweenViews"}
    assert at(printed_config([*words, "BetweenViews"], capsys), place) == spec
    with pytest.raises(SystemExit):
        run([*words, "view", "--print_config"])
    assert "got view; there are BetweenTexts, BetweenViews" in (said := capsys.readouterr().err)
    assert "or one of 'texts', 'views'" in said


def test_one_seed_goes_to_the_data_too(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = printed_config(["fit", "--recipe", "simcse", "--seed_everything", "5"], capsys)
    assert at(config, "seed_everything") == 5
    # the run's own file says what the data got
    words = ["fit", "--config", "run.yaml", "--data.seed", "6"]
    (here / "run.yaml").write_text(yaml.safe_dump(config))
    assert run(words) == 2
    assert "data.seed: expected no value in a run" in capsys.readouterr().err
    (here / "other.yaml").write_text("data: {seed: 6}")
    assert run(["fit", "--config", "other.yaml"]) == 2
    assert "set seed_everything" in capsys.readouterr().err


@pytest.mark.slow
def test_the_printed_configuration_runs_again(
    files: dict[str, str], tiny_words: list[str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del files
    config = printed_config(["fit", "--recipe", "simcse", *tiny_words], capsys)
    (here / "again.yaml").write_text(yaml.safe_dump(config))
    assert printed_config(["fit", "--config", "again.yaml"], capsys) == config


# Training


def test_a_run_leaves_its_configuration_figures_checkpoint_and_model(
    finished: dict[str, str], files: dict[str, str]
) -> None:
    folder = Path(finished["folder"])
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert at(config, "data.train") == files["texts"]
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


def test_validate_and_test_give_the_score_that_the_saved_model_has(
    finished: dict[str, str], files: dict[str, str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del here
    (score, *_) = evaluate_pairs(SentenceEncoder.from_pretrained(finished["model"]), read_pairs(files["pairs"]))
    for command, part in (("validate", "validation"), ("test", "test")):
        capsys.readouterr()
        words = [command, "--ckpt_path", finished["checkpoint"], f"--data.{part}", files["pairs"]]
        assert run([*words, "--trainer.accelerator", "cpu"]) == 0
        said = capsys.readouterr().out
        assert f"{command[:3] if command == 'validate' else command}/spearman" in said
        # a rank correlation of the same order, printed with 15 digits of a float32
        assert scores_in(said)[:2] == pytest.approx([score.pearson, score.spearman], abs=1e-3)


def test_predict_writes_the_vectors_of_the_saved_model(
    finished: dict[str, str], files: dict[str, str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["predict", "--ckpt_path", finished["checkpoint"], "--data.predict", files["texts"]]
    assert run([*words, "--trainer.accelerator", "cpu", "--data.eval_batch_size", "7"]) == 0
    (file,) = here.rglob("predictions.npy")
    expected = SentenceEncoder.from_pretrained(finished["model"]).encode(tiny.TEXTS)
    # float32: other batches, other widths of padding
    np.testing.assert_allclose(np.load(file), expected, rtol=0, atol=1e-5)
    assert "40 vectors of 16 features" in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_options_beside_a_checkpoint_override_its_parts(
    finished: dict[str, str], files: dict[str, str], here: Path
) -> None:
    words = ["predict", "--ckpt_path", finished["checkpoint"], "--data.predict", files["texts"]]
    assert run([*words, "--trainer.accelerator", "cpu", "--model.pooler", "MeanPooler"]) == 0
    (file,) = here.rglob("predictions.npy")
    module = ContrastiveModule.load_from_checkpoint(finished["checkpoint"])
    expected = SentenceEncoder(module.encoder, MeanPooler()).encode(tiny.TEXTS)
    np.testing.assert_allclose(np.load(file), expected, rtol=0, atol=1e-5)  # as above


@pytest.mark.slow
def test_a_second_run_in_the_same_folder_gets_its_own_place(
    tiny_words: list[str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (0, 1):
        assert run(["fit", "--recipe", "simcse", *tiny_words, "--trainer.max_steps", "1"]) == 0
        assert f"Model saved to runs/version_{number}/model" in capsys.readouterr().out
        assert (here / "runs" / f"version_{number}" / "model" / "modules.json").is_file()


@pytest.mark.slow
def test_the_plain_recipe_runs_on_a_few_lines_of_text(
    files: dict[str, str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["fit", "--recipe", "simcse", "--data.train", files["texts"], "--data.validation", files["pairs"]]
    words += ["--model.encoder.model_name_or_path", files["bert"], "--data.batch_size", "8"]
    words += ["--data.num_workers", "0", "--trainer.accelerator", "cpu", "--trainer.log_every_n_steps", "1"]
    assert run(words) == 0  # five steps, fewer than the recipe's validation interval
    assert "best val/spearman" in capsys.readouterr().out
    assert (here / "runs" / "version_0" / "model").is_dir()
    assert run(["embed", files["texts"], "v.npy", "--model", "runs/version_0"]) == 2
    assert "the folder of a run; give runs/version_0/model" in capsys.readouterr().err
    assert run([*words, "--trainer.max_steps", "1", "--export.dirpath", "runs/version_0/model"]) == 0
    assert "runs/version_0/model holds a model: this run's will take its place" in capsys.readouterr().out


@pytest.mark.slow
def test_early_stopping_comes_from_a_file(tiny_words: list[str], files: dict[str, str], here: Path) -> None:
    (here / "stop.yaml").write_text(
        "trainer:\n"
        "  max_epochs: 20\n"
        "  callbacks:\n"
        "    - class_path: pytorch_lightning.callbacks.EarlyStopping\n"
        # no score rises by 1000: the first validation is the best, the third ends the run
        "      init_args: {monitor: val/spearman, mode: max, patience: 2, min_delta: 1000}\n"
    )
    words = ["fit", "--recipe", "simcse", *tiny_words, "--config", "stop.yaml"]
    assert run([*words, "--data.validation", files["pairs"]]) == 0
    rows = list(csv.DictReader((here / "runs" / "version_0" / "metrics.csv").read_text().splitlines()))
    assert len([row for row in rows if row["val/spearman"]]) == 3
    saved = torch.load(next((here / "runs").rglob("*.ckpt")), weights_only=True)
    assert "RunSummary" in saved["callbacks"]  # a callback of one's own takes nothing away


# A user's own part


SWAP = """\
from contrastive_text.views import TokenView

class {name}(TokenView):
    def __init__(self, rate: float = 0.1):
        self.rate = rate
    def __call__(self, tokens, rng):
        order = list(range(len(tokens)))
        return tokens.take(order[::-1] if rng.random() < self.rate else order)
"""


@pytest.mark.slow
def test_a_view_in_the_working_directory_runs_is_printed_and_survives_its_checkpoint(
    tiny_words: list[str], here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = here / "views_of_mine.py"
    file.write_text(SWAP.format(name="TurnAround"))
    assert len(file.read_text().splitlines()) <= 10
    (here / "swap.yaml").write_text(
        "model:\n  views:\n    positive:\n"
        "      - class_path: views_of_mine.TurnAround\n"
        "        init_args: {rate: 1.0}\n"
        "      - FeatureCutoff\n"
    )
    chosen = ["--recipe", "simcse", *tiny_words, "--config", "swap.yaml"]
    assert run(["views", *chosen, "--n", "2"]) == 0
    said = capsys.readouterr().out
    lines = said.splitlines()
    (turned,) = (line for line in lines if "views.positive[0]" in line)
    (cut,) = (line for line in lines if "views.positive[1]" in line)
    assert "TurnAround(rate=1.0)" in turned and "% of tokens" in turned
    assert "FeatureCutoff(rate=0.2)" in cut and "18.8% of entries" in cut  # int(0.2 * 16) = 3 of 16
    assert f"[CLS] {tiny.TEXTS[0]} [SEP]" in said  # the anchor is whole
    assert "[-" in said and "{+" in said
    assert tiny.TEXTS[1] in said
    assert tiny.TEXTS[2] not in said  # two rows were asked for
    assert run(["fit", *chosen, "--trainer.max_steps", "2"]) == 0
    assert "TurnAround(rate=1.0)" in capsys.readouterr().out
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


@pytest.mark.parametrize("suffix", [".npy", ".tsv", ".parquet"])
def test_embed_writes_one_vector_per_text(
    finished: dict[str, str], files: dict[str, str], here: Path, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = here / f"vectors{suffix}"
    assert run(["embed", files["texts"], out.name, "--model", finished["model"], "--batch_size", "40"]) == 0
    if suffix == ".npy":
        vectors = np.load(out)
    elif suffix == ".tsv":
        vectors = np.loadtxt(out, delimiter="\t", dtype=np.float32)
    else:
        parquet = pytest.importorskip("pyarrow.parquet", reason="needs the parquet extra")
        vectors = np.array(parquet.read_table(out)["embedding"].to_pylist(), dtype=np.float32)
    expected = SentenceEncoder.from_pretrained(finished["model"]).encode(tiny.TEXTS, batch_size=40)
    assert np.array_equal(vectors, expected)  # nine digits hold a float32
    assert "texts.txt: text -> text; 40 rows" in capsys.readouterr().out


def test_embed_takes_a_column_and_gives_unit_length(finished: dict[str, str], here: Path) -> None:
    (here / "notes.jsonl").write_text("".join(f"{json.dumps({'note': t, 'id': 1})}\n" for t in tiny.TEXTS[:5]))
    words = ["embed", "notes.jsonl", "v.npy", "--model", finished["model"], "--column", "note", "--normalize"]
    assert run(words) == 0
    vectors = np.load(here / "v.npy")
    assert vectors.shape == (5, 16)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=0, atol=1e-6)  # float32


def test_evaluate_prints_every_file_and_sub_set(
    finished: dict[str, str], files: dict[str, str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = Path(files["pairs"]).read_text().splitlines()
    marked = [f"{line}\t{'news' if i % 2 else 'forum'}" for i, line in enumerate(lines[1:])]
    (here / "marked.tsv").write_text("\n".join([f"{lines[0]}\tgenre", *marked]) + "\n")
    assert run(["evaluate", finished["model"], files["pairs"], "marked.tsv"]) == 0
    said = capsys.readouterr().out
    model = SentenceEncoder.from_pretrained(finished["model"])
    for path, count in ((files["pairs"], 1), ("marked.tsv", 3)):
        scores = evaluate_pairs(model, read_pairs(path))
        assert len(scores) == count
        for score in scores:
            row = next(
                line for line in said.splitlines() if Path(path).name in line and f" {score.subset} " in line
            )
            assert f"{score.spearman:.2f}" in row
            assert f" {score.pairs} " in row
    assert "CLSPooler, at most 32 tokens" in said
