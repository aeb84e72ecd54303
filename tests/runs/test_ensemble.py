"""The ensemble of the best models of each task: routing (M15), what is saved, how it is run from the shell."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from shells import Shell

from contrastive_text.cli import run
from contrastive_text.data import TextDataModule, TextTask
from contrastive_text.pairings import Given
from contrastive_text.runs.ensemble import TaskEnsemble, build_ensemble, read_choices
from contrastive_text.training.module import ContrastiveModule

pytestmark = pytest.mark.slow  # two runs from the shell

CLASSES = ("bad", "good")
SST = [{"text": text, "label": CLASSES[i % 2]} for i, text in enumerate(tiny.TEXTS)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("tasks")
    lines = ["text\tlabel", *("\t".join(row.values()) for row in SST)]
    (folder / "sst.tsv").write_text("\n".join(lines) + "\n")
    return {
        "bert": tiny.save_bert(folder / "bert"),
        "sst": str(folder / "sst.tsv"),
        "sts": tiny.write_pairs(folder / "sts.tsv", 16),
    }


FIT = (
    "fit --model.encoder TransformerEncoder --data.batch_size 8 --data.num_workers 0 --trainer.accelerator cpu "
    "--trainer.enable_progress_bar false --trainer.log_every_n_steps 1 --trainer.val_check_interval 1.0 "
    "--model.optimizer AdamW"
)
OBJECTIVES = {
    "sst": "--model.objectives.sst TextClassification --model.objectives.sst.classes [bad,good]",
    "sts": "--model.objectives.sts PairRegression --data.tasks.sts.pairing Given",
}
"""Task -> the options of its objective."""


def fit(files: dict[str, str], folder: Path, *tasks: str, more: str) -> None:
    """Runs one task, or several."""
    line = f"{FIT} --model.encoder.model_name_or_path {files['bert']} --trainer.default_root_dir {folder} {more}"
    for name in tasks:
        line += f" --data.tasks.{name}.train {files[name]} --data.tasks.{name}.validation {files[name]}"
        line += f" {OBJECTIVES[name]} --model.objectives.{name}.task {name}"
    assert run(line.split()) == 0


@pytest.fixture(scope="module")
def runs(files: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run that learns to tell good texts from bad ones, and one of both tasks that learns next to nothing."""
    folder = tmp_path_factory.mktemp("runs")
    fit(files, folder / "both", "sst", "sts", more="--model.optimizer.lr 1e-6")
    fit(files, folder / "sst", "sst", more="--model.optimizer.lr 1e-2 --trainer.max_epochs 4")
    return {name: folder / name / "version_0" for name in ("both", "sst")}


