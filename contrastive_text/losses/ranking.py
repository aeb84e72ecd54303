"""Losses of rankings: a student's cosines of each row's candidates against a guide's."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.similarity import at_least_float32
from contrastive_text.losses.base import check_temperature


class RankLoss(nn.Module, ABC):
    """Base class of losses that hold a student's cosines of each row's candidates against a guide's.

    Example:
        >>> class SameScores(RankLoss):
        ...     def terms(self, student, guide, target, hidden):
        ...         errors = (student - guide).square().masked_fill(hidden, 0.0)
        ...         return errors.sum(dim=1) / (~hidden).sum(dim=1).clamp(min=1)
        >>> SameScores()(torch.tensor([[1.0, 0.5]]), torch.tensor([[1.0, 0.0]]))
        tensor(0.1250)
    """

    @abstractmethod
    def terms(self, student: Tensor, guide: Tensor, target: Tensor, hidden: Tensor) -> Tensor:
        """Returns one term per row; 0 where a row has no candidates.

        Args:
            student: Cosines of R rows with their C candidates, (R, C), in at least float32.
            guide: The guide's of the same texts, (R, C), without a gradient.
            target: Which candidate is the row's positive, (R,).
            hidden: True where a column is no candidate of a row, (R, C).

        Returns:
            (R,).
        """

    def forward(self, student: Tensor, guide: Tensor) -> Tensor:
        """Returns the loss of R rows and all their candidates, of which the first is the positive.

        Args:
            student: (R, C).
            guide: (R, C).

        Returns:
            A scalar, in at least float32.

        Raises:
            ValueError: Shapes other than (R, C) for both.
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
    """Cross entropy of the student's softmax over the candidates against the guide's.

    ``- sum_j softmax(guide / T_guide)_j log softmax(student / T)_j``

    Source: Cao et al. 2007, ListNet (top one); Liu et al. 2023, RankCSE (https://arxiv.org/abs/2305.16726), whose
    README has T_guide = T / 2.

    Differs: in the community code of RankCSE (perceptiveshawty/RankCSE) both temperatures are T.

    Args:
        temperature: Divisor of the student's cosines.
        guide_temperature: Divisor of the guide's.

    Raises:
        ValueError: A temperature of 0 or less.

    Example:
        >>> student, guide = torch.tensor([[0.9, 0.1]]), torch.tensor([[1.0, 0.0]])
        >>> ListNet(temperature=1.0, guide_temperature=0.5)(student, guide)
        tensor(0.4665)
    """

    def __init__(self, temperature: float = 0.05, guide_temperature: float = 0.025) -> None:
        super().__init__()
        check_temperature(temperature)
        check_temperature(guide_temperature)
        self.temperature = temperature
        self.guide_temperature = guide_temperature

    def terms(self, student: Tensor, guide: Tensor, target: Tensor, hidden: Tensor) -> Tensor:  # noqa: ARG002  # part of the contract
        """Returns the cross entropy of each row, (R,)."""
        wanted, _ = _softmax(guide / self.guide_temperature, hidden)
        _, found = _softmax(student / self.temperature, hidden)
        return -(wanted * found).sum(dim=1)


class KLDivergence(ListNet):
    """Kullback-Leibler divergence of the student's softmax over the candidates from the guide's, times T squared.

    ``T^2 sum_j p_j (log p_j - log softmax(student / T)_j)`` with ``p = softmax(guide / T_guide)``. But for the
    factor, the gradient is that of ``ListNet``; the value is 0 where both agree.

    Source: Hinton et al. 2015 (https://arxiv.org/abs/1503.02531), section 2: the factor keeps the size of the
    gradient as the temperature grows. At 0.05 it is 1/400: beside a contrastive loss give the objective a weight,
    or take ``ListNet``.

    Args:
        temperature: Divisor of the student's cosines.
        guide_temperature: Divisor of the guide's.

    Raises:
        ValueError: A temperature of 0 or less.

    Example:
        >>> KLDivergence(1.0, 1.0)(torch.tensor([[0.9, 0.1]]), torch.tensor([[0.9, 0.1]]))
        tensor(0.)
    """

    def __init__(self, temperature: float = 0.05, guide_temperature: float = 0.05) -> None:
        super().__init__(temperature, guide_temperature)

    def terms(self, student: Tensor, guide: Tensor, target: Tensor, hidden: Tensor) -> Tensor:  # noqa: ARG002  # part of the contract
        """Returns the divergence of each row, (R,)."""
        wanted, wanted_log = _softmax(guide / self.guide_temperature, hidden)
        _, found = _softmax(student / self.temperature, hidden)
        return self.temperature**2 * (wanted * (wanted_log - found)).sum(dim=1)


