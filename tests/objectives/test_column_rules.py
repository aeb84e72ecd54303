"""Columns that are no negatives: siblings, and those that a guide or the own scores find too near."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import reference
import torch
from chains import ROUNDING, WAYS, T, Text, chain, contrast, slow_terms
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from contrastive_text.core.batch import Encoded
from contrastive_text.core.types import Slot
from contrastive_text.losses import (
    InfoNCE,
    Loss,
    NTXent,
    SupCon,
    reduce_terms,
)
from contrastive_text.losses.comparison import MASKED_ID
from contrastive_text.losses.info_nce import Direction
from contrastive_text.losses.rules import NO_ID, GuideMask
from contrastive_text.objectives import (
    ColumnPart,
    Contrastive,
    Duplicates,
    FalseNegatives,
    MaskAbovePositive,
    MaskBatch,
    Matryoshka,
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


SIBLINGS = replace(
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
AFTER_WAYS = [2.8758356755656713, 2.734002044794379, 2.875835675565671, 1.764189354697347]
"""At temperature 0.1, one way after another: plain, hidden, SupCon's "out", and "in" as MIL-NCE has it."""


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("how", "expected"), [*zip(WAYS[1:], AFTER_WAYS, strict=True)], ids=str)
def test_p11_values_of_the_sheet(how: dict[str, Any], expected: float, streamed: bool) -> None:
    reached = value(Contrastive(InfoNCE(0.1, streamed=streamed), columns=chain(**how)), SIBLINGS)
    assert reached == pytest.approx(expected, abs=1e-12)


def test_siblings_are_hidden_by_default() -> None:
    rows, hidden = encoded([[0, 0, 2], [10, 11, 12]]), contrast(InfoNCE(T))
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
    reached = value(contrast(InfoNCE(T), SignedPairs(bound=math.inf)), rows)
    assert reached == pytest.approx((terms[0] + terms[2] + terms[3]) / 3 - terms[1], abs=ROUNDING)
    hard = value(contrast(InfoNCE(T), NegativesAsHard()), rows)
    assert hard == pytest.approx((terms[0] + terms[2] + terms[3]) / 3, abs=ROUNDING)


@pytest.mark.parametrize("labels", [PositivesOnly(), NegativesAsHard()])
def test_positives_of_labeled_pairs_attract(labels: PairLabels) -> None:
    rows = encoded([[0, 0, 2, 0], [10, 11, 12, 13]])
    labeled = replace(rows, target=torch.ones(4))
    reached = value(Contrastive(InfoNCE(T), columns=[Duplicates(), Siblings("positive"), labels]), labeled)
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


GIST: tuple[Direction, ...] = ("query_to_doc", "query_to_query", "doc_to_doc")
DIGITS = 1e-9
T_GIST = 0.1
ROLES = ("anchor", "positive", "negative")


def batch(texts: Tensor, known: Tensor, roles: int, ids: Tensor | None = None, **fields: Any) -> Encoded:
    """Texts of some roles, one slot each, with a guide's vectors of them."""
    slots = tuple(Slot(role, 0) for role in ROLES[:roles])  # type: ignore[arg-type]  # of the three
    given_ids = torch.arange(len(texts)) if ids is None else ids
    return Encoded(texts, slots, given_ids, guides={"teacher": known}, **fields)


def gist(directions: tuple[Direction, ...] = GIST, **margins: float) -> Contrastive:
    return contrast(InfoNCE(T_GIST, directions=directions), FalseNegatives("teacher", **margins))


def of_sheet(methods: dict[str, Any], triples: bool) -> Encoded:
    """The sheet's texts: A, P and H, with the guide's GA, GP and GH."""
    names = "APH" if triples else "AP"
    read = {
        name: torch.tensor(methods["inputs"][name], dtype=torch.float64)
        for name in ("A", "P", "H", "GA", "GP", "GH")
    }
    return batch(
        torch.cat([read[name] for name in names]), torch.cat([read[f"G{name}"] for name in names]), len(names)
    )


