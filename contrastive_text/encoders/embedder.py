"""What a text goes through on its way to an embedding, group by group of a batch's rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from contrastive_text.core.batch import Batch
from contrastive_text.core.errors import InvalidTextError
from contrastive_text.core.host import sent
from contrastive_text.core.random import seed_torch
from contrastive_text.core.types import NO_LABEL, Alter, Hidden
from contrastive_text.encoders.base import Encoder
from contrastive_text.encoders.layouts import in_lockstep, split_rows
from contrastive_text.encoders.templates import with_templates
from contrastive_text.poolers import Pooler


class RowGroup(NamedTuple):
    """Rows that go through the network together.

    Args:
        batch: The rows.
        rows: Where they stand in the whole batch, (n,), on the host.
        masks: Number that their dropout masks have; two groups of one number have the same.
    """

    batch: Batch
    rows: Tensor
    masks: int


class Embedder(NamedTuple):
    """An encoder, its pooler, and how much of a batch they take at a time.

    Args:
        encoder: From ragged rows to token vectors.
        pooler: From token vectors to one vector per text.
        head: Layers after the pooler that inference keeps; None for none.
        chunk_tokens: Most tokens that are encoded together; None for no bound.
    """

    encoder: Encoder
    pooler: Pooler
    head: nn.Module | None = None
    chunk_tokens: int | None = None

    def groups(self, batch: Batch) -> list[RowGroup]:
        """Splits a batch as the encoder's layout and the bound on tokens want it, long rows first.

        Where ranks hold parts of the encoder's weights, all of them make as many groups (``in_lockstep``).
        """
        layout, _ = self.encoder.layout_on(batch.ids.device)
        split = split_rows(batch.lengths, layout, self.chunk_tokens)
        if self.encoder.in_lockstep and (self.chunk_tokens is not None or layout == "bucketed"):
            split = in_lockstep(split, batch.ids.device)  # otherwise all ranks have one part
        return [RowGroup(batch.split(rows), rows, masks=number) for number, rows in enumerate(split)]

    def encode(
        self, group: RowGroup, alter: Alter | None = None, seed: int | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Returns what the encoder and the pooler make of a group.

        Args:
            group: Rows that go through the network together.
            alter: Applied to the embedding output; see ``Encoder.forward``.
            seed: Of the group's dropout masks; None where they follow torch's generator, or there are none.

        Returns:
            A vector for each row, (n, D), before the head; and, where the rows have labels, the vectors of the
            labelled tokens in the last layer, (M, D), otherwise None.
        """
        if seed is not None:
            seed_torch(seed, group.batch.ids.device)
        layers, labels = self.pooler.layers, group.batch.labels
        if labels is not None:
            layers = tuple(dict.fromkeys((*layers, -1)))
        batch, template_of = group.batch, None
        if self.pooler.template_bias:
            batch, template_of = with_templates(batch)
        blocks = self.encoder.blocks(batch, alter=alter, layers=layers)
        read = blocks if batch.unpooled is None else pooled_part(blocks, batch.unpooled)
        pooled = _pooled(self.pooler, read, group.rows)
        if template_of is not None:
            pooled = pooled[: len(group.batch)] - pooled[len(group.batch) :][sent(template_of, pooled.device)]
        if labels is None:
            return pooled, None
        tokens = torch.cat([block.tokens(-1) for block in blocks])[: len(labels)]
        return pooled, tokens[sent((labels != NO_LABEL).nonzero().flatten(), tokens.device)]

    def pool(self, batch: Batch) -> Tensor:
        """Returns the vectors that inference sees, without any view, (S, D)."""
        groups = self.groups(batch)
        pooled = in_order([self.encode(group)[0] for group in groups], groups)
        return pooled if self.head is None else self.head(pooled)


def _pooled(pooler: Pooler, blocks: Sequence[Hidden], rows: Tensor) -> Tensor:
    """Returns a vector for each row, (n, D); an error has the row's number in the whole batch."""
    vectors, start = [], 0
    for block in blocks:
        try:
            vectors.append(pooler(block))
        except InvalidTextError as error:
            raise error.at(int(rows[start + error.number])) from None
        start += len(block.mask)
    return torch.cat(vectors)


def in_order(vectors: Sequence[Tensor], groups: Sequence[RowGroup]) -> Tensor:
    """Returns the rows of groups in the batch's order, (S, D)."""
    places = torch.cat([group.rows for group in groups]).argsort()
    return torch.cat(list(vectors))[sent(places, vectors[0].device)]


def pooled_part(blocks: Sequence[Hidden], unpooled: Tensor) -> list[Hidden]:
    """Returns token vectors as poolers read them, without the tokens of prompts that are left out.

    Args:
        blocks: Of S rows, in order.
        unpooled: Tokens that are left out at the start of each row, (S,), on the host.
    """

    def read(mask: Tensor, left_out: Tensor) -> Tensor:
        return mask & (mask.cumsum(dim=1) > sent(left_out, mask.device).unsqueeze(1))

    each = torch.split(unpooled, [len(block.mask) for block in blocks])
    return [
        replace(
            block,
            mask=read(block.mask, left_out),
            on_host=block.on_host and block.on_host._replace(mask=read(block.on_host.mask, left_out)),
        )
        for block, left_out in zip(blocks, each, strict=True)
    ]
