"""Metrics that compare similarities and predictions with gold scores or classes: correlations, F1, Matthews."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.similarity import at_least_float32
from contrastive_text.core.targets import Classes, Scores, Target


def pair_similarity(u: Tensor, v: Tensor) -> Tensor:
    """Returns the cosine similarity of paired vectors; a vector of zeros has similarity 0.

    Equal vectors have exactly 1, so that pairs of equal texts are tied and not ordered by rounding.

    Args:
        u: Vectors, (n, D).
        v: Vectors of their partners, (n, D).

    Returns:
        Similarities, (n,), float32 or float64.

    Raises:
        ValueError: The shapes differ or have no rows.

    Example:
        >>> pair_similarity(torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([[0.5, -1.0], [1.0, 1.0]]))
        tensor([-0.6000,  0.0000])
    """
    check_pairs("pair_similarity", u, v)
    u, v = at_least_float32(u), at_least_float32(v)
    # The root of the product equals the squared norm to the last digit if both vectors are equal.
    norms = ((u * u).sum(dim=1) * (v * v).sum(dim=1)).sqrt()
    return torch.where(norms == 0, 0.0, (u * v).sum(dim=1) / norms)


def exact_similarity(u: Tensor, v: Tensor) -> Tensor:
    """Returns the cosine similarity of paired vectors in float64, which all scores of pairs are computed from.

    For vectors on Apple's GPU, which has no float64, it is computed on the CPU.

    Args:
        u: Vectors, (n, D).
        v: Vectors of their partners, (n, D).

    Returns:
        Similarities, (n,), float64, rounded to 12 decimals. A vector of zeros has similarity 0, as in SentEval.

    Raises:
        ValueError: The shapes differ or have no rows.

    Example:
        >>> exact_similarity(torch.tensor([[1.0, 2.0]]), torch.tensor([[0.5, -1.0]]))
        tensor([-0.6000], dtype=torch.float64)
    """
    u, v = (side.cpu() if side.device.type == "mps" else side for side in (u, v))
    # Further digits are rounding errors, which depend on the number of threads and would order equal pairs.
    return pair_similarity(u.double(), v.double()).round(decimals=12)


def average_ranks(values: Tensor) -> Tensor:
    """Returns the rank of each value, from 1; equal values share the mean of their ranks.

    Args:
        values: Values, (n,).

    Returns:
        Ranks, (n,), float64.

    Example:
        >>> average_ranks(torch.tensor([0.5, 0.5, 0.2, 0.9]))
        tensor([2.5000, 2.5000, 1.0000, 4.0000], dtype=torch.float64)
    """
    values = values.contiguous()  # searchsorted warns otherwise
    sorted_values = values.sort().values
    first = torch.searchsorted(sorted_values, values) + 1
    last = torch.searchsorted(sorted_values, values, right=True)
    return (first + last).double() / 2


def spearman(x: Tensor, y: Tensor) -> Tensor:
    """Returns Spearman's rank correlation, which is Pearson's correlation of the average ranks.

    It is computed in float64 on the CPU (Apple's GPU has no float64). Torchmetrics' function is not used.
    Its version 1.9 adds 1e-6 to the denominator and sums ranks in int32. This gave an error of 0.63 for 200,000
    pairs with many ties.

    Args:
        x: Values, (n,), at least two, finite.
        y: Values, (n,), finite.

    Returns:
        A scalar in [-1, 1] on the device of ``x``. If all values of an argument are equal, the correlation is
        undefined: the result is 0, with a warning, so that a collapsed encoder is never selected as the best.

    Raises:
        ValueError: The shapes differ, there are fewer than two values, or a value is NaN or infinite.

    Example:
        >>> spearman(torch.tensor([0.5, 0.5, 0.2, 0.9]), torch.tensor([3.0, 1.0, 1.0, 5.0]))
        tensor(0.8333)
    """
    if not _have_order("spearman", x, y):
        return at_least_float32(x).new_zeros(())
    return _correlation(x, average_ranks(x.detach().cpu()), average_ranks(y.detach().cpu()))


def pearson(x: Tensor, y: Tensor) -> Tensor:
    """Returns Pearson's correlation, computed in float64 on the CPU.

    Args:
        x: Values, (n,), at least two, finite.
        y: Values, (n,), finite.

    Returns:
        A scalar in [-1, 1] on the device of ``x``. If all values of an argument are equal, the result is 0, with
        a warning, as for ``spearman``.

    Raises:
        ValueError: The shapes differ, there are fewer than two values, or a value is NaN or infinite.

    Example:
        >>> pearson(torch.tensor([0.0, 1.0, 2.0]), torch.tensor([1.0, 1.0, 4.0]))
        tensor(0.8660)
    """
    if not _have_order("pearson", x, y):
        return at_least_float32(x).new_zeros(())
    return _correlation(x, x.detach().cpu().double(), y.detach().cpu().double())


def _correlation(x: Tensor, *sides: Tensor) -> Tensor:
    return torch.corrcoef(torch.stack(sides))[0, 1].to(dtype=at_least_float32(x).dtype).to(x.device)


def _have_order(where: str, x: Tensor, y: Tensor) -> bool:
    """Returns whether a correlation is defined, and warns if all values of an argument are equal."""
    if x.ndim != 1 or x.shape != y.shape or len(x) < 2:
        raise InvalidValueError(
            f"{where}: expected two tensors (n,) of two or more values, got {tuple(x.shape)} and "
            f"{tuple(y.shape)}; evaluate on at least two pairs"
        )
    for name, values in (("first", x), ("second", y)):
        if not bool(values.isfinite().all()):
            raise InvalidValueError(
                f"{where}: expected finite values, got NaN or infinity in the {name} argument; "
                "check that training has not diverged and that every pair has a score"
            )
        if bool((values == values[0]).all()):
            warnings.warn(
                f"{where}: all {len(values)} values of the {name} argument are equal, so the correlation is "
                "undefined and the result is 0; check for collapsed embeddings or a constant target",
                stacklevel=3,
            )
            return False
    return True


class ScoredPairMetric(Metric):
    """Base class of metrics of scored pairs, which stores a value and the gold score of every pair.

    A subclass defines ``update`` and the function ``figure``, which computes the metric from all values and
    scores.
    """

    is_differentiable = False
    full_state_update = False
    figure: Callable[[Tensor, Tensor], Tensor]
    values: list[Tensor]
    targets: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.add_state("values", default=[], dist_reduce_fx="cat")
        self.add_state("targets", default=[], dist_reduce_fx="cat")

    def compute(self) -> Tensor:
        """Returns the metric of all pairs that were added, a scalar."""
        return self.figure(dim_zero_cat(self.values), dim_zero_cat(self.targets))


class _OfSimilarities(ScoredPairMetric):
    """Base class of correlations between cosine similarities and gold scores, times 100."""

    higher_is_better = True

    def update(self, u: Tensor, v: Tensor, target: Tensor) -> None:
        """Adds a batch of pairs of vectors and their gold scores.

        Args:
            u: Vectors of the first texts, (n, D).
            v: Vectors of the second texts, (n, D).
            target: Gold scores, (n,).

        Raises:
            ValueError: The shapes don't fit together.
        """
        similarity = exact_similarity(u.detach(), v.detach())
        if target.shape != similarity.shape:
            raise InvalidValueError(
                f"{type(self).__name__}.target: expected one score per pair {tuple(similarity.shape)}, got "
                f"{tuple(target.shape)}; flatten the scores"
            )
        self.values.append(similarity)
        self.targets.append(target.detach().to(similarity.device))

    def compute(self) -> Tensor:
        """Returns the correlation of all pairs that were added, in [-100, 100], a scalar."""
        return 100 * super().compute()


@final
class SpearmanSimilarity(_OfSimilarities):
    """Torchmetrics class of the Spearman correlation between cosine similarities and gold scores, times 100.

    It is the score of the STS tasks (Reimers et al. 2016, https://aclanthology.org/C16-1009, recommend Spearman
    over Pearson). Equal values share the mean of their ranks; a vector of zeros has similarity 0. The correlation
    is over all pairs of all batches and ranks (setting "all"), and not a mean. If all similarities or all scores
    are equal, ``compute`` returns 0 with a warning. It raises ValueError for NaN and infinity.

    Example:
        >>> metric = SpearmanSimilarity()
        >>> u, v = torch.tensor([[1.0, 0.0]] * 3), torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
        >>> metric.update(u, v, target=torch.tensor([5.0, 1.0, 3.0]))
        >>> metric.compute()
        tensor(50., dtype=torch.float64)
    """

    figure = staticmethod(spearman)


@final
class PearsonSimilarity(_OfSimilarities):
    """Torchmetrics class of the Pearson correlation between cosine similarities and gold scores, times 100.

    The CS224N report and GLUE use it for STS-B. Otherwise it is like ``SpearmanSimilarity``.

    Example:
        >>> metric = PearsonSimilarity()
        >>> u, v = torch.tensor([[1.0, 0.0]] * 3), torch.tensor([[1.0, 0.0], [3.0, 4.0], [0.0, 1.0]])
        >>> metric.update(u, v, target=torch.tensor([5.0, 1.0, 3.0]))
        >>> metric.compute()
        tensor(39.7360, dtype=torch.float64)
    """

    figure = staticmethod(pearson)


def f1(predicted: Tensor, target: Tensor, positive: int = 1) -> Tensor:
    """Returns the F1 score of a class, which is the harmonic mean of its precision and recall.

    GLUE reports it for MRPC and QQP (Wang et al. 2019, https://arxiv.org/abs/1804.07461, section 3).

    Args:
        predicted: Number of each row's predicted class, (N,).
        target: Number of each row's true class, (N,).
        positive: Number of the class.

    Returns:
        A scalar from 0 to 1, float64; 0 if the class is neither predicted nor true, as in scikit-learn.

    Raises:
        ValueError: The shapes don't fit together.

    Example:
        >>> f1(torch.tensor([1, 1, 0, 0]), torch.tensor([1, 0, 1, 0]))
        tensor(0.5000, dtype=torch.float64)
    """
    _check("f1", predicted, target)
    hits = ((predicted == positive) & (target == positive)).sum().double()
    total = (predicted == positive).sum() + (target == positive).sum()
    return 2 * hits / total.clamp(min=1)


def matthews(predicted: Tensor, target: Tensor) -> Tensor:
    """Returns the Matthews correlation coefficient of predicted and true classes.

    GLUE reports it for CoLA (Wang et al. 2019, https://arxiv.org/abs/1804.07461, section 3). For more than two
    classes it is Gorodkin's R_K (2004, https://doi.org/10.1016/j.compbiolchem.2004.09.006). Torchmetrics' result
    differs if only one class is predicted.

    Args:
        predicted: Number of each row's predicted class, (N,).
        target: Number of each row's true class, (N,).

    Returns:
        A scalar from -1 to 1, float64; 0 if only one class is predicted or true, as in scikit-learn.

    Raises:
        ValueError: The shapes don't fit together.

    Example:
        >>> matthews(torch.tensor([1, 1, 0, 0]), torch.tensor([1, 0, 0, 0]))
        tensor(0.5774, dtype=torch.float64)
    """
    _check("matthews", predicted, target)
    classes = int(torch.stack([predicted, target]).max()) + 1 if len(target) else 1
    p, t = (torch.bincount(numbers, minlength=classes).double() for numbers in (predicted, target))
    n, hits = float(len(target)), (predicted == target).sum().double()
    spreads = (n * n - p @ p) * (n * n - t @ t)
    return (hits * n - p @ t) / spreads.sqrt() if spreads > 0 else torch.zeros_like(hits)


def _check(name: str, predicted: Tensor, target: Tensor) -> None:
    if predicted.ndim != 1 or predicted.shape != target.shape:
        raise InvalidValueError(
            f"{name}: expected a predicted and a true class of each row, (N,) and (N,), got "
            f"{tuple(predicted.shape)} and {tuple(target.shape)}; take the argmax of scores"
        )


class _OfClasses(ScoredPairMetric):
    """Base class of metrics of predicted and true classes, which are stored for every row."""

    higher_is_better = True

    def update(self, predictions: Tensor, target: Tensor) -> None:
        """Adds a batch of rows: logits of the classes, (n, classes), and numbers of the true classes, (n,)."""
        self.values.append(predictions.detach().argmax(dim=1))
        self.targets.append(target.detach().long())


@final
class F1(_OfClasses):
    """Torchmetrics class of the F1 score of the second of two classes, over all batches and ranks.

    Example:
        >>> metric = F1()
        >>> metric.update(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([1, 1]))
        >>> metric.compute()
        tensor(0.6667, dtype=torch.float64)
    """

    figure = staticmethod(f1)


@final
class Matthews(_OfClasses):
    """Torchmetrics class of the Matthews correlation coefficient, over all batches and ranks.

    Example:
        >>> metric = Matthews()
        >>> metric.update(torch.eye(2), torch.tensor([0, 1]))
        >>> metric.compute()
        tensor(1., dtype=torch.float64)
    """

    figure = staticmethod(matthews)


@final
class Spearman(ScoredPairMetric):
    """Torchmetrics class of the Spearman correlation of predicted and gold scores, over all batches and ranks.

    Example:
        >>> metric = Spearman()
        >>> metric.update(torch.tensor([0.1, 0.5, 0.4]), torch.tensor([0.0, 1.0, 0.2]))
        >>> metric.compute()
        tensor(1.)
    """

    higher_is_better = True

    def update(self, predictions: Tensor, target: Tensor) -> None:
        """Adds a batch of rows: predicted scores (n,) and gold scores (n,)."""
        self.values.append(predictions.detach())
        self.targets.append(target.detach())

    def compute(self) -> Tensor:
        """Returns the correlation of all rows that were added; NaN for equal or non-finite values."""
        sides = dim_zero_cat(self.values), dim_zero_cat(self.targets)
        if any(not side.isfinite().all() or (side == side[0]).all() for side in sides):
            return sides[0].new_full((), torch.nan)
        return spearman(*sides)


def extra_metrics(target: Target) -> dict[str, Metric]:
    """Returns name -> further metric of validation predictions, logged in addition to ``Target.metric``.

    Example:
        >>> list(extra_metrics(Classes(("no", "yes")))), list(extra_metrics(Scores()))
        (['f1', 'matthews'], ['spearman'])
    """
    if isinstance(target, Classes):
        return {"f1": F1(), "matthews": Matthews()} if len(target.names) == 2 else {}
    return {"spearman": Spearman()} if isinstance(target, Scores) else {}


def check_pairs(name: str, x: Tensor, y: Tensor) -> None:
    """Checks that two tensors have the same shape (n, D) and at least one row (ValueError).

    Args:
        name: Name of the function, for the error.
        x: Vectors.
        y: Vectors of their partners.
    """
    check_rows(name, x, least=1)
    if x.shape != y.shape:
        raise InvalidValueError(
            f"{name}: expected paired vectors of equal shapes (n, D), got {tuple(x.shape)} and "
            f"{tuple(y.shape)}; row i of the second argument is the partner of row i of the first"
        )


def check_rows(name: str, x: Tensor, least: int) -> None:
    """Checks that a tensor has the shape (n, D) and a minimum number of rows (ValueError).

    Args:
        name: Name of the function, for the error.
        x: Vectors.
        least: Smallest number of rows.
    """
    if x.ndim != 2 or len(x) < least:
        raise InvalidValueError(
            f"{name}: expected vectors (n, D) with n >= {least}, got {tuple(x.shape)}; give one row per text"
        )
