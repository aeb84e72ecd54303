"""Training forward pass: encodes a batch for the objectives, with views, chunks and reproducible dropout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from contrastive_text.core.batch import Batch, Encoded, move_to_device, select_slots
from contrastive_text.core.distributed import rank, world_size
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.random import fold_key, seed_torch
from contrastive_text.core.types import NO_LABEL, EmbeddingChange, Slot
from contrastive_text.encoders.base import Embedder, RowGroup, restore_order
from contrastive_text.objectives import Objective
from contrastive_text.views import ViewPlan

T = TypeVar("T")

_LOSS_SCALE = 2.0**12
"""Factor of the loss in the pass that computes a gradient for views. A power of two, so scaling is exact."""

KEYS_PASS = 2
"""Number of a momentum encoder's pass, for dropout keys. The trained encoder has the passes 0 and 1."""


def read_slots(batch: Batch, plan: ViewPlan, objectives: Sequence[Objective]) -> Batch:
    """Returns the slots of a batch that objectives read. Other slots are not encoded.

    Args:
        batch: A whole batch.
        plan: Views of the batch. Objectives that predict tokens read the slots with masked tokens.
        objectives: Objectives of the step.
    """
    per_text = max(sum(slot.role == "anchor" for slot in batch.slots), 1)

    def reads(objective: Objective, slot: Slot) -> bool:
        of_view = objective.view in (None, slot.number % per_text + 1)
        keyed = objective.momentum_only_roles if objective.training else ()
        return of_view and slot.role in {*objective.required_roles, *objective.optional_roles} - {*keyed}

    predicts = any(objective.needs_token_logits for objective in objectives)
    slots = [
        slot
        for slot in batch.slots
        if any(reads(objective, slot) for objective in objectives)
        or (predicts and plan.masks_tokens(plan.chain_name(slot)))
        or plan.has_gradient_view(slot)
    ]
    return batch.keep(slots)


def select_token_slots(batch: Batch, objectives: Sequence[Objective]) -> Batch | None:
    """Returns the slots of a batch whose token ids objectives read, or None if no objective reads token ids."""
    roles = {role for objective in objectives for role in objective.token_roles}
    return batch.keep([slot for slot in batch.slots if slot.role in roles]) if roles else None


def run_in_chunks(
    embedder: Embedder, batch: Batch, compute: Callable[[Batch, Tensor], Tensor]
) -> list[tuple[Batch, Tensor, Tensor]]:
    """Runs an objective's network like the encoder: in the same layout and chunks, with dropout masks by key.

    Args:
        embedder: Embedder that encoded the rows of the step.
        batch: Ragged rows.
        compute: Function of a group's rows and their positions in the batch, (n,), on its device. It is called
            again in the backward pass if ``embedder.chunk_tokens`` is set.

    Returns:
        For each group its rows, their positions and the output of ``compute``.
    """
    groups = embedder.groups(batch)
    positions = [move_to_device(group.rows, batch.ids.device) for group in groups]
    key = int(torch.randint(2**62, ()))  # the module has seeded torch for the current objective

    def seeded(group: RowGroup, rows: Tensor) -> Tensor:
        seed_torch(fold_key(key, group.masks), group.batch.ids.device)
        return compute(group.batch, rows)

    outputs = _compute_groups(
        [partial(seeded, *arguments) for arguments in zip(groups, positions, strict=True)], embedder.chunk_tokens
    )
    return [(group.batch, rows, output) for group, rows, output in zip(groups, positions, outputs, strict=True)]


