"""Variants of NT-Xent and InfoNCE: decoupled (DCL), debiased, and with a sigmoid for each pair (SigLIP)."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contrastive_text.core.checks import above, share
from contrastive_text.core.similarity import Similarity, comparable, full_precision, similarity_matrix
from contrastive_text.losses.base import LearnedTemperature, Loss, Reduction, SoftmaxLoss, check_temperature
from contrastive_text.losses.by_rows import block_terms
from contrastive_text.losses.comparison import Comparison, Texts, Triples


class DCL(SoftmaxLoss):
    """Decoupled contrastive loss: NT-Xent, or InfoNCE, without the target in the denominator.

    ``log sum_c exp(s(r, c) / T) - s(r, t) / T``, c over the columns seen but the target t. A positive that is
    found already no longer makes the gradient of its negatives smaller, which helps small batches. Not bounded
    below: values under 0 are right. Source: Yeh et al. 2021 (https://arxiv.org/abs/2110.06848); values equal
    those of a re-implementation, raminnakhli/Decoupled-Contrastive-Learning, which lightly cites.

    Differs: the codes hide columns by -103 on their logits, here they are left out. A row that sees no negative
    counts 0, without a gradient.

    Args:
        temperature: Divisor of the similarity; 0.1 in both codes.
        reduction: How the terms are combined to one number; see ``reduce_terms``.
        learn_temperature: Whether the temperature is trained too, from this start (``LearnedTemperature``).
        streamed: Whether terms are computed by rows, in memory that grows with the rows and not with their square
            (``losses.by_rows``); None to do so if the matrix is large.
        similarity: Similarity of a row and a column: of their directions (``cosine``), or ``dot``.
        same_side: Whether both sides look among both, as in NT-Xent, or anchors among positives.

    Raises:
        ValueError: A temperature of 0 or less, or an unknown reduction or similarity.

    Example:
        >>> anchor = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> positive = torch.tensor([[0.8, 0.6], [-0.6, 0.8]])
        >>> DCL(temperature=0.5)(anchor, positive), DCL(temperature=0.5, same_side=False)(anchor, positive)
        (tensor(-0.7367), tensor(-1.6000))
    """

    def __init__(
        self,
        temperature: float = 0.1,
        reduction: Reduction = "mean",
        learn_temperature: bool = False,
        streamed: bool | None = None,
        similarity: Similarity = "cosine",
        same_side: bool = True,
    ) -> None:
        super().__init__(temperature, reduction, learn_temperature, streamed, similarity)
        self.same_side = same_side

    def terms(self, block: Comparison) -> Tensor:
        """Returns the terms of a block, (R,)."""
        return self.by_rows(_decoupled, block)


class DCLW(DCL):
    """DCL whose pairs pull the more, the less alike they are.

    The target's similarity counts ``2 - N softmax_i(s(a_i, p_i) / sigma)`` times, the softmax over the N pairs of
    all ranks: once on average. The weights have a gradient. Source: Yeh et al. 2021
    (https://arxiv.org/abs/2110.06848), and the same code. Where columns are keys (``Momentum``), the weights
    are of those.

    Differs: lightly computes the weights from detached vectors, so that they have no gradient there.

    Args:
        temperature: Divisor of the similarity; 0.1 in both codes.
        reduction: How the terms are combined to one number; see ``reduce_terms``.
        learn_temperature: Whether the temperature is trained too, from this start (``LearnedTemperature``).
        streamed: Whether terms are computed by rows, in memory that grows with the rows and not with their square
            (``losses.by_rows``); None to do so if the matrix is large.
        similarity: Similarity of a row and a column: of their directions (``cosine``), or ``dot``.
        same_side: Whether both sides look among both, as in NT-Xent, or anchors among positives.
        sigma: Divisor of the similarity in the weights.

    Raises:
        ValueError: A temperature or sigma of 0 or less, or an unknown reduction or similarity.

    Example:
        >>> anchor = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> DCLW()(anchor, anchor) == DCL()(anchor, anchor)  # pairs that are alike weigh the same
        tensor(True)
    """

    signed = False

    def __init__(
        self,
        temperature: float = 0.1,
        reduction: Reduction = "mean",
        learn_temperature: bool = False,
        streamed: bool | None = None,
        similarity: Similarity = "cosine",
        same_side: bool = True,
        sigma: float = 0.5,
    ) -> None:
        super().__init__(temperature, reduction, learn_temperature, streamed, similarity, same_side)
        self.sigma = above("DCLW.sigma", sigma, advice="0.5 is usual, and DCL has no weights")

    def comparisons(
        self, local: Triples, every: Triples, offset: int = 0, further: Texts | None = None
    ) -> list[Comparison]:
        """Arranges texts as ``Loss.comparisons`` does, with the weights of their pairs."""
        n = len(local.anchor)
        weight = self.weights(every.anchor, every.positive)[offset : offset + n]
        blocks = super().comparisons(local, every, offset, further)
        return [replace(block, weight=weight.repeat(len(block.rows) // max(n, 1))) for block in blocks]

    def weights(self, anchor: Tensor, positive: Tensor) -> Tensor:
        """Returns the weight of each of N pairs, (N,), for (N, D) each."""
        with full_precision(anchor.device):
            found = (comparable(anchor, self.similarity) * comparable(positive, self.similarity)).sum(dim=1)
            return 2 - len(found) * (found / self.sigma).softmax(dim=0)


def _decoupled(block: Comparison, temperature: Tensor | float) -> Tensor:
    """Returns the log-sum-exp of the other columns less the logit of the target, (R,)."""
    logits = block.mask(similarity_matrix(block.rows, block.columns, temperature, similarity="dot"))
    target = block.target.unsqueeze(1)
    wanted = logits.gather(1, target).squeeze(1)
    others = logits.scatter(1, target, -torch.inf).logsumexp(dim=1)
    wanted = wanted if block.weight is None else wanted * block.weight
    return torch.where(others.isneginf(), 0.0, others - wanted)


class DebiasedNTXent(SoftmaxLoss):
    """NT-Xent less the share of negatives that are expected to be of the row's own class.

    ``-log( e_t / (e_t + max((sum_c e_c - n tau_plus e_t) / (1 - tau_plus), n exp(-1 / T))) )``, e = exp(cos / T),
    c over the n negatives that a row sees. Source: Chuang et al. 2020 (https://arxiv.org/abs/2007.00224), with
    one positive, and their code, chingyaoc/DCL.

    Args:
        temperature: Divisor of the cosine; 0.5 in that code.
        reduction: How the terms are combined to one number; see ``reduce_terms``.
        learn_temperature: Whether the temperature is trained too, from this start (``LearnedTemperature``).
        streamed: Whether terms are computed by rows, in memory that grows with the rows and not with their square
            (``losses.by_rows``); None to do so if the matrix is large.
        tau_plus: Probability that a negative belongs to the row; 0 is ``NTXent``.

    Raises:
        ValueError: A temperature of 0 or less, an unknown reduction, or a tau_plus outside [0, 1).

    Example:
        >>> anchor = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> positive = torch.tensor([[0.8, 0.6], [-0.6, 0.8]])
        >>> DebiasedNTXent()(anchor, positive), DebiasedNTXent(tau_plus=0.0)(anchor, positive)
        (tensor(0.3126), tensor(0.4302))
    """

    same_side = True

    def __init__(
        self,
        temperature: float = 0.5,
        reduction: Reduction = "mean",
        learn_temperature: bool = False,
        streamed: bool | None = None,
        tau_plus: float = 0.1,
    ) -> None:
        super().__init__(temperature, reduction, learn_temperature, streamed)
        self.tau_plus = share(
            "DebiasedNTXent.tau_plus", tau_plus, "0.1 is the authors', 0 is NTXent", with_one=False
        )

    def terms(self, block: Comparison) -> Tensor:
        """Returns the terms of a block, (R,)."""
        return self.by_rows(self._debiased, block)

    def _debiased(self, block: Comparison, temperature: Tensor | float) -> Tensor:
        logits = block.mask(similarity_matrix(block.rows, block.columns, temperature, similarity="dot"))
        target = block.target.unsqueeze(1)
        largest = logits.detach().amax(dim=1, keepdim=True)
        seen = logits.scatter(1, target, -torch.inf)
        count = seen.isfinite().sum(dim=1).to(logits)
        wanted = (logits.gather(1, target) - largest).squeeze(1)
        negatives = (seen - largest).exp().sum(dim=1) - count * self.tau_plus * wanted.exp()
        least = count * (-1 / temperature - largest.squeeze(1)).exp()
        total = torch.maximum(negatives / (1 - self.tau_plus), least)
        return (wanted.exp() + total).log() - wanted


class SigLIP(Loss):
    """Pairwise sigmoid loss: whether an anchor and a text belong together, for all texts that it sees.

    ``1/N sum_i sum_c log(1 + exp(-y_ic (cos(a_i, c) / T + b)))``, y 1 for the positive and -1 for all others:
    other positives, hard negatives, past columns. Divided by the N anchors, not by the number of comparisons.
    Both directions are one. T and b are trained, b without decay, as nothing of one dimension has any.
    Source: Zhai et al. 2023 (https://arxiv.org/abs/2303.15343); values equal those of the formula of
    google-research/big_vision.

    Differs: 1/T never goes above 100 (``LearnedTemperature``). Texts that a row must not see add nothing to it.

    Args:
        temperature: Start of T; 0.1 is a scale of 10.
        bias: Start of b: below 0, for most comparisons are a no. big_vision's shipped configuration of LiT starts
            from -2.71.
        streamed: Whether terms are computed by rows, in memory that grows with the rows and not with their square
            (``losses.by_rows``); None to do so if the matrix is large.

    Raises:
        ValueError: A temperature of 0 or less.

    Example:
        >>> anchor = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> positive = torch.tensor([[0.8, 0.6], [-0.6, 0.8]])
        >>> SigLIP(temperature=0.1, bias=-10.0)(anchor, positive)
        tensor(2.1360, grad_fn=<MulBackward0>)
    """

    signed = False

    def __init__(self, temperature: float = 0.1, bias: float = -10.0, streamed: bool | None = None) -> None:
        super().__init__()
        self.temperature = check_temperature(temperature)
        self.bias = bias
        self.streamed = streamed
        self.learned = LearnedTemperature(temperature)
        # One dimension, as LearnedTemperature's.
        self.learned_bias = nn.Parameter(torch.tensor([float(bias)]))

    @property
    def figures(self) -> dict[str, Tensor]:
        """The temperature and the bias."""
        return super().figures | {"bias": self.learned_bias.detach().squeeze()}

    def terms(self, block: Comparison) -> Tensor:
        """Returns the terms of a block, (R,)."""
        assert self.learned is not None
        temperature = self.learned()
        return block_terms(lambda part: self._sigmoids(part, temperature), block, "cosine", self.streamed)

    def _sigmoids(self, block: Comparison, temperature: Tensor) -> Tensor:
        """Returns the sum of each row's cross-entropies, (R,)."""
        cosines = similarity_matrix(block.rows, block.columns, temperature, similarity="dot")
        logits = block.mask(cosines + self.learned_bias)
        target = block.target.unsqueeze(1)
        noes = -F.logsigmoid(-logits.scatter(1, target, -torch.inf))
        return noes.sum(dim=1) - F.logsigmoid(logits.gather(1, target)).squeeze(1)
