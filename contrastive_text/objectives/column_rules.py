"""Column parts that mask columns or make them positives, by duplicates, siblings, classes and guides."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from contrastive_text.core.errors import InvalidValueError, at_least, one_of
from contrastive_text.core.similarity import unit_vectors
from contrastive_text.core.targets import Classes, Target
from contrastive_text.losses.comparison import Effect, ExampleVectors, Group, Joined
from contrastive_text.losses.rules import NO_ID
from contrastive_text.objectives.columns import (
    HARD_NEGATIVES,
    ColumnPart,
    NegativeCount,
    ObjectiveOptions,
    RowsAndColumns,
    Stage,
)


class Duplicates(ColumnPart):
    """Masks columns that are duplicates of the row or of its positive.

    A text that occurs twice in a batch is a false negative. So is a text that a text or token view makes equal to
    another text. The logged value ``edited_alike`` counts the latter.

    Differs: the authors' codes keep such columns, whose vectors differ by dropout only. ``columns: []`` keeps
    them.

    Example:
        >>> from contrastive_text.objectives import Contrastive
        >>> [type(part).__name__ for part in Contrastive().columns]
        ['Duplicates', 'Siblings']
    """

    stage: ClassVar[Stage] = "ids"
    note = ""  # the number of masked columns varies

    def __call__(self, pairs: RowsAndColumns) -> RowsAndColumns:
        """Gives duplicates equal ids, so that the loss masks them."""
        return replace(pairs, all_examples=pairs.texts)


class Siblings(ColumnPart):
    """Masks siblings of a row, which are other positives of the same query, or makes them positives.

    A column is a sibling of a row if the column's partner has the text of the row or of the row's partner.
    Columns of a queue and hard negatives are siblings too if their text is a positive of the query.

    Args:
        effect: ``mask``, or ``positive``.
        joined: How several positives are combined. ``mean`` averages their log-probabilities (Khosla et al. 2020,
            https://arxiv.org/abs/2004.11362, eq. 2). ``sum`` takes the logarithm of the sum of their
            probabilities (Miech et al. 2020, MIL-NCE, https://arxiv.org/abs/1912.06430, eq. 1; eq. 3 of Khosla et
            al. up to a constant).

    Raises:
        ValueError: ``effect`` or ``joined`` is unknown, or ``joined: sum`` is set with ``effect: mask``.

    Example:
        >>> Siblings(effect="positive", joined="sum").group_effect
        'sum'
    """

    note = ""  # the number of masked columns varies

    def __init__(self, effect: Literal["mask", "positive"] = "mask", joined: Joined = "mean") -> None:
        self.effect = one_of("Siblings.effect", effect, ["mask", "positive"])
        self.joined: Joined = one_of("Siblings.joined", joined, Joined)
        if effect == "mask" and joined != "mean":
            raise InvalidValueError(
                f"Siblings.joined: expected effect: positive for joined: {joined}, got effect: mask; set effect: "
                "positive, or remove joined"
            )

    @property
    def group_effect(self) -> Effect:
        """Effect of the rule on siblings: ``mask``, ``mean`` or ``sum``."""
        return "mask" if self.effect == "mask" else self.joined

    def __call__(self, pairs: RowsAndColumns) -> RowsAndColumns:
        """Adds a rule that masks siblings, or makes them positives."""
        pairs = pairs.add_rule(
            "siblings", build_sibling_group(pairs.all_examples, self.group_effect, pairs.is_positive)
        )
        if pairs.extra_columns is None:
            return pairs
        # A further column whose text is the positive of an example is a sibling of the example's query.
        further, group = pairs.extra_columns, pairs.all_examples.groups["siblings"]
        ids = find_partners(further.first_ids, pairs.all_examples.sides()[1].first_ids, group.positive)
        if (column_ids := further.groups.get("siblings")) is not None:
            ids = torch.where(column_ids == NO_ID, ids, column_ids)
        return replace(pairs, extra_columns=replace(further, groups={**further.groups, "siblings": ids}))

    def check(self, setup: ObjectiveOptions) -> None:
        """Checks that rows can have siblings, and several positives with ``effect: positive`` (ValueError)."""
        where = "Siblings" if self.effect == "mask" else "Siblings.effect: positive"
        loss = type(setup.loss).__name__
        if setup.loss.reads_classes:
            got = f"{loss}, which takes positives from classes; remove Siblings"
        elif not setup.between.is_pairs:
            got = f"{type(setup.between).__name__}, with which a text has no siblings; remove Siblings"
        elif not setup.has(Duplicates):
            got = "columns without Duplicates, which gives duplicates equal ids; add Duplicates"
        elif self.effect == "positive" and not setup.loss.supports_several_positives:
            got = f"{loss}, which has one positive per row; use NTXent, or InfoNCE with its defaults"
        elif self.effect == "positive" and (part := setup.rows_without_positive):
            got = f"{part}, which makes negative pairs rows; use NegativesAsHard"
        else:
            return
        raise InvalidValueError(f"Contrastive.columns: {where} expects rows with siblings, got {got}")


def build_sibling_group(every: ExampleVectors, effect: Effect, paired: Tensor | None = None) -> Group:
    """Returns the group that selects siblings: a column has the id of its partner's text.

    Args:
        every: N examples.
        effect: Effect of the rule.
        paired: True for positive pairs, (N,); None if all pairs are positive.
    """
    anchors, positives = (side.first_ids for side in every.sides())
    anchor_partners, positive_partners = positives, anchors
    if paired is not None:
        anchor_partners, positive_partners = (torch.where(paired, ids, NO_ID) for ids in (positives, anchors))
    negative = None
    if every.negative_ids is not None:
        ids = every.negative_ids if every.negative_ids.ndim == 2 else every.negative_ids[..., 0]
        negative = find_partners(ids.flatten(), positives, positive_partners).reshape(ids.shape)
    return Group(torch.stack([anchors, positives], dim=1), anchor_partners, positive_partners, negative, effect)


class SameClass(ColumnPart):
    """Makes columns of a row's class positives of the row, for a loss that reads classes (``SupCon``).

    Args:
        classes: Number or names of the classes of the target.

    Raises:
        ValueError: There are fewer than two classes.

    Example:
        >>> SameClass(["negative", "positive"]).target.names
        ('negative', 'positive')
    """

    note = "texts of its class are no negatives"

    def __init__(self, classes: int | list[str]) -> None:
        self.classes = classes
        self._target = Classes.of(classes, "SameClass.classes")

    @property
    def target(self) -> Target:
        """Kind of target that the part reads: the class of an example."""
        return self._target

    def __call__(self, pairs: RowsAndColumns) -> RowsAndColumns:
        """Adds a rule that makes columns of a row's class positives."""
        assert pairs.all_examples.target is not None
        return pairs.add_rule("classes", Group.of(pairs.all_examples.target, effect="mean"))

    def check(self, setup: ObjectiveOptions) -> None:
        """Checks that the loss reads classes (ValueError)."""
        if not setup.loss.reads_classes:
            raise InvalidValueError(
                f"Contrastive.columns: SameClass expects a loss that reads classes, got "
                f"{type(setup.loss).__name__}; use SupCon, or remove SameClass"
            )


class FalseNegatives(ColumnPart):
    """Masks columns that a guide (another model) finds too similar to the row, as GISTEmbed does.

    If g is the guide's cosine of a pair, columns with a cosine above ``g - absolute_margin - relative_margin *
    |g|`` are masked for the anchor of the pair. If the positive is a row too, they are masked for the positive.
    Hard negatives and columns of a queue can be masked. The positives of a row are never masked. Source:
    Solatorio 2024 (https://arxiv.org/abs/2402.16829), section 3.2; margins as in sentence-transformers'
    ``GISTEmbedLoss``.

    Logged values are ``removed`` and ``guide_agreement``. ``removed`` is the mean number of other positives that
    the guide masks for a row. ``guide_agreement`` (``metrics.guide_agreement``) is the share of rows whose
    nearest other positive is the same for the model and the guide.

    Differs: a text and its duplicates are never negatives of the text, because they have equal ids. The authors'
    function keeps a text among its own columns if the guide's cosine of anchor and positive is 1, as with
    SimCSE's
    pairs: the text's cosine with itself is not above g = 1.

    Args:
        guide: Name of the guide in ``model.guides``.
        absolute_margin: Columns are masked if their cosine is above the pair's cosine minus this margin.
        relative_margin: The same margin as a share of the pair's cosine.

    Raises:
        ValueError: A margin is below 0.

    Example:
        >>> FalseNegatives("teacher", relative_margin=0.05).has_margin
        True
    """

    def __init__(self, guide: str, absolute_margin: float = 0.0, relative_margin: float = 0.0) -> None:
        self.guide: str = guide
        self.note = f"{guide} masks columns that are too similar"
        self.absolute_margin = at_least("FalseNegatives.absolute_margin", absolute_margin, 0, "0 is GISTEmbed's")
        self.relative_margin = at_least("FalseNegatives.relative_margin", relative_margin, 0, "0 is GISTEmbed's")

    @property
    def has_margin(self) -> bool:
        """True if columns that are less similar than the pair itself may be masked."""
        return self.absolute_margin > 0 or self.relative_margin > 0

    def __call__(self, pairs: RowsAndColumns) -> RowsAndColumns:
        """Sets the largest cosine by the guide of an example with a column that is not masked."""
        assert pairs.all_examples.guide is not None
        anchor, positive, _ = pairs.all_examples.guide
        return replace(pairs, all_examples=replace(pairs.all_examples, bound=self.cosine_bound(anchor, positive)))

    def cosine_bound(self, anchor: Tensor, positive: Tensor) -> Tensor:
        """Returns the cosine above which columns of each example are masked, (N,).

        Args:
            anchor: The guide's unit vectors of the anchors, (N, Dg).
            positive: The guide's unit vectors of the positives, (N, Dg).
        """
        cosine = (anchor * positive).sum(dim=1)
        return cosine - self.absolute_margin - self.relative_margin * cosine.abs()

    @property
    def needs_two_texts(self) -> str | None:
        """Description of an option that needs anchor and positive to be different texts; None with a margin.

        Without a margin no cosine is above the cosine of a text with itself, which is 1.
        """
        return None if self.has_margin else "FalseNegatives without absolute_margin or relative_margin"

    def check(self, setup: ObjectiveOptions) -> None:
        """Checks that the guide's cosine of a pair can bound the cosines of other columns (ValueError)."""
        if part := setup.rows_without_positive:
            raise InvalidValueError(
                f"Contrastive.columns: FalseNegatives expects positive pairs as rows, got {part}, which makes "
                "negative pairs rows. A guide's cosine of a negative pair is no bound; use NegativesAsHard or "
                "PositivesOnly"
            )
        if not setup.between.is_pairs and not self.has_margin:
            raise InvalidValueError(
                f"FalseNegatives.absolute_margin: expected a margin above 0 with {type(setup.between).__name__}, "
                "got 0. A guide's cosine of two views of a text is 1, and no cosine is above 1; set "
                "absolute_margin or relative_margin"
            )


class MaskAbovePositive(ColumnPart):
    """Masks columns that the trained model itself finds more similar to a row than the row's positive.

    A column is masked for a row if ``cos(row, column) > cos(anchor, positive) + margin``. The cosines are those
    of the vectors that the loss compares in this step, without a gradient. Hard negatives and columns of a queue
    can be masked. The positives of a row are never masked. Source: Zhang et al. 2025, Qwen3 Embedding
    (https://arxiv.org/abs/2506.05176), section on the training objective: factor m, with a margin of 0.1.

    ``FalseNegatives`` reads the cosines of a guide instead, and subtracts its margins from the positive's cosine.
    The logged value ``removed`` is the mean number of other positives that are masked for a row.

    With ``Momentum`` the bound is the cosine of the vectors that are columns.

    Args:
        margin: Columns are masked if their cosine is above the positive's cosine plus this margin.

    Raises:
        ValueError: The margin is below 0.

    Example:
        >>> from contrastive_text.core.types import Slot
        >>> from contrastive_text.core.batch import Encoded
        >>> from contrastive_text.objectives import Contrastive
        >>> vectors = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [0.8, 0.6]])
        >>> encoded = Encoded(vectors, (Slot("anchor", 0), Slot("positive", 0)), text_ids=torch.arange(4))
        >>> for margin in (0.1, 0.2):  # each anchor is nearer to the other positive, by 0.2
        ...     print(Contrastive(columns=[MaskAbovePositive(margin)])(encoded).total)
        tensor(0.)
        tensor(8.0363)
    """

    def __init__(self, margin: float = 0.1) -> None:
        self.margin = at_least("MaskAbovePositive.margin", margin, 0, "Qwen3 Embedding has 0.1")
        self.note = f"columns are masked if cos(row, column) > cos(anchor, positive) + {margin:g}"

    def __call__(self, pairs: RowsAndColumns) -> RowsAndColumns:
        """Sets the largest cosine of an example with a column that is not masked."""
        examples = pairs.all_examples
        anchor, positive = (unit_vectors(side.detach()) for side in (examples.anchor, examples.positive))
        bound = (anchor * positive).sum(dim=1) + self.margin
        return replace(pairs, all_examples=replace(examples, guide=None, bound=bound))

    def check(self, setup: ObjectiveOptions) -> None:
        """Checks that rows have positives, and that no other part sets a bound from a guide (ValueError)."""
        guided = [type(part).__name__ for part in setup.parts if part.guide is not None]
        if not guided and (part := setup.rows_without_positive) is None:
            return
        got = (
            f"{guided[0]}, which reads a guide's cosines"
            if guided
            else f"{part}, which makes negative pairs rows"
        )
        raise InvalidValueError(
            "Contrastive.columns: MaskAbovePositive expects positive pairs as rows and the model's own cosines, "
            f"got {got}; remove one of both"
        )


class MaskBatch(ColumnPart):
    """Masks the positives of other examples of the batch, so that only hard negatives and a queue remain (MoCo).

    With ``hard_negatives`` only the row's own hard negatives and a queue remain, as in the second stage of
    NV-Embed (Lee et al. 2024, https://arxiv.org/abs/2405.17428, section on two-stage instruction tuning). In
    evaluation no queue is read, and no column is masked.

    Args:
        hard_negatives: Whether hard negatives of other examples are masked too.

    Example:
        >>> MaskBatch().trains_only
        True
    """

    trains_only: ClassVar[bool] = True
    masks_batch: ClassVar[bool] = True

    def __init__(self, hard_negatives: bool = False) -> None:
        self.hard_negatives = hard_negatives

    def __call__(self, pairs: RowsAndColumns) -> RowsAndColumns:
        """Adds a rule that masks the columns of all other examples of the batch."""
        examples = pairs.all_examples
        ids = torch.arange(len(examples.anchor), device=examples.anchor.device)
        group = Group.of(ids, effect="mask_others", persists=False)
        if self.hard_negatives and examples.negative_ids is not None:
            group = replace(group, negative=ids.unsqueeze(1).expand(examples.negative_ids.shape[:2]))
        return pairs.add_rule("batch", group)

    def describe(self, negatives: NegativeCount) -> NegativeCount:
        """Returns the number of negatives; ``Contrastive`` reads ``masks_batch`` itself."""
        counts = {**negatives.counts}
        if self.hard_negatives and HARD_NEGATIVES in counts:
            counts[HARD_NEGATIVES] //= negatives.batch_size
        return replace(negatives, counts=counts)

    def check(self, setup: ObjectiveOptions) -> None:
        """Checks that anchors are the only rows and that no part reads pair labels (ValueError)."""
        label_parts = [part for part in setup.parts if part.stage == "examples" and part.target is not None]
        if not setup.is_one_way:
            got = f"{type(setup.loss).__name__}, which has other rows or columns; use InfoNCE with its defaults"
        elif label_parts:
            got = f"{type(label_parts[0]).__name__}; remove it"
        else:
            return
        raise InvalidValueError(
            "Contrastive.columns: MaskBatch expects a loss whose only rows are the anchors, and no pair labels, "
            f"got {got}, or remove MaskBatch"
        )


def find_partners(ids: Tensor, texts: Tensor, partners: Tensor) -> Tensor:
    """Looks up the partner of each text by its id, (H,); ``NO_ID`` for a text that is not in the list.

    If a text occurs several times, the partner of its first occurrence is returned.

    Args:
        ids: Ids to look up, (H,).
        texts: Ids of the texts in the list, (N,).
        partners: Ids of their partners, (N,).

    Example:
        >>> find_partners(torch.tensor([5, 8]), texts=torch.tensor([8, 9]), partners=torch.tensor([1, 2]))
        tensor([-1,  1])
    """
    if not len(texts):
        return torch.full_like(ids, NO_ID)
    sorted_texts, order = texts.sort(stable=True)
    indices = torch.searchsorted(sorted_texts, ids.contiguous()).clamp(max=len(texts) - 1)
    return torch.where(sorted_texts[indices] == ids, partners[order[indices]], NO_ID)
