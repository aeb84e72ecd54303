"""Rows cut into documents, without a copy of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Self, overload

import numpy as np

from contrastive_text.core.types import Row


class Documents(Sequence[Sequence[Row]]):
    """The rows of each document, in its order, as ``Pairing.arrange`` takes them.

    Args:
        rows: Those of all documents, one after another; they may be mapped and need not be in memory.
        sizes: Rows of each.

    Attributes:
        ends: Where each document ends, (N,), int64.

    Example:
        >>> documents = Documents([{"text": "a"}, {"text": "b"}, {"text": "c"}], sizes=[2, 1])
        >>> list(documents)
        [[{'text': 'a'}, {'text': 'b'}], [{'text': 'c'}]]
    """

    def __init__(self, rows: Sequence[Row], sizes: Iterable[int]) -> None:
        self.rows = rows
        self.ends = np.cumsum(np.fromiter(sizes, np.int64))

    @classmethod
    def of(cls, documents: Sequence[Sequence[Row]]) -> Self:
        """Takes documents of another form."""
        if isinstance(documents, cls):
            return documents
        return cls(list(chain.from_iterable(documents)), map(len, documents))

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, index: int) -> Sequence[Row]: ...

    @overload
    def __getitem__(self, index: slice) -> list[Sequence[Row]]: ...

    def __getitem__(self, index: int | slice) -> Sequence[Row] | list[Sequence[Row]]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        return self.rows[int(self.ends[place - 1]) if place else 0 : int(self.ends[place])]
