"""The command sweep: a grid of tiny runs, resumed, failing, next to other processes, and measured afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path

import pytest
import sts_files
import tiny
from covering import rest_slow, turn_of
from shells import Shell, run_here

from contrastive_text.cli import sweep
from contrastive_text.core.storage.disk import hold_lock
from contrastive_text.evaluation import CachedEncoder, sts_scores
from contrastive_text.inference import SentenceEncoder
from contrastive_text.runs.grid import Cell
from contrastive_text.runs.sweep_table import SweepRun, SweepTable, read_validations

SWEEP = "sweep --recipe simcse TINY --trainer.max_steps 2 --model.optimizer.lr 1e-2 --data.validation PAIRS"
"""A sweep of runs of two steps."""
METHODS = SWEEP.replace("--recipe simcse ", "")
"""The same sweep, whose cells have a recipe each."""
VIEW = """
from contrastive_text import TokenView
class Reverse(TokenView):
    def __call__(self, tokens, rng):
        return tokens.take(range(len(tokens) - 1, -1, -1))
"""
"""A user's module with a view."""
MINE = "recipe: simcse\nmodel:\n  views: {positive: [{class_path: reversing.Reverse}]}\n"
"""A user's method: a recipe with the view."""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """The commands that a sweep starts, which run in this process."""
    started: list[Sequence[str]] = []

    def call(words: Sequence[str], log: Path, mode: str = "wb") -> str:
        started.append(words)
        return run_here(words, log, mode)

    monkeypatch.setattr(sweep, "_call", call)
    return started


@pytest.mark.slow
def test_a_grid_is_run_once_and_a_lost_run_again(shell: Shell, here: Path, calls: list[Sequence[str]]) -> None:
    (here / "grid.yaml").write_text("model.views.anchor: [none, 'FeatureCutoff(rate=0.5)']\n")
    command = f"{SWEEP} --grid grid.yaml --vary model.pooler=CLSPooler --seeds 1 --output out"
    said = shell(command).out
    assert "2 cells x 1 seed = 2 runs, in out" in said
    assert "none | CLSPooler, seed 1: val/spearman" in said
    assert "; 1 run left, about " in said
    out = here / "out"
    assert (out / "table.md").read_text() in said
    kinds = (".md", ".tex", ".png", ".svg", ".pdf")
    tables = {path.name: path.read_bytes() for path in out.iterdir() if path.suffix in kinds}
    assert set(tables) == {"table.md", "table.tex", "heat_map.png", "heat_map.svg", "heat_map.pdf"}
    assert not [*out.rglob("*.ckpt"), *out.rglob("*.safetensors")]
    scores = {read_validations(path.parent)[-1]["val/spearman"] for path in out.glob("*/seed-1/config.yaml")}
    assert len(scores) == 2  # the values had an effect

    (lost,) = out.glob("none_CLSPooler/seed-1")
    for file in lost.iterdir():
        file.unlink()
    assert "1 of them are finished already" in shell(command).out
    assert len(calls) == 3
    assert {name: (out / name).read_bytes() for name in tables} == tables


@pytest.mark.slow
def test_a_cell_is_the_fit_that_its_command_says(shell: Shell, here: Path, calls: list[Sequence[str]]) -> None:
    vary = "--vary 'model.views.positive=[FeatureCutoff(rate=0.5), GaussianNoise]' --seeds 5 6"
    said = shell(f"{SWEEP} {vary} --keep_weights --output one --format json").out
    kept = (here / "one" / "table.json").read_text()
    assert kept in said
    (here / "views.yaml").write_text(
        "model: {views: {positive: [{class_path: FeatureCutoff, init_args: {rate: 0.5}}, GaussianNoise]}}\n"
    )
    shell(f"{SWEEP.replace('sweep', 'fit', 1)} --config views.yaml --seed_everything 6 --folder fit")
    assert json.loads(kept)["cells"][0]["runs"][1]["figures"] == read_validations(here / "fit")[-1]
    assert len([*(here / "one").rglob("model.safetensors")]) == 2
    assert (here / "one" / "points.svg").exists()
    assert len(calls) == 2


@pytest.mark.slow
def test_a_failing_cell_loses_no_other_and_is_tried_again(
    shell: Shell, here: Path, calls: list[Sequence[str]]
) -> None:
    command = f"{SWEEP} --vary data.batch_size=8,1000 --seeds 1 --output out"
    said = shell.refused(command)
    assert "1 of 2 runs failed, the first, 1000, with: " in said
    assert "the same command runs them again" in said
    table = (here / "out" / "table.md").read_text()
    assert "| 1000 | failed | 0 | | | |" in table
    assert "- failed: 1000, seed 1: " in table
    shell.refused(command)
    assert [" ".join(each).count("--data.batch_size=1000") for each in calls] == [0, 1, 1]


