"""GISTEmbed: candidates that a guide finds nearer than a row's own pair are none, in any loss and any form."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from contrastive_text.core.batch import Encoded
from contrastive_text.core.types import Slot
from contrastive_text.losses import InfoNCE, reduce_terms
from contrastive_text.losses.comparison import TooNear
from contrastive_text.losses.info_nce import Direction
from contrastive_text.objectives import (
    ColumnPart,
    Contrastive,
    Duplicates,
    FalseNegatives,
    Matryoshka,
    NegativesAsHard,
    Queue,
    Siblings,
)

GIST: tuple[Direction, ...] = ("query_to_doc", "query_to_query", "doc_to_doc")
ROUNDING = 1e-9
T = 0.1
ROLES = ("anchor", "positive", "negative")


def batch(texts: Tensor, known: Tensor, roles: int, ids: Tensor | None = None, **fields: Any) -> Encoded:
    """Texts of some roles, one slot each, with a guide's vectors of them."""
    slots = tuple(Slot(role, 0) for role in ROLES[:roles])  # type: ignore[arg-type]  # of the three
    given_ids = torch.arange(len(texts)) if ids is None else ids
    return Encoded(texts, slots, given_ids, guides={"teacher": known}, **fields)


def value(objective: Contrastive, rows: Encoded) -> float:
    terms = objective(rows)
    return float(reduce_terms(terms.total, terms.count, terms.reduction))


def gist(directions: tuple[Direction, ...] = GIST, **margins: float) -> Contrastive:
    return Contrastive(
        InfoNCE(T, directions=directions),
        columns=[Duplicates(), Siblings(), FalseNegatives("teacher", **margins)],
    )


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
    assert found == pytest.approx(methods[key], abs=ROUNDING)


def test_a_text_is_never_its_own_negative(methods: dict[str, Any]) -> None:
    """In the authors' function it is, where the guide finds both texts of a pair equal, as in SimCSE's pairs."""
    own = torch.tensor(methods["inputs"]["A"][:3], dtype=torch.float64)
    known = torch.eye(3, dtype=torch.float64)  # a pair has a cosine of 1, and nothing is above it
    rows = batch(torch.cat([own, own]), torch.cat([known, known]), roles=2, ids=torch.tensor([0, 1, 2] * 2))
    cosines = [[reference.cosine(a, p) / T for p in own.tolist()] for a in own.tolist()]
    theirs = sum(reference.cross_entropy(row[i], row * 3) for i, row in enumerate(cosines)) / 3
    others = sum(
        reference.cross_entropy(row[i], [row[i], *3 * [c for j, c in enumerate(row) if j != i]])
        for i, row in enumerate(cosines)
    )
    assert theirs == pytest.approx(1.128, abs=1e-3)
    assert theirs > math.log(3)
    assert value(gist(), rows) == pytest.approx(others / 3, abs=ROUNDING)
    assert others / 3 < 0.1


def slow(rows: Encoded, directions: tuple[str, ...], margin: float, share: float) -> float:
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
        logits = [reference.cosine(texts[0][i], texts[1][i]) / T]
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
                    logits.append(reference.cosine(texts[row][i], texts[column][j]) / T)
        total += reference.cross_entropy(logits[0], logits)
    return total / n


def drawn(n: int, roles: int, kinds: int, seed: int) -> Encoded:
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
    rows = drawn(n, roles, kinds, seed)
    objective = gist(directions, absolute_margin=margin, relative_margin=share)
    objective.columns = [part for part in objective.columns if not isinstance(part, Siblings)]
    assert value(objective, rows) == pytest.approx(slow(rows, directions, margin, share), abs=ROUNDING)


def test_texts_that_a_row_is_pulled_to_stay() -> None:
    rows = drawn(8, roles=2, kinds=10**9, seed=3)
    rows = replace(rows, text_ids=torch.cat([torch.tensor([1, 1, 1, 2, 2, 3, 4, 5]), rows.text_ids[8:]]))
    # Every positive is as near as the own one.
    rows = replace(rows, guides={"teacher": torch.cat([torch.eye(8), torch.ones(8, 8)]).double()})
    attract = [Duplicates(), Siblings("positive")]
    every = Contrastive(InfoNCE(T), columns=[*attract])
    guided = Contrastive(InfoNCE(T), columns=[*attract, FalseNegatives("teacher", absolute_margin=0.1)])
    assert value(guided, rows) < value(every, rows)
    kept = [0, 1, 2, 8, 9, 10]
    pulled = batch(rows.embeddings[kept], rows.guides["teacher"][kept], roles=2, ids=rows.text_ids[kept])
    assert value(guided, pulled) == pytest.approx(value(every, pulled), abs=ROUNDING)


def test_past_columns_and_hard_negatives_are_removed_as_others_are() -> None:
    def of(margin: float, *further: ColumnPart) -> Contrastive:
        columns = [Duplicates(), Siblings(), FalseNegatives("teacher", absolute_margin=margin), *further]
        return Contrastive(InfoNCE(T), columns=columns)

    rows = drawn(6, roles=2, kinds=10**9, seed=4)
    labelled = replace(rows, target=torch.tensor([1.0, 1, 0, 1, 0, 1]))
    assert value(of(3.0, NegativesAsHard()), labelled) == pytest.approx(0, abs=ROUNDING)  # all are too near
    queued, loose, again = of(3.0, Queue(20)), of(0.0, Queue(20)), of(0.0, Queue(20))
    for objective in (queued, loose):
        objective(drawn(6, roles=2, kinds=10**9, seed=5))
        objective.finish_step()
    assert value(queued, rows) == pytest.approx(0, abs=ROUNDING)
    again.load_state_dict(loose.state_dict())
    assert value(again, rows) == value(loose, rows)


def test_equal_cosines_are_not_above_whatever_the_part() -> None:
    noise = torch.Generator().manual_seed(0)
    known = torch.nn.functional.normalize(torch.randn(64, 384, generator=noise), dim=1)
    for size in (1, 7, 64):
        bound = torch.cat([(known[at : at + size] @ known.T).diagonal(at) for at in range(0, 64, size)])
        near = TooNear(known, known, bound)
        for at in range(0, 64, 5):
            span = slice(at, at + 5)
            assert not near.part(span, span).mask().diagonal().any()


def test_what_is_removed_and_how_far_both_agree_is_logged() -> None:
    rows = drawn(9, roles=2, kinds=10**9, seed=6)
    same = replace(rows, guides={"teacher": rows.embeddings})
    guided = Contrastive(InfoNCE(T), columns=[Duplicates(), Siblings(), FalseNegatives("teacher")])
    logs = guided(same).logs
    assert float(logs["guide_agreement"]) == pytest.approx(1)
    assert 0 < float(logs["removed"]) < 8
    wide = Matryoshka(guided, dims=[4, 2])
    assert wide.guides == ("teacher",)
    assert float(wide(same).logs["guide_agreement@2"]) < 1
