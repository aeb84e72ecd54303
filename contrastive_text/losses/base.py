"""Base classes of in-batch losses: rows, columns, the positive of each row, and the temperature of a softmax."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from contrastive_text.core.checks import above, one_of
from contrastive_text.core.similarity import Similarity
from contrastive_text.losses.by_rows import block_terms
from contrastive_text.losses.comparison import Comparison, Texts, Triples

Reduction = Literal["mean", "sum", "two_sided"]
"""How the terms of the rows are combined to one loss."""


def reduce_terms(total: Tensor, count: Tensor | int, reduction: Reduction) -> Tensor:
    """Returns the loss from the sum of its terms and their number.

    ``mean`` is the total over the count, ``sum`` the total (CLEAR and DeCLUTR as written), ``two_sided``
    the sum of the two sides' means, that is twice the mean (ConSERT's code: lossA + lossB).

    Example:
        >>> reduce_terms(torch.tensor(6.0), 4, "mean"), reduce_terms(torch.tensor(6.0), 4, "two_sided")
        (tensor(1.5000), tensor(3.))
    """
    if reduction == "sum":
        return total
    return total / count * (2 if reduction == "two_sided" else 1)


def check_temperature(temperature: float) -> float:
    """Checks that a temperature is a positive finite number (ValueError) and returns it."""
    return above(
        "temperature", temperature, advice="it divides the cosine similarity, and 0.05 is the usual value"
    )


class LearnedTemperature(nn.Module):
    """Keeps the logarithm of 1/T as a parameter, as CLIP does.

    T never goes below 0.01, or below its start if that is less. This is CLIP's bound on the scale of the logits,
    which kept its training stable. A step that leads past the bound is undone up to the bound before the next
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
        # One dimension, because strategies that split parameters refuse scalars. Weight decay skips both.
        self.log_scale = nn.Parameter(torch.tensor([-math.log(temperature)]))

    def forward(self) -> Tensor:
        """Returns the current temperature, (1,)."""
        with torch.no_grad():
            self.log_scale.clamp_(max=max(math.log(100), -math.log(self.temperature)))
        return (-self.log_scale).exp()