def encode_views(
    batch: Batch, embedder: Embedder, plan: ViewPlan, loss: Callable[[Encoded], Tensor] | None = None
) -> Encoded:
    """Encodes a batch with its embedding views and gradient views.

    Gradient views need two passes. The first computes the gradient of their objective with respect to the
    embedding output, by ``torch.autograd.grad``. It changes no parameter's gradient. The backward pass of the
    gather makes it the gradient of the whole batch over all ranks. The second pass is trained on. Dropout masks
    are a function of the batch's keys, the rank, the group of rows and the pass.

    If ``embedder.chunk_tokens`` is set, the activations of a group are discarded and recomputed in the backward
    pass (Chen et al. 2016, https://arxiv.org/abs/1604.06174), with the same masks and random draws. Memory is
    bounded by one group. The gradient belongs to the whole batch, as in gradient caching (Gao et al. 2021,
    https://arxiv.org/abs/2101.06983), but in one graph.

    Args:
        batch: Ragged rows. Text views and token views are applied already.
        embedder: Encoder, pooler, the head that inference keeps, and the bound on tokens.
        plan: Views of the batch.
        loss: Loss whose gradient a gradient view reads; None if the plan has no gradient view.

    Raises:
        ValueError: The plan has a gradient view, but there is no loss.
    """
    groups = _groups(batch, embedder, plan)
    views = plan.gradient_views
    if not views:
        alters = [plan.alter_embeddings(group.batch) if plan.embedding_chains else None for group in groups]
        return encode_groups(batch, groups, embedder, alters)
    if loss is None:
        raise InvalidValueError(
            f"encode_views: expected a loss whose gradient {type(views[0]).__name__} follows, got loss=None"
        )
    inputs: dict[int, Tensor] = {}
    clean = [_recording_input(plan.alter_embeddings(group.batch), inputs, i) for i, group in enumerate(groups)]
    first_pass = 0 if any(view.same_dropout for view in views) else 1
    value = loss(encode_groups(batch, groups, embedder, clean, number=first_pass))
    # The mean over ranks, as in DDP. Scaled, because gradients of a converged loss underflow in float16.
    gradients = torch.autograd.grad(value * _LOSS_SCALE / world_size(), list(inputs.values()))
    alters = [
        plan.alter_embeddings(group.batch, gradient / _LOSS_SCALE)
        for group, gradient in zip(groups, gradients, strict=True)
    ]
    return encode_groups(batch, groups, embedder, alters)


def swap_views(encoded: Encoded, plan: ViewPlan, view: int | None) -> Encoded:
    """Swaps slots, so an objective that reads another view of a text reads the slot that a gradient view alters.

    This way a gradient view of the second copy of a text can use the loss of a classifier of the first copy
    (ConSERT's joint mode, Yan et al. 2021). The gradient of the loss then reaches the rows that will be altered.

    Args:
        encoded: Encoded batch before gradient views are applied.
        plan: Views of the batch.
        view: Number of the view that the objective reads, from 1; None for all views, which swaps nothing.
    """
    if view is None:
        return encoded
    per_text = sum(slot.role == "anchor" for slot in encoded.slots)
    order = list(range(len(encoded.slots)))
    for altered, slot in enumerate(encoded.slots):
        if plan.has_gradient_view(slot) and slot.number % per_text != view - 1:
            position = encoded.slots.index(slot._replace(number=slot.number - slot.number % per_text + view - 1))
            order[altered], order[position] = order[position], order[altered]
    rows = encoded.embeddings.reshape(len(order), -1, encoded.embeddings.shape[1])
    return replace(encoded, embeddings=select_slots(rows, order).flatten(0, 1))


