"""Column parts of MoCo: vectors of a momentum encoder, and a queue of the columns of earlier steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from contrastive_text.core.batch import Encoded, select_slots
from contrastive_text.core.errors import InvalidValueError, at_least, fraction, one_of
from contrastive_text.core.types import ROLES, Role
from contrastive_text.losses.comparison import MASKED_ID, ComparedTexts, ExampleVectors
from contrastive_text.losses.rules import NO_ID
from contrastive_text.objectives.columns import (
    HARD_NEGATIVES,
    Between,
    ColumnPart,
    NegativeCount,
    ObjectiveOptions,
    RowsAndColumns,
    Stage,
)

KeyHead = Literal["copied", "trained"]


class Momentum(ColumnPart):
    """Takes columns from a momentum encoder: a moving average of the trained network, without a gradient.

    ``copy <- decay * copy + (1 - decay) * trained`` after each optimizer step

    The momentum encoder starts as a copy of the trained network at the start of a run, with its initial weights.
    Checkpoints have it; the saved model does not. It takes the memory of the weights once more. Each set of
    ``Momentum`` options has its own momentum encoder. Its vectors are called keys. Sources: He et al. 2020, MoCo
    (https://arxiv.org/abs/1911.05722), section 3.2: decay 0.999, keys of positives, with dropout, views and a
    copy of the head. Wu et al. 2022, ESimCSE (https://arxiv.org/abs/2109.04380), section 3.2: decay 0.995, keys
    of unaltered anchors without dropout, through the trained head.

    MoCo's code updates the copy at the start of a step, ESimCSE's code between the forward pass and the keys. In
    both codes, as here, the keys of a step are from a copy that includes the current weights.

    Differs: under gradient accumulation the authors' codes update the copy with every batch. Here it is updated
    once per optimizer step, and not if mixed precision skips the step. ESimCSE's code makes the copy before it
    loads the pretrained weights, so that its copy starts with random weights.

    Args:
        decay: Weight of the copy in its update, from 0 (the trained network itself) to below 1.
        of: Role, or list of roles, whose texts the momentum encoder encodes.
        views: Whether embedding views are applied, with the same random draws. Text and token views already
            changed the rows: without views the roles must have none. Gradient views and ``FixedDropout`` apply to
            the trained network only.
        dropout: Whether the momentum encoder uses dropout.
        head: ``copied`` to apply a momentum copy of the objective's train-only head to the keys, ``trained`` to
            apply the trained head.

    Raises:
        ValueError: ``decay`` is out of its range, or a role or ``head`` is unknown.

    Example:
        >>> Momentum(0.995, of="anchor", views=False, dropout=False, head="trained").roles
        ('anchor',)
    """

    stage: ClassVar[Stage] = "examples"
    trains_only: ClassVar[bool] = True

    def __init__(
        self,
        decay: float = 0.999,
        of: Role | list[Role] = "positive",
        views: bool = True,
        dropout: bool = True,
        head: KeyHead = "copied",
    ) -> None:
        self.roles: tuple[Role, ...] = (of,) if isinstance(of, str) else tuple(of)
        advice = "MoCo's is 0.999, ESimCSE's 0.995"
        fraction("Momentum.decay", decay, advice, with_one=False)
        if not self.roles or not {*self.roles} <= {*ROLES}:
            raise InvalidValueError(f"Momentum.of: expected one or more of {', '.join(ROLES)}, got {of!r}")
        one_of("Momentum.head", head, KeyHead)
        self.decay = decay
        self.of = of
        self.views = views
        self.dropout = dropout
        self.head = head

    def __deepcopy__(self, memo: object) -> Momentum:
        """Returns the part itself as its copy, so that copies of an objective read the same momentum vectors."""
        return self

    def __call__(self, pairs: RowsAndColumns) -> RowsAndColumns:
        """Returns the rows and columns, with the roles whose vectors are replaced by momentum vectors."""
        return replace(pairs, momentum=self.roles)

    def describe(self, negatives: NegativeCount) -> NegativeCount:
        """Returns the number of negatives, unchanged, with the roles whose momentum vectors enter a queue."""
        return replace(negatives, roles=self.roles, momentum=True)

    def read_keys(self, encoded: Encoded) -> Encoded:
        """Returns the vectors that the momentum encoder has computed for a batch.

        Raises:
            ValueError: The batch has no momentum vectors.
        """
        if self not in encoded.keys:
            raise InvalidValueError(
                "Momentum: expected a batch with momentum vectors, got a batch without them; encode it with "
                "ContrastiveModule.encode, which computes them in training"
            )
        return encoded.keys[self]

    def check(self, setup: ObjectiveOptions) -> None:
        """Checks that the roles are compared, and that rows are compared with momentum vectors (ValueError)."""
        roles: Sequence[Role] = (*setup.between.reads, *setup.between.takes)
        if not setup.between.is_pairs:
            raise InvalidValueError(
                "Contrastive.between: expected texts with Momentum, got "
                f"{type(setup.between).__name__}; set between: texts, or remove Momentum"
            )
        if unknown := [role for role in self.roles if role not in roles]:
            raise InvalidValueError(
                f"Momentum.of: expected roles that are compared ({', '.join(roles)}), got {', '.join(unknown)}"
            )
        has_added_columns = any(part.adds_columns for part in setup.parts)
        if self.roles == ("anchor",) and setup.is_one_way and not has_added_columns:
            raise InvalidValueError(
                "Momentum.of: expected positive, or anchor with a Queue, got anchor without Queue. "
                f"{type(setup.loss).__name__} compares no row with anchors of the batch; add Queue"
            )

    def momentum_only_roles(self, setup: ObjectiveOptions) -> tuple[Role, ...]:
        """Returns the roles that only the momentum encoder encodes in training: columns that are no rows."""
        columns = ("positive", "negative") if setup.is_one_way else ("negative",)
        return tuple(role for role in self.roles if role in columns)


def arrange_with_keys(
    between: Between, encoded: Encoded, vectors: Mapping[Role, Tensor], keys: Encoded
) -> tuple[dict[str, ExampleVectors], dict[str, ExampleVectors]]:
    """Returns the row vectors and the column vectors of each comparison, by name. Columns are momentum vectors.

    Args:
        between: Comparison that arranges the vectors.
        encoded: The local batch.
        vectors: Vectors of each role from the trained network, (N, slots, D).
        keys: Momentum vectors of some roles.
    """
    roles = dict.fromkeys(slot.role for slot in keys.slots)
    key_vectors, trained_vectors = {role: keys.role(role) for role in roles}, dict(vectors)
    texts = _add_key_ids(encoded, keys)
    rows = between.arrange(texts, key_vectors | trained_vectors)
    return rows, between.arrange(texts, trained_vectors | key_vectors)


def _add_key_ids(encoded: Encoded, keys: Encoded) -> Encoded:
    """Returns a batch with the ids of texts that only the momentum encoder encodes, without their vectors."""
    further = [i for i, slot in enumerate(keys.slots) if slot not in encoded.slots]
    ids = select_slots(keys.text_ids.reshape(len(keys.slots), -1, *keys.text_ids.shape[1:]), further).flatten(
        0, 1
    )
    slots = (*encoded.slots, *(keys.slots[i] for i in further))
    return replace(encoded, slots=slots, text_ids=torch.cat([encoded.text_ids, ids]))


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
