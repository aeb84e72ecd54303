"""Variants of NT-Xent and InfoNCE: decoupled (DCL and DCLW), debiased, and pairwise sigmoid (SigLIP)."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contrastive_text.core.errors import above, fraction
from contrastive_text.core.similarity import Similarity, full_precision, prepare_vectors, similarity_matrix
from contrastive_text.losses.base import (
    LearnedTemperature,
    Loss,
    Reduction,
    SoftmaxLoss,
    check_temperature,
    streamed_block_terms,
)
from contrastive_text.losses.comparison import ComparedTexts, Comparison, ExampleVectors


class DCL(SoftmaxLoss):
    """DCL: decoupled contrastive loss, which is NT-Xent or InfoNCE without the target in the denominator.

    ``log sum_c exp(s(r, c) / T) - s(r, t) / T``, where c runs over the visible columns except the target t. A
    positive with a high similarity then doesn't shrink the gradient of the negatives, which helps small batches.
    The loss has no lower bound: values below 0 are correct. Source: Yeh et al. 2021
    (https://arxiv.org/abs/2110.06848). Values equal the re-implementation
    raminnakhli/Decoupled-Contrastive-Learning, which the library lightly cites.

    Differs: both codes add -103 to the logits of masked columns; here these columns are removed. The term of a
    row without a visible negative is 0, without a gradient.

    Args:
        temperature: Divisor of the similarity; 0.1 in both codes.
        reduction: How the terms are combined into one number; see ``reduce_terms``.
        learn_temperature: Whether the temperature is trained, with ``temperature`` as its start
            (``LearnedTemperature``).
        streamed: Whether the terms are computed block by block, without the whole similarity matrix in memory
            (``losses.base``). None: only if the matrix is large.
        similarity: Similarity of a row and a column: ``cosine``, or ``dot`` for the dot product.
        same_side: Whether anchors and positives are both rows and columns, as in NT-Xent. If false, anchors are
            compared with positives only.

    Raises:
        ValueError: The temperature is 0 or less, or the reduction or similarity is unknown.

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
        """Returns the decoupled loss term of each row of a block, (R,)."""
        return self.streamed_terms(_decoupled, block)


class DCLW(DCL):
    """DCLW: DCL with a larger weight for positives that are less similar to their anchor.

    The similarity of the target is multiplied by ``2 - N softmax_i(s(a_i, p_i) / sigma)``. The softmax is over
    the N pairs of all ranks, so that the mean weight is 1. The weights have a gradient. Source: Yeh et al. 2021
    (https://arxiv.org/abs/2110.06848), and the code that ``DCL`` names. If columns are vectors of a momentum
    encoder (``Momentum``), the weights are computed from these.

    Differs: lightly computes the weights from detached vectors, without a gradient.

    Args:
        temperature: Divisor of the similarity; 0.1 in both codes.
        reduction: How the terms are combined into one number; see ``reduce_terms``.
        learn_temperature: Whether the temperature is trained, with ``temperature`` as its start
            (``LearnedTemperature``).
        streamed: Whether the terms are computed block by block, without the whole similarity matrix in memory
            (``losses.base``). None: only if the matrix is large.
        similarity: Similarity of a row and a column: ``cosine``, or ``dot`` for the dot product.
        same_side: Whether anchors and positives are both rows and columns, as in NT-Xent. If false, anchors are
            compared with positives only.
        sigma: Divisor of the similarity in the weights.

    Raises:
        ValueError: The temperature or sigma is 0 or less, or the reduction or similarity is unknown.

    Example:
        >>> anchor = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> DCLW()(anchor, anchor) == DCL()(anchor, anchor)  # pairs that are alike weigh the same
        tensor(True)
    """

    supports_negative_labels = False

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
        self,
        local: ExampleVectors,
        all_examples: ExampleVectors,
        offset: int = 0,
        extra_columns: ComparedTexts | None = None,
    ) -> list[Comparison]:
        """Arranges examples as ``Loss.comparisons`` does, and adds the weights of their pairs."""
        n = len(local.anchor)
        weight = self.weights(all_examples.anchor, all_examples.positive)[offset : offset + n]
        blocks = super().comparisons(local, all_examples, offset, extra_columns)
        return [replace(block, weight=weight.repeat(len(block.rows) // max(n, 1))) for block in blocks]

    def weights(self, anchor: Tensor, positive: Tensor) -> Tensor:
        """Returns the weight of each of N pairs, (N,), from their anchors (N, D) and positives (N, D)."""
        with full_precision(anchor.device):
            product = prepare_vectors(anchor, self.similarity) * prepare_vectors(positive, self.similarity)
            similarities = product.sum(dim=1)
            return 2 - len(similarities) * (similarities / self.sigma).softmax(dim=0)


def _decoupled(block: Comparison, temperature: Tensor | float) -> Tensor:
    """Returns the log-sum-exp of each row's negatives minus the logit of its target, (R,)."""
    logits = block.mask_logits(similarity_matrix(block.rows, block.columns, temperature, similarity="dot"))
    target = block.target.unsqueeze(1)
    positive = logits.gather(1, target).squeeze(1)
    negatives = logits.scatter(1, target, -torch.inf).logsumexp(dim=1)
    positive = positive if block.weight is None else positive * block.weight
    return torch.where(negatives.isneginf(), 0.0, negatives - positive)


class DebiasedNTXent(SoftmaxLoss):
    """Debiased NT-Xent: subtracts the expected share of false negatives from the sum over negatives.

    ``-log( e_t / (e_t + max((sum_c e_c - n tau_plus e_t) / (1 - tau_plus), n exp(-1 / T))) )``, e = exp(cos / T),
    where c runs over the n visible negatives of a row. Source: Chuang et al. 2020
    (https://arxiv.org/abs/2007.00224), with one positive, and the authors' code, chingyaoc/DCL.

    Args:
        temperature: Divisor of the cosine; 0.5 in that code.
        reduction: How the terms are combined into one number; see ``reduce_terms``.
        learn_temperature: Whether the temperature is trained, with ``temperature`` as its start
            (``LearnedTemperature``).
        streamed: Whether the terms are computed block by block, without the whole similarity matrix in memory
            (``losses.base``). None: only if the matrix is large.
        tau_plus: Probability that a negative has the class of its row; 0 gives ``NTXent``.

    Raises:
        ValueError: The temperature is 0 or less, the reduction is unknown, or tau_plus is outside [0, 1).

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
        self.tau_plus = fraction(
            "DebiasedNTXent.tau_plus", tau_plus, "0.1 is the authors', 0 is NTXent", with_one=False
        )

    def terms(self, block: Comparison) -> Tensor:
        """Returns the debiased loss term of each row of a block, (R,)."""
        return self.streamed_terms(self._debiased, block)

    def _debiased(self, block: Comparison, temperature: Tensor | float) -> Tensor:
        logits = block.mask_logits(similarity_matrix(block.rows, block.columns, temperature, similarity="dot"))
        target = block.target.unsqueeze(1)
        largest = logits.detach().amax(dim=1, keepdim=True)
        negative_logits = logits.scatter(1, target, -torch.inf)
        count = negative_logits.isfinite().sum(dim=1).to(logits)
        positive = (logits.gather(1, target) - largest).squeeze(1)
        negatives = (negative_logits - largest).exp().sum(dim=1) - count * self.tau_plus * positive.exp()
        minimum = count * (-1 / temperature - largest.squeeze(1)).exp()
        total = torch.maximum(negatives / (1 - self.tau_plus), minimum)
        return (positive.exp() + total).log() - positive


class SigLIP(Loss):
    """SigLIP: pairwise sigmoid loss, which classifies each pair of anchor and column as positive or negative.

    ``1/N sum_i sum_c log(1 + exp(-y_ic (cos(a_i, c) / T + b)))``, where y is 1 for the positive and -1 for all
    other columns: other positives, hard negatives and columns of a queue. The sum is divided by the N anchors,
    not by the number of pairs. Comparing positives with anchors would give the same pairs. T and b are trained,
    both without weight decay. Source: Zhai et al. 2023 (https://arxiv.org/abs/2303.15343); values equal the
    formula of google-research/big_vision.

    Differs: 1/T is at most 100 (``LearnedTemperature``). Masked columns add nothing to the loss.

    Args:
        temperature: Start of T; 0.1 is a scale of 10.
        bias: Start of b. It is below 0 because most pairs are negative. big_vision's configuration of LiT starts
            from -2.71.
        streamed: Whether the terms are computed block by block, without the whole similarity matrix in memory
            (``losses.base``). None: only if the matrix is large.

    Raises:
        ValueError: The temperature is 0 or less.

    Example:
        >>> anchor = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> positive = torch.tensor([[0.8, 0.6], [-0.6, 0.8]])
        >>> SigLIP(temperature=0.1, bias=-10.0)(anchor, positive)
        tensor(2.1360, grad_fn=<MulBackward0>)
    """

    supports_negative_labels = False

    def __init__(self, temperature: float = 0.1, bias: float = -10.0, streamed: bool | None = None) -> None:
        super().__init__()
        self.temperature = check_temperature(temperature)
        self.bias = bias
        self.streamed = streamed
        self.learned = LearnedTemperature(temperature)
        # One dimension for the same reasons as LearnedTemperature.
        self.learned_bias = nn.Parameter(torch.tensor([float(bias)]))

    @property
    def logged_values(self) -> dict[str, Tensor]:
        """Values that the loss logs, by name: the temperature and the bias."""
        return super().logged_values | {"bias": self.learned_bias.detach().squeeze()}

    def terms(self, block: Comparison) -> Tensor:
        """Returns the sigmoid loss term of each row of a block, (R,)."""
        assert self.learned is not None
        temperature = self.learned()
        return streamed_block_terms(
            lambda part: self._sigmoids(part, temperature), block, "cosine", self.streamed
        )

    def _sigmoids(self, block: Comparison, temperature: Tensor) -> Tensor:
        """Returns the sum of the binary cross-entropies of each row's columns, (R,)."""
        cosines = similarity_matrix(block.rows, block.columns, temperature, similarity="dot")
        logits = block.mask_logits(cosines + self.learned_bias)
        target = block.target.unsqueeze(1)
        negatives = -F.logsigmoid(-logits.scatter(1, target, -torch.inf))
        return negatives.sum(dim=1) - F.logsigmoid(logits.gather(1, target)).squeeze(1)