@pytest.fixture(scope="module")
def ensemble(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "ensemble"
    build_ensemble(folder, [runs["both"], runs["sst"]])
    return folder


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, capsys: Any) -> Shell:
    """The shell of a user in a working directory of the test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("COLUMNS", "200")
    return Shell({}, request, capsys)


def checkpoint(folder: Path) -> Path:
    (file,) = (folder / "checkpoints").iterdir()
    return file


def data(files: dict[str, str], *tasks: str) -> TextDataModule:
    """The files of the tasks, for validation and for prediction."""
    each = {
        name: TextTask(
            files[name], validation=files[name], predict=files[name], pairing=Given() if name == "sts" else None
        )
        for name in tasks
    }
    return TextDataModule(tasks=each, num_workers=0)


def test_m15_a_task_is_predicted_by_the_model_with_the_best_score_on_its_validation_file(
    files: dict[str, str], runs: dict[str, Path], ensemble: Path, tmp_path: Path
) -> None:
    modules = {name: ContrastiveModule.load_from_checkpoint(checkpoint(folder)) for name, folder in runs.items()}
    of = {"both": ("sst", "sts"), "sst": ("sst",)}
    figures = {
        name: tiny.merged(tiny.trainer(tmp_path).validate(module, data(files, *of[name]), verbose=False))
        for name, module in modules.items()
    }
    assert figures["sst"]["val/sst/accuracy"] > figures["both"]["val/sst/accuracy"]
    best = {"sst": "sst", "sts": "both"}
    loaded = TaskEnsemble.load(ensemble, device="cpu")
    rows = {
        "sst": [{"text": row["text"]} for row in SST],
        "sts": [
            dict(zip(("anchor", "positive"), line.split("\t")[:2], strict=True))
            for line in Path(files["sts"]).read_text().splitlines()[1:]
        ],
    }
    for task, name in best.items():
        metric = {"sst": "accuracy", "sts": "pearson"}[task]
        assert loaded.choices[task].metric == metric
        # the run's own validation, batch by batch as here
        assert loaded.choices[task].score == pytest.approx(figures[name][f"val/{task}/{metric}"], abs=1e-3)
        results = tiny.trainer(tmp_path).predict(modules[name], data(files, *of[name]))
        expected = torch.cat(results if name == "sst" else results[1])
        # float32, the same batches
        torch.testing.assert_close(loaded.scores(task, rows[task]), expected, rtol=0, atol=1e-6)
    assert loaded.route("sst") is not loaded.route("sts")
    named = loaded.predict("sst", rows["sst"], batch_size=7)
    assert named == [CLASSES[int(i)] for i in loaded.scores("sst", rows["sst"]).argmax(dim=1)]
    cosines = loaded.scores("sts", rows["sts"])
    assert loaded.predict("sts", rows["sts"]) == [f"{5 * float(cosine):.4f}" for cosine in cosines]


def test_an_ensemble_holds_whole_copies_of_the_chosen_checkpoints_and_why(
    files: dict[str, str], runs: dict[str, Path], ensemble: Path
) -> None:
    assert sorted(path.name for path in ensemble.iterdir()) == [
        "ensemble.json", "member-1.ckpt", "member-2.ckpt",
    ]  # fmt: skip
    choices = read_choices(ensemble)
    assert {task: choice.source for task, choice in choices.items()} == {
        "sst": str(checkpoint(runs["sst"])), "sts": str(checkpoint(runs["both"])),
    }  # fmt: skip
    for task, choice in choices.items():
        assert choice.validation == (files[task],)
        assert (ensemble / choice.member).read_bytes() == Path(choice.source).read_bytes()


def test_a_run_that_is_the_best_on_no_task_is_left_out_and_the_first_of_equals_wins(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    choices = build_ensemble(tmp_path / "same", [checkpoint(runs["both"]), runs["both"]])
    assert {choice.member for choice in choices.values()} == {"member-1.ckpt"}
    assert sorted(path.name for path in (tmp_path / "same").iterdir()) == ["ensemble.json", "member-1.ckpt"]


def test_the_shell_builds_scores_and_predicts_task_by_task(
    shell: Shell, files: dict[str, str], runs: dict[str, Path], tmp_path: Path
) -> None:
    said = shell(f"ensemble out --runs {runs['both']} {runs['sst']}").out
    choices = read_choices("out")
    for choice in choices.values():
        assert f"{choice.score:.2f}" in said
        assert choice.source in said
    options = "--ckpt_path out --trainer.accelerator cpu --trainer.enable_progress_bar false"
    lines = shell(f"validate {options}").out.splitlines()
    for task, choice in choices.items():
        (row,) = (line for line in lines if f" {choice.member} " in line and f" {task} " in line)
        assert f" {choice.score:.2f} " in row
    (row,) = (line for line in lines if " overall " in line)
    assert f" {sum(choice.score for choice in choices.values()) / 2:.2f} " in row
    # one task alone
    said = shell(f"test {options} --data.tasks.sts.test {files['sts']}").out
    assert f" {choices['sts'].score:.2f} " in said
    assert " sst " not in said
    shell(f"predict {options} --data.tasks.sst.predict {files['sst']} --data.tasks.sts.predict {files['sts']}")
    (folder,) = tmp_path.glob("runs/*/predictions")
    loaded = TaskEnsemble.load("out", device="cpu")
    names, *lines = (folder / "sst.tsv").read_text().splitlines()
    assert names == "text\tprediction\tprobability"
    named = loaded.predict("sst", [{"text": row["text"]} for row in SST])
    assert [line.split("\t")[1] for line in lines] == named
    assert len((folder / "sts.tsv").read_text().splitlines()) == 17


# What is refused


def test_runs_whose_scores_cannot_be_compared_are_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    saved = torch.load(checkpoint(runs["sst"]), weights_only=True)
    state = next(state for name, state in saved["callbacks"].items() if name.startswith("BestCheckpoint"))
    torch.save(saved, tmp_path / "same.ckpt")
    state["validated"]["sst"] += 1  # other rows, in a file of the same name
    torch.save(saved, tmp_path / "other.ckpt")
    assert build_ensemble(tmp_path / "fine", [runs["both"], tmp_path / "same.ckpt"])
    with pytest.raises(ValueError, match=r"expected sst to be scored as in .*sst\.tsv\), got accuracy on"):
        build_ensemble(tmp_path / "out", [runs["both"], tmp_path / "other.ckpt"])
    state["figures_step"] += 1  # written after a step more than was validated
    torch.save(saved, tmp_path / "stale.ckpt")
    with pytest.raises(ValueError, match=r"stale\.ckpt: expected the score of a task"):
        build_ensemble(tmp_path / "out", [tmp_path / "stale.ckpt"])
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_there_and_a_damaged_ensemble_are_refused(ensemble: Path, tmp_path: Path) -> None:
    with pytest.raises(FileExistsError, match="expected a new folder"):
        build_ensemble(ensemble, [])
    copy = tmp_path / "copy"
    shutil.copytree(ensemble, copy)
    (copy / "member-2.ckpt").unlink()
    with pytest.raises(FileNotFoundError, match=r"expected member-2\.ckpt, the model of s.., next to it"):
        TaskEnsemble.load(copy)
    member = bytearray((copy / "member-1.ckpt").read_bytes())
    member[len(member) // 2] ^= 1
    (copy / "member-2.ckpt").write_bytes(member)
    with pytest.raises(ValueError, match="expected a whole checkpoint"):
        TaskEnsemble.load(copy, device="cpu")
    (copy / "ensemble.json").write_text(json.dumps({"tasks": {"sst": {"member": 1}}}))
    with pytest.raises(ValueError, match=r"sst: member: expected a text"):
        read_choices(copy)
    with pytest.raises(FileNotFoundError, match=r"expected a folder with ensemble\.json"):
        TaskEnsemble.load(tmp_path)


def test_an_unknown_task_and_rows_without_a_column_are_refused(ensemble: Path) -> None:
    loaded = TaskEnsemble.load(ensemble, device="cpu")
    with pytest.raises(ValueError, match="task: expected one of sst, sts, got quora"):
        loaded.route("quora")
    with pytest.raises(ValueError, match="sts: expected rows with anchor and positive, got a row without anchor"):
        loaded.predict("sts", [{"text": "a"}])
    with pytest.raises(ValueError, match="sst: expected rows with text, got no row"):
        loaded.predict("sst", [])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("fit", "expected a checkpoint to resume from, got the ensemble"),
        ("predict", "data.tasks: expected a file of sst or sts, got no file"),
        ("predict --data.predict x.txt", "data.predict: expected no file, got --data.predict=x.txt"),
        ("test --data.test '[a.tsv, b.tsv]'", "data.test: expected no file, got ['a.tsv'"),
        ("test --data.tasks.quora.test x.tsv", "data.tasks.quora: expected one of the ensemble's tasks"),
    ],
)
def test_what_an_ensemble_cannot_do_is_answered(shell: Shell, ensemble: Path, line: str, said: str) -> None:
    assert said in shell.refused(f"{line} --ckpt_path {ensemble}")
