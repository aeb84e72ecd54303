"""Targets of supervised objectives: convert a label or score of a file to a number, and a prediction to text."""

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

if TYPE_CHECKING:  # data readers don't need torchmetrics, which is slow to import
    from torchmetrics import Metric

NLI = ("entailment", "neutral", "contradiction")
"""The classes of natural language inference, in the order of their numbers in SNLI and MultiNLI on the hub."""

_HUB_ORDERS = (NLI, ("entailment", "not_entailment"))
"""Class names whose numbers in a file have this fixed order, in whatever order an objective lists the classes."""

UNLABELED = ("-", "-1")
"""Labels in SNLI and MultiNLI of examples that the annotators didn't agree on: in the files and on the hub."""


_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*", re.ASCII)


def parse_number(cell: object) -> float:
    """Converts a cell to the number that it holds in decimal notation; NaN if it holds no number.

    It rejects ``1_000`` and digits of other scripts, which Python's ``float`` accepts. True is 1, false is 0.

    Example:
        >>> parse_number("2.5"), parse_number("1_000"), parse_number(True)
        (2.5, nan, 1.0)
    """
    if not isinstance(cell, str | int | float):
        return math.nan
    try:
        return float(cell) if not isinstance(cell, str) or _NUMBER.fullmatch(cell) else math.nan
    except OverflowError:
        return math.nan


class Target(ABC):
    """Value of an example that a supervised objective learns to predict: a class or a score."""

    @abstractmethod
    def parse(self, cell: str) -> float | None:
        """Converts the cell of a file to a number; None for ``UNLABELED`` cells.

        Raises:
            ValueError: The cell isn't a label or score of this target. The message is "expected ..., got ...;
                advice".
        """

    def describe_labels(self, numbers: Mapping[str, float], rows: Mapping[str, int]) -> str:
        """Describes how the labels of a file were read; for scores their range.

        Args:
            numbers: Label of the file -> its number from ``read``; at least one label.
            rows: Label of the file -> number of rows that have it.
        """
        lowest, highest = (pick(numbers, key=lambda label: numbers[label]) for pick in (min, max))
        return f"{lowest} to {highest} ({sum(rows[label] for label in numbers):,})"

    def is_compatible_with(self, other: Target) -> bool:
        """Returns whether two targets convert labels to the same numbers, so that both can read a column."""
        return self == other

    def missing_classes(self, numbers: Collection[float]) -> list[str]:  # noqa: ARG002  # subclasses use it
        """Returns the names of the classes that don't occur among the given class numbers; empty for scores."""
        return []

    @abstractmethod
    def metric(self) -> tuple[str, Metric]:
        """Returns the name of the score on held-out data, and a new metric that computes it, from 0 to 1.

        Its ``update`` takes predictions from ``Objective.predict``, and targets from ``read``.
        """

    @abstractmethod
    def format(self, predictions: Tensor) -> list[str]:
        """Converts each prediction to text as in a data file: the name of a class, or a score."""