def _groups(batch: Batch, embedder: Embedder, plan: ViewPlan) -> list[RowGroup]:
    """Splits a batch into groups of rows; slot by slot if some slots repeat the anchor's dropout masks."""
    if batch.context is not None and (plan.embedding_chains or plan.gradient_views or plan.fixed_dropout):
        raise InvalidValueError(
            "encode_views: expected no views of vectors or dropout for spans of a document encoded once, "
            "got some; remove them, or set Spans.context to span"
        )
    if not plan.fixed_dropout:
        return embedder.groups(batch)
    groups: list[RowGroup] = []
    fixed_lengths: list[Tensor] = []
    for number, slot in enumerate(batch.slots):
        rows = (batch.row_slots == number).nonzero().flatten()
        slot_batch = batch.split(rows)
        fixed = plan.chain_name(slot) in plan.fixed_dropout or number == 0
        fixed_lengths += [slot_batch.lengths] if fixed else []
        groups += [
            RowGroup(group.batch, rows[group.rows], masks=group.masks if fixed else fold_key(number, group.masks))
            for group in embedder.groups(slot_batch)
        ]
    if any(not torch.equal(fixed_lengths[0], lengths) for lengths in fixed_lengths[1:]):
        raise InvalidValueError(
            f"FixedDropout: expected rows as long as their anchors on {', '.join(plan.fixed_dropout)}, got rows "
            f"of other lengths. Masks apply to positions; use SameText, and no view that changes a text's "
            f"length"
        )
    return groups


def _recording_input(alter: EmbeddingChange | None, inputs: dict[int, Tensor], number: int) -> EmbeddingChange:
    """Wraps an embedding alteration: detaches its output and records it, only on the first call.

    A group may be computed again in the backward pass.
    """

    def enter(embeddings: Tensor, mask: Tensor) -> Tensor:
        altered = embeddings if alter is None else alter(embeddings, mask)
        leaf = altered.detach().requires_grad_()
        inputs.setdefault(number, leaf)
        return leaf

    return enter


def _compute_groups(groups: Sequence[Callable[[], T]], chunk_tokens: int | None) -> list[T]:
    """Encodes groups of rows in order. If tokens are bounded, checkpoints all groups except the last.

    Checkpointed groups are computed again in the backward pass.
    """
    # The backward pass begins with the last group: its saved activations are one chunk, and needed immediately.
    stored_groups = len(groups) if chunk_tokens is None or not torch.is_grad_enabled() else 1
    return [
        compute()
        if groups_left <= stored_groups
        else checkpoint(compute, use_reentrant=False, preserve_rng_state=False)
        for groups_left, compute in zip(range(len(groups), 0, -1), groups, strict=True)
    ]


def encode_groups(
    batch: Batch,
    groups: Sequence[RowGroup],
    embedder: Embedder,
    alterations: Sequence[EmbeddingChange | None],
    number: int = 0,
) -> Encoded:
    """Encodes a batch group by group, with the altered embeddings of each group.

    Args:
        batch: A whole batch.
        groups: Groups of the batch's rows.
        embedder: Embedder, as for ``encode_views``.
        alterations: Function of each group that alters the embedding output, or None.
        number: Number of the pass. Each pass has its own dropout masks.
    """
    encodes = [
        # The encoder sets the seed itself, so no random state must be stored to draw the same masks again.
        partial(embedder.encode, group, alter, seed=fold_key(batch.seed, rank(), group.masks, number))
        for group, alter in zip(groups, alterations, strict=True)
    ]
    vectors, hidden_tokens, labels = [], [], []
    for group, (pooled, masked) in zip(groups, _compute_groups(encodes, embedder.chunk_tokens), strict=True):
        vectors.append(pooled)
        if group.batch.labels is not None and masked is not None:
            hidden_tokens.append(masked)
            group_labels = group.batch.labels
            labels.append(move_to_device(group_labels[group_labels != NO_LABEL], masked.device))
    pooled = restore_order(vectors, groups)
    return Encoded(
        embeddings=pooled if embedder.head is None else embedder.head(pooled),
        slots=batch.slots,
        text_ids=batch.text_ids,
        target=batch.target_for(pooled),
        masked_hidden=torch.cat(hidden_tokens) if labels else None,
        masked_labels=torch.cat(labels) if labels else None,
        token_logits=embedder.encoder.token_logits,
        rank_sizes=batch.rank_sizes,
        scores=batch.scores_for(pooled),
    )
