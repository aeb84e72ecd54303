"""What an objective returns: a sum and a count, divided in one place."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from contrastive_text.losses import Reduction
from contrastive_text.objectives import Terms, terms


@pytest.mark.parametrize(("reduction", "whole"), [("mean", 4.0), ("sum", 20.0), ("two_sided", 8.0)])
def test_the_mean_over_uneven_ranks_is_the_loss_of_the_whole_batch(
    monkeypatch: pytest.MonkeyPatch, reduction: Reduction, whole: float
) -> None:
    parts = [Terms(torch.tensor(total), count, reduction) for total, count in ((14.0, 3), (6.0, 2), (0.0, 0))]

    def sum_over_ranks(own: Tensor) -> Tensor:
        assert float(own) in {3, 2, 0}
        return torch.tensor([5.0])

    monkeypatch.setattr(terms, "sum_over_ranks", sum_over_ranks)
    monkeypatch.setattr(terms, "world_size", lambda: 3)
    assert torch.stack([part.loss() for part in parts]).mean() == pytest.approx(whole)


def test_a_batch_without_rows_has_the_loss_0_and_not_none() -> None:
    assert float(Terms(torch.tensor(0.0), 0).loss()) == 0.0
