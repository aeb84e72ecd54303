"""Candidates scored as guides score them, views that see the same neighborhoods, and vectors of a guide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import reference
import torch

from contrastive_text.core.batch import Encoded
from contrastive_text.core.types import Slot
from contrastive_text.losses import KLDivergence, ListMLE, ListNet, MarginMSE, RankLoss
from contrastive_text.losses import base as losses_base
from contrastive_text.objectives import Consistency, Matryoshka, Objective, RankDistillation, VectorDistillation

# The sheet's tolerance in float64; its values are exact to the last digit.
EXACT = 1e-12
# Logits of at most 20 in float64, sums of some ten terms.
ROUNDING = 1e-11
PAIR = (Slot("anchor", 0), Slot("positive", 0))
TRIPLE = (*PAIR, Slot("negative", 0))


def of_sheet(methods: dict[str, Any], roles: str) -> Encoded:
    """The sheet's vectors of some roles; the two views of a text have one id."""
    student, guide = (
        torch.tensor([row for role in roles for row in methods["inputs"][prefix + role]], dtype=torch.float64)
        for prefix in ("", "G")
    )
    ids = torch.arange(4).repeat(len(roles)) + 4 * torch.arange(len(roles)).clamp(min=1).repeat_interleave(4)
    return Encoded(student, TRIPLE[: len(roles)], text_ids=ids, guides={"teacher": guide})


# Key of the sheet -> the loss, the roles of its texts, and whether the two views of a text have one id.
SHEET: dict[str, tuple[RankLoss, str, bool]] = {
    "rankcse_listnet_tau2_0.05_tau3_0.025_without_self": (ListNet(0.05, 0.025), "AP", True),
    "rankcse_listmle_tau0.05_without_self": (ListMLE(0.05), "AP", True),
    "rankcse_listmle_tau0.05_with_self": (ListMLE(0.05), "AP", False),
    "distill_kl_T1": (KLDivergence(1.0, 1.0), "APH", False),
    "margin_mse_cos": (MarginMSE(), "APH", False),
}


@pytest.mark.parametrize("key", SHEET)
def test_a_value_of_the_sheet(key: str, methods: dict[str, Any]) -> None:
    loss, roles, is_one_text = SHEET[key]
    rows = of_sheet(methods, roles)
    if not is_one_text:
        rows = replace(rows, text_ids=torch.arange(len(rows.text_ids)))
    objective = RankDistillation(loss, ["teacher"], among="own" if roles == "APH" else "batch")
    assert float(objective(rows).total) / 4 == pytest.approx(methods[key], abs=EXACT)


# Which candidates, by which guides


def encoded(ids: Sequence[Sequence[int]], seed: int = 0, widths: Sequence[int] = (3, 7)) -> Encoded:
    """Random vectors of anchors, positives and perhaps hard negatives; guides score equal texts alike."""
    noise = torch.Generator().manual_seed(seed)
    flat = torch.tensor([text for role in ids for text in role])
    slots = (*PAIR, *(Slot("negative", i) for i in range(len(ids) - 2)))
    guides = {
        f"guide {width}": torch.randn(100, width, generator=noise, dtype=torch.float64)[flat] for width in widths
    }
    vectors = torch.randn(len(flat), 4, generator=noise, dtype=torch.float64)
    return Encoded(vectors, slots, text_ids=flat, guides=guides)


def slow_value(rows: Encoded, loss: RankLoss, weights: dict[str, float], among: str) -> float:
    """Row by row, from cosines of lists of numbers."""
    n = len(rows.text_ids) // len(rows.slots)
    total = 0.0
    for i in range(n):
        columns = range(n + i, len(rows.text_ids), n) if among == "own" else range(n, len(rows.text_ids))
        seen = [j for j in columns if rows.text_ids[j] != rows.text_ids[i]]
        if not seen:
            continue
        student = [reference.cosine(rows.embeddings[i].tolist(), rows.embeddings[j].tolist()) for j in seen]
        guide = [0.0] * len(seen)
        for name, weight in weights.items():
            vectors = rows.guides[name]
            for place, j in enumerate(seen):
                guide[place] += weight * reference.cosine(vectors[i].tolist(), vectors[j].tolist())
        guide = [score / sum(weights.values()) for score in guide]
        first = seen.index(n + i) if n + i in seen else None
        if isinstance(loss, MarginMSE):
            assert first is not None
            student, guide = ([each[first], *each[:first], *each[first + 1 :]] for each in (student, guide))
        total += float(loss(*(torch.tensor([each], dtype=torch.float64) for each in (student, guide))))
    return total


