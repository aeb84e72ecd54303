"""One training pass: from a batch to what objectives read, with views of every level and dropout by key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from contrastive_text.distributed import rank, world_size
from contrastive_text.encoders import Encoder
from contrastive_text.heads import Head
from contrastive_text.objectives import Objective
from contrastive_text.poolers import Pooler
from contrastive_text.random import fold
from contrastive_text.types import NO_LABEL, Alter, Batch, Encoded, Slot
from contrastive_text.views import ViewPlan

Value: TypeAlias = Callable[[Encoded, str | None], Tensor]
"""Gives the loss of an objective by name (None for the only one), the mean of which over ranks is the whole's."""


class Network(NamedTuple):
    """What a text goes through on its way to an embedding."""

    encoder: Encoder
    pooler: Pooler
    head: Head | None

    def pool(self, batch: Batch) -> Tensor:
        """Gives the vectors that inference sees, without any view, (S, D)."""
        parts = _by_length(batch)
        vectors = [self.pooler(self.encoder(part.batch, layers=self.pooler.layers)) for part in parts]
        pooled = _in_order(vectors, parts)
        return pooled if self.head is None else self.head(pooled)


class _Part(NamedTuple):
    """Rows that are encoded together, where they stand in the batch, and which dropout masks they get."""

    batch: Batch
    rows: Tensor
    masks: int


_LOSS_SCALE = 2.0**12
"""Of the pass that finds a gradient: a power of two, exact in every precision that keeps its exponents."""
_BUCKET = 16
"""Rows of similar length that the CPU encodes together: 2 to 3 times faster than one padded block of 128 rows."""


def _by_length(batch: Batch) -> list[_Part]:
    """Splits a batch into rows of similar length, so that little is padded; a GPU gets it whole."""
    whole = batch.lengths.is_cuda or len(batch) < 2 * _BUCKET
    order = batch.lengths.argsort(descending=True, stable=True)
    buckets = (order,) if whole else torch.split(order, _BUCKET)
    return [_Part(batch.split(rows), rows, masks=number) for number, rows in enumerate(buckets)]


def _in_order(vectors: Sequence[Tensor], parts: Sequence[_Part]) -> Tensor:
    """Gives the rows of the parts in the batch's order, (S, D)."""
    return torch.cat(list(vectors))[torch.cat([part.rows for part in parts]).argsort()]


def read_slots(batch: Batch, plan: ViewPlan, objectives: Sequence[Objective]) -> Batch:
    """Gives the slots of a batch that objectives read; nothing else is encoded.

    Args:
        batch: A whole batch.
        plan: Its views: slots whose tokens are hidden are read by objectives that predict tokens.
        objectives: Those that will run.
    """
    per_text = max(sum(slot.role == "anchor" for slot in batch.slots), 1)

    def reads(objective: Objective, slot: Slot) -> bool:
        of_view = objective.view in (None, slot.number % per_text + 1)
        return of_view and slot.role in (*objective.reads, *objective.takes)

    predicts = any(objective.needs_token_logits for objective in objectives)
    kept = [
        slot
        for slot in batch.slots
        if any(reads(objective, slot) for objective in objectives)
        or (predicts and plan.hides_tokens(slot))
        or plan.has_gradient_view(slot)
    ]
    return batch.keep(kept)


def encode_views(batch: Batch, network: Network, plan: ViewPlan, value: Value) -> Encoded:
    """Gives the batch encoded under its views.

    With gradient views there are two passes: one finds the gradient of their objective with respect to the
    embedding output, by ``torch.autograd.grad`` (no parameter's gradient is touched, and the gather's own
    backward pass makes it that of the whole batch over all ranks); the other is trained on. Dropout masks are
    a function of the batch's keys, the rank and the pass.

    Args:
        batch: Ragged rows, altered as text and tokens already.
        network: Encoder, pooler and the head that is kept.
        plan: The views.
        value: The loss whose gradient a gradient view follows.
    """
    parts = _parts(batch, plan)
    views = plan.gradient_views
    if not views:
        return _encode(batch, parts, network, [plan.alter_embeddings(part.batch) for part in parts])
    entered: list[Tensor] = []
    clean = [_entering(plan.alter_embeddings(part.batch), entered) for part in parts]
    first_pass = 0 if any(view.same_dropout for view in views) else 1
    loss = value(_encode(batch, parts, network, clean, number=first_pass), views[0].objective)
    # The mean over ranks, as DDP takes it; scaled, because a converged loss has gradients that float16 loses.
    gradients = torch.autograd.grad(loss * _LOSS_SCALE / world_size(), entered)
    alters = [
        plan.alter_embeddings(part.batch, gradient / _LOSS_SCALE)
        for part, gradient in zip(parts, gradients, strict=True)
    ]
    return _encode(batch, parts, network, alters)


