"""Rows that lack a hard negative: nothing depends on what stands in its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import pytest
import torch
from chains import contrast
from torch import Tensor

from contrastive_text.core.batch import Encoded
from contrastive_text.core.types import Slot
from contrastive_text.losses import (
    DCL,
    DCLW,
    DebiasedNTXent,
    InfoNCE,
    KLDivergence,
    NTXent,
    SigLIP,
)
from contrastive_text.losses.comparison import MASKED_ID
from contrastive_text.losses.info_nce import Direction
from contrastive_text.objectives import (
    Contrastive,
    Duplicates,
    FalseNegatives,
    MaskBatch,
    NegativesAsHard,
    Objective,
    PositivesOnly,
    Queue,
    RankDistillation,
    Siblings,
    SignedPairs,
    VectorDistillation,
)

PAIR = (Slot("anchor", 0), Slot("positive", 0))
TWO = (*PAIR, Slot("negative", 0), Slot("negative", 1))
N = 6
LACKING = torch.tensor([False, True, True, False, False, True])

OBJECTIVES: dict[str, Callable[[], Objective]] = {
    "InfoNCE": lambda: Contrastive(InfoNCE(0.2, hard_negative_log_weight=0.7)),
    "all directions": lambda: Contrastive(InfoNCE(0.2, directions=get_args(Direction), in_batch_hardness=2.0)),
    "streamed": lambda: Contrastive(InfoNCE(0.2, streamed=True)),
    "two-sided, duplicates": lambda: Contrastive(InfoNCE(0.2, "two_sided"), columns=[]),
    "NTXent, attract": lambda: Contrastive(NTXent(0.2), columns=[Duplicates(), Siblings("positive")]),
    "DCL": lambda: Contrastive(DCL(0.2)),
    "DCLW": lambda: Contrastive(DCLW(0.2)),
    "debiased": lambda: Contrastive(DebiasedNTXent(0.2)),
    "SigLIP": lambda: Contrastive(SigLIP(0.2, bias=-3.0)),
    "queue": lambda: contrast(InfoNCE(0.2), Queue(30)),
    "queue, duplicates": lambda: Contrastive(InfoNCE(0.2), columns=[Queue(30)]),
    "queue alone": lambda: contrast(InfoNCE(0.2), Queue(30), MaskBatch()),
    "a guide": lambda: contrast(InfoNCE(0.2), FalseNegatives("g")),
    "positives only": lambda: contrast(InfoNCE(0.2), PositivesOnly()),
    "negatives as hard": lambda: contrast(InfoNCE(0.2), NegativesAsHard()),
    "signed pairs": lambda: contrast(NTXent(0.2), SignedPairs()),
    "ranks of the batch": lambda: RankDistillation(KLDivergence(0.5), ["g"]),
    "ranks of the row": lambda: RankDistillation(KLDivergence(0.5), ["g"], among="own"),
    "vectors": lambda: VectorDistillation("g"),
}


def lacking(vectors: Tensor, guide: Tensor, slots: tuple[Slot, ...], kinds: int = 1) -> Encoded:
    """Returns examples of which some lack their last hard negative."""
    ids = torch.arange(len(vectors))
    ids[-N:][LACKING] = MASKED_ID
    ids = ids if kinds == 1 else torch.stack([ids, torch.where(ids == MASKED_ID, ids, ids + 100)], dim=1)
    target = torch.tensor([1.0, 0, 1, 1, 0, 1], dtype=torch.float64)
    return Encoded(vectors, slots, ids, target=target, guides={"g": guide})


def random_rows(rows: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def last(objective: Objective, batches: list[Encoded]) -> Tensor:
    """Returns the loss of the last of some steps."""
    for batch in batches:
        objective.finish_step()
        terms = objective(batch)
    return terms.loss()


@pytest.mark.parametrize("kinds", [1, 2])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_nothing_depends_on_what_stands_for_a_missing_hard_negative(name: str, kinds: int) -> None:
    missing = torch.cat([torch.zeros(3 * N, dtype=torch.bool), LACKING])
    values, gradients = [], []
    for seed in (1, 2):
        steps = []
        for step in (10, 20):
            vectors, guide = (
                torch.where(
                    missing.unsqueeze(1), random_rows(4 * N, seed + of + step), random_rows(4 * N, of + step)
                )
                for of in (3, 5)
            )
            steps.append(lacking(vectors.requires_grad_(), guide, TWO, kinds))
        values.append(last(OBJECTIVES[name](), steps))
        values[-1].backward()
        gradients.append(steps[-1].embeddings.grad)
    assert values[0] != 0
    assert torch.equal(values[0], values[1])
    assert all(gradient is not None and not gradient[missing].any() for gradient in gradients)
    assert torch.equal(*gradients)


@pytest.mark.parametrize("name", [name for name in OBJECTIVES if "queue" not in name])
def test_a_slot_that_all_rows_lack_changes_nothing(name: str) -> None:
    vectors, guide = random_rows(4 * N, 3), random_rows(4 * N, 5)
    one = lacking(vectors[: 3 * N], guide[: 3 * N], TWO[:3])
    both = lacking(vectors, guide, TWO)
    both.text_ids[2 * N : 3 * N] = one.text_ids[2 * N :]
    both.text_ids[3 * N :] = MASKED_ID
    # Sums of more columns, those that are masked, may be added in another order.
    torch.testing.assert_close(
        last(OBJECTIVES[name](), [both]), last(OBJECTIVES[name](), [one]), rtol=1e-12, atol=0
    )
