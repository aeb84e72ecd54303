"""Rows and columns of a contrastive objective: texts or views of a batch, and the base class of column parts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from contrastive_text.core.batch import Encoded
from contrastive_text.core.distributed import gather_all, gather_sizes, rank
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.similarity import at_least_float32
from contrastive_text.core.targets import Target
from contrastive_text.core.types import Role
from contrastive_text.heads import Head, project_roles
from contrastive_text.losses import Comparison, Loss
from contrastive_text.losses.comparison import MASKED_ID, ComparedTexts, ExampleVectors, Group
from contrastive_text.objectives.terms import Terms


class Between(ABC):
    """Base class of comparisons, which arrange the roles of a batch as anchors, positives and hard negatives.

    A subclass implements ``arrange``.

    Attributes:
        reads: Roles that every example must have.
        takes: Roles that are read if examples have them.
        comparison_names: Names of the comparisons. Each has its own queue.
        column_kind: Name of the columns of other examples, for the run's summary.
        is_pairs: Whether anchor and positive are two texts, so that a label can mark the pair as negative.
    """

    reads: ClassVar[tuple[Role, ...]]
    takes: ClassVar[tuple[Role, ...]]
    comparison_names: ClassVar[tuple[str, ...]]
    column_kind: ClassVar[str]
    is_pairs: ClassVar[bool]

    @abstractmethod
    def arrange(self, encoded: Encoded, vectors: Mapping[Role, Tensor]) -> dict[str, ExampleVectors]:
        """Returns the vectors to compare, by the name of the comparison (a name from ``compared``).

        Args:
            encoded: The local batch.
            vectors: Vectors of each role that the loss reads and examples have, (N, slots, D).

        Raises:
            ValueError: A role has the wrong number of slots.
        """


class BetweenTexts(Between):
    """Compares the first view of each anchor with the mean of all views of its positives.

    Example:
        >>> from contrastive_text.core.types import Slot
        >>> slots = (Slot("anchor", 0), Slot("positive", 0))
        >>> rows = Encoded(torch.eye(4), slots, text_ids=torch.arange(4))
        >>> vectors = {slot.role: rows.role(slot.role) for slot in slots}
        >>> [(name, len(texts.anchor)) for name, texts in BetweenTexts().arrange(rows, vectors).items()]
        [('texts', 2)]
    """

    reads = ("anchor", "positive")
    takes = ("negative",)
    comparison_names = ("texts",)
    column_kind = "positives"
    is_pairs = True

    def arrange(self, encoded: Encoded, vectors: Mapping[Role, Tensor]) -> dict[str, ExampleVectors]:
        """Returns the vectors of anchors, averaged positives and hard negatives under the name ``texts``."""
        texts = ExampleVectors(
            anchor=vectors["anchor"][:, 0],
            positive=vectors["positive"].mean(dim=1),
            negative=vectors.get("negative"),
            anchor_ids=encoded.role_ids("anchor")[:, 0],
            positive_ids=_set_ids(encoded.role_ids("positive")),
            negative_ids=encoded.role_ids("negative") if "negative" in vectors else None,
        )
        return {"texts": texts}


class BetweenViews(Between):
    """Compares the two views of each text with the views of all other texts of its role.

    Anchors are compared with anchors, and positives with positives. Hard negatives are not read. Source:
    ConSERT's joint training (Yan et al. 2021, https://arxiv.org/abs/2105.11741, section 3.3).

    Example:
        >>> from contrastive_text.core.types import Slot
        >>> slots = (Slot("anchor", 0), Slot("anchor", 1))
        >>> rows = Encoded(torch.eye(4), slots, text_ids=torch.arange(4))
        >>> vectors = {"anchor": rows.role("anchor")}
        >>> [(name, len(texts.anchor)) for name, texts in BetweenViews().arrange(rows, vectors).items()]
        [('anchor', 2)]
    """

    reads = ("anchor",)
    takes = ("positive",)
    comparison_names = ("anchor", "positive")
    column_kind = "texts of its role"
    is_pairs = False

    def arrange(self, encoded: Encoded, vectors: Mapping[Role, Tensor]) -> dict[str, ExampleVectors]:
        """Returns the vectors of the two views of each text, by the name of the text's role."""
        return {role: _two_views(role, views, encoded.role_ids(role)) for role, views in vectors.items()}


