"""Parts of the chain ``Contrastive.columns``: each adds, masks or pulls columns that rows are compared with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from contrastive_text.core.distributed import gather_all, gather_sizes, rank
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.targets import Target
from contrastive_text.core.types import Role
from contrastive_text.losses import Comparison, Loss
from contrastive_text.losses.comparison import HIDDEN_ID, Group, Texts, Triples
from contrastive_text.objectives.between import Between
from contrastive_text.objectives.terms import Terms

HARD = "hard negatives"
"""Kind of the hard negatives in ``Negatives.counts``."""

Stage = Literal["ids", "examples", "columns", "rules"]
"""Stages of the chain, in the order in which they run."""


def gather_triples(
    local: Sequence[Triples], over_ranks: bool, shares: Sequence[int] | None = None
) -> tuple[list[Triples], int]:
    """Gathers the examples of all ranks, with one collective.

    Args:
        local: This rank's examples, for each comparison.
        over_ranks: Whether to gather; otherwise the local examples are all examples.
        shares: Number of examples of each rank, as ``Encoded.shares``.

    Returns:
        The examples of all ranks for each comparison, and the place of the first local example among them.
    """
    n = len(local[0].anchor)
    sizes = gather_sizes(n, local[0].anchor.device, shares) if over_ranks else [n]
    own: list[Tensor] = []

    def noted(rows: Tensor) -> Tensor:
        own.append(rows)
        return rows

    for each in local:
        each.map(noted)
    gathered = iter(gather_all(own, sizes))
    every = [each.map(lambda _: next(gathered)) for each in local]
    return every, sum(sizes[: rank()]) if len(sizes) > 1 else 0


def with_distinct_ids(texts: Triples) -> Triples:
    """Returns the same vectors with different ids for all texts, so that duplicates are not masked."""
    distinct = Triples.distinct(texts.anchor, texts.positive, texts.negative)
    ids = distinct.negative_ids
    if ids is not None and texts.negative_ids is not None:
        first = texts.negative_ids if texts.negative_ids.ndim == 2 else texts.negative_ids[..., 0]
        ids = torch.where(first == HIDDEN_ID, HIDDEN_ID, ids)
    return replace(distinct, negative_ids=ids, target=texts.target, guide=texts.guide)


@dataclass(frozen=True, slots=True)
class Pairs:
    """The rows of this rank and the columns of all ranks: what a column part receives and returns.

    Args:
        name: Name of the comparison, such as ``texts``, or a role if views are compared.
        loss: The formula.
        rows: Vectors of this rank's n examples as rows.
        every: The N examples of all ranks, in rank order; their vectors are columns. Without ``Duplicates`` all
            ids differ.
        offset: Place of the first local example among all.
        texts: The same examples with the ids of their texts.
        further: Columns that belong to no example, (H,); None for none.
        paired: True for pairs that belong together, (N,); None for all.
        momentum: Roles whose vectors are those of a momentum encoder.
        reduce: Computes the terms of the blocks; None for the sum of the loss's terms.
    """

    name: str
    loss: Loss
    rows: Triples
    every: Triples
    offset: int
    texts: Triples
    further: Texts | None = None
    paired: Tensor | None = None
    momentum: tuple[Role, ...] = ()
    reduce: Callable[[Pairs, list[Comparison]], Terms] | None = None

    @property
    def is_by_text(self) -> bool:
        """Whether equal texts have equal ids."""
        return self.every.anchor_ids is self.texts.anchor_ids

    @property
    def local(self) -> Triples:
        """This rank's n examples with the ids, groups and guide vectors of all examples."""
        mine = self.every.map(lambda each: each[self.offset : self.offset + len(self.rows.anchor)])
        rows = self.rows
        return replace(mine, anchor=rows.anchor, positive=rows.positive, negative=rows.negative)

    @property
    def local_paired(self) -> Tensor:
        """True for this rank's pairs that belong together, (n,)."""
        if self.paired is None:
            return torch.ones(len(self.rows.anchor), dtype=torch.bool, device=self.rows.anchor.device)
        return self.paired[self.offset : self.offset + len(self.rows.anchor)]

    def only_paired(self) -> Pairs:
        """Returns the pairs that belong together, of rows and of columns."""
        if self.paired is None:
            return self
        paired, mine = self.paired, self.local_paired
        every = self.every.map(lambda each: each[paired])
        return replace(
            self,
            rows=self.rows.map(lambda each: each[mine]),
            every=every,
            offset=int(paired[: self.offset].sum()),
            texts=every if self.is_by_text else self.texts.map(lambda each: each[paired]),
            paired=None,
        )

    def add_columns(self, columns: Texts) -> Pairs:
        """Returns the pairs with further columns, which belong to no example.

        Raises:
            ValueError: Columns of another width than the vectors of the batch.
        """
        width, expected = columns.vectors.shape[1], self.every.anchor.shape[1]
        if width != expected:
            raise InvalidValueError(
                f"Contrastive.columns: expected further columns of {expected} features, the width of the batch's "
                f"vectors, got {width}; make them with the same encoder and head"
            )
        further = columns if self.further is None else Texts.join([self.further, columns])
        return replace(self, further=further)

    def add_rule(self, name: str, group: Group) -> Pairs:
        """Returns the pairs with a rule that masks columns, or makes them positives, by integer ids.

        Args:
            name: Name of the rule.
            group: Its ids and its effect.

        Raises:
            ValueError: A second rule of positives, or one for a loss that has one positive per row.
        """
        if group.effect != "mask":
            others = [known for known, each in self.every.groups.items() if each.effect != "mask"]
            if others:
                raise InvalidValueError(
                    f"Contrastive.columns: expected one rule of positives, got {others[0]} and {name}; remove one"
                )
            if not self.loss.several_targets:
                raise InvalidValueError(
                    f"Contrastive.columns: expected a loss with several positives per row for rule {name}, got "
                    f"{type(self.loss).__name__}; take NTXent, or InfoNCE with its defaults"
                )
        return replace(self, every=replace(self.every, groups={**self.every.groups, name: group}))

    def blocks(self) -> list[Comparison]:
        """Returns the rows and columns of the loss, as blocks."""
        return self.loss.comparisons(self.local, self.every, self.offset, further=self.further)

    def terms(self) -> Terms:
        """Returns the loss's terms of this rank's rows."""
        if self.reduce is not None:
            return self.reduce(self, self.blocks())
        terms = self.loss.compare(self.blocks())
        return Terms(total=terms.sum(), count=len(terms), reduction=self.loss.reduction)


