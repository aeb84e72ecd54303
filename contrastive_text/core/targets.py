"""Targets: how a label or a score of a file becomes a number, and a prediction a word again."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from torch import Tensor

from contrastive_text.core.errors import InvalidValueError

if TYPE_CHECKING:  # readers, on the way from a text to its embedding, do without metrics
    from torchmetrics import Metric

NLI = ("entailment", "neutral", "contradiction")
"""The classes of natural language inference, in the order of their numbers in SNLI and MultiNLI on the hub."""

_HUB_ORDERS = (NLI, ("entailment", "not_entailment"))
"""What the numbers of a file mean where its classes have these names, in whatever order an objective has them."""

UNLABELLED = ("-", "-1")
"""What SNLI and MultiNLI write where the annotators did not agree: the files, and their copies on the hub."""


_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*", re.ASCII)


def number_of(cell: object) -> float:
    """Returns the number that a cell holds, as people write it; NaN where it is none.

    Python would take ``1_000`` and digits of every script too. True and false are 1 and 0.

    Example:
        >>> number_of("2.5"), number_of("1_000"), number_of(True)
        (2.5, nan, 1.0)
    """
    if not isinstance(cell, str | int | float):
        return math.nan
    try:
        return float(cell) if not isinstance(cell, str) or _NUMBER.fullmatch(cell) else math.nan
    except OverflowError:
        return math.nan


class Target(ABC):
    """What a supervised objective learns to predict of an example."""

    @abstractmethod
    def read(self, cell: str) -> float | None:
        """Returns the number that stands for a cell of a file; None for one of ``UNLABELLED``.

        Raises:
            ValueError: No label or score of this target; the message is "expected ..., got ...; what to do".
        """

    def understood(self, numbers: Mapping[str, float], rows: Mapping[str, int]) -> str:
        """Says how the labels of a file were understood; here the range of its scores.

        Args:
            numbers: Label of the file -> its number, as ``read`` gives it; at least one.
            rows: Label of the file -> how many rows have it.
        """
        lowest, highest = (pick(numbers, key=lambda label: numbers[label]) for pick in (min, max))
        return f"{lowest} to {highest} ({sum(rows[label] for label in numbers):,})"

    def serves(self, other: Target) -> bool:
        """Whether its numbers are those of another target too, so that both can read one column."""
        return self == other

    def unseen(self, numbers: Collection[float]) -> list[str]:  # noqa: ARG002  # the contract
        """Returns what could be predicted and is none of the numbers; a score lacks nothing."""
        return []

    @abstractmethod
    def metric(self) -> tuple[str, Metric]:
        """Returns the name of the score on held-out data, and a fresh metric that computes it from 0 to 1.

        Its ``update`` takes predictions as ``Objective.predict`` gives them, and targets as ``read`` does.
        """

    @abstractmethod
    def write(self, predictions: Tensor) -> list[str]:
        """Returns each prediction in the words of a file: the name of a class, or a score."""


@dataclass(frozen=True)
class Classes(Target):
    """One of several classes, by name or by number.

    A number is a place among ``names``, with two exceptions. Where these are the names of natural language
    inference it has the meaning of SNLI, MultiNLI and RTE on the hub, whatever the order here (ConSERT's code has
    contradiction first). Where a name is a number itself, as in ratings of 1 to 5, a number is always a name.
    Case does not count, and two classes 0 and 1 are also called false and true.

    Args:
        names: The classes, in the order of a classifier's outputs.

    Example:
        >>> nli = Classes(("contradiction", "entailment", "neutral"))
        >>> nli.read("neutral"), nli.read("1"), nli.read("-")
        (2.0, 2.0, None)
    """

    names: tuple[str, ...]

    @classmethod
    def of(cls, classes: int | Sequence[str], where: str) -> Classes:
        """Returns so many classes, or those of the given names.

        Args:
            classes: Number of classes, which are then called 0, 1, ..., or their names.
            where: Name of the argument, for the error.

        Raises:
            ValueError: Fewer than two classes, or a name twice.

        Example:
            >>> Classes.of(3, "classes").names
            ('0', '1', '2')
        """
        names = tuple(str(i) for i in range(classes)) if isinstance(classes, int) else tuple(map(str, classes))
        if len(names) < 2 or len({plain_label(name) for name in names}) < len(names):
            raise InvalidValueError(
                f"{where}: expected two classes or more of different names, got {classes!r}; give their number "
                "or a list of their names"
            )
        return cls(names)

    def read(self, cell: str) -> float | None:
        """Returns the number of the class that a label names."""
        if cell.strip() in self.names:  # before case: A and a may be two classes
            return float(self.names.index(cell.strip()))
        label = plain_label(cell)
        places = {plain_label(name).casefold(): place for place, name in enumerate(self.names)}
        if label.casefold() in places:
            return float(places[label.casefold()])
        if label in UNLABELLED:
            return None
        if set(places) == {"0", "1"} and label.casefold() in ("false", "true"):
            return float(places["01"[label.casefold() == "true"]])
        number = _whole(label)
        if number is not None and 0 <= number < len(self.names) and all(_whole(name) is None for name in places):
            order = next((order for order in _HUB_ORDERS if set(order) == set(places)), None)
            return float(number if order is None else places[order[number]])
        got, advice = repr(label), "map it with labels, or add it to classes"
        if near := get_close_matches(label, self.names, n=1):
            advice = f"did you mean {near[0]}?"
        if not label:
            got, advice = "an empty label", "mend the row, or leave such rows out with `labels: {'': '-'}`"
        raise InvalidValueError(f"expected one of the classes {', '.join(self.names)}, got {got}; {advice}")

    def understood(self, numbers: Mapping[str, float], rows: Mapping[str, int]) -> str:
        """Returns the labels of each class and their rows; a label that is no name has the name it stands for."""
        labels = sorted(numbers, key=lambda label: numbers[label])
        named = {label: self.names[int(numbers[label])] for label in labels}
        return ", ".join(
            f"{label if label == named[label] else f'{label} = {named[label]}'} ({rows[label]:,})"
            for label in labels
        )

    def unseen(self, numbers: Collection[float]) -> list[str]:
        """Returns the names of the classes that are none of the numbers."""
        return [name for place, name in enumerate(self.names) if place not in numbers]

    def metric(self) -> tuple[str, Metric]:
        """Returns the share of right classes."""
        from torchmetrics.classification import MulticlassAccuracy

        return "accuracy", MulticlassAccuracy(num_classes=len(self.names), average="micro")

    def write(self, predictions: Tensor) -> list[str]:
        """Returns the name of the highest of each row's scores, (N, classes)."""
        return [self.names[int(number)] for number in predictions.argmax(dim=1)]


