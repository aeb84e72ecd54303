"""How many rows have an anchor that has other positives too, and how many meet one in a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice

from contrastive_text.core.types import Row

_LOOKED_AT = 100_000
"""Rows that are looked at: enough for an estimate, and a tenth of a second."""


def sibling_rows(rows: Sequence[Row], batch_size: int, labelled: bool = False) -> tuple[int, float, int]:
    """Returns how many rows' anchors have another positive in other rows, and the share that meets one in a step.

    Batches are taken for random draws: of n rows, b in a step, one with g siblings meets some with a probability
    of nearly ``1 - ((n - b) / (n - 1))^g``.

    Args:
        rows: Those with an anchor and a positive count; the first 100,000 are looked at.
        batch_size: Examples of a step.
        labelled: Whether the target 0 says that a row's texts don't belong together; such rows are no siblings.

    Returns:
        Rows with siblings, the expected share of rows that meet one, and the rows that were looked at.

    Example:
        >>> rows = [{"anchor": "a", "positive": text} for text in "bcd"] + [{"anchor": "e", "positive": "f"}]
        >>> sibling_rows(rows, batch_size=4)
        (3, 0.75, 4)
    """
    pairs = [
        (row["anchor"], row["positive"])
        for row in islice(rows, _LOOKED_AT)
        if "anchor" in row and "positive" in row and not (labelled and row.get("target") == 0)
    ]
    of_anchor = Counter(anchor for anchor, _ in pairs)
    copies = Counter(pairs)
    counts = [of_anchor[pair[0]] - copies[pair] for pair in pairs]
    apart = max(len(rows) - batch_size, 0) / max(len(rows) - 1, 1)
    met = sum(1 - apart**count for count in counts)
    return sum(map(bool, counts)), met / max(len(pairs), 1), len(pairs)
