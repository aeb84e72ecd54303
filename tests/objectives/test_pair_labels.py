"""Labeled pairs: what becomes of negative pairs, against slow loops and the sheet, and over two ranks."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import reference
import torch
from chains import contrast
from covering import rest_slow
from hypothesis import given
from hypothesis import strategies as st
from processes import of_two_ranks
from torch import Tensor, nn

from contrastive_text.core.batch import Encoded
from contrastive_text.core.distributed import sum_over_ranks, world_size
from contrastive_text.core.types import Slot
from contrastive_text.losses import InfoNCE, Loss, NTXent, reduce_terms
from contrastive_text.losses.info_nce import Direction
from contrastive_text.objectives import (
    Contrastive,
    Duplicates,
    NegativesAsHard,
    PairLabels,
    PositivesOnly,
    SignedPairs,
    Terms,
)

# Logits of at most 20 in float64, sums of some twenty terms.
ROUNDING = 1e-11
LABELS = (SignedPairs(), SignedPairs(weight=0.5, bound=1.0), NegativesAsHard(), PositivesOnly())
PAIR = (Slot("anchor", 0), Slot("positive", 0))
EVERY_WAY = InfoNCE(0.2, directions=get_args(Direction))


def encoded(labels: list[int], ids: list[int] | None = None, seed: int = 0, negatives: int = 0) -> Encoded:
    """Random pairs in float64; ids by slot, all different unless given."""
    slots = (*PAIR, *(Slot("negative", i) for i in range(negatives)))
    noise = torch.Generator().manual_seed(seed)
    vectors = torch.randn(len(slots) * len(labels), 4, generator=noise, dtype=torch.float64)
    text_ids = torch.arange(len(vectors)) if ids is None else torch.tensor(ids)
    return Encoded(vectors, slots, text_ids=text_ids, target=torch.tensor(labels, dtype=torch.float32))


def value(terms: Terms) -> float:
    return float(reduce_terms(terms.total, max(terms.count, 1), terms.reduction))


def sheet(vectors: dict[str, Any]) -> tuple[dict[str, Any], Encoded]:
    case = vectors["cs224n_signed_contrastive"]
    rows = torch.tensor([*case["left"], *case["right"]], dtype=torch.float64)
    return case, Encoded(rows, PAIR, text_ids=torch.arange(6), target=torch.tensor(case["label"]).float())


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[int], list[int], int]:
    """Labels and ids (anchors, positives) of up to five pairs, few enough texts that some occur again."""
    labels = draw(st.lists(st.integers(0, 1), min_size=1, max_size=5))
    ids = draw(st.lists(st.integers(0, 7), min_size=2 * len(labels), max_size=2 * len(labels)))
    return labels, ids, draw(st.integers(0, 2**31))


# The sheet


def test_m9_terms_of_the_three_pairs_and_their_two_means(vectors: dict[str, Any]) -> None:
    case, rows = sheet(vectors)
    terms = case["all_rows_terms_with_full_batch_denominator"]
    assert terms == pytest.approx([4.0184793, 0.0181500, 8.3713321], abs=1e-6)
    for kept, term in enumerate(terms[:2]):
        # One pair alone is positive, and negative pairs weigh nothing: what is left is its term.
        alone = torch.tensor([float(i == kept) for i in range(3)])
        objective = contrast(InfoNCE(case["tau"]), SignedPairs(weight=0.0))
        total = objective(replace(rows, target=alone)).total
        assert float(total) == pytest.approx(term, abs=1e-6)
    loss = InfoNCE(case["tau"], reduction="sum")
    signed = value(contrast(loss, SignedPairs(bound=math.inf))(rows))
    assert signed / 3 == pytest.approx(case["variant_a_full_batch_denominator_mean_sign_times_term"], abs=1e-6)
    means = value(contrast(InfoNCE(case["tau"]), SignedPairs(bound=math.inf))(rows))
    assert means == pytest.approx((terms[0] + terms[1]) / 2 - terms[2], abs=1e-6)
    positive = value(contrast(InfoNCE(case["tau"]), PositivesOnly())(rows))
    assert positive == pytest.approx(case["variant_b_positives_only"], abs=1e-6)


def test_m9_the_bound_is_that_of_a_guess_and_hard_negatives_leave_positive_pairs_their_full_batch_terms(
    vectors: dict[str, Any],
) -> None:
    case, rows = sheet(vectors)
    terms = case["all_rows_terms_with_full_batch_denominator"]
    signed, hard = (
        contrast(InfoNCE(case["tau"]), labels)(rows) for labels in (SignedPairs(weight=0.7), NegativesAsHard())
    )
    mean = (terms[0] + terms[1]) / 2
    assert value(signed) == pytest.approx(mean - 0.7 * math.log(3), abs=1e-6)
    assert (value(hard), hard.count) == (pytest.approx(mean, abs=1e-6), 2)


# Slow loops


def slow_signed(case: tuple[list[int], list[int], int], same_side: bool, weight: float, bound: float) -> float:
    """Every pair a row; a copy of the target is left out of a positive pair's columns only."""
    labels, ids, seed = case
    n = len(labels)
    texts = encoded(labels, seed=seed).embeddings.tolist()
    sums, counts = {0: 0.0, 1: 0.0}, {0: 0, 1: 0}
    for i in range(2 * n if same_side else n):
        partner, label = (i + n) % (2 * n), labels[i % n]
        own = {ids[i], ids[partner]} if label else {ids[i]}
        columns = [
            j for j in range(0 if same_side else n, 2 * n) if j == partner or (j != i and ids[j] not in own)
        ]
        logits = {j: reference.cosine(texts[i], texts[j]) / 0.2 for j in columns}
        term = reference.cross_entropy(logits[partner], list(logits.values()))
        sums[label] += term if label else min(term, bound)
        counts[label] += 1
    return sums[1] / max(counts[1], 1) - weight * sums[0] / max(counts[0], 1)