class Loss(nn.Module, ABC):
    """Base class of in-batch losses: one term per row, from rows, columns and targets.

    Attributes:
        several_targets: Whether ``terms`` reads ``Comparison.positives``, further positives of a row.
        same_side: Whether anchors and positives are rows and columns both, so that texts of a row's own side are
            its negatives too (NT-Xent), or anchors are compared with positives only (InfoNCE).
        signed: Whether the terms of pairs that don't belong together may be maximized (``SignedPairs``).
        reads_labels: Whether the loss compares by classes: texts of a row's class are its positives.
        reduction: How the terms are combined to one number; see ``reduce_terms``.
        learned: The temperature that is trained; None if it is constant.

    Example:
        >>> from contrastive_text.losses import cosine_similarity_matrix
        >>> class Hinge(Loss):
        ...     def terms(self, block):
        ...         cosines = block.mask(cosine_similarity_matrix(block.rows, block.columns))
        ...         target = block.target.unsqueeze(1)
        ...         wrong = cosines.scatter(1, target, -1).amax(dim=1)
        ...         return (0.3 - cosines.gather(1, target).squeeze(1) + wrong).clamp(min=0)
        >>> Hinge()(torch.eye(3), torch.eye(3))
        tensor(0.)
    """

    several_targets: bool = False
    same_side: bool = False
    signed: bool = True
    reads_labels: ClassVar[bool] = False
    reduction: Reduction = "mean"
    learned: LearnedTemperature | None

    def __init__(self) -> None:
        super().__init__()
        self.learned = None

    @abstractmethod
    def terms(self, block: Comparison) -> Tensor:
        """Returns one term per row of a block, (R,), in at least float32."""

    @property
    def others(self) -> tuple[str, ...]:
        """Columns of a row in addition to the targets of other examples: one text per example for each name."""
        return ("texts of its own side",) if self.same_side else ()

    @property
    def anchors_are_columns(self) -> bool:
        """Whether rows are compared with anchors in the block whose columns enter a queue."""
        return self.same_side

    @property
    def figures(self) -> dict[str, Tensor]:
        """Logged figures of the loss: the temperature if it is learned."""
        return {} if self.learned is None else {"temperature": self.learned().detach().squeeze()}

    def compare(self, blocks: Sequence[Comparison]) -> Tensor:
        """Returns the terms of all blocks, one after another."""
        parts = [self.terms(block) for block in blocks]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def sides(self, every: Triples) -> list[Texts]:
        """Returns the sides of all examples that are columns of the first block."""
        anchors, positives = every.sides()
        return [anchors, positives] if self.same_side else [positives]

    def comparisons(
        self, local: Triples, every: Triples, offset: int = 0, further: Texts | None = None
    ) -> list[Comparison]:
        """Arranges texts into blocks: local rows against the columns of all ranks.

        The rows of a block are one side after the other, each in the order of the local examples. If the rows are
        exactly the columns, both are one tensor.

        Args:
            local: This rank's n examples.
            every: The N examples of all ranks, in rank order. On one process it has the vectors of ``local``.
            offset: Place of the first local example among all.
            further: Columns after those of the examples, next to hard negatives.
        """
        places = offset + torch.arange(len(local.anchor), device=every.anchor.device)
        forward, backward = local.rows()
        anchors, positives = every.sides()
        if self.same_side:
            columns = every.columns([anchors, positives], places, further)
            is_whole = local.anchor is every.anchor and local.positive is every.positive
            rows = Texts.join([forward, backward])
            if is_whole and len(columns.ids) == len(rows.ids):
                rows = replace(rows, vectors=columns.vectors)
            if columns.own is not None:
                columns = replace(columns, own=columns.own.repeat(2, 1))
            target = torch.cat([len(every.anchor) + places, places])
            return [local.compare(rows, columns, target)]
        columns = every.columns([positives], places, further)
        block = local.compare(forward, columns, places)
        if self.reduction != "two_sided":
            return [block]
        return [block, local.compare(backward, anchors, places)]

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor | None = None) -> Tensor:
        """Returns the loss of N examples whose texts all differ.

        Args:
            anchor: (N, D).
            positive: (N, D).
            negative: Hard negatives, (N, D) or (N, K, D).

        Returns:
            A scalar, in at least float32.
        """
        return self._value(Triples.distinct(anchor, positive, negative))

    def _value(self, triples: Triples) -> Tensor:
        terms = self.compare(self.comparisons(triples, triples))
        return reduce_terms(terms.sum(), len(terms), self.reduction)


class SoftmaxLoss(Loss):
    """Base class of losses that are a softmax of similarities divided by a temperature.

    ``terms`` calls ``by_rows`` with a formula.

    Args:
        temperature: Divisor of the similarity.
        reduction: How the terms are combined to one number; see ``reduce_terms``.
        learn_temperature: Whether the temperature is trained too, from this start (``LearnedTemperature``).
        streamed: Whether terms are computed by rows, in memory that grows with the rows and not with their square
            (``losses.by_rows``); None to do so if the matrix is large.
        similarity: Similarity of a row and a column: of their directions (``cosine``), or ``dot``.

    Raises:
        ValueError: A temperature of 0 or less, or an unknown reduction or similarity.
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

    def by_rows(self, formula: Callable[[Comparison, Tensor | float], Tensor], block: Comparison) -> Tensor:
        """Returns the terms of a formula of a block and the temperature, by rows if streamed, (R,).

        The formula gets vectors whose dot products are the similarities. Its term of a row needs no other row.
        """
        temperature = self.temperature_now()
        return block_terms(lambda part: formula(part, temperature), block, self.similarity, self.streamed)

    def temperature_now(self) -> Tensor | float:
        """Returns the temperature, (1,) if it is learned."""
        return self.temperature if self.learned is None else self.learned()