def _whole(label: str) -> int | None:
    """Returns a whole number written as 1 or 1.0."""
    found = re.fullmatch(r"([+-]?[0-9]{1,9})(\.0*)?", label.strip())
    return int(found[1]) if found else None


def plain_label(cell: str | float) -> str:
    """Returns a label without blanks around it, and 1.0 as 1; JSON's true is "true".

    Example:
        >>> plain_label(" 1.0 "), plain_label(2), plain_label(True), plain_label("neutral")
        ('1', '2', 'true', 'neutral')
    """
    label = str(cell).lower() if isinstance(cell, bool) else str(cell).strip()
    number = _whole(label)
    return label if number is None else str(number)


@dataclass(frozen=True)
class Scores(Target):
    """A score between two bounds, scaled to 0 .. 1.

    Args:
        low: The score of texts that have nothing in common.
        high: The score of texts that mean the same.

    Raises:
        ValueError: Bounds out of order.

    Example:
        >>> Scores(low=1.0, high=5.0).read("4")
        0.75
    """

    low: float = 0.0
    high: float = 5.0

    def __post_init__(self) -> None:
        if not -math.inf < self.low < self.high < math.inf:
            raise InvalidValueError(
                f"Scores: expected finite bounds low < high, got {self.low} and {self.high}; 0 and 5"
            )

    def read(self, cell: str) -> float | None:
        """Returns the score as a share of the way from low to high.

        A -1 that no score can be stands for a missing one, as in GLUE's test files.
        """
        number = number_of(cell)
        if not self.low <= number <= self.high:
            if plain_label(cell) in UNLABELLED:
                return None
            got = "an empty score" if not cell.strip() else repr(cell)
            raise InvalidValueError(
                f"expected a score from {self.low:g} to {self.high:g}, got {got}; mend the row, or set the "
                "objective's low and high"
            )
        return (number - self.low) / (self.high - self.low)

    def serves(self, other: Target) -> bool:
        """Whether it is the same, or a label 0 or 1 where scores are from 0 to 1; below 1 the label is 0."""
        return self == other or (other == Classes(("0", "1")) and (self.low, self.high) == (0, 1))

    def metric(self) -> tuple[str, Metric]:
        """Returns Pearson's correlation, as the CS224N report has it."""
        from torchmetrics import PearsonCorrCoef

        return "pearson", PearsonCorrCoef()

    def write(self, predictions: Tensor) -> list[str]:
        """Returns each prediction (N,) on the scale of the file."""
        return [f"{self.low + float(share) * (self.high - self.low):.4f}" for share in predictions]
