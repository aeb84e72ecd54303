"""Vectors held against a guide's, of its width or another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import reference
import torch

from contrastive_text.core.batch import Encoded
from contrastive_text.core.types import Slot
from contrastive_text.objectives import Matryoshka, VectorDistillation

SLOTS = (Slot("anchor", 0), Slot("positive", 0), Slot("negative", 0), Slot("original", 0))
ROUNDING = 1e-12  # float64, sums of some ten terms


def encoded(features: int) -> Encoded:
    noise = torch.Generator().manual_seed(features)
    student, guide = (torch.randn(12, width, generator=noise, dtype=torch.float64) for width in (features, 5))
    return Encoded(student, SLOTS, text_ids=torch.arange(12), guides={"teacher": guide})


@pytest.mark.parametrize("features", [5, 3])
@pytest.mark.parametrize("distance", ["cosine", "squared"])
def test_a_distance_equals_the_loop_over_all_texts_that_are_compared(features: int, distance: Any) -> None:
    rows, objective = encoded(features), VectorDistillation("teacher", distance, guide_features=5)
    objective.build(features)
    objective.double()
    assert (objective.map is None) == (features == 5)
    found = rows.embeddings if objective.map is None else objective.map(rows.embeddings)
    expected, cosines = 0.0, 0.0
    for u, t in zip(found[:9].tolist(), rows.guides["teacher"][:9].tolist(), strict=True):
        squares = [(a - b) ** 2 for a, b in zip(u, t, strict=True)]
        expected += sum(squares) / 5 if distance == "squared" else 1 - reference.cosine(u, t)
        cosines += reference.cosine(u, t)
    terms = objective(rows)
    assert terms.count == 9  # the original is no text of theirs
    assert float(terms.total.detach()) == pytest.approx(expected, abs=ROUNDING)
    assert float(terms.logs["guide_cosine"]) == pytest.approx(cosines / 9, abs=ROUNDING)
    assert torch.autograd.gradcheck(
        lambda vectors: objective(replace(rows, embeddings=vectors)).total, rows.embeddings.requires_grad_()
    )


def test_roles_that_a_batch_lacks_are_left_out() -> None:
    rows = encoded(5)
    anchors = Encoded(
        rows.embeddings[:3], SLOTS[:1], torch.arange(3), guides={"teacher": rows.guides["teacher"][:3]}
    )
    assert VectorDistillation("teacher")(anchors).count == 3


def test_the_map_is_trained() -> None:
    objective = VectorDistillation("teacher", guide_features=5)
    objective.build(3)
    objective(replace(encoded(3), embeddings=torch.randn(12, 3))).total.backward()
    assert objective.map is not None
    assert objective.map.weight.grad is not None
    assert bool(objective.map.weight.grad.any())


def test_another_width_than_the_guides_is_refused_with_what_to_set() -> None:
    objective = VectorDistillation("teacher")
    objective.build(3)
    said = r"guide_features: expected the width of the vectors of teacher, 5, got 3; set guide_features: 5"
    with pytest.raises(ValueError, match=said):
        objective(encoded(3))
    with pytest.raises(ValueError, match=said):
        Matryoshka(objective, dims=[3]).check_guide_widths({"teacher": 5})
    objective.check_guide_widths({"teacher": 3})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"distance": "dot"}, r"VectorDistillation\.distance: expected cosine or squared, got 'dot'"),
        ({"guide_features": 0}, r"VectorDistillation\.guide_features: expected 1 or more, got 0"),
    ],
)
def test_senseless_options_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        VectorDistillation("teacher", **options)
