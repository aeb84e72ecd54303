"""Base class of encoders, and the path from the rows of a batch to embeddings: groups, encoder, pooler, head."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from types import MappingProxyType
from typing import ClassVar, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from contrastive_text.core.batch import Batch, Hidden, HostCopies, move_to_device
from contrastive_text.core.config.specs import describe
from contrastive_text.core.errors import InvalidTextError, InvalidValueError
from contrastive_text.core.random import hash_rows, seed_torch
from contrastive_text.core.similarity import at_least_float32
from contrastive_text.core.types import NO_LABEL, EmbeddingChange, Role
from contrastive_text.encoders.packing import FixedLayout, equalize_groups, natural_positions, split_rows
from contrastive_text.poolers import Pooler

training_threads: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
"""Encoder -> identity of the thread that last ran the encoder in training mode with gradients."""


class Encoder(nn.Module, ABC):
    """Base class of encoders, which convert token ids to token vectors.

    A custom encoder sets at least ``features`` and ``vocabulary_size``.

    Attributes:
        features: Width D of the token vectors.
        vocabulary_size: Number of entries of the token table.
        tokenizer: Tokenizer of the encoder; None until ``TextDataModule`` has trained one on the corpus.
        max_length: Longest training row before views, in tokens with special tokens; None for ``limit``.
        limit: Longest row that the network takes; None for no limit.
        takes_embedding_views: Whether the network has an embedding output that ``alter`` can change.
        row_end: Token that was added to the end of rows because the tokenizer adds none; None if it wasn't.
        takes_types: Whether the network reads ``Batch.types``, the number of a token's text in a text pair.
        dropout_in_effect: Dropout probabilities by name, as the run's summary prints them.
        base_identity: Identity of the weights under adapters; None without adapters.
        equalize_groups: Whether all ranks must run the network equally often, because each holds a part of its
            weights.
        pools: Whether the encoder returns one vector per text in place of its token vectors.
        is_sparse: Whether these vectors are weights of the tokens of the vocabulary, most of which are 0.
        plain_role: Role under which texts are encoded that are neither queries nor documents.
    """

    features: int
    vocabulary_size: int
    tokenizer: PreTrainedTokenizerBase | None = None
    max_length: int | None = None
    limit: int | None = None
    row_end: str | None = None
    takes_embedding_views: bool = False
    takes_types: bool = False
    dropout_in_effect: Mapping[str, float] = MappingProxyType({})
    base_identity: str | None = None
    equalize_groups: bool = False
    pools: ClassVar[bool] = False
    is_sparse: bool = False
    plain_role: Role = "anchor"

    @abstractmethod
    def forward(
        self, batch: Batch, alter: EmbeddingChange | None = None, layers: tuple[int, ...] = (-1,)
    ) -> Hidden:
        """Encodes the rows of a batch to token vectors.

        Args:
            batch: Ragged rows.
            alter: Applied to the embedding output, (S, L, D) with mask (S, L), before the first block.
            layers: Layers to return, numbered as in ``Hidden``.

        Returns:
            Token vectors, (S, L, D) per layer, and the mask, (S, L).
        """

    def layout_on(self, device: torch.device) -> tuple[FixedLayout, str]:
        """Returns the layout of rows (packed, bucketed or padded) on a device, and the reason for it.

        Every network supports buckets, which avoid most of the padding on a CPU. On a GPU one block is faster.
        """
        if device.type == "cpu":
            return "bucketed", f"the fastest on a CPU that {type(self).__name__} takes"
        return "padded", "one block of rows for a GPU"

    def limit_of(self, kind: str | None) -> int | None:  # noqa: ARG002  # for encoders with a network for each kind
        """Returns the longest row of queries or documents that the network takes; None for no limit."""
        return self.limit

    def row_parts(self, batch: Batch) -> list[Tensor]:
        """Returns the numbers of the rows of each part of a batch that needs its own groups, on the host."""
        return [torch.arange(len(batch))]

    def blocks(
        self, batch: Batch, alter: EmbeddingChange | None = None, layers: tuple[int, ...] = (-1,)
    ) -> list[Hidden]:
        """Returns the token vectors of ``forward`` in blocks that cover the rows in order, with little padding.

        Args:
            batch: Rows without padding. Rows of equal length next to each other make few blocks.
            alter: As for ``forward``.
            layers: As for ``forward``.
        """
        return [self(batch, alter=alter, layers=layers)]

    def token_vectors(self, batch: Batch, alter: EmbeddingChange | None = None) -> Tensor:
        """Returns the vectors of the last layer of all tokens, one row of the batch after another, (T, D)."""
        return torch.cat([block.tokens(-1) for block in self.blocks(batch, alter=alter)])

    def reads_positions(self) -> bool:
        """Returns whether ``Batch.positions`` change the token vectors."""
        return False

    def is_causal(self) -> bool:
        """Returns whether the encoder is causal: tokens don't attend to later tokens."""
        return False

    def add_tokens(self, tokens: Sequence[str]) -> None:
        """Adds tokens to the tokenizer's vocabulary unless it has them, each with a new embedding."""
        if tokens:
            raise InvalidValueError(
                f"{type(self).__name__}: expected views without new tokens, got {', '.join(tokens)}"
            )

    def end_rows(self) -> None:  # most tokenizers do that already
        """Makes the tokenizer end rows with a special token. Called once if a pooler reads the last token."""

    def build_token_head(self) -> None:
        """Builds the head that predicts masked tokens. Called once if an objective or the pooler needs it."""
        raise InvalidValueError(
            f"{type(self).__name__}: expected a network with a masked-language-model head, got one without it; "
            "use another encoder, or remove MaskedLM and SpladePooler"
        )

    def clone(self) -> Encoder:
        """Returns a copy of the encoder with its own weights, equal at first, and without a token head."""
        return deepcopy(self)

    def base_weights(self) -> list[nn.Parameter]:
        """Returns the weights under adapters, which are frozen, shared with copies, and not in checkpoints."""
        return []

    def pretrained_pooler(self) -> nn.Linear | None:
        """Returns the dense layer of the pretrained model's own pooler, (D, D); None if it has none."""
        return None

    def token_logits(self, hidden: Tensor) -> Tensor:
        """Returns the logits of all tokens of the vocabulary for token vectors, (M, D) -> (M, V)."""
        raise NotImplementedError


