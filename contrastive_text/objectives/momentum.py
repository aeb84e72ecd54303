"""Momentum column part (MoCo): replaces columns of the trained network by vectors of a momentum encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from contrastive_text.core.batch import Encoded, select_slots
from contrastive_text.core.errors import InvalidValueError, fraction, one_of
from contrastive_text.core.types import ROLES, Role
from contrastive_text.losses.comparison import ExampleVectors
from contrastive_text.objectives.between import Between
from contrastive_text.objectives.columns import ColumnPart, NegativeCount, ObjectiveOptions, RowsAndColumns, Stage

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


def arrange_rows_and_columns(
    between: Between, encoded: Encoded, vectors: Mapping[Role, Tensor], keys: Encoded | None
) -> tuple[dict[str, ExampleVectors], dict[str, ExampleVectors]]:
    """Returns the row vectors and the column vectors of each comparison, by name.

    Both are the same without momentum vectors. With them, columns are momentum vectors.

    Args:
        between: Comparison that arranges the vectors.
        encoded: The local batch.
        vectors: Vectors of each role from the trained network, (N, slots, D).
        keys: Momentum vectors of some roles; None for none.
    """
    if keys is None:
        triples = between.arrange(encoded, vectors)
        return triples, triples
    roles = dict.fromkeys(slot.role for slot in keys.slots)
    key_vectors, trained_vectors = {role: keys.role(role) for role in roles}, dict(vectors)
    texts = _add_key_ids(encoded, keys)
    return between.arrange(texts, key_vectors | trained_vectors), between.arrange(
        texts, trained_vectors | key_vectors
    )


def _add_key_ids(encoded: Encoded, keys: Encoded) -> Encoded:
    """Returns a batch with the ids of texts that only the momentum encoder encodes, without their vectors."""
    further = [i for i, slot in enumerate(keys.slots) if slot not in encoded.slots]
    ids = select_slots(keys.text_ids.reshape(len(keys.slots), -1, *keys.text_ids.shape[1:]), further).flatten(
        0, 1
    )
    slots = (*encoded.slots, *(keys.slots[i] for i in further))
    return replace(encoded, slots=slots, text_ids=torch.cat([encoded.text_ids, ids]))