@pytest.mark.parametrize("loss", [InfoNCE(0.2), NTXent(0.2)])
@given(case=batches(), weight=st.floats(0, 2), bound=st.one_of(st.none(), st.floats(0.01, 10), st.just(math.inf)))
def test_signed_pairs_equal_the_double_loop(
    loss: Loss, case: tuple[list[int], list[int], int], weight: float, bound: float | None
) -> None:
    labels, ids, seed = case
    rows = encoded(labels, ids=ids, seed=seed)
    reached = value(Contrastive(loss, columns=[Duplicates(), SignedPairs(weight, bound)])(rows))
    compared = 2 * len(labels) - 1 if loss.same_side else len(labels)
    limit = math.log(compared) if bound is None else bound
    expected = slow_signed(case, same_side=loss.same_side, weight=weight, bound=limit)
    assert reached == pytest.approx(expected, abs=ROUNDING, rel=ROUNDING)


@given(case=batches())
def test_reductions_of_signed_pairs_are_those_of_each_mean(case: tuple[list[int], list[int], int]) -> None:
    labels, ids, seed = case
    rows = encoded(labels, ids=ids, seed=seed)

    def reached(loss: Loss) -> float:
        return value(contrast(loss, SignedPairs(bound=2.0))(rows))

    assert reached(NTXent(0.2, "two_sided")) == pytest.approx(2 * reached(NTXent(0.2)), abs=ROUNDING)
    backward = replace(rows, slots=PAIR[::-1])
    both = reached(InfoNCE(0.2)) + value(contrast(InfoNCE(0.2), SignedPairs(bound=2.0))(backward))
    assert reached(InfoNCE(0.2, "two_sided")) == pytest.approx(both, abs=ROUNDING)


def slow_hard(case: tuple[list[int], list[int], int], same_side: bool, log_weight: float) -> float:
    """Positive pairs are rows; second texts of negative pairs are columns, the own ones weighed."""
    labels, ids, seed = case
    n = len(labels)
    texts = encoded(labels, seed=seed).embeddings.tolist()
    pairs = [i for i in range(n) if labels[i]]
    hard = [i for i in range(n) if not labels[i]]
    terms = []
    for i in [*pairs, *([p + n for p in pairs] if same_side else [])]:
        partner = (i + n) % (2 * n)
        own = {ids[i], ids[partner]}
        columns = [*(pairs if same_side else []), *(p + n for p in pairs)]
        columns = [j for j in columns if j == partner or (j != i and ids[j] not in own)]
        logits = [reference.cosine(texts[i], texts[j]) / 0.2 for j in columns]
        for j in hard:
            if ids[j + n] not in own:
                weight = log_weight if ids[j] == ids[i] else 0.0
                logits.append(reference.cosine(texts[i], texts[j + n]) / 0.2 + weight)
        terms.append(reference.cross_entropy(reference.cosine(texts[i], texts[partner]) / 0.2, logits))
    return float(sum(terms)) / max(len(terms), 1)


