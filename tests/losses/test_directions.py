"""InfoNCE of several directions: a softmax for each pair, over the candidates of both of its texts."""

from __future__ import annotations

import itertools
from typing import Any, get_args

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from contrastive_text.core.batch import Encoded
from contrastive_text.core.types import Slot
from contrastive_text.losses import InfoNCE
from contrastive_text.losses.comparison import Triples
from contrastive_text.losses.info_nce import Direction
from contrastive_text.objectives import (
    Contrastive,
    Duplicates,
    NegativesAsHard,
    PositivesOnly,
    Queue,
    Siblings,
    SignedPairs,
)

FOUR: tuple[Direction, ...] = get_args(Direction)
FIRST, *OTHERS = FOUR
EVERY = [(FIRST, *others) for n in range(4) for others in itertools.combinations(OTHERS, n)]
# Logits of at most 50 in float64, sums of some thirty terms.
ROUNDING = 1e-11
PAIR = (Slot("anchor", 0), Slot("positive", 0))


def slow_terms(every: Triples, directions: tuple[str, ...], temperature: float, log_weight: float) -> list[float]:
    """A term for each pair; texts of the row's own ids are left out, but for the pair's own two."""
    a, p = every.anchor.tolist(), every.positive.tolist()
    a_ids, p_ids = every.anchor_ids.tolist(), every.positive_ids.tolist()
    terms = []
    for i in range(len(a)):
        own = {a_ids[i], p_ids[i]}
        logits = []

        def add(row: list[float], column: list[float], weight: float = 0.0, logits: list[float] = logits) -> None:
            logits.append(reference.cosine(row, column) / temperature + weight)

        for j in range(len(a)):
            if j == i or p_ids[j] not in own:
                add(a[i], p[j])
            if "query_to_query" in directions and a_ids[j] not in own:
                add(a[i], a[j])
            if "doc_to_query" in directions and (j == i or a_ids[j] not in own):
                add(p[i], a[j])
            if "doc_to_doc" in directions and p_ids[j] not in own:
                add(p[i], p[j])
            if every.negative is not None and every.negative_ids is not None:
                for vector, text in zip(every.negative[j].tolist(), every.negative_ids[j].tolist(), strict=True):
                    if text not in own:
                        add(a[i], vector, log_weight if i == j else 0.0)
        terms.append(reference.cross_entropy(reference.cosine(a[i], p[i]) / temperature, logits))
    return terms


def examples(n: int, hard: int, ids: int | None, seed: int) -> Triples:
    noise = torch.Generator().manual_seed(seed)
    a, p = torch.randn(2, n, 4, generator=noise, dtype=torch.float64)
    h = torch.randn(n, hard, 4, generator=noise, dtype=torch.float64) if hard else None
    if ids is None:
        return Triples.distinct(a, p, h)
    drawn = torch.randint(ids, (n, 2 + hard), generator=noise)
    return Triples(a, p, h, drawn[:, 0], drawn[:, 1], drawn[:, 2:] if hard else None)


def test_gte_four_directions_t0_05(methods: dict[str, Any]) -> None:
    a, p = (torch.tensor(methods["inputs"][name], dtype=torch.float64) for name in "AP")
    reached = float(InfoNCE(temperature=0.05, directions=FOUR)(a, p))
    assert reached == pytest.approx(methods["gte_four_directions_T0.05"], abs=1e-9)
    assert float(InfoNCE(temperature=0.1)(a, p)) == pytest.approx(methods["infonce_T0.1"], abs=1e-9)


@pytest.mark.parametrize("directions", EVERY)
@given(n=st.integers(1, 6), hard=st.integers(0, 2), ids=st.sampled_from([None, 2, 9]), seed=st.integers(0, 2**31))
def test_any_directions_equal_the_double_loop(
    directions: tuple[Direction, ...], n: int, hard: int, ids: int | None, seed: int
) -> None:
    every = examples(n, hard, ids, seed)
    expected = slow_terms(every, directions, temperature=0.2, log_weight=0.7)
    loss = InfoNCE(temperature=0.2, hard_negative_log_weight=0.7, directions=directions)
    terms = loss.compare(loss.comparisons(every, every))
    assert terms.tolist() == pytest.approx(expected, abs=ROUNDING, rel=ROUNDING)


def gradients(loss: InfoNCE, every: Triples) -> tuple[Tensor, ...]:
    """Terms, and the gradients of their sum."""
    leaves = every.map(lambda each: each.clone().requires_grad_(each.is_floating_point()))
    terms = loss.compare(loss.comparisons(leaves, leaves))
    vectors = [each for each in (leaves.anchor, leaves.positive, leaves.negative) if each is not None]
    return terms.detach(), *torch.autograd.grad(terms.sum(), vectors)


