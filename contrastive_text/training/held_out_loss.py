"""Losses on held-out rows: each objective's own, of whole batches over all ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from contrastive_text.core.distributed import gather_all, gather_sizes
from contrastive_text.core.types import Encoded
from contrastive_text.losses import reduce_terms
from contrastive_text.objectives import Objective


class HeldOutLosses:
    """Gathers the losses of batches of held-out rows; the mean over batches is the loss.

    Rows are encoded by each rank for itself and compared with those of all ranks, so that a batch has the loss
    that one process would find: its terms are divided by the rows of all, as those of a step of training are.

    Args:
        objectives: Number of a loader -> the objectives whose loss is taken of its rows, by name.
    """

    def __init__(self, objectives: Mapping[int, Mapping[str, Objective]]) -> None:
        self.objectives = {number: dict(parts) for number, parts in objectives.items()}
        self._found: dict[str, list[Tensor]] = {name: [] for parts in objectives.values() for name in parts}

    def add(self, encoded: Encoded, number: int) -> None:
        """Adds a batch of the loader of this number: what its objectives read of this rank's rows."""
        whole = of_all_ranks(encoded)
        for name, objective in self.objectives[number].items():
            terms = objective(whole)
            value = reduce_terms(terms.total.detach(), max(int(terms.count), 1), terms.reduction)
            self._found[name].append(value)

    def figures(self) -> dict[str, Tensor]:
        """Returns ``OBJECTIVE/loss``, as training logs it: no percentage, and without the objective's weight."""
        return {f"{name}/loss": torch.stack(values).mean() for name, values in self._found.items() if values}


def of_all_ranks(encoded: Encoded) -> Encoded:
    """Returns the rows of all ranks, in rank order within each slot; without a process group the same."""
    slots = len(encoded.slots)
    examples = len(encoded.embeddings) // slots
    sizes = gather_sizes(examples, encoded.embeddings.device, encoded.shares)
    rows = [encoded.embeddings, encoded.text_ids, *encoded.guides.values()]
    by_example = [each.reshape(slots, examples, *each.shape[1:]).transpose(0, 1) for each in rows]
    targets = [] if encoded.target is None else [encoded.target]
    every = gather_all([*by_example, *targets], sizes)
    vectors, ids, *guides = (each.transpose(0, 1).flatten(0, 1) for each in every[: len(rows)])
    return replace(
        encoded,
        embeddings=vectors,
        text_ids=ids,
        target=every[-1] if targets else None,
        guides=dict(zip(encoded.guides, guides, strict=True)),
        shares=None,
    )
