"""The command sweep: a grid of tiny runs, taken up again, with failures, beside other processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import tiny
from covering import rest_slow

from contrastive_text.cli import run, sweep_job, sweep_runs
from contrastive_text.cli.sweep import draw
from contrastive_text.runs.sweeps import Cell, SweepFolder, SweepRun, SweepTable, read_validations

Answer = Callable[[Sequence[str]], str]
GRID = [
    "--vary",
    "model.views.anchor=none,FeatureCutoff(rate=0.5)",
    "--vary",
    "model.pooler=CLSPooler",
]


@pytest.fixture
def words(tiny_words: list[str], files: dict[str, str]) -> list[str]:
    """The options of a sweep of runs of two steps."""
    fast = ["--trainer.max_steps", "2", "--model.optimizer.lr", "1e-2", "--data.validation", files["pairs"]]
    return ["sweep", "--recipe", "simcse", *tiny_words, *fast]


def state(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Time and content of what was kept of each run."""
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.glob("cells/*/*/cell.json")
    }


@pytest.mark.slow
def test_a_grid_is_run_once_and_a_lost_cell_again(
    words: list[str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [*words, *GRID, "--seeds", "1", "--output", "grid"]
    assert run(command) == 0
    said = capsys.readouterr().out
    grid = here / "grid"
    assert "2 cells x 1 seed = 2 runs, in grid" in said
    assert "none | CLSPooler, seed 1: val/spearman" in said
    assert "; 1 run left, about " in said
    assert (grid / "table.md").read_text() in said
    tables = {path.name: path.read_bytes() for path in grid.iterdir() if path.suffix in (".md", ".png", ".svg")}
    assert set(tables) == {"table.md", "heat_map.png", "heat_map.svg"}
    before = state(grid)
    assert len(before) == 2
    assert not [*grid.rglob("*.ckpt"), *grid.rglob("*.safetensors")]
    kept = [json.loads(content) for _, content in before.values()]
    scores = {each["validations"][-1]["val/spearman"] for each in kept}
    assert len(scores) == 2  # the values had an effect

    lost = next(iter(before))
    Path(lost).unlink()
    assert run(command) == 0
    assert "1 of them finished before" in capsys.readouterr().out
    after = state(grid)
    assert {path for path in before if before[path] != after[path]} == {lost}
    assert [path.name for path in Path(lost).parent.glob("stage-1/version_*")] == ["version_0"]  # started anew
    assert {name: (grid / name).read_bytes() for name in tables} == tables


def test_a_cell_is_the_fit_that_its_command_says(
    words: list[str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vary = ["--vary", "model.views.positive=FeatureCutoff(rate=0.5)+GaussianNoise", "--seeds", "5", "6"]
    assert run([*words, *vary, "--keep_weights", "--output", "one", "--format", "json"]) == 0
    kept = (here / "one" / "table.json").read_text()
    assert kept in capsys.readouterr().out
    config = here / "views.yaml"
    config.write_text(
        "model: {views: {positive: [{class_path: FeatureCutoff, init_args: {rate: 0.5}}, GaussianNoise]}}\n"
    )
    assert (
        run(
            [
                "fit",
                *words[1:],
                "--config",
                str(config),
                "--seed_everything",
                "6",
                "--trainer.default_root_dir",
                "fit",
            ]
        )
        == 0
    )
    (figures,) = read_validations(here / "fit")
    assert json.loads(kept)["cells"][0]["runs"][1]["figures"] == figures
    assert len([*(here / "one").rglob("model.safetensors")]) == 2
    assert (here / "one" / "points.svg").exists()


@pytest.mark.slow
def test_a_failing_cell_loses_no_other_and_is_tried_again(words: list[str], here: Path, answer: Answer) -> None:
    command = [*words, "--vary", "data.batch_size=8,1000", "--seeds", "1", "--output", "out"]
    said = answer(command)
    assert "1 of 2 runs failed, the first, 1000, with: " in said
    assert "the same command tries them again" in said
    table = (here / "out" / "table.md").read_text()
    assert "| 1000 | failed | 0 | | |" in table
    assert "- failed: 1000, seed 1: " in table
    before = state(here / "out")
    answer(command)
    after = state(here / "out")
    assert [before[path] == after[path] for path in sorted(before)] == [False, True]  # 1000 first


def test_a_dry_run_checks_and_runs_nothing(
    words: list[str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*words, *GRID, "--dry_run"]) == 0
    said = capsys.readouterr().out
    assert "2 cells x 3 seeds = 6 runs, in runs/sweep" in said
    assert "'--model.views.anchor=[]' --model.pooler=CLSPooler --seed_everything=1" in said
    assert list(here.iterdir()) == []


ONE = "model.pooler=MaxPooler"


@pytest.mark.parametrize(
    ("more", "said"),
    rest_slow([
        ("", "--vary: expected KEY=VALUE,VALUE,..."),
        ("model.poolr=MaxPooler", "no option 'model.poolr'; did you mean --model.pooler?"),
        ("model.optimizer.lr=1e-3,fast", "in the cell fast: lr: expected float, got fast"),
        ("model.views.anchor=none,FeatureCutof", "model.views: expected a class of this library"),
        ("model.views.anchor=none,FeatureCutoff(rate=2)", "FeatureCutoff(rate=2): FeatureCutoff.rate: expected"),
        ("model.views.anchor=none,FeatureCutoff+CropTokens", "in the cell FeatureCutoff+CropTokens: views.anc"),
        ("data.batch_size=8,8.5", "in the cell 8.5:"),
        ("model.optimizer.weight_decay=0.1,1e-1", "got one configuration for 0.1 and 1e-1"),
        ("recipe=simcse,simsce", "recipe: expected a recipe"),
        ("model.optimizer=AdamW(lr=1),AdamW(lr=2)", "--model.optimizer.lr: expected no option inside of"),
        ("seed_everything=1,2", "--seed_everything: expected none, for a sweep sets it, got one; give --seeds"),
        (f"{ONE} --export.dirpath x", "--export.dirpath: expected none"),
        (f"{ONE} --data.validation null", "data.validation: expected a file to score the runs on"),
        (f"{ONE} --select train/loss", "--select: expected a figure of the validation"),
        (f"{ONE} --seeds 0", "--seeds: expected a number of 1 or more, or different seeds, got 0"),
        (f"{ONE} --seeds 2 2", "different seeds, got 2 2"),
    ], quick=4),
)  # fmt: skip
def test_what_is_wrong_is_said_before_the_first_run(
    words: list[str], here: Path, answer: Answer, more: str, said: str
) -> None:
    assert said in answer([*words, *(["--vary", *more.split()] if more else [])])
    assert list(here.iterdir()) == []


def test_a_logger_of_a_file_is_refused_at_once(words: list[str], here: Path, answer: Answer) -> None:
    (here / "silent.yaml").write_text("trainer: {logger: false}\n")
    said = answer([*words, "--config", "silent.yaml", "--vary", ONE])
    assert "trainer.logger: expected none, or loggers beside" in said and "got False for MaxPooler" in said
    assert [path.name for path in here.iterdir()] == ["silent.yaml"]


@pytest.mark.slow
def test_the_folder_of_another_plan_is_refused(words: list[str], here: Path, answer: Answer) -> None:
    command = [*words, "--vary", "model.pooler=MeanPooler", "--seeds", "1", "--output", "out"]
    assert run(command) == 0
    before = state(here / "out")
    said = answer([*command, "--model.optimizer.lr", "3e-3"])
    assert "for the cell MeanPooler, got another: model.optimizer.init_args.lr was 0.01 and is 0.003" in said
    assert "over model.pooler, got one over data.batch_size" in answer(
        [*words, "--vary", "data.batch_size=4", "--output", "out"]
    )
    assert state(here / "out") == before


@pytest.mark.slow
def test_an_unknown_score_ends_the_sweep_at_its_first_run(words: list[str], here: Path, answer: Answer) -> None:
    said = answer(
        [*words, "--vary", "model.pooler=MeanPooler,MaxPooler", "--select", "val/sperman", "--output", "out"]
    )
    assert "--select: expected a figure of the validation (val/" in said
    assert "val/spearman" in said
    assert state(here / "out") == {}


@pytest.mark.slow
def test_a_run_of_another_process_is_waited_for(
    words: list[str], here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, cell = SweepFolder(here / "out"), Cell(("MeanPooler",))
    other = folder.held(cell, 1)
    place = other.__enter__()
    assert place is not None

    def finish(seconds: float) -> None:
        del seconds
        folder.keep(place, SweepRun(cell.labels, 1, 1.0, [{"step": 2, "val/spearman": 12.5}]))
        other.__exit__(None, None, None)

    monkeypatch.setattr(sweep_runs.time, "sleep", finish)
    assert run([*words, "--vary", "model.pooler=MeanPooler,MaxPooler", "--seeds", "1", "--output", "out"]) == 0
    said = capsys.readouterr().out
    assert "MaxPooler, seed 1: " in said
    assert "MeanPooler, seed 1: " not in said
    assert "| MeanPooler | **12.50** | 1 | | |" in said or "| MeanPooler | 12.50 | 1 | | |" in said


@pytest.mark.slow  # a process that imports everything
def test_a_killed_sweep_goes_on(words: list[str], here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [*words, "--vary", "model.pooler=MeanPooler,MaxPooler,CLSPooler", "--seeds", "1", "--output", "out"]
    command[command.index("--trainer.max_steps") + 1] = "20"
    command += ["--trainer.max_epochs", "-1"]
    with subprocess.Popen(
        [sys.executable, "-m", "contrastive_text", *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        until = time.monotonic() + 100
        while not (before := state(here / "out")) and time.monotonic() < until:
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
    assert len(before) == 1
    assert len([*(here / "out").glob("cells/*/seed-1/stage-1/fit.log")]) <= 3
    assert run(command) == 0
    assert "of them finished before" in capsys.readouterr().out
    after = state(here / "out")
    assert len(after) == 3
    assert before.items() <= after.items()
    assert all(len([*Path(path).parent.glob("stage-1/version_*")]) == 1 for path in after)


@pytest.mark.parametrize("by", [130, 1], ids=["after a step", "before the first"])
def test_a_run_that_is_stopped_ends_the_sweep_and_is_not_kept(
    by: int, words: list[str], here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(words: Sequence[str]) -> int:
        del words
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise SystemExit(by)  # noqa: B904  # as Lightning does

    monkeypatch.setattr(sweep_job, "run", stopped)
    with pytest.raises(SystemExit) as left:
        run([*words, "--vary", "model.pooler=MeanPooler,MaxPooler", "--seeds", "1", "--output", "out"])
    assert left.value.code == 130
    assert "stopped in MeanPooler, seed 1; the same command goes on" in capsys.readouterr().out
    assert state(here / "out") == {}


@pytest.mark.slow
def test_a_run_leaves_nothing_of_its_processes(
    words: list[str], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed, seen = sys.argv, []

    def fit(given: Sequence[str]) -> int:
        assert sys.argv == [typed[0], *given]  # what Lightning starts further processes with
        seen.append(os.environ.get("MASTER_PORT"))
        os.environ["MASTER_PORT"] = "1"
        print("error: none")
        return 2

    monkeypatch.setattr(sweep_job, "run", fit)
    monkeypatch.delenv("MASTER_PORT", raising=False)
    assert run([*words, "--vary", "model.pooler=MeanPooler,MaxPooler", "--seeds", "1", "--output", "out"]) == 2
    assert seen == [None, None]
    assert sys.argv == typed
    del here


def test_without_matplotlib_there_are_tables(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    cell = Cell(("a",))
    draw(SweepTable(["x"], [cell], [SweepRun(cell.labels, 1, 0.0, [{"val/spearman": 1.0}])], [1]), here)
    assert "note: no figure: sweep: expected matplotlib, found none" in capsys.readouterr().out
    assert list(here.iterdir()) == []


@pytest.mark.slow  # four processes that import everything
def test_cells_of_several_processes_follow_each_other(words: list[str], here: Path) -> None:
    command = [*words, "--vary", "model.optimizer.weight_decay=0.0,0.1", "--seeds", "1", "--output", "out"]
    command += ["--trainer.devices", "2", "--trainer.strategy", "ddp"]
    done = subprocess.run([sys.executable, "-m", "contrastive_text", *command], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    logs = [path.read_text() for path in (here / "out").glob("cells/*/seed-1/stage-1/fit.log")]
    assert ["Starting with 2 processes" in log for log in logs] == [True, True]


@pytest.mark.slow
def test_a_ranking_chooses_and_stops_the_runs_of_a_sweep(
    words: list[str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [f"question {text}\t{text}\n" for text in tiny.TEXTS[:6]]
    (here / "mine.tsv").write_text("".join(["query\tpositive\n", *asked]))
    command = [*words[: words.index("--data.validation")], "--data.retrieval.files", "mine.tsv", "--seeds", "1"]
    # No score rises by 100: the second validation ends a run (with an interval of 1 Lightning waits for the
    # end of the epoch).
    command += ["--trainer.max_steps", "8", "--trainer.max_epochs", "-1", "--trainer.val_check_interval", "2"]
    command += ["--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor=val/ndcg@10"]
    command += [f"--trainer.callbacks.{option}" for option in ("mode=max", "patience=0", "min_delta=100")]
    command += ["--vary", "model.pooler=CLSPooler", "--select", "val/mine/ndcg@10", "--output", "ranked"]
    assert run(command) == 0
    assert "CLSPooler, seed 1: val/mine/ndcg@10" in capsys.readouterr().out
    (kept,) = (here / "ranked").glob("cells/*/*/cell.json")
    steps = json.loads(kept.read_text())["validations"]
    assert len(steps) == 2
    assert all("val/mine/ndcg@10" in each for each in steps)
