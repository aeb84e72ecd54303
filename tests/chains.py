"""Chains of column parts by slow loops, and steps that fill a queue."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import reference
import torch
from hypothesis import strategies as st

from contrastive_text.core.batch import Encoded
from contrastive_text.core.types import Slot
from contrastive_text.losses import Loss, reduce_terms
from contrastive_text.losses.comparison import Joined
from contrastive_text.objectives import (
    ColumnPart,
    Contrastive,
    Duplicates,
    Objective,
    Queue,
    SameClass,
    Siblings,
    Terms,
)

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


@dataclass(frozen=True)
class Text:
    """A text as a row or a column: its vector and id, the text that it belongs with, and its class."""

    vector: list[float]
    text: int
    partner: int | None = None
    kind: int = -1


def sides(rows: Encoded) -> tuple[list[Text], list[Text], list[Text]]:
    """Anchors, positives and hard negatives; one of these that is a positive has the first such one's partner."""
    n = len(rows.role_ids("anchor"))
    vectors, ids = rows.embeddings.tolist(), rows.text_ids.tolist()
    kinds = [0] * n if rows.target is None else rows.target.long().tolist()
    anchors = [Text(vectors[i], ids[i], ids[i + n], kinds[i]) for i in range(n)]
    positives = [Text(vectors[i + n], ids[i + n], ids[i], kinds[i]) for i in range(n)]
    partner = {each.text: each.partner for each in reversed(positives)}
    places = [place for i in range(n) for place in range(2 * n + i, len(ids), n)]  # example by example
    hard = [Text(vectors[i], ids[i], partner.get(ids[i])) for i in places]
    return anchors, positives, hard


# Ways of a chain: duplicates kept or masked; siblings kept, masked or positives; texts of a class positives.
WAYS: list[dict[str, Any]] = [
    {"masked": False},
    {},
    {"siblings": "mask"},
    {"siblings": "positive"},
    {"siblings": "positive", "joined": "sum"},
]


def chain(
    masked: bool = True, siblings: str = "keep", joined: Joined = "mean", classes: bool = False
) -> list[ColumnPart]:
    """The column parts of a way."""
    ways: dict[str, list[ColumnPart]] = {
        "keep": [],
        "mask": [Siblings()],
        "positive": [Siblings("positive", joined)],
    }
    return [*([Duplicates()] if masked else []), *ways[siblings], *([SameClass(2)] if classes else [])]


def contrast(loss: Loss, *columns: ColumnPart) -> Contrastive:
    """An objective of the default columns and further ones."""
    return Contrastive(loss, columns=[Duplicates(), Siblings(), *columns])


def _slow_term(
    row: Text,
    target: Text,
    columns: list[Text],
    masked: bool = True,
    siblings: str = "keep",
    joined: str = "mean",
    classes: bool = False,
) -> float:
    """The term of a row; ``columns`` hold the very target, and not the row."""
    own = {row.text, row.partner}
    logits, pulled = [], []
    for column in columns:
        logit = reference.cosine(row.vector, column.vector) / T
        is_sibling = column.partner in own
        if column is not target and ((masked and column.text in own) or (siblings == "mask" and is_sibling)):
            continue
        logits.append(logit)
        is_pulled = (siblings == "positive" and is_sibling) or (classes and column.kind == row.kind)
        if column is target or is_pulled:
            pulled.append(logit)
    if joined == "sum":
        return math.log(math.fsum(map(math.exp, logits))) - math.log(math.fsum(map(math.exp, pulled)))
    return sum(reference.cross_entropy(logit, logits) for logit in pulled) / len(pulled)


def slow_terms(rows: Encoded, loss: Loss, past: Sequence[Text] = (), **how: Any) -> list[float]:
    """All terms of a batch: forward, and as the loss has it backward or of both sides at once."""
    anchors, positives, hard = sides(rows)
    known = {each.text: each.partner for each in reversed(positives)}
    met = [replace(each, partner=known.get(each.text)) if each.partner is None else each for each in past]
    forward, backward = list(zip(anchors, positives, strict=True)), list(zip(positives, anchors, strict=True))
    if loss.same_side:
        columns = [*anchors, *positives, *hard, *met]
        pairs = [*forward, *backward]
        return [_slow_term(a, b, [c for c in columns if c is not a], **how) for a, b in pairs]
    terms = [_slow_term(a, b, [*positives, *hard, *met], **how) for a, b in forward]
    if loss.reduction == "two_sided":
        terms += [_slow_term(a, b, anchors, **how) for a, b in backward]
    return terms


def pushed(past: Sequence[Text], rows: Encoded, loss: Loss, size: int) -> list[Text]:
    """The past columns after a step, oldest first."""
    anchors, positives, hard = sides(rows)
    return [*past, *(anchors if loss.same_side else []), *positives, *hard][-size:]


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
    names = objective._between.comparison_names if isinstance(objective, Contrastive) else ("texts",)
    return [part.column_count(name) for part in queues for name in names]
