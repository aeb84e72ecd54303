"""A queue of past columns: negatives of later rows, at the cost of a product and no encoding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from contrastive_text.core.types import Role
from contrastive_text.losses import Comparison, Loss
from contrastive_text.losses.comparison import HIDDEN_ID, NO_ID, Texts, Triples


class Queue(nn.Module):
    """The last columns that rows were held against, oldest first.

    Cross-batch memory: Wang et al. 2020 (https://arxiv.org/abs/1912.06798), algorithm 1. The columns of a step
    enter in the order of the loss: positives, then hard negatives; anchors before positives where both sides look
    among both (NTXent, SupCon), and after them where anchors look among anchors too (``query_to_query`` of
    InfoNCE, whose other directions let nothing enter). Under accumulation those of every micro-batch do. They
    come from the encoder that is trained, so that the oldest drifted most, or from one that follows it
    (``Momentum``).

    ``comparisons`` puts them after the columns of a step and notes the step's own; only ``take_in`` lets those
    enter, so that a loss may be evaluated twice in a step. All ranks hold the same columns. They are no buffers:
    DDP would send them round in every step, and a half-precision run would round them. A state dict has them as
    extra state, as far as the queue is filled.

    Differs: in the paper a batch enters before its loss is taken, so that a row meets its own positive once more;
    here it enters afterwards. The paper begins without the memory; here that is a stage of its own, and the
    next one starts from its weights with an empty queue (``--init_from``).

    Where an objective has keys they enter in the place of the columns, of the roles that have any: positives that
    rows were held against (MoCo), or anchors that were no columns at all (ESimCSE).

    Args:
        size: Columns that it holds at most.
        mask_duplicates: Whether rows are kept from past columns of equal text.
        keys: The roles whose keys enter; empty for the columns of the loss.

    Example:
        >>> from contrastive_text.losses import InfoNCE
        >>> queue, texts = Queue(size=3), Triples.distinct(torch.eye(2), torch.eye(2))
        >>> for _ in range(3):
        ...     [block] = queue.comparisons(InfoNCE(), texts, texts, offset=0)
        ...     print(len(block.columns), queue.filled)
        ...     queue.take_in()
        2 0
        4 2
        5 3
    """

    def __init__(self, size: int, mask_duplicates: bool = True, keys: Sequence[Role] = ()) -> None:
        super().__init__()
        self.size = size
        self.mask_duplicates = mask_duplicates
        self.keys = keys
        self._past: Texts | None = None
        self._compared: Texts | None = None

    @property
    def filled(self) -> int:
        """Number of columns in it."""
        return 0 if self._past is None else len(self._past.ids)

    def comparisons(
        self, loss: Loss, local: Triples, every: Triples, offset: int, further: Texts | None = None
    ) -> list[Comparison]:
        """Arranges texts into blocks, as ``Loss.comparisons`` does; the first has the past columns last.

        The second block of ``two_sided``, positives that look for anchors, has none.
        """
        if self._past is not None:
            self._past = self._past.map(lambda rows: rows.to(every.anchor.device))
            further = self._past if further is None else Texts.join([further, self._past])
        first, *others = loss.comparisons(local, every, offset, further=further)
        if self.keys:
            entering = self._of_keys(every, by_class=loss.reads_labels)
        else:
            masks, siblings = first.masks, first.positives or first.masks.get("siblings")
            groups = None if siblings is None else siblings.columns
            guide = masks["guide"].columns if "guide" in masks else None
            whole = Texts(first.columns.detach(), masks["texts"].columns, groups, guide)
            own = len(first.columns) - self.filled
            entering = whole.map(lambda rows: rows[:own])
        if not self.mask_duplicates:
            seen = torch.where(entering.ids == HIDDEN_ID, HIDDEN_ID, NO_ID)
            entering = replace(entering, ids=seen)
        self._compared = entering
        return [first, *others]

    def _of_keys(self, every: Triples, by_class: bool) -> Texts:
        """Returns the columns of the roles whose keys enter, which have no gradient."""
        anchors, positives = every.sides(by_class)
        sides = {"anchor": anchors, "positive": positives}
        if (hard := every.hard_negatives(every.anchor_ids[:0], None)) is not None:
            sides["negative"] = hard
        return Texts.join([sides[role] for role in self.keys if role in sides])

    def take_in(self) -> None:
        """Lets the columns of the last comparison enter, and the oldest leave."""
        if self._compared is not None:
            newest = self._compared.map(lambda rows: rows[-self.size :])
            kept = self.size - len(newest.ids)
            older = [self._past.map(lambda rows: rows[-kept:])] if self._past is not None and kept else []
            self._past = Texts.join([*older, newest])
            self._compared = None

    def get_extra_state(self) -> dict[str, Tensor]:
        """Returns the past columns for a state dict."""
        if self._past is None:
            return {}
        kept = {name: getattr(self._past, name) for name in ("vectors", "ids", "groups", "guide")}
        return {name: rows for name, rows in kept.items() if rows is not None}

    def set_extra_state(self, state: Mapping[str, Tensor]) -> None:
        """Takes past columns over; the latest, where there are more than it holds."""
        self._past = self._compared = None
        if state:
            self._compared = Texts(**state)
            self.take_in()
