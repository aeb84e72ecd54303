"""The records that flow from a text file to a gradient.

Letters of shapes: ``contrastive_text.core``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import Tensor

from contrastive_text.core.errors import InvalidValueError

Role = Literal["anchor", "positive", "negative", "original"]
ROLES: tuple[Role, ...] = get_args(Role)
NO_LABEL = -100
"""Label of a token that masked language modelling does not predict (torch's ``ignore_index``)."""

NO_WORD = -1
"""Word number of a special token."""


Alter: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Alters the embedding output of a batch: embeddings (S, L, D) and mask (S, L) -> (S, L, D)."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """One text as token ids before special tokens; all lists stay aligned.

    Args:
        ids: Token ids.
        words: For each token the number of the word it belongs to, from 0.
        positions: For each token its place for the position embedding, or None for the natural order.
        labels: For each token the id to predict, ``NO_LABEL`` for none; None without masked modelling.

    Example:
        >>> Tokens(ids=(7, 8, 9), words=(0, 0, 1)).take([2, 0])
        Tokens(ids=(9, 7), words=(1, 0), positions=None, labels=None)
    """

    ids: tuple[int, ...]
    words: tuple[int, ...]
    positions: tuple[int, ...] | None = None
    labels: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        count = len(self.ids)
        if len(self.words) == count and self.positions is None and self.labels is None:
            return  # nearly all: there is one for each text
        for name, values in (("words", self.words), ("positions", self.positions), ("labels", self.labels)):
            if values is not None and len(values) != count:
                raise InvalidValueError(
                    f"Tokens.{name}: expected one value per token ({count}), got {len(values)}; "
                    "use tokens.take(order) to keep the lists aligned"
                )

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, order: Sequence[int]) -> Tokens:
        """Returns the tokens at the given places, in that order; every list follows."""
        if isinstance(order, range) and order.step == 1 and 0 <= order.start <= order.stop <= len(self):
            part = slice(order.start, order.stop)
            return Tokens(
                ids=self.ids[part],
                words=self.words[part],
                positions=self.positions and self.positions[part],
                labels=self.labels and self.labels[part],
            )
        return Tokens(
            ids=tuple([self.ids[i] for i in order]),
            words=tuple([self.words[i] for i in order]),
            positions=self.positions and tuple([self.positions[i] for i in order]),
            labels=self.labels and tuple([self.labels[i] for i in order]),
        )


Text: TypeAlias = str | Tokens
"""What a slot holds: a string, or a span that is already tokenised."""

Row: TypeAlias = Mapping[str, Text | float]
"""One record of a data file, under the library's column names (``text``, ``anchor``, ``target``, ...).

A text is a string; for a pairing with ``reads_tokens`` it is tokenised already.
"""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a view may know of the tokenizer.

    Args:
        size: Number of entries of the token table.
        mask_id: Id of the mask token; None if the tokenizer has none.
        special_ids: Ids of the special tokens, those that views have added included.
        prefix: Number of special tokens before a text.
        suffix: Number of special tokens after it.
        added: Token that a view has asked for (``View.new_tokens``) -> its id.
    """

    size: int
    mask_id: int | None = None
    special_ids: frozenset[int] = frozenset()
    prefix: int = 0
    suffix: int = 0
    added: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Example:
    """Texts that belong together, as a ``Pairing`` returns them.

    Args:
        anchor: The text that the others are compared with.
        positives: Texts of the same meaning.
        negatives: Hard negatives: texts that look alike and mean something else.
        target: A label or a score, for supervised objectives.
        views_per_text: How often each text stands in the batch: the views of a text i of a role are the
            slots ``i * views_per_text`` and those that follow.
    """

    anchor: Text
    positives: tuple[Text, ...] = ()
    negatives: tuple[Text, ...] = ()
    target: float | None = None
    views_per_text: int = 1


class Slot(NamedTuple):
    """One text of every example: its role and its number within the role."""

    role: Role
    number: int


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
        text_ids: 64-bit hash of the text before any view, (S,): equal texts have equal ids.
        seed: Seed of the step's dropout masks.
        positions: Positions of the tokens, (T,), or None for the natural order.
        labels: Labels for masked language modelling, (T,), or None.
        target: Label or score of each example, (N,), float64, or None.
        truncated: Number of rows that were cut to the length limit.
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
        labels: Tensor | None = None,
        target: Tensor | None = None,
        truncated: int = 0,
    ) -> None:
        self.ids = ids
        self.lengths = lengths
        self.slots = slots
        self.row_slots = row_slots
        self.draw_keys = draw_keys
        self.text_ids = text_ids
        self.seed = seed
        self.positions = positions
        self.labels = labels
        self.target = target
        self.truncated = truncated

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
            labels=None if self.labels is None else self.labels[tokens],
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
            labels=None if self.labels is None else move(self.labels),
            target=None if self.target is None else move(self.target),
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


@dataclass(frozen=True, slots=True)
class Hidden:
    """Token vectors of the layers that a pooler asked for.

    Args:
        layers: Layer number -> (n, L, D). Numbers count as in Transformers' ``hidden_states``: 0 is the
            embedding output, 1 the first block, -1 the last block.
        mask: True on tokens, False on padding, (n, L).
    """

    layers: Mapping[int, Tensor]
    mask: Tensor


@dataclass(frozen=True, slots=True)
class Encoded:
    """What objectives read: one vector per row, before any train-only head.

    Args:
        embeddings: Sentence vectors, (S, D), row = slot * N + example.
        slots: The slots, in row order.
        text_ids: 64-bit hash of each row's text, (S,).
        target: Label or score of each example, (N,), in at least float32, or None.
        masked_hidden: Last-layer vectors of the tokens that have a label, (M, D), or None.
        masked_labels: Their labels, (M,), or None.
        token_logits: From such vectors to a score for every entry of the vocabulary, (M, D) -> (M, V), or None.
    """

    embeddings: Tensor
    slots: tuple[Slot, ...]
    text_ids: Tensor
    target: Tensor | None = None
    masked_hidden: Tensor | None = None
    masked_labels: Tensor | None = None
    token_logits: Callable[[Tensor], Tensor] | None = None

    def role(self, role: Role) -> Tensor:
        """Returns the vectors of a role, (N, slots of the role, D).

        Example:
            >>> slots = (Slot("anchor", 0), Slot("positive", 0))
            >>> encoded = Encoded(torch.eye(4), slots, text_ids=torch.arange(4))
            >>> encoded.role("positive").shape
            torch.Size([2, 1, 4])
        """
        return self._of(role, self.embeddings)

    def role_ids(self, role: Role) -> Tensor:
        """Returns the text ids of a role, (N, slots of the role)."""
        return self._of(role, self.text_ids)

    def _of(self, role: Role, rows: Tensor) -> Tensor:
        wanted = [i for i, slot in enumerate(self.slots) if slot.role == role]
        return rows.reshape(len(self.slots), -1, *rows.shape[1:])[wanted].transpose(0, 1)
