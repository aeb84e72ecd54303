"""Verdict on a run: the answer follows the interval, and the rows follow each part of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from contrastive_text import Run
from contrastive_text.core.storage.checkpoints import BestCheckpointState, RowScores, read_checkpoint
from contrastive_text.metrics import PairedBootstrap, paired_bootstrap_spearman
from contrastive_text.metrics.verdict import compare_rows, verdicts

GAIN = torch.linspace(0.5, 1.5, 40, dtype=torch.float64)
NOISE = GAIN * torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(20)


def rows(values: torch.Tensor) -> dict[str, RowScores]:
    return {"held": RowScores(values)}


@pytest.mark.parametrize(
    ("name", "change", "answer"),
    [
        ("val/ndcg@10", GAIN, "Training helped"),
        ("val/ndcg@10", -GAIN, "Training made it worse"),
        ("val/ndcg@10", NOISE, "No difference that 40 queries can show"),
        ("val/reranking/loss", -GAIN, "Training helped"),
        ("val/reranking/mrr@10", -GAIN, "Training made it worse"),
        ("val/reranking/mrr@10", NOISE, "No difference that 40 rows can show"),
    ],
)
def test_the_interval_gives_the_answer(name: str, change: torch.Tensor, answer: str) -> None:
    start = torch.arange(40).double()
    verdict = compare_rows(name, rows(start), rows(start + change))
    assert verdict.answer == answer
    assert verdict.is_worse == (answer == "Training made it worse")
    assert str(verdict).startswith(f"{answer}: {name} 19.50")
    assert "95 % interval" in str(verdict)


def test_pairs_have_the_interval_of_the_bootstrap_and_several_files_their_mean() -> None:
    draws = torch.Generator().manual_seed(0)
    gold, first, second = torch.randn(3, 30, generator=draws, dtype=torch.float64)
    sides = [
        {name: RowScores(side + shift, gold) for name, shift in (("a", 0), ("b", 9))} for side in (first, second)
    ]
    verdict = compare_rows("val/spearman", *sides)
    generator = torch.Generator().manual_seed(42)
    each = [paired_bootstrap_spearman(first, second, gold, generator=generator) for _ in range(2)]
    low, high = PairedBootstrap.mean(each).interval()
    assert verdict.difference is not None
    assert verdict.difference.interval() == pytest.approx((100 * low, 100 * high))
    assert verdict.after - verdict.before == pytest.approx(verdict.difference.difference)
    assert verdict.rows == "60 pairs"


def test_a_score_without_rows_has_no_interval_and_says_why() -> None:
    few = compare_rows("val/ndcg@10", rows(GAIN[:5]), rows(GAIN[:5] + 1))
    assert "A better score" in str(few) and "without an interval: 5 queries are too few" in str(few)
    start = {"val/overall": 50.0}
    (verdict,) = verdicts(BestCheckpointState("val/overall", 40.0, start=start))
    assert str(verdict).endswith("without an interval: val/overall is the mean over tasks.")
    assert verdict.is_worse and verdict.answer == "Training made it worse"
    assert verdicts(BestCheckpointState("val/overall", 40.0)) == []


def test_ranking_scores_of_rows_come_before_the_loss_that_chose_the_weights() -> None:
    names = ("val/reranking/loss", "val/reranking/ndcg@10")
    state = BestCheckpointState(
        names[0], 1.0, start=dict.fromkeys(names, 1.0), mode="min",
        rows=dict.fromkeys(names, rows(GAIN)), start_rows=dict.fromkeys(names, rows(GAIN + 1)),
    )  # fmt: skip
    first, second = verdicts(state)
    assert (first.name, first.answer) == (names[1], "Training made it worse")
    assert (second.name, second.answer) == (names[0], "Training helped")
    other = BestCheckpointState(names[0], 1.0, rows=state.rows, start_rows={names[1]: rows(GAIN[1:])})
    assert verdicts(other) == []  # other rows than at the start


@pytest.mark.parametrize("value", ["text", [1.0], torch.ones(2, 2), torch.ones(3), torch.tensor([float("nan")])])
def test_rows_of_a_foreign_checkpoint_are_checked(value: object, tmp_path: Path) -> None:
    state = {"rows": {"val/ndcg@10": {"held": {"values": value, "target": None}}}}
    path = tmp_path / "a.ckpt"
    content = {
        "state_dict": {},
        "hyper_parameters": {},
        "global_step": 1,
        "epoch": 0,
        "callbacks": {"BestCheckpoint": state},
    }
    torch.save(content, path)
    with pytest.raises(ValueError, match=r"values: expected a tensor \(n,\) of finite numbers, float64, got"):
        read_checkpoint(path)


@pytest.mark.slow
def test_a_resumed_run_has_the_verdict_of_the_whole_run(bert: str, tmp_path: Path) -> None:
    """Also if the best weights and the initial weights were validated before the stop."""
    pairs = tiny.write_pairs(tmp_path / "pairs.tsv")
    options = {
        "encoder": bert, "train": tiny.write_texts(tmp_path / "texts.txt"), "validation": str(pairs),
        "batch_size": 8, "num_workers": 0, "accelerator": "cpu", "enable_progress_bar": False, "max_epochs": 1,
        "val_check_interval": 1, "config": {"model.schedule": "ConstantSchedule"},
    }  # fmt: skip

    def of(folder: Path, **rest: Any) -> tuple[Run, BestCheckpointState]:
        run = Run.from_recipe("simcse", default_root_dir=str(folder), **{**options, **rest})
        run.fit()
        return run, run.trainer.checkpoint_callback.best

    _, whole = of(tmp_path / "whole", max_steps=4)
    first, _ = of(tmp_path / "parts", max_steps=2)
    path = tmp_path / "at_2.ckpt"
    first.trainer.save_checkpoint(path)
    _, resumed = of(tmp_path / "parts", max_steps=4, ckpt_path=str(path))
    (expected,), (found,) = verdicts(whole), verdicts(resumed)
    assert str(found) == str(expected) and "95 % interval" in str(found)
