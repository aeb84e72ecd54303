"""Dot products in the place of cosines: dense, streamed, of every softmax loss; figures stay cosines."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from contrastive_text.core.batch import Encoded
from contrastive_text.core.types import Slot
from contrastive_text.losses import DCL, InfoNCE, NTXent, SupCon
from contrastive_text.objectives import Contrastive


def drawn(rows: int, length: float = 1.0) -> list[Tensor]:
    noise = torch.Generator().manual_seed(0)
    return list(length * torch.randn(2, rows, 4, generator=noise, dtype=torch.float64))


def test_at_temperature_1_it_is_the_cross_entropy_of_the_product() -> None:
    a, p = drawn(5)
    reached = InfoNCE(temperature=1.0, similarity="dot")(a, p)
    torch.testing.assert_close(reached, F.cross_entropy(a @ p.T, torch.arange(5)))
    # Lengths count, as they don't for cosines.
    assert float(InfoNCE(1.0, similarity="dot")(2 * a, p)) != pytest.approx(float(reached))
    assert float(InfoNCE(1.0)(2 * a, p)) == pytest.approx(float(InfoNCE(1.0)(a, p)))


def test_unit_vectors_give_the_value_of_cosines() -> None:
    a, p = (F.normalize(side, dim=1) for side in drawn(5))
    for make in (InfoNCE, NTXent, SupCon, DCL):
        assert float(make(0.1, similarity="dot")(a, p)) == pytest.approx(float(make(0.1)(a, p)), abs=1e-12)


def test_logged_figures_stay_cosines() -> None:
    vectors = torch.cat(drawn(4)).float()
    encoded = Encoded(vectors, (Slot("anchor", 0), Slot("positive", 0)), text_ids=torch.arange(8))
    figures = [Contrastive(InfoNCE(1.0, similarity=which))(encoded).logs for which in ("cosine", "dot")]  # type: ignore[arg-type]  # both
    assert figures[0] == figures[1]
