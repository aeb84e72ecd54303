"""Keys as columns and as what enters a queue: against slow loops, in both methods that are made of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import reference
import torch
from chains import held
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from contrastive_text.core.batch import Encoded
from contrastive_text.core.types import ROLES, Role, Slot
from contrastive_text.losses import InfoNCE, Loss, NTXent, reduce_terms
from contrastive_text.objectives import (
    ColumnPart,
    Contrastive,
    Duplicates,
    MaskBatch,
    Matryoshka,
    Momentum,
    PositivesOnly,
    Queue,
    Siblings,
)

# Logits of at most 20 in float64, sums of some thirty terms.
ROUNDING = 1e-11
T = 0.2
ANCHOR, POSITIVE, NEGATIVE = (Slot(role, 0) for role in ROLES[:3])
Vectors = dict[Role, Tensor]


def chain(queue: int, *parts: ColumnPart) -> list[ColumnPart]:
    """The default columns with a queue, and further parts."""
    return [Duplicates(), Siblings(), Queue(queue), *parts]


def esimcse(loss: Loss | None = None, queue: int = 2, **options: Any) -> Contrastive:  # Any: of Contrastive
    return Contrastive(loss or InfoNCE(T), columns=chain(queue, Momentum(of="anchor")), **options)


def moco(loss: Loss | None = None, queue: int = 2, **options: Any) -> Contrastive:
    return Contrastive(loss or InfoNCE(T), columns=chain(queue, Momentum(), MaskBatch()), **options)


def encoded(objective: Any, own: Vectors, keys: Vectors, ids: dict[Role, list[int]], **more: Any) -> Encoded:
    """Returns an encoded batch with one slot per role: trained vectors, momentum vectors and text ids."""

    def rows(vectors: Vectors) -> Encoded:
        slots = tuple(Slot(role, 0) for role in vectors)
        texts = torch.tensor([text for role in vectors for text in ids[role]])
        return Encoded(torch.cat(list(vectors.values())), slots, texts)

    return replace(rows(own), keys={objective.momentum: rows(keys)}, **more)


def texts(n: int, start: int = 0) -> dict[Role, list[int]]:
    """Ids that all differ."""
    return {role: list(range(start + i * n, start + (i + 1) * n)) for i, role in enumerate(ROLES[:3])}


def step(objective: Contrastive | Matryoshka, rows: Encoded) -> float:
    terms = objective(rows)
    objective.finish_step()
    return float(reduce_terms(terms.total.detach(), max(terms.count, 1), terms.reduction))


def of_sheet(methods: dict[str, Any], name: str) -> Tensor:
    return torch.tensor(methods["inputs"][name], dtype=torch.float64)


# The sheet's values: the queue holds the first two rows of H


def test_esimcse_t0_05_queue_h01(methods: dict[str, Any]) -> None:
    anchors, positives, hard = (of_sheet(methods, name) for name in "APH")
    objective, n = esimcse(InfoNCE(0.05)), len(anchors)
    step(
        objective, encoded(objective, {"anchor": hard[:2], "positive": hard[2:4]}, {"anchor": hard[:2]}, texts(2))
    )
    rows = encoded(objective, {"anchor": anchors, "positive": positives}, {"anchor": hard[:n]}, texts(n, 100))
    assert step(objective, rows) == pytest.approx(methods["esimcse_T0.05_queue_H01"], abs=ROUNDING)


def test_moco_t0_07_queue_h01(methods: dict[str, Any]) -> None:
    anchors, positives, hard = (of_sheet(methods, name) for name in "APH")
    objective, n = moco(InfoNCE(0.07)), len(anchors)
    first = encoded(objective, {"anchor": hard[2:4]}, {"positive": hard[:2]}, texts(2))
    assert step(objective, first) == 0.0  # the queue begins empty
    rows = encoded(objective, {"anchor": anchors}, {"positive": positives}, texts(n, 100))
    assert step(objective, rows) == pytest.approx(methods["moco_T0.07_queue_H01"], abs=ROUNDING)


# Slow loops


def random(n: int, seed: int, roles: tuple[Role, ...]) -> Vectors:
    noise = torch.Generator().manual_seed(seed)
    return {role: torch.randn(n, 4, generator=noise, dtype=torch.float64) for role in roles}


Past = list[tuple[list[float], int]]
"""Vector and id of each past key, oldest first."""


def slow(own: Vectors, keys: Vectors, ids: dict[Role, list[int]], past: Past, in_batch: bool) -> float:
    """The mean of the rows' terms: anchors that look for positives, among hard negatives and past keys."""
    columns = {**own, **keys}
    terms = []
    for i, row in enumerate(own["anchor"].tolist()):
        seen = {ids["anchor"][i], ids["positive"][i]}
        target = reference.cosine(row, columns["positive"][i].tolist()) / T
        logits = [target]
        for role in ("positive", "negative") if in_batch else ("negative",):
            for vector, text in zip(columns.get(role, torch.zeros(0)).tolist(), ids[role], strict=False):
                logits += [reference.cosine(row, vector) / T] if text not in seen else []
        logits += [reference.cosine(row, vector) / T for vector, text in past if text not in seen]
        terms.append(reference.cross_entropy(target, logits))
    return sum(terms) / len(terms)