VALUES: dict[str, tuple[bool, tuple[Direction, ...], dict[str, float]]] = {
    "gist_pairs_T0.1": (False, GIST, {}),
    "gist_triples_T0.1": (True, GIST, {}),
    "gist_triples_T0.1_abs0.1": (True, GIST, {"absolute_margin": 0.1}),
    "gist_triples_T0.1_rel0.05": (True, GIST, {"relative_margin": 0.05}),
    "gist_pairs_T0.1_no_aa_no_pp": (False, GIST[:1], {}),
}


@pytest.mark.parametrize("key", VALUES)
def test_value_of(key: str, methods: dict[str, Any]) -> None:
    triples, directions, margins = VALUES[key]
    found = value(gist(directions, **margins), of_sheet(methods, triples))
    assert found == pytest.approx(methods[key], abs=DIGITS)


def test_a_text_is_never_its_own_negative(methods: dict[str, Any]) -> None:
    """In the authors' function it is, where the guide finds both texts of a pair equal, as in SimCSE's pairs."""
    own = torch.tensor(methods["inputs"]["A"][:3], dtype=torch.float64)
    known = torch.eye(3, dtype=torch.float64)  # a pair has a cosine of 1, and nothing is above it
    rows = batch(torch.cat([own, own]), torch.cat([known, known]), roles=2, ids=torch.tensor([0, 1, 2] * 2))
    total = 0.0
    for i in range(3):
        row = [reference.cosine(own[i].tolist(), p) / T_GIST for p in own.tolist()]
        total += reference.cross_entropy(row[i], [row[i], *3 * [*row[:i], *row[i + 1 :]]])
    assert value(gist(), rows) == pytest.approx(total / 3, abs=DIGITS)


def slow_gist(rows: Encoded, directions: tuple[str, ...], margin: float, share: float) -> float:
    """GIST over Python's numbers: the mean of the pairs' terms."""
    n, k = len(rows.role_ids("anchor")), len(rows.slots)
    texts, known, ids = (
        each.reshape(k, n, -1).tolist() for each in (rows.embeddings, rows.guides["teacher"], rows.text_ids)
    )
    total = 0.0
    for i in range(n):
        own = {ids[0][i][0], ids[1][i][0]}
        bound = reference.cosine(known[0][i], known[1][i])
        bound -= margin + share * abs(bound)
        logits = [reference.cosine(texts[0][i], texts[1][i]) / T_GIST]
        looks = [(0, 1), *((0, role) for role in range(2, k))]
        looks += [(0, 0)] if "query_to_query" in directions else []
        looks += [(1, 1)] if "doc_to_doc" in directions else []
        for row, column in looks:
            for j in range(n):
                is_own = (row, column, j) == (0, 1, i)
                if (
                    not is_own
                    and ids[column][j][0] not in own
                    and reference.cosine(known[row][i], known[column][j]) <= bound
                ):
                    logits.append(reference.cosine(texts[row][i], texts[column][j]) / T_GIST)
        total += reference.cross_entropy(logits[0], logits)
    return total / n


def guided(n: int, roles: int, kinds: int, seed: int) -> Encoded:
    noise = torch.Generator().manual_seed(seed)
    texts, known = (torch.randn(n * roles, size, generator=noise, dtype=torch.float64) for size in (4, 3))
    return batch(texts, known, roles, ids=torch.randint(kinds, (n * roles,), generator=noise))


@pytest.mark.parametrize("directions", [GIST[:1], GIST[::2], GIST])
@given(
    n=st.integers(1, 6), roles=st.integers(2, 3), kinds=st.sampled_from([3, 10**9]),
    margin=st.sampled_from([0.0, 0.2]), share=st.sampled_from([0.0, 0.3]), seed=st.integers(0, 2**31),
)  # fmt: skip
def test_it_equals_the_double_loop(
    directions: tuple[Direction, ...], n: int, roles: int, kinds: int, margin: float, share: float, seed: int
) -> None:
    rows = guided(n, roles, kinds, seed)
    objective = gist(directions, absolute_margin=margin, relative_margin=share)
    objective.columns = [part for part in objective.columns if not isinstance(part, Siblings)]
    assert value(objective, rows) == pytest.approx(slow_gist(rows, directions, margin, share), abs=DIGITS)


