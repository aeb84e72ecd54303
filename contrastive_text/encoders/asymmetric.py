"""Encoder with one network for queries and another for documents, each with its own pooler and head."""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import deepcopy
from typing import Any, ClassVar, Literal, Self, TypeAlias, TypeGuard

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from contrastive_text.core.batch import Batch, Hidden, move_to_device
from contrastive_text.core.config.specs import describe
from contrastive_text.core.errors import InvalidValueError, at_least, one_of
from contrastive_text.core.types import EmbeddingChange, Role
from contrastive_text.encoders.base import Embedder, Encoder, RowGroup, check_template_bias
from contrastive_text.encoders.packing import FixedLayout, natural_positions
from contrastive_text.encoders.static import SparseStaticEncoder, StaticEncoder
from contrastive_text.encoders.transformer import TransformerEncoder
from contrastive_text.heads import Head, build_head
from contrastive_text.poolers import MeanPooler, Pooler

Side: TypeAlias = Literal["query", "document"]
"""Name of one of the two encoders of an ``AsymmetricEncoder``."""

SIDES: tuple[Side, Side] = ("query", "document")

QUERY_ROLES: tuple[Role, ...] = ("anchor", "original")
"""Roles of texts that the query encoder encodes. The document encoder encodes the other roles."""


class AsymmetricEncoder(Encoder):
    """Two encoders: one encodes queries (anchors), the other encodes documents (positives and negatives).

    Both vectors have the same width, so that any objective compares them. A text is tokenized once, so both
    encoders need the same vocabulary. The encoder returns the vector of a text in place of its token vectors:
    leave ``model.pooler`` at its default, and set the poolers here.

    Also known as an asymmetric dual encoder (Dong et al. 2022, https://arxiv.org/abs/2204.07120, section 2).
    The saved model is a ``Router`` of sentence-transformers with the routes ``query`` and ``document``.

    Args:
        model_name_or_path: Folder or hub name of a transformer that encodes documents, in place of ``document``.
        query: Encoder of queries. None for a ``StaticEncoder`` that is computed from ``model_name_or_path``,
            without PCA: its vectors begin close to those of documents. With ``SpladePooler`` for documents, None
            is a ``SparseStaticEncoder``.
        document: Encoder of documents.
        query_pooler: Pooler of queries; None for ``MeanPooler``.
        document_pooler: Pooler of documents; None for ``MeanPooler``.
        query_head: Head after the query pooler, part of the saved model (``train_only: false``); None for none.
        document_head: Head after the document pooler; None for none.
        frozen: Side that isn't trained and has no dropout; None to train both.
        default: Side of texts that are neither queries nor documents.
        max_length: Largest number of tokens of a training row of either side; None for the smaller limit of both.

    Raises:
        ValueError: The vectors have different widths, only those of one side are sparse, the tokenizers or the
            vocabularies differ, a head is train-only, or an encoder has adapters or two sides itself.

    Example:
        >>> from contrastive_text import TransformerEncoder
        >>> tiny = {"model_type": "bert", "vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 2,
        ...         "num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 12}
        >>> small = TransformerEncoder(config=tiny | {"num_hidden_layers": 1})
        >>> encoder = AsymmetricEncoder(query=small, document=TransformerEncoder(config=tiny))
        >>> encoder.features, encoder.plain_role
        (8, 'positive')
    """

    pools: ClassVar[bool] = True
    adapters = None

    def __init__(
        self,
        model_name_or_path: str | None = None,
        query: Encoder | None = None,
        document: Encoder | None = None,
        query_pooler: Pooler | None = None,
        document_pooler: Pooler | None = None,
        query_head: Head | None = None,
        document_head: Head | None = None,
        frozen: Side | None = None,
        default: Side = "document",
        max_length: int | None = None,
    ) -> None:
        super().__init__()
        if (model_name_or_path is None) == (document is None) or (query is None and document is not None):
            given = {"model_name_or_path": model_name_or_path, "document": document, "query": query}
            names = ", ".join(name for name, value in given.items() if value is not None)
            raise InvalidValueError(
                f"encoder: expected model_name_or_path, or document with query, got {names or 'neither'}; give "
                "one encoder of documents"
            )
        self.model_name_or_path = None  # the two encoders name it
        document = document or TransformerEncoder(model_name_or_path)
        self.query_pooler, self.document_pooler = query_pooler or MeanPooler(), document_pooler or MeanPooler()
        if query is None and self.document_pooler.reads_token_logits:
            query = SparseStaticEncoder(str(model_name_or_path))
        query = query or StaticEncoder(model_name_or_path, pca=False)
        if isinstance(query, SparseStaticEncoder):
            query.widen(document.vocabulary_size)
        self.query, self.document = query, document
        self.query_head, self.document_head = query_head, document_head
        self.frozen = None if frozen is None else one_of("encoder.frozen", frozen, Side)
        self.default = one_of("encoder.default", default, Side)
        at_least("encoder.max_length", max_length, 3, "null is the limit of the encoders")
        self.plain_role = "anchor" if default == "query" else "positive"
        widths = {side: self._build_side(side) for side in SIDES}
        sparse = {side: Embedder(*self.parts(side)).is_sparse for side in SIDES}
        if sparse["query"] != sparse["document"]:
            side = next(side for side in SIDES if sparse[side])
            raise InvalidValueError(
                f"encoder: expected vectors of one kind, got sparse vectors of the {side} encoder only; set "
                "SpladePooler or SparseStaticEncoder on both sides, or on none"
            )
        self.is_sparse = sparse["document"]
        if widths["query"] != widths["document"]:
            raise InvalidValueError(
                f"encoder: expected vectors of queries and documents of one width, got {widths['query']} and "
                f"{widths['document']} features; set encoder.query_head, such as a StackHead with a linear layer"
            )
        _check_vocabularies(query, document)
        self._specials = {side: _special_tokens(self.parts(side)[0].tokenizer) for side in SIDES}
        self.features, self.vocabulary_size = widths["query"], document.vocabulary_size
        lengths = [max_length, query.max_length, document.max_length]
        self.max_length = min((length for length in lengths if length is not None), default=None)
        self.limit = min((limit for limit in (query.limit, document.limit) if limit is not None), default=None)
        trained = [side for side in SIDES if side != self.frozen]
        self.takes_embedding_views = all(self.parts(side)[0].takes_embedding_views for side in SIDES)
        self.takes_types = query.takes_types or document.takes_types
        self.dropout_in_effect = {
            f"{side} {name}": rate
            for side in trained
            for name, rate in self.parts(side)[0].dropout_in_effect.items()
        }
        self.train()

    def _build_side(self, side: Side) -> int:
        """Builds the head of a side, freezes the side on request, and returns the width of its vectors."""
        encoder, pooler, head = self.parts(side)
        place = f"encoder.{side}"
        is_asymmetric = isinstance(encoder, AsymmetricEncoder)
        if is_asymmetric or encoder.base_identity is not None:
            got = "two sides" if is_asymmetric else "adapters"
            raise InvalidValueError(
                f"{place}: expected one encoder without adapters, got {type(encoder).__name__} with {got}; give "
                "a plain encoder, or merge the adapters into its weights first"
            )
        check_template_bias(pooler, encoder)
        if encoder.pools and type(pooler) is not MeanPooler:
            raise InvalidValueError(
                f"{place}_pooler: expected none, because {type(encoder).__name__} pools, got {describe(pooler)}; "
                "remove it"
            )
        if pooler.reads_token_logits and getattr(encoder, "token_head", None) is None:
            encoder.build_token_head()
        if head is not None and head.train_only:
            raise InvalidValueError(
                f"{place}_head: expected a head with train_only: false, because the saved model keeps it, got "
                f"{type(head).__name__} with true; set train_only: false"
            )
        width = build_head(head, Embedder(encoder, pooler).width)
        if side == self.frozen:
            for part in filter(None, self.parts(side)):
                part.requires_grad_(False)
        return width

    def parts(self, side: Side) -> tuple[Encoder, Pooler, Head | None]:
        """Returns the encoder, pooler and head of a side."""
        if side == "query":
            return self.query, self.query_pooler, self.query_head
        return self.document, self.document_pooler, self.document_head

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        """Tokenizer of all texts; None until it is learned from the corpus."""
        return self.query.tokenizer if self._specials["document"] == _NONE else self.document.tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: PreTrainedTokenizerBase | None) -> None:
        self.query.tokenizer = self.document.tokenizer = tokenizer

    @property
    def row_end(self) -> str | None:  # type: ignore[override]  # that of the document encoder
        """Token that was added to the end of rows; see ``Encoder``."""
        return self.document.row_end

    def train(self, mode: bool = True) -> Self:
        """Sets training mode, except for the frozen side."""
        super().train(mode)
        if mode and self.frozen is not None:
            for part in filter(None, self.parts(self.frozen)):
                part.eval()
        return self

    def limit_of(self, kind: str | None) -> int | None:
        """Returns the longest row of queries or documents; for None, no less than either."""
        limits = {
            side: None if limit is None else limit + self.removed(side)
            for side in SIDES
            for limit in (self.parts(side)[0].limit,)
        }
        if kind in limits:
            return limits["query" if kind == "query" else "document"]
        return None if None in limits.values() else max(limit for limit in limits.values() if limit is not None)

    def removed(self, side: Side) -> int:
        """Returns the number of special tokens of a row that the encoder of a side doesn't read."""
        other: Side = "document" if side == "query" else "query"
        return 0 if self._specials[side] != _NONE else sum(map(len, self._specials[other]))

    def row_parts(self, batch: Batch) -> list[Tensor]:
        """Returns the rows of the query encoder and those of the document encoder; see ``Encoder.row_parts``."""
        is_query = torch.tensor([slot.role in QUERY_ROLES for slot in batch.slots])[batch.row_slots]
        return [rows for of_side in (is_query, ~is_query) if len(rows := of_side.nonzero().flatten())]

    def layout_on(self, device: torch.device) -> tuple[FixedLayout, str]:
        """Returns the layout of rows that both encoders take; see ``Encoder.layout_on``."""
        layouts = {self.parts(side)[0].layout_on(device) for side in SIDES}
        if len({layout for layout, _ in layouts}) == 1:
            return next(iter(layouts))
        return super().layout_on(device)

    def forward(
        self, batch: Batch, alter: EmbeddingChange | None = None, layers: tuple[int, ...] = (-1,)
    ) -> Hidden:
        """Encodes rows of one side, or of both without ``alter``, to one vector each.

        Returns:
            The vectors in place of token vectors, (S, 1, D), and a mask that is True, (S, 1).

        Raises:
            ValueError: A pooler that reads other layers than the last.
        """
        if layers != (-1,):
            raise InvalidValueError(
                f"model.pooler: expected none, because AsymmetricEncoder pools, got a pooler of layers {layers}; "
                "set query_pooler and document_pooler of the encoder"
            )
        parts = self.row_parts(batch)
        vectors = [self._encode(batch if len(parts) == 1 else batch.split(rows), alter) for rows in parts]
        order = move_to_device(torch.cat(parts).argsort(), vectors[0].device)
        rows = torch.cat(vectors)[order].unsqueeze(1)
        return Hidden({-1: rows}, mask=torch.ones(rows.shape[:2], dtype=torch.bool, device=rows.device))

    def _encode(self, batch: Batch, alter: EmbeddingChange | None) -> Tensor:
        """Encodes rows of one side to vectors, (S, D)."""
        role = batch.slots[int(batch.row_slots[0])].role
        side: Side = "query" if role in QUERY_ROLES else "document"
        embedder = Embedder(*self.parts(side))
        if self._specials[side] == _NONE:
            batch = _without_tokens(batch, *self._specials["document" if side == "query" else "query"])
        pooled, _ = embedder.encode(RowGroup(batch, torch.arange(len(batch)), masks=0), alter)
        return pooled if embedder.head is None else embedder.head(pooled)

    def token_vectors(self, batch: Batch, alter: EmbeddingChange | None = None) -> Tensor:  # noqa: ARG002  # the base's
        """Raises ValueError, because the encoder returns vectors of texts."""
        raise InvalidValueError(
            "token vectors: expected an encoder for all texts, got AsymmetricEncoder; load the folder of one side"
        )

    def reads_positions(self) -> bool:
        """Returns whether both encoders read positions."""
        return self.query.reads_positions() and self.document.reads_positions()

    def add_tokens(self, tokens: Sequence[str]) -> None:
        """Adds tokens to the vocabularies of both encoders; see ``Encoder.add_tokens``."""
        if tokens and self.is_sparse:
            raise InvalidValueError(
                f"encoder: expected views without new tokens with sparse vectors, got {', '.join(tokens)}; set "
                "their mark to null"
            )
        for encoder in (self.query, self.document):
            encoder.add_tokens(tokens)
        self.vocabulary_size = self.document.vocabulary_size

    def end_rows(self) -> None:
        """Makes the tokenizers of both encoders end rows with a special token; see ``Encoder.end_rows``."""
        for encoder in (self.query, self.document):
            encoder.end_rows()

    @property
    def settings(self) -> dict[str, Any]:  # Any: as a transformer's
        """Settings that vectors depend on, besides weights and tokenizer."""
        sides: dict[str, Any] = {}  # Any: as above
        for side in SIDES:
            encoder, pooler, head = self.parts(side)
            has_settings = isinstance(encoder, SparseStaticEncoder) or is_saved(encoder)
            network = encoder.settings if has_settings else describe(encoder)
            sides[side] = [network, describe(pooler), str(None if head is None else head.network)]
        return {"model_type": "asymmetric", "default": self.default, **sides}

    def without_adapters(self, merge: bool) -> Self:  # noqa: ARG002  # as a transformer's
        """Returns the encoder itself, because no side has adapters."""
        return self

    def clone(self) -> AsymmetricEncoder:
        """Returns a copy with copies of both encoders."""
        copies = {id(encoder): encoder.clone() for encoder in (self.query, self.document)}
        copy = deepcopy(self, copies)
        for side in SIDES:  # a copy of a transformer has no token head
            if copy.parts(side)[1].reads_token_logits:
                copy.parts(side)[0].build_token_head()
        copy.load_state_dict(self.state_dict())
        return copy


