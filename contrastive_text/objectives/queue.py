"""A queue of past columns: negatives of later rows, at the cost of a product and no encoding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from contrastive_text.core.checks import at_least
from contrastive_text.losses.comparison import HIDDEN_ID, NO_ID, Texts
from contrastive_text.objectives.columns import HARD, ColumnPart, Negatives, Pairs, Stage


class Queue(ColumnPart, nn.Module):
    """Adds the columns of the last steps, of all ranks, as negatives without a gradient; oldest first.

    Cross-batch memory: Wang et al. 2020 (https://arxiv.org/abs/1912.06798), algorithm 1. The columns of a step
    enter in the order of the loss: positives, then hard negatives. Anchors enter before positives if both are
    rows and columns (NTXent, SupCon), and after them under the direction ``query_to_query`` of InfoNCE. Under
    gradient accumulation the columns of every micro-batch enter.

    With ``Duplicates`` rows ignore past columns whose text is equal to their own. If views are compared, each
    role has a queue. Evaluation neither reads nor fills the queue. Checkpoints store it as extra state, saved
    models do not. All ranks hold the same columns. They are no buffers, because DDP would broadcast buffers in
    every step, and a half-precision run would round them.

    With ``Momentum`` the momentum vectors of its roles enter in place of the columns: positives that rows were
    compared with (MoCo, He et al. 2020, https://arxiv.org/abs/1911.05722), or anchors that were no columns at all
    (ESimCSE, Wu et al. 2022, https://arxiv.org/abs/2109.04380).

    Differs: in Wang et al. a batch enters before its loss is computed, so that a row meets its own positive a
    second time; here it enters afterwards. MoCo's queue begins with random vectors; here it begins empty, and the
    first step without other negatives has no loss. ESimCSE's queue is each rank's own; here all ranks hold the
    same columns.

    Args:
        size: Largest number of columns.

    Raises:
        ValueError: A size below 1.

    Example:
        >>> from contrastive_text.core.types import Slot
        >>> from contrastive_text.core.batch import Encoded
        >>> from contrastive_text.objectives import Contrastive
        >>> slots, queue = (Slot("anchor", 0), Slot("positive", 0)), Queue(size=3)
        >>> objective = Contrastive(columns=[queue])
        >>> for _ in range(3):
        ...     _ = objective(Encoded(torch.eye(4), slots, text_ids=torch.arange(4)))
        ...     objective.finish_step()
        ...     print(queue.filled("texts"))
        2
        3
        3
    """

    stage: ClassVar[Stage] = "columns"
    trains_only: ClassVar[bool] = True
    adds_columns: ClassVar[bool] = True

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = at_least("Queue.size", size, 1, "leave Queue out to keep no past columns")
        self._past: dict[str, Texts] = {}
        self._entering: dict[str, Texts] = {}
        self._start = 0

    def filled(self, name: str) -> int:
        """Returns the number of past columns of a comparison, such as ``texts``."""
        return len(self._past[name].ids) if name in self._past else 0

    def __call__(self, pairs: Pairs) -> Pairs:
        """Returns the pairs with the past columns after all others."""
        self._start = 0 if pairs.further is None else len(pairs.further.ids)
        if pairs.name not in self._past:
            return pairs
        device = pairs.every.anchor.device
        self._past[pairs.name] = self._past[pairs.name].map(lambda each: each.to(device))
        return pairs.add_columns(self._past[pairs.name])

    def finish(self, pairs: Pairs) -> None:
        """Keeps the columns of the step aside, until ``finish_step``: a loss may be computed twice in a step."""
        entering = self._columns(pairs)
        lasting = {name: ids for name, ids in entering.groups.items() if pairs.every.groups[name].lasts}
        entering = replace(entering, vectors=entering.vectors.detach(), groups=lasting, own=None)
        if not pairs.is_by_text:
            entering = replace(entering, ids=torch.where(entering.ids == HIDDEN_ID, HIDDEN_ID, NO_ID))
        self._entering[pairs.name] = entering

    def _columns(self, pairs: Pairs) -> Texts:
        """Returns the columns of the step without past ones, or the momentum vectors."""
        every, none = pairs.every, pairs.every.anchor_ids[:0]
        if pairs.momentum:
            anchors, positives = every.sides()
            sides = {"anchor": anchors, "positive": positives}
            if (hard := every.hard_negatives(none)) is not None:
                sides["negative"] = hard
            return Texts.join([sides[role] for role in pairs.momentum if role in sides])
        further = pairs.further
        if further is not None:
            stop = self._start + self.filled(pairs.name)
            kept = [further.map(lambda each: each[: self._start]), further.map(lambda each: each[stop:])]
            kept = [each for each in kept if len(each.ids)]
            further = Texts.join(kept) if kept else None
        return every.columns(pairs.loss.sides(every), none, further)

    def finish_step(self) -> None:
        """Adds the columns of the step, and drops the oldest."""
        for name, entering in self._entering.items():
            self._past[name] = self._latest(self._past.get(name), entering)
        self._entering = {}

    def _latest(self, past: Texts | None, entering: Texts) -> Texts:
        """Returns the latest columns in memory of their own, at most ``size``."""
        newest = entering.map(lambda each: each[-self.size :])
        kept = self.size - len(newest.ids)
        older = [] if past is None or not kept else [past.map(lambda each: each[-kept:])]
        return Texts.join([*older, newest])

    def describe(self, negatives: Negatives) -> Negatives:
        """Returns the negatives with the past columns, and the number of batches that they are of."""
        roles = negatives.roles
        kind = f"past keys of {' and '.join(roles)}" if negatives.momentum else "past columns"
        hard = negatives.counts.get(HARD, 0)
        entering = sum(hard if role == "negative" else negatives.batch_size for role in roles)
        batches = self.size / max(entering, 1)
        shown = f"{batches:.3g}" if batches < 100 else f"{batches:,.0f}"
        counts = {**negatives.counts, f"{kind} (of {shown} batches)": self.size}
        return replace(negatives, counts=counts, filling=True)

    def get_extra_state(self) -> dict[str, dict[str, Tensor]]:
        """Returns the past columns of each comparison for a state dict."""
        return {
            name: {
                "vectors": past.vectors,
                "ids": past.ids,
                **({} if past.guide is None else {"guide": past.guide}),
                **{f"groups.{group}": ids for group, ids in past.groups.items()},
            }
            for name, past in self._past.items()
        }

    def set_extra_state(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Restores past columns: the latest, if there are more than its size."""
        self._past, self._entering = {}, {}
        for name, kept in state.items():
            groups = {key.removeprefix("groups."): ids for key, ids in kept.items() if key.startswith("groups.")}
            self._entering[name] = Texts(kept["vectors"], kept["ids"], groups, kept.get("guide"))
        self.finish_step()