_JOINED_FIELDS = ("ids", "positions", "types", "lengths", "row_slots", "draw_keys", "text_ids", "unpooled")
"""Fields of a batch to which rows of templates are appended."""


class RowGroup(NamedTuple):
    """Group of rows that the network encodes together.

    Args:
        batch: The rows.
        rows: Indices of the rows in the whole batch, (n,), on the host.
        masks: Number of their dropout masks. Two groups with the same number have the same masks.
    """

    batch: Batch
    rows: Tensor
    masks: int


class Embedder(NamedTuple):
    """An encoder with its pooler and head, and a bound on the number of tokens that they process at a time.

    Args:
        encoder: Network from token ids to token vectors.
        pooler: Part from token vectors to one vector per text.
        head: Layers after the pooler that inference keeps, or None.
        chunk_tokens: Largest number of tokens that are encoded together; None for no bound.
    """

    encoder: Encoder
    pooler: Pooler
    head: nn.Module | None = None
    chunk_tokens: int | None = None

    @property
    def width(self) -> int:
        """Number of features of the pooler's vectors, before the head."""
        if self.pooler.reads_token_logits:
            return self.encoder.vocabulary_size
        return self.pooler.width(self.encoder.features)

    @property
    def is_sparse(self) -> bool:
        """True if the vectors are weights of the tokens of the vocabulary, most of which are 0."""
        return (self.pooler.reads_token_logits or self.encoder.is_sparse) and self.head is None

    def groups(self, batch: Batch) -> list[RowGroup]:
        """Splits a batch by the encoder's layout and the bound on tokens, long rows first.

        Rows that are spans of longer rows are grouped with them.

        If ranks hold parts of the encoder's weights, all of them make equally many groups (``equalize_groups``).
        """
        if (context := batch.context) is not None:
            whole = context.keep(torch.unique(context.numbers))
            groups = self.groups(whole.rows)
            owned = [torch.isin(whole.numbers, group.rows).nonzero().flatten() for group in groups]
            return [
                RowGroup(batch.split(rows).replace(context=whole.split(rows).keep(group.rows)), rows, group.masks)
                for group, rows in zip(groups, owned, strict=True)
            ]
        layout, _ = self.encoder.layout_on(batch.ids.device)
        row_groups = [
            rows[group]
            for rows in self.encoder.row_parts(batch)
            for group in split_rows(batch.lengths[rows], layout, self.chunk_tokens)
        ]
        if self.encoder.equalize_groups and (self.chunk_tokens is not None or layout == "bucketed"):
            row_groups = equalize_groups(row_groups, batch.ids.device)  # otherwise all ranks have one part
        return [RowGroup(batch.split(rows), rows, masks=number) for number, rows in enumerate(row_groups)]

    def encode(
        self, group: RowGroup, alter: EmbeddingChange | None = None, seed: int | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Encodes a group of rows and pools the token vectors.

        Args:
            group: Rows that go through the network together.
            alter: Applied to the embedding output; see ``Encoder.forward``.
            seed: Seed of the group's dropout masks; None if they follow torch's generator, or there are none.

        Returns:
            A vector for each row, (n, D), before the head. If the rows have labels, also the vectors of the
            labeled tokens in the last layer, (M, D), otherwise None.
        """
        if seed is not None:
            seed_torch(seed, group.batch.ids.device)
        layers, labels = self.pooler.layers, group.batch.labels
        if labels is not None:
            layers = tuple(dict.fromkeys((*layers, -1)))
        batch, template_of = group.batch, None
        if self.pooler.template_bias:
            batch, template_of = with_templates(batch)
        source = batch if batch.context is None else batch.context.rows
        blocks = self.encoder.blocks(source, alter=alter, layers=layers)
        if batch.context is not None:
            blocks = [batch.context.cut(blocks)]
        readable = (
            blocks if batch.unpooled is None or self.encoder.pools else mask_unpooled(blocks, batch.unpooled)
        )
        if self.pooler.reads_token_logits:
            readable = [replace(block, token_logits=self.encoder.token_logits) for block in readable]
        pooled = _pooled(self.pooler, readable, group.rows)
        if template_of is not None:
            pooled = (
                pooled[: len(group.batch)]
                - pooled[len(group.batch) :][move_to_device(template_of, pooled.device)]
            )
        if labels is None:
            return pooled, None
        tokens = torch.cat([block.tokens(-1) for block in blocks])[: len(labels)]
        return pooled, tokens[move_to_device((labels != NO_LABEL).nonzero().flatten(), tokens.device)]

    def pool(self, batch: Batch) -> Tensor:
        """Returns the vectors of inference for a batch, without any view, (S, D)."""
        groups = self.groups(batch)
        pooled = restore_order([self.encode(group)[0] for group in groups], groups)
        return pooled if self.head is None else self.head(pooled)

    def token_vectors(self, batch: Batch) -> list[Tensor]:
        """Returns the last layer's vectors of the tokens of each row, (L, D), in the order of the rows."""
        vectors: dict[int, Tensor] = {}
        for group in self.groups(batch):
            tokens = at_least_float32(self.encoder.token_vectors(group.batch))
            vectors |= zip(group.rows.tolist(), torch.split(tokens, group.batch.lengths.tolist()), strict=True)
        return [vectors[row] for row in range(len(batch))]


def _pooled(pooler: Pooler, blocks: Sequence[Hidden], rows: Tensor) -> Tensor:
    """Returns a vector for each row of a group, (n, D). An error names the row's number in the whole batch."""
    vectors, start = [], 0
    for block in blocks:
        try:
            vectors.append(pooler(block))
        except InvalidTextError as error:
            raise error.renumbered(int(rows[start + error.number])) from None
        start += len(block.mask)
    return torch.cat(vectors)


def restore_order(vectors: Sequence[Tensor], groups: Sequence[RowGroup]) -> Tensor:
    """Concatenates the vectors of groups of rows in the order of the batch's rows, (S, D)."""
    order = torch.cat([group.rows for group in groups]).argsort()
    return torch.cat(list(vectors))[move_to_device(order, vectors[0].device)]


def mask_unpooled(blocks: Sequence[Hidden], unpooled: Tensor) -> list[Hidden]:
    """Returns token vectors whose masks exclude the tokens of a prompt that the pooler skips.

    Args:
        blocks: Token vectors of S rows, in order.
        unpooled: Number of tokens to exclude at the start of each row, (S,), on the host.
    """

    def read(mask: Tensor, excluded: Tensor) -> Tensor:
        return mask & (mask.cumsum(dim=1) > move_to_device(excluded, mask.device).unsqueeze(1))

    unpooled_by_block = torch.split(unpooled, [len(block.mask) for block in blocks])
    return [
        replace(
            block,
            mask=read(block.mask, excluded),
            host_copies=block.host_copies
            and block.host_copies._replace(mask=read(block.host_copies.mask, excluded)),
        )
        for block, excluded in zip(blocks, unpooled_by_block, strict=True)
    ]


def with_templates(batch: Batch) -> tuple[Batch, Tensor]:
    """Appends templates without their texts as rows at the end of a batch.

    Such a row has only the tokens around a text, at the same positions as around the text. There is a row for
    each template and each length of a text. Source: Jiang et al. 2022, PromptBERT
    (https://arxiv.org/abs/2201.04337), "template denoising", and ``get_delta`` of its authors' code.

    Args:
        batch: S rows, some of them with template tokens around their texts.

    Returns:
        S + B rows without labels, and the number of each row's template, from 0 to B - 1, (S,), on the host.

    Raises:
        ValueError: No text has a template.

    Example:
        >>> ids, lengths = torch.tensor([1, 7, 2, 3, 1, 8, 9, 2, 3, 1, 6, 2, 3]), torch.tensor([4, 5, 4])
        >>> keys, around = torch.arange(3), torch.tensor([[1, 2]] * 3)
        >>> batch = Batch(ids, lengths, (), torch.zeros(3).long(), keys, keys, template_lengths=around)
        >>> whole, template_of = with_templates(batch)
        >>> own = int(lengths.sum())
        >>> template_of.tolist(), whole.ids[own:].tolist(), whole.positions[own:].tolist()
        ([0, 1, 0], [1, 2, 3, 1, 2, 3], [0, 2, 3, 0, 3, 4])
    """
    if batch.template_lengths is None:
        raise InvalidValueError(
            "MaskTokenPooler.template_bias: expected a template around texts, got texts without one; set "
            "model.prompts, or remove template_bias"
        )
    (before, after), lengths = batch.template_lengths.unbind(dim=1), batch.lengths
    positions, text_lengths = natural_positions(lengths), lengths - before - after
    row = torch.repeat_interleave(torch.arange(len(batch)), lengths)
    template_tokens = ((positions < before[row]) | (positions >= (lengths - after)[row])).nonzero().flatten()
    device, host_ids = batch.ids.device, batch.host_ids
    token_indices = move_to_device(template_tokens, device)
    template_copies = host_ids._replace(ids=host_ids.ids[template_tokens])
    templates = batch.replace(
        ids=batch.ids[token_indices],
        lengths=before + after,
        positions=move_to_device(positions[template_tokens], device),
        types=None if batch.types is None else batch.types[token_indices],
        labels=None,
        host_copies=None if batch.host_copies is None else template_copies,
    )
    contents = torch.stack([text_lengths, hash_rows(template_copies.ids, templates.lengths)], dim=1)
    _, template_of = torch.unique(contents, dim=0, return_inverse=True)
    first = torch.full_like(lengths, len(batch)).scatter_reduce(0, template_of, torch.arange(len(batch)), "amin")
    distinct_templates = templates.split(first[: int(template_of.max()) + 1])
    # The rows belong to no slot, so that no view alters them.
    distinct_templates = distinct_templates.replace(row_slots=torch.full_like(distinct_templates.row_slots, -1))
    texts = batch if batch.positions is not None else batch.replace(positions=move_to_device(positions, device))
    fields = {
        name: torch.cat([getattr(texts, name), getattr(distinct_templates, name)])
        for name in _JOINED_FIELDS
        if getattr(texts, name) is not None
    }
    host_copies = None
    if texts.host_copies is not None and distinct_templates.host_copies is not None:
        host_copies = HostCopies(
            *(
                torch.cat(contents)
                for contents in zip(texts.host_copies, distinct_templates.host_copies, strict=True)
            )
        )
    return texts.replace(**fields, labels=None, host_copies=host_copies), template_of


def check_template_bias(pooler: Pooler, encoder: Encoder) -> None:
    """Checks that a pooler with ``template_bias`` has an encoder that reads positions.

    Raises:
        ValueError: The architecture ignores positions.
    """
    if pooler.template_bias and not encoder.reads_positions():
        raise InvalidValueError(
            f"{type(pooler).__name__}.template_bias: expected an architecture that reads positions, got "
            f"{describe(encoder)}, which ignores them; drop template_bias, or use another encoder"
        )
