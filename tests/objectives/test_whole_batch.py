"""The objective of losses over the whole batch: what it reads, logs and says; over ranks: test_one_gradient."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from contrastive_text import metrics
from contrastive_text.core.batch import Encoded
from contrastive_text.core.types import Slot
from contrastive_text.heads import ProjectorHead
from contrastive_text.losses import AlignmentUniformity, BarlowTwins, BatchLoss, SIGReg, VICReg
from contrastive_text.objectives import Contrastive, Matryoshka, WholeBatch

ROUNDING = 1e-12
"""Float64, a few rows."""

TRIPLE = (Slot("anchor", 0), Slot("positive", 0), Slot("negative", 0))
VIEWS = (Slot("anchor", 0), Slot("anchor", 1), Slot("positive", 0), Slot("positive", 1))


def encoded(slots: tuple[Slot, ...], rows: int = 6, features: int = 4) -> Encoded:
    noise = torch.Generator().manual_seed(0)
    vectors = torch.randn(rows * len(slots), features, generator=noise, dtype=torch.float64)
    return Encoded(vectors, slots, torch.arange(len(vectors)))


@pytest.mark.parametrize("loss", [AlignmentUniformity(), BarlowTwins(), SIGReg(directions=3)])
def test_it_is_the_loss_of_all_pairs_and_hard_negatives_take_no_part(loss: BatchLoss) -> None:
    rows = encoded(TRIPLE)
    anchor, positive = rows.role("anchor")[:, 0], rows.role("positive")[:, 0]
    ids = torch.stack([rows.role_ids("anchor")[:, 0], rows.role_ids("positive")[:, 0]], dim=1)
    objective = WholeBatch(loss)
    terms = objective(rows)
    assert torch.equal(terms.total, loss(anchor, positive, ids))
    assert terms.count == 1
    assert objective.optional_roles == ()  # so they aren't encoded
    without = replace(rows, embeddings=rows.embeddings[:12], slots=TRIPLE[:2], text_ids=rows.text_ids[:12])
    assert torch.equal(objective(without).total, terms.total)


def test_hard_negatives_that_another_objective_reads_are_not_normalized_with_the_pairs() -> None:
    rows, objective = encoded(TRIPLE), WholeBatch(BarlowTwins(), head=ProjectorHead([8, 4]))
    objective.build(4)
    objective.double()
    before = objective(rows).total
    moved = rows.embeddings.clone()
    moved[12:] += 5
    assert torch.equal(objective(replace(rows, embeddings=moved)).total, before)


def test_several_positives_are_one_by_their_mean_and_two_views_of_two_roles_are_added() -> None:
    loss, rows = VICReg(), encoded(VIEWS)
    anchor, positive = rows.role("anchor"), rows.role("positive")
    texts = WholeBatch(loss)(replace(rows, slots=(VIEWS[0], *(Slot("positive", i) for i in range(3)))))
    others = torch.stack([anchor[:, 1], positive[:, 0], positive[:, 1]]).mean(dim=0)
    torch.testing.assert_close(texts.total, loss(anchor[:, 0], others), rtol=0, atol=ROUNDING)
    views = WholeBatch(loss, between="views")(rows)
    expected = loss(*anchor.unbind(1)) + loss(*positive.unbind(1))
    torch.testing.assert_close(views.total, expected, rtol=0, atol=ROUNDING)


def test_equal_texts_of_a_side_are_known_by_their_ids_before_or_after_views() -> None:
    rows, loss = encoded(TRIPLE[:2]), AlignmentUniformity(alignment_weight=0)
    same = rows.text_ids.clone()
    same[1], same[6 + 4] = same[0], same[6 + 3]
    plain = WholeBatch(loss)(rows).total
    known = WholeBatch(loss)(replace(rows, text_ids=same)).total
    assert abs(known - plain) > 1e-3
    edited = torch.stack([rows.text_ids, same], dim=1)
    assert torch.equal(WholeBatch(loss)(replace(rows, text_ids=edited)).total, known)


def test_it_logs_what_contrastive_logs_and_how_much_features_say_the_same() -> None:
    rows = encoded(TRIPLE[:2])
    logs = WholeBatch(AlignmentUniformity())(rows).logs
    expected = Contrastive()(rows).logs
    assert logs.keys() == expected.keys()
    assert all(torch.equal(logs[name], figure) for name, figure in expected.items())
    logs = WholeBatch(BarlowTwins())(rows).logs
    assert logs.keys() == {*expected, "off_diagonal"}
    assert torch.equal(logs["off_diagonal"], metrics.off_diagonal(rows.embeddings))
    assert not logs["off_diagonal"].requires_grad


def test_it_says_that_there_are_no_negatives_and_what_a_small_batch_leaves_short() -> None:
    plain, narrow = WholeBatch(AlignmentUniformity()), WholeBatch(BarlowTwins(), head=ProjectorHead([8, 64]))
    for each in (plain, narrow):
        each.build(4)
    assert plain.describe_negatives(64, 1, 0) == (
        "none: AlignmentUniformity is one value of the 64 pairs of a step; accumulate_grad_batches doesn't add "
        "pairs"
    )
    assert "; hard negatives are not read;" in plain.describe_negatives(64, 1, 2)
    assert "the correlation matrix of 64 features has a rank of at most 63" in narrow.describe_negatives(64, 1, 0)
    assert "rank" not in narrow.describe_negatives(65, 1, 0)
    assert not plain.has_negatives
    wide = Matryoshka(plain, dims=[4, 2])
    assert not wide.has_negatives
    assert wide.collapse_advice == ("a larger uniformity_weight",)
