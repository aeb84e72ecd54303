"""Texts that belong together, with ids: what blocks of rows and columns are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.losses.comparisons import Columns, FurtherNegatives, Rows
from contrastive_text.losses.guide_vectors import GuideVectors
from contrastive_text.losses.relations import HIDDEN_ID, NO_ID, Alike, Forbid, Joined, TooNear, partners_among


@dataclass(frozen=True, slots=True)
class Triples:
    """Vectors of N examples with an id for every text, or one of each kind; equal ids mark equal texts.

    Args:
        anchor: (N, D).
        positive: (N, D).
        negative: (N, K, D), or None.
        anchor_ids: (N,), or (N, kinds).
        positive_ids: (N,), or (N, kinds).
        negative_ids: (N, K), or (N, K, kinds), or None; ``HIDDEN_ID`` where an example has fewer hard negatives.
        classes: Class of each example, 0 or more, (N,), or None.
        partners: Ids of the texts that anchor and positive belong with, each other's, (N, 2), ``NO_ID`` for
            none; None where siblings are kept.
        attract: How siblings are joined with the target; None where they are hidden.
        guide: What a guide knows of the texts; None without one.
    """

    anchor: Tensor
    positive: Tensor
    negative: Tensor | None
    anchor_ids: Tensor
    positive_ids: Tensor
    negative_ids: Tensor | None
    classes: Tensor | None = None
    partners: Tensor | None = None
    attract: Joined | None = None
    guide: GuideVectors | None = None

    def apart(self) -> Triples:
        """Returns the same vectors, every text with its own id, so that a row sees texts equal to its own."""
        distinct = Triples.distinct(self.anchor, self.positive, self.negative)
        ids = distinct.negative_ids
        if ids is not None and self.negative_ids is not None:
            missing = (
                self.negative_ids if self.negative_ids.ndim == 2 else self.negative_ids[..., 0]
            ) == HIDDEN_ID
            ids = torch.where(missing, HIDDEN_ID, ids)
        return replace(distinct, negative_ids=ids, classes=self.classes, guide=self.guide)

    @classmethod
    def distinct(cls, anchor: Tensor, positive: Tensor, negative: Tensor | None = None) -> Triples:
        """Returns every text an id of its own, so that a row is kept from itself and from nothing else.

        Args:
            anchor: (N, D).
            positive: (N, D).
            negative: (N, D), (N, K, D) or None.

        Raises:
            ValueError: Shapes that don't belong together.
        """
        if anchor.ndim != 2 or anchor.shape != positive.shape:
            raise InvalidValueError(
                "loss: expected anchor and positive of one shape (N, D), got "
                f"{tuple(anchor.shape)} and {tuple(positive.shape)}"
            )
        n = len(anchor)
        ids = torch.arange(2 * n, device=anchor.device)
        if negative is None:
            return cls(anchor, positive, None, ids[:n], ids[n:], None)
        negative = negative.unsqueeze(1) if negative.ndim == 2 else negative
        if negative.ndim != 3 or negative.shape[0] != n or negative.shape[2] != anchor.shape[1]:
            raise InvalidValueError(
                "loss: expected hard negatives of shape (N, D) or (N, K, D) with N, D = "
                f"{tuple(anchor.shape)}, got {tuple(negative.shape)}"
            )
        negative_ids = 2 * n + torch.arange(n * negative.shape[1], device=anchor.device)
        return cls(anchor, positive, negative, ids[:n], ids[n:], negative_ids.reshape(n, -1))

    def map(self, change: Callable[[Tensor], Tensor]) -> Triples:
        """Returns the triples with every tensor changed in the same way."""
        return Triples(
            anchor=change(self.anchor),
            positive=change(self.positive),
            negative=None if self.negative is None else change(self.negative),
            anchor_ids=change(self.anchor_ids),
            positive_ids=change(self.positive_ids),
            negative_ids=None if self.negative_ids is None else change(self.negative_ids),
            classes=None if self.classes is None else change(self.classes),
            partners=None if self.partners is None else change(self.partners),
            attract=self.attract,
            guide=None if self.guide is None else self.guide.map(change),
        )

    def with_partners(self, attract: Joined | None, paired: Tensor | None = None) -> Triples:
        """Returns the same triples, in which siblings are hidden or attract each other.

        Args:
            attract: How siblings are joined with the target; None to hide them.
            paired: True for examples whose texts belong together, (N,); None for all.
        """
        anchors, positives = self.sides(by_class=False)
        partners = torch.stack([positives.texts, anchors.texts], dim=1)
        if paired is not None:
            partners = torch.where(paired.unsqueeze(1), partners, NO_ID)
        return replace(self, partners=partners, attract=attract)

    def sides(self, by_class: bool) -> tuple[Columns, Columns]:
        """Returns anchors and positives as columns; their groups are classes, or else partners."""
        groups = (self.classes, self.classes) if by_class else (None, None)
        if not by_class and self.partners is not None:
            groups = self.partners[:, 0], self.partners[:, 1]
        known = (None, None) if self.guide is None else (self.guide.anchor, self.guide.positive)
        return (
            Columns(self.anchor, self.anchor_ids, groups[0], known[0]),
            Columns(self.positive, self.positive_ids, groups[1], known[1]),
        )

    def rows(self) -> tuple[Rows, Rows]:
        """Returns anchors that look for positives, and positives that look for anchors."""
        anchors, positives = self.sides(by_class=False)
        ids = torch.stack([anchors.ids, positives.ids], dim=1)
        bound = None if self.guide is None else self.guide.bound
        return (
            Rows(anchors.vectors, ids, anchors.guide, bound),
            Rows(positives.vectors, ids.flip(1), positives.guide, bound),
        )

    def relations(
        self, rows: Rows, columns: Columns, classes: Tensor | None = None
    ) -> tuple[Forbid, Alike | None]:
        """Returns which columns rows must not see, and which they are pulled to beside their targets.

        Args:
            rows: What looks.
            columns: What they are held against.
            classes: Class of each row, (R,), where columns of its class are alike; None where siblings count.
        """
        forbid, alike = Forbid(rows.ids, columns.ids, hides=self.negative is not None), None
        if columns.groups is not None and classes is not None:
            alike = Alike(classes, columns.groups)
        elif columns.groups is not None and self.partners is not None:
            if self.attract is None:
                forbid = replace(forbid, partners=columns.groups)
            else:
                own = rows.ids if rows.ids.ndim == 2 else rows.ids[..., 0]
                alike = Alike(own, columns.groups, self.attract)
        if rows.guide is not None and rows.bound is not None and columns.guide is not None:
            near = TooNear(rows.guide, columns.guide, rows.bound, spared=alike)
            forbid = replace(forbid, near=near)
        return forbid, alike

    def columns(
        self, sides: Sequence[Columns], places: Tensor, further: FurtherNegatives | None = None
    ) -> tuple[Columns, Tensor | None]:
        """Returns sides with all hard negatives after them, and the columns of each local example's own.

        Args:
            sides: Of all examples.
            places: Of the local examples, (n,).
            further: Hard negatives that belong to no example.

        Returns:
            The columns, and (n, K), -1 where an example has fewer; None where there are no hard negatives.
        """
        hard = self.hard_negatives(places, further)
        if hard is None:
            return Columns.join(sides), None
        before = sum(len(side.ids) for side in sides)
        return Columns.join([*sides, hard.columns]), torch.where(hard.own < 0, hard.own, before + hard.own)

    def hard_negatives(self, places: Tensor, further: FurtherNegatives | None) -> FurtherNegatives | None:
        """Returns the hard negatives of all examples, then further ones; None where there are neither.

        Where siblings aren't kept, one whose text is also the positive of an example has that one's anchor as
        its partner, the first's of several.

        Args:
            places: Of the local examples, (n,).
            further: Those that belong to no example.
        """
        hard = further
        if self.negative is not None and self.negative_ids is not None:
            k = self.negative.shape[1]
            own = places.unsqueeze(1) * k + torch.arange(k, device=places.device)
            known = None if self.guide is None else self.guide.negative
            known = None if known is None else known.flatten(0, 1)
            columns = Columns(self.negative.flatten(0, 1), self.negative_ids.flatten(0, 1), guide=known)
            if further is not None:
                others = torch.where(further.own < 0, further.own, len(columns.ids) + further.own)
                own, columns = torch.cat([own, others], dim=1), Columns.join([columns, further.columns])
            hard = FurtherNegatives(columns, own)
        if hard is None or self.partners is None:
            return hard
        _, positives = self.sides(by_class=False)
        groups = partners_among(hard.columns.texts, positives.texts, self.partners[:, 1])
        if hard.columns.groups is not None:
            groups = torch.where(hard.columns.groups == NO_ID, groups, hard.columns.groups)
        return replace(hard, columns=replace(hard.columns, groups=groups))