LOSSES = [ListNet(0.1, 0.05), ListMLE(0.1), KLDivergence(0.2, 0.1), MarginMSE()]


@pytest.mark.parametrize("among", ["batch", "own"])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
def test_candidates_are_all_texts_but_the_rows_own_by_its_id(loss: RankLoss, among: Any) -> None:
    # Of the first row two candidates are the very text, and of the third a hard negative.
    rows = encoded([[0, 1, 2, 0], [10, 0, 12, 13], [20, 20, 2, 23], [0, 31, 32, 31]])
    for weights in ({"guide 3": 1.0}, {"guide 3": 0.33, "guide 7": 0.67}):
        objective = RankDistillation(loss, [*weights], weights=[*weights.values()], among=among)
        expected = slow_value(rows, loss, weights, among)
        assert float(objective(rows).total) == pytest.approx(expected, abs=ROUNDING, rel=ROUNDING)
    even = RankDistillation(loss, ["guide 3", "guide 7"], among=among)
    assert float(even(rows).total) == pytest.approx(
        slow_value(rows, loss, {"guide 3": 1, "guide 7": 1}, among), abs=ROUNDING, rel=ROUNDING
    )


def test_texts_that_views_made_equal_are_no_candidates_either() -> None:
    rows = encoded([[0, 1, 2], [10, 11, 12], [0, 1, 2]])
    both = torch.stack([rows.text_ids, torch.tensor([7, 8, 8, 7, 8, 8, 7, 8, 8])], dim=1)
    alike = RankDistillation(ListNet(), ["guide 3"])(replace(rows, text_ids=both))
    assert float(alike.total) == pytest.approx(
        slow_value(replace(rows, text_ids=both[:, 1]), ListNet(), {"guide 3": 1.0}, "batch"), rel=ROUNDING
    )
    own = RankDistillation(ListNet(), ["guide 3"], among="own")(replace(rows, text_ids=both))
    assert float(own.total) == 0.0


def test_a_batch_of_one_text_has_no_candidates_and_no_loss() -> None:
    rows = encoded([[0, 0], [0, 0]])
    terms = RankDistillation(ListMLE(), ["guide 3"])(rows)
    assert (float(terms.total), terms.count, float(terms.logs["guide_agreement"])) == (0.0, 2, 0.0)


def test_the_logged_agreement_is_of_the_nearest_candidates_but_for_the_positives_of_the_batch() -> None:
    n = 20
    rows = encoded([[*range(n)], [30, 31, 2, *range(33, 50)], [*range(60, 63), 3, *range(64, 80)]])
    agreed = 0
    for i in range(n):
        those = [j for j in range(n, 3 * n) if j != n + i and (i, j) != (3, 2 * n + 3)]
        cosines = (
            torch.cosine_similarity(each[i], each[those], dim=1)
            for each in (rows.embeddings, rows.guides["guide 3"])
        )
        agreed += len({int(each.argmax()) for each in cosines}) == 1
    logged = RankDistillation(ListNet(), ["guide 3"])(rows).logs["guide_agreement"]
    assert float(logged) == pytest.approx(agreed / n)
    assert 0 < agreed < n
    assert not logged.requires_grad


# Consistency of two views


@pytest.fixture
def rows(methods: dict[str, Any]) -> Encoded:
    vectors = [*methods["inputs"]["A"], *methods["inputs"]["P"]]
    return Encoded(torch.tensor(vectors, dtype=torch.float64), PAIR, text_ids=torch.arange(4).repeat(2))