def read_vectors(encoded: Encoded, roles: Sequence[Role], head: Head | None) -> dict[Role, Tensor]:
    """Returns the vectors of roles after a head, by role, (N, slots, D) in at least float32.

    Roles that the batch lacks are skipped.

    Args:
        encoded: The local batch.
        roles: Roles to read, in the order in which the head receives them.
        head: Train-only head between embeddings and loss; None for none.
    """
    embeddings = {role: encoded.role(role) for role in roles if encoded.role_ids(role).shape[1]}

    def project(vectors: Tensor) -> Tensor:
        return at_least_float32(vectors if head is None else head(vectors))

    return dict(zip(embeddings, project_roles(head, list(embeddings.values()), project), strict=True))


_NAMED = {"texts": BetweenTexts, "views": BetweenViews}


def resolve_between(between: Between | str, where: str) -> Between:
    """Converts the option ``between`` to a comparison: looks up its name, or returns a comparison unchanged.

    Args:
        between: A comparison, or the name ``texts`` or ``views``.
        where: Name of the objective, for the error.

    Raises:
        ValueError: The name is not ``texts`` or ``views``.
    """
    if isinstance(between, Between):
        return between
    if between not in _NAMED:
        raise InvalidValueError(
            f"{where}.between: expected {' or '.join(_NAMED)}, got {between!r}; views compares the two views "
            "of each text, texts an example's texts"
        )
    return _NAMED[between]()


def _two_views(role: Role, vectors: Tensor, ids: Tensor) -> ExampleVectors:
    if vectors.shape[1] != 2:
        raise InvalidValueError(
            f"between: expected two views of one text as {role}, got {vectors.shape[1]} slots; "
            "give a pairing with views_per_text: 2, or set between: texts"
        )
    return ExampleVectors(vectors[:, 0], vectors[:, 1], None, ids[:, 0], ids[:, 1], None)


def _set_ids(ids: Tensor) -> Tensor:
    """Returns one id for the set of texts of each row, (N, P) -> (N,).

    If all texts of a row are equal, the result is their id. The order of the texts doesn't matter.
    """
    return torch.where((ids == ids[:, :1]).all(dim=1), ids[:, 0], ids.sum(dim=1))


HARD_NEGATIVES = "hard negatives"
"""Name of the hard negatives in ``Negatives.counts``."""

Stage = Literal["ids", "examples", "columns", "rules"]
"""Names of the stages of ``Contrastive.columns``, in the order in which they run."""


def gather_triples(
    local: Sequence[ExampleVectors], over_ranks: bool, shares: Sequence[int] | None = None
) -> tuple[list[ExampleVectors], int]:
    """Gathers the examples of all ranks with one collective operation.

    Args:
        local: This rank's examples, for each comparison.
        over_ranks: Whether to gather. If false, the local examples are all examples.
        shares: Number of examples of each rank, as ``Encoded.rank_sizes``.

    Returns:
        The examples of all ranks for each comparison, and the index of the first local example among them.
    """
    n = len(local[0].anchor)
    sizes = gather_sizes(n, local[0].anchor.device, shares) if over_ranks else [n]
    tensors: list[Tensor] = []

    def collect(rows: Tensor) -> Tensor:
        tensors.append(rows)
        return rows

    for triples in local:
        triples.map(collect)
    gathered = iter(gather_all(tensors, sizes))
    all_examples = [triples.map(lambda _: next(gathered)) for triples in local]
    return all_examples, sum(sizes[: rank()]) if len(sizes) > 1 else 0


def with_distinct_ids(texts: ExampleVectors) -> ExampleVectors:
    """Returns the same vectors with a different id for every text, so that duplicates are not masked."""
    distinct = ExampleVectors.distinct(texts.anchor, texts.positive, texts.negative)
    ids = distinct.negative_ids
    if ids is not None and texts.negative_ids is not None:
        text_ids = texts.negative_ids if texts.negative_ids.ndim == 2 else texts.negative_ids[..., 0]
        ids = torch.where(text_ids == MASKED_ID, MASKED_ID, ids)
    return replace(distinct, negative_ids=ids, target=texts.target, guide=texts.guide)


