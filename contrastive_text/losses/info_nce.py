"""InfoNCE: each anchor finds its positive among all positives and hard negatives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.similarity import Similarity, similarity_matrix
from contrastive_text.losses.base import Reduction
from contrastive_text.losses.comparisons import Columns, Comparison, FurtherNegatives
from contrastive_text.losses.softmax import SoftmaxLoss
from contrastive_text.losses.streaming import is_streamed, streamed_sums
from contrastive_text.losses.triples import Triples

Direction = Literal["query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc"]

_OTHERS: dict[Direction, str] = {
    "query_to_query": "other anchors",
    "doc_to_query": "other anchors beside its positive",
    "doc_to_doc": "other positives beside its positive",
}
"""What each further direction adds to a row's candidates."""


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
    Differs: a text never meets itself or an equal one (``Contrastive.mask_duplicates``), and positives don't
    look for hard negatives, as they do for those of other pairs there.

    With a hardness, a negative's logit grows by ``alpha * sg(similarity)``, which no temperature divides and
    which has no gradient: alpha is 9 for negatives of the batch in Lan et al. 2025, LLaVE
    (https://arxiv.org/abs/2503.04812), and 5 for own hard negatives in Schechter Vera et al. 2025, EmbeddingGemma
    (https://arxiv.org/abs/2509.20354). Sentence-transformers calls alpha ``hardness_strength`` and chooses by
    ``hardness_mode``. Differs: with several directions the negatives of all weigh more, there those of
    ``query_to_doc``.

    Args:
        temperature: Divisor of the similarity; sentence-transformers' ``scale`` is its inverse.
        reduction: ``mean`` or ``sum`` over anchors; ``two_sided`` adds the mean of the other direction
            (positives looking for anchors; hard negatives stay with the anchors' direction).
        hard_negative_log_weight: Added to the logit of a row's own hard negatives; 0 weighs all alike.
        learn_temperature: Whether the temperature is trained too, from this start (``LearnedTemperature``).
        streamed: Whether terms are computed tile by tile, in memory that grows with the rows and not with their
            square (``streamed_terms``); None where that is no slower.
        similarity: What is compared: directions (``cosine``), or the vectors as they are (``dot``).
        directions: What finds its partner among what, ``query_to_doc`` and others; they share one softmax.
        in_batch_hardness: Alpha of the negatives that belong to other rows; 0 weighs all alike.
        hard_negative_hardness: The same of a row's own hard negatives.

    Raises:
        ValueError: A temperature of 0 or less, an unknown reduction or similarity; directions that are unknown,
            without ``query_to_doc``, or several of them with ``two_sided``; a hardness below 0.

    Example:
        >>> import torch
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
        self.in_batch_hardness = in_batch_hardness
        self.hard_negative_hardness = hard_negative_hardness
        self._check()
        self.signed = len(self.directions) == 1
        self.several_targets = self.signed and not self._is_hardened

    @property
    def _is_hardened(self) -> bool:
        return self.in_batch_hardness > 0 or self.hard_negative_hardness > 0

    def _check(self) -> None:
        for name in ("in_batch_hardness", "hard_negative_hardness"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InvalidValueError(
                    f"InfoNCE.{name}: expected a finite number of 0 or more, got {getattr(self, name)}; 0 weighs "
                    "all negatives alike"
                )
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
        """What a row sees beside other positives."""
        return tuple(_OTHERS[each] for each in self.directions if each != "query_to_doc")

    @property
    def anchors_are_columns(self) -> bool:
        """Whether anchors look for anchors too."""
        return "query_to_query" in self.directions

    def comparisons(
        self, local: Triples, every: Triples, offset: int = 0, further: FurtherNegatives | None = None
    ) -> list[Comparison]:
        """Arranges texts as ``Loss.comparisons`` does; a row of several directions is a pair."""
        if len(self.directions) == 1:
            return super().comparisons(local, every, offset, further)
        places = offset + torch.arange(len(local.anchor), device=every.anchor.device)
        forward, backward = local.rows()
        anchors, positives = every.sides(by_class=False)
        sides = [positives, anchors] if self.anchors_are_columns else [positives]
        columns, own = every.columns(sides, places, further)
        block = self._block(local, forward, columns, places, own)
        sought = [anchors] if "doc_to_query" in self.directions else []
        # Where positives don't look for anchors, they have no target.
        target = places if sought else torch.full_like(places, -1)
        sought += [positives] if "doc_to_doc" in self.directions else []
        if not sought:
            return [block]
        others = sought[0] if len(sought) == 1 else Columns.join(sought)
        reverse = self._block(local, backward, others, target)
        return [replace(block, reverse=reverse)]

    def terms(self, block: Comparison) -> Tensor:
        """Returns the terms of a block, of all directions together, (R,)."""
        if block.reverse is None and not self._is_hardened:
            return self.softmax_terms(block)
        if block.reverse is None or self._is_hardened:
            return self.by_rows(self._joint, block)
        if not is_streamed(self.streamed, block.rows, block.columns):
            return self.by_rows(self._joint, block)
        how = (self.temperature_now(), self.hard_negative_log_weight, self.similarity)
        (terms, wanted), (others, sought) = (streamed_sums(each, *how) for each in (block, block.reverse))
        # Both are sums without the pair's own logit, which the reverse may lack.
        return torch.logaddexp(terms, others + (sought - wanted))

    def _joint(self, block: Comparison, temperature: Tensor | float) -> Tensor:
        """Returns the terms of one softmax over the columns of both texts of a pair, (R,)."""
        logits = self._logits(block, temperature)
        total = logits.logsumexp(dim=1)
        if block.reverse is not None:
            total = torch.logaddexp(total, self._logits(block.reverse, temperature).logsumexp(dim=1))
        return total - logits.gather(1, block.target.unsqueeze(1)).squeeze(1)

    def _logits(self, block: Comparison, temperature: Tensor | float) -> Tensor:
        """Returns the logits of rows and columns as they are weighed and seen, (R, C)."""
        found = similarity_matrix(block.rows, block.columns, 1.0, similarity="dot")
        logits, fixed = found / temperature, found.detach()
        if self._is_hardened:
            logits = logits + self.in_batch_hardness * fixed
        target = block.target.unsqueeze(1)
        further = self.hard_negative_hardness - self.in_batch_hardness
        for those, weight, by in (
            (block.own, self.hard_negative_log_weight, further),
            (target, 0.0, -self.in_batch_hardness),
        ):
            if those is not None and (weight or by):
                places = those.clamp(min=0)
                added = weight + by * fixed.gather(1, places)
                logits = logits.scatter_add(1, places, added.masked_fill(those < 0, 0.0))
        return block.hide(logits)