@dataclass(frozen=True)
class Classes(Target):
    """Target of a classification: one of several classes, by name or by number.

    A number is an index into ``names``, with two exceptions. If the names are those of natural language
    inference, a number has the meaning that it has in SNLI, MultiNLI and RTE on the hub, whatever the order of
    ``names`` (ConSERT's code has contradiction first). If a name is a number itself, as in ratings of 1 to 5,
    every number is a name. Case is ignored, and two classes 0 and 1 are also called false and true.

    Args:
        names: The classes, in the order of a classifier's outputs.

    Example:
        >>> nli = Classes(("contradiction", "entailment", "neutral"))
        >>> nli.parse("neutral"), nli.parse("1"), nli.parse("-")
        (2.0, 2.0, None)
    """

    names: tuple[str, ...]

    @classmethod
    def of(cls, classes: int | Sequence[str], where: str) -> Classes:
        """Creates a target from a number of classes, or from their names.

        Args:
            classes: Number of classes, which are then named 0, 1, ..., or the names.
            where: Name of the argument, for the error.

        Raises:
            ValueError: Fewer than two classes, or a repeated name.

        Example:
            >>> Classes.of(3, "classes").names
            ('0', '1', '2')
        """
        names = tuple(str(i) for i in range(classes)) if isinstance(classes, int) else tuple(map(str, classes))
        if len(names) < 2 or len({normalize_label(name) for name in names}) < len(names):
            raise InvalidValueError(
                f"{where}: expected two classes or more of different names, got {classes!r}; give their number "
                "or a list of their names"
            )
        return cls(names)

    def parse(self, cell: str) -> float | None:
        """Converts a label to the number of its class; None for ``UNLABELED`` labels."""
        if cell.strip() in self.names:  # before case is ignored: A and a may be two classes
            return float(self.names.index(cell.strip()))
        label = normalize_label(cell)
        number_of_name = {normalize_label(name).casefold(): index for index, name in enumerate(self.names)}
        if label.casefold() in number_of_name:
            return float(number_of_name[label.casefold()])
        if label in UNLABELED:
            return None
        if set(number_of_name) == {"0", "1"} and label.casefold() in ("false", "true"):
            return float(number_of_name["01"[label.casefold() == "true"]])
        number = _whole(label)
        if (
            number is not None
            and 0 <= number < len(self.names)
            and all(_whole(name) is None for name in number_of_name)
        ):
            order = next((order for order in _HUB_ORDERS if set(order) == set(number_of_name)), None)
            return float(number if order is None else number_of_name[order[number]])
        value, advice = repr(label), "map it with labels, or add it to classes"
        if similar := get_close_matches(label, self.names, n=1):
            advice = f"did you mean {similar[0]}?"
        if not label:
            value, advice = "an empty label", "correct the row, or skip such rows with `labels: {'': '-'}`"
        raise InvalidValueError(f"expected one of the classes {', '.join(self.names)}, got {value}; {advice}")

    def describe_labels(self, numbers: Mapping[str, float], rows: Mapping[str, int]) -> str:
        """Lists the labels of a file with their rows, and the class name of a label that isn't one."""
        labels = sorted(numbers, key=lambda label: numbers[label])
        class_names = {label: self.names[int(numbers[label])] for label in labels}
        return ", ".join(
            f"{label if label == class_names[label] else f'{label} = {class_names[label]}'} ({rows[label]:,})"
            for label in labels
        )

    def missing_classes(self, numbers: Collection[float]) -> list[str]:
        """Returns the names of the classes that don't occur among the given class numbers."""
        return [name for number, name in enumerate(self.names) if number not in numbers]

    def metric(self) -> tuple[str, Metric]:
        """Returns the accuracy: the fraction of examples whose class is predicted correctly."""
        from torchmetrics.classification import MulticlassAccuracy

        return "accuracy", MulticlassAccuracy(num_classes=len(self.names), average="micro")

    def format(self, predictions: Tensor) -> list[str]:
        """Returns the name of the class with the highest score in each row, (N, classes)."""
        return [self.names[int(number)] for number in predictions.argmax(dim=1)]


def _whole(label: str) -> int | None:
    """Returns the integer of a text such as 1 or 1.0, or None."""
    match = re.fullmatch(r"([+-]?[0-9]{1,9})(\.0*)?", label.strip())
    return int(match[1]) if match else None


def normalize_label(cell: str | float) -> str:
    """Normalizes a label: strips blanks, and writes 1.0 as 1 and JSON's true as "true".

    Example:
        >>> normalize_label(" 1.0 "), normalize_label(2), normalize_label(True), normalize_label("neutral")
        ('1', '2', 'true', 'neutral')
    """
    label = str(cell).lower() if isinstance(cell, bool) else str(cell).strip()
    number = _whole(label)
    return label if number is None else str(number)


@dataclass(frozen=True)
class Scores(Target):
    """Target of a regression: a score between two bounds, scaled to the range from 0 to 1.

    Args:
        low: The score of texts that have nothing in common.
        high: The score of texts that mean the same.

    Raises:
        ValueError: Bounds that aren't finite, or ``low`` not below ``high``.

    Example:
        >>> Scores(low=1.0, high=5.0).parse("4")
        0.75
    """

    low: float = 0.0
    high: float = 5.0

    def __post_init__(self) -> None:
        if not -math.inf < self.low < self.high < math.inf:
            raise InvalidValueError(
                f"Scores: expected finite bounds low < high, got {self.low} and {self.high}; 0 and 5"
            )

    def parse(self, cell: str) -> float | None:
        """Converts a score to its fraction of the range from low to high.

        Returns None for -1, if -1 is outside the range: it marks a missing score in GLUE's test files.
        """
        number = parse_number(cell)
        if not self.low <= number <= self.high:
            if normalize_label(cell) in UNLABELED:
                return None
            value = "an empty score" if not cell.strip() else repr(cell)
            raise InvalidValueError(
                f"expected a score from {self.low:g} to {self.high:g}, got {value}; correct the row, or set the "
                f"objective's low and high"
            )
        return (number - self.low) / (self.high - self.low)

    def is_compatible_with(self, other: Target) -> bool:
        """Returns whether the other target is equal, or has the labels 0 and 1 and this one the scores 0 to 1."""
        return self == other or (other == Classes(("0", "1")) and (self.low, self.high) == (0, 1))

    def metric(self) -> tuple[str, Metric]:
        """Returns Pearson's correlation of predicted and gold scores, as in the CS224N report."""
        from torchmetrics import PearsonCorrCoef

        return "pearson", PearsonCorrCoef()

    def format(self, predictions: Tensor) -> list[str]:
        """Converts predictions, (N,), from the range 0 to 1 to the scale of the scores in the file."""
        return [f"{self.low + float(share) * (self.high - self.low):.4f}" for share in predictions]
