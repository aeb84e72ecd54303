"""Metrics of predictions: what GLUE has beside accuracy and Pearson's correlation."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.targets import Classes, Scores, Target
from contrastive_text.metrics.similarity import OfScoredPairs, spearman


def f1(predicted: Tensor, target: Tensor, positive: int = 1) -> Tensor:
    """Returns the F1 of one class: the harmonic mean of its precision and its recall.

    GLUE reports it of MRPC and QQP (Wang et al. 2019, https://arxiv.org/abs/1804.07461, section 3).

    Args:
        predicted: Number of each row's predicted class, (N,).
        target: Number of its true one, (N,).
        positive: The class.

    Returns:
        A scalar from 0 to 1, float64; 0 where the class is neither predicted nor true, as in scikit-learn.

    Raises:
        ValueError: A shape does not fit.

    Example:
        >>> f1(torch.tensor([1, 1, 0, 0]), torch.tensor([1, 0, 1, 0]))
        tensor(0.5000, dtype=torch.float64)
    """
    _check("f1", predicted, target)
    right = ((predicted == positive) & (target == positive)).sum().double()
    either = (predicted == positive).sum() + (target == positive).sum()
    return 2 * right / either.clamp(min=1)


def matthews(predicted: Tensor, target: Tensor) -> Tensor:
    """Returns Matthews' correlation of classes: that of the two sets of indicators.

    GLUE reports it of CoLA (Wang et al. 2019, https://arxiv.org/abs/1804.07461, section 3); of more than two
    classes it is Gorodkin's R_K (2004, https://doi.org/10.1016/j.compbiolchem.2004.09.006). torchmetrics' differs
    where only one class is predicted.

    Args:
        predicted: Number of each row's predicted class, (N,).
        target: Number of its true one, (N,).

    Returns:
        A scalar from -1 to 1, float64; 0 where one class alone is predicted or true, as in scikit-learn.

    Raises:
        ValueError: A shape does not fit.

    Example:
        >>> matthews(torch.tensor([1, 1, 0, 0]), torch.tensor([1, 0, 0, 0]))
        tensor(0.5774, dtype=torch.float64)
    """
    _check("matthews", predicted, target)
    classes = int(torch.stack([predicted, target]).max()) + 1 if len(target) else 1
    p, t = (torch.bincount(numbers, minlength=classes).double() for numbers in (predicted, target))
    n, right = float(len(target)), (predicted == target).sum().double()
    spreads = (n * n - p @ p) * (n * n - t @ t)
    return (right * n - p @ t) / spreads.sqrt() if spreads > 0 else torch.zeros_like(right)


def _check(name: str, predicted: Tensor, target: Tensor) -> None:
    if predicted.ndim != 1 or predicted.shape != target.shape:
        raise InvalidValueError(
            f"{name}: expected a predicted and a true class of each row, (N,) and (N,), got "
            f"{tuple(predicted.shape)} and {tuple(target.shape)}; take the argmax of scores"
        )


class _OfClasses(OfScoredPairs):
    """Keeps the predicted and the true class of every row."""

    higher_is_better = True

    def update(self, predictions: Tensor, target: Tensor) -> None:
        """Adds rows: scores of classes, (n, classes), and the numbers of the true ones, (n,)."""
        self.values.append(predictions.detach().argmax(dim=1))
        self.targets.append(target.detach().long())


@final
class F1(_OfClasses):
    """``f1`` of the second of two classes, over all batches and ranks together.

    Example:
        >>> metric = F1()
        >>> metric.update(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([1, 1]))
        >>> metric.compute()
        tensor(0.6667, dtype=torch.float64)
    """

    def compute(self) -> Tensor:
        """Returns the F1 of all rows so far."""
        return f1(dim_zero_cat(self.values), dim_zero_cat(self.targets))


@final
class Matthews(_OfClasses):
    """``matthews`` over all batches and ranks together.

    Example:
        >>> metric = Matthews()
        >>> metric.update(torch.eye(2), torch.tensor([0, 1]))
        >>> metric.compute()
        tensor(1., dtype=torch.float64)
    """

    def compute(self) -> Tensor:
        """Returns the correlation of all rows so far."""
        return matthews(dim_zero_cat(self.values), dim_zero_cat(self.targets))


@final
class Spearman(OfScoredPairs):
    """``spearman`` of predicted and gold scores, over all batches and ranks together.

    Example:
        >>> metric = Spearman()
        >>> metric.update(torch.tensor([0.1, 0.5, 0.4]), torch.tensor([0.0, 1.0, 0.2]))
        >>> metric.compute()
        tensor(1.)
    """

    higher_is_better = True

    def update(self, predictions: Tensor, target: Tensor) -> None:
        """Adds rows: predicted scores and gold ones, (n,) and (n,)."""
        self.values.append(predictions.detach())
        self.targets.append(target.detach())

    def compute(self) -> Tensor:
        """Returns the correlation of all rows so far; NaN where a side has one value alone, or none."""
        sides = dim_zero_cat(self.values), dim_zero_cat(self.targets)
        if any(not side.isfinite().all() or (side == side[0]).all() for side in sides):
            return sides[0].new_full((), torch.nan)
        return spearman(*sides)


def further_metrics(target: Target) -> dict[str, Metric]:
    """Returns what is logged of held-out predictions beside ``Target.metric``, by name.

    Example:
        >>> list(further_metrics(Classes(("no", "yes")))), list(further_metrics(Scores()))
        (['f1', 'matthews'], ['spearman'])
    """
    if isinstance(target, Classes):
        return {"f1": F1(), "matthews": Matthews()} if len(target.names) == 2 else {}
    return {"spearman": Spearman()} if isinstance(target, Scores) else {}
