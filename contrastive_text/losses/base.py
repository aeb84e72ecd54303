"""Base classes of in-batch losses, which compare rows with columns, and the temperature of their softmax."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from contrastive_text.core.errors import above, one_of
from contrastive_text.core.similarity import Similarity
from contrastive_text.losses.comparison import ComparedTexts, Comparison, ExampleVectors
from contrastive_text.losses.streaming import streamed_block_terms

Reduction = Literal["mean", "sum", "two_sided"]
"""Names of the ways to combine the loss terms of all rows into one number; see ``reduce_terms``."""


def reduce_terms(total: Tensor, count: Tensor | int, reduction: Reduction) -> Tensor:
    """Returns the loss from the sum of its terms and the number of terms.

    ``mean`` is the total divided by the count. ``sum`` is the total, as the papers of CLEAR and DeCLUTR write it.
    ``two_sided`` is twice the mean: the mean over anchors plus the mean over positives (``lossA + lossB`` in
    ConSERT's code).

    Args:
        total: Sum of the loss terms, a scalar.
        count: Number of loss terms.
        reduction: ``mean``, ``sum`` or ``two_sided``.

    Example:
        >>> reduce_terms(torch.tensor(6.0), 4, "mean"), reduce_terms(torch.tensor(6.0), 4, "two_sided")
        (tensor(1.5000), tensor(3.))
    """
    if reduction == "sum":
        return total
    return total / count * (2 if reduction == "two_sided" else 1)


def check_temperature(temperature: float) -> float:
    """Returns a temperature, and raises ValueError if it is not a positive finite number."""
    return above(
        "temperature", temperature, advice="it divides the cosine similarity, and 0.05 is the usual value"
    )


class LearnedTemperature(nn.Module):
    """Trainable temperature T, stored as the logarithm of 1/T, as in CLIP.

    The smallest T is 0.01, or the start of T if that is less. This is CLIP's bound on the scale of the logits,
    which kept its training stable. If an optimizer step passes the bound, T is set to the bound before its next
    use. Source: Radford et al. 2021, CLIP (https://arxiv.org/abs/2103.00020), section 2.5.

    Args:
        temperature: Start of T.

    Example:
        >>> LearnedTemperature(0.05)()
        tensor([0.0500], grad_fn=<ExpBackward0>)
    """

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature
        # One dimension, because strategies that shard parameters refuse scalars. Weight decay skips both kinds.
        self.log_scale = nn.Parameter(torch.tensor([-math.log(temperature)]))

    def forward(self) -> Tensor:
        """Returns the current temperature, (1,)."""
        with torch.no_grad():
            self.log_scale.clamp_(max=max(math.log(100), -math.log(self.temperature)))
        return (-self.log_scale).exp()


class Loss(nn.Module, ABC):
    """Base class of in-batch losses, which compute one loss term per row from rows, columns and targets.

    A subclass implements ``terms``.

    Attributes:
        supports_several_positives: Whether ``terms`` reads ``Comparison.positives``, the further positives of
            a row.
        same_side: Whether anchors and positives are both rows and columns. Other anchors are then negatives of an
            anchor too (NT-Xent). If false, anchors are compared with positives only (InfoNCE).
        supports_negative_labels: Whether the loss of pairs with a negative label may be maximized
            (``SignedPairs``).
        reads_classes: Whether the loss reads classes: texts of a row's class are its positives.
        reduction: How the terms are combined into one number; see ``reduce_terms``.
        learned: The trainable temperature; None if the temperature is constant.

    Example:
        >>> from contrastive_text.losses import cosine_similarity_matrix
        >>> class Hinge(Loss):
        ...     def terms(self, block):
        ...         cosines = block.mask_logits(cosine_similarity_matrix(block.rows, block.columns))
        ...         target = block.target.unsqueeze(1)
        ...         wrong = cosines.scatter(1, target, -1).amax(dim=1)
        ...         return (0.3 - cosines.gather(1, target).squeeze(1) + wrong).clamp(min=0)
        >>> Hinge()(torch.eye(3), torch.eye(3))
        tensor(0.)
    """

    supports_several_positives: bool = False
    same_side: bool = False
    supports_negative_labels: bool = True
    reads_classes: ClassVar[bool] = False
    reduction: Reduction = "mean"
    learned: LearnedTemperature | None

    def __init__(self) -> None:
        super().__init__()
        self.learned = None

    @abstractmethod
    def terms(self, block: Comparison) -> Tensor:
        """Returns one loss term for each of the R rows of a block, (R,), in at least float32."""

    @property
    def column_kinds(self) -> tuple[str, ...]:
        """Names of the kinds of columns that a row is compared with, in addition to other positives.

        Each name is for one column per example.
        """
        return ("other anchors",) if self.same_side else ()

    @property
    def anchors_are_columns(self) -> bool:
        """True if anchors are among the columns of the first block, whose columns enter a queue."""
        return self.same_side

    @property
    def logged_values(self) -> dict[str, Tensor]:
        """Values that the loss logs, by name: the temperature if it is trained."""
        return {} if self.learned is None else {"temperature": self.learned().detach().squeeze()}

    def compare(self, blocks: Sequence[Comparison]) -> Tensor:
        """Concatenates the loss terms of all blocks."""
        parts = [self.terms(block) for block in blocks]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def column_sides(self, every: ExampleVectors) -> list[ComparedTexts]:
        """Returns the anchors or positives of all examples that are columns of the first block."""
        anchors, positives = every.sides()
        return [anchors, positives] if self.same_side else [positives]

    def comparisons(
        self,
        local: ExampleVectors,
        all_examples: ExampleVectors,
        offset: int = 0,
        extra_columns: ComparedTexts | None = None,
    ) -> list[Comparison]:
        """Arranges examples into blocks that compare the rows of this rank with the columns of all ranks.

        The rows of a block are anchors, then positives, each in the order of the local examples. If rows and
        columns are the same vectors, both are one tensor.

        Args:
            local: This rank's n examples.
            all_examples: The N examples of all ranks, in rank order. On one process it has the vectors of
                ``local``.
            offset: Index of the first local example among all examples.
            extra_columns: Columns to append after the columns of the examples and their hard negatives.
        """
        places = offset + torch.arange(len(local.anchor), device=all_examples.anchor.device)
        forward, backward = local.rows()
        anchors, positives = all_examples.sides()
        if self.same_side:
            columns = all_examples.columns([anchors, positives], places, extra_columns)
            is_whole = local.anchor is all_examples.anchor and local.positive is all_examples.positive
            rows = ComparedTexts.join([forward, backward])
            if is_whole and len(columns.ids) == len(rows.ids):
                rows = replace(rows, vectors=columns.vectors)
            if columns.own_negatives is not None:
                columns = replace(columns, own_negatives=columns.own_negatives.repeat(2, 1))
            target = torch.cat([len(all_examples.anchor) + places, places])
            return [local.compare(rows, columns, target)]
        columns = all_examples.columns([positives], places, extra_columns)
        block = local.compare(forward, columns, places)
        if self.reduction != "two_sided":
            return [block]
        return [block, local.compare(backward, anchors, places)]

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor | None = None) -> Tensor:
        """Returns the loss of N examples whose texts all differ.

        Args:
            anchor: Vectors of the anchors, (N, D).
            positive: Vectors of their positives, (N, D).
            negative: Vectors of their hard negatives, (N, D) or (N, K, D).

        Returns:
            A scalar, in at least float32.

        Raises:
            ValueError: The shapes don't fit together.
        """
        return self._value(ExampleVectors.distinct(anchor, positive, negative))

    def _value(self, triples: ExampleVectors) -> Tensor:
        terms = self.compare(self.comparisons(triples, triples))
        return reduce_terms(terms.sum(), len(terms), self.reduction)


class SoftmaxLoss(Loss):
    """Base class of losses that take a softmax over similarities divided by a temperature.

    A subclass implements ``terms``, which calls ``streamed_terms`` with a formula.

    Args:
        temperature: Divisor of the similarity.
        reduction: How the terms are combined into one number; see ``reduce_terms``.
        learn_temperature: Whether the temperature is trained, with ``temperature`` as its start
            (``LearnedTemperature``).
        streamed: Whether the terms are computed block by block, without the whole similarity matrix in memory
            (``losses.streaming``). None: only if the matrix is large.
        similarity: Similarity of a row and a column: ``cosine``, or ``dot`` for the dot product.

    Raises:
        ValueError: The temperature is 0 or less, or the reduction or similarity is unknown.
    """

    def __init__(
        self,
        temperature: float = 0.05,
        reduction: Reduction = "mean",
        learn_temperature: bool = False,
        streamed: bool | None = None,
        similarity: Similarity = "cosine",
    ) -> None:
        super().__init__()
        self.temperature = check_temperature(temperature)
        self.reduction = one_of("reduction", reduction, Reduction)
        self.similarity = one_of("similarity", similarity, Similarity)
        self.learn_temperature = learn_temperature
        self.streamed = streamed
        self.learned = LearnedTemperature(temperature) if learn_temperature else None

    def streamed_terms(
        self, formula: Callable[[Comparison, Tensor | float], Tensor], block: Comparison
    ) -> Tensor:
        """Applies a formula to a block and the temperature, and returns its loss terms, (R,).

        If the loss is streamed, the formula is applied to some rows at a time.

        Args:
            formula: Computes the terms of a block. The dot products of its vectors are the similarities. The term
                of a row must not depend on other rows.
            block: Rows and columns.
        """
        temperature = self.current_temperature()
        return streamed_block_terms(
            lambda part: formula(part, temperature), block, self.similarity, self.streamed
        )

    def current_temperature(self) -> Tensor | float:
        """Returns the temperature of this step: a number, or a tensor (1,) if it is trained."""
        return self.temperature if self.learned is None else self.learned()