SavedEncoder: TypeAlias = TransformerEncoder | StaticEncoder | AsymmetricEncoder
"""Encoders that a model folder can hold. The query side of the last may be a ``SparseStaticEncoder`` too."""


def is_saved(encoder: Encoder) -> TypeGuard[SavedEncoder]:
    """Returns whether a model folder can hold an encoder; of an ``AsymmetricEncoder``, both of its encoders."""
    if isinstance(encoder, AsymmetricEncoder):
        return is_saved(encoder.document) and (
            isinstance(encoder.query, SparseStaticEncoder) or is_saved(encoder.query)
        )
    return isinstance(encoder, SavedEncoder)


def require_transformer(encoder: Encoder, where: str) -> TransformerEncoder:
    """Returns an encoder that is a transformer; raises ValueError for any other, with ``where`` at the start."""
    if not isinstance(encoder, TransformerEncoder):
        raise InvalidValueError(
            f"{where}: expected a TransformerEncoder, got {type(encoder).__name__}; use the model itself, or a "
            "model with a transformer"
        )
    return encoder


_Specials: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]
"""Ids of the special tokens before a text and after it."""

_NONE: _Specials = ((), ())


def _special_tokens(tokenizer: PreTrainedTokenizerBase | None) -> _Specials:
    """Returns the special tokens that a tokenizer adds to a text."""
    if tokenizer is None:
        return _NONE
    encoding = tokenizer("a", return_attention_mask=False)
    ids, texts = encoding["input_ids"], encoding.sequence_ids(0)  # 0 for tokens of the text
    start, end = texts.index(0), len(texts) - texts[::-1].index(0)
    return tuple(ids[:start]), tuple(ids[end:])


