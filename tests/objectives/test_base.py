"""Terms of an objective, and its head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import parts
import pytest
import torch
from torch import Tensor

from contrastive_text.core.batch import Encoded
from contrastive_text.core.types import Slot
from contrastive_text.heads import Head, TanhHead
from contrastive_text.losses import AlignmentUniformity, ListNet, Reduction
from contrastive_text.objectives import (
    Consistency,
    Contrastive,
    CosineScorer,
    Objective,
    PairClassification,
    PairRegression,
    RankDistillation,
    Terms,
    WholeBatch,
    terms,
)


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


SLOTS = (Slot("anchor", 0), Slot("positive", 0), Slot("positive", 1))
# Objectives with a train-only head.
HEADED: dict[str, Callable[[Head | None], Objective]] = {
    "Contrastive": lambda head: Contrastive(head=head),
    "WholeBatch": lambda head: WholeBatch(AlignmentUniformity(), head=head),
    "Consistency": lambda head: Consistency(head=head),
    "RankDistillation": lambda head: RankDistillation(ListNet(), ["teacher"], head=head),
    "PairRegression": lambda head: PairRegression(head=head),
    "PairClassification": lambda head: PairClassification(2, CosineScorer(), head=head),
}


@pytest.mark.parametrize("name", HEADED)
def test_the_head_comes_before_the_average_of_positives_and_the_comparison(name: str) -> None:
    noise = torch.Generator().manual_seed(0)
    vectors, guide = torch.randn(2, 9, 4, generator=noise, dtype=torch.float64)
    rows = Encoded(vectors, SLOTS, torch.arange(9), target=torch.tensor([1.0, 0, 1]), guides={"teacher": guide})
    torch.manual_seed(0)
    head = TanhHead()
    objective, headless = HEADED[name](head), HEADED[name](None)
    objective.build(4)
    objective.double()
    projected = replace(rows, embeddings=head(rows.embeddings))
    # In float64, of which a product of all rows at once is rounded otherwise than of a role's.
    torch.testing.assert_close(objective(rows).total, headless(projected).total, rtol=1e-12, atol=1e-12)
    assert not torch.isclose(objective(rows).total, headless(rows).total)
    words = [f"{name}.head", "train_only: true", "TanhHead with false"]
    parts.check_refused(lambda: HEADED[name](TanhHead(train_only=False)), ValueError, words)
