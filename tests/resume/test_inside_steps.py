"""A validation inside a step of several batches: resumed from there, nothing of its gradient is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from resume.runs import KeepValidated, check_equal, run
from torch import Tensor

from contrastive_text.data import BatchRoundRobin, EpochRoundRobin, Fusion, Mixture, Proportional, TextTask
from contrastive_text.training.callbacks import BestCheckpoint

FUSION = Fusion([["sentiment", "paraphrase", "similarity"], ["contrastive"]])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The dirpath has changed")  # each run has a folder of its own
@pytest.mark.filterwarnings("ignore:Be aware that when using")  # where a callback is left out
@pytest.mark.parametrize(
    ("mixture", "workers", "accumulate", "interval"),
    [
        (BatchRoundRobin(), 0, 2, 3),
        (EpochRoundRobin(), 2, 3, 2),
        (FUSION, 2, 4, 5),
        (Proportional(2.0), 2, 3, 4),
    ],
    ids=["batch round robin", "epoch round robin", "fusion", "proportional"],
)
def test_a_validation_inside_a_step_loses_none_of_its_gradient(
    mixture: Mixture,
    workers: int,
    accumulate: int,
    interval: int,
    bert: str,
    tasks: dict[str, TextTask],
    tmp_path: Path,
) -> None:
    """Resumed from validations inside a step and at its end, a run has the last weights and the best score."""
    options: dict[str, Any] = {
        "mixture": mixture,
        "workers": workers,
        "data": {"validation": tiny.write_pairs(tmp_path / "pairs.tsv")},
        "val_check_interval": interval,
        "check_val_every_n_epoch": None,
    }

    def fit(name: str, resume: str | None = None) -> tuple[dict[str, Tensor], BestCheckpoint, KeepValidated]:
        folder = tmp_path / name
        best, validated = BestCheckpoint(str(folder / "best")), KeepValidated(folder / "validated")
        callbacks = (best, validated)
        weights = run(
            folder, bert, tasks, 7, resume=resume, callbacks=callbacks, accumulate=accumulate, **options
        )
        return weights, best, validated

    whole, best, validated = fit("whole")
    assert any(validated.inside), "no validation came inside a step"
    steps = sorted(enumerate(validated.inside, start=1), key=lambda step: not step[1])  # first those inside
    for number, inside in [steps[0], steps[-1]]:
        path = tmp_path / "whole" / "validated" / f"{number}.ckpt"
        assert ("accumulated" in torch.load(path, weights_only=True)) == inside
        again, chosen, _ = fit(f"again {number}", resume=str(path))
        check_equal(whole, again)
        assert chosen.best_model_score == best.best_model_score
        assert Path(chosen.best_model_path).name == Path(best.best_model_path).name
    begun = str(tmp_path / "whole" / "validated" / f"{steps[0][0]}.ckpt")
    expected = (
        rf"accumulate_grad_batches: expected {accumulate}, got {accumulate + 1}; resume with {accumulate}\."
    )
    with pytest.raises(ValueError, match=expected):
        run(tmp_path / "other", bert, tasks, 7, resume=begun, accumulate=accumulate + 1, **options)
