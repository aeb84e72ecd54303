"""Column parts that mask columns or make them positives, by equal texts, siblings, classes and guides."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from contrastive_text.core.checks import at_least, one_of
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.targets import Classes, Target
from contrastive_text.losses.comparison import NO_ID, Effect, Group, Joined, Triples
from contrastive_text.objectives.columns import ColumnPart, Negatives, Pairs, Setup, Stage


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
        ids = partners_among(further.first_ids, pairs.every.sides()[1].first_ids, group.positive)
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
    anchors, positives = (side.first_ids for side in every.sides())
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
        anchor, positive, _ = pairs.every.guide
        return replace(pairs, every=replace(pairs.every, bound=self.bound(anchor, positive)))

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


def partners_among(ids: Tensor, texts: Tensor, partners: Tensor) -> Tensor:
    """Returns the partner of each id that is among some texts, of the first such text; ``NO_ID`` elsewhere.

    Args:
        ids: (H,).
        texts: (N,).
        partners: (N,).

    Example:
        >>> partners_among(torch.tensor([5, 8]), texts=torch.tensor([8, 9]), partners=torch.tensor([1, 2]))
        tensor([-1,  1])
    """
    if not len(texts):
        return torch.full_like(ids, NO_ID)
    ordered, order = texts.sort(stable=True)
    places = torch.searchsorted(ordered, ids.contiguous()).clamp(max=len(texts) - 1)
    return torch.where(ordered[places] == ids, partners[order[places]], NO_ID)
