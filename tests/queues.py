"""The queue of past columns by slow loops, and steps that fill it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import reference
import torch
from hypothesis import strategies as st

from contrastive_text.core.batch import Encoded
from contrastive_text.core.types import Slot
from contrastive_text.losses import reduce_terms
from contrastive_text.objectives import Contrastive, Objective, Terms
from contrastive_text.objectives.queue import Queue

# Logits of at most 20 in float64, sums of some thirty terms.
ROUNDING = 1e-11
T = 0.2


@dataclass(frozen=True)
class Batch:
    """Vectors and ids of one step by role, example by example; a class for each example, or None."""

    anchors: list[list[float]]
    positives: list[list[float]]
    negatives: list[list[float]]
    ids: tuple[list[int], list[int], list[int]]
    classes: list[int] | None = None

    @property
    def encoded(self) -> Encoded:
        slots = [Slot("anchor", 0), Slot("positive", 0), *([Slot("negative", 0)] if self.negatives else [])]
        return Encoded(
            torch.tensor([*self.anchors, *self.positives, *self.negatives], dtype=torch.float64),
            tuple(slots),
            text_ids=torch.tensor([*self.ids[0], *self.ids[1], *self.ids[2]]),
            target=None if self.classes is None else torch.tensor(self.classes).double(),
        )


def batch(n: int, seed: int, ids: Sequence[int] = (), hard: bool = False, classes: bool = False) -> Batch:
    """Random vectors; the texts of all batches differ unless ids, role by role, are given."""
    noise = torch.Generator().manual_seed(seed)
    vectors = torch.randn(3, n, 4, generator=noise, dtype=torch.float64).tolist()
    texts = list(ids) if ids else list(range(1000 * seed, 1000 * seed + 3 * n))
    return Batch(
        anchors=vectors[0],
        positives=vectors[1],
        negatives=vectors[2] if hard else [],
        ids=(texts[:n], texts[n : 2 * n], texts[2 * n :] if hard else []),
        classes=[(seed + i) % 2 for i in range(n)] if classes else None,
    )


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[Batch], int]:
    """Two to four steps of uneven size over few texts, and a queue that may be shorter than a step."""
    hard, steps = draw(st.booleans()), []
    for _ in range(draw(st.integers(2, 4))):
        n = draw(st.integers(1, 4))
        ids = draw(st.lists(st.integers(0, 9), min_size=3 * n, max_size=3 * n))
        steps.append(batch(n, draw(st.integers(0, 2**31)), ids=ids, hard=hard, classes=True))
    return steps, draw(st.integers(1, 20))


Past = list[tuple[list[float], int, int]]
"""Vector, id and class of each past column, oldest first."""


def slow_terms(step: Batch, past: Past, same_side: bool, masked: bool = True, pulls: bool = False) -> list[float]:
    """A term for each row; with ``pulls`` the mean over the columns of the row's class."""
    n = len(step.anchors)
    classes = step.classes or [0] * n
    texts = [*step.anchors, *step.positives]
    ids = [*step.ids[0], *step.ids[1]]
    terms = []
    for i in range(2 * n if same_side else n):
        partner = (i + n) % (2 * n)
        own = {ids[i], ids[partner]} if masked else set()
        logits, pulled = [], []
        for j in range(0 if same_side else n, 2 * n):
            if j == partner or (j != i and ids[j] not in own):
                logits.append(reference.cosine(texts[i], texts[j]) / T)
                if j == partner or (pulls and classes[j % n] == classes[i % n]):
                    pulled.append(logits[-1])
        for vector, text in zip(step.negatives, step.ids[2], strict=True):
            if text not in own:
                logits.append(reference.cosine(texts[i], vector) / T)
        for vector, text, kind in past:
            if text not in own:
                logits.append(reference.cosine(texts[i], vector) / T)
                if pulls and kind == classes[i % n]:
                    pulled.append(logits[-1])
        terms.append(sum(reference.cross_entropy(logit, logits) for logit in pulled) / len(pulled))
    return terms


def slow_push(past: Past, step: Batch, same_side: bool, size: int) -> Past:
    """The queue after a step."""
    classes = step.classes or [0] * len(step.anchors)
    entered = list(zip(step.anchors, step.ids[0], classes, strict=True)) if same_side else []
    entered += zip(step.positives, step.ids[1], classes, strict=True)
    entered += [(vector, text, -1) for vector, text in zip(step.negatives, step.ids[2], strict=True)]
    return [*past, *entered][-size:]


def value(terms: Terms) -> float:
    return float(reduce_terms(terms.total, max(terms.count, 1), terms.reduction))


def train(objective: Objective, steps: Sequence[Batch]) -> list[float]:
    """The loss of every step, as the module goes through them."""
    losses = []
    for step in steps:
        losses.append(value(objective(step.encoded)))
        objective.finish_step()
    return losses


def held(objective: Objective, comparison: str = "texts") -> dict[str, Any]:
    """The extra state of the objective's queue for a comparison."""
    return dict(objective.state_dict()["column_modules.Queue._extra_state"].get(comparison, {}))


def fill(objective: Objective) -> list[int]:
    """Columns in each queue of the objective."""
    queues = [part for part in objective.modules() if isinstance(part, Queue)]
    names = objective._between.compared if isinstance(objective, Contrastive) else ("texts",)
    return [part.filled(name) for part in queues for name in names]