def consistency(rows: Encoded) -> float:
    terms = Consistency(0.05)(rows)
    assert terms.count == 4
    return float(terms.total.detach()) / terms.count


def test_rankcse_js_T0_05(methods: dict[str, Any], rows: Encoded) -> None:
    assert consistency(rows) == pytest.approx(methods["rankcse_js_T0.05"], abs=EXACT)


def test_views_that_agree_have_no_loss_and_community_code_would_flatten_them(rows: Encoded) -> None:
    anchors = rows.embeddings[:4].clone().requires_grad_()
    total = Consistency(0.05)(replace(rows, embeddings=torch.cat([anchors, anchors]))).total
    total.backward()
    assert float(total.detach()) == pytest.approx(0.0, abs=1e-14)
    assert anchors.grad is not None
    # Zero in theory: probabilities over 0.05, and some units of float64's last place.
    assert float(anchors.grad.abs().max()) < 1e-13


STREAMED: dict[str, Objective] = {
    "consistency": Consistency(0.2),
    **{
        f"{type(loss).__name__} {among}": RankDistillation(loss, ["guide 3"], among=among)  # type: ignore[arg-type]  # one of them
        for loss in LOSSES
        for among in ("batch", "own")
    },
}


@pytest.mark.parametrize("name", STREAMED)
def test_some_rows_at_a_time_give_the_same_terms_and_gradient(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [[0, 1, 2, 3, 0, 5, 1], [10, 11, 12, 13, 14, 15, 1], [0, 1, 2, 3, 4, 5, 6]]
    rows, found = encoded(ids[: 2 if name == "consistency" else 3]), []
    for bound in (2**22, 1):
        monkeypatch.setattr(losses_base, "STREAMED_ABOVE", bound)
        monkeypatch.setattr(losses_base, "_ENTRIES", 30)
        vectors = rows.embeddings.clone().requires_grad_()
        total = STREAMED[name](replace(rows, embeddings=vectors)).total
        total.backward()
        found.append((total.detach(), vectors.grad))
    torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=1e-12)


# Vectors of a guide

SLOTS = (Slot("anchor", 0), Slot("positive", 0), Slot("negative", 0), Slot("original", 0))


def guided(features: int) -> Encoded:
    noise = torch.Generator().manual_seed(features)
    student, guide = (torch.randn(12, width, generator=noise, dtype=torch.float64) for width in (features, 5))
    return Encoded(student, SLOTS, text_ids=torch.arange(12), guides={"teacher": guide})


@pytest.mark.parametrize("features", [5, 3])
@pytest.mark.parametrize("distance", ["cosine", "squared"])
def test_a_distance_equals_the_loop_over_all_texts_that_are_compared(features: int, distance: Any) -> None:
    rows, objective = guided(features), VectorDistillation("teacher", distance, guide_features=5)
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
    assert float(terms.total.detach()) == pytest.approx(expected, abs=EXACT)
    assert float(terms.logs["guide_cosine"]) == pytest.approx(cosines / 9, abs=EXACT)
    assert torch.autograd.gradcheck(
        lambda vectors: objective(replace(rows, embeddings=vectors)).total, rows.embeddings.requires_grad_()
    )


def test_roles_that_a_batch_lacks_are_left_out() -> None:
    rows = guided(5)
    anchors = Encoded(
        rows.embeddings[:3], SLOTS[:1], torch.arange(3), guides={"teacher": rows.guides["teacher"][:3]}
    )
    assert VectorDistillation("teacher")(anchors).count == 3


def test_another_width_than_the_guides_is_refused_with_what_to_set() -> None:
    objective = VectorDistillation("teacher")
    objective.build(3)
    said = r"guide_features: expected 5, the width of the vectors of teacher, got 3; set guide_features: 5"
    with pytest.raises(ValueError, match=said):
        objective(guided(3))
    with pytest.raises(ValueError, match=said):
        Matryoshka(objective, dims=[3]).check_guide_widths({"teacher": 5})
    objective.check_guide_widths({"teacher": 3})