def _without_tokens(batch: Batch, before: tuple[int, ...], after: tuple[int, ...]) -> Batch:
    """Returns a batch without the special tokens at the start and at the end of its rows.

    A row keeps tokens that aren't these, because a view may have removed the special tokens.
    """
    if not before and not after:
        return batch
    ids, lengths = batch.host_ids.ids, batch.lengths
    starts, ends = lengths.cumsum(0) - lengths, lengths.cumsum(0)
    has_start, has_end = (torch.ones(len(batch), dtype=torch.bool) for _ in range(2))
    for place, token in enumerate(before):
        has_start &= ids[(starts + place).clamp(max=len(ids) - 1)] == token
    for place, token in enumerate(reversed(after)):
        has_end &= ids[(ends - 1 - place).clamp(min=0)] == token
    cut = torch.stack([has_start * len(before), has_end * len(after)])
    row, places = torch.repeat_interleave(torch.arange(len(batch)), lengths), natural_positions(lengths)
    kept = ((places >= cut[0][row]) & (places < (lengths - cut[1])[row])).nonzero().flatten()
    here, shift = (move_to_device(values, batch.ids.device) for values in (kept, cut[0][row][kept]))
    copies = batch.host_copies
    return batch.replace(
        ids=batch.ids[here],
        lengths=lengths - cut.sum(dim=0),
        positions=None if batch.positions is None else batch.positions[here] - shift,
        types=None if batch.types is None else batch.types[here],
        unpooled=None if batch.unpooled is None else (batch.unpooled - cut[0]).clamp(min=0),
        template_lengths=None if batch.template_lengths is None else batch.template_lengths - cut.T,
        host_copies=None if copies is None else copies._replace(ids=copies.ids[kept]),
    )


def _check_vocabularies(query: Encoder, document: Encoder) -> None:
    """Checks that two encoders have equal token ids, and equal special tokens unless one adds none."""
    tokenizers, sizes = (query.tokenizer, document.tokenizer), (query.vocabulary_size, document.vocabulary_size)
    same = sizes[0] == sizes[1]
    if tokenizers[0] is not None and tokenizers[1] is not None:
        specials = {*map(_special_tokens, tokenizers)} - {_NONE}
        same = _rules(tokenizers[0]) == _rules(tokenizers[1]) and len(specials) <= 1
    if not same:
        raise InvalidValueError(
            f"encoder.query: expected the tokenizer of encoder.document ({sizes[1]:,} tokens), because a text is "
            f"tokenized once, got one of {sizes[0]:,} tokens with other rules; choose encoders of one vocabulary"
        )


def _rules(tokenizer: PreTrainedTokenizerBase) -> dict[str, object]:
    """Returns the rules of a tokenizer from a text to its token ids, without special tokens."""
    rules: dict[str, object] = json.loads(tokenizer.backend_tokenizer.to_str())
    return {name: rules[name] for name in ("normalizer", "pre_tokenizer", "model")} | tokenizer.get_vocab()