@dataclass(frozen=True, slots=True)
class Negatives:
    """Number of negatives of an anchor in a step, for the summary of a run.

    Args:
        batch_size: Examples in a step, of all ranks.
        counts: Name of a kind of negatives -> their number.
        roles: Roles whose vectors enter a queue.
        momentum: Whether these vectors are those of a momentum encoder.
        notes: Remarks. If there are any, the number is an upper bound.
        filling: Whether a queue grows until it is full.
    """

    batch_size: int
    counts: Mapping[str, int]
    roles: tuple[Role, ...] = ("positive", "negative")
    momentum: bool = False
    notes: tuple[str, ...] = ()
    filling: bool = False

    def __str__(self) -> str:
        """Returns the number of negatives as text, with its kinds."""
        shown = [f"{count:,} {kind}" for kind, count in self.counts.items()]
        notes = (*self.notes, f"accumulate_grad_batches adds none{', but fills the queue sooner' * self.filling}")
        return (
            f"{'at most ' * bool(self.notes)}{sum(self.counts.values()):,} per anchor"
            f"{' once the queue is full' * self.filling}: {', '.join(shown)}; {'; '.join(notes)}"
        )


@dataclass(frozen=True, slots=True)
class Setup:
    """Options of the objective that a column part belongs to, for ``ColumnPart.check``.

    Args:
        loss: The formula.
        between: What is compared.
        parts: All parts of the chain.
    """

    loss: Loss
    between: Between
    parts: Sequence[ColumnPart]

    @property
    def is_one_way(self) -> bool:
        """Whether anchors are the only rows, and positives and hard negatives the only columns."""
        return not self.loss.others and self.loss.reduction != "two_sided"

    def has(self, kind: type[ColumnPart]) -> bool:
        """Returns whether a part of a class is in the chain."""
        return any(isinstance(part, kind) for part in self.parts)

    @property
    def rows_without_positive(self) -> str | None:
        """Name of a part under which some rows have no positive; None for none."""
        return next((type(part).__name__ for part in self.parts if not part.rows_have_positives), None)


class ColumnPart(ABC):
    """Base class of column parts. A part changes the columns that rows are compared with: ``__call__``.

    Parts run in the order of their stages, and within a stage in the order of the list.

    Attributes:
        stage: ``ids`` for ``Duplicates``, ``examples`` for parts that choose examples or their vectors,
            ``columns`` for parts that add columns, ``rules`` for parts that mask columns or make them positives.
        guide: Name of the module's guide whose vectors it reads as ``pairs.every.guide``; None for none.
        trains_only: Whether it is left out in evaluation.
        adds_columns: Whether rows meet its columns in addition to those of the batch.
        masks_batch: Whether it masks the columns of other examples of the batch.
        rows_have_positives: Whether every row has a positive under it.

    Example:
        >>> from contrastive_text.core.targets import Classes
        >>> class SameLabelIsNoNegative(ColumnPart):
        ...     target = Classes.of(2, "labels")
        ...     def __call__(self, pairs):
        ...         return pairs.add_rule("labels", Group.of(pairs.every.target, effect="mask"))
    """

    stage: ClassVar[Stage] = "rules"
    trains_only: ClassVar[bool] = False
    adds_columns: ClassVar[bool] = False
    masks_batch: ClassVar[bool] = False
    rows_have_positives: ClassVar[bool] = True
    guide: str | None = None

    @abstractmethod
    def __call__(self, pairs: Pairs) -> Pairs:
        """Returns the pairs with changed columns, rules or ids."""

    @property
    def target(self) -> Target | None:
        """The label or class of an example that it reads as ``pairs.every.target``; None for none."""
        return None

    @property
    def two_texts(self) -> str | None:
        """Name of the option that makes no sense if anchor and positive are the same text; None for none."""
        return None

    def check(self, setup: Setup) -> None:  # noqa: B027  # most parts go with everything
        """Checks that the part goes with the other options of its objective.

        Raises:
            ValueError: It does not.
        """

    def describe(self, negatives: Negatives) -> Negatives:
        """Returns the number of negatives with those that the part adds or removes; by default with a remark."""
        return replace(negatives, notes=(*negatives.notes, f"{type(self).__name__} changes them"))

    def finish(self, pairs: Pairs) -> None:  # noqa: B027  # most parts keep nothing
        """Receives the pairs after the whole chain, once per step."""

    def finish_step(self) -> None:  # noqa: B027  # most parts keep nothing
        """Ends a training step: columns for later steps are kept here (``Objective.finish_step``)."""
