"""The command sweep: chains of stages, and reports of the best weights, taken up again after a kill anywhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import sts_files
import tiny
from covering import rest_slow

from contrastive_text.cli import run, sweep, sweep_job
from contrastive_text.cli.sweep_scores import SweepScores
from contrastive_text.evaluation import CachedEncoder, sts_scores
from contrastive_text.inference import SentenceEncoder
from contrastive_text.runs.sweeps import Cell, SweepFolder, SweepRun

Answer = Callable[[Sequence[str]], str]


SECOND = """
keep_heads: true
model:
  encoder: TransformerEncoder
  objectives: {contrastive: {class_path: Contrastive, init_args: {head: TanhHead}}}
  optimizer: {class_path: AdamW, init_args: {lr: 0.02}}
"""


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.fixture
def words(tiny_words: list[str], files: dict[str, str], here: Path) -> list[str]:
    """A sweep of chains of two stages, a step each; the second goes on with the head of the first."""
    sts_files.write_tables(here / "data")
    (here / "data" / "sts13.test.tsv").unlink()
    (here / "second.yaml").write_text(SECOND)
    every = [word.replace("--", "--all.", 1) if word.startswith("--") else word for word in tiny_words]
    chosen = ["--stage2.data.validation", files["pairs"], "--select", "val/spearman"]
    chain = ["--recipe", "simcse", *every, "--all.trainer.max_steps", "1", "--then", "second.yaml", *chosen]
    reported = ["--report", "sts:mean", "--report", "diagnose:uniformity", "--report_data", "data"]
    return ["sweep", *chain, *reported, "--vary", "stage2.model.pooler=MeanPooler", "--seeds", "1"]


@pytest.mark.slow
def test_a_chain_is_trained_stage_by_stage_measured_and_taken_up_again_after_a_kill_anywhere(
    words: list[str], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits: list[str] = []
    kill_after = ""
    fit = sweep_job.run

    def counted(given: Sequence[str]) -> int:
        stage = next(Path(word).parent.name for word in given if word.startswith("--export.dirpath="))
        fits.append(stage)
        status = fit(given)
        if stage == kill_after:
            raise Killed
        return status

    monkeypatch.setattr(sweep_job, "run", counted)
    monkeypatch.setattr(sweep, "draw", lambda *_: None)
    assert run([*words, "--keep_weights", "--output", "whole"]) == 0
    assert fits == ["stage-1", "stage-2"]
    whole = json.loads((here / "whole" / "table.json").read_text())["cells"][0]
    place = here / "whole" / "cells"
    (model,) = place.glob("*/seed-1/stage-2/model")
    scores = sts_scores(CachedEncoder(SentenceEncoder.from_pretrained(model)), here / "data")
    there = [score.score for score in scores if not score.missing]
    assert whole["reports"]["sts:mean"]["mean"] == pytest.approx(sum(there) / len(there), abs=1e-12)
    (said,) = place.glob("*/seed-1/stage-2/fit.log")
    assert "loaded: encoder, objective contrastive" in said.read_text()

    # Killed after the weights of the second stage and before its record, then before the end of the report.
    fits.clear()
    killed, kill_after = [*words, "--output", "killed"], "stage-2"
    with pytest.raises(Killed):
        run(killed)
    assert [*here.glob("killed/cells/*/seed-1/stage-1/checkpoints/*.ckpt")]
    kill_after, measure = "", SweepScores.measure

    def stopped(*arguments: object) -> dict[str, float]:
        raise Killed(arguments)

    monkeypatch.setattr(SweepScores, "measure", stopped)
    with pytest.raises(Killed):
        run(killed)
    assert not [*here.glob("killed/cells/*/seed-1/stage-1/checkpoints/*.ckpt")]
    monkeypatch.setattr(SweepScores, "measure", measure)
    assert run(killed) == 0
    assert fits == ["stage-1", "stage-2", "stage-2"]
    assert not [*(here / "killed").rglob("*.ckpt"), *(here / "killed").rglob("*.safetensors")]
    assert (here / "killed" / "table.md").read_bytes() == (here / "whole" / "table.md").read_bytes()

    # Another report is measured on weights that stayed.
    fits.clear()
    assert run([*words, "--report", "diagnose:alignment", "--output", "whole"]) == 0
    assert (
        "# diagnose:alignment: best of a run by val/spearman, seed 1" in (here / "whole" / "table.md").read_text()
    )
    assert fits == []


def test_a_new_report_of_runs_whose_weights_are_gone_names_them(tmp_path: Path) -> None:
    folder, cell = SweepFolder(tmp_path), Cell(("a",))
    scores = cast("SweepScores", SimpleNamespace(parts={"sts:STS12": ("sts", "STS12"), "sts:B": ("sts", "B")}))
    job = sweep_job.Job([], folder, keep_weights=False, select=None, scores=scores, configs={})
    for seed, known in ((1, {"sts:STS12": 1.0}), (2, {"sts:STS12": 1.0, "sts:B": 2.0})):
        with folder.held(cell, seed) as place:
            assert place is not None
            folder.keep(place, SweepRun(cell.labels, seed, scores=known))
    assert [job.finished(cell, seed) for seed in (1, 2)] == [False, True]
    sweep_job.check_weights(job, [cell], [2, 3])
    with pytest.raises(
        ValueError,
        match=r"with sts:B or .* got 1 whose weights are gone; delete them .* anew: \S*seed-1; or leave",
    ):
        sweep_job.check_weights(job, [cell], [1, 2, 3])
    folder.stages(cell, 1)[0].model.mkdir(parents=True)
    sweep_job.check_weights(job, [cell], [1, 2, 3])


@pytest.mark.parametrize(
    ("more", "said"),
    rest_slow([
        ("--report sts:mean", "--report sts:mean: expected --select beside it, got none: a score of test files"),
        ("--select sts:mean", "--select: expected a figure of the validation such as val/spearman, for test"),
        ("--select val/spearman --report sts:mean", "got none; give --report_data"),
        ("--report nonsense", "--report: expected val/FIGURE, TASK or mean of a suite (sts, sts-pearson, "),
        ("--take last --report diagnose:uniformity", "expected --take best, got last"),
        ("--report_pooler CLSPooler", "--report_pooler: expected a report that is measured with it"),
        ("--report diagnose:orphans --report_pooler CLSPoler", "CLSPoler"),
        ("--report_data data", "--report_data: expected a report that reads it"),
        ("--select val/spearman --report sts:STS13 --report_data data", "sts:STS13: expected its data in"),
        ("--select val/spearman --report sts:STS3 --report_data data", "expected one of STS12, STS13"),
        ("--select val/spearman --report transfer:mean --report_data data", "--report_data: expected the data"),
        ("--report diagnose:rank", "--report diagnose:rank: expected one of mean_cosine, uniformity"),
        ("--select val/spearman --checkpoint.monitor val/loss", "give val/spearman with --select alone"),
        ("--stage2.data.train a.txt", "--stage2.data.train: expected a stage up to 1, got one more"),
        ("--then simsce", "recipe: expected a recipe"),
        ("--then simcse --stage2.init_from a", "--stage2.init_from: expected none, for a sweep sets it"),
        ("--then simcse --vary then=none,simcse", "--vary then: expected it alone, got --then beside it"),
        ("--then simcse", "data.validation: expected a file to score the runs on, got none for MaxPooler"),
        ("--then simcse --all.model.head null --stage2.data.validation pairs.tsv", "of the same architecture in"),
    ], quick=4),
)  # fmt: skip
def test_what_is_wrong_with_reports_and_stages_is_said_before_the_first_run(
    tiny_words: list[str], files: dict[str, str], here: Path, answer: Answer, more: str, said: str
) -> None:
    (here / "data").mkdir()
    (here / "data" / "stsb.test.tsv").write_text("sentence1\tsentence2\tscore\na b\tb\t1\nc\td\t2\n")
    other = tiny.save_bert(here / "other", num_hidden_layers=1) if "architecture" in said else files["bert"]
    words = ["sweep", "--recipe", "simcse", *tiny_words, "--data.validation", files["pairs"]]
    words += ["--vary", "model.pooler=MaxPooler", *more.replace("pairs.tsv", files["pairs"]).split()]
    words += ["--stage2.model.encoder.model_name_or_path", other] if "--then simcse" in more else []
    assert said in answer(words)
    assert not (here / "runs").exists()
