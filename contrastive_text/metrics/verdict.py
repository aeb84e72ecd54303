"""Verdict on a training run: scores before and after training, with an interval of their difference."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from contrastive_text.core.storage.checkpoints import BestCheckpointState, RowScores
from contrastive_text.metrics.bootstrap import PairedBootstrap, paired_bootstrap_mean, paired_bootstrap_spearman
from contrastive_text.metrics.similarity import spearman

Mode = Literal["max", "min"]
"""Direction of a metric: whether its best value is the largest (``max``) or the smallest (``min``)."""
_LOW_IS_GOOD = ("loss", "alignment", "uniformity", "mean_cosine", "off_diagonal", "hubness", "orphans")
"""Endings of the names of metrics for which lower values are better."""
FEWEST_ROWS = 10
"""Smallest number of held-out rows for an interval. From fewer rows, its ends are hardly more than the rows."""
_SEED = 42


def usual_mode(figure: str) -> Mode:
    """Returns ``max`` or ``min``: whether larger or smaller values of a metric are better, by the metric's name.

    Example:
        >>> usual_mode("val/spearman"), usual_mode("val/uniformity"), usual_mode("diagnose:effective_rank")
        ('max', 'min', 'max')
    """
    return "min" if figure.replace(":", "/").rpartition("/")[2] in _LOW_IS_GOOD else "max"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Comparison of a score of two models on the same held-out rows, with a paired bootstrap interval.

    Args:
        name: Name of the score, such as ``val/ndcg@10``.
        before: Score of the first model, or before the first step.
        after: Score of the second model, or of the kept weights.
        mode: ``max`` if a high score is good, ``min`` if a low score is good.
        difference: Bootstrap of ``after`` minus ``before``; None if there is no interval.
        rows: Number of held-out rows as text, such as "127 queries"; without an interval the reason.

    Example:
        >>> draws = torch.linspace(1, 3, 101, dtype=torch.float64)
        >>> verdict = Verdict("val/ndcg@10", 80.0, 82.0, "max", PairedBootstrap(2.0, draws), "127 queries")
        >>> print(verdict)
        Training helped: val/ndcg@10 80.00 before the first step, 82.00 with the kept weights.
        Difference +2.00, 95 % interval +1.05 to +2.95 over 127 queries.
    """

    name: str
    before: float
    after: float
    mode: Mode
    difference: PairedBootstrap | None
    rows: str

    @property
    def change(self) -> int:
        """1 if the second model is better, -1 if it is worse, 0 if the interval contains 0 or is missing."""
        if self.difference is None:
            return 0
        low, high = self.difference.interval()
        side = 1 if low > 0 else -1 if high < 0 else 0
        return side if self.mode == "max" else -side

    @property
    def is_worse(self) -> bool:
        """True if the second model is worse beyond the interval or, without an interval, has a worse score."""
        if self.difference is not None:
            return self.change < 0
        return self.after < self.before if self.mode == "max" else self.after > self.before

    @property
    def answer(self) -> str:
        """Answer to the question whether training helped."""
        return self.words("Training helped", "Training made it worse")

    def words(self, better: str, worse: str) -> str:
        """Returns the first text if the second model is better, and the second text if it is worse."""
        if self.difference is None:
            return worse if self.is_worse else "A better score" if self.after != self.before else "An equal score"
        return {1: better, -1: worse, 0: f"No difference that {self.rows} can show"}[self.change]

    @property
    def interval(self) -> str:
        """Difference of the scores with its interval, as text."""
        change = self._number(self.after - self.before, "+")
        if self.difference is None:
            return f"Difference {change}, without an interval: {self.rows}."
        low, high = (self._number(end, "+") for end in self.difference.interval())
        return f"Difference {change}, 95 % interval {low} to {high} over {self.rows}."

    def scores(self, start: str = "before the first step", end: str = "with the kept weights") -> str:
        """Returns both scores as text, each with the name of its model."""
        return f"{self.name} {self._number(self.before)} {start}, {self._number(self.after)} {end}."

    def __str__(self) -> str:
        """Returns the answer, the scores and the interval, in two lines."""
        return f"{self.answer}: {self.scores()}\n{self.interval}"

    def _number(self, value: float, sign: str = "") -> str:
        return f"{value:{sign}.{4 if self.mode == 'min' else 2}f}"


