"""What the contrastive objective makes of keys: columns of another network than that of its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.host import of_slots
from contrastive_text.core.types import Encoded, Role
from contrastive_text.losses import Loss
from contrastive_text.losses.comparison import Triples
from contrastive_text.objectives.between import Between
from contrastive_text.objectives.momentum import Momentum
from contrastive_text.objectives.pair_labels import PairLabels


def read_keys(encoded: Encoded, settings: Momentum) -> Encoded:
    """Returns the keys of a batch that were made under some settings.

    Raises:
        ValueError: There are none.
    """
    if settings not in encoded.keys:
        raise InvalidValueError(
            "Contrastive.keys: expected a batch with keys, got one without; in training ContrastiveModule.encode "
            "makes them"
        )
    return encoded.keys[settings]


def rows_and_columns(
    between: Between, encoded: Encoded, vectors: Mapping[Role, Tensor], keys: Encoded | None
) -> tuple[dict[str, Triples], dict[str, Triples]]:
    """Returns what rows and what columns are made of: the same, or columns of keys where there are any.

    Args:
        between: What is compared.
        encoded: The local batch.
        vectors: What the loss reads of each role that the trained network has encoded, (N, slots, D).
        keys: Of the roles of a momentum network; None for none.
    """
    if keys is None:
        both = between.triples(encoded, vectors)
        return both, both
    roles = dict.fromkeys(slot.role for slot in keys.slots)
    keyed, own = {role: keys.role(role) for role in roles}, dict(vectors)
    texts = _beside(encoded, keys)
    return between.triples(texts, keyed | own), between.triples(texts, own | keyed)


def _beside(encoded: Encoded, keys: Encoded) -> Encoded:
    """Returns a batch with the ids of texts that only the momentum network encodes; without their vectors."""
    further = [i for i, slot in enumerate(keys.slots) if slot not in encoded.slots]
    ids = of_slots(keys.text_ids.reshape(len(keys.slots), -1, *keys.text_ids.shape[1:]), further).flatten(0, 1)
    slots = (*encoded.slots, *(keys.slots[i] for i in further))
    return replace(encoded, slots=slots, text_ids=torch.cat([encoded.text_ids, ids]))


def columns_alone(keys: Momentum, loss: Loss) -> tuple[Role, ...]:
    """Returns the roles whose keys stand in the place of all that a loss reads of them: columns, and no rows.

    Example:
        >>> from contrastive_text.losses import InfoNCE, NTXent
        >>> columns_alone(Momentum(), InfoNCE()), columns_alone(Momentum(), NTXent())
        (('positive',), ())
    """
    columns = ("positive", "negative") if _is_one_way(loss) else ("negative",)
    return tuple(role for role in keys.roles if role in columns)


def _is_one_way(loss: Loss) -> bool:
    """Whether anchors look for positives and nothing else is a row or a column."""
    return not loss.others and loss.reduction != "two_sided"


def check_keys(keys: Momentum, between: Between, loss: Loss, queue: int) -> None:
    """Checks that keys are of roles that are compared, and that something is held against them.

    Raises:
        ValueError: Views of a text are compared, a role that isn't, or keys that no row meets.
    """
    known: Sequence[Role] = (*between.reads, *between.takes)
    if not between.is_pairs:
        raise InvalidValueError(
            f"Contrastive.keys: expected between: texts for Momentum, got {type(between).__name__}; leave one out"
        )
    if others := [role for role in keys.roles if role not in known]:
        raise InvalidValueError(
            f"Contrastive.keys.of: expected some of the roles that it compares ({', '.join(known)}), got "
            f"{', '.join(others)}"
        )
    if keys.roles == ("anchor",) and _is_one_way(loss) and not queue:
        raise InvalidValueError(
            "Contrastive.keys.of: expected positive, or a queue that keys of anchors enter, for "
            f"{type(loss).__name__} holds no row against anchors, got anchor and queue: 0; set queue"
        )


def check_in_batch(loss: Loss, pair_labels: PairLabels | None) -> None:
    """Checks that positives of other examples can be masked.

    Raises:
        ValueError: A loss in which anchors are columns too, or pairs with labels.
    """
    if not _is_one_way(loss):
        found, help_ = f"{type(loss).__name__} of both sides", "take InfoNCE of one direction"
    elif pair_labels is not None:
        found, help_ = type(pair_labels).__name__, "leave pair_labels out"
    else:
        return
    raise InvalidValueError(
        "Contrastive.in_batch: false expects a loss whose rows are the anchors alone, and no pair_labels, got "
        f"{found}; {help_}, or set in_batch: true"
    )
