"""Other positives of a row's query: hidden, targets too, or negatives, wherever a row meets them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from chains import ROUNDING, WAYS, T, Text, chain, slow_terms
from hypothesis import given
from hypothesis import strategies as st

from contrastive_text.core.batch import Encoded
from contrastive_text.core.types import Slot
from contrastive_text.losses import InfoNCE, Loss, NTXent, SupCon, reduce_terms
from contrastive_text.losses.comparison import NO_ID
from contrastive_text.objectives import (
    Contrastive,
    Duplicates,
    NegativesAsHard,
    PairLabels,
    PositivesOnly,
    Queue,
    SameClass,
    Siblings,
    SignedPairs,
)

ATTRACT = Siblings("positive")
PAIR = (Slot("anchor", 0), Slot("positive", 0))


def encoded(ids: Sequence[Sequence[int]], seed: int = 0) -> Encoded:
    """Random vectors of anchors, positives and perhaps hard negatives, whose ids are given role by role."""
    noise = torch.Generator().manual_seed(seed)
    flat = torch.tensor([text for role in ids for text in role])
    slots = (*PAIR, *(Slot("negative", i) for i in range(len(ids) - 2)))
    return Encoded(torch.randn(len(flat), 4, generator=noise, dtype=torch.float64), slots, text_ids=flat)


def value(objective: Contrastive, rows: Encoded) -> float:
    terms = objective(rows)
    return float(reduce_terms(terms.total, max(terms.count, 1), terms.reduction))


# The sheet


SHEET = replace(
    encoded([[0, 0, 2, 3], [10, 11, 12, 13]]),
    embeddings=torch.tensor(
        [
            *([[-0.11, 1.55, 0.97, 0.22, -1.42, -1.91]] * 2),
            [0.7, 0.97, -0.44, 0.69, -0.26, -1.41],
            [0.55, 0.48, 0.17, 0.25, -0.61, 0.01],
            [-0.32, 0.13, -0.12, 0.08, -2.51, -1.3],
            [1.81, 1.69, -0.76, 0.8, -1.76, 0.82],
            [-0.01, 1.33, -0.67, -0.87, -1.21, -1.53],
            [1.27, -1.15, 0.85, 0.05, -0.8, 0.46],
        ],
        dtype=torch.float64,
    ),
)
VALUES = [2.8758356755656713, 2.734002044794379, 2.875835675565671, 1.764189354697347]
"""At temperature 0.1, one way after another: plain, hidden, SupCon's "out", and "in" as MIL-NCE has it."""


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("how", "expected"), [*zip(WAYS[1:], VALUES, strict=True)], ids=str)
def test_p11_values_of_the_sheet(how: dict[str, Any], expected: float, streamed: bool) -> None:
    reached = value(Contrastive(InfoNCE(0.1, streamed=streamed), columns=chain(**how)), SHEET)
    assert reached == pytest.approx(expected, abs=1e-12)


def test_siblings_are_hidden_by_default() -> None:
    rows, hidden = encoded([[0, 0, 2], [10, 11, 12]]), Contrastive(InfoNCE(T), columns=[Duplicates(), Siblings()])
    assert value(Contrastive(InfoNCE(T)), rows) == value(hidden, rows)


# Every place where they meet


@st.composite
def batches(draw: st.DrawFn) -> Encoded:
    """Up to six examples over so few texts that all kinds of copies and siblings occur."""
    n, roles = draw(st.integers(1, 6)), draw(st.integers(2, 4))
    ids = draw(st.lists(st.lists(st.integers(0, 9), min_size=n, max_size=n), min_size=roles, max_size=roles))
    return encoded(ids, draw(st.integers(0, 2**31)))


@pytest.mark.parametrize("how", WAYS, ids=str)
@given(rows=batches(), streamed=st.booleans())
def test_siblings_as_in_the_double_loop(how: dict[str, Any], rows: Encoded, streamed: bool) -> None:
    for loss in (InfoNCE(T, "two_sided", streamed=streamed), NTXent(T, streamed=streamed)):
        terms = slow_terms(rows, loss, **how)
        expected = sum(terms) / len(terms) * (2 if loss.reduction == "two_sided" else 1)
        assert value(Contrastive(loss, columns=chain(**how)), rows) == pytest.approx(
            expected, abs=ROUNDING, rel=ROUNDING
        )


