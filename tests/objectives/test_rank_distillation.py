"""A row's candidates scored as guides score them: which they are, by which guides; the sheet's values."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import reference
import torch

from contrastive_text.core.batch import Encoded
from contrastive_text.core.types import Slot
from contrastive_text.losses import KLDivergence, ListMLE, ListNet, MarginMSE, RankLoss, by_rows
from contrastive_text.objectives import RankDistillation

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


@pytest.mark.parametrize("among", ["batch", "own"])
def test_gradients_agree_with_finite_differences(among: Any) -> None:
    rows, objective = (
        encoded([[0, 1], [10, 0], [0, 21]]),
        RankDistillation(ListMLE(0.2), ["guide 7"], among=among),
    )
    assert torch.autograd.gradcheck(
        lambda vectors: objective(replace(rows, embeddings=vectors)).total, rows.embeddings.requires_grad_()
    )


def test_some_rows_at_a_time_give_the_same_terms_and_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = encoded([[0, 1, 2, 3, 0, 5, 1], [10, 11, 12, 13, 14, 15, 1], [0, 1, 2, 3, 4, 5, 6]])
    for loss, among in itertools.product(LOSSES, ("batch", "own")):
        objective = RankDistillation(loss, ["guide 3"], among=among)  # type: ignore[arg-type]  # one of them
        found = []
        for bound in (2**22, 1):
            monkeypatch.setattr(by_rows, "STREAMED_ABOVE", bound)
            monkeypatch.setattr(by_rows, "_ENTRIES", 30)
            vectors = rows.embeddings.clone().requires_grad_()
            total = objective(replace(rows, embeddings=vectors)).total
            total.backward()
            found.append((total.detach(), vectors.grad))
        torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=1e-12)


def test_the_logged_agreement_is_of_the_nearest_candidates_but_for_positives_that_all_rows_have() -> None:
    n = 20
    rows = encoded([[*range(n)], [30, 31, 2, *range(33, 50)], [*range(60, 63), 3, *range(64, 80)]])
    among: dict[str, list[Any]] = {
        "batch": [[j for j in range(n, 3 * n) if j != n + i and (i, j) != (3, 2 * n + 3)] for i in range(n)],
        "own": [[n + i, 2 * n + i] for i in range(n)],
    }
    among["own"][2:4] = [[2 * n + 2], [n + 3]]  # texts 2 and 3 are no candidates of themselves
    for name, candidates in among.items():
        agreed = 0
        for i, those in enumerate(candidates):
            u, v = (
                torch.cosine_similarity(each[i], each[those], dim=1)
                for each in (rows.embeddings, rows.guides["guide 3"])
            )
            agreed += int(u.argmax() == v.argmax())
        logged = RankDistillation(ListNet(), ["guide 3"], among=name)(rows).logs["guide_agreement"]  # type: ignore[arg-type]  # one of them
        assert float(logged) == pytest.approx(agreed / n)
        assert 0 < agreed < n
        assert not logged.requires_grad


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"guides": []}, r"RankDistillation\.guides: expected different names of model\.guides, got \[\]"),
        ({"guides": ["a", "a"]}, r"guides: expected different names of model\.guides, got \['a', 'a'\]"),
        ({"guides": "teacher"}, "guides: expected different names of model.guides, got 'teacher'"),
        ({"guides": ["a", "b"], "weights": [1.0]}, "weights: expected a number above 0 for each of the 2 guides"),
        ({"guides": ["a"], "weights": [0.0]}, r"weights: expected a number above 0 .* got \[0\.0\]"),
        ({"guides": ["a"], "among": "row"}, "RankDistillation.among: expected batch or own, got 'row'"),
    ],
)
def test_senseless_options_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        RankDistillation(ListNet(), **options)