def compare_rows(
    name: str, before: Mapping[str, RowScores], after: Mapping[str, RowScores], mode: Mode | None = None
) -> Verdict:
    """Compares a score of two models, from their values of the same held-out rows.

    Rows are resampled within their file or data set, as in ``paired_bootstrap_mean`` and
    ``paired_bootstrap_spearman``. Draws have a fixed seed.

    Args:
        name: Name of the score.
        before: File or data set -> values of the first model.
        after: The same for the second model, with the same rows in the same order.
        mode: ``max`` if a high score is good; None for the usual mode of the score.

    Example:
        >>> first, second = (RowScores(torch.arange(20.0).double() + shift) for shift in (0, 5))
        >>> compare_rows("val/ndcg@10", {"held": first}, {"held": second}).change
        1
    """
    draws = torch.Generator().manual_seed(_SEED)
    sizes = [len(scores.values) for scores in before.values()]
    unit = "pairs" if next(iter(before.values())).target is not None else _unit(name)
    rows, parts = f"{sum(sizes):,} {unit}", []
    if min(sizes) < FEWEST_ROWS:
        rows = f"{min(sizes)} {unit} are too few"
    else:
        parts = [_bootstrap(scores, after[file], draws) for file, scores in before.items()]
    return Verdict(
        name=name,
        before=_mean(before),
        after=_mean(after),
        mode=mode or usual_mode(name),
        difference=PairedBootstrap.mean(parts) if parts else None,
        rows=rows,
    )


def verdicts(best: BestCheckpointState) -> list[Verdict]:
    """Compares the kept weights of a run with its initial weights, on the same held-out rows.

    Returns:
        A verdict for each score: ranking scores of held-out rows first, as their loss can fall without a better
        order; then the score that chose the checkpoint. Empty if the initial weights were not validated.
    """
    start, monitor = best.start.get(best.monitor or ""), best.monitor or ""
    names = [name for name in best.rows if is_comparable(best.rows[name], best.start_rows.get(name))]
    names.sort(key=lambda name: (usual_mode(name) == "min", name != monitor))
    lines = [
        compare_rows(name, best.start_rows[name], best.rows[name], _mode(best) if name == monitor else None)
        for name in names
    ]
    if monitor in names or start is None or best.score is None:
        return lines
    kind = "the mean over tasks" if monitor.endswith("/overall") else "not a mean over rows"
    reason = f"{monitor} is {kind}"
    return [Verdict(monitor, start, best.score, _mode(best), None, reason), *lines]


def _mode(best: BestCheckpointState) -> Mode:
    return "min" if best.mode == "min" else "max"


def is_comparable(first: Mapping[str, RowScores], second: Mapping[str, RowScores] | None) -> bool:
    """Returns whether two models have values of the same files, with equal numbers of rows."""
    if second is None or first.keys() != second.keys():
        return False
    return all(len(scores.values) == len(second[file].values) for file, scores in first.items())


def _unit(name: str) -> str:
    return "queries" if name.count("/") == 1 else "rows"  # val/ndcg@10 is a mean over retrieval sets


def _mean(files: Mapping[str, RowScores]) -> float:
    """Returns the validation score: the mean over files."""
    return sum(_score(scores) for scores in files.values()) / len(files)


def _score(scores: RowScores) -> float:
    if scores.target is None:
        return float(scores.values.mean())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about equal cosines, whose correlation is 0
        return 100 * float(spearman(scores.values, scores.target))


def _bootstrap(before: RowScores, after: RowScores, draws: torch.Generator) -> PairedBootstrap:
    if before.target is None:
        return paired_bootstrap_mean(before.values, after.values, generator=draws)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as above
        result = paired_bootstrap_spearman(before.values, after.values, before.target, generator=draws)
    return PairedBootstrap(100 * result.difference, 100 * result.resample_differences)
