"""Targets: how a label or a score of a file becomes a number, and a prediction a word again."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from torch import Tensor
from torchmetrics import Metric, PearsonCorrCoef
from torchmetrics.classification import MulticlassAccuracy

NLI = ("entailment", "neutral", "contradiction")
"""The classes of natural language inference, in the order of their numbers in SNLI and MultiNLI on the hub."""

_HUB_ORDERS = (NLI, ("entailment", "not_entailment"))
"""What the numbers of a file mean where its classes have these names, in whatever order an objective has them."""

UNLABELLED = ("-", "-1")
"""What SNLI and MultiNLI write where the annotators did not agree: the files, and their copies on the hub."""


class Target(ABC):
    """What a supervised objective learns to predict of an example."""

    @abstractmethod
    def read(self, cell: str) -> float | None:
        """Gives the number that stands for a cell of a file; None for one of ``UNLABELLED``.

        Raises:
            ValueError: No label or score of this target; the message is "expected ..., got ...; what to do".
        """

    @abstractmethod
    def metric(self) -> tuple[str, Metric]:
        """Gives the name of the score on held-out data, and a fresh metric that computes it from 0 to 1.

        Its ``update`` takes predictions as ``Objective.predict`` gives them, and targets as ``read`` does.
        """

    @abstractmethod
    def write(self, predictions: Tensor) -> list[str]:
        """Gives each prediction in the words of a file: the name of a class, or a score."""


@dataclass(frozen=True)
class Classes(Target):
    """One of several classes, by name or by number.

    A number is a place among ``names``, unless these are the names of natural language inference: there it has
    the meaning of SNLI, MultiNLI and RTE on the hub, whatever the order here (ConSERT's code has contradiction
    first).

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
        """Gives so many classes, or those of the given names.

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
        if len(names) < 2 or len(set(names)) < len(names):
            raise ValueError(
                f"{where}: expected two classes or more of different names, got {classes!r}; give their number "
                "or a list of their names"
            )
        return cls(names)

    def read(self, cell: str) -> float | None:
        """Gives the number of the class that a label names."""
        label = cell.strip()
        if label in self.names:
            return float(self.names.index(label))
        if label in UNLABELLED:
            return None
        if (number := _whole(label)) is not None:
            order = next((order for order in _HUB_ORDERS if set(order) == set(self.names)), self.names)
            if 0 <= number < len(order):
                return float(self.names.index(order[number]))
        by_case = {name.casefold(): place for place, name in enumerate(self.names)}
        if label.casefold() in by_case:
            return float(by_case[label.casefold()])
        near = get_close_matches(label, self.names, n=1)
        advice = (
            f"did you mean {near[0]}?" if near else "map it with labels, or add it to classes"
        )
        got = "an empty label" if not label else repr(label)
        raise ValueError(f"expected one of the classes {', '.join(self.names)}, got {got}; {advice}")

    def metric(self) -> tuple[str, Metric]:
        """Gives the share of right classes."""
        return "accuracy", MulticlassAccuracy(num_classes=len(self.names), average="micro")

    def write(self, predictions: Tensor) -> list[str]:
        """Gives the name of the highest of each row's scores, (N, classes)."""
        return [self.names[int(number)] for number in predictions.argmax(dim=1)]


def _whole(label: str) -> int | None:
    """Gives a whole number written as 1 or 1.0."""
    try:
        number = float(label)
    except ValueError:
        return None
    return int(number) if math.isfinite(number) and number == int(number) else None


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
            raise ValueError(
                f"Scores: expected finite bounds low < high, got {self.low} and {self.high}; 0 and 5"
            )

    def read(self, cell: str) -> float | None:
        """Gives the score as a share of the way from low to high."""
        try:
            number = float(cell)
        except ValueError:
            number = math.nan
        if not self.low <= number <= self.high:
            got = "an empty score" if not cell.strip() else repr(cell)
            raise ValueError(
                f"expected a score from {self.low:g} to {self.high:g}, got {got}; mend the row, or set the "
                "objective's low and high"
            )
        return (number - self.low) / (self.high - self.low)

    def metric(self) -> tuple[str, Metric]:
        """Gives Pearson's correlation, as the CS224N report has it."""
        return "pearson", PearsonCorrCoef()

    def write(self, predictions: Tensor) -> list[str]:
        """Gives each prediction (N,) on the scale of the file."""
        return [f"{self.low + float(share) * (self.high - self.low):.4f}" for share in predictions]