@pytest.mark.parametrize("directions", [FOUR, ("query_to_doc", "query_to_query", "doc_to_doc")])
def test_one_text_repeated_has_no_negatives_and_a_finite_gradient(directions: tuple[Direction, ...]) -> None:
    every = examples(3, hard=1, ids=1, seed=0)
    terms, *found = gradients(InfoNCE(0.2, directions=directions), every)
    # The pair alone; where the positive looks for its anchor too, it stands there twice.
    twice = float("doc_to_query" in directions)
    torch.testing.assert_close(terms, torch.full((3,), 2.0, dtype=torch.float64).log() * twice)
    assert all(float(each.abs().max()) < ROUNDING for each in found)


def encoded(ids: list[list[int]], target: list[float] | None = None) -> Encoded:
    flat = torch.tensor(ids).flatten()
    vectors = torch.randn(len(flat), 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = None if target is None else torch.tensor(target)
    return Encoded(vectors, PAIR, text_ids=flat, target=labels)


def test_siblings_are_hidden_in_every_direction() -> None:
    # The first two anchors are one text; its second positive is also the third's.
    found = [
        Contrastive(InfoNCE(0.2, directions=FOUR), columns=[Duplicates(), *way])(
            encoded([[1, 1, 2], [3, 4, 5]])
        ).total
        for way in ([Siblings()], [])
    ]
    a, p = encoded([[1, 1, 2], [3, 4, 5]]).embeddings.reshape(2, 3, 4)
    for siblings, total in zip((True, False), found, strict=True):
        others = {0: {2}, 1: {2}, 2: {0, 1}} if siblings else {0: {1, 2}, 1: {0, 2}, 2: {0, 1}}
        expected = 0.0
        for i in range(3):
            logits = [reference.cosine(a[i].tolist(), p[i].tolist()) / 0.2] * 2
            for j in others[i]:
                logits += [reference.cosine(x[i].tolist(), p[j].tolist()) / 0.2 for x in (a, p)]
            for j in {0: {2}, 1: {2}, 2: {0, 1}}[i]:  # the same text is no other anchor
                logits += [reference.cosine(x[i].tolist(), a[j].tolist()) / 0.2 for x in (a, p)]
            expected += reference.cross_entropy(logits[0], logits)
        assert float(total) == pytest.approx(expected, abs=ROUNDING)


def test_a_queue_stands_in_the_anchors_columns_and_labels_choose_the_pairs() -> None:
    objective = Contrastive(InfoNCE(0.2, directions=FOUR), columns=[Duplicates(), Siblings(), Queue(100)])
    first, second = encoded([[1, 2], [3, 4]]), encoded([[5, 6], [7, 8]])
    alone = float(objective(second).total)
    objective(first)
    objective.finish_step()
    # Past positives and anchors are columns of both rows, and of the anchors alone.
    past = first.embeddings.tolist()
    slow = slow_terms(Triples.distinct(*second.embeddings.reshape(2, 2, 4)), FOUR, 0.2, 0.0)
    assert alone == pytest.approx(sum(slow), abs=ROUNDING)
    expected = 0.0
    for i, term in enumerate(slow):
        a, p = (side[i].tolist() for side in second.embeddings.reshape(2, 2, 4))
        target = reference.cosine(a, p) / 0.2
        logits = [term + target, *(reference.cosine(a, other) / 0.2 for other in past)]
        expected += reference.cross_entropy(target, logits)
    assert float(objective(second).total) == pytest.approx(expected, abs=ROUNDING)
    labelled = encoded([[1, 2, 3], [4, 5, 6]], target=[1.0, 0.0, 1.0])
    kept = encoded([[1, 3], [4, 6]])
    kept.embeddings.copy_(labelled.embeddings[[0, 2, 3, 5]])
    loss = InfoNCE(0.2, directions=FOUR)
    only = Contrastive(loss, columns=[Duplicates(), Siblings(), PositivesOnly()])(labelled).total
    assert float(only) == pytest.approx(float(Contrastive(loss)(kept).total), abs=ROUNDING)
    assert float(
        Contrastive(loss, columns=[Duplicates(), Siblings(), NegativesAsHard()])(labelled).total
    ) > float(only)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"columns": [Duplicates(), Siblings("positive")]},
            "got InfoNCE, which has one positive per row; take NTX",
        ),
        ({"columns": [SignedPairs()]}, "SignedPairs expects a loss whose terms can be maximized, got InfoNCE"),
    ],
)
def test_what_several_directions_do_not_take_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Contrastive(InfoNCE(directions=FOUR), **options)


def test_the_summary_counts_the_candidates_of_each_direction() -> None:
    said = Contrastive(InfoNCE(directions=FOUR)).describe_negatives(64, positives=1, negatives=0)
    assert said.startswith(
        "252 per anchor: 63 other positives, 63 other anchors, 63 other anchors beside its positive, "
        "63 other positives beside its positive"
    )