@dataclass(frozen=True, slots=True)
class RowsAndColumns:
    """Rows of this rank and columns of all ranks, which a column part receives and returns with changes.

    Args:
        name: Name of the comparison: ``texts``, or a role if views are compared.
        loss: Loss that compares rows with columns.
        rows: Vectors of this rank's n examples as rows.
        all_examples: The N examples of all ranks, in rank order; their vectors are columns. Without
            ``Duplicates`` all ids differ.
        offset: Index of the first local example among all examples.
        texts: The same N examples with the ids of their texts.
        extra_columns: Columns that belong to no example, (H,); None for none.
        is_positive: True for positive pairs, (N,); None if all pairs are positive.
        momentum: Roles whose vectors are from a momentum encoder.
        reduce: Computes the terms of the blocks; None for the sum of the loss's terms.
    """

    name: str
    loss: Loss
    rows: ExampleVectors
    all_examples: ExampleVectors
    offset: int
    texts: ExampleVectors
    extra_columns: ComparedTexts | None = None
    is_positive: Tensor | None = None
    momentum: tuple[Role, ...] = ()
    reduce: Callable[[RowsAndColumns, list[Comparison]], Terms] | None = None

    @property
    def masks_duplicates(self) -> bool:
        """True if duplicates in the batch have equal ids, so that rules can mask them."""
        return self.all_examples.anchor_ids is self.texts.anchor_ids

    @property
    def local(self) -> ExampleVectors:
        """This rank's n examples with the ids, groups and guide vectors of all examples."""
        rows = self.rows
        local = self.all_examples.map(lambda tensor: tensor[self.offset : self.offset + len(rows.anchor)])
        return replace(local, anchor=rows.anchor, positive=rows.positive, negative=rows.negative)

    @property
    def local_is_positive(self) -> Tensor:
        """Boolean vector of this rank's pairs, True for positive pairs, (n,)."""
        if self.is_positive is None:
            return torch.ones(len(self.rows.anchor), dtype=torch.bool, device=self.rows.anchor.device)
        return self.is_positive[self.offset : self.offset + len(self.rows.anchor)]

    def remove_negative_pairs(self) -> RowsAndColumns:
        """Removes the negative pairs from rows and columns."""
        if self.is_positive is None:
            return self
        paired, local_is_positive = self.is_positive, self.local_is_positive
        examples = self.all_examples.map(lambda tensor: tensor[paired])
        return replace(
            self,
            rows=self.rows.map(lambda tensor: tensor[local_is_positive]),
            all_examples=examples,
            offset=int(paired[: self.offset].sum()),
            texts=examples if self.masks_duplicates else self.texts.map(lambda tensor: tensor[paired]),
            is_positive=None,
        )

    def add_columns(self, columns: ComparedTexts) -> RowsAndColumns:
        """Appends columns that are part of no example, such as those of a queue.

        Args:
            columns: H columns, of width D.

        Raises:
            ValueError: The columns have another width than the vectors of the batch.
        """
        width, expected = columns.vectors.shape[1], self.all_examples.anchor.shape[1]
        if width != expected:
            raise InvalidValueError(
                f"Contrastive.columns: expected further columns of {expected} features, as the vectors of the "
                f"batch have, got {width}; compute them with the same encoder and head"
            )
        further = columns if self.extra_columns is None else ComparedTexts.join([self.extra_columns, columns])
        return replace(self, extra_columns=further)

    def add_rule(self, name: str, group: Group) -> RowsAndColumns:
        """Adds a rule that masks columns, or makes them positives, by integer ids.

        Args:
            name: Name of the rule.
            group: Ids and effect of the rule.

        Raises:
            ValueError: There is another rule that makes positives, or the loss has one positive per row.
        """
        if group.makes_positives:
            rules = [rule for rule, rule_group in self.all_examples.groups.items() if rule_group.makes_positives]
            if rules:
                raise InvalidValueError(
                    f"Contrastive.columns: expected one rule of positives, got {rules[0]} and {name}; remove one"
                )
            if not self.loss.supports_several_positives:
                raise InvalidValueError(
                    f"Contrastive.columns: expected a loss with several positives per row for rule {name}, got "
                    f"{type(self.loss).__name__}; use NTXent, or InfoNCE with its defaults"
                )
        return replace(
            self, all_examples=replace(self.all_examples, groups={**self.all_examples.groups, name: group})
        )

    def blocks(self) -> list[Comparison]:
        """Arranges rows and columns into the blocks that the loss compares."""
        return self.loss.comparisons(self.local, self.all_examples, self.offset, extra_columns=self.extra_columns)

    def terms(self) -> Terms:
        """Returns the sum and the number of the loss terms of this rank's rows."""
        if self.reduce is not None:
            return self.reduce(self, self.blocks())
        terms = self.loss.compare(self.blocks())
        rows = {"loss": terms.detach()}
        return Terms(total=terms.sum(), count=len(terms), reduction=self.loss.reduction, rows=rows)


