"""Batches and modules for one training pass, and its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from architectures import PAIR, encoder_of, ragged
from torch import Tensor

from contrastive_text.core.batch import Batch
from contrastive_text.core.random import RowRandom
from contrastive_text.core.types import NO_LABEL, ROLES, Slot
from contrastive_text.encoders.packing import Layout
from contrastive_text.losses import InfoNCE
from contrastive_text.objectives import Contrastive
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.views import GradientView, View

# The promise in float64: max |dg| <= 1e-10 max |g|.
PROMISE = 1e-10
TRIPLE = (*PAIR, Slot("original", 0))


class ReadsAll(Contrastive):
    """Keeps every slot in the encoding."""

    def __init__(self) -> None:
        super().__init__()
        self.takes = ROLES


class Along(GradientView):
    """Adds the gradient itself, times a size: a wrong scale of it shows."""

    def __init__(self, size: float = 0.5, objective: str | None = None, same_dropout: bool = False) -> None:
        self.size = size
        self.objective = objective
        self.same_dropout = same_dropout

    def __call__(self, embeddings: Tensor, gradient: Tensor, mask: Tensor, rng: RowRandom) -> Tensor:  # noqa: ARG002  # the base's signature
        return embeddings + self.size * gradient


def texts(count: int, slots: tuple[Slot, ...] = PAIR, equal: bool = False) -> Batch:
    """Rows of 3 to 9 tokens; those of an example have one length, or with ``equal`` one text."""
    noise = torch.Generator().manual_seed(count)
    lengths = torch.randint(3, 10, (count,), generator=noise).tolist()
    ids = torch.randint(5, 60, (len(slots), count, 9), generator=noise).tolist()
    rows = [tuple(ids[0 if equal else slot][i][:n]) for slot in range(len(slots)) for i, n in enumerate(lengths)]
    batch = ragged(*rows, slots=slots)
    return batch.replace(text_ids=torch.arange(count).repeat(len(slots))) if equal else batch


def masked(batch: Batch) -> Batch:
    """Each original's second token is to be predicted."""
    labels = torch.full_like(batch.ids, NO_LABEL)
    starts = (batch.lengths.cumsum(0) - batch.lengths)[batch.by_role("original")]
    labels[starts + 1] = batch.ids[starts + 1]
    return batch.replace(labels=labels)


def module_of(
    views: dict[str, list[View]], dropout: float = 0.0, layout: Layout = "auto", **parts: Any
) -> ContrastiveModule:
    encoder = encoder_of("bert", dropout=dropout, layout=layout).train()
    return ContrastiveModule(encoder, views=views, **parts).double()


def contrast(vectors: Tensor, count: int) -> Tensor:
    """The loss of anchors and positives that come first among the rows."""
    loss: Tensor = InfoNCE()(vectors[:count], vectors[count : 2 * count])
    return loss


def all_gradients(module: ContrastiveModule, batch: Batch, names: Sequence[str]) -> dict[str, Tensor]:
    """Returns the gradient of the sum of some objectives, by parameter."""
    module.zero_grad()
    encoded = module.encode(batch)
    torch.stack([module.objective_value(encoded, name)[0] for name in names]).sum().backward()
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