def test_a_dry_run_checks_and_runs_nothing(shell: Shell, here: Path) -> None:
    vary = "--vary model.views.anchor=none,FeatureCutoff(rate=0.5) --init_from a/seed-{seed}"
    said = shell([*shell.words(SWEEP), *vary.split(), "--dry_run"]).out
    assert "2 cells x 3 seeds = 6 runs, in runs/sweep" in said
    assert "--init_from=a/seed-1 '--model.views.anchor=[]' " in said
    assert "--checkpoint.monitor=val/spearman --seed_everything=1 --folder=runs/sweep/none/seed-1" in said
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("more", "said"),
    rest_slow([
        ("--vary model.poolr=MaxPooler", "no option 'model.poolr'; did you mean --model.pooler?"),
        ("--vary model.views.anchor=none,FeatureCutof", "model.views: expected a class of this library"),
        ("--vary model.views.anchor=none,FeatureCutoff(rate=2)", "FeatureCutoff(rate=2): FeatureCutoff.rate: ex"),
        ("--vary model.views.anchor=[FeatureCutoff,CropTokens]", "in the cell [FeatureCutoff,CropTokens]: view"),
        ("--vary model.optimizer=AdamW(lr=1),AdamW(lr=2) --model.optimizer.lr 3", "one configuration for AdamW("),
        ("--vary seed_everything=1,2", "that the sweep doesn't set itself, got seed_everything; give --seeds"),
        ("--checkpoint.monitor val/loss", "--checkpoint.monitor: expected options that the sweep"),
        ("--data.validation null", "data.validation: expected a file to score the runs on"),
        ("--trainer.logger false", "got trainer.logger false; remove these options"),
        ("--grid list.yaml", "--grid list.yaml: expected a list of values under each key"),
        ("--select train/loss", "--select: expected a validation metric"),
        ("--select sts:mean", "got sts:mean. Test data must not select weights"),
        ("--seeds 0", "--seeds: expected a number of 1 or more, or different seeds, got 0"),
        ("--report sts:mean", "expected a folder of the suite's data sets, got no folder; add --report_data"),
        ("--report nonsense", "--report: expected val/METRIC, or a task or mean of a suite (sts, sts-pearson, "),
        ("--take last --report sts:mean --report_data data", "expected --take best, got last"),
        ("--report_pooler CLSPooler", "--report_pooler: expected something that reads it, got val/spearman"),
        ("--report sts:STS12 --report_data data --report_pooler CLSPoler", "CLSPoler"),
        ("--report_data data", "got val/spearman; leave it out, or score sts or sts-pearson"),
        ("--report sts:STS13 --report_data data", "sts:STS13: expected the data of sts:STS13 in"),
        ("--report transfer:mean --report_data data", "--report_data: expected the data"),
    ], quick=3),
)  # fmt: skip
def test_what_is_wrong_is_said_before_the_first_run(shell: Shell, here: Path, more: str, said: str) -> None:
    (here / "data").mkdir()
    (here / "data" / "stsb.test.tsv").write_text("sentence1\tsentence2\tscore\na b\tb\t1\nc\td\t2\n")
    (here / "list.yaml").write_text("model.pooler: MaxPooler\n")
    assert said in shell.refused([*shell.words(SWEEP), *more.split()])
    assert not (here / "runs").exists()


@pytest.mark.slow
def test_a_run_of_other_options_is_refused_and_a_new_report_needs_weights(
    shell: Shell, here: Path, calls: list[Sequence[str]]
) -> None:
    sts_files.write_tables(here / "data")
    (here / "data" / "sts13.test.tsv").unlink()
    command = f"{SWEEP} --vary model.pooler=MeanPooler --seeds 1 --output out"
    shell(f"{command} --keep_weights")
    said = shell.refused(f"{command} --model.optimizer.lr 3e-3")
    assert "run in out/MeanPooler/seed-1, got model.optimizer.lr 0.003 instead of 0.01; give" in said
    assert "got init_from 'a' instead of None" in shell.refused(f"{command} --init_from a")

    # A suite is measured on weights that stayed, as evaluate does, and is in the table next to the choice.
    report = f"{command} --report sts:mean --report_data data"
    model = SentenceEncoder.from_pretrained(here / "out/MeanPooler/seed-1/model")
    scores = [each.score for each in sts_scores(CachedEncoder(model), here / "data") if not each.missing]
    shell(report)
    table = json.loads((here / "out" / "table.json").read_text())["cells"][0]
    assert table["reports"]["sts:mean"]["mean"] == pytest.approx(sum(scores) / len(scores), abs=1e-12)
    assert "sts:mean of STS12, " in (here / "out" / "table.md").read_text()
    assert [words[0] for words in calls] == ["fit", "evaluate"]
    said = shell.refused(f"{report} --report_pooler CLSPooler")
    assert "got 1 runs without weights: out/MeanPooler/seed-1; delete them to train them again, or remove" in said


