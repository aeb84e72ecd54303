"""SentenceEncoder: a trained model in use. Imports neither Lightning nor any objective."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Self
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from contrastive_text.core.batch import Batch
from contrastive_text.core.checks import one_of
from contrastive_text.core.config.class_paths import trusting
from contrastive_text.core.errors import InvalidTypeError, InvalidValueError
from contrastive_text.core.similarity import at_least_float32
from contrastive_text.data import TextTokenizer
from contrastive_text.data.prompts import DOCUMENT, NO_PROMPTS, QUERY, Prompts
from contrastive_text.encoders import Embedder, Encoder, TransformerEncoder
from contrastive_text.inference.encoding import (
    BLOCK_SIZE,
    BlockEncoder,
    Device,
    Encoding,
    TextBlock,
    Vectors,
    encode_each,
    join_blocks,
)
from contrastive_text.inference.model_folder import local_folder, read_folder, write_folder
from contrastive_text.inference.model_parts import ModelParts, read_with
from contrastive_text.inference.quantization import Precision, check_ranges, quantize
from contrastive_text.inference.runtimes import RuntimeEncoder
from contrastive_text.inference.search import Hit, SimilarityName, nearest, pair_similarities, similarities
from contrastive_text.poolers import Pooler

_AT_ONCE = 8192
"""Tokens that go through the network together, however many texts are asked for at once."""


class _ThreadCounts(threading.local):
    """Number of truncated texts of each model's last call, for each thread by itself."""

    def __init__(self) -> None:
        self.of: WeakKeyDictionary[SentenceEncoder, int] = WeakKeyDictionary()


_truncated = _ThreadCounts()


