"""Is one model better than another, or were the test pairs lucky? The paired bootstrap of a difference.

Test rows are drawn with replacement, as many as there are; both models are scored on the same draw, and the
difference of their scores is kept (Efron and Tibshirani 1993, "An Introduction to the Bootstrap", chapter 13; for
language processing Koehn 2004, https://aclanthology.org/W04-3250). What varies is the test set: not the seed of a
training, which takes several trainings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from contrastive_text.core.checks import at_least
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.metrics.similarity import spearman

_BLOCK_VALUES = 2**18
"""Draws of one block of resamples: 2 MiB. Those of 2**20 leave the processor's cache and take twice as long."""
_MOST_RESAMPLES = 10**7
"""The smallest p is then 2e-7, and one score of 1,000 pairs takes about an hour."""


@dataclass(frozen=True, slots=True)
class PairedBootstrap:
    """The difference of two models' scores, and the same over resampled test rows.

    Args:
        difference: Second minus first, on the rows themselves.
        resampled: Second minus first, on each resample, (B,), float64.

    Example:
        >>> found = PairedBootstrap(0.6, torch.tensor([0.25, 0.5, 0.75, 1.0], dtype=torch.float64))
        >>> found.interval(confidence=0.5)
        (0.4375, 0.8125)
        >>> found.p_value  # 2 (1 + 0) / (4 + 1): no resample is at 0 or below
        0.4
    """

    difference: float
    resampled: Tensor

    @classmethod
    def mean(cls, parts: Sequence[PairedBootstrap]) -> PairedBootstrap:
        """Returns the difference of mean scores over tasks whose rows were drawn independently.

        Raises:
            ValueError: No tasks, or tasks of another number of resamples.
        """
        if len({len(part.resampled) for part in parts}) != 1:
            raise InvalidValueError(
                "PairedBootstrap.mean: expected one or more tasks of as many resamples each, got "
                f"{[len(part.resampled) for part in parts]}; draw as many for each task"
            )
        return cls(
            difference=sum(part.difference for part in parts) / len(parts),
            resampled=torch.stack([part.resampled for part in parts]).mean(dim=0),
        )

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Returns the percentile interval of the difference (Efron and Tibshirani 1993, section 13.3).

        Raises:
            ValueError: A confidence that is not between 0 and 1.
        """
        if not 0 < confidence < 1:
            raise InvalidValueError(f"interval.confidence: expected a share between 0 and 1, got {confidence}")
        ends = torch.tensor([(1 - confidence) / 2, (1 + confidence) / 2], dtype=torch.float64)
        low, high = self.resampled.quantile(ends).tolist()
        return low, high

    @property
    def p_value(self) -> float:
        """Two-sided p of no difference: what is left outside of the widest interval without 0.

        2 min(1 + #(d <= 0), 1 + #(d >= 0)) / (B + 1), at most 1: the percentile interval turned into a test
        (Efron and Tibshirani 1993, section 15.4), with the 1 that keeps a p from being 0 (Davison and Hinkley
        1997, section 4.2). Not the shifted distribution of Berg-Kirkpatrick et al. 2012,
        https://aclanthology.org/D12-1091, which can contradict the interval.
        """
        below, above = int((self.resampled <= 0).sum()), int((self.resampled >= 0).sum())
        return min(1.0, 2 * (1 + min(below, above)) / (len(self.resampled) + 1))


def paired_bootstrap_spearman(
    first: Tensor,
    second: Tensor,
    target: Tensor,
    subsets: Sequence[str] | None = None,
    weighted: bool = False,
    resamples: int = 1000,
    generator: torch.Generator | None = None,
) -> PairedBootstrap:
    """Bootstraps the difference of two models' Spearman correlations with gold scores, over the pairs.

    Of every resample the exact statistic: average ranks with ties, of which a resample has many, made anew. They
    come from how often each value was drawn, without sorting: 1,000 resamples of 3,000 pairs take 0.2 s.

    Args:
        first: One model's similarities, (n,).
        second: The other's of the same pairs, (n,).
        target: Gold scores, (n,).
        subsets: Name of each pair's sub-set: the score is then the mean of the sub-sets' correlations (the
            setting ``mean``), and pairs are drawn within each. None for one correlation of all pairs (``all``).
        weighted: Whether the mean weighs sub-sets by their pairs (``wmean``).
        resamples: How often to draw, B; the smallest p is 2 / (B + 1).
        generator: Seeds the draws; None for torch's global one.

    Returns:
        Second minus first, between -2 and 2. Where a model's similarities are all equal its correlation is 0
        (see ``spearman``).

    Raises:
        ValueError: The shapes differ, a value is NaN or infinite, a sub-set has one pair, or no resamples.

    Example:
        >>> gold = torch.arange(6.0)
        >>> found = paired_bootstrap_spearman(-gold, gold, target=gold, generator=torch.Generator())
        >>> found.difference, found.interval()
        (2.0, (2.0, 2.0))
    """
    names = list(subsets) if subsets is not None else [""] * len(target)
    if not len(first) == len(second) == len(target) == len(names):
        raise InvalidValueError(
            "paired_bootstrap_spearman: expected two similarities, a gold score and a sub-set for each pair, got "
            f"{len(first)}, {len(second)}, {len(target)} and {len(names)}; give both models the same pairs"
        )
    groups = [
        torch.tensor([place for place, one in enumerate(names) if one == name]) for name in dict.fromkeys(names)
    ]
    weights = [len(rows) / len(names) if weighted else 1 / len(groups) for rows in groups]
    sides = [side.detach().cpu().double() for side in (target, first, second)]
    difference = 0.0
    levels = []
    for rows, weight in zip(groups, weights, strict=True):
        gold, old, new = (side[rows] for side in sides)
        difference += weight * float(spearman(new, gold) - spearman(old, gold))
        levels.append([torch.unique(side, return_inverse=True)[1] for side in (gold, old, new)])
    resampled = []
    for draws in draw_rows([len(rows) for rows in groups], resamples, generator):
        parts = zip(weights, draws, levels, strict=True)
        weighed = [weight * _spearman_difference(drawn, *ranked) for weight, drawn, ranked in parts]
        resampled.append(torch.stack(weighed).sum(dim=0))
    return PairedBootstrap(difference, torch.cat(resampled))


def paired_bootstrap_mean(
    first: Tensor, second: Tensor, resamples: int = 1000, generator: torch.Generator | None = None
) -> PairedBootstrap:
    """Bootstraps the difference of two models' mean score per row: of accuracies, for answers right or wrong.

    Args:
        first: One model's score of each row, or whether its answer is right, (n,).
        second: The other's of the same rows, (n,).
        resamples: How often to draw, B; the smallest p is 2 / (B + 1).
        generator: Seeds the draws; None for torch's global one.

    Returns:
        Second minus first.

    Raises:
        ValueError: The shapes differ, there are no rows, a value is NaN or infinite, or no resamples.

    Example:
        >>> first, second = torch.tensor([True, True, False, True]), torch.tensor([True, False, False, False])
        >>> paired_bootstrap_mean(first, second).difference
        -0.5
    """
    if first.ndim != 1 or first.shape != second.shape or len(first) == 0:
        raise InvalidValueError(
            f"paired_bootstrap_mean: expected two tensors (n,) of one score per row, got {tuple(first.shape)} "
            f"and {tuple(second.shape)}; give both models the same rows"
        )
    gain = second.detach().cpu().double() - first.detach().cpu().double()
    if not bool(gain.isfinite().all()):
        raise InvalidValueError(
            "paired_bootstrap_mean: expected finite scores, got NaN or infinity; check both models"
        )
    means = [gain[drawn].mean(dim=0) for (drawn,) in draw_rows([len(gain)], resamples, generator)]
    return PairedBootstrap(float(gain.mean()), torch.cat(means))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusts p values for having asked several questions at once.

    Where those at 0.05 or below are taken for differences, the chance that one or more of them is none stays at
    0.05, however the tests depend on each other (Holm 1979, "A simple sequentially rejective multiple test
    procedure").

    Args:
        p_values: One for each question, from 0 to 1.

    Returns:
        In the same order: each at least as large as before, and at most 1.

    Example:
        >>> holm([0.0625, 0.5, 0.125])  # times 3, times 1, times 2
        [0.1875, 0.5, 0.25]
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for place, number in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - place) * p_values[number]))
        adjusted[number] = largest
    return adjusted


def check_resamples(resamples: int) -> None:
    """Checks that there is a resample, and no more than would ever end (ValueError)."""
    at_least("resamples", resamples, 1, "with 1,000 the smallest p is 0.002")
    if resamples > _MOST_RESAMPLES:
        raise InvalidValueError(
            f"resamples: expected at most {_MOST_RESAMPLES:,}, got {resamples}; 1,000 give a p down to 0.002"
        )


def draw_rows(
    sizes: Sequence[int], resamples: int, generator: torch.Generator | None = None
) -> Iterator[list[Tensor]]:
    """Draws the rows of resamples, block by block so that memory stays bounded.

    Args:
        sizes: Rows of each group; they are drawn within their group.
        resamples: How often to draw.
        generator: Seeds the draws.

    Yields:
        For each group the drawn rows of some resamples, (its size, resamples of the block).

    Raises:
        ValueError: Fewer than one resample.
    """
    check_resamples(resamples)
    at_once = max(1, _BLOCK_VALUES // sum(sizes))
    for start in range(0, resamples, at_once):
        count = min(at_once, resamples - start)
        yield [torch.randint(size, (size, count), generator=generator) for size in sizes]


def _spearman_difference(drawn: Tensor, target: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Returns the difference of two Spearman correlations in each of some resamples, (b,).

    Args:
        drawn: Drawn rows, (n, b).
        target: The place of each row's gold score among the distinct ones in order, (n,).
        first: The same of one model's similarities, (n,).
        second: The same of the other's, (n,).
    """
    counts = torch.zeros(drawn.shape, dtype=torch.float64)
    counts.scatter_add_(0, drawn, torch.ones_like(counts))
    gold = _centered_ranks(counts, target)
    correlations = []
    for levels in (first, second):
        ranks = _centered_ranks(counts, levels)
        covariance = (counts * ranks * gold).sum(dim=0)
        scale = ((counts * ranks * ranks).sum(dim=0) * (counts * gold * gold).sum(dim=0)).sqrt()
        correlations.append(torch.where(scale > 0, covariance / scale, 0.0))  # no order: 0, as spearman has it
    return correlations[1] - correlations[0]


def _centered_ranks(counts: Tensor, levels: Tensor) -> Tensor:
    """Returns each row's average rank in each resample, less the mean rank, (n, b).

    All copies of a level share the mean of their ranks: those after the copies of all lower levels.
    """
    copies = torch.zeros(int(levels.max()) + 1, counts.shape[1], dtype=counts.dtype).index_add_(0, levels, counts)
    ranks = copies.cumsum(dim=0) - (copies - 1) / 2
    return (ranks - (len(levels) + 1) / 2)[levels]
