"""The formulas, spelt as slow loops over Python numbers; and what the library must not do (own gradients)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from contrastive_text.losses.comparison import MASKED_ID, ExampleVectors

Vector = Sequence[float]
Vectors = Sequence[Vector]


def cosine(u: Vector, v: Vector) -> float:
    """cos(u, v) = u.v / (|u| |v|), 0 if a vector is zero."""
    dot, uu, vv = 0.0, 0.0, 0.0
    for a, b in zip(u, v, strict=True):
        dot += a * b
        uu += a * a
        vv += b * b
    return dot / math.sqrt(uu * vv) if uu > 0 and vv > 0 else 0.0


def cross_entropy(target: float, logits: Sequence[float]) -> float:
    """-log(exp(target) / sum exp(logit)), the largest logit taken out first."""
    largest = max(logits)
    total = 0.0
    for logit in logits:
        total += math.exp(logit - largest)
    return largest + math.log(total) - target


def _ids(count: int, given: Sequence[int] | None, start: int) -> Sequence[int]:
    return range(start, start + count) if given is None else given


def rows(
    anchors: Vectors,
    positives: Vectors,
    negatives: Sequence[Vectors] = (),
    same_side: bool = False,
    anchor_ids: Sequence[int] | None = None,
    positive_ids: Sequence[int] | None = None,
    negative_ids: Sequence[Sequence[int]] | None = None,
) -> list[tuple[float, list[float], list[float]]]:
    """Of each row the cosines with its target, with its own hard negatives and with all other columns seen.

    Rows are the anchors, or with ``same_side`` both sides, which then are columns too; texts of the row's or its
    target's id are left out.
    """
    n = len(anchors)
    texts = [*anchors, *positives]
    ids = [*_ids(n, anchor_ids, 0), *_ids(n, positive_ids, n)]
    found = []
    for i in range(2 * n if same_side else n):
        target = (i + n) % (2 * n)
        own = {ids[i], ids[target], MASKED_ID}
        hard, others = [], []
        for j in range(0 if same_side else n, 2 * n):
            if j not in (i, target) and ids[j] not in own:
                others.append(cosine(texts[i], texts[j]))
        for j in range(len(negatives)):
            for k in range(len(negatives[j])):
                if negative_ids is None or negative_ids[j][k] not in own:
                    (hard if j == i % n else others).append(cosine(texts[i], negatives[j][k]))
        found.append((cosine(texts[i], texts[target]), hard, others))
    return found


def nt_xent(anchors: Vectors, positives: Vectors, *negatives: Vectors, temperature: float, **ids: Any) -> float:
    """Mean of NT-Xent's terms; ``ids`` as for ``rows``."""
    return _mean_cross_entropy(rows(anchors, positives, *negatives, same_side=True, **ids), temperature)


def info_nce(anchors: Vectors, positives: Vectors, *negatives: Vectors, temperature: float, **ids: Any) -> float:
    """Mean of InfoNCE's terms; ``ids`` as for ``rows``."""
    return _mean_cross_entropy(rows(anchors, positives, *negatives, **ids), temperature)


def _mean_cross_entropy(found: list[tuple[float, list[float], list[float]]], temperature: float) -> float:
    terms = [
        cross_entropy(target / temperature, [cosine / temperature for cosine in (target, *own, *others)])
        for target, own, others in found
    ]
    return sum(terms) / len(terms)


Row = tuple[float, list[float], list[float]]
"""Similarities of a row with its target, its own hard negatives and all other columns that it sees."""


def one_way(every: ExampleVectors) -> list[Row]:
    """The rows of the anchors, which look for positives and hard negatives."""
    return _rows_of(every, same_side=False)


def both_ways(every: ExampleVectors) -> list[Row]:
    """The rows of the anchors, then of positives that look for anchors alone."""
    ids = {"anchor_ids": every.positive_ids.tolist(), "positive_ids": every.anchor_ids.tolist()}
    return [*one_way(every), *rows(every.positive.tolist(), every.anchor.tolist(), **ids)]


def both_sides(every: ExampleVectors) -> list[Row]:
    """The rows of all texts of both sides, which are columns too."""
    return _rows_of(every, same_side=True)


def _rows_of(every: ExampleVectors, same_side: bool) -> list[Row]:
    return rows(
        every.anchor.tolist(),
        every.positive.tolist(),
        [] if every.negative is None else every.negative.tolist(),
        same_side,
        every.anchor_ids.tolist(),
        every.positive_ids.tolist(),
        None if every.negative_ids is None else every.negative_ids.tolist(),
    )


