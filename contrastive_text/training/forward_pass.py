"""One training pass: from a batch to what objectives read, with views of every level and dropout by key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from contrastive_text.core.batch import Batch, Encoded, of_slots, sent
from contrastive_text.core.distributed import rank, world_size
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.random import fold, seed_torch
from contrastive_text.core.types import NO_LABEL, Alter, Slot
from contrastive_text.encoders.embedder import Embedder, RowGroup, in_order
from contrastive_text.objectives import Objective
from contrastive_text.views import ViewPlan

T = TypeVar("T")

_LOSS_SCALE = 2.0**12
"""Of the pass that finds a gradient: a power of two, exact in every precision that keeps its exponents."""

KEYS_PASS = 2
"""Number of the pass of a momentum network, after that which is trained on and that which finds a gradient."""


def read_slots(batch: Batch, plan: ViewPlan, objectives: Sequence[Objective]) -> Batch:
    """Returns the slots of a batch that objectives read; nothing else is encoded.

    Args:
        batch: A whole batch.
        plan: Its views: slots whose tokens are hidden are read by objectives that predict tokens.
        objectives: Those that will run.
    """
    per_text = max(sum(slot.role == "anchor" for slot in batch.slots), 1)

    def reads(objective: Objective, slot: Slot) -> bool:
        of_view = objective.view in (None, slot.number % per_text + 1)
        keyed = objective.keyed if objective.training else ()
        return of_view and slot.role in {*objective.reads, *objective.takes} - {*keyed}

    predicts = any(objective.needs_token_logits for objective in objectives)
    kept = [
        slot
        for slot in batch.slots
        if any(reads(objective, slot) for objective in objectives)
        or (predicts and plan.hides(plan.chain_name(slot)))
        or plan.has_gradient_view(slot)
    ]
    return batch.keep(kept)


def tokens_read(batch: Batch, objectives: Sequence[Objective]) -> Batch | None:
    """Returns the slots of a batch whose token ids objectives read; None where no objective reads any."""
    roles = {role for objective in objectives for role in objective.reads_tokens}
    return batch.keep([slot for slot in batch.slots if slot.role in roles]) if roles else None


def run_by_groups(
    embedder: Embedder, batch: Batch, compute: Callable[[Batch, Tensor], Tensor]
) -> list[tuple[Batch, Tensor, Tensor]]:
    """Runs an objective's own network as the encoder is run: its layout, its chunks, dropout masks by key.

    Args:
        embedder: How the rows of the step were encoded.
        batch: Ragged rows.
        compute: What a group's rows and their places in the batch, (n,), on its device, become; called once more
            in the backward pass where ``embedder.chunk_tokens`` bounds a group.

    Returns:
        For each group its rows, their places and what they became.
    """
    groups = embedder.groups(batch)
    places = [sent(group.rows, batch.ids.device) for group in groups]
    key = int(torch.randint(2**62, ()))  # the module has seeded torch for the objective that is running

    def seeded(group: RowGroup, rows: Tensor) -> Tensor:
        seed_torch(fold(key, group.masks), group.batch.ids.device)
        return compute(group.batch, rows)

    made = _in_turn([partial(seeded, *each) for each in zip(groups, places, strict=True)], embedder.chunk_tokens)
    return [(group.batch, rows, output) for group, rows, output in zip(groups, places, made, strict=True)]


def encode_views(
    batch: Batch, embedder: Embedder, plan: ViewPlan, loss: Callable[[Encoded], Tensor] | None = None
) -> Encoded:
    """Returns the batch encoded under its views.

    With gradient views there are two passes: one finds the gradient of their objective with respect to the
    embedding output, by ``torch.autograd.grad`` (no parameter's gradient is touched, and the gather's own
    backward pass makes it that of the whole batch over all ranks); the other is trained on. Dropout masks are
    a function of the batch's keys, the rank, the group of rows and the pass.

    Where ``embedder.chunk_tokens`` bounds a group, its activations are thrown away and computed anew in the
    backward pass (Chen et al. 2016, https://arxiv.org/abs/1604.06174), with the same masks and draws: memory is
    that of one group, and the gradient that of the whole batch, as gradient caching gives it (Gao et al. 2021,
    https://arxiv.org/abs/2101.06983), but in one graph.

    Args:
        batch: Ragged rows, altered as text and tokens already.
        embedder: Encoder, pooler, the head that is kept, and the bound on tokens.
        plan: The views.
        loss: The loss whose gradient a gradient view follows; None where the plan has no such view.

    Raises:
        ValueError: A gradient view without a loss.
    """
    groups = _groups(batch, embedder, plan)
    views = plan.gradient_views
    if not views:
        alters = [plan.alter_embeddings(group.batch) if plan.embedding_chains else None for group in groups]
        return encode_groups(batch, groups, embedder, alters)
    if loss is None:
        raise InvalidValueError(
            f"encode_views: expected a loss for {type(views[0]).__name__} to follow, got none; give loss"
        )
    entered: dict[int, Tensor] = {}
    clean = [_entering(plan.alter_embeddings(group.batch), entered, i) for i, group in enumerate(groups)]
    first_pass = 0 if any(view.same_dropout for view in views) else 1
    value = loss(encode_groups(batch, groups, embedder, clean, number=first_pass))
    # The mean over ranks, as DDP takes it; scaled, because a converged loss has gradients that float16 loses.
    gradients = torch.autograd.grad(value * _LOSS_SCALE / world_size(), list(entered.values()))
    alters = [
        plan.alter_embeddings(group.batch, gradient / _LOSS_SCALE)
        for group, gradient in zip(groups, gradients, strict=True)
    ]
    return encode_groups(batch, groups, embedder, alters)


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
    return replace(encoded, embeddings=of_slots(rows, order).flatten(0, 1))


def _groups(batch: Batch, embedder: Embedder, plan: ViewPlan) -> list[RowGroup]:
    """Splits a batch for the network, slot by slot where some roles repeat the anchor's dropout masks."""
    if not plan.fixed_dropout:
        return embedder.groups(batch)
    found: list[RowGroup] = []
    alike: list[Tensor] = []
    for number, slot in enumerate(batch.slots):
        rows = (batch.row_slots == number).nonzero().flatten()
        of_slot = batch.split(rows)
        fixed = plan.chain_name(slot) in plan.fixed_dropout or number == 0
        alike += [of_slot.lengths] if fixed else []
        found += [
            RowGroup(group.batch, rows[group.rows], masks=group.masks if fixed else fold(number, group.masks))
            for group in embedder.groups(of_slot)
        ]
    if any(not torch.equal(alike[0], lengths) for lengths in alike[1:]):
        raise InvalidValueError(
            f"FixedDropout: expected rows as long as their anchors on {', '.join(plan.fixed_dropout)}, got "
            "others; masks are laid over places: use it with SameText and no view that changes a text's length"
        )
    return found


def _entering(alter: Alter | None, entered: dict[int, Tensor], number: int) -> Alter:
    """Cuts the graph where the blocks begin and keeps what enters them, once: a group may be computed anew."""

    def enter(embeddings: Tensor, mask: Tensor) -> Tensor:
        altered = embeddings if alter is None else alter(embeddings, mask)
        leaf = altered.detach().requires_grad_()
        entered.setdefault(number, leaf)
        return leaf

    return enter


def _in_turn(groups: Sequence[Callable[[], T]], chunk_tokens: int | None) -> list[T]:
    """Computes groups, all but the last anew in the backward pass where their tokens are bounded."""
    # The backward pass begins with the last group: what it saves is needed at once, and is one chunk.
    kept = len(groups) if chunk_tokens is None or not torch.is_grad_enabled() else 1
    return [
        compute() if left <= kept else checkpoint(compute, use_reentrant=False, preserve_rng_state=False)
        for left, compute in zip(range(len(groups), 0, -1), groups, strict=True)
    ]


def encode_groups(
    batch: Batch, groups: Sequence[RowGroup], embedder: Embedder, alters: Sequence[Alter | None], number: int = 0
) -> Encoded:
    """Returns a batch encoded group by group.

    Args:
        batch: A whole batch.
        groups: Its rows.
        embedder: As for ``encode_views``.
        alters: Of each group, applied to the embedding output.
        number: Of the pass: each has dropout masks of its own.
    """
    encodes = [
        # The seed is set inside: nothing has to be kept to draw the same masks once more.
        partial(embedder.encode, group, alter, seed=fold(batch.seed, rank(), group.masks, number))
        for group, alter in zip(groups, alters, strict=True)
    ]
    vectors, hidden_tokens, labels = [], [], []
    for group, (pooled, masked) in zip(groups, _in_turn(encodes, embedder.chunk_tokens), strict=True):
        vectors.append(pooled)
        if group.batch.labels is not None and masked is not None:
            hidden_tokens.append(masked)
            own = group.batch.labels
            labels.append(sent(own[own != NO_LABEL], masked.device))
    pooled = in_order(vectors, groups)
    return Encoded(
        embeddings=pooled if embedder.head is None else embedder.head(pooled),
        slots=batch.slots,
        text_ids=batch.text_ids,
        target=batch.target_for(pooled),
        masked_hidden=torch.cat(hidden_tokens) if labels else None,
        masked_labels=torch.cat(labels) if labels else None,
        token_logits=embedder.encoder.token_logits,
        shares=batch.shares,
    )