def test_texts_that_a_row_is_pulled_to_stay() -> None:
    rows = guided(8, roles=2, kinds=10**9, seed=3)
    rows = replace(rows, text_ids=torch.cat([torch.tensor([1, 1, 1, 2, 2, 3, 4, 5]), rows.text_ids[8:]]))
    # Every positive is as near as the own one.
    rows = replace(rows, guides={"teacher": torch.cat([torch.eye(8), torch.ones(8, 8)]).double()})
    attract = [Duplicates(), Siblings("positive")]
    every = Contrastive(InfoNCE(T_GIST), columns=[*attract])
    kept = Contrastive(InfoNCE(T_GIST), columns=[*attract, FalseNegatives("teacher", absolute_margin=0.1)])
    assert value(kept, rows) < value(every, rows)
    own = [0, 1, 2, 8, 9, 10]
    pulled = batch(rows.embeddings[own], rows.guides["teacher"][own], roles=2, ids=rows.text_ids[own])
    assert value(kept, pulled) == pytest.approx(value(every, pulled), abs=DIGITS)


def test_past_columns_and_hard_negatives_are_removed_as_others_are() -> None:
    def of(margin: float, *further: ColumnPart) -> Contrastive:
        columns = [Duplicates(), Siblings(), FalseNegatives("teacher", absolute_margin=margin), *further]
        return Contrastive(InfoNCE(T_GIST), columns=columns)

    rows = guided(6, roles=2, kinds=10**9, seed=4)
    labeled = replace(rows, target=torch.tensor([1.0, 1, 0, 1, 0, 1]))
    assert value(of(3.0, NegativesAsHard()), labeled) == pytest.approx(0, abs=DIGITS)  # all are too near
    queued, loose, again = of(3.0, Queue(20)), of(0.0, Queue(20)), of(0.0, Queue(20))
    for objective in (queued, loose):
        objective(guided(6, roles=2, kinds=10**9, seed=5))
        objective.finish_step()
    assert value(queued, rows) == pytest.approx(0, abs=DIGITS)
    again.load_state_dict(loose.state_dict())
    assert value(again, rows) == value(loose, rows)


def test_equal_cosines_are_not_above_whatever_the_part() -> None:
    noise = torch.Generator().manual_seed(0)
    known = torch.nn.functional.normalize(torch.randn(64, 384, generator=noise), dim=1)
    for size in (1, 7, 64):
        bound = torch.cat([(known[at : at + size] @ known.T).diagonal(at) for at in range(0, 64, size)])
        near = GuideMask(known, known, bound)
        for at in range(0, 64, 5):
            span = slice(at, at + 5)
            assert not near.part(span, span).mask().diagonal().any()
    several = GuideMask(known, known, torch.linspace(-0.1, 0.1, 64))
    assert torch.equal(several.part(slice(5, 20), slice(30, 50)).mask(), several.mask()[5:20, 30:50])


@pytest.mark.parametrize("directions", [GIST[:1], GIST])
@given(
    n=st.integers(1, 6), roles=st.integers(2, 3), kinds=st.sampled_from([3, 10**9]),
    margin=st.sampled_from([0.0, 0.1]), streamed=st.booleans(), seed=st.integers(0, 2**31),
)  # fmt: skip
def test_masking_by_own_scores_equals_the_double_loop(
    directions: tuple[Direction, ...], n: int, roles: int, kinds: int, margin: float, streamed: bool, seed: int
) -> None:
    """The margin is added to the positive's cosine, where a guide's margins are subtracted."""
    rows = guided(n, roles, kinds, seed)
    loss = InfoNCE(T_GIST, directions=directions, streamed=streamed)
    objective = Contrastive(loss, columns=[Duplicates(), MaskAbovePositive(margin)])
    own = replace(rows, guides={"teacher": rows.embeddings})
    assert value(objective, rows) == pytest.approx(slow_gist(own, directions, -margin, 0.0), abs=DIGITS)


