"""In which order a guide puts candidates: as the objective that leaves some out sees them."""

from __future__ import annotations

import torch

from contrastive_text.core.batch import Encoded
from contrastive_text.core.types import Slot
from contrastive_text.evaluation.view_edits import guide_order
from contrastive_text.losses import InfoNCE
from contrastive_text.objectives import Contrastive, Duplicates, FalseNegatives, Siblings

ROWS = 12
SLOTS = (Slot("anchor", 0), Slot("positive", 0), Slot("negative", 0), Slot("negative", 1))


def test_candidates_are_in_the_guides_order_and_left_out_as_training_leaves_them_out() -> None:
    vectors = torch.randn(len(SLOTS) * ROWS, 5, generator=torch.Generator().manual_seed(0))
    ids = torch.arange(len(SLOTS) * ROWS)
    ids[ROWS + 3] = ids[0]  # the positive of row 3 is the anchor of row 0
    removing = FalseNegatives("teacher", absolute_margin=0.1)
    orders = guide_order(Encoded(vectors, SLOTS, ids), {"gist": removing})
    assert orders is not None
    cosines = torch.nn.functional.normalize(vectors, dim=1)
    for row, order in enumerate(orders):
        assert len(order) == 3 * ROWS - (row == 0)
        assert [each.cosine for each in order] == sorted((each.cosine for each in order), reverse=True)
        (own,) = (each for each in order if (each.role, each.row) == ("positive", row))
        assert not own.masked_by
        for each in order:
            slot = {"positive": 1, "negative 0": 2, "negative 1": 3}[each.role]
            assert abs(each.cosine - float(cosines[row] @ cosines[slot * ROWS + each.row])) < 1e-6
    # One objective logs how many positives of others it takes from a row.
    encoded = Encoded(vectors, SLOTS, ids, guides={"teacher": vectors})
    logged = Contrastive(InfoNCE(), columns=[Duplicates(), Siblings(), removing])(encoded).logs["removed"]
    taken = sum(each.role == "positive" and each.masked_by == ("gist",) for order in orders for each in order)
    assert 0 < taken == round(ROWS * float(logged))
    assert not any(
        each.masked_by for row, order in enumerate(orders) for each in order if each[1:3] == ("positive", row)
    )
    assert guide_order(Encoded(vectors[:3], SLOTS[:1], ids[:3]), {}) is None
