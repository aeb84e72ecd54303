"""Parts of the chain ``Contrastive.columns``: each adds, masks or pulls columns that rows are compared with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from contrastive_text.core.checks import at_least, one_of
from contrastive_text.core.distributed import gather_all, gather_sizes, rank
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.targets import Classes, Target
from contrastive_text.losses import Comparison, Loss
from contrastive_text.losses.comparison import (
    NO_ID,
    Effect,
    Group,
    Joined,
    Texts,
    Triples,
    partners_among,
)
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
        """
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
        notes: Remarks. If there are any, the number is an upper bound.
        filling: Whether a queue grows until it is full.
    """

    batch_size: int
    counts: Mapping[str, int]
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
        stage: ``ids`` for ``Duplicates``, ``examples`` for parts that choose examples, ``columns`` for parts that
            add columns, ``rules`` for parts that mask columns or make them positives.
        guide: Name of the module's guide whose vectors it reads as ``pairs.every.guide``; None for none.
        trains_only: Whether it is left out in evaluation.
        adds_columns: Whether rows meet its columns in addition to those of the batch.
        masks_batch: Whether it masks the columns of other examples of the batch.
        rows_have_positives: Whether every row has a positive under it.

    Example:
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


class Duplicates(ColumnPart):
    """Masks columns whose text is equal to the row's own text or to its positive.

    A text that occurs twice in a batch is a false negative. The same holds for texts that views of text or tokens
    have made equal. The figure ``edited_alike`` counts texts that views made equal to another one.

    Differs: the authors' codes keep such columns, and dropout tells them apart. ``columns: []`` keeps them too.

    Example:
        >>> from contrastive_text.objectives import Contrastive
        >>> [type(part).__name__ for part in Contrastive().columns]
        ['Duplicates', 'Siblings']
    """

    stage: ClassVar[Stage] = "ids"

    def __call__(self, pairs: Pairs) -> Pairs:
        """Returns the pairs with equal ids for equal texts."""
        return replace(pairs, every=pairs.texts)

    def describe(self, negatives: Negatives) -> Negatives:
        """Returns the negatives unchanged: which columns it masks depends on the texts of a step."""
        return negatives


class Siblings(ColumnPart):
    """Masks siblings, or makes them positives. Siblings are other positives of the same query.

    A column is a sibling of a row if its partner's text is the row's own text or its partner's. Past columns and
    hard negatives are siblings too if their text is a positive of the query.

    Args:
        effect: ``mask``, or ``positive``.
        joined: How several positives are combined: ``mean``, of their log-probabilities (Khosla et al. 2020,
            https://arxiv.org/abs/2004.11362, eq. 2), or ``sum``, the logarithm of the sum of their probabilities
            (Miech et al. 2020, MIL-NCE, https://arxiv.org/abs/1912.06430, eq. 1; eq. 3 of Khosla et al. up to a
            constant).

    Raises:
        ValueError: An unknown word, or ``joined: sum`` with ``effect: mask``.

    Example:
        >>> Siblings(effect="positive", joined="sum").group_effect
        'sum'
    """

    def __init__(self, effect: Literal["mask", "positive"] = "mask", joined: Joined = "mean") -> None:
        self.effect = one_of("Siblings.effect", effect, ["mask", "positive"])
        self.joined: Joined = one_of("Siblings.joined", joined, Joined)
        if effect == "mask" and joined != "mean":
            raise InvalidValueError(
                f"Siblings.joined: expected effect: positive for {joined}, got effect: mask; set effect, or "
                "leave joined out"
            )

    @property
    def group_effect(self) -> Effect:
        """Effect of the rule."""
        return "mask" if self.effect == "mask" else self.joined

    def __call__(self, pairs: Pairs) -> Pairs:
        """Returns the pairs with a rule for siblings."""
        pairs = pairs.add_rule("siblings", sibling_group(pairs.every, self.group_effect, pairs.paired))
        if pairs.further is None:
            return pairs
        # A further column whose text is the positive of an example is a sibling of that example's query.
        further, group = pairs.further, pairs.every.groups["siblings"]
        ids = partners_among(further.first_ids, first_ids(pairs.every.positive_ids), group.positive)
        if (known := further.groups.get("siblings")) is not None:
            ids = torch.where(known == NO_ID, ids, known)
        return replace(pairs, further=replace(further, groups={**further.groups, "siblings": ids}))

    def describe(self, negatives: Negatives) -> Negatives:
        """Returns the negatives unchanged: which columns it masks depends on the texts of a step."""
        return negatives

    def check(self, setup: Setup) -> None:
        """Checks that siblings exist and that a row may have several positives."""
        where = "Siblings" if self.effect == "mask" else "Siblings.effect: positive"
        loss = type(setup.loss).__name__
        if setup.loss.reads_labels:
            got = f"{loss}, which takes positives from classes; leave Siblings out"
        elif not setup.between.is_pairs:
            got = f"{type(setup.between).__name__}, under which a text has no sibling; leave Siblings out"
        elif not setup.has(Duplicates):
            got = "columns without Duplicates, under which rows don't know equal texts; add Duplicates"
        elif self.effect == "positive" and not setup.loss.several_targets:
            got = f"{loss}, which has one positive per row; take NTXent, or InfoNCE with its defaults"
        elif self.effect == "positive" and (part := setup.rows_without_positive):
            got = f"{part}, under which negative pairs are rows; take NegativesAsHard"
        else:
            return
        raise InvalidValueError(f"Contrastive.columns: {where} expects rows with siblings, got {got}")


def sibling_group(every: Triples, effect: Effect, paired: Tensor | None = None) -> Group:
    """Returns the ids by which siblings are found: a column has the id of its partner's text.

    Args:
        every: N examples.
        effect: Effect of the rule.
        paired: True for examples whose texts belong together, (N,); None for all.
    """
    anchors, positives = first_ids(every.anchor_ids), first_ids(every.positive_ids)
    of_anchors, of_positives = positives, anchors
    if paired is not None:
        of_anchors, of_positives = (torch.where(paired, each, NO_ID) for each in (positives, anchors))
    negative = None
    if every.negative_ids is not None:
        ids = every.negative_ids if every.negative_ids.ndim == 2 else every.negative_ids[..., 0]
        negative = partners_among(ids.flatten(), positives, of_positives).reshape(ids.shape)
    return Group(torch.stack([anchors, positives], dim=1), of_anchors, of_positives, negative, effect)


class SameClass(ColumnPart):
    """Makes columns of a row's class positives of the row, for a loss that compares by classes (``SupCon``).

    Args:
        classes: Number or names of the classes of the target.

    Raises:
        ValueError: Fewer than two classes.

    Example:
        >>> SameClass(["negative", "positive"]).target.names
        ('negative', 'positive')
    """

    def __init__(self, classes: int | list[str]) -> None:
        self.classes = classes
        self._target = Classes.of(classes, "SameClass.classes")

    @property
    def target(self) -> Target:
        """The class of an example."""
        return self._target

    def __call__(self, pairs: Pairs) -> Pairs:
        """Returns the pairs with a rule for columns of a row's class."""
        assert pairs.every.target is not None
        return pairs.add_rule("classes", Group.of(pairs.every.target, effect="mean"))

    def check(self, setup: Setup) -> None:
        """Checks that the loss compares by classes."""
        if not setup.loss.reads_labels:
            raise InvalidValueError(
                f"Contrastive.columns: SameClass expects a loss that compares by classes, got "
                f"{type(setup.loss).__name__}; take SupCon, or leave SameClass out"
            )

    def describe(self, negatives: Negatives) -> Negatives:
        """Returns the negatives with a remark."""
        return replace(negatives, notes=(*negatives.notes, "texts of its class are none"))


class FalseNegatives(ColumnPart):
    """Masks columns whose cosine with the row is too high, by a guide: another model (GISTEmbed).

    Solatorio 2024 (https://arxiv.org/abs/2402.16829), section 3.2; the margins are those of
    sentence-transformers' ``GISTEmbedLoss``. If g is the guide's cosine of a pair, columns above ``g -
    absolute_margin - relative_margin * |g|`` are masked for the pair: for its anchor and, if it is a row too, for
    its positive. This includes hard negatives and past columns. A row's positives are never masked.

    Figures are ``removed``, the mean number of other positives that the guide masks for a row, and
    ``guide_agreement`` (``metrics.guide_agreement``), the share of rows whose nearest other positive is the
    guide's nearest too.

    Differs: a text is never its own negative here, nor is an equal text, because rows know them by id. The
    authors' function keeps a text among its own columns if the guide finds anchor and positive equal, as in
    SimCSE's pairs: its cosine is not above g = 1.

    Args:
        guide: Name of the guide in ``model.guides``.
        absolute_margin: Distance below the pair's cosine at which masking begins.
        relative_margin: The same as a share of that cosine.

    Raises:
        ValueError: A margin below 0.

    Example:
        >>> FalseNegatives("teacher", relative_margin=0.05).has_margin
        True
    """

    def __init__(self, guide: str, absolute_margin: float = 0.0, relative_margin: float = 0.0) -> None:
        self.guide: str = guide
        self.absolute_margin = at_least("FalseNegatives.absolute_margin", absolute_margin, 0, "0 is GISTEmbed's")
        self.relative_margin = at_least("FalseNegatives.relative_margin", relative_margin, 0, "0 is GISTEmbed's")

    @property
    def has_margin(self) -> bool:
        """Whether columns less similar than the pair itself are masked too."""
        return self.absolute_margin > 0 or self.relative_margin > 0

    def __call__(self, pairs: Pairs) -> Pairs:
        """Returns the pairs with a bound on the guide's cosine for each example."""
        assert pairs.every.guide is not None
        guide = pairs.every.guide
        bound = self.bound(guide.anchor, guide.positive)
        return replace(pairs, every=replace(pairs.every, guide=replace(guide, bound=bound)))

    def bound(self, anchor: Tensor, positive: Tensor) -> Tensor:
        """Returns the cosine above which a column is masked, (N,), from a guide's unit vectors, (N, Dg)."""
        cosine = (anchor * positive).sum(dim=1)
        return cosine - self.absolute_margin - self.relative_margin * cosine.abs()

    @property
    def two_texts(self) -> str | None:
        """Without a margin nothing is above the cosine of a text with itself, which is 1."""
        return None if self.has_margin else "FalseNegatives without absolute_margin or relative_margin"

    def check(self, setup: Setup) -> None:
        """Checks that the guide's cosine of a pair is a bound for other columns."""
        if part := setup.rows_without_positive:
            raise InvalidValueError(
                f"Contrastive.columns: FalseNegatives expects rows that belong to positive pairs, got {part}, "
                "under which negative pairs are rows: a guide's cosine of a negative pair is no bound; take "
                "NegativesAsHard or PositivesOnly"
            )
        if not setup.between.is_pairs and not self.has_margin:
            raise InvalidValueError(
                f"FalseNegatives.absolute_margin: expected a margin for {type(setup.between).__name__}, got 0: a "
                "guide's cosine of two views of a text is 1, and nothing is above it; set absolute_margin or "
                "relative_margin"
            )

    def describe(self, negatives: Negatives) -> Negatives:
        """Returns the negatives with a remark."""
        return replace(negatives, notes=(*negatives.notes, f"those too near by {self.guide} are none"))


class MaskBatch(ColumnPart):
    """Masks the positives of other examples of the batch: hard negatives and further columns remain (MoCo).

    In evaluation, where no queue is read, other examples are compared.

    Example:
        >>> MaskBatch().trains_only
        True
    """

    trains_only: ClassVar[bool] = True
    masks_batch: ClassVar[bool] = True

    def __call__(self, pairs: Pairs) -> Pairs:
        """Returns the pairs with a rule for all examples."""
        ids = torch.zeros(len(pairs.every.anchor), dtype=torch.long, device=pairs.every.anchor.device)
        return pairs.add_rule("batch", Group.of(ids, effect="mask", lasts=False))

    def describe(self, negatives: Negatives) -> Negatives:
        """Returns the negatives unchanged: ``Contrastive`` counts no examples of the batch (``masks_batch``)."""
        return negatives

    def check(self, setup: Setup) -> None:
        """Checks that anchors are the only rows and that no pair is negative."""
        labeled = [part for part in setup.parts if part.stage == "examples" and part.target is not None]
        if not setup.is_one_way:
            got = f"{type(setup.loss).__name__} of both sides; take InfoNCE of one direction"
        elif labeled:
            got = f"{type(labeled[0]).__name__}; leave it out"
        else:
            return
        raise InvalidValueError(
            "Contrastive.columns: MaskBatch expects a loss whose rows are the anchors alone, and no pair labels, "
            f"got {got}, or leave MaskBatch out"
        )


def first_ids(ids: Tensor) -> Tensor:
    """Returns ids of the first kind, of texts before any view, (N,)."""
    return ids if ids.ndim == 1 else ids[:, 0]