@pytest.mark.slow
def test_a_run_of_another_process_is_waited_for_and_an_unknown_figure_answered_with_the_known(
    shell: Shell, here: Path, calls: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = here / "out" / "MeanPooler" / "seed-1"
    other = hold_lock(place.with_name("seed-1.run"))
    assert other.__enter__()

    def finish(seconds: float) -> None:
        del seconds
        place.mkdir()
        (place / "metrics.csv").write_text("step,val/spearman\n2,12.5\n")
        SweepRun(("MeanPooler",), 1).write(place)
        other.__exit__(None, None, None)

    monkeypatch.setattr(sweep.time, "sleep", finish)
    command = f"{SWEEP} --vary model.pooler=MeanPooler,MaxPooler --seeds 1 --output out"
    said = shell(command).out
    assert "MaxPooler, seed 1: " in said
    assert "MeanPooler, seed 1: " not in said
    assert "| MeanPooler | **12.50** | 1 | | |" in said or "| MeanPooler | 12.50 | 1 | | |" in said
    assert len(calls) == 1
    said = shell.refused(f"{SWEEP} --vary model.pooler=MaxPooler --seeds 1 --select val/sperman --output other")
    assert "--select: expected a validation metric (val/" in said and "val/spearman" in said


@pytest.mark.slow  # processes that import everything
@pytest.mark.parametrize("by", turn_of([signal.SIGINT, signal.SIGTERM], 2), ids=attrgetter("name"))
def test_a_stopped_sweep_resumes_inside_the_run_that_it_was_in(
    by: signal.Signals, shell: Shell, here: Path, calls: list[Sequence[str]]
) -> None:
    bounds = "--trainer.max_steps 300 --trainer.max_epochs -1 --trainer.val_check_interval 300"
    command = shell.words(f"{SWEEP} {bounds} --vary model.pooler=MeanPooler --seeds 1 --output out")
    place = here / "out" / "MeanPooler" / "seed-1"
    typed = [sys.executable, "-m", "contrastive_text", *command]
    with subprocess.Popen(typed, stdout=subprocess.PIPE, text=True) as process:
        until = time.monotonic() + 200
        while not (place / "metrics.csv").exists() and time.monotonic() < until:
            time.sleep(0.05)
        os.kill(process.pid, by)
        said = process.communicate(timeout=200)[0]
    assert process.returncode == 128 + by
    assert "the same command resumes the run of out/MeanPooler/seed-1.log" in said
    assert [*place.glob("resume-step=*.ckpt")]
    with hold_lock(place) as is_free:
        assert is_free  # the fit has ended
    shell(command)
    assert "Resuming out/MeanPooler/seed-1 from " in (here / "out" / "MeanPooler" / "seed-1.log").read_text()
    assert len(calls) == 1


def write_method(here: Path) -> None:
    (here / "reversing.py").write_text(VIEW)
    (here / "mine.yaml").write_text(MINE)
    sys.modules.pop("reversing", None)  # another test's


@pytest.mark.slow
def test_the_plan_of_recipes_shows_settings_that_differ_and_settings_that_are_replaced(
    shell: Shell, here: Path
) -> None:
    write_method(here)
    (here / "mine.yaml").write_text(f"{MINE}  optimizer: {{init_args: {{weight_decay: 0.5}}}}\n")
    said = shell(f"{METHODS} --vary recipe=simcse,mine.yaml --seeds 1 --dry_run").out
    assert "fit --config=mine.yaml --model.encoder" in said
    lines = [line.split() for line in said.splitlines()]
    decay = "model.optimizer.weight_decay | 0.0 * | 0.5 * | --model.optimizer.weight_decay 0.0"
    assert decay.split() in lines
    assert ["model.optimizer.lr", "|", "3e-05", "|", "3e-05", "|", "0.01"] in lines  # of both recipes, under --lr
    assert ["trainer.max_epochs", "|", "1", "|", "1", "|", "null"] in lines
    assert "model.views" not in said


@pytest.mark.slow
def test_a_users_method_is_a_cell_next_to_recipes(shell: Shell, here: Path, calls: list[Sequence[str]]) -> None:
    write_method(here)
    said = shell(f"{METHODS} --vary recipe=simcse,dcl,mine.yaml --seeds 2 --output out --format latex").out
    out = here / "out"
    assert (out / "table.tex").read_text() in said
    assert "recipe & val/spearman & seeds & minus the first cell & Holm p & beyond noise" in said
    assert (out / "points.pdf").read_bytes().startswith(b"%PDF")
    scores = {
        cell: read_validations(out / cell / "seed-1")[-1]["val/spearman"] for cell in ("simcse", "mine.yaml")
    }
    assert scores["simcse"] != scores["mine.yaml"]
    assert len(calls) == 6


@pytest.mark.parametrize(
    ("more", "said"),
    rest_slow([
        ("recipe=simcse,simsce", "in the cell simsce: recipe: expected a recipe, got 'simsce'; did you mean"),
        ("recipe=simcse,plain.yaml", "plain.yaml: expected the key recipe or model.objectives, got model; add "),
        ("recipe=simcse,dcl --recipe dcl", "expected recipes in the grid alone, got also dcl.yaml, which"),
        ("recipe=simcse,dcl --config mine.yaml", "recipes in the grid alone, got also mine.yaml, which"),
        ("recipe=simcse,simcse/unsup_bert_base", "got one configuration for simcse and simcse/unsup_bert_base"),
        ("recipe=simcse,simcse", "--vary recipe: expected different values, got simcse twice"),
        ("recipe=simcse,none.yaml", "expected a YAML file, got none.yaml, which doesn't exist"),
        ("recipe=simcse,lost.yaml", "in the cell lost.yaml: model.views: expected a class, got missing"),
        ("recipe=simcse,mlm.yaml --select val/mlm/loss", "--select: expected a metric of all cells, got"),
        ("recipe=simcse,mlm.yaml --report val/mlm/loss", "the cell simcse doesn't have; name a metric of"),
        ("recipe=simcse,other.yaml", "--select: expected one metric for all cells, got val/spearman for"),
    ], quick=3),
)  # fmt: skip
def test_a_method_that_cannot_be_a_cell_is_refused(shell: Shell, here: Path, more: str, said: str) -> None:
    write_method(here)
    (here / "plain.yaml").write_text("model: {pooler: MeanPooler}\n")
    (here / "lost.yaml").write_text(MINE.replace("reversing", "missing"))
    (here / "mlm.yaml").write_text(
        "recipe: simcse\nmodel: {views: {anchor: [MaskTokens]}, objectives: {c: Contrastive, mlm: MaskedLM}}\n"
    )
    (here / "other.yaml").write_text("recipe: simcse\ncheckpoint: {monitor: val/uniformity}\n")
    assert said in shell.refused([*shell.words(METHODS), *f"--vary {more}".split()])
    assert not (here / "runs").exists()


def test_without_matplotlib_there_are_tables(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    cell = Cell(("a",))
    table = SweepTable(["x"], [cell], [SweepRun(cell.labels, 1, 0.0, [{"val/spearman": 1.0}])], [1])
    sweep.draw(table, here)
    assert "note: no figure: sweep: expected matplotlib, found none" in capsys.readouterr().out
    assert list(here.iterdir()) == []


@pytest.mark.slow
def test_a_ranking_chooses_and_stops_the_runs_of_a_sweep(
    shell: Shell, here: Path, calls: list[Sequence[str]]
) -> None:
    asked = [f"question {text}\t{text}\n" for text in tiny.TEXTS[:6]]
    (here / "mine.tsv").write_text("".join(["query\tpositive\n", *asked]))
    # No score rises by 100: the second validation ends a run (with an interval of 1 Lightning waits for the
    # end of the epoch).
    stops = " ".join(
        f"--trainer.callbacks.{option}"
        for option in ("monitor=val/ndcg@10", "mode=max", "patience=0", "min_delta=100")
    )
    command = (
        f"{SWEEP.replace('--data.validation PAIRS', '--data.retrieval.files mine.tsv')} --seeds 1 "
        "--trainer.max_steps 8 --trainer.max_epochs -1 --trainer.val_check_interval 2 "
        f"--trainer.callbacks+=EarlyStopping {stops}"
    )
    said = shell(f"{command} --select val/mine/ndcg@10 --output ranked").out  # one cell, no key varies
    assert "the run, seed 1: val/mine/ndcg@10" in said
    steps = read_validations(here / "ranked" / "seed-1")
    assert len(steps) == 2
    assert all("val/mine/ndcg@10" in each for each in steps)
    assert len(calls) == 1
