"""Softmax losses over the columns of a batch: InfoNCE, NT-Xent, SupCon, and their formula."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from contrastive_text.core.checks import at_least
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.similarity import Similarity, similarity_matrix
from contrastive_text.losses.base import Reduction, SoftmaxLoss
from contrastive_text.losses.by_rows import add_to_own, is_streamed, softmax_terms
from contrastive_text.losses.comparison import Comparison, Group, Texts, Triples

Direction = Literal["query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc"]

_OTHERS: dict[Direction, str] = {
    "query_to_query": "other anchors",
    "doc_to_query": "other anchors beside its positive",
    "doc_to_doc": "other positives beside its positive",
}
"""Columns that each further direction adds to a row."""


def info_nce_terms(
    block: Comparison,
    temperature: Tensor | float,
    own_log_weight: float = 0.0,
    similarity: Similarity = "cosine",
) -> Tensor:
    """Returns the cross-entropy of each row's positives among the columns that are not masked.

    ``-log( exp(cos(r, c_t) / T) / sum_c exp(cos(r, c) / T + w * [c is r's own hard negative]) )``

    With further positives p it is ``log sum_c exp(cos(r, c) / T) - mean_p cos(r, p) / T``, the target included;
    if they are joined by the ``sum``, ``log sum_p exp(cos(r, p) / T)`` takes the place of the mean.

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
    if block.own is not None and own_log_weight:
        logits = add_to_own(logits, block.own, own_log_weight)
    if block.positives is None:
        return F.cross_entropy(block.mask(logits), block.target, reduction="none")
    masked = block.masked()
    pulled = block.positive_columns() & ~masked
    total = logits.masked_fill(masked, -torch.inf).logsumexp(dim=1)
    if block.joined == "sum":
        return total - logits.masked_fill(~pulled, -torch.inf).logsumexp(dim=1)
    return total - logits.masked_fill(~pulled, 0.0).sum(dim=1) / pulled.sum(dim=1)


class InfoNCE(SoftmaxLoss):
    """One-directional in-batch softmax, the loss of SimCSE.

    NTXent without same-side negatives: an anchor is compared with positives only, a positive with nothing.
    Source: van den Oord et al. 2018 (https://arxiv.org/abs/1807.03748), eq. 4; with hard negatives Gao et
    al. 2021, SimCSE (https://arxiv.org/abs/2104.08821), eq. 5, whose authors' code takes the logarithm of
    the paper's weight alpha and adds it to a row's own hard negatives only.

    With several ``directions`` a pair has one softmax over the candidates of all of them, and its one positive:
    anchor against positives and hard negatives (``query_to_doc``), against the other anchors
    (``query_to_query``), positive against anchors (``doc_to_query``) and against the other positives
    (``doc_to_doc``). All four are the improved contrastive loss of Li et al. 2023, GTE
    (https://arxiv.org/abs/2308.03281): the pair's own similarity stands in its denominator twice, once more
    as ``doc_to_query``. All but that one are the candidates of GISTEmbed (Solatorio 2024,
    https://arxiv.org/abs/2402.16829). Names and formula are those of sentence-transformers.
    Differs: a text never meets itself or an equal one (``Duplicates``), and positives don't
    look for hard negatives, as they do for those of other pairs there.

    With a hardness, a negative's logit grows by ``alpha * sg(similarity)``, which no temperature divides and
    which has no gradient: alpha is 9 for negatives of the batch in Lan et al. 2025, LLaVE
    (https://arxiv.org/abs/2503.04812), and 5 for own hard negatives in Schechter Vera et al. 2025, EmbeddingGemma
    (https://arxiv.org/abs/2509.20354). Sentence-transformers calls alpha ``hardness_strength`` and chooses by
    ``hardness_mode``. Differs: with several directions the negatives of all weigh more, there those of
    ``query_to_doc``.

    Args:
        temperature: Divisor of the similarity; the inverse of sentence-transformers' ``scale``.
        reduction: ``mean`` or ``sum`` over anchors; ``two_sided`` adds the mean of the other direction
            (positives looking for anchors; hard negatives stay with the anchors' direction).
        hard_negative_log_weight: Added to the logit of a row's own hard negatives; 0 weighs all alike.
        learn_temperature: Whether the temperature is trained too, from this start (``LearnedTemperature``).
        streamed: Whether terms are computed by rows, in memory that grows with the rows and not with their square
            (``losses.by_rows``); None to do so if the matrix is large.
        similarity: Similarity of a row and a column: of their directions (``cosine``), or ``dot``.
        directions: What finds its partner among what, ``query_to_doc`` and others; they share one softmax.
        in_batch_hardness: Alpha of the negatives that belong to other rows; 0 weighs all alike.
        hard_negative_hardness: The same of a row's own hard negatives.

    Raises:
        ValueError: A temperature of 0 or less, an unknown reduction or similarity; directions that are unknown,
            without ``query_to_doc``, or several of them with ``two_sided``; a hardness below 0.

    Example:
        >>> anchor = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> positive = torch.tensor([[0.8, 0.6], [-0.6, 0.8]])
        >>> InfoNCE(temperature=0.5)(anchor, positive)
        tensor(0.2860)
        >>> InfoNCE(temperature=0.5, directions=["query_to_doc", "doc_to_doc"])(anchor, positive)
        tensor(0.4302)
    """

    several_targets = True

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
        super().__init__(temperature, reduction, learn_temperature, streamed, similarity)
        self.hard_negative_log_weight = hard_negative_log_weight
        self.directions = tuple(directions)
        advice = "0 weighs all negatives alike"
        self.in_batch_hardness = at_least("InfoNCE.in_batch_hardness", in_batch_hardness, 0, advice)
        self.hard_negative_hardness = at_least(
            "InfoNCE.hard_negative_hardness", hard_negative_hardness, 0, advice
        )
        self._check_directions()
        self.signed = len(self.directions) == 1
        self.several_targets = self.signed and not self._is_hardened

    @property
    def _is_hardened(self) -> bool:
        return self.in_batch_hardness > 0 or self.hard_negative_hardness > 0

    def _check_directions(self) -> None:
        known = get_args(Direction)
        unknown = [each for each in self.directions if each not in known]
        if unknown or "query_to_doc" not in self.directions or len(set(self.directions)) < len(self.directions):
            raise InvalidValueError(
                f"InfoNCE.directions: expected query_to_doc, which has the pair, and others of "
                f"{', '.join(known[1:])}, each once, got {list(self.directions)}"
            )
        if len(self.directions) > 1 and self.reduction == "two_sided":
            raise InvalidValueError(
                "InfoNCE.directions: expected reduction: mean or sum for several in one softmax, got two_sided, "
                "which adds a softmax of positives that look for anchors; leave one of the two out"
            )

    @property
    def others(self) -> tuple[str, ...]:
        """Columns of a row in addition to other positives."""
        return tuple(_OTHERS[each] for each in self.directions if each != "query_to_doc")

    @property
    def anchors_are_columns(self) -> bool:
        """Whether rows are compared with anchors too."""
        return "query_to_query" in self.directions

    def sides(self, every: Triples) -> list[Texts]:
        """Returns the sides of all examples that are columns of the first block."""
        anchors, positives = every.sides()
        return [positives, anchors] if self.anchors_are_columns else [positives]

    def comparisons(
        self, local: Triples, every: Triples, offset: int = 0, further: Texts | None = None
    ) -> list[Comparison]:
        """Arranges texts as ``Loss.comparisons`` does; a row of several directions is a pair."""
        if len(self.directions) == 1:
            return super().comparisons(local, every, offset, further)
        places = offset + torch.arange(len(local.anchor), device=every.anchor.device)
        forward, backward = local.rows()
        anchors, positives = every.sides()
        block = local.compare(forward, every.columns(self.sides(every), places, further), places)
        reverse = [anchors] if "doc_to_query" in self.directions else []
        # Positives that are not compared with anchors have no target.
        target = places if reverse else torch.full_like(places, -1)
        reverse += [positives] if "doc_to_doc" in self.directions else []
        if not reverse:
            return [block]
        columns = reverse[0] if len(reverse) == 1 else Texts.join(reverse)
        return [replace(block, reverse=local.compare(backward, columns, target))]

    def terms(self, block: Comparison) -> Tensor:
        """Returns the terms of a block, of all directions together, (R,)."""
        if self._is_hardened:
            return self.by_rows(self._joint, block)
        if block.reverse is None:
            return _softmax_terms(self, block, self.hard_negative_log_weight)
        if not is_streamed(self.streamed, block.shape):
            return self.by_rows(self._joint, block)
        how = (self.temperature_now(), self.hard_negative_log_weight, self.similarity)
        terms, wanted = softmax_terms(block, *how)
        others, found = softmax_terms(block.reverse, *how)
        # Both are sums less a logit of the pair, which the reverse may lack.
        return torch.logaddexp(terms, others + (found - wanted))

    def _joint(self, block: Comparison, temperature: Tensor | float) -> Tensor:
        """Returns the terms of one softmax over the columns of both texts of a pair, (R,)."""
        logits = self._logits(block, temperature)
        total = logits.logsumexp(dim=1)
        if block.reverse is not None:
            total = torch.logaddexp(total, self._logits(block.reverse, temperature).logsumexp(dim=1))
        return total - logits.gather(1, block.target.unsqueeze(1)).squeeze(1)

    def _logits(self, block: Comparison, temperature: Tensor | float) -> Tensor:
        """Returns the weighted and masked logits of rows and columns, (R, C)."""
        found = similarity_matrix(block.rows, block.columns, 1.0, similarity="dot")
        logits, fixed = found / temperature, found.detach()
        if self._is_hardened:
            logits = logits + self.in_batch_hardness * fixed
        target = block.target.unsqueeze(1)
        further = self.hard_negative_hardness - self.in_batch_hardness
        for negatives, weight, by in (
            (block.own, self.hard_negative_log_weight, further),
            (target, 0.0, -self.in_batch_hardness),
        ):
            if negatives is not None and (weight or by):
                places = negatives.clamp(min=0)
                added = weight + by * fixed.gather(1, places)
                logits = logits.scatter_add(1, places, added.masked_fill(negatives < 0, 0.0))
        return block.mask(logits)


class NTXent(SoftmaxLoss):
    """Normalized temperature-scaled cross-entropy over 2N rows.

    InfoNCE in both directions with same-side negatives: 2N - 2 negatives for each of 2N rows. Source: Chen
    et al. 2020, SimCLR (https://arxiv.org/abs/2002.05709), eq. 1; used by DeCLUTR, CLEAR and ConSERT.

    Args:
        temperature: Divisor of the similarity.
        reduction: ``mean`` over 2N (DeCLUTR's code), ``sum`` (DeCLUTR's and CLEAR's papers), or
            ``two_sided``, twice the mean (ConSERT's code).
        learn_temperature: Whether the temperature is trained too, from this start (``LearnedTemperature``).
        streamed: Whether terms are computed by rows, in memory that grows with the rows and not with their square
            (``losses.by_rows``); None to do so if the matrix is large.
        similarity: Similarity of a row and a column: of their directions (``cosine``), or ``dot``.

    Raises:
        ValueError: A temperature of 0 or less, or an unknown reduction or similarity.

    Example:
        >>> anchor = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> positive = torch.tensor([[0.8, 0.6], [-0.6, 0.8]])
        >>> NTXent(temperature=0.5)(anchor, positive)
        tensor(0.4302)
    """

    several_targets = True
    same_side = True

    def terms(self, block: Comparison) -> Tensor:
        """Returns ``info_nce_terms`` of a block at this temperature, (R,)."""
        return _softmax_terms(self, block)


class SupCon(SoftmaxLoss):
    """Supervised contrastive loss over 2N rows: the mean over all other texts of the row's class.

    NTXent with several targets per row: texts of the same class are pulled together instead of pushed
    apart, the denominator is the same. Where every example is a class of its own, or without classes, it is
    NTXent. Hard negatives are further columns of no class. Source: Khosla et al. 2020
    (https://arxiv.org/abs/2004.11362), eq. 2 (the sum over positives outside the logarithm).

    Differs: a text that is the row's own or its partner's once more is neither in the mean nor in the
    denominator (``Duplicates``); the sum over rows is divided by their number.

    Args:
        temperature: Divisor of the similarity.
        reduction: ``mean`` over 2N, ``sum`` (as the paper writes it), or ``two_sided``, twice the mean.
        learn_temperature: Whether the temperature is trained too, from this start (``LearnedTemperature``).
        streamed: Whether terms are computed by rows, in memory that grows with the rows and not with their square
            (``losses.by_rows``); None to do so if the matrix is large.
        similarity: Similarity of a row and a column: of their directions (``cosine``), or ``dot``.

    Raises:
        ValueError: A temperature of 0 or less, or an unknown reduction or similarity.

    Example:
        >>> anchor = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> positive = torch.tensor([[0.8, 0.6], [-0.6, 0.8]])
        >>> loss = SupCon(temperature=0.5)
        >>> loss(anchor, positive), loss(anchor, positive, classes=torch.tensor([0, 0]))
        (tensor(0.4302), tensor(1.4969))
    """

    several_targets = True
    same_side = True
    reads_labels: ClassVar[bool] = True

    def terms(self, block: Comparison) -> Tensor:
        """Returns ``info_nce_terms`` of a block at this temperature, (R,)."""
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
            anchor: (N, D).
            positive: (N, D).
            negative: Hard negatives, (N, D) or (N, K, D).
            classes: Class of each example, 0 or more, (N,); None for a class each.

        Returns:
            A scalar, in at least float32.
        """
        examples = Triples.distinct(anchor, positive, negative)
        groups = {} if classes is None else {"classes": Group.of(classes, effect="mean")}
        return self._value(replace(examples, groups=groups))


def _softmax_terms(loss: SoftmaxLoss, block: Comparison, own_log_weight: float = 0.0) -> Tensor:
    """Returns ``info_nce_terms`` of a block under the options of a loss, (R,)."""
    if block.positives is None and is_streamed(loss.streamed, block.shape):
        return softmax_terms(block, loss.temperature_now(), own_log_weight, loss.similarity)[0]
    return loss.by_rows(partial(info_nce_terms, own_log_weight=own_log_weight, similarity="dot"), block)
