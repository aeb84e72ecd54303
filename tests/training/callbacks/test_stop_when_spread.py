"""The rule that needs no labels: it ends a run when uniformity falls no further, and says why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny
import torch

from contrastive_text.cli import run
from contrastive_text.training import StopWhenSpread


def decisions(rule: StopWhenSpread, figures: list[float]) -> list[bool]:
    return [rule.read(torch.tensor(figure)) for figure in figures]


def test_a_window_that_wins_too_little_ends_the_run() -> None:
    nan = float("nan")
    rule = StopWhenSpread(every=2, min_fall=0.5)
    assert decisions(rule, [-1.0, -1.0, -1.5, -1.5]) == [False] * 4  # as much as asked for
    assert decisions(rule, [nan, nan, nan, -2.5, -2.0, -2.9]) == [False] * 5 + [True]  # NaN is no part of a mean
    assert decisions(StopWhenSpread(every=1), [-1.0, -0.5]) == [False, True]  # it rises


def test_a_resumed_run_goes_on_in_its_window() -> None:
    first, second = StopWhenSpread(every=2, min_fall=0.5), StopWhenSpread(every=2, min_fall=0.5)
    assert not any(decisions(first, [-1.0, -1.0, -1.1]))
    second.load_state_dict(first.state_dict())
    assert second.read(torch.tensor(-1.1))


@pytest.mark.parametrize(("every", "min_fall"), [(0, 0.1), (5, -0.1), (5, float("nan"))])
def test_windows_and_falls_that_make_no_sense_are_refused(every: int, min_fall: float) -> None:
    with pytest.raises(ValueError, match=r"StopWhenSpread\.(every|min_fall): expected"):
        StopWhenSpread(every, min_fall)


@pytest.mark.slow
def test_a_run_ends_by_the_rule_from_the_shell_and_knows_a_wrong_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [
        "fit", "--recipe", "simcse", "--model.encoder.model_name_or_path", tiny.save_bert(tmp_path / "bert"),
        "--data.train", tiny.write_texts(tmp_path / "texts.txt"), "--data.batch_size", "4",
        "--data.num_workers", "0", "--trainer.accelerator", "cpu", "--trainer.max_epochs", "3",
        "--trainer.accumulate_grad_batches", "2", "--trainer.enable_progress_bar", "false",
        "--trainer.callbacks",
    ]  # fmt: skip
    rule: dict[str, object] = {"every": 3, "min_fall": 9}
    part = {"class_path": "contrastive_text.training.StopWhenSpread", "init_args": rule}
    assert run([*words, json.dumps([part])]) == 0
    assert "stops at step 6: uniformity is -" in capsys.readouterr().out
    (checkpoint,) = tmp_path.rglob("*.ckpt")
    assert torch.load(checkpoint, weights_only=True)["global_step"] == 6  # steps, not batches
    rule["objective"] = "mlm"
    assert run([*words, json.dumps([part])]) == 2
    assert "expected the name of a contrastive objective (contrastive), got mlm" in capsys.readouterr().err
