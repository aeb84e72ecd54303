"""What becomes a negative of a query."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from contrastive_text.core.errors import InvalidValueError

Ranks: TypeAlias = Literal["before", "after"]
Take: TypeAlias = Literal["top", "random"]
Short: TypeAlias = Literal["drop", "keep"]


@dataclass(frozen=True, slots=True)
class Mining:
    """What becomes a negative of a query.

    Candidates are the ``range_max`` texts of the corpus nearest to the query that are neither equal to it nor one
    of its positives, those of its other rows (siblings) among them. Of these the margins, the bounds and ``same``
    remove some, and ``range_min`` skips the nearest. Source: NV-Retriever (Moreira et al. 2024,
    https://arxiv.org/abs/2407.15831), whose best is ``relative_margin=0.05``; rules and defaults as in
    sentence-transformers' ``mine_hard_negatives``, where nothing else is said.

    Differs: there ``range_min`` always skips what is left after removal, and near-duplicates of a positive stay.

    Args:
        negatives: Of each query, at most.
        range_min: How many of the nearest are skipped; by ``ranks``.
        range_max: How many candidates are looked at, nearest first; None for ``range_min`` and ten times as many
            as ``negatives``.
        ranks: Whether ``range_min`` counts all candidates (``before`` any is removed) or those that are left
            (``after``).
        absolute_margin: Removes candidates with a score above that of the query's lowest positive less this.
        relative_margin: The same, less this share of that score.
        max_score: Removes candidates with a score above this.
        min_score: Removes candidates with a score below this.
        same: Removes near-duplicates of a positive of the query: with a cosine of this or more; None for none.
        take: The nearest of those that are left (``top``), or ``random`` ones among them.
        seed: Of these draws; each query has its own, whatever is around it.
        short: What becomes of a query with fewer negatives than asked for: ``drop`` its rows, or ``keep`` those
            that there are.

    Raises:
        ValueError: Numbers out of range, or that leave no candidate.

    Example:
        >>> Mining(negatives=5, relative_margin=0.05).depth
        50
    """

    negatives: int = 3
    range_min: int = 0
    range_max: int | None = None
    ranks: Ranks = "before"
    absolute_margin: float | None = None
    relative_margin: float | None = None
    max_score: float | None = None
    min_score: float | None = None
    same: float | None = 0.97
    take: Take = "top"
    seed: int = 42
    short: Short = "drop"

    def __post_init__(self) -> None:
        for name, number, least in (("negatives", self.negatives, 1), ("range_min", self.range_min, 0)):
            if number < least:
                raise InvalidValueError(f"mine.{name}: expected {least} or more, got {number}")
        if self.depth - self.range_min < self.negatives:
            raise InvalidValueError(
                f"mine.range_max: expected room for {self.negatives} negatives after the first {self.range_min}, "
                f"so {self.range_min + self.negatives} or more, got {self.depth}"
            )
        for name in ("absolute_margin", "relative_margin"):
            margin = getattr(self, name)
            if margin is not None and not 0 <= margin < math.inf:
                raise InvalidValueError(f"mine.{name}: expected 0 or more, got {margin}; 0.05 is usual")
        low = -math.inf if self.min_score is None else self.min_score
        high = math.inf if self.max_score is None else self.max_score
        if not low < high:
            raise InvalidValueError(
                f"mine.min_score: expected less than max_score ({self.max_score}), got {self.min_score}"
            )
        if self.same is not None and not 0 < self.same <= 1:
            raise InvalidValueError(
                f"mine.same: expected a cosine above 0 and at most 1, got {self.same}; try 0.97"
            )
        for name, words in (("ranks", Ranks), ("take", Take), ("short", Short)):
            if getattr(self, name) not in get_args(words):
                raise InvalidValueError(
                    f"mine.{name}: expected {' or '.join(get_args(words))}, got {getattr(self, name)!r}"
                )

    @property
    def depth(self) -> int:
        """How many candidates of a query are looked at."""
        return self.range_min + 10 * self.negatives if self.range_max is None else self.range_max