def test_a_queue_that_was_filled_without_partners_is_read_with_them() -> None:
    rows = encoded([[0, 0], [10, 11]])
    filled, resumed = (
        Contrastive(InfoNCE(T), columns=[*chain(siblings=way), Queue(4)]) for way in ("keep", "mask")
    )
    filled(rows)
    filled.finish_step()
    resumed.load_state_dict(filled.state_dict())
    later = encoded([[0, 5], [12, 15]], seed=1)
    past = [Text(vector, text) for vector, text in zip(rows.embeddings[2:].tolist(), (10, 11), strict=True)]
    terms = slow_terms(later, InfoNCE(T), past, siblings="mask")
    assert value(resumed, later) == pytest.approx(sum(terms) / 2, abs=ROUNDING)
    resumed.finish_step()
    assert resumed.state_dict()["column_modules.Queue._extra_state"]["texts"]["groups.siblings"].tolist() == [
        NO_ID,
        NO_ID,
        0,
        5,
    ]


def test_texts_are_siblings_by_what_they_were_before_any_view() -> None:
    rows = encoded([[0, 0, 2], [10, 11, 12]])
    edited = replace(rows, text_ids=torch.stack([rows.text_ids, torch.tensor([30, 31, 30, 40, 41, 42])], dim=1))
    objective = Contrastive(InfoNCE(T))
    assert value(objective, edited) == value(objective, rows)


# Labels


def test_negative_pairs_make_no_siblings() -> None:
    # The second pair says that 11 doesn't belong to 0: it stays the first row's negative.
    rows = replace(encoded([[0, 0, 0, 3], [10, 11, 12, 13]]), target=torch.tensor([1.0, 0.0, 1.0, 1.0]))
    seen = {0: [0, 1, 3], 1: [1, 3], 2: [1, 2, 3], 3: [0, 1, 2, 3]}
    cosines = torch.cosine_similarity(rows.embeddings[:4, None], rows.embeddings[None, 4:], dim=2) / T
    terms = [float(cosines[i, columns].logsumexp(0) - cosines[i, i]) for i, columns in seen.items()]
    reached = value(
        Contrastive(InfoNCE(T), columns=[Duplicates(), Siblings(), SignedPairs(bound=math.inf)]), rows
    )
    assert reached == pytest.approx((terms[0] + terms[2] + terms[3]) / 3 - terms[1], abs=ROUNDING)
    hard = value(Contrastive(InfoNCE(T), columns=[Duplicates(), Siblings(), NegativesAsHard()]), rows)
    assert hard == pytest.approx((terms[0] + terms[2] + terms[3]) / 3, abs=ROUNDING)


@pytest.mark.parametrize("labels", [PositivesOnly(), NegativesAsHard()])
def test_positives_of_labelled_pairs_attract(labels: PairLabels) -> None:
    rows = encoded([[0, 0, 2, 0], [10, 11, 12, 13]])
    labelled = replace(rows, target=torch.ones(4))
    reached = value(Contrastive(InfoNCE(T), columns=[Duplicates(), Siblings("positive"), labels]), labelled)
    assert reached == value(Contrastive(InfoNCE(T), columns=[Duplicates(), Siblings("positive")]), rows)


@pytest.mark.parametrize(
    ("loss", "options", "accuracy", "negative"),
    [
        (InfoNCE(), {"columns": [Duplicates()]}, 2 / 3, (1 + 0.6) / 6),
        (InfoNCE(), {"columns": [Duplicates(), Siblings()]}, 1.0, 0.0),
        (InfoNCE(), {"columns": [Duplicates(), ATTRACT]}, 1.0, 0.0),
        (SupCon(), {"columns": [Duplicates(), SameClass(2)]}, 1.0, 0.0),
    ],
    ids=["keep", "hide", "attract", "class"],
)
def test_logged_figures_read_the_columns_of_the_loss(
    loss: Loss, options: dict[str, Any], accuracy: float, negative: float
) -> None:
    anchors = torch.tensor([[1.0, 0, 0], [1.0, 0, 0], [0, 0, 1.0]])
    positives = torch.tensor([[0.6, 0.8, 0], [1.0, 0, 0], [0, 0, 1.0]])
    ids = torch.tensor([0, 0, 1, 2, 3, 4])  # the first two rows are of one query, whose nearest is the second
    logs = Contrastive(loss, **options)(
        Encoded(torch.cat([anchors, positives]), PAIR, text_ids=ids, target=torch.tensor([0.0, 0, 1]))
    ).logs
    assert float(logs["accuracy"]) == pytest.approx(accuracy)
    assert float(logs["negative_similarity"]) == pytest.approx(negative, abs=1e-6)  # float32