@given(case=batches(), log_weight=st.floats(-2, 2))
def test_negatives_as_hard_ones_equal_the_double_loop(
    case: tuple[list[int], list[int], int], log_weight: float
) -> None:
    labels, ids, seed = case
    rows = encoded(labels, ids=ids, seed=seed)
    for loss in (InfoNCE(0.2, hard_negative_log_weight=log_weight), NTXent(0.2)):
        reached = value(Contrastive(loss, columns=[Duplicates(), NegativesAsHard()])(rows))
        weight = 0.0 if loss.same_side else log_weight  # NTXent weighs all negatives alike
        expected = slow_hard(case, same_side=loss.same_side, log_weight=weight)
        assert reached == pytest.approx(expected, abs=ROUNDING, rel=ROUNDING)


def test_a_texts_own_hard_negatives_are_known_even_where_duplicates_are_kept() -> None:
    # The first and the last pair have one anchor text: the last pair's second text is its own hard negative.
    ids = [0, 1, 0, 3, 4, 5]
    for duplicates in ([Duplicates()], []):
        rows = encoded([1, 1, 0], ids=ids)
        loss = InfoNCE(0.2, hard_negative_log_weight=1.5)
        objective = Contrastive(loss, columns=[*duplicates, NegativesAsHard()])
        assert value(objective(rows)) == pytest.approx(slow_hard(([1, 1, 0], ids, 0), False, 1.5), abs=ROUNDING)


@pytest.mark.parametrize("loss", [InfoNCE(0.2), InfoNCE(0.2, "two_sided"), NTXent(0.2, "sum"), EVERY_WAY])
@pytest.mark.parametrize("negatives", [0, 2])
def test_positives_only_is_the_loss_of_a_batch_without_the_negative_pairs(loss: Loss, negatives: int) -> None:
    labels = [0, 1, 1, 0, 1]
    rows = encoded(labels, negatives=negatives)
    pairs = torch.tensor(labels).bool().repeat(2 + negatives)
    kept = replace(rows, embeddings=rows.embeddings[pairs], text_ids=rows.text_ids[pairs], target=None)
    reached, expected = (contrast(loss, PositivesOnly())(rows), Contrastive(loss)(kept))
    assert torch.equal(reached.total, expected.total)
    assert (reached.count, reached.reduction) == (expected.count, expected.reduction)
    assert reached.logs == expected.logs


@pytest.mark.parametrize("loss", [InfoNCE(0.2), InfoNCE(0.2, "two_sided"), NTXent(0.2)])
@pytest.mark.parametrize("labels", [SignedPairs(), NegativesAsHard(), PositivesOnly()])
def test_a_batch_of_positive_pairs_needs_no_labels(loss: Loss, labels: PairLabels) -> None:
    rows = encoded([1, 1, 1, 1], negatives=1)
    reached, plain = contrast(loss, labels)(rows), Contrastive(loss)(rows)
    assert value(reached) == pytest.approx(value(plain), abs=ROUNDING)
    assert reached.logs == plain.logs


def test_hard_negatives_of_the_data_stand_beside_those_of_the_labels() -> None:
    rows = encoded([1, 1, 0], negatives=1)
    anchor, positive, negative = (rows.role(role)[:, 0] for role in ("anchor", "positive", "negative"))
    terms = []
    for i in range(2):
        columns = torch.cat([positive[:2], negative[:2], positive[2:]])
        logits = torch.cosine_similarity(anchor[i : i + 1], columns) / 0.2
        logits[2 + i] += 0.5
        terms.append(logits.logsumexp(dim=0) - logits[i])
    loss = InfoNCE(0.2, hard_negative_log_weight=0.5)
    reached = value(contrast(loss, NegativesAsHard())(rows))
    assert reached == pytest.approx(float(sum(terms)) / 2, abs=ROUNDING)