@given(
    sizes=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    of=st.lists(st.sampled_from(["anchor", "positive", "negative"]), min_size=1, max_size=3, unique=True),
    hard=st.booleans(),
    in_batch=st.booleans(),
    size=st.integers(1, 9),
    few=st.integers(2, 12),
)
def test_keys_are_columns_and_fill_the_queue_as_in_the_double_loop(
    sizes: list[int], of: list[Any], hard: bool, in_batch: bool, size: int, few: int
) -> None:
    roles: tuple[Role, ...] = ("anchor", "positive", "negative") if hard else ("anchor", "positive")
    masked = [] if in_batch else [MaskBatch()]
    objective = Contrastive(InfoNCE(T), columns=[Duplicates(), Queue(size), Momentum(of=of), *masked])
    past: Past = []
    for number, n in enumerate(sizes):
        own, keys = random(n, 2 * number, roles), random(n, 2 * number + 1, tuple(r for r in of if r in roles))
        read = {role: vectors for role, vectors in own.items() if role not in objective.momentum_only_roles}
        drawn = torch.randint(few, (3, n), generator=torch.Generator().manual_seed(number)).tolist()
        ids = dict(zip(ROLES, drawn, strict=False))
        if not keys:
            return
        rows = encoded(objective, read, keys, ids)
        assert step(objective, rows) == pytest.approx(slow(own, keys, ids, past, in_batch), abs=ROUNDING)
        entering = [
            (key, text)
            for role in of
            if role in keys
            for key, text in zip(keys[role].tolist(), ids[role], strict=True)
        ]
        past = [*past, *entering][-size:]
        assert held(objective)["ids"].tolist() == [text for _, text in past]


def test_keys_of_both_sides_are_the_columns_of_both_sides() -> None:
    # NTXent: each row against the keys of all texts but its own, the partner's key its target.
    objective = Contrastive(NTXent(T), columns=[Duplicates(), Siblings(), Momentum(of=["anchor", "positive"])])
    own, keys = random(3, 0, ("anchor", "positive")), random(3, 1, ("anchor", "positive"))
    rows, columns = (torch.cat(list(each.values())).tolist() for each in (own, keys))
    terms = []
    for i, row in enumerate(rows):
        logits = [reference.cosine(row, column) / T for j, column in enumerate(columns) if j != i]
        terms.append(reference.cross_entropy(reference.cosine(row, columns[(i + 3) % 6]) / T, logits))
    assert objective.momentum_only_roles == ()  # positives look for texts too
    assert step(objective, encoded(objective, own, keys, texts(3))) == pytest.approx(sum(terms) / 6, abs=ROUNDING)


# What reaches what


def test_the_gradient_reaches_the_trained_vectors_alone() -> None:
    objective = Contrastive(
        InfoNCE(T), columns=[Duplicates(), Siblings("positive"), Queue(2), Momentum(of="anchor")]
    )
    own = random(3, 0, ("anchor", "positive"))
    step(objective, encoded(objective, own, random(3, 1, ("anchor",)), texts(3)))
    rows = encoded(objective, own, random(3, 2, ("anchor",)), texts(3, 50))
    vectors = rows.embeddings.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda v: objective(replace(rows, embeddings=v)).total, [vectors])


def test_keys_of_negative_pairs_do_not_enter() -> None:
    objective = Contrastive(InfoNCE(T), columns=chain(8, Momentum(of="anchor"), PositivesOnly()))
    own, keys = random(3, 0, ("anchor", "positive")), random(3, 1, ("anchor",))
    step(objective, encoded(objective, own, keys, texts(3), target=torch.tensor([1.0, 0.0, 1.0])))
    assert torch.equal(held(objective)["vectors"], keys["anchor"][[0, 2]])


def test_each_width_has_the_first_features_of_keys() -> None:
    inner = esimcse()
    objective = Matryoshka(inner, dims=[4, 2])
    own, keys = random(3, 0, ("anchor", "positive")), random(3, 1, ("anchor",))
    assert objective.momentum is inner.momentum
    step(objective, encoded(objective, own, keys, texts(3)))
    held = [part.get_extra_state()["texts"]["vectors"] for part in objective.modules() if isinstance(part, Queue)]
    assert [each.shape for each in held] == [(2, 4), (2, 2)]
    assert torch.equal(held[1], keys["anchor"][1:, :2])


def test_evaluation_compares_trained_vectors_within_the_batch() -> None:
    own = random(4, 0, ("anchor", "positive"))
    rows = encoded(esimcse(), own, {"anchor": own["anchor"]}, texts(4))
    rows = replace(rows, keys={})
    for objective in (esimcse(), moco()):
        with pytest.raises(ValueError, match="expected a batch with momentum vectors, got a batch without"):
            objective(rows)
        objective.eval()
        assert step(objective, rows) == step(Contrastive(InfoNCE(T)), rows) > 0


# What is said and refused
