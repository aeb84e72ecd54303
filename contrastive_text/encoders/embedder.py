"""What a text goes through on its way to an embedding, part by part of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from contrastive_text.core.types import Batch
from contrastive_text.encoders import Encoder
from contrastive_text.encoders.layouts import split_rows
from contrastive_text.poolers import Pooler


class RowGroup(NamedTuple):
    """Rows that go through the network together.

    Args:
        batch: The rows.
        rows: Where they stand in the whole batch, (n,).
        masks: Number that their dropout masks have; two parts of one number have the same.
    """

    batch: Batch
    rows: Tensor
    masks: int


class Embedder(NamedTuple):
    """An encoder, its pooler, and how much of a batch they take at a time.

    Args:
        encoder: From ragged rows to token vectors.
        pooler: From token vectors to one vector per text.
        head: Layers behind the pooler that inference keeps; None for none.
        chunk_tokens: Most tokens that are encoded together; None for no bound.
    """

    encoder: Encoder
    pooler: Pooler
    head: nn.Module | None = None
    chunk_tokens: int | None = None

    def parts(self, batch: Batch) -> list[RowGroup]:
        """Splits a batch as the encoder's layout and the bound on tokens want it, long rows first."""
        layout, _ = self.encoder.layout_on(batch.lengths.device)
        split = split_rows(batch.lengths, layout, self.chunk_tokens)
        return [RowGroup(batch.split(rows), rows, masks=number) for number, rows in enumerate(split)]

    def pool(self, batch: Batch) -> Tensor:
        """Returns the vectors that inference sees, without any view, (S, D)."""
        parts = self.parts(batch)
        vectors = []
        for part in parts:
            blocks = self.encoder.blocks(part.batch, layers=self.pooler.layers)
            vectors += [self.pooler(block) for block in blocks]
        pooled = in_order(vectors, parts)
        return pooled if self.head is None else self.head(pooled)


def in_order(vectors: Sequence[Tensor], parts: Sequence[RowGroup]) -> Tensor:
    """Returns the rows of the parts in the batch's order, (S, D)."""
    return torch.cat(list(vectors))[torch.cat([part.rows for part in parts]).argsort()]