# What must hold whatever the labels


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("loss", [InfoNCE(0.2), InfoNCE(0.2, "two_sided"), NTXent(0.2)])
@pytest.mark.parametrize("only", [0, 1])
@pytest.mark.parametrize("n", [1, 3])
def test_a_batch_of_one_label_is_finite_and_has_a_graph(
    labels: PairLabels, loss: Loss, only: int, n: int
) -> None:
    rows = encoded([only] * n)
    rows.embeddings.requires_grad_()
    terms = contrast(loss, labels)(rows)
    terms.total.backward()
    assert rows.embeddings.grad is not None
    assert torch.isfinite(terms.total)
    assert torch.isfinite(rows.embeddings.grad).all()
    assert all(torch.isfinite(figure) for figure in terms.logs.values())
    assert bool(terms.logs) == bool(only)


def test_a_negative_pair_above_the_bound_has_no_gradient() -> None:
    rows = encoded([0, 0, 0])
    rows.embeddings.requires_grad_()
    contrast(InfoNCE(0.2), SignedPairs(bound=1e-9))(rows).total.backward()
    assert rows.embeddings.grad is not None
    assert not rows.embeddings.grad.any()


@pytest.mark.parametrize("labels", rest_slow(LABELS, quick=2))
def test_gradients_agree_with_finite_differences(labels: PairLabels) -> None:
    loss = InfoNCE(0.3, hard_negative_log_weight=0.5)
    ids = [0, 1, 0, 3, 5, 6, 7, 6]
    rows = encoded([1, 0, 0, 1], ids=ids, seed=3)
    objective = contrast(loss, labels)
    vectors = rows.embeddings.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda v: objective(replace(rows, embeddings=v)).total, [vectors])


# Two ranks

PROMISE = 1e-10
"""max |dg| <= 1e-10 max |g| in float64."""
TARGET = (1, 1, 0, 1, 1, 0, 0)
"""Of five and two pairs the second rank has no positive one."""
CASES = {
    "signed sum": contrast(NTXent(0.2, "sum"), SignedPairs()),
    "hard, duplicates kept": Contrastive(InfoNCE(0.2, "mean", 0.7), columns=[NegativesAsHard()]),
    "positives": contrast(NTXent(0.2), PositivesOnly()),
}
SPLIT = (5, 2)


def step(objective: Contrastive, part: slice) -> dict[str, Tensor]:
    """Loss and gradients of one step on a part of the examples, both as means over the ranks."""
    n = len(TARGET)
    x = torch.randn(2, n, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ids = torch.arange(2 * n).reshape(2, n) % 9  # texts occur again
    torch.manual_seed(0)
    encoder = nn.Linear(5, 4).double()
    vectors, target = encoder(x[:, part].flatten(0, 1)), torch.tensor(TARGET[part]).float()
    loss = objective(Encoded(vectors, PAIR, text_ids=ids[:, part].flatten(), target=target)).loss()
    loss.backward()
    found = {"loss": loss, **{name: p.grad for name, p in encoder.named_parameters() if p.grad is not None}}
    return {name: sum_over_ranks(value) / world_size() for name, value in found.items()}


def work(number: int) -> dict[str, dict[str, Tensor]]:
    """One of two ranks."""
    start = sum(SPLIT[:number])
    return {name: step(case, slice(start, start + SPLIT[number])) for name, case in CASES.items()}


def test_the_gradient_of_a_rank_without_positive_pairs_is_that_of_one_process(tmp_path: Path) -> None:
    for results in of_two_ranks(work, tmp_path):
        for name, case in CASES.items():
            alone = step(case, slice(None))
            scale = max(float(gradient.abs().max()) for key, gradient in alone.items() if key != "loss")
            assert scale > 0
            assert results[name].keys() == alone.keys()
            for key, expected in alone.items():
                torch.testing.assert_close(results[name][key], expected.detach(), rtol=0, atol=PROMISE * scale)
