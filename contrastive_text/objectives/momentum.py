"""Momentum columns: vectors of a momentum encoder in place of columns of the trained network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from contrastive_text.core.batch import Encoded, of_slots
from contrastive_text.core.checks import one_of, share
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.types import ROLES, Role
from contrastive_text.losses.comparison import Triples
from contrastive_text.objectives.between import Between
from contrastive_text.objectives.columns import ColumnPart, Negatives, Pairs, Setup, Stage

KeyHead = Literal["copied", "trained"]


class Momentum(ColumnPart):
    """Takes columns of its roles from a momentum encoder: an average of the trained network, without a gradient.

    ``copy <- decay * copy + (1 - decay) * trained`` after each step of the optimiser

    The copy begins as the network itself when a run begins, however its weights came. It is part of checkpoints
    and of no saved model, and costs the memory of the weights once more. Objectives with settings of their own
    have a copy each. Sources: He et al. 2020, MoCo (https://arxiv.org/abs/1911.05722), section 3.2 (0.999, keys
    of positives, with dropout and views, head and all); Wu et al. 2022, ESimCSE
    (https://arxiv.org/abs/2109.04380), section 3.2 (0.995, keys of unaltered anchors without dropout, through the
    trained head).

    When in a step the copy follows makes no option: MoCo's code does so at the start of a step, ESimCSE's between
    the forward pass and the keys. Either way the keys of a step are of a copy that has taken in the very weights
    of that step, as they are when it follows right after the optimiser.

    Differs: under accumulation the authors' codes follow with every batch, here a step of the optimiser counts
    once; one that mixed precision skips doesn't count. ESimCSE's code takes its copy before it loads the
    pretrained weights, so that theirs begins at random ones.

    Args:
        decay: Share of itself that the copy keeps in a step, from 0 (the network itself) to below 1.
        of: The role whose texts it encodes, or several.
        views: Whether it sees embedding views, with the same draws. Text and token views are in the rows already:
            without views their role must have none. Gradient views and ``FixedDropout`` act on the trained
            network alone.
        dropout: Whether it has dropout.
        head: Whether keys go through a copy of the objective's train-only head, or through the ``trained`` one.

    Raises:
        ValueError: A decay out of its range, an unknown role or head.

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
        share("Momentum.decay", decay, advice, with_one=False)
        if not self.roles or not {*self.roles} <= {*ROLES}:
            raise InvalidValueError(f"Momentum.of: expected one or more of {', '.join(ROLES)}, got {of!r}")
        one_of("Momentum.head", head, KeyHead)
        self.decay = decay
        self.of = of
        self.views = views
        self.dropout = dropout
        self.head = head

    def __deepcopy__(self, memo: object) -> Momentum:
        """Returns itself: copies of an objective, as ``Matryoshka`` makes them, read the same keys."""
        return self

    def __call__(self, pairs: Pairs) -> Pairs:
        """Returns the pairs, whose vectors of its roles are momentum vectors already."""
        return replace(pairs, momentum=self.roles)

    def describe(self, negatives: Negatives) -> Negatives:
        """Returns the negatives with the roles whose vectors enter a queue; their number is unchanged."""
        return replace(negatives, roles=self.roles, momentum=True)

    def read_keys(self, encoded: Encoded) -> Encoded:
        """Returns the momentum vectors of a batch.

        Raises:
            ValueError: The batch has none.
        """
        if self not in encoded.keys:
            raise InvalidValueError(
                "Momentum: expected a batch with momentum vectors, got one without; in training "
                "ContrastiveModule.encode makes them"
            )
        return encoded.keys[self]

    def check(self, setup: Setup) -> None:
        """Checks that its roles are compared, and that rows are compared with its vectors."""
        known: Sequence[Role] = (*setup.between.reads, *setup.between.takes)
        if not setup.between.is_pairs:
            raise InvalidValueError(
                "Contrastive.between: expected texts for Momentum, got "
                f"{type(setup.between).__name__}; leave one of the two out"
            )
        if others := [role for role in self.roles if role not in known]:
            raise InvalidValueError(
                f"Momentum.of: expected roles that are compared ({', '.join(known)}), got {', '.join(others)}"
            )
        added = any(part.adds_columns for part in setup.parts)
        if self.roles == ("anchor",) and setup.is_one_way and not added:
            raise InvalidValueError(
                "Momentum.of: expected positive, or a Queue that momentum vectors of anchors enter, for "
                f"{type(setup.loss).__name__} compares no row with anchors, got anchor without Queue; add Queue"
            )

    def roles_alone(self, setup: Setup) -> tuple[Role, ...]:
        """Returns the roles that are columns and no rows: in training only this encoder encodes them."""
        columns = ("positive", "negative") if setup.is_one_way else ("negative",)
        return tuple(role for role in self.roles if role in columns)


def rows_and_columns(
    between: Between, encoded: Encoded, vectors: Mapping[Role, Tensor], keys: Encoded | None
) -> tuple[dict[str, Triples], dict[str, Triples]]:
    """Returns the vectors of rows and those of columns: the same, or momentum vectors for columns.

    Args:
        between: What is compared.
        encoded: The local batch.
        vectors: Vectors of each role that the trained network has encoded, (N, slots, D).
        keys: Momentum vectors of some roles; None for none.
    """
    if keys is None:
        both = between.triples(encoded, vectors)
        return both, both
    roles = dict.fromkeys(slot.role for slot in keys.slots)
    keyed, own = {role: keys.role(role) for role in roles}, dict(vectors)
    texts = _with_ids_of(encoded, keys)
    return between.triples(texts, keyed | own), between.triples(texts, own | keyed)


def _with_ids_of(encoded: Encoded, keys: Encoded) -> Encoded:
    """Returns a batch with the ids of texts that only the momentum encoder encodes, without their vectors."""
    further = [i for i, slot in enumerate(keys.slots) if slot not in encoded.slots]
    ids = of_slots(keys.text_ids.reshape(len(keys.slots), -1, *keys.text_ids.shape[1:]), further).flatten(0, 1)
    slots = (*encoded.slots, *(keys.slots[i] for i in further))
    return replace(encoded, slots=slots, text_ids=torch.cat([encoded.text_ids, ids]))
