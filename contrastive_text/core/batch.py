"""What a step is trained on: texts as one ragged batch, and a batch for each task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from contrastive_text.core.types import Role, Slot


class Batch:
    """N examples as S ragged rows; no padding crosses the process border.

    A whole batch has its rows slot by slot: row = slot * N + example. A part of one (``split``) keeps
    its rows' slots in ``row_slots``.

    Not a dataclass: under ``bf16-true`` Lightning gives every field of one that holds floats the precision of the
    weights, which rounds the targets: 3,000 classes become 700.

    Args:
        ids: Token ids of all rows with special tokens, (T,).
        lengths: Tokens of each row, (S,).
        slots: The slots, in row order.
        row_slots: Index into ``slots`` of each row, (S,).
        draw_keys: Key of every random draw for the row, (S,), int64.
        text_ids: 64-bit hash of the text before any view, (S,): equal texts have equal ids. Where views edit
            texts also that of the token ids after them, (S, 2).
        seed: Seed of the step's dropout masks.
        positions: Positions of the tokens, (T,), or None for the natural order.
        types: Which of two texts of a row each token is of, (T,), as the tokenizer numbers them; None where rows
            hold one text, or the tokenizer has no types.
        labels: Labels for masked language modelling, (T,), or None.
        target: Label or score of each example, (N,), float64, or None.
        unpooled: Tokens that the pooler leaves out at the start of each row, (S,), or None for none.
        around: Tokens before the text of each row and after it, special ones among them, (S, 2); None where
            nothing but special tokens stands around any.
        truncated: Number of rows that were cut to the length limit.
        texts: The rows' texts before any view and without prompts, S of them, where something reads them.
    """

    def __init__(
        self,
        ids: Tensor,
        lengths: Tensor,
        slots: tuple[Slot, ...],
        row_slots: Tensor,
        draw_keys: Tensor,
        text_ids: Tensor,
        seed: int = 0,
        positions: Tensor | None = None,
        types: Tensor | None = None,
        labels: Tensor | None = None,
        target: Tensor | None = None,
        unpooled: Tensor | None = None,
        around: Tensor | None = None,
        truncated: int = 0,
        texts: tuple[str, ...] | None = None,
    ) -> None:
        self.ids = ids
        self.lengths = lengths
        self.slots = slots
        self.row_slots = row_slots
        self.draw_keys = draw_keys
        self.text_ids = text_ids
        self.seed = seed
        self.positions = positions
        self.types = types
        self.labels = labels
        self.target = target
        self.unpooled = unpooled
        self.around = around
        self.truncated = truncated
        self.texts = texts

    def __len__(self) -> int:
        """Number of rows, S."""
        return len(self.lengths)

    def replace(self, **changes: Any) -> Batch:  # Any: of the arguments above
        """Returns the same batch with other values of some arguments."""
        return Batch(**{**vars(self), **changes})

    def target_for(self, vectors: Tensor) -> Tensor | None:
        """Returns the targets in the precision of vectors, but in at least float32, (N,), or None."""
        widened = torch.promote_types(vectors.dtype, torch.float32)
        return None if self.target is None else self.target.to(widened)

    def by_role(self, role: Role) -> Tensor:
        """Returns the indices of the rows with the role, slot by slot, (rows,)."""
        wanted = [i for i, slot in enumerate(self.slots) if slot.role == role]
        return torch.cat([(self.row_slots == i).nonzero().flatten() for i in wanted] or [self.lengths[:0]])

    def split(self, rows: Tensor) -> Batch:
        """Returns the part of the batch with the given rows (indices), in that order."""
        starts = (self.lengths.cumsum(0) - self.lengths)[rows]
        lengths = self.lengths[rows]
        ends = lengths.cumsum(0)
        offsets = torch.arange(int(ends[-1]) if len(ends) else 0, device=lengths.device)
        tokens = offsets + torch.repeat_interleave(starts - (ends - lengths), lengths)
        return self.replace(
            ids=self.ids[tokens],
            lengths=lengths,
            row_slots=self.row_slots[rows],
            draw_keys=self.draw_keys[rows],
            text_ids=self.text_ids[rows],
            positions=None if self.positions is None else self.positions[tokens],
            types=None if self.types is None else self.types[tokens],
            labels=None if self.labels is None else self.labels[tokens],
            unpooled=None if self.unpooled is None else self.unpooled[rows],
            around=None if self.around is None else self.around[rows],
            texts=None if self.texts is None else tuple(self.texts[row] for row in rows.tolist()),
        )

    def keep(self, slots: Sequence[Slot]) -> Batch:
        """Returns the whole batch without the rows of other slots than the given ones."""
        if tuple(slots) == self.slots:
            return self
        kept = [i for i, slot in enumerate(self.slots) if slot in slots]
        rows = [(self.row_slots == i).nonzero().flatten() for i in kept]
        part = self.split(torch.cat(rows or [self.lengths[:0]]))
        numbers = torch.arange(len(kept), device=self.lengths.device)
        lengths = torch.tensor([len(each) for each in rows], device=self.lengths.device)
        return part.replace(
            slots=tuple(self.slots[i] for i in kept), row_slots=numbers.repeat_interleave(lengths)
        )

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        """Returns the same batch on a device."""
        moved = self
        if self.target is not None and torch.device(device).type == "mps":
            moved = self.replace(target=self.target.float())  # Apple's GPUs have no float64
        return moved._each(lambda t: t.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Batch:
        """Returns the same batch in page-locked memory."""
        return self._each(lambda t: t.pin_memory())

    def _each(self, move: Callable[[Tensor], Tensor]) -> Batch:
        return self.replace(
            ids=move(self.ids),
            lengths=move(self.lengths),
            row_slots=move(self.row_slots),
            draw_keys=move(self.draw_keys),
            text_ids=move(self.text_ids),
            positions=None if self.positions is None else move(self.positions),
            types=None if self.types is None else move(self.types),
            labels=None if self.labels is None else move(self.labels),
            target=None if self.target is None else move(self.target),
            unpooled=None if self.unpooled is None else move(self.unpooled),
            around=None if self.around is None else move(self.around),
        )


class StepKind(NamedTuple):
    """What kind of step a run takes: of which tasks, and for which objectives (None: all of these tasks)."""

    tasks: tuple[str | None, ...]
    objectives: tuple[str, ...] | None = None


@dataclass(slots=True)
class StepBatch:
    """What one step of a run over several data sets is trained on.

    Not frozen, unlike its neighbours: under ``64-true`` Lightning copies it field by field.

    Args:
        batches: Task -> its batch; tasks that the step leaves out have none.
        objectives: Names of the objectives that run; None for all whose task is here.
    """

    batches: dict[str, Batch]
    objectives: tuple[str, ...] | None = None

    def to(self, device: torch.device | str, non_blocking: bool = False) -> StepBatch:
        """Returns the same step on a device."""
        return self._each(lambda batch: batch.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> StepBatch:
        """Returns the same step in page-locked memory."""
        return self._each(lambda batch: batch.pin_memory())

    def _each(self, move: Callable[[Batch], Batch]) -> StepBatch:
        return replace(self, batches={task: move(batch) for task, batch in self.batches.items()})