def in_place_read(encoded: Encoded, plan: ViewPlan, view: int | None) -> Encoded:
    """Puts what gradient views alter where an objective reads another view of the same text.

    A classifier of unaltered texts is followed on a second view this way (ConSERT's joint mode, Yan et al. 2021):
    the gradient of its loss reaches the rows that will be altered along it.

    Args:
        encoded: A batch without its gradient views, as the objective would read it.
        plan: The views.
        view: The view that the objective reads, from 1; None for all, which changes nothing.
    """
    if view is None:
        return encoded
    per_text = sum(slot.role == "anchor" for slot in encoded.slots)
    order = list(range(len(encoded.slots)))
    for altered, slot in enumerate(encoded.slots):
        if plan.has_gradient_view(slot) and slot.number % per_text != view - 1:
            read = encoded.slots.index(slot._replace(number=slot.number - slot.number % per_text + view - 1))
            order[altered], order[read] = order[read], order[altered]
    rows = encoded.embeddings.reshape(len(order), -1, encoded.embeddings.shape[1])
    return replace(encoded, embeddings=rows[order].flatten(0, 1))


def _parts(batch: Batch, plan: ViewPlan) -> list[_Part]:
    """Splits a batch by length, or into its slots where some roles repeat the anchor's dropout masks."""
    if not plan.fixed_dropout:
        return _by_length(batch)
    slots = [(batch.row_slots == number).nonzero().flatten() for number in range(len(batch.slots))]
    parts = [
        _Part(batch.split(rows), rows, masks=0 if plan.chain_name(slot) in plan.fixed_dropout else number)
        for number, (slot, rows) in enumerate(zip(batch.slots, slots, strict=True))
    ]
    alike = [part.batch.lengths for part in parts if part.masks == 0]
    if any(not torch.equal(alike[0], lengths) for lengths in alike[1:]):
        raise ValueError(
            f"FixedDropout: expected rows as long as their anchors on {', '.join(plan.fixed_dropout)}, got "
            "others; masks are laid over places: use it with SameText and no view that changes a text's length"
        )
    return parts


def _entering(alter: Alter | None, entered: list[Tensor]) -> Alter:
    """Cuts the graph where the blocks begin and keeps what enters them."""

    def enter(embeddings: Tensor, mask: Tensor) -> Tensor:
        altered = embeddings if alter is None else alter(embeddings, mask)
        entered.append(altered.detach().requires_grad_())
        return entered[-1]

    return enter


def _encode(
    batch: Batch, parts: Sequence[_Part], network: Network, alters: Sequence[Alter | None], number: int = 0
) -> Encoded:
    layers = network.pooler.layers
    if batch.labels is not None:
        layers = tuple(dict.fromkeys((*layers, -1)))
    vectors, hidden_tokens, labels = [], [], []
    for part, alter in zip(parts, alters, strict=True):
        torch.manual_seed(fold(batch.seed, rank(), part.masks, number))
        hidden = network.encoder(part.batch, alter=alter, layers=layers)
        vectors.append(network.pooler(hidden))
        if part.batch.labels is not None:
            masked = part.batch.labels != NO_LABEL
            hidden_tokens.append(hidden.layers[-1][hidden.mask][masked])
            labels.append(part.batch.labels[masked])
    pooled = _in_order(vectors, parts)
    return Encoded(
        embeddings=pooled if network.head is None else network.head(pooled),
        slots=batch.slots,
        text_ids=batch.text_ids,
        target=batch.target,
        masked_hidden=torch.cat(hidden_tokens) if labels else None,
        masked_labels=torch.cat(labels) if labels else None,
        token_logits=network.encoder.token_logits,
    )
