"""Softmax losses over the columns of a batch: InfoNCE, NT-Xent, SupCon, and their common cross-entropy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from contrastive_text.core.errors import InvalidValueError, at_least
from contrastive_text.core.similarity import Similarity, similarity_matrix
from contrastive_text.losses.base import (
    Reduction,
    SoftmaxLoss,
    add_to_own_negatives,
    is_streamed,
    streamed_softmax_terms,
)
from contrastive_text.losses.comparison import ComparedTexts, Comparison, ExampleVectors, Group

Direction = Literal["query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc"]

_OTHERS: dict[Direction, str] = {
    "query_to_query": "other anchors",
    "doc_to_query": "other anchors (compared with its positive)",
    "doc_to_doc": "other positives (compared with its positive)",
}
"""Direction of ``InfoNCE`` -> name of the columns that it adds to a row."""


def info_nce_terms(
    block: Comparison,
    temperature: Tensor | float,
    own_log_weight: float = 0.0,
    similarity: Similarity = "cosine",
) -> Tensor:
    """Returns the softmax cross-entropy of each row's positives among the columns that are not masked.

    ``-log( exp(cos(r, c_t) / T) / sum_c exp(cos(r, c) / T + w * [c is r's own hard negative]) )``

    With further positives, p runs over these and the target: ``log sum_c exp(cos(r, c) / T) - mean_p cos(r, p) /
    T``. If ``Comparison.joined`` is ``sum``, ``log sum_p exp(cos(r, p) / T)`` replaces the mean.

    Args:
        block: Rows and columns.
        temperature: Divisor of the similarity.
        own_log_weight: Logarithm of the weight of a row's own hard negatives, added after the division by the
            temperature.
        similarity: Similarity of a row and a column.

    Returns:
        (R,), in at least float32.

    Example:
        >>> eye, target = torch.eye(2), torch.tensor([0, 1])
        >>> info_nce_terms(Comparison(eye, eye, target), temperature=1.0)
        tensor([0.3133, 0.3133])
        >>> from contrastive_text.losses import SameId
        >>> one_class = SameId(rows=torch.zeros(2, 1), columns=torch.zeros(2))
        >>> info_nce_terms(Comparison(eye, eye, target, positives=one_class), temperature=1.0)
        tensor([0.8133, 0.8133])
    """
    logits = similarity_matrix(block.rows, block.columns, temperature, similarity)
    if block.own_negatives is not None and own_log_weight:
        logits = add_to_own_negatives(logits, block.own_negatives, own_log_weight)
    if block.positives is None:
        return F.cross_entropy(block.mask_logits(logits), block.target, reduction="none")
    masked = block.mask_matrix()
    positives = block.positive_columns() & ~masked
    total = logits.masked_fill(masked, -torch.inf).logsumexp(dim=1)
    if block.joined == "sum":
        return total - logits.masked_fill(~positives, -torch.inf).logsumexp(dim=1)
    return total - logits.masked_fill(~positives, 0.0).sum(dim=1) / positives.sum(dim=1)


class InfoNCE(SoftmaxLoss):
    """InfoNCE, the loss of SimCSE: softmax cross-entropy of each anchor's positive among the batch's columns.

    An anchor is compared with positives and hard negatives, not with other anchors. Positives are no rows.
    Source: van den Oord et al. 2018 (https://arxiv.org/abs/1807.03748), eq. 4; with hard negatives Gao et
    al. 2021, SimCSE (https://arxiv.org/abs/2104.08821), eq. 5. The authors' code of SimCSE adds the logarithm of
    the paper's weight alpha to the logits of a row's own hard negatives only.

    With several ``directions`` each pair has one softmax over the columns of all directions, with one positive.
    ``query_to_doc`` compares the anchor with positives and hard negatives, ``query_to_query`` the anchor with
    other anchors, ``doc_to_query`` the positive with anchors, and ``doc_to_doc`` the positive with other
    positives. All four directions are the improved contrastive loss of Li et al. 2023, GTE
    (https://arxiv.org/abs/2308.03281). The similarity of the pair is in its denominator twice, the second time
    from ``doc_to_query``. The three others are the candidates of GISTEmbed (Solatorio 2024,
    https://arxiv.org/abs/2402.16829). Names and formula are from sentence-transformers.

    Differs: a text is never compared with itself or a duplicate (``Duplicates``). A positive is never compared
    with hard negatives; in sentence-transformers it is compared with the hard negatives of other pairs.

    With a hardness, the logit of a negative grows by ``alpha * sg(similarity)``, without a temperature and
    without a gradient. Alpha is 9 for in-batch negatives in Lan et al. 2025, LLaVE
    (https://arxiv.org/abs/2503.04812), and 5 for own hard negatives in Schechter Vera et al. 2025, EmbeddingGemma
    (https://arxiv.org/abs/2509.20354). Sentence-transformers calls alpha ``hardness_strength`` and selects the
    negatives by ``hardness_mode``. Differs: with several directions the hardness applies to the negatives of all
    directions, in sentence-transformers to those of ``query_to_doc``.

    Args:
        temperature: Divisor of the similarity; the inverse of sentence-transformers' ``scale``.
        reduction: ``mean`` or ``sum`` over anchors. ``two_sided`` adds the mean over positives, each compared
            with the anchors and not with hard negatives.
        hard_negative_log_weight: Added to the logit of a row's own hard negatives; 0 weighs all negatives alike.
        learn_temperature: Whether the temperature is trained, with ``temperature`` as its start
            (``LearnedTemperature``).
        streamed: Whether the terms are computed block by block, without the whole similarity matrix in memory
            (``losses.base``). None: only if the matrix is large.
        similarity: Similarity of a row and a column: ``cosine``, or ``dot`` for the dot product.
        directions: Comparisons that share one softmax: ``query_to_doc`` and any of ``query_to_query``,
            ``doc_to_query`` and ``doc_to_doc``.
        in_batch_hardness: Alpha of the negatives that belong to other rows; 0 weighs all negatives alike.
        hard_negative_hardness: Alpha of a row's own hard negatives; 0 weighs all negatives alike.

    Raises:
        ValueError: A temperature is 0 or less, a reduction, similarity or direction is unknown, or a hardness is
            below 0. ``directions`` lack ``query_to_doc``, or are several with ``two_sided``.

    Example:
        >>> anchor = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> positive = torch.tensor([[0.8, 0.6], [-0.6, 0.8]])
        >>> InfoNCE(temperature=0.5)(anchor, positive)
        tensor(0.2860)
        >>> InfoNCE(temperature=0.5, directions=["query_to_doc", "doc_to_doc"])(anchor, positive)
        tensor(0.4302)
    """

    supports_several_positives = True

    def __init__(
        self,
        temperature: float = 0.05,
        reduction: Reduction = "mean",
        hard_negative_log_weight: float = 0.0,
        learn_temperature: bool = False,
        streamed: bool | None = None,
        similarity: Similarity = "cosine",
        directions: Sequence[Direction] = ("query_to_doc",),
        in_batch_hardness: float = 0.0,
        hard_negative_hardness: float = 0.0,
    ) -> None:
        _check_directions(directions, reduction)
        super().__init__(temperature, reduction, learn_temperature, streamed, similarity)
        self.hard_negative_log_weight = hard_negative_log_weight
        self.directions = tuple(directions)
        advice = "0 weighs all negatives alike"
        self.in_batch_hardness = at_least("InfoNCE.in_batch_hardness", in_batch_hardness, 0, advice)
        self.hard_negative_hardness = at_least(
            "InfoNCE.hard_negative_hardness", hard_negative_hardness, 0, advice
        )
        self._is_hardened = self.in_batch_hardness > 0 or self.hard_negative_hardness > 0
        self.supports_negative_labels = len(self.directions) == 1
        self.supports_several_positives = self.supports_negative_labels and not self._is_hardened

    @property
    def column_kinds(self) -> tuple[str, ...]:
        """Names of the similarity columns of an anchor besides other positives, for the summary of negatives."""
        return tuple(_OTHERS[direction] for direction in self.directions if direction != "query_to_doc")

    @property
    def anchors_are_columns(self) -> bool:
        """True if anchors are among the columns of the first block (``query_to_query``)."""
        return "query_to_query" in self.directions

    def column_sides(self, every: ExampleVectors) -> list[ComparedTexts]:
        """Returns the positives of all examples, and with ``query_to_query`` their anchors, as columns."""
        anchors, positives = every.sides()
        return [positives, anchors] if self.anchors_are_columns else [positives]

    def comparisons(
        self,
        local: ExampleVectors,
        all_examples: ExampleVectors,
        offset: int = 0,
        extra_columns: ComparedTexts | None = None,
    ) -> list[Comparison]:
        """Arranges examples as ``Loss.comparisons`` does. With several directions, a row is a pair."""
        if len(self.directions) == 1:
            return super().comparisons(local, all_examples, offset, extra_columns)
        places = offset + torch.arange(len(local.anchor), device=all_examples.anchor.device)
        forward, backward = local.rows()
        anchors, positives = all_examples.sides()
        block = local.compare(
            forward, all_examples.columns(self.column_sides(all_examples), places, extra_columns), places
        )
        reverse = [anchors] if "doc_to_query" in self.directions else []
        # A positive that is not compared with anchors has no target.
        target = places if reverse else torch.full_like(places, -1)
        reverse += [positives] if "doc_to_doc" in self.directions else []
        if not reverse:
            return [block]
        columns = reverse[0] if len(reverse) == 1 else ComparedTexts.join(reverse)
        return [replace(block, reverse=local.compare(backward, columns, target))]

    def terms(self, block: Comparison) -> Tensor:
        """Returns the cross-entropy of each pair over the columns of all directions, (R,)."""
        if self._is_hardened:
            return self.streamed_terms(self._joint, block)
        if block.reverse is None:
            return _softmax_terms(self, block, self.hard_negative_log_weight)
        if not is_streamed(self.streamed, block.shape):
            return self.streamed_terms(self._joint, block)
        options = (self.current_temperature(), self.hard_negative_log_weight, self.similarity)
        terms, target_logits = streamed_softmax_terms(block, *options)
        reverse_terms, reverse_logits = streamed_softmax_terms(block.reverse, *options)
        # Each term is a log-sum-exp less a target logit, which is 0 if the reverse has no target.
        return torch.logaddexp(terms, reverse_terms + (reverse_logits - target_logits))

    def _joint(self, block: Comparison, temperature: Tensor | float) -> Tensor:
        """Returns the cross-entropy of each pair in one softmax over the columns of both texts, (R,)."""
        logits = self._logits(block, temperature)
        total = logits.logsumexp(dim=1)
        if block.reverse is not None:
            total = torch.logaddexp(total, self._logits(block.reverse, temperature).logsumexp(dim=1))
        return total - logits.gather(1, block.target.unsqueeze(1)).squeeze(1)

    def _logits(self, block: Comparison, temperature: Tensor | float) -> Tensor:
        """Returns the weighted and masked logits of rows and columns, (R, C)."""
        similarities = similarity_matrix(block.rows, block.columns, 1.0, similarity="dot")
        logits, constants = similarities / temperature, similarities.detach()
        if self._is_hardened:
            logits = logits + self.in_batch_hardness * constants
        target = block.target.unsqueeze(1)
        difference = self.hard_negative_hardness - self.in_batch_hardness
        for columns, weight, hardness in (
            (block.own_negatives, self.hard_negative_log_weight, difference),
            (target, 0.0, -self.in_batch_hardness),
        ):
            if columns is not None and (weight or hardness):
                indices = columns.clamp(min=0)
                increase = weight + hardness * constants.gather(1, indices)
                logits = logits.scatter_add(1, indices, increase.masked_fill(columns < 0, 0.0))
        return block.mask_logits(logits)


class NTXent(SoftmaxLoss):
    """NT-Xent: normalized temperature-scaled cross-entropy over 2N rows, the anchors and the positives.

    Each row is compared with all anchors and positives but itself: one positive and 2N - 2 negatives. Source:
    Chen et al. 2020, SimCLR (https://arxiv.org/abs/2002.05709), eq. 1; used by DeCLUTR, CLEAR and ConSERT.

    Args:
        temperature: Divisor of the similarity.
        reduction: ``mean`` over 2N rows (DeCLUTR's code), ``sum`` (papers of DeCLUTR and CLEAR), or
            ``two_sided``, twice the mean (ConSERT's code).
        learn_temperature: Whether the temperature is trained, with ``temperature`` as its start
            (``LearnedTemperature``).
        streamed: Whether the terms are computed block by block, without the whole similarity matrix in memory
            (``losses.base``). None: only if the matrix is large.
        similarity: Similarity of a row and a column: ``cosine``, or ``dot`` for the dot product.

    Raises:
        ValueError: The temperature is 0 or less, or the reduction or similarity is unknown.

    Example:
        >>> anchor = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> positive = torch.tensor([[0.8, 0.6], [-0.6, 0.8]])
        >>> NTXent(temperature=0.5)(anchor, positive)
        tensor(0.4302)
    """

    supports_several_positives = True
    same_side = True

    def terms(self, block: Comparison) -> Tensor:
        """Returns the softmax cross-entropy of each row of a block, (R,)."""
        return _softmax_terms(self, block)


class SupCon(SoftmaxLoss):
    """SupCon: supervised contrastive loss over 2N rows, whose positives are all other texts of the row's class.

    The loss is NTXent with several positives per row, whose log-probabilities are averaged. If every example has
    a different class, or without classes, it equals NTXent. Hard negatives are columns without a class. Source:
    Khosla et al. 2020 (https://arxiv.org/abs/2004.11362), eq. 2 (the sum over positives outside the logarithm).

    Differs: a duplicate of the row or of its partner is neither in the mean nor in the denominator
    (``Duplicates``). The sum over rows is divided by their number.

    Args:
        temperature: Divisor of the similarity.
        reduction: ``mean`` over 2N rows, ``sum`` (as in the paper), or ``two_sided``, twice the mean.
        learn_temperature: Whether the temperature is trained, with ``temperature`` as its start
            (``LearnedTemperature``).
        streamed: Whether the terms are computed block by block, without the whole similarity matrix in memory
            (``losses.base``). None: only if the matrix is large.
        similarity: Similarity of a row and a column: ``cosine``, or ``dot`` for the dot product.

    Raises:
        ValueError: The temperature is 0 or less, or the reduction or similarity is unknown.

    Example:
        >>> anchor = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> positive = torch.tensor([[0.8, 0.6], [-0.6, 0.8]])
        >>> loss = SupCon(temperature=0.5)
        >>> loss(anchor, positive), loss(anchor, positive, classes=torch.tensor([0, 0]))
        (tensor(0.4302), tensor(1.4969))
    """

    supports_several_positives = True
    same_side = True
    reads_classes: ClassVar[bool] = True

    def terms(self, block: Comparison) -> Tensor:
        """Returns the softmax cross-entropy of each row of a block, (R,)."""
        return _softmax_terms(self, block)

    def forward(
        self,
        anchor: Tensor,
        positive: Tensor,
        negative: Tensor | None = None,
        classes: Tensor | None = None,
    ) -> Tensor:
        """Returns the loss of N examples whose texts all differ.

        Args:
            anchor: Vectors of the anchors, (N, D).
            positive: Vectors of their positives, (N, D).
            negative: Vectors of their hard negatives, (N, D) or (N, K, D).
            classes: Class of each example, 0 or more, (N,). None: all classes differ.

        Returns:
            A scalar, in at least float32.

        Raises:
            ValueError: The shapes don't fit together.
        """
        examples = ExampleVectors.distinct(anchor, positive, negative)
        groups = {} if classes is None else {"classes": Group.of(classes, effect="mean")}
        return self._value(replace(examples, groups=groups))


def _softmax_terms(loss: SoftmaxLoss, block: Comparison, own_log_weight: float = 0.0) -> Tensor:
    """Returns the softmax cross-entropy of each row under the options of a loss, streamed or not, (R,)."""
    if block.positives is None and is_streamed(loss.streamed, block.shape):
        return streamed_softmax_terms(block, loss.current_temperature(), own_log_weight, loss.similarity)[0]
    return loss.streamed_terms(partial(info_nce_terms, own_log_weight=own_log_weight, similarity="dot"), block)


def _check_directions(directions: Sequence[Direction], reduction: Reduction) -> None:
    names = get_args(Direction)
    unknown = [direction for direction in directions if direction not in names]
    if unknown or "query_to_doc" not in directions or len(set(directions)) < len(directions):
        raise InvalidValueError(
            f"InfoNCE.directions: expected query_to_doc and any of {', '.join(names[1:])}, each once, got "
            f"{list(directions)}"
        )
    if len(directions) > 1 and reduction == "two_sided":
        raise InvalidValueError(
            "InfoNCE.directions: expected reduction: mean or sum with several directions, got two_sided; set "
            "reduction: mean, or directions: [query_to_doc]"
        )