class SentenceEncoder(nn.Module):
    """Encodes sentences; its arguments have the names and meanings of sentence-transformers'.

    Any number of threads may encode with one model at the same time. See docs/serving.md for servers and asyncio.

    Args:
        encoder: The network with its tokenizer and length limit.
        pooler: The pooler that the model was trained with.
        head: Layers after the pooler that inference keeps, or None.
        normalize: Whether vectors get unit length, before features are dropped.
        max_length: Longest text in tokens with special ones, longer ones are cut; None for the network's limit.
        prompts: What stands before texts: of ``encode``, of ``encode_query`` and of ``encode_document``.
        truncate_dim: Features that ``encode`` keeps, the first ones, unless it is given another number.
        runtime: What runs the network in place of torch; see ``from_pretrained``.
        similarity_fn_name: How ``similarity`` and ``search`` compare vectors: ``cosine``, ``dot``, or by the
            negative distance ``euclidean`` or ``manhattan``.
        query_length: Longest query of ``encode_query`` in tokens; None for ``max_length``.
        document_length: Longest document of ``encode_document`` in tokens; None for ``max_length``.

    Attributes:
        pooling: Which pooler a loaded model is read with and why, in words: its own, or one in place of it.
        card: The model card that ``save_pretrained`` writes as ``README.md``; empty for none.

    Raises:
        TypeError: Another encoder than a ``TransformerEncoder``.
        ValueError: An encoder without a tokenizer, or more features to keep than there are.
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
        if not isinstance(encoder, TransformerEncoder):
            raise InvalidTypeError(
                f"SentenceEncoder: expected a TransformerEncoder, got {type(encoder).__name__}; saved folders "
                "have no other"
            )
        if encoder.tokenizer is None:
            raise InvalidValueError(
                "SentenceEncoder: expected an encoder with a tokenizer, got none; train it first"
            )
        self.encoder = encoder
        self.pooler, self.head, self.normalize = pooler, head, normalize
        self.max_length = max_length or self.encoder.limit
        limit, length = self.encoder.limit, self.max_length
        self.tokenizer = TextTokenizer(encoder.tokenizer, length, limit and length and limit - length)
        self.similarity_fn_name: SimilarityName = one_of(
            "SentenceEncoder.similarity_fn_name", similarity_fn_name, SimilarityName
        )
        self.query_length, self.document_length = query_length, document_length
        self.prompts, self.truncate_dim, self.runtime = prompts, truncate_dim, runtime
        self.pooling, self.card = "", ""
        self._measured: tuple[Pooler, nn.Sequential | None, int] | None = None
        self._kept(truncate_dim)

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
        """Loads a folder, or a name on the hub, saved by us, by sentence-transformers or by Transformers.

        Args:
            model_name_or_path: Local folder or hub name.
            pooler: What to read the model with, or its name: ``CLSPooler``, ``FirstLastPooler(first=block_1)``; a
                head that was trained on another pooler is then left out, with a warning. None for the model's
                own; of a plain Transformers model, which names none, the mean, with a warning.
            max_length: Where to cut texts, in tokens with special ones; None for the model's own limit.
            device: Where to put the model; None for the GPU if there is one, else the CPU.
            dtype: Of the network's weights, whatever the folder's are. ``torch.bfloat16`` is about twice as fast
                on some processors, slower on others; it moves a vector by a cosine of some 1e-4. Vectors leave as
                float32 anyway. With a ``backend`` also ``torch.int8``, where the CPU multiplies bytes.
            truncate_dim: Features that ``encode`` keeps; None for the folder's number, or all.
            trust: Modules whose poolers the folder may name, beside this library's and those that are imported.
            prompts: What stands before texts, of a model whose folder doesn't say it; None for the folder's.
            backend: What runs the network: ``torch``; or on the CPU, from a graph that is made once and kept,
                ``onnx`` (onnxruntime) or ``openvino``. All else stays ours.

        Raises:
            ImportError: A backend that isn't installed.
            ValueError: No such model, a damaged folder, one that names a class of a module that isn't trusted, no
                such pooler or backend, a length beyond the model's limit, or more features than there are.
            TypeError: A ``dtype`` that is no type of torch, such as its name.
        """
        if not isinstance(dtype, torch.dtype):
            raise InvalidTypeError(f"dtype: expected a type of torch, such as torch.bfloat16, got {dtype!r}")
        with trusting(trust):
            parts = read_folder(local_folder(str(model_name_or_path)))
        parts = read_with(parts, pooler, name=str(model_name_or_path))
        parts = parts.asked(max_length, truncate_dim, prompts).run_by(backend, dtype)
        return cls.of(parts).to(*parts.place(device, dtype)).eval()

    @classmethod
    def of(cls, parts: ModelParts) -> Self:
        """Returns the model of its parts, which are not copied."""
        assert parts.pooler is not None
        arguments = {each.name: getattr(parts, each.name) for each in fields(ModelParts)}
        pooling, card = arguments.pop("pooling"), arguments.pop("card")
        model = cls(**arguments)
        model.pooling, model.card = pooling, card
        return model

    @property
    def parts(self) -> ModelParts:
        """The parts of the model, not copied."""
        return ModelParts(**{field.name: getattr(self, field.name) for field in fields(ModelParts)})

    @property
    def device(self) -> torch.device:
        """Device of the model's weights."""
        return next(self.parameters()).device

    @property
    def truncated(self) -> int:
        """Number of texts that this thread's last ``encode`` cut, or ``encode_blocks`` as far as it was read.

        Each thread has its own number: read it in the thread that encodes.
        """
        return _truncated.of.get(self, 0)

    @property
    def identity(self) -> str:
        """32 hex digits, the same for equal vectors: of weights, tokenizer, pooler, head, prompts and limits.

        Vectors on disk carry it, so that those of one model are never taken for another's.
        """
        return self.parts.identity

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
    ) -> Vectors:
        """Returns one vector per sentence, in the order given.

        Texts are read in blocks, and encoded by falling length within one, so that little is padded and no more
        than a block of them is in memory. A text above the length limit is cut and counted in ``truncated``.

        Args:
            sentences: One text, or many from anything that can be iterated over, once.
            batch_size: Texts at once; of long ones fewer go through the network together.
            show_progress_bar: Whether to draw a bar.
            convert_to_tensor: Whether to give a tensor on the model's device, not an array.
            normalize_embeddings: Whether to give vectors of unit length.
            prompt: Put before every text, or around it with ``{text}`` in it; None for that of ``prompt_name``.
            prompt_name: Which of the model's prompts; None for its default, which may be none.
            truncate_dim: Features to keep, the first ones, before vectors get unit length; None for the model's
                own number, or all. Little is lost where a model was trained for it (Matryoshka representation
                learning, Kusupati et al. 2022, https://arxiv.org/abs/2205.13147).
            precision: A byte (``int8``, ``uint8``) or a bit (``binary``, ``ubinary``) for each feature, by the
                rules and with the values of sentence-transformers; see ``quantization.quantize``. Comes last,
                after unit length.
            ranges: Smallest and largest value of each feature that is kept, (2, D), for a byte: from
                ``quantization.value_ranges`` over vectors encoded with the same options. They are never taken
                from these texts, for then two calls would give bytes of different meaning.
            device: Where to encode: a name, to which the model moves and where it stays; or a list of names, each
                for a process with a copy of the model. Results come in order and are equal to one device's but
                for rounding; tensors are then on the CPU. A script needs ``if __name__ == "__main__":``.
            max_length: Longest text in tokens with special ones; None for the model's.

        Returns:
            (N, D), or (D,) for one text: float32, or as ``precision`` says.

        Raises:
            TypeError: Something that is not text.
            ValueError: An option out of range, a byte without ``ranges``, a prompt without room for a text, a
                name that no prompt has, both a prompt and a name, or a vector that is not finite.

        Example:
            >>> model.encode(open("texts.txt"), device=["cuda:0", "cuda:1"]).shape  # doctest: +SKIP
            (1000000, 384)
        """
        texts = [sentences] if isinstance(sentences, str) else sentences
        total = len(texts) if isinstance(texts, Sized) else None
        devices = len(device) if isinstance(device, list | tuple) else 0
        # Each of several devices gets some of the texts.
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
        )
        blocks = self.encode_blocks(texts, encoding, show_progress_bar, convert_to_tensor)
        vectors = join_blocks(map(torch.as_tensor, blocks), total)
        if vectors is None:
            width = self._kept(truncate_dim) or self.features
            vectors = quantize(torch.empty(0, width, device=self.device), precision, ranges)
        result = vectors[0] if isinstance(sentences, str) else vectors
        return result if convert_to_tensor else result.cpu().numpy()

    def encode_query(self, sentences: str | Iterable[str], **options: Any) -> Vectors:  # Any: of encode
        """Returns the vectors of queries: ``encode`` with the prompt ``query``.

        Of a model without such a prompt no text gets any, not even the default, as in sentence-transformers.

        Args:
            sentences: One text, or many.
            options: Those of ``encode``; a ``prompt`` or ``prompt_name`` takes the place of the model's.

        Example:
            >>> documents = model.encode_document(["A bird sings."])  # doctest: +SKIP
            >>> model.similarity(model.encode_query("who sings?"), documents)  # doctest: +SKIP
            tensor([[0.83]])
        """
        return self.encode(sentences, **self._options(QUERY, self.query_length, options))

    def encode_document(self, sentences: str | Iterable[str], **options: Any) -> Vectors:
        """Returns the vectors of documents: ``encode`` with the prompt ``document``; see ``encode_query``."""
        return self.encode(sentences, **self._options(DOCUMENT, self.document_length, options))

    def _options(
        self, kind: str, length: int | None, options: dict[str, Any]
    ) -> dict[str, Any]:  # Any: of encode
        """Returns the options of ``encode`` for a kind of texts: its prompt and longest text, unless given."""
        lengths = {} if length is None else {"max_length": length}
        return lengths | self.prompts.options(kind, options)

    def encode_blocks(
        self,
        sentences: Iterable[str],
        encoding: Encoding | None = None,
        show_progress_bar: bool = False,
        convert_to_tensor: bool = False,
    ) -> Iterator[Vectors]:
        """Returns the vectors of ``encode`` block by block, for more texts than fit into memory, or endless ones.

        The vectors of a block depend on its own texts alone: a run that was broken off can go on with the next.
        Another ``block_size`` changes rounding, nothing else.

        Args:
            sentences: Read a block at a time; on a GPU one block ahead, and with several devices two for each.
            encoding: The options of ``encode``, and the texts of a block; None for those that it has by default.
            show_progress_bar: As for ``encode``, as is ``convert_to_tensor``.

        Yields:
            (n, D) for each block of n texts, the last one shorter; nothing where there are no texts.

        Raises:
            TypeError: Something that is not text.
            ValueError: As for ``encode``; options are checked at the call, before anything is read.

        Example:
            >>> blocks = model.encode_blocks(open("texts.txt"), Encoding(block_size=10_000))  # doctest: +SKIP
            >>> for vectors in blocks:  # doctest: +SKIP
            ...     file.write(vectors.tobytes())
        """
        if isinstance(sentences, str):
            raise InvalidTypeError("encode_blocks: expected many texts, got one string; put it into a list")
        encoding = encoding or Encoding()
        kept, ranges, device = self._kept(encoding.truncate_dim), encoding.ranges, encoding.device
        if encoding.is_byte:
            ranges = check_ranges(ranges, kept or self.features, encoding.precision, where="encode.ranges")
        prompt, length, limit = encoding.prompt_in(self.prompts), encoding.max_length, self.encoder.limit
        encoding = replace(encoding, prompt=prompt, prompt_name=None, truncate_dim=kept, ranges=ranges)
        if isinstance(device, str | torch.device) and torch.device(device) != self.device:
            self.to(device)
        tokenizer = self.tokenizer
        if length is not None:
            if limit is not None and length > limit:
                raise InvalidValueError(f"encode.max_length: expected at most {limit} tokens, got {length}")
            tokenizer = TextTokenizer(tokenizer.tokenizer, length, limit and limit - length)
        frame = self.prompts.frame(prompt, tokenizer)
        tokenizer.check_frame(frame, "encode.prompt")
        work = BlockEncoder(self, tokenizer, encoding, not convert_to_tensor, frame)
        _truncated.of[self] = 0
        blocks = encode_each(
            work, sentences, show_progress_bar, lambda truncated: _truncated.of.__setitem__(self, truncated)
        )
        return blocks if convert_to_tensor else map(Tensor.numpy, blocks)

    @property
    def features(self) -> int:
        """Features of a vector before any are dropped; measured, for a pooler of one's own gives any number."""
        if self._measured is None or self._measured[:2] != (self.pooler, self.head):
            work = BlockEncoder(self, self.tokenizer, Encoding(), frame=self.prompts.frame(None, self.tokenizer))
            self._measured = self.pooler, self.head, work(TextBlock(0, ["a"])).vectors.shape[1]
        return self._measured[2]

    def _kept(self, truncate_dim: int | None) -> int | None:
        """Returns how many features are kept; None for all."""
        kept = self.truncate_dim if truncate_dim is None else truncate_dim
        if kept is not None and not 1 <= kept <= self.features:
            raise InvalidValueError(f"truncate_dim: expected 1 to {self.features} features, got {kept}")
        return kept

    def forward(self, batch: Batch) -> Tensor:
        """Returns the vectors of a batch's rows, (S, D), in at least float32."""
        embedder = Embedder(self.runtime or self.encoder, self.pooler, chunk_tokens=_AT_ONCE)
        with self.runtime.undisturbed(self.pooler.layers) if self.runtime else nullcontext():
            return self.from_pooled(embedder.pool(batch))

    def from_pooled(self, pooled: Tensor) -> Tensor:
        """Returns the vectors that leave the model from what its pooler gives: the head, then unit length."""
        vectors = at_least_float32(pooled)
        if self.head is not None:
            weight = next(self.head.parameters(), vectors)
            vectors = at_least_float32(self.head(vectors.to(weight.dtype)))
        return nn.functional.normalize(vectors, dim=-1) if self.normalize else vectors

    def similarity(self, embeddings1: Vectors, embeddings2: Vectors) -> Tensor:
        """Returns the similarity of every vector with every other, (A, D) and (B, D) -> (A, B).

        It is the cosine, or what ``similarity_fn_name`` says.
        """
        rows, columns = torch.as_tensor(embeddings1), torch.as_tensor(embeddings2)
        rows, columns = rows.reshape(-1, rows.shape[-1]), columns.reshape(-1, columns.shape[-1])
        return similarities(self.similarity_fn_name, rows, columns)

    def similarity_pairwise(self, embeddings1: Vectors, embeddings2: Vectors) -> Tensor:
        """Returns the similarity of each vector with the one of the same number, (N, D) and (N, D) -> (N,)."""
        first, second = torch.as_tensor(embeddings1), torch.as_tensor(embeddings2)
        return pair_similarities(self.similarity_fn_name, first, second)

    def search(
        self, queries: str | Sequence[str], corpus: Sequence[str] | Vectors, top_k: int = 5
    ) -> list[list[Hit]]:
        """Finds the most similar texts of a corpus, exactly, and with a block of similarities in memory.

        Args:
            queries: One query or many, encoded by ``encode_query``.
            corpus: The texts, or their vectors from ``encode_document``, (C, D), of floating-point numbers.
            top_k: Hits per query; all texts where there are fewer.

        Returns:
            For each query its hits, best first, the earlier text before an equal one.

        Raises:
            TypeError: Something that is not text.
            ValueError: Vectors of another width, or no hits asked for.
        """
        asked = self.encode_query([queries] if isinstance(queries, str) else queries, convert_to_tensor=True)
        if not isinstance(corpus, Tensor | np.ndarray):
            corpus = self.encode_document(list(corpus), convert_to_tensor=True)
        return nearest(self.similarity_fn_name, torch.as_tensor(asked), torch.as_tensor(corpus), top_k)

    def save_pretrained(self, path: str | Path, adapters_beside: bool = False) -> None:
        """Saves a folder that ``from_pretrained`` and sentence-transformers load with equal vectors.

        Adapters become part of the weights, or are written beside them as they were, in peft's format.
        """
        write_folder(Path(path), self.parts, adapters_beside)
