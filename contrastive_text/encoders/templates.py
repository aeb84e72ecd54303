"""Templates alone: what a network makes of what stands around a text, without the text, at the same places."""

from __future__ import annotations

import torch
from torch import Tensor

from contrastive_text.core.batch import Batch, OnHost
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.host import sent
from contrastive_text.core.random import hash_rows
from contrastive_text.core.specs import describe
from contrastive_text.encoders.base import Encoder
from contrastive_text.encoders.layouts import natural_positions
from contrastive_text.poolers import Pooler

_OF_TOKENS = ("ids", "positions", "types")
_OF_ROWS = ("lengths", "row_slots", "draw_keys", "text_ids", "unpooled")


def with_templates(batch: Batch) -> tuple[Batch, Tensor]:
    """Returns a batch with templates alone as more rows at the end, and the number of each own row's template.

    A template alone has the tokens around the text at the places that they have around it, and no others: there
    is one for each template and each length of a text. Source: Jiang et al. 2022, PromptBERT
    (https://arxiv.org/abs/2201.04337), "template denoising", and ``get_delta`` of its authors' code.

    Args:
        batch: S rows, some of them with something around their texts.

    Returns:
        S + B rows, without labels, and numbers from 0 to B - 1, (S,), on the host.

    Raises:
        ValueError: No template around any text.

    Example:
        >>> ids, lengths = torch.tensor([1, 7, 2, 3, 1, 8, 9, 2, 3, 1, 6, 2, 3]), torch.tensor([4, 5, 4])
        >>> keys, around = torch.arange(3), torch.tensor([[1, 2]] * 3)
        >>> batch = Batch(ids, lengths, (), torch.zeros(3).long(), keys, keys, around=around)
        >>> whole, template_of = with_templates(batch)
        >>> own = int(lengths.sum())
        >>> template_of.tolist(), whole.ids[own:].tolist(), whole.positions[own:].tolist()
        ([0, 1, 0], [1, 2, 3, 1, 2, 3], [0, 2, 3, 0, 3, 4])
    """
    if batch.around is None:
        raise InvalidValueError(
            "MaskTokenPooler.template_bias: expected a template around texts, got none around any; name one "
            "under model.prompts, or drop template_bias"
        )
    (before, after), lengths = batch.around.unbind(dim=1), batch.lengths
    places, inside = natural_positions(lengths), lengths - before - after
    row = torch.repeat_interleave(torch.arange(len(batch)), lengths)
    kept = ((places < before[row]) | (places >= (lengths - after)[row])).nonzero().flatten()
    device, known = batch.ids.device, batch.known
    here = sent(kept, device)
    around = known._replace(ids=known.ids[kept])
    alone = batch.replace(
        ids=batch.ids[here],
        lengths=before + after,
        positions=sent(places[kept], device),
        types=None if batch.types is None else batch.types[here],
        labels=None,
        on_host=None if batch.on_host is None else around,
    )
    each = torch.stack([inside, hash_rows(around.ids, alone.lengths)], dim=1)
    _, template_of = torch.unique(each, dim=0, return_inverse=True)
    first = torch.full_like(lengths, len(batch)).scatter_reduce(0, template_of, torch.arange(len(batch)), "amin")
    distinct = alone.split(first[: int(template_of.max()) + 1])
    own = batch if batch.positions is not None else batch.replace(positions=sent(places, device))
    joined = {
        name: torch.cat([getattr(own, name), getattr(distinct, name)])
        for name in (*_OF_TOKENS, *_OF_ROWS)
        if getattr(own, name) is not None
    }
    nowhere = torch.full_like(distinct.row_slots, -1)  # in no slot: no view alters them
    joined["row_slots"] = torch.cat([own.row_slots, nowhere])
    on_host = None
    if own.on_host is not None and distinct.on_host is not None:
        on_host = OnHost(*(torch.cat(each) for each in zip(own.on_host, distinct.on_host, strict=True)))
    return own.replace(**joined, labels=None, on_host=on_host), template_of


def check_template_bias(pooler: Pooler, encoder: Encoder) -> None:
    """Checks that a template's own vector can be found, where a pooler takes it off: by places that are heeded.

    Raises:
        ValueError: An architecture that reads no places.
    """
    if pooler.template_bias and not encoder.heeds_positions():
        raise InvalidValueError(
            f"{type(pooler).__name__}.template_bias: expected an architecture that reads positions, got "
            f"{describe(encoder)}, which ignores them; drop template_bias, or use another encoder"
        )
