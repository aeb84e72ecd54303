"""What the table of a sweep reports of each run: a figure of its validation, or scores of its best weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from contrastive_text.metrics.verdicts import Mode


@dataclass(frozen=True, slots=True)
class Report:
    """A figure that a table reports.

    Args:
        name: As it stands over its column: ``val/spearman``, ``sts:mean``, ``diagnose:uniformity``.
        mode: Whether a high figure is good.
        parts: Names of the scores of a run that it is the mean of; none for a figure of the validation.
        over: What a mean is over, in words.

    Example:
        >>> mean = Report("sts:mean", parts=("sts:STS12", "sts:STS-B"), over="STS12, STS-B")
        >>> mean.figure({}, {"sts:STS12": 60.0, "sts:STS-B": 70.0}), mean.title
        (65.0, 'sts:mean of STS12, STS-B')
    """

    name: str
    mode: Mode = "max"
    parts: tuple[str, ...] = ()
    over: str = ""

    @property
    def title(self) -> str:
        """The name, and for a mean what it is over."""
        return f"{self.name} of {self.over}" if self.over else self.name

    def figure(self, validation: Mapping[str, float], scores: Mapping[str, float]) -> float | None:
        """Returns the figure of a run; None where it lacks one.

        Args:
            validation: Figures of the validation that counts.
            scores: Scores of the best weights.
        """
        if not self.parts:
            return validation.get(self.name)
        found = [scores[part] for part in self.parts if part in scores]
        return math.fsum(found) / len(found) if len(found) == len(self.parts) else None
