"""Batches of the texts of a retrieval set, of which each carries its number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from contrastive_text.core.batch import Batch
from contrastive_text.core.types import Row
from contrastive_text.data.collator import Collator, KeyedRow
from contrastive_text.data.retrieval.judged import RetrievalSet

Side = Literal["anchor", "positive"]
"""The role of the queries, and of the documents."""


class Ranked(NamedTuple):
    """The queries or the documents of a retrieval set.

    Args:
        name: Of the set.
        data: The set.
        side: Which of the two.
    """

    name: str
    data: RetrievalSet
    side: Side

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts by number."""
        return self.data.queries if self.side == "anchor" else self.data.documents

    @property
    def rows(self) -> list[Row]:
        """The texts with their numbers, long ones first, so that those of a batch are of like length."""
        texts = self.texts
        order = sorted(range(len(texts)), key=lambda number: len(texts[number]), reverse=True)
        return [{"text": texts[number], "target": float(number)} for number in order]


class RankedCollator:
    """Makes batches of the texts of one side, in its role; their targets are the numbers of the texts.

    Args:
        collator: Whose pairing gives each text as anchor and as positive.
        ranked: Whose texts these are.
    """

    def __init__(self, collator: Collator, ranked: Ranked) -> None:
        self.collator = collator
        self.ranked = ranked

    def __call__(self, items: Sequence[KeyedRow]) -> Batch:
        """Returns the batch of the rows, without the copies in the other role."""
        batch = self.collator(items)
        return batch.split(batch.by_role(self.ranked.side))