class ListMLE(RankLoss):
    """How improbable the guide's order of the candidates is, if the student's softmax draws them one by one.

    ``- log prod_k exp(s_k / T) / sum_{m >= k} exp(s_m / T)``, k along the guide's order, the highest first; of
    candidates that the guide scores alike, the first comes first. The logarithm is that of the whole product:
    with C candidates of equal cosines log C!, some 490 for 127. Source: Xia et al. 2008, ListMLE; Liu et al.
    2023, RankCSE (https://arxiv.org/abs/2305.16726).

    Differs: the community code of RankCSE (perceptiveshawty/RankCSE) adds 1e-7 inside the logarithm after the
    largest logit was taken out, which floors the tail of the product at such temperatures (8.3750 in place of
    7.9426 on four texts), keeps the row's own text among the candidates, and takes the mean over the places of
    the list where this is their sum.

    Args:
        temperature: Divisor of the student's cosines.

    Raises:
        ValueError: A temperature of 0 or less.

    Example:
        >>> guide = torch.tensor([[0.9, 0.5, 0.1]])
        >>> ListMLE(temperature=1.0)(torch.zeros(1, 3), guide)  # log 3!
        tensor(1.7918)
    """

    def __init__(self, temperature: float = 0.05) -> None:
        super().__init__()
        check_temperature(temperature)
        self.temperature = temperature

    def terms(self, student: Tensor, guide: Tensor, target: Tensor, hidden: Tensor) -> Tensor:  # noqa: ARG002  # part of the contract
        """Returns the negative logarithm of each row's product, (R,)."""
        # What is hidden comes first: no sum from the right has it.
        order = guide.masked_fill(hidden, torch.inf).argsort(dim=1, descending=True, stable=True)
        logits = (student / self.temperature).gather(1, order)
        rest = logits.flip(1).logcumsumexp(dim=1).flip(1)
        return (rest - logits).masked_fill(hidden.gather(1, order), 0.0).sum(dim=1)


class MarginMSE(RankLoss):
    """Squared error of how much better the positive is than each other candidate, by student and by guide.

    ``mean over j of ((s_positive - s_j) - (t_positive - t_j))^2``, s and t the cosines of student and guide.
    Source: Hofstätter et al. 2020 (https://arxiv.org/abs/2010.02666), whose scores are no cosines.

    Example:
        >>> MarginMSE()(torch.tensor([[0.9, 0.1]]), torch.tensor([[0.8, 0.5]]))
        tensor(0.2500)
    """

    def terms(self, student: Tensor, guide: Tensor, target: Tensor, hidden: Tensor) -> Tensor:
        """Returns the mean squared error of each row's margins, (R,)."""
        difference, own = student - guide, target.unsqueeze(1)
        left_out = hidden.scatter(1, own, True)
        errors = (difference.gather(1, own) - difference).masked_fill(left_out, 0.0).square()
        return errors.sum(dim=1) / (~left_out).sum(dim=1).clamp(min=1)


def jensen_shannon_terms(first: Tensor, second: Tensor) -> Tensor:
    """Returns the Jensen-Shannon divergence of each row's two softmaxes, between 0 and log 2.

    ``KL(p || m) / 2 + KL(q || m) / 2`` with ``m = (p + q) / 2``.

    Args:
        first: Logits, (R, C).
        second: Logits of the same columns, (R, C).

    Returns:
        (R,).

    Example:
        >>> jensen_shannon_terms(torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 100.0]]))
        tensor([0.2158])
    """
    logs = [first.log_softmax(dim=1), second.log_softmax(dim=1)]
    middle = torch.logaddexp(*logs) - math.log(2)
    one, other = ((each.exp() * (each - middle)).sum(dim=1) for each in logs)
    return (one + other) / 2


def _softmax(logits: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the probabilities of what isn't hidden and their logarithms, both 0 elsewhere, (R, C) each."""
    lowest = torch.finfo(logits.dtype).min  # finite: a row of which all is hidden has a gradient of 0
    logs = logits.masked_fill(hidden, lowest).log_softmax(dim=1).masked_fill(hidden, 0.0)
    return logs.exp().masked_fill(hidden, 0.0), logs