def test_own_scores_mask_hard_negatives_and_past_columns_too() -> None:
    """Hard negatives equal the anchors, whose cosine with every positive is 0.6."""
    anchor, positive = torch.tensor([[1.0, 0.0], [0.6, 0.8]], dtype=torch.float64)
    triples = torch.stack([anchor] * 4 + [positive] * 4 + [anchor] * 4)
    objective = contrast(InfoNCE(T_GIST), MaskAbovePositive(), Queue(20))
    for step, columns in enumerate([4, 8]):  # the positives of the batch, then those of the first step too
        rows = batch(triples, triples, roles=3, ids=torch.arange(12) + 12 * step)
        assert value(objective, rows) == pytest.approx(math.log(columns), abs=DIGITS)
        objective.finish_step()
    texts = torch.stack([anchor] * 4 + [positive] * 2 + [anchor] * 2)
    labeled = batch(texts, texts, roles=2, target=torch.tensor([1.0, 1, 0, 0]))
    alone = contrast(InfoNCE(T_GIST), MaskAbovePositive(), NegativesAsHard())
    assert value(alone, labeled) == pytest.approx(math.log(2), abs=DIGITS)


def test_what_own_scores_remove_is_logged() -> None:
    rows = guided(9, roles=2, kinds=10**9, seed=6)
    cosines = torch.nn.functional.cosine_similarity(rows.embeddings[:9, None], rows.embeddings[None, 9:], dim=2)
    masked = cosines > cosines.diagonal().unsqueeze(1) + 0.1
    logs = contrast(InfoNCE(T_GIST), MaskAbovePositive())(rows).logs
    assert float(logs["removed"]) == pytest.approx(float(masked.sum(dim=1).double().mean()))
    assert "guide_agreement" not in logs


@pytest.mark.parametrize("streamed", [False, True])
def test_hard_negatives_alone_are_those_of_the_row(streamed: bool) -> None:
    """Without those of other rows each anchor has a softmax over its positive and its own hard negatives."""
    noise = torch.Generator().manual_seed(0)
    anchor, positive = torch.randn(2, 5, 4, generator=noise, dtype=torch.float64)
    negative = torch.randn(5, 3, 4, generator=noise, dtype=torch.float64)
    slots = (*PAIR, *(Slot("negative", i) for i in range(3)))
    texts = torch.cat([anchor, positive, *negative.unbind(1)])
    ids = torch.arange(25)
    ids[10:].reshape(3, 5)[2, 1:3] = MASKED_ID  # two rows have a hard negative fewer
    rows = Encoded(texts, slots, ids)
    loss = InfoNCE(T_GIST, streamed=streamed)
    total = 0.0
    for i in range(5):
        own = [positive[i], *negative[i][: 2 if i in (1, 2) else 3]]
        logits = [reference.cosine(anchor[i].tolist(), text.tolist()) / T_GIST for text in own]
        total += reference.cross_entropy(logits[0], logits)
    alone = contrast(loss, MaskBatch(hard_negatives=True))
    assert value(alone, rows) == pytest.approx(total / 5, abs=DIGITS)
    assert value(contrast(loss, MaskBatch()), rows) > total / 5
    assert alone.describe_negatives(64, 1, 3).startswith("3 per anchor: 3 hard negatives;")


def test_what_is_removed_and_how_far_both_agree_is_logged() -> None:
    rows = guided(9, roles=2, kinds=10**9, seed=6)
    same = replace(rows, guides={"teacher": rows.embeddings})
    kept = contrast(InfoNCE(T_GIST), FalseNegatives("teacher"))
    logs = kept(same).logs
    assert float(logs["guide_agreement"]) == pytest.approx(1)
    assert 0 < float(logs["removed"]) < 8
    wide = Matryoshka(kept, dims=[4, 2])
    assert wide.guides == ("teacher",)
    assert float(wide(same).logs["guide_agreement@2"]) < 1