def softmax(
    rows: list[Row], t: float = 0.2, log_weight: float = 0.0, own_alpha: float = 0.0, alpha: float = 0.0
) -> list[float]:
    """Cross-entropies of the targets; similarities of negatives count once more by their hardness alpha."""
    return [
        cross_entropy(
            target / t,
            [
                target / t,
                *(c / t + own_alpha * c + log_weight for c in own),
                *(c / t + alpha * c for c in others),
            ],
        )
        for target, own, others in rows
    ]


def decoupled(rows: list[Row], t: float = 0.2, weights: list[float] | None = None) -> list[float]:
    terms = []
    for i, (target, own, others) in enumerate(rows):
        total = sum(math.exp(cosine / t) for cosine in (*own, *others))
        weight = 1.0 if weights is None else weights[i % len(weights)]
        terms.append(math.log(total) - weight * target / t if total else 0.0)
    return terms


def pair_weights(every: ExampleVectors) -> list[float]:
    pairs = zip(every.anchor.tolist(), every.positive.tolist(), strict=True)
    masses = [math.exp(cosine(*pair) / 0.5) for pair in pairs]
    return [2 - len(masses) * mass / sum(masses) for mass in masses]


def debiased(rows: list[Row]) -> list[float]:
    terms = []
    for target, own, others in rows:
        n, e_t = len(own) + len(others), math.exp(target / 0.2)
        total = sum(math.exp(cosine / 0.2) for cosine in (*own, *others))
        kept = max((total - n * 0.1 * e_t) / 0.9, n * math.exp(-1 / 0.2))
        terms.append(math.log(e_t + kept) - target / 0.2)
    return terms


def sigmoids(rows: list[Row]) -> list[float]:
    return [
        math.log1p(math.exp(-(target / 0.2 - 3)))
        + sum(math.log1p(math.exp(cosine / 0.2 - 3)) for cosine in (*own, *others))
        for target, own, others in rows
    ]


def by_class(every: ExampleVectors) -> list[float]:
    """Khosla et al. 2020, eq. 2, text by text: hard negatives are of no class."""
    assert every.target is not None
    n, classes = len(every.anchor), every.target.tolist() * 2
    texts, ids = torch.cat([every.anchor, every.positive]).tolist(), [*every.anchor_ids, *every.positive_ids]
    terms = []
    for i in range(2 * n):
        partner, seen = (i + n) % (2 * n), {int(ids[i]), int(ids[(i + n) % (2 * n)])}
        columns = [j for j in range(2 * n) if j == partner or (j != i and int(ids[j]) not in seen)]
        logits = {j: cosine(texts[i], texts[j]) / 0.2 for j in columns}
        hard = (
            []
            if every.negative is None or every.negative_ids is None
            else [*zip(every.negative.flatten(0, 1).tolist(), every.negative_ids.flatten().tolist(), strict=True)]
        )
        further = [cosine(texts[i], v) / 0.2 for v, text in hard if text not in {*seen, MASKED_ID}]
        pulled = [logit for j, logit in logits.items() if classes[j] == classes[i]]
        terms.append(sum(cross_entropy(each, [*logits.values(), *further]) for each in pulled) / len(pulled))
    return terms


def in_directions(every: ExampleVectors, directions: Sequence[str], log_weight: float = 0.0) -> list[float]:
    """A term for each pair; texts of the row's own ids are left out, except for the pair's own two."""
    a, p = every.anchor.tolist(), every.positive.tolist()
    a_ids, p_ids = every.anchor_ids.tolist(), every.positive_ids.tolist()
    terms = []
    for i, (target, own, _) in enumerate(one_way(every)):
        rows = {"query": a[i], "doc": p[i]}
        logits = [cosine / 0.2 + log_weight for cosine in own]
        for direction in directions:
            row, columns = direction.split("_to_")
            for j in range(len(a)):
                column, text = (a[j], a_ids[j]) if columns == "query" else (p[j], p_ids[j])
                if text not in (a_ids[i], p_ids[i]) or (j == i and row != columns):
                    logits.append(cosine(rows[row], column) / 0.2)
        if every.negative is not None and every.negative_ids is not None:
            for j in range(len(a)):
                for v, text in zip(every.negative[j].tolist(), every.negative_ids[j].tolist(), strict=True):
                    if j != i and text not in (a_ids[i], p_ids[i], MASKED_ID):
                        logits.append(cosine(a[i], v) / 0.2)
        terms.append(cross_entropy(target / 0.2, logits))
    return terms


def own_gradient_gather(rows: Tensor) -> Tensor:
    """Gathers equal numbers of rows with a gradient for this rank's own only: what SimCSE's code does.

    Here for comparison; its gradient is 1/W of the whole (L10).
    """
    parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, rows.detach().contiguous())
    parts[dist.get_rank()] = rows
    return torch.cat(parts)