@dataclass(frozen=True, slots=True)
class NegativeCount:
    """Number of negatives of an anchor in a step, for the summary of a run.

    Args:
        batch_size: Number of examples of a step, over all ranks.
        counts: Kind of negatives -> number of negatives.
        roles: Roles whose vectors enter a queue.
        momentum: Whether these vectors are from a momentum encoder.
        notes: Notes for the summary. With notes, the number is an upper bound.
        filling: Whether a queue grows until it is full.
    """

    batch_size: int
    counts: Mapping[str, int]
    roles: tuple[Role, ...] = ("positive", "negative")
    momentum: bool = False
    notes: tuple[str, ...] = ()
    filling: bool = False

    def __str__(self) -> str:
        """Returns the number of negatives of each kind as text."""
        kinds = [f"{count:,} {kind}" for kind, count in self.counts.items()]
        notes = (*self.notes, f"accumulate_grad_batches adds none{', but fills the queue sooner' * self.filling}")
        return (
            f"{'at most ' * bool(self.notes)}{sum(self.counts.values()):,} per anchor"
            f"{' once the queue is full' * self.filling}: {', '.join(kinds)}; {'; '.join(notes)}"
        )


@dataclass(frozen=True, slots=True)
class ObjectiveOptions:
    """Options of the objective that a column part belongs to, for ``ColumnPart.check``.

    Args:
        loss: Loss of the objective.
        between: Comparison of the objective, such as ``BetweenTexts``.
        parts: All column parts of the objective.
    """

    loss: Loss
    between: Between
    parts: Sequence[ColumnPart]

    @property
    def is_one_way(self) -> bool:
        """True if anchors are the only rows, and positives and hard negatives the only columns."""
        return not self.loss.column_kinds and self.loss.reduction != "two_sided"

    def has(self, kind: type[ColumnPart]) -> bool:
        """Returns True if a column part of a class is present."""
        return any(isinstance(part, kind) for part in self.parts)

    @property
    def rows_without_positive(self) -> str | None:
        """Name of a column part that leaves some rows without a positive; None if there is no such part."""
        return next((type(part).__name__ for part in self.parts if not part.rows_have_positives), None)


class ColumnPart(ABC):
    """Base class of column parts, which change the columns that the rows of ``Contrastive`` are compared with.

    A subclass implements ``__call__``. Parts run in the order of their stages, and within a stage in the order of
    ``Contrastive.columns``.

    Attributes:
        stage: ``ids`` for ``Duplicates``, ``examples`` for parts that select examples or their vectors,
            ``columns`` for parts that add columns, ``rules`` for parts that mask columns or make them positives.
        guide: Name of the guide whose vectors the part reads as ``pairs.all_examples.guide``; None for none.
        trains_only: Whether the part is skipped in evaluation.
        adds_columns: Whether the part adds columns to the columns of the batch.
        masks_batch: Whether the part masks the columns of other examples of the batch.
        rows_have_positives: Whether every row has a positive after this part.
        note: Sentence on the negatives for the run's summary; empty if the part has nothing to say about them.

    Example:
        >>> from contrastive_text.core.targets import Classes
        >>> class SameLabelIsNoNegative(ColumnPart):
        ...     target = Classes.of(2, "labels")
        ...     def __call__(self, pairs):
        ...         return pairs.add_rule("labels", Group.of(pairs.all_examples.target, effect="mask"))
    """

    stage: ClassVar[Stage] = "rules"
    trains_only: ClassVar[bool] = False
    adds_columns: ClassVar[bool] = False
    masks_batch: ClassVar[bool] = False
    rows_have_positives: ClassVar[bool] = True
    guide: str | None = None
    note: str | None = None

    @abstractmethod
    def __call__(self, pairs: RowsAndColumns) -> RowsAndColumns:
        """Changes the columns that rows are compared with, their rules or ids, and returns the result."""

    @property
    def target(self) -> Target | None:
        """Kind of target that the part reads as ``pairs.all_examples.target``; None if it reads no target."""
        return None

    @property
    def needs_two_texts(self) -> str | None:
        """Description of an option that needs anchor and positive to be different texts; None without any."""
        return None

    def check(self, setup: ObjectiveOptions) -> None:  # noqa: B027  # most parts work with all options
        """Checks that the part works with the other options of its objective.

        Raises:
            ValueError: An option is incompatible with the part.
        """

    def describe(self, negatives: NegativeCount) -> NegativeCount:
        """Returns the number of negatives per anchor as a column part changes it, for the summary of a run.

        By default a note is added.
        """
        note = f"{type(self).__name__} changes their number" if self.note is None else self.note
        return replace(negatives, notes=(*negatives.notes, note) if note else negatives.notes)

    def receive_columns(self, pairs: RowsAndColumns) -> None:  # noqa: B027  # most parts keep no state
        """Receives the rows and columns after all parts have run, once per step."""

    def finish_step(self) -> None:  # noqa: B027  # most parts keep no state
        """Updates state that later steps read, at the end of a training step (``Objective.finish_step``)."""
