"""Queue column part: columns of earlier steps serve as further negatives without being encoded again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from contrastive_text.core.errors import at_least
from contrastive_text.losses.comparison import MASKED_ID, ComparedTexts
from contrastive_text.losses.rules import NO_ID
from contrastive_text.objectives.columns import HARD_NEGATIVES, ColumnPart, NegativeCount, RowsAndColumns, Stage


class Queue(ColumnPart, nn.Module):
    """Adds the columns of earlier steps, of all ranks, as negatives without a gradient (cross-batch memory).

    Source: Wang et al. 2020 (https://arxiv.org/abs/1912.06798), algorithm 1. The columns of a step enter the
    queue in the order of the loss: positives, then hard negatives. Anchors enter before positives if both are
    rows and columns (NTXent, SupCon), and after positives with the direction ``query_to_query`` of InfoNCE. With
    gradient accumulation the columns of every micro-batch enter. The oldest columns are dropped first.

    With ``Duplicates``, rows ignore columns of the queue that are duplicates. If views are compared, each role
    has a queue. Evaluation neither reads nor fills the queue. Checkpoints store the queue as extra state; saved
    models do not. All ranks have the same columns. The columns are no buffers of the module, because DDP would
    broadcast buffers in every step, and a half-precision run would round them.

    With ``Momentum`` the momentum vectors of its roles enter instead of the columns. They are positives that are
    columns (MoCo, He et al. 2020, https://arxiv.org/abs/1911.05722), or anchors that are no columns of the step
    (ESimCSE, Wu et al. 2022, https://arxiv.org/abs/2109.04380).

    Differs: in Wang et al. a batch enters before its loss is computed, so that a row is compared with its
    positive twice; here the batch enters afterwards. MoCo's queue starts with random vectors. Here it starts
    empty, and the loss of a first step without other negatives is constant. In ESimCSE each rank has a separate
    queue.

    Args:
        size: Largest number of columns.

    Raises:
        ValueError: The size is below 1.

    Example:
        >>> from contrastive_text.core.types import Slot
        >>> from contrastive_text.core.batch import Encoded
        >>> from contrastive_text.objectives import Contrastive
        >>> slots, queue = (Slot("anchor", 0), Slot("positive", 0)), Queue(size=3)
        >>> objective = Contrastive(columns=[queue])
        >>> for _ in range(3):
        ...     _ = objective(Encoded(torch.eye(4), slots, text_ids=torch.arange(4)))
        ...     objective.finish_step()
        ...     print(queue.column_count("texts"))
        2
        3
        3
    """

    stage: ClassVar[Stage] = "columns"
    trains_only: ClassVar[bool] = True
    adds_columns: ClassVar[bool] = True

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = at_least("Queue.size", size, 1, "remove Queue to keep no past columns")
        self._past: dict[str, ComparedTexts] = {}
        self._entering: dict[str, ComparedTexts] = {}
        self._start = 0

    def column_count(self, name: str) -> int:
        """Returns the number of columns in the queue of a comparison, such as ``texts``."""
        return len(self._past[name].ids) if name in self._past else 0

    def __call__(self, pairs: RowsAndColumns) -> RowsAndColumns:
        """Appends the columns of the queue to the columns of the batch."""
        self._start = 0 if pairs.extra_columns is None else len(pairs.extra_columns.ids)
        if pairs.name not in self._past:
            return pairs
        device = pairs.all_examples.anchor.device
        self._past[pairs.name] = self._past[pairs.name].map(lambda tensor: tensor.to(device))
        return pairs.add_columns(self._past[pairs.name])

    def receive_columns(self, pairs: RowsAndColumns) -> None:
        """Stores the columns of the step until ``finish_step``, because a step may compute a loss twice."""
        columns = self._step_columns(pairs)
        groups = {name: ids for name, ids in columns.groups.items() if pairs.all_examples.groups[name].persists}
        columns = replace(columns, vectors=columns.vectors.detach(), groups=groups, own_negatives=None)
        if not pairs.masks_duplicates:
            columns = replace(columns, ids=torch.where(columns.ids == MASKED_ID, MASKED_ID, NO_ID))
        self._entering[pairs.name] = columns

    def _step_columns(self, pairs: RowsAndColumns) -> ComparedTexts:
        """Returns the columns of the step without the columns of the queue, or the momentum vectors."""
        examples, no_places = pairs.all_examples, pairs.all_examples.anchor_ids[:0]
        if pairs.momentum:
            anchors, positives = examples.sides()
            sides = {"anchor": anchors, "positive": positives}
            if (hard := examples.hard_negatives(no_places)) is not None:
                sides["negative"] = hard
            return ComparedTexts.join([sides[role] for role in pairs.momentum if role in sides])
        further = pairs.extra_columns
        if further is not None:
            stop = self._start + self.column_count(pairs.name)
            parts = [further.map(lambda tensor: tensor[: self._start]), further.map(lambda tensor: tensor[stop:])]
            parts = [part for part in parts if len(part.ids)]
            further = ComparedTexts.join(parts) if parts else None
        return examples.columns(pairs.loss.column_sides(examples), no_places, further)

    def finish_step(self) -> None:
        """Appends the columns of the step to the queue, and drops the oldest columns."""
        for name, columns in self._entering.items():
            self._past[name] = self._latest(self._past.get(name), columns)
        self._entering = {}

    def _latest(self, past: ComparedTexts | None, columns: ComparedTexts) -> ComparedTexts:
        """Returns a copy of the latest columns, at most ``size``."""
        newest = columns.map(lambda tensor: tensor[-self.size :])
        count = self.size - len(newest.ids)
        older = [] if past is None or not count else [past.map(lambda tensor: tensor[-count:])]
        return ComparedTexts.join([*older, newest])

    def describe(self, negatives: NegativeCount) -> NegativeCount:
        """Returns the number of negatives with the columns of a full queue, and the number of their batches."""
        roles = negatives.roles
        kind = f"past keys of {' and '.join(roles)}" if negatives.momentum else "past columns"
        hard = negatives.counts.get(HARD_NEGATIVES, 0)
        per_batch = sum(hard if role == "negative" else negatives.batch_size for role in roles)
        batches = self.size / max(per_batch, 1)
        text = f"{batches:.3g}" if batches < 100 else f"{batches:,.0f}"
        counts = {**negatives.counts, f"{kind} (of {text} batches)": self.size}
        return replace(negatives, counts=counts, filling=True)

    def get_extra_state(self) -> dict[str, dict[str, Tensor]]:
        """Returns the queued vectors of earlier steps, by comparison, for a state dict."""
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
        """Restores the columns in the queues, or the latest columns if there are more than ``size``."""
        self._past, self._entering = {}, {}
        for name, columns in state.items():
            groups = {
                key.removeprefix("groups."): ids for key, ids in columns.items() if key.startswith("groups.")
            }
            self._entering[name] = ComparedTexts(columns["vectors"], columns["ids"], groups, columns.get("guide"))
        self.finish_step()
