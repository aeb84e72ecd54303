"""``SentenceEncoder``, a trained model for encoding texts. Imports neither Lightning nor objectives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn

from contrastive_text.core.batch import Batch
from contrastive_text.core.config.class_paths import trusting
from contrastive_text.core.errors import InvalidTypeError, InvalidValueError, one_of
from contrastive_text.core.similarity import at_least_float32
from contrastive_text.core.types import Role
from contrastive_text.data import TextTokenizer
from contrastive_text.data.prompts import DOCUMENT, NO_PROMPTS, QUERY, Kind, Prompts
from contrastive_text.encoders import Embedder, Encoder
from contrastive_text.encoders.asymmetric import is_saved
from contrastive_text.encoders.static import StaticEncoder
from contrastive_text.inference.encoding import (
    BLOCK_SIZE,
    BlockEncoder,
    Device,
    Encoding,
    OutputValue,
    TextBlock,
    Vectors,
    encode_text_blocks,
    encode_whole,
    join_blocks,
    truncated_counts,
)
from contrastive_text.inference.familiar_names import FamiliarNames, typed_as_encode
from contrastive_text.inference.late_chunks import Span, encode_late_chunks
from contrastive_text.inference.model_folder import local_folder, read_folder, write_folder
from contrastive_text.inference.model_parts import ModelParts, require_token_head, with_pooler
from contrastive_text.inference.quantization import Precision, check_ranges, quantize
from contrastive_text.inference.runtimes import RuntimeEncoder
from contrastive_text.inference.search import SimilarityName
from contrastive_text.inference.sparse import SparseVectors, join_rows, to_coo
from contrastive_text.inference.vector_files import Array
from contrastive_text.poolers import MeanPooler, Pooler

CHUNK_TOKENS = 8192
"""Largest number of tokens that the network encodes together, whatever the batch size."""


class SentenceEncoder(FamiliarNames):
    """Trained model that encodes texts to vectors, with the interface of sentence-transformers.

    Any number of threads may encode with one model at the same time. See docs/serve.md for servers and asyncio.

    Args:
        encoder: Network with its tokenizer and length limit.
        pooler: Pooler that the model was trained with.
        head: Layers after the pooler, or None.
        normalize: Whether vectors are scaled to unit length, before ``truncate_dim`` applies.
        max_length: Longest text in tokens, special tokens included; longer texts are truncated. None for the
            network's limit.
        prompts: Prompts of ``encode``, ``encode_query`` and ``encode_document``, by name.
        truncate_dim: Number of first features that ``encode`` keeps by default; None for all.
        runtime: Runtime that computes the network in place of torch; see ``from_pretrained``.
        similarity_fn_name: Similarity of ``similarity`` and ``search``: ``cosine``, ``dot``, or the negative
            distance ``euclidean`` or ``manhattan``.
        query_length: Longest query of ``encode_query`` in tokens; None for ``max_length``.
        document_length: Longest document of ``encode_document`` in tokens; None for ``max_length``.

    Attributes:
        pooling: Text that names the pooler of a loaded model and the reason for it.
        card: Model card that ``save_pretrained`` writes as ``README.md``; empty for none.

    Raises:
        TypeError: A model folder can't hold ``encoder``.
        ValueError: The encoder has no tokenizer, or ``truncate_dim`` exceeds the number of features.
    """

    def __init__(
        self,
        encoder: Encoder,
        pooler: Pooler,
        head: nn.Sequential | None = None,
        normalize: bool = False,
        max_length: int | None = None,
        prompts: Prompts = NO_PROMPTS,
        truncate_dim: int | None = None,
        runtime: RuntimeEncoder | None = None,
        similarity_fn_name: SimilarityName = "cosine",
        query_length: int | None = None,
        document_length: int | None = None,
    ) -> None:
        super().__init__()
        if not is_saved(encoder):
            raise InvalidTypeError(
                "SentenceEncoder: expected a TransformerEncoder, a StaticEncoder, or an AsymmetricEncoder of "
                f"both, got {type(encoder).__name__}; saved folders have no other"
            )
        if encoder.tokenizer is None:
            raise InvalidValueError(
                "SentenceEncoder: expected an encoder with a tokenizer, got no tokenizer; train it first"
            )
        require_token_head(encoder, pooler)
        self.encoder = encoder
        self.pooler, self.head, self.normalize = pooler, head, normalize
        self.max_length = max_length or None
        self.similarity_fn_name: SimilarityName = one_of(
            "SentenceEncoder.similarity_fn_name", similarity_fn_name, SimilarityName
        )
        # After max_length, which sets both to None.
        self.query_length, self.document_length = query_length, document_length
        if encoder.pools:  # names of a kind that ``prompt_name`` takes
            prompts = replace(prompts, named={QUERY: "", DOCUMENT: "", **prompts.named})
        self.prompts, self.truncate_dim, self.runtime = prompts, truncate_dim, runtime
        self.pooling, self.card = "", ""
        self._width: tuple[Pooler, nn.Sequential | None, int] | None = None
        self._check_truncation(truncate_dim)

    @classmethod
    def from_pretrained(
        cls,
        model_name_or_path: str | Path,
        pooler: Pooler | str | None = None,
        max_length: int | None = None,
        device: str | None = None,
        dtype: torch.dtype = torch.float32,
        truncate_dim: int | None = None,
        trust: Sequence[str] | None = None,
        prompts: Prompts | None = None,
        backend: str = "torch",
    ) -> Self:
        """Loads a model of this library, of sentence-transformers or of Transformers, from a folder or the hub.

        Args:
            model_name_or_path: Local folder or hub name.
            pooler: Pooler or its text, such as ``CLSPooler`` or ``FirstLastPooler(first=block_1)``. A head that
                was trained on another pooler is then removed, with a warning. None for the model's own pooler. A
                plain Transformers model has no pooler; None then gives its authors' pooler if known, otherwise
                the mean over tokens, with a warning.
            max_length: Longest text in tokens, special tokens included; None for the model's own limit.
            device: Device of the model; None for the GPU if there is one, otherwise the CPU.
            dtype: Type of the network's weights, whatever type was saved. ``torch.bfloat16`` is about twice as
                fast on some processors and slower on others; its vectors differ by a cosine of about 1e-4.
                Vectors are float32 anyway. A ``backend`` also takes ``torch.int8`` (8-bit products on the CPU).
            truncate_dim: Number of first features that ``encode`` keeps; None for the folder's number, or all.
            trust: Modules that the folder's pooler may come from, in addition to this library and modules that
                are imported already.
            prompts: Prompts of the model, if its folder doesn't have them; None for the folder's prompts.
            backend: Runtime of the network: ``torch``, or on the CPU ``onnx`` (onnxruntime) or ``openvino``. For
                the latter two an ONNX graph is exported once and cached. Pooler and head run in torch.

        Raises:
            ImportError: The backend isn't installed.
            ValueError: The model doesn't exist, its folder is damaged or names a class of a module that isn't
                trusted, the pooler or backend is unknown, ``max_length`` exceeds the model's limit, or
                ``truncate_dim`` exceeds the number of features.
            TypeError: ``dtype`` is not a ``torch.dtype``.
        """
        if not isinstance(dtype, torch.dtype):
            raise InvalidTypeError(f"dtype: expected a type of torch, such as torch.bfloat16, got {dtype!r}")
        with trusting(trust):
            parts = read_folder(local_folder(str(model_name_or_path)))
        parts = with_pooler(parts, pooler, name=str(model_name_or_path))
        parts = parts.with_runtime(backend, dtype)
        model = cls.of(parts)
        if max_length is not None:
            model.max_length = max_length
        if truncate_dim is not None:
            model.truncate_dim, model.card = model._check_truncation(truncate_dim), ""
        if prompts is not None:
            model.prompts, model.card = prompts, ""
        return model.to(*parts.device_and_dtype(device, dtype)).eval()

    @classmethod
    def of(cls, parts: ModelParts) -> Self:
        """Builds a model from its parts, which are not copied."""
        assert parts.pooler is not None
        arguments = {field.name: getattr(parts, field.name) for field in fields(ModelParts)}
        pooling, card = arguments.pop("pooling"), arguments.pop("card")
        model = cls(**arguments)
        model.pooling, model.card = pooling, card
        return model

    @property
    def parts(self) -> ModelParts:
        """Parts of the model (network, pooler, head, settings), which are not copied."""
        return ModelParts(**{field.name: getattr(self, field.name) for field in fields(ModelParts)})

    @property
    def max_length(self) -> int | None:
        """Longest text in tokens, special tokens included; None for no limit.

        A new value holds for queries and documents too.
        """
        return self.tokenizer.max_length

    @max_length.setter
    def max_length(self, length: int | None) -> None:
        self.tokenizer = self._limited_tokenizer(length, "SentenceEncoder.max_length")
        self.query_length = self.document_length = None
        self.card = ""

    def _limited_tokenizer(self, length: int | None, where: str, kind: Kind | None = None) -> TextTokenizer:
        """Returns the tokenizer with a length limit; None for the network's limit."""
        assert self.encoder.tokenizer is not None
        limit = self.encoder.limit_of(kind)
        length = limit if length is None else length
        if length is not None and limit is not None and length > limit:
            raise InvalidValueError(
                f"{where}: expected at most {limit} tokens, got {length}; the network has no more positions"
            )
        return TextTokenizer(self.encoder.tokenizer, length, limit and length and limit - length)

    @property
    def takes_empty_texts(self) -> bool:
        """True if a text without tokens has a vector, which is zeros: the mean of no row of a static table."""
        return isinstance(self.encoder, StaticEncoder) and isinstance(self.pooler, MeanPooler)

    @property
    def device(self) -> torch.device:
        """Device of the model's weights."""
        return next(self.parameters()).device

    @property
    def truncated(self) -> int:
        """Number of texts that the last call of ``encode`` or ``encode_blocks`` truncated to the length limit.

        Each thread has its own number, so read it in the thread that encodes. For ``encode_blocks`` it counts the
        blocks that were read so far.
        """
        return truncated_counts.of_thread.get(self, 0)

    @property
    def identity(self) -> str:
        """Fingerprint of everything that the model's vectors depend on, 32 hex digits.

        It covers weights, tokenizer, pooler, head, prompts and limits. Files of vectors store it, so that vectors
        of another model are recognized.
        """
        return self.parts.identity

    @typed_as_encode
    def encode(
        self,
        sentences: str | Iterable[str],
        batch_size: int = 64,
        show_progress_bar: bool = False,
        convert_to_tensor: bool = False,
        normalize_embeddings: bool = False,
        prompt: str | None = None,
        prompt_name: str | None = None,
        truncate_dim: int | None = None,
        precision: Precision = "float32",
        ranges: Vectors | None = None,
        device: Device | None = None,
        max_length: int | None = None,
        kind: Kind | None = None,
        output_value: OutputValue = "sentence_embedding",
    ) -> Vectors | list[Tensor] | SparseVectors:
        """Encodes texts to vectors, in the order of the texts.

        Texts are read in blocks of up to 16,384 and sorted by length within a block, so that there is little
        padding. Texts above the length limit are truncated and counted in ``truncated``.

        Args:
            sentences: One text, or an iterable of texts, which is read once.
            batch_size: Number of texts of a batch. A batch of long texts is encoded in several chunks.
            show_progress_bar: Whether to draw a progress bar.
            convert_to_tensor: Whether to return a tensor on the model's device instead of an array.
            normalize_embeddings: Whether to scale vectors to unit length.
            prompt: Prompt before every text, or template with ``{text}``; None for the prompt of ``prompt_name``.
            prompt_name: Name of one of the model's prompts; None for its default prompt, if it has one.
            truncate_dim: Number of first features to keep, before vectors are normalized; None for the model's
                own number, or all. Little is lost if the model was trained for it (Matryoshka representation
                learning, Kusupati et al. 2022, https://arxiv.org/abs/2205.13147).
            precision: ``float32``; ``int8`` or ``uint8`` for a byte, ``binary`` or ``ubinary`` for a bit per
                feature, with the values of sentence-transformers; see ``quantization.quantize``. Vectors are
                quantized last.
            ranges: Smallest and largest value of each feature, (2, D), for ``int8`` and ``uint8``. Compute them
                with ``quantization.value_ranges`` from vectors that were encoded with the same options. They are
                never computed from ``sentences``, because bytes of two calls could then not be compared.
            device: Device, to which the model moves and where it stays; or a list of devices, each of which gets
                a process with a copy of the model. Vectors of several devices are equal to one device's except
                for rounding, and tensors are on the CPU. A script then needs ``if __name__ == "__main__":``.
            max_length: Longest text in tokens, special tokens included; None for the model's limit.
            kind: ``query`` or ``document``, for a model with an encoder for each (``AsymmetricEncoder``). None
                for the kind in ``prompt_name``, otherwise its ``default``. Other models ignore it.
            output_value: ``sentence_embedding``, or ``token_embeddings`` for the last layer's vectors of all
                tokens of each text, special tokens and prompt included, before pooler and head.

        Returns:
            Vectors (N, D), or (D,) for one text. They are float32, or the type of ``precision``. For
            ``token_embeddings`` a list of N tensors (L, D) on the model's device, or a tensor for one text. If
            ``is_sparse``, a ``scipy.sparse.csr_array`` (N, V), also for one text, or a sparse tensor on the CPU.

        Raises:
            TypeError: A text is not a string.
            ValueError: An option is out of range or can't be used with ``token_embeddings``, ``ranges`` are
                missing, the prompt leaves no room for a text, ``prompt_name`` is unknown or given together with
                ``prompt``, or a vector is not finite.

        Example:
            >>> model.encode(open("texts.txt"), device=["cuda:0", "cuda:1"]).shape  # doctest: +SKIP
            (1000000, 384)
        """
        texts = [sentences] if isinstance(sentences, str) else sentences
        total = len(texts) if isinstance(texts, Sized) else None
        devices = len(device) if isinstance(device, list | tuple) else 0
        # Several devices get at least four blocks each, if there are enough texts.
        block_size = max(-(-total // (4 * devices)), 1) if total is not None and devices else BLOCK_SIZE
        encoding = Encoding(
            block_size=min(BLOCK_SIZE, block_size),
            batch_size=batch_size,
            normalize_embeddings=normalize_embeddings,
            prompt=prompt,
            prompt_name=prompt_name,
            truncate_dim=truncate_dim,
            precision=precision,
            ranges=ranges,
            device=device,
            max_length=max_length,
            kind=kind,
        )
        if one_of("encode.output_value", output_value, OutputValue) == "token_embeddings":
            encoding.check_unchanged("output_value='token_embeddings'", "normalize_embeddings", "truncate_dim")
            work = self._block_encoder(encoding, on_cpu=False)
            parts = encode_whole(work.encode_tokens, work, texts, show_progress_bar, self._count_truncated)
            tokens = [vectors for part in parts for vectors in part]
            return tokens[0] if isinstance(sentences, str) else tokens
        if self.is_sparse:
            encoding.check_unchanged("sparse vectors", "truncate_dim")
            work = self._block_encoder(encoding, on_cpu=True)
            sparse = encode_whole(work.encode_sparse, work, texts, show_progress_bar, self._count_truncated)
            rows = join_rows(sparse, self.features)
            return to_coo(rows) if convert_to_tensor else rows
        blocks = self.encode_blocks(texts, encoding, show_progress_bar, convert_to_tensor)
        vectors = join_blocks(map(torch.as_tensor, blocks), total)
        if vectors is None:
            width = self._check_truncation(truncate_dim) or self.features
            vectors = quantize(torch.empty(0, width, device=self.device), precision, ranges)
        result = vectors[0] if isinstance(sentences, str) else vectors
        return result if convert_to_tensor else result.cpu().numpy()

    def encode_spans(
        self,
        texts: Sequence[str],
        spans: Sequence[Sequence[Span]],
        batch_size: int = 16,
        normalize_embeddings: bool = False,
    ) -> list[Array]:
        """Encodes spans of documents from one pass over each document (late chunking).

        The vector of a span is pooled from the span's tokens, which have read the document around it. A document
        that is longer than a row is encoded in parts, each with as many spans as fit. Documents get the prompt
        ``document``, tokenized on its own. Source: Günther et al. 2024 (https://arxiv.org/abs/2409.04701).

        Args:
            texts: N documents.
            spans: For each document its spans: first character and end.
            batch_size: Number of documents of a batch.
            normalize_embeddings: Whether to scale vectors to unit length.

        Returns:
            Vectors of the spans of each document, N arrays (n, D), float32.

        Raises:
            ValueError: A span is outside of its text, has no token, or has more tokens than a row; or the pooler
                reads more than the tokens of a span.

        Example:
            >>> text = "A bird sings. It is in the tree."
            >>> model.encode_spans([text], [[(0, 13), (14, 32)]])[0].shape  # doctest: +SKIP
            (2, 384)
        """
        self.require_dense("encode_spans")
        length = self.document_length
        tokenizer = self.tokenizer if length is None else self._limited_tokenizer(length, "document_length")
        width = self.truncate_dim or self.features
        options = batch_size, normalize_embeddings, width
        return encode_late_chunks(self, self.parts, tokenizer, texts, spans, *options)

    def encode_blocks(
        self,
        sentences: Iterable[str],
        encoding: Encoding | None = None,
        show_progress_bar: bool = False,
        convert_to_tensor: bool = False,
    ) -> Iterator[Vectors]:
        """Encodes texts block by block, for more texts than fit into memory, or an endless stream of texts.

        The vectors of a block depend only on its own texts, so an interrupted run can resume with the next block.
        Another ``block_size`` changes only the rounding.

        Args:
            sentences: Texts, which are read a block at a time; one block ahead on a GPU, and two blocks for each
                of several devices.
            encoding: Options of ``encode`` and the block size; None for the defaults.
            show_progress_bar: Whether to draw a progress bar.
            convert_to_tensor: Whether to yield tensors on the model's device instead of arrays.

        Yields:
            Vectors (n, D) of each block of n texts.

        Raises:
            TypeError: A text is not a string.
            ValueError: Same as ``encode``. Options are checked by the call, before a text is read.

        Example:
            >>> blocks = model.encode_blocks(open("texts.txt"), Encoding(block_size=10_000))  # doctest: +SKIP
            >>> for vectors in blocks:  # doctest: +SKIP
            ...     file.write(vectors.tobytes())
        """
        if isinstance(sentences, str):
            raise InvalidTypeError("encode_blocks: expected many texts, got one string; put it into a list")
        self.require_dense("encode_blocks")
        work = self._block_encoder(encoding or Encoding(), on_cpu=not convert_to_tensor)
        blocks = encode_text_blocks(work, sentences, show_progress_bar, self._count_truncated)
        return blocks if convert_to_tensor else map(Tensor.numpy, blocks)

    def _block_encoder(self, encoding: Encoding, on_cpu: bool) -> BlockEncoder:
        """Checks the options of an encoding call, moves the model to their device, and resets ``truncated``."""
        width, ranges, device = self._check_truncation(encoding.truncate_dim), encoding.ranges, encoding.device
        if encoding.is_byte:
            ranges = check_ranges(ranges, width or self.features, encoding.precision, where="encode.ranges")
        prompt, length = encoding.resolve_prompt(self.prompts), encoding.max_length
        kind = encoding.resolve_kind(self.encoder)
        encoding = replace(
            encoding, prompt=prompt, prompt_name=None, truncate_dim=width, ranges=ranges, kind=kind
        )
        if isinstance(device, str | torch.device) and torch.device(device) != self.device:
            self.to(device)
        tokenizer = self.tokenizer
        if length is not None:
            tokenizer = self._limited_tokenizer(length, "encode.max_length", kind)
        elif kind is not None:
            own = (self.query_length if kind == QUERY else self.document_length) or self.max_length
            limits = [limit for limit in (own, self.encoder.limit_of(kind)) if limit is not None]
            tokenizer = self._limited_tokenizer(min(limits, default=None), "encode.max_length", kind)
        template = self.prompts.template(prompt, tokenizer)
        tokenizer.check_template(template, "encode.prompt")
        self._count_truncated(0)
        role: Role = "positive" if kind == DOCUMENT else "anchor"
        return BlockEncoder(self, tokenizer, encoding, on_cpu, template, role)

    def _count_truncated(self, count: int) -> None:
        truncated_counts.of_thread[self] = count

    @property
    def features(self) -> int:
        """Number of features of a vector before ``truncate_dim`` applies, measured by encoding a text once."""
        # A user's pooler may have any width.
        if self._width is None or self._width[:2] != (self.pooler, self.head):
            work = BlockEncoder(
                self, self.tokenizer, Encoding(), template=self.prompts.template(None, self.tokenizer)
            )
            self._width = self.pooler, self.head, work(TextBlock(0, ["a"])).vectors.shape[1]
        return self._width[2]

    def _check_truncation(self, truncate_dim: int | None) -> int | None:
        """Returns the number of features that vectors keep, by default ``truncate_dim``; None for all.

        Raises:
            ValueError: The number is below 1 or above the number of features.
        """
        width = self.truncate_dim if truncate_dim is None else truncate_dim
        if width is not None and not 1 <= width <= self.features:
            raise InvalidValueError(f"truncate_dim: expected 1 to {self.features} features, got {width}")
        return width

    def forward(self, batch: Batch) -> Tensor:
        """Encodes a batch of S rows to vectors, (S, D), in at least float32."""
        embedder = Embedder(self.runtime or self.encoder, self.pooler, chunk_tokens=CHUNK_TOKENS)
        with self.runtime.single_torch_thread(self.pooler.layers) if self.runtime else nullcontext():
            return self.from_pooled(embedder.pool(batch))

    def token_vectors(self, batch: Batch) -> list[Tensor]:
        """Encodes a batch of S rows to the last layer's vectors of the tokens of each row, (L, D)."""
        embedder = Embedder(self.runtime or self.encoder, self.pooler, chunk_tokens=CHUNK_TOKENS)
        with self.runtime.single_torch_thread((-1,)) if self.runtime else nullcontext():
            return embedder.token_vectors(batch)

    def from_pooled(self, pooled: Tensor) -> Tensor:
        """Applies the head to the pooler's vectors, (S, D), and scales them to unit length if ``normalize``."""
        vectors = at_least_float32(pooled)
        if self.head is not None:
            weight = next(self.head.parameters(), vectors)
            vectors = at_least_float32(self.head(vectors.to(weight.dtype)))
        return nn.functional.normalize(vectors, dim=-1) if self.normalize else vectors

    def save_pretrained(self, path: str | Path, separate_adapters: bool = False) -> None:
        """Saves the model to a folder that ``from_pretrained`` and sentence-transformers load with equal vectors.

        Args:
            path: Folder. An existing model in it is replaced when the new one is complete.
            separate_adapters: Whether to save adapters as separate files in peft's format, with unchanged
                weights. Otherwise they are merged into the weights.
        """
        write_folder(Path(path), self.parts, separate_adapters)
