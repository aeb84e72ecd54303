"""Two views of a batch that see the same neighbourhoods: the divergence of the paper, not what its code does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from contrastive_text.core.batch import Encoded
from contrastive_text.core.types import Slot
from contrastive_text.losses import by_rows, cosine_similarity_matrix
from contrastive_text.objectives import Consistency

PAIR = (Slot("anchor", 0), Slot("positive", 0))
# The sheet's tolerance in float64; its values are exact to the last digit.
EXACT = 1e-12


@pytest.fixture
def rows(methods: dict[str, Any]) -> Encoded:
    vectors = [*methods["inputs"]["A"], *methods["inputs"]["P"]]
    return Encoded(torch.tensor(vectors, dtype=torch.float64), PAIR, text_ids=torch.arange(4).repeat(2))


def value(rows: Encoded) -> float:
    terms = Consistency(0.05)(rows)
    assert terms.count == 4
    return float(terms.total.detach()) / terms.count


def test_rankcse_js_T0_05(methods: dict[str, Any], rows: Encoded) -> None:
    assert value(rows) == pytest.approx(methods["rankcse_js_T0.05"], abs=EXACT)


def test_rankcse_community_consistency_is_minus_entropy_T0_05(methods: dict[str, Any], rows: Encoded) -> None:
    cosines = cosine_similarity_matrix(rows.role("anchor")[:, 0], rows.role("positive")[:, 0])
    seen = [(each / 0.05).softmax(dim=1) for each in (cosines, cosines.T)]
    entropy = torch.stack([-(each * each.log()).sum(dim=1) for each in seen]).mean()
    community = methods["rankcse_community_consistency_is_minus_entropy_T0.05"]
    # The constant 1e-7 that stands there for the logarithm of the mean.
    assert float(-entropy) == pytest.approx(community, abs=2e-7)
    assert value(rows) - community > 0.6


def test_views_that_agree_have_no_loss_and_community_code_would_flatten_them(rows: Encoded) -> None:
    anchors = rows.embeddings[:4].clone().requires_grad_()
    total = Consistency(0.05)(replace(rows, embeddings=torch.cat([anchors, anchors]))).total
    total.backward()
    assert float(total.detach()) == pytest.approx(0.0, abs=1e-14)
    assert anchors.grad is not None
    # Zero in theory: probabilities over 0.05, and some units of float64's last place.
    assert float(anchors.grad.abs().max()) < 1e-13


def test_the_gradient_agrees_with_finite_differences_also_of_some_rows_at_a_time(
    rows: Encoded, monkeypatch: pytest.MonkeyPatch
) -> None:
    def total(vectors: Tensor) -> Tensor:
        return Consistency(0.2)(replace(rows, embeddings=vectors)).total

    found = []
    for bound in (2**22, 1):
        monkeypatch.setattr(by_rows, "STREAMED_ABOVE", bound)
        monkeypatch.setattr(by_rows, "_ENTRIES", 12)
        vectors = rows.embeddings.clone().requires_grad_()
        loss = total(vectors)
        loss.backward()
        found.append((loss.detach(), vectors.grad))
    torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=1e-12)
    monkeypatch.undo()
    assert torch.autograd.gradcheck(total, rows.embeddings.clone().requires_grad_())
