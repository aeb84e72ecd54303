"""A validation inside a step of several batches: resumed from there, nothing of its gradient is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from resume.runs import MIXTURES, KeepValidated, check_equal, run
from torch import Tensor

from contrastive_text.data import BatchRoundRobin, TextTask
from contrastive_text.training.callbacks import BestCheckpoint

pytestmark = pytest.mark.filterwarnings("ignore:The dirpath has changed")  # each run has a folder of its own


def check_windows(
    folder: Path,
    bert: str,
    tasks: dict[str, TextTask],
    mixture: str,
    workers: int,
    accumulate: int,
    interval: int,
    **options: Any,
) -> None:
    """Resumes from validations inside a step and at its end, and expects the last weights and the best score."""
    pairs = tiny.write_pairs(folder / "pairs.tsv")
    scored: dict[str, Any] = {"val_check_interval": interval, "check_val_every_n_epoch": None, **options}

    def fit(name: str, resume: str | None = None) -> tuple[dict[str, Tensor], BestCheckpoint, KeepValidated]:
        best, validated = BestCheckpoint(str(folder / name / "best")), KeepValidated(folder / name / "validated")
        weights = run(
            folder / name,
            bert,
            tasks,
            steps=7,
            mixture=MIXTURES[mixture],
            workers=workers,
            accumulate=accumulate,
            resume=resume,
            callbacks=(best, validated),
            data={"validation": pairs},
            **scored,
        )
        return weights, best, validated

    whole, best, validated = fit("whole")
    assert any(validated.inside), "no validation came inside a step"
    steps = sorted(enumerate(validated.inside, start=1), key=lambda step: not step[1])  # first those inside
    for number, inside in [*steps[:2], steps[-1]]:
        path = folder / "whole" / "validated" / f"{number}.ckpt"
        assert ("accumulated" in torch.load(path, weights_only=True)) == inside
        again, chosen, _ = fit(f"again {number}", resume=str(path))
        check_equal(whole, again)
        assert chosen.best_model_score == best.best_model_score
        assert Path(chosen.best_model_path).name == Path(best.best_model_path).name


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Be aware that when using")  # where a callback is left out
def test_a_validation_inside_a_step_loses_none_of_its_gradient(
    bert: str, tasks: dict[str, TextTask], tmp_path: Path
) -> None:
    check_windows(tmp_path, bert, tasks, "batch round robin", workers=0, accumulate=2, interval=3)
    resume = str(tmp_path / "whole" / "validated" / "1.ckpt")
    with pytest.raises(ValueError, match=r"accumulate_grad_batches: expected 2, .* got 3; resume with 2"):
        run(tmp_path / "other", bert, tasks, 7, mixture=BatchRoundRobin(), accumulate=3, resume=resume)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("mixture", ["batch round robin", "epoch round robin", "fusion"])
@pytest.mark.parametrize(("accumulate", "interval"), [(2, 3), (3, 2), (4, 5)])
def test_every_validation_inside_a_step_is_resumed_exactly(
    mixture: str,
    workers: int,
    accumulate: int,
    interval: int,
    bert: str,
    tasks: dict[str, TextTask],
    tmp_path: Path,
) -> None:
    check_windows(tmp_path, bert, tasks, mixture, workers=workers, accumulate=accumulate, interval=interval)
