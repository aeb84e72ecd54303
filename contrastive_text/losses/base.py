"""Base classes of in-batch losses, whose terms are exact without the whole similarity matrix in memory."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from contrastive_text.core.errors import above, one_of
from contrastive_text.core.similarity import Similarity, full_precision, prepare_vectors
from contrastive_text.losses.comparison import ComparedTexts, Comparison, ExampleVectors

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
            (``losses.base``). None: only if the matrix is large.
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


STREAMED_ABOVE = 2**22
"""Largest similarity matrix, in entries (rows x columns), that is computed whole if ``streamed`` is None.

It takes 16 MiB in float32. Up to this size the whole matrix is at least as fast as the streamed loss."""

_ENTRIES = 2**23
"""Number of entries (rows x columns) of a part of the similarity matrix: 32 MiB in float32.

glibc maps allocations of this size one by one and returns them to the system. Smaller allocations fragment its
heap. Peak memory of ``ListNet`` at 4,096, 8,192 and 16,384 rows on a CPU: 405, 471 and 422 MiB; with parts of a
quarter of the size 404, 907 and 2,338 MiB. ``DCL`` takes a third more time, because the system clears the pages
again."""


Part = TypeVar("Part")
Result = TypeVar("Result")


def compute_in_parts(compute: Callable[[Part], Result], parts: Sequence[Part]) -> list[Result]:
    """Returns the results of a function for each part of its input.

    If there are several parts, the backward pass computes each part again, so that memory stays bounded by one
    part.

    Args:
        compute: Function of one part.
        parts: Parts of the input.

    Example:
        >>> compute_in_parts(torch.sum, [torch.ones(2), torch.ones(3)])
        [tensor(2.), tensor(3.)]
    """
    if len(parts) < 2 or not torch.is_grad_enabled():
        return [compute(part) for part in parts]
    return [checkpoint(compute, part, use_reentrant=False, preserve_rng_state=False) for part in parts]


def is_streamed(streamed: bool | None, shape: tuple[int, int]) -> bool:
    """Returns whether a loss is streamed.

    Args:
        streamed: The option of the loss. None: streamed if the matrix has over ``STREAMED_ABOVE`` entries.
        shape: Rows and columns of the similarity matrix.
    """
    return shape[0] * shape[1] > STREAMED_ABOVE if streamed is None else streamed


def streamed_terms(
    formula: Callable[[slice], Tensor], rows: int, columns: int, streamed: bool | None = None
) -> Tensor:
    """Returns one loss term per row, computed for some rows at a time if the loss is streamed.

    Only the terms of a part are stored; the backward pass computes the part again. For a softmax,
    ``streamed_softmax_terms`` is faster.

    Args:
        formula: Computes the terms of a range of rows against all columns. The term of a row must not depend on
            other rows.
        rows: Number of rows, R.
        columns: Number of columns, C.
        streamed: Whether to compute some rows at a time. None: above ``STREAMED_ABOVE`` entries.

    Returns:
        (R,).

    Example:
        >>> logits = torch.eye(3)
        >>> streamed_terms(lambda part: logits[part].logsumexp(dim=1), rows=3, columns=3)
        tensor([1.5514, 1.5514, 1.5514])
    """
    if not rows or not is_streamed(streamed, (rows, columns)):
        return formula(slice(0, rows))
    return torch.cat(compute_in_parts(formula, list(_parts(rows, columns))))


def streamed_block_terms(
    formula: Callable[[Comparison], Tensor], block: Comparison, similarity: Similarity, streamed: bool | None
) -> Tensor:
    """Applies a formula to a block, outside autocast, and returns the loss terms of its rows, (R,).

    Args:
        formula: Computes the terms of a block. The dot products of its vectors are the similarities. The term of
            a row must not depend on other rows.
        block: Rows and columns.
        similarity: Similarity of a row and a column.
        streamed: Whether to compute some rows at a time. None: above ``STREAMED_ABOVE`` entries.
    """
    with full_precision(block.rows.device):
        block = block.map(lambda vectors: prepare_vectors(vectors, similarity))
        return streamed_terms(lambda rows: formula(block.select(rows)), *block.shape, streamed)


def streamed_softmax_terms(
    block: Comparison, temperature: Tensor | float, own_log_weight: float, similarity: Similarity
) -> tuple[Tensor, Tensor]:
    """Returns the streamed softmax cross-entropy of each row, and the logit of its target.

    The values equal ``info_nce_terms`` for rows with one positive. The logits of a part are computed in
    the forward pass and again in the backward pass, in one block of memory. If rows and columns are one tensor,
    the matrix is symmetric and about two thirds of the products are computed. Second derivatives are not
    supported.

    Args:
        block: Rows and columns, without ``positives`` and ``reverse``. A row without a target (-1) has a target
            logit of 0; its term is the logarithm of the sum.
        temperature: Divisor of the similarity.
        own_log_weight: Added to the logits of a row's own hard negatives.
        similarity: Similarity of a row and a column.

    Returns:
        Cross-entropies (R,) and logits (R,).

    Example:
        >>> eye = torch.eye(2)
        >>> streamed_softmax_terms(Comparison(eye, eye, torch.tensor([0, 1])), 1.0, 0.0, "cosine")
        (tensor([0.3133, 0.3133]), tensor([1., 1.]))
    """
    with full_precision(block.rows.device):
        block = block.map(lambda vectors: prepare_vectors(vectors, similarity))
        # Rows and columns are both divided by the root, so that one tensor remains one tensor.
        root = temperature**0.5
        block = block.map(lambda vectors: vectors / root)
        terms, logits = _SoftmaxTerms.apply(  # type: ignore[no-untyped-call]  # torch's
            block.rows, block.columns, block, own_log_weight
        )
    return terms, logits


class _SoftmaxTerms(torch.autograd.Function):
    """Autograd function of the streamed softmax cross-entropy of rows, and of the logits of their targets."""

    @staticmethod
    def forward(
        ctx: Any,  # Any: torch leaves it untyped
        rows: Tensor,
        columns: Tensor,
        block: Comparison,
        own_log_weight: float,
    ) -> tuple[Tensor, Tensor]:
        ctx.is_mirrored = rows is columns and block.own_negatives is None
        target_logits, total = rows.new_zeros(len(rows)), rows.new_zeros(len(rows))
        # A finite lowest value, so that a row without visible columns has a sum of 0.
        largest = torch.full_like(total, torch.finfo(rows.dtype).min)
        for views in _logits(rows, columns, block, own_log_weight, ctx.is_mirrored):
            for part, across, logits in views:
                sub_block = block.select(part, across)
                sub_block.mask_logits(logits)
                target = sub_block.target.unsqueeze(1)
                part_logits = logits.gather(1, target.clamp(min=0)).masked_fill_(target < 0, 0.0)
                target_logits[part] += part_logits.squeeze(1)
                previous = largest[part].clone()
                largest[part] = torch.maximum(previous, logits.amax(dim=1))
                total[part] *= (previous - largest[part]).exp_()
                total[part] += logits.sub_(largest[part].unsqueeze(1)).exp_().sum(dim=1)
        total.log_()
        ctx.save_for_backward(rows, columns, total + largest)
        ctx.block, ctx.own_log_weight = block, own_log_weight
        return total + (largest - target_logits), target_logits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, target_gradient: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        rows, columns, total = ctx.saved_tensors
        block: Comparison = ctx.block
        total = total.clamp(min=torch.finfo(total.dtype).min)
        with full_precision(rows.device):
            weight = (target_gradient - gradient).masked_fill(block.target < 0, 0.0).unsqueeze(1)
            target = block.target.clamp(min=0)
            grad_rows, grad_columns = weight * columns[target], None
            if ctx.needs_input_grad[1]:
                grad_columns = grad_rows if ctx.is_mirrored else torch.zeros_like(columns)
                grad_columns.index_add_(0, target, weight * rows)
            for views in _logits(rows, columns, block, ctx.own_log_weight, ctx.is_mirrored):
                for part, across, logits in views:
                    block.select(part, across).mask_logits(logits)
                    logits.sub_(total[part].unsqueeze(1)).exp_().mul_(gradient[part].unsqueeze(1))
                (part, across, weights), *mirrored = views
                for _, _, logits in mirrored:
                    weights[:, len(weights) :] += logits.T
                grad_rows[part].addmm_(weights, columns[across])
                if grad_columns is not None:
                    grad_columns[across].addmm_(weights.T, rows[part])
        return grad_rows, None if ctx.is_mirrored else grad_columns, None, None


def _logits(
    rows: Tensor, columns: Tensor, block: Comparison, own_log_weight: float, is_mirrored: bool
) -> Iterator[list[tuple[slice, slice, Tensor]]]:
    """Yields the ranges of rows and columns of each part, and its logits in reused memory.

    If the matrix is symmetric (``is_mirrored``), a part starts at its diagonal. A second entry then has the
    transposed logits: the rows after the part with the columns of the part.
    """
    memory = rows.new_empty(max(min(_ENTRIES, len(rows) * len(columns)), len(columns)))
    for part in _parts(len(rows), len(columns), is_mirrored):
        across = slice(part.start if is_mirrored else 0, len(columns))
        size, width = part.stop - part.start, across.stop - across.start
        logits = torch.mm(rows[part], columns[across].T, out=memory[: size * width].view(size, width))
        if block.own_negatives is not None and own_log_weight:
            add_to_own_negatives(logits, block.own_negatives[part], own_log_weight)
        if is_mirrored and size < width:
            yield [(part, across, logits), (slice(part.stop, len(rows)), part, logits[:, size:].T.clone())]
        else:
            yield [(part, across, logits)]


def add_to_own_negatives(logits: Tensor, own: Tensor, log_weight: float) -> Tensor:
    """Adds a weight in place to the logits of each row's own hard negatives, and returns the logits.

    Args:
        logits: (R, C).
        own: Columns of each row's own hard negatives, (R, K); -1 for none.
        log_weight: Number to add.
    """
    weight = logits.new_full((), log_weight)
    return logits.scatter_add_(1, own.clamp(min=0), torch.where(own < 0, 0.0, weight))


def _parts(rows: int, columns: int, is_mirrored: bool = False) -> Iterator[slice]:
    """Yields ranges of rows that have about ``_ENTRIES`` entries each.

    If the matrix is symmetric (``is_mirrored``), a part has no columns before its first row.
    """
    start = 0
    while start < rows:
        size = max(_ENTRIES // max(columns - start * is_mirrored, 1), 1)
        yield slice(start, min(start + size, rows))
        start += size
