"""Losses of rankings: compare a student's cosines of each row's candidates with a guide's cosines."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.similarity import at_least_float32
from contrastive_text.losses.base import check_temperature

_UNIFORM, _ONE_HOT = 0.9, 0.001
"""Entropies of a target, as shares of the largest, above and below which a row teaches no order."""


class RankLoss(nn.Module, ABC):
    """Base class of losses that compare a student's cosines of each row's candidates with a guide's cosines.

    A subclass implements ``terms``. The objective ``RankDistillation`` supplies the cosines. Instead of a guide's
    cosines it may supply teacher scores of the data, such as a reranker's logits.

    Attributes:
        accepts_unscored: Whether candidates may lack a score of the guide, which is then -inf.

    Example:
        >>> class SameScores(RankLoss):
        ...     def terms(self, student, guide, target, hidden):
        ...         errors = (student - guide).square().masked_fill(hidden, 0.0)
        ...         return errors.sum(dim=1) / (~hidden).sum(dim=1).clamp(min=1)
        >>> SameScores()(torch.tensor([[1.0, 0.5]]), torch.tensor([[1.0, 0.0]]))
        tensor(0.1250)
    """

    accepts_unscored: ClassVar[bool] = False

    @abstractmethod
    def terms(self, student: Tensor, guide: Tensor, target: Tensor, mask: Tensor) -> Tensor:
        """Returns one loss term per row, which is 0 if the row has no candidates.

        Args:
            student: The student's cosines of R rows with their C candidates, (R, C), in at least float32.
            guide: The guide's cosines of the same texts, or teacher scores, (R, C), without a gradient. -inf for
                a candidate without a score, if ``accepts_unscored``.
            target: Index of the candidate that is the row's positive, (R,).
            mask: True where a column is not a candidate of a row, (R, C).

        Returns:
            (R,).
        """

    def target_figures(self, scores: Tensor, mask: Tensor) -> dict[str, Tensor]:  # noqa: ARG002  # for subclasses
        """Returns figures of the target that a loss computes from teacher scores, to log; none by default.

        Args:
            scores: Teacher scores, (R, C).
            mask: True where a column is not a candidate of a row, (R, C).
        """
        return {}

    def forward(self, student: Tensor, guide: Tensor) -> Tensor:
        """Returns the loss of R rows with C candidates each. The first candidate is the positive.

        Args:
            student: The student's cosines, (R, C).
            guide: The guide's cosines, (R, C).

        Returns:
            A scalar, in at least float32.

        Raises:
            ValueError: The shapes are not (R, C) for both.
        """
        if student.ndim != 2 or student.shape != guide.shape:
            raise InvalidValueError(
                f"{type(self).__name__}: expected cosines of student and guide of one shape (R, C), got "
                f"{tuple(student.shape)} and {tuple(guide.shape)}"
            )
        target = torch.zeros(len(student), dtype=torch.long, device=student.device)
        hidden = torch.zeros_like(student, dtype=torch.bool)
        return self.terms(at_least_float32(student), at_least_float32(guide), target, hidden).mean()


class ListNet(RankLoss):
    """ListNet: cross-entropy between the guide's and the student's softmax over the candidates of a row.

    ``- sum_j softmax(guide / T_guide)_j log softmax(student / T)_j``

    A candidate without a score has probability 0 in the guide's softmax.

    Source: Cao et al. 2007, ListNet (top one); Liu et al. 2023, RankCSE (https://arxiv.org/abs/2305.16726). The
    README of RankCSE sets T_guide = T / 2.

    Differs: in the community code of RankCSE (perceptiveshawty/RankCSE) both temperatures are T.

    Args:
        temperature: Divisor of the student's cosines.
        guide_temperature: Divisor of the guide's cosines.

    Raises:
        ValueError: A temperature is 0 or less.

    Example:
        >>> student, guide = torch.tensor([[0.9, 0.1]]), torch.tensor([[1.0, 0.0]])
        >>> ListNet(temperature=1.0, guide_temperature=0.5)(student, guide)
        tensor(0.4665)
    """

    accepts_unscored = True

    def __init__(self, temperature: float = 0.05, guide_temperature: float = 0.025) -> None:
        super().__init__()
        check_temperature(temperature)
        check_temperature(guide_temperature)
        self.temperature = temperature
        self.guide_temperature = guide_temperature

    def terms(self, student: Tensor, guide: Tensor, target: Tensor, mask: Tensor) -> Tensor:  # noqa: ARG002  # part of the contract
        """Returns the cross-entropy of each row, (R,)."""
        guide_probabilities, _ = _softmax(guide / self.guide_temperature, mask | guide.isneginf())
        _, student_logs = _softmax(student / self.temperature, mask)
        return -(guide_probabilities * student_logs).sum(dim=1)

    def target_figures(self, scores: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """Returns ``target_entropy`` and ``teacher_deviation``, means over the rows with different scores.

        The first is the entropy of the guide's softmax, divided by its largest value: 1 for equal probabilities,
        0 if one candidate has them all. The second is the standard deviation of a row's teacher scores.

        Args:
            scores: Teacher scores, (R, C); -inf for candidates without a score.
            mask: True where a column is not a candidate of a row, (R, C).

        Example:
            >>> scores = torch.tensor([[1.0, 0.0]])
            >>> ListNet(guide_temperature=1.0).target_figures(scores, torch.zeros(1, 2, dtype=torch.bool))
            {'target_entropy': tensor(0.8399), 'teacher_deviation': tensor(0.5000)}
        """
        hidden = mask | scores.isneginf()
        counts = (~hidden).sum(dim=1).to(scores)
        probabilities, logs = _softmax(scores / self.guide_temperature, hidden)
        entropy = -(probabilities * logs).sum(dim=1) / counts.clamp(min=2).log()
        visible = scores.masked_fill(hidden, 0.0)
        center = visible.sum(dim=1, keepdim=True) / counts.clamp(min=1).unsqueeze(1)
        squares = (visible - center).masked_fill(hidden, 0.0).square().sum(dim=1)
        deviation = (squares / counts.clamp(min=1)).sqrt()
        differs = deviation > 0
        rows = differs.sum().clamp(min=1)
        return {
            "target_entropy": (entropy * differs).sum() / rows,
            "teacher_deviation": deviation.sum() / rows,
        }

    def describe_misfit(self, entropy: float, deviation: float) -> str:
        """Returns a warning if ``guide_temperature`` doesn't fit the teacher scores; empty if it fits.

        Args:
            entropy: Figure ``target_entropy``.
            deviation: Figure ``teacher_deviation``.

        Example:
            >>> ListNet(guide_temperature=1.0).describe_misfit(entropy=0.5, deviation=2.0)
            ''
        """
        if deviation == 0 or _ONE_HOT <= entropy <= _UNIFORM:
            return ""
        effect = "nearly equal for all candidates" if entropy > _UNIFORM else "nearly 1 for one candidate"
        temperature, suggestion = f"{self.guide_temperature:g}", f"{deviation / 2:.2g}"
        return (
            f"guide_temperature {temperature} doesn't fit the teacher scores: the target is {effect}, with "
            f"entropy {entropy:.2g} of 1. The scores of a row have a standard deviation of {deviation:.2g}. Try "
            f"guide_temperature {suggestion}"
        )


class KLDivergence(ListNet):
    """Kullback-Leibler divergence of the student's softmax over the candidates from the guide's, times T squared.

    ``T^2 sum_j p_j (log p_j - log softmax(student / T)_j)`` with ``p = softmax(guide / T_guide)``. The gradient
    is the gradient of ``ListNet`` times T squared. The value is 0 if both distributions are equal.

    Source: Hinton et al. 2015 (https://arxiv.org/abs/1503.02531), section 2: the factor keeps the size of the
    gradient as the temperature grows. At T = 0.05 the factor is 1/400. Next to a contrastive loss, give the
    objective a weight, or use ``ListNet``.

    Args:
        temperature: Divisor of the student's cosines.
        guide_temperature: Divisor of the guide's cosines.

    Raises:
        ValueError: A temperature is 0 or less.

    Example:
        >>> KLDivergence(1.0, 1.0)(torch.tensor([[0.9, 0.1]]), torch.tensor([[0.9, 0.1]]))
        tensor(0.)
    """

    def __init__(self, temperature: float = 0.05, guide_temperature: float = 0.05) -> None:
        super().__init__(temperature, guide_temperature)

    def terms(self, student: Tensor, guide: Tensor, target: Tensor, mask: Tensor) -> Tensor:  # noqa: ARG002  # part of the contract
        """Returns the Kullback-Leibler divergence of each row, (R,)."""
        guide_probabilities, guide_logs = _softmax(guide / self.guide_temperature, mask | guide.isneginf())
        _, student_logs = _softmax(student / self.temperature, mask)
        return self.temperature**2 * (guide_probabilities * (guide_logs - student_logs)).sum(dim=1)


class ListMLE(RankLoss):
    """ListMLE: negative log-likelihood of the guide's order of the candidates under the student's scores.

    ``- log prod_k exp(s_k / T) / sum_{m >= k} exp(s_m / T)``, where k runs over the candidates from the guide's
    highest score to its lowest. Candidates with equal scores keep their order. Candidates without a score come
    last and have no factor, only a share of the sums. The loss is the logarithm of the
    whole product: log C! for C candidates with equal cosines, about 490 for 127. Source: Xia et al. 2008,
    ListMLE; Liu et al. 2023, RankCSE (https://arxiv.org/abs/2305.16726).

    Differs: the community code of RankCSE (perceptiveshawty/RankCSE) subtracts the largest logit and then adds
    1e-7 inside the logarithm. At such temperatures this limits the last factors of the product (8.3750 instead of
    7.9426 on four texts). That code also keeps the row's own text among the candidates, and takes the mean over
    the candidates instead of the sum.

    Args:
        temperature: Divisor of the student's cosines.

    Raises:
        ValueError: The temperature is 0 or less.

    Example:
        >>> guide = torch.tensor([[0.9, 0.5, 0.1]])
        >>> ListMLE(temperature=1.0)(torch.zeros(1, 3), guide)  # log 3!
        tensor(1.7918)
    """

    accepts_unscored = True

    def __init__(self, temperature: float = 0.05) -> None:
        super().__init__()
        check_temperature(temperature)
        self.temperature = temperature

    def terms(self, student: Tensor, guide: Tensor, target: Tensor, mask: Tensor) -> Tensor:  # noqa: ARG002  # part of the contract
        """Returns the negative log-likelihood of the guide's order for each row, (R,)."""
        # Hidden candidates come first, so that no cumulative sum from the right includes them.
        order = guide.masked_fill(mask, torch.inf).argsort(dim=1, descending=True, stable=True)
        logits = (student / self.temperature).gather(1, order)
        rest = logits.flip(1).logcumsumexp(dim=1).flip(1)
        return (rest - logits).masked_fill((mask | guide.isneginf()).gather(1, order), 0.0).sum(dim=1)


class MarginMSE(RankLoss):
    """MarginMSE: mean squared error between the student's and the guide's margins of positive over negatives.

    ``mean over j of ((s_positive - s_j) - (t_positive - t_j))^2``, where s and t are the cosines of student and
    guide. Source: Hofstätter et al. 2020 (https://arxiv.org/abs/2010.02666), whose scores are not cosines.

    Example:
        >>> MarginMSE()(torch.tensor([[0.9, 0.1]]), torch.tensor([[0.8, 0.5]]))
        tensor(0.2500)
    """

    def terms(self, student: Tensor, guide: Tensor, target: Tensor, mask: Tensor) -> Tensor:
        """Returns the mean squared error of each row's margins, (R,)."""
        difference, index = student - guide, target.unsqueeze(1)
        mask = mask.scatter(1, index, True)
        errors = (difference.gather(1, index) - difference).masked_fill(mask, 0.0).square()
        return errors.sum(dim=1) / (~mask).sum(dim=1).clamp(min=1)


def jensen_shannon_terms(first: Tensor, second: Tensor) -> Tensor:
    """Returns the Jensen-Shannon divergence between the two softmaxes of each row, from 0 to log 2.

    ``KL(p || m) / 2 + KL(q || m) / 2`` with ``m = (p + q) / 2``.

    Args:
        first: Logits of the first softmax p, (R, C).
        second: Logits of the second softmax q over the same columns, (R, C).

    Returns:
        (R,).

    Example:
        >>> jensen_shannon_terms(torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 100.0]]))
        tensor([0.2158])
    """
    logs = [first.log_softmax(dim=1), second.log_softmax(dim=1)]
    middle = torch.logaddexp(*logs) - math.log(2)
    divergences = [(log.exp() * (log - middle)).sum(dim=1) for log in logs]
    return (divergences[0] + divergences[1]) / 2


def _softmax(logits: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the softmax over the candidates and its logarithm, both 0 for hidden columns, (R, C) each."""
    lowest = torch.finfo(logits.dtype).min  # finite, so that a row without candidates has a gradient of 0
    logs = logits.masked_fill(hidden, lowest).log_softmax(dim=1).masked_fill(hidden, 0.0)
    return logs.exp().masked_fill(hidden, 0.0), logs
