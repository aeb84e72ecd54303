"""Encoding of texts to vectors in blocks, and its options. Memory holds one block of texts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal, NamedTuple, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

from contrastive_text.core.batch import Batch, move_to_device
from contrastive_text.core.errors import InvalidTextError, InvalidTypeError, InvalidValueError, at_least, one_of
from contrastive_text.core.machine import check_not_forked
from contrastive_text.core.storage.text_files import lone_surrogate
from contrastive_text.core.types import NO_TEMPLATE, Role, Template
from contrastive_text.data import TextTokenizer
from contrastive_text.data.batching import collate_texts
from contrastive_text.data.prompts import DOCUMENT, QUERY, Kind, Prompts, kind_of
from contrastive_text.data.tokenizing import TemplatedText
from contrastive_text.encoders import Encoder
from contrastive_text.encoders.prepacked import prepacked
from contrastive_text.encoders.shared_use import shared_network
from contrastive_text.inference.device_pool import check_devices, map_on_devices
from contrastive_text.inference.quantization import Precision, quantize
from contrastive_text.inference.sparse import SparseVectors, join_rows, to_csr
from contrastive_text.inference.vector_files import Array

Vectors: TypeAlias = Tensor | Array

OutputValue: TypeAlias = Literal["sentence_embedding", "token_embeddings"]
"""Result of an encoding call: a vector for each text, or the vectors of the tokens of each text."""

Device: TypeAlias = str | torch.device | list[str] | tuple[str, ...]
"""Device of an encoding call, or the names of several devices."""

BLOCK_SIZE = 16_384
"""Number of texts of a block that is encoded together. A block of 256 batches of 64 texts, sorted by length, has
almost no padding. Its vectors take 25 MB with 384 features."""

_QUOTED = 60
"""Largest number of characters of a text that an error shows."""

_Encoded = TypeVar("_Encoded")
"""Result of a batch: vectors of its texts, or a list of token vectors."""


class _ThreadCounts(threading.local):
    """Number of truncated texts of each model's last call in the current thread."""

    def __init__(self) -> None:
        self.of_thread: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()


truncated_counts = _ThreadCounts()


@dataclass(frozen=True, slots=True, eq=False)  # arrays have no single truth value of equality
class Encoding:
    """Options of an encoding call. ``SentenceEncoder.encode`` explains each option.

    Args:
        block_size: Number of texts that are read, encoded and saved together.
        batch_size: Number of texts of a batch.
        normalize_embeddings: Whether to scale vectors to unit length.
        prompt: Prompt of every text; None for the prompt of ``prompt_name``.
        prompt_name: Name of one of the model's prompts; None for its default prompt.
        truncate_dim: Number of first features to keep; None for the model's own number, or all.
        precision: ``float32``; ``int8`` or ``uint8`` for a byte, ``binary`` or ``ubinary`` for a bit per feature.
        ranges: Smallest and largest value of each feature, (2, D), for ``int8`` and ``uint8``.
        device: A device or a list of devices; None for the model's device.
        max_length: Longest text in tokens, special tokens included; None for the model's limit.
        kind: Kind of the texts for an ``AsymmetricEncoder``: ``query`` or ``document``. None for the kind in the
            prompt's name, otherwise the encoder's ``default``.

    Raises:
        ValueError: A size is below 1, the precision or a device is unknown, the list of devices is empty, or both
            ``prompt`` and ``prompt_name`` are given.

    Example:
        >>> Encoding(batch_size=0)
        Traceback (most recent call last):
        contrastive_text.core.errors.InvalidValueError: encode.batch_size: expected 1 or more, got 0
    """

    block_size: int = BLOCK_SIZE
    batch_size: int = 64
    normalize_embeddings: bool = False
    prompt: str | None = None
    prompt_name: str | None = None
    truncate_dim: int | None = None
    precision: Precision = "float32"
    ranges: Vectors | None = None
    device: Device | None = None
    max_length: int | None = None
    kind: Kind | None = None

    def __post_init__(self) -> None:
        if self.devices is not None:
            check_devices(self.devices)
        at_least("encode.batch_size", self.batch_size, 1)
        at_least("encode.block_size", self.block_size, 1)
        if self.prompt is not None and self.prompt_name is not None:
            raise InvalidValueError(
                f"encode.prompt: expected no prompt together with prompt_name, got {self.prompt!r} and "
                f"{self.prompt_name!r}; remove one of them"
            )
        one_of("encode.precision", self.precision, Precision)
        if self.kind is not None:
            one_of("encode.kind", self.kind, Kind)

    def check_unchanged(self, kind: str, *names: str) -> None:
        """Checks that options which a kind of vectors can't have are unchanged: ``names``, and those below."""
        for name, value, default in (
            ("normalize_embeddings", self.normalize_embeddings, False),
            ("truncate_dim", self.truncate_dim, None),
            ("precision", self.precision, "float32"),
            ("ranges", self.ranges, None),
            ("device", self.devices, None),
        ):
            is_changed = value is not default and (default is None or value != default)  # arrays have no truth
            if is_changed and name in ("precision", "ranges", "device", *names):
                raise InvalidValueError(
                    f"encode.{name}: expected {default!r} with {kind}, got {value!r}; remove one of them"
                )

    def resolve_prompt(self, prompts: Prompts) -> str:
        """Returns the text of an encoding call's prompt: ``prompt``, or the model's prompt ``prompt_name``."""
        return prompts.text(self.prompt_name) if self.prompt is None else self.prompt

    def resolve_kind(self, encoder: Encoder) -> Kind | None:
        """Returns the kind of the texts of a call; None if the encoder has one network for all kinds."""
        default = QUERY if encoder.plain_role == "anchor" else DOCUMENT
        return (self.kind or kind_of(self.prompt_name) or default) if encoder.pools else None

    @property
    def is_byte(self) -> bool:
        """True if a feature becomes a byte (``int8`` or ``uint8``), which needs ``ranges``."""
        return self.precision in ("int8", "uint8")

    @property
    def devices(self) -> Sequence[str] | None:
        """Names of the devices of an encoding call, one process each; None for a single device."""
        return self.device if isinstance(self.device, list | tuple) else None


class TextBlock(NamedTuple):
    """Block of consecutive texts that are encoded together.

    Args:
        start: Index of the first text among all texts, from 0.
        texts: The texts.
    """

    start: int
    texts: list[str]


class VectorBlock(NamedTuple):
    """Vectors of a block of texts.

    Args:
        vectors: Vectors in the order of the texts, (n, D).
        truncated: Number of texts that were truncated to the length limit.
    """

    vectors: Tensor
    truncated: int


def text_blocks(sentences: Iterable[str], size: int) -> Iterator[TextBlock]:
    """Splits texts into blocks of ``size``. Reads no text before its block is requested.

    Raises:
        TypeError: A text is not a string.
        ValueError: UTF-8 can't represent a text.

    Example:
        >>> list(text_blocks(iter(["a", "b", "c"]), size=2))
        [TextBlock(start=0, texts=['a', 'b']), TextBlock(start=2, texts=['c'])]
    """
    rest = iter(sentences)
    start = 0
    while texts := list(islice(rest, size)):
        for place, text in enumerate(texts, start):
            if not isinstance(text, str):
                raise InvalidTypeError(f"encode: expected texts, got {type(text).__name__} at place {place}")
            if (surrogate := lone_surrogate(text)) is not None:
                got = f"{surrogate} of the text at place {place}"
                raise InvalidValueError(
                    f"encode: expected texts that UTF-8 can hold, got {got}; correct or remove the text"
                )
        yield TextBlock(start, texts)
        start += len(texts)


@dataclass(frozen=True, slots=True)
class BlockEncoder:
    """Encodes blocks of texts. The vectors of a block depend on no other block.

    Args:
        model: Model from a batch of S rows to vectors, (S, D).
        tokenizer: The model's tokenizer.
        encoding: Encoding options, where the model's own values replace names and None.
        on_cpu: Whether to copy the vectors to the CPU.
        template: Prompt or template of each text.
        role: Role of the texts.
    """

    model: nn.Module
    tokenizer: TextTokenizer
    encoding: Encoding
    on_cpu: bool = True
    template: Template = NO_TEMPLATE
    role: Role = "anchor"

    @property
    def device(self) -> torch.device:
        """Device of the model's weights."""
        return next(self.model.parameters()).device

    def tokenize(self, block: TextBlock) -> list[TemplatedText]:
        """Tokenizes the texts of a block, with their prompt and without special tokens, for ``__call__``."""
        return self.tokenizer.tokenize_with_template(block.texts, self.template, with_words=False)

    def __call__(
        self,
        block: TextBlock,
        advance: Callable[[int], object] | None = None,
        tokens: Sequence[TemplatedText] | None = None,
    ) -> VectorBlock:
        """Encodes a block of texts and returns the vectors.

        Args:
            block: Block of at least one text.
            advance: Function that is called after each batch with its number of texts.
            tokens: Result of ``tokens`` for the block; None to tokenize its texts here.

        Raises:
            ValueError: A vector is not finite, or another thread trains the model.
            RuntimeError: The model is on a CPU, and this process was forked from a process that had used a model.
        """
        templated = self.tokenize(block) if tokens is None else tokens
        with shared_network(self.model) as network:
            parts, order, truncated = self._encode(network, network, templated, block, advance)
        inverse = torch.tensor(order, dtype=torch.long).argsort()
        vectors = torch.cat(parts)[move_to_device(inverse, self.device)]
        self._check(vectors, block)
        vectors = vectors[:, : self.encoding.truncate_dim].contiguous()
        if self.encoding.normalize_embeddings:
            vectors = nn.functional.normalize(vectors, dim=-1)
        if self.encoding.precision != "float32":
            vectors = quantize(vectors, self.encoding.precision, self.encoding.ranges)
        return VectorBlock(vectors.cpu() if self.on_cpu else vectors, truncated)

    def encode_tokens(self, block: TextBlock, advance: Callable[[int], object]) -> tuple[list[Tensor], int]:
        """Encodes a block of texts. Returns the token vectors of each text, (L, D), and ``truncated``.

        Arguments and errors are those of ``__call__``. The texts keep their order.
        """
        with shared_network(self.model) as network:
            parts, order, truncated = self._encode(
                network,
                network.token_vectors,  # type: ignore[arg-type]  # a method of SentenceEncoder
                self.tokenize(block),
                block,
                advance,
            )
        rows = dict(zip(order, (row for part in parts for row in part), strict=True))
        vectors = [rows[number] for number in range(len(rows))]
        self._check(torch.stack([tokens.abs().amax(dim=0) for tokens in vectors]), block)
        return vectors, truncated

    def encode_sparse(self, block: TextBlock, advance: Callable[[int], object]) -> tuple[SparseVectors, int]:
        """Encodes a block of texts to sparse vectors, (n, V), batch by batch; see ``encode_tokens``."""
        with shared_network(self.model) as network:

            def compute(batch: Batch) -> SparseVectors:
                vectors = network(batch)
                if self.encoding.normalize_embeddings:
                    vectors = nn.functional.normalize(vectors, dim=-1)
                return to_csr(vectors)

            parts, order, truncated = self._encode(network, compute, self.tokenize(block), block, advance)
        rows = join_rows(parts, features=0)[torch.tensor(order).argsort().numpy()]
        self._check(torch.from_numpy(rows.sum(axis=1)).unsqueeze(1), block)
        return rows, truncated

    @torch.no_grad()  # inference mode would keep the vectors out of training
    def _encode(
        self,
        network: nn.Module,
        compute: Callable[[Batch], _Encoded],
        templated: Sequence[TemplatedText],
        block: TextBlock,
        advance: Callable[[int], object] | None,
    ) -> tuple[list[_Encoded], list[int], int]:
        """Returns the result of each batch, the order of its texts, and the number of truncated texts."""
        device, size = self.device, self.encoding.batch_size
        if device.type == "cpu":
            check_not_forked("encode", has_pool=self.model.runtime is not None)
        order = sorted(range(len(templated)), key=lambda i: -templated[i].length)
        parts: list[_Encoded] = []
        truncated = 0
        tokens = sum(text.length for text in templated)
        with_empty = compute is network and bool(getattr(self.model, "takes_empty_texts", False))
        with prepacked(network, tokens) if self.model.runtime is None else nullcontext():
            for start in range(0, len(order), size):
                rows = [templated[i] for i in order[start : start + size]]
                batch = collate_texts(self.tokenizer, rows, self.template.unpooled, with_empty, self.role)
                truncated += batch.truncated
                try:
                    parts.append(compute(batch.to(device)))
                except InvalidTextError as error:
                    number = order[start + error.number]
                    raise error.renumbered(block.start + number, block.texts[number]) from None
                if advance is not None:
                    advance(len(batch))
        return parts, order, truncated

    def _check(self, vectors: Tensor, block: TextBlock) -> None:
        if vectors.sum().isfinite():  # one pass; only absurdly large finite values sum to infinity
            return
        damaged = (~vectors.isfinite()).any(dim=1).nonzero().flatten().tolist()
        if not damaged:
            return
        text = block.texts[damaged[0]]
        weight = next((name for name, w in self.model.named_parameters() if not w.isfinite().all()), None)
        dtype = next(self.model.parameters()).dtype
        cause = (
            f"{dtype} is too narrow for it: load the model with dtype=torch.float32"
            if weight is None
            else f"the model's weights are damaged (in {weight}): save it again"
        )
        raise InvalidValueError(
            f"encode: expected finite vectors, got NaN or infinity for text {block.start + damaged[0]} "
            f"({text[:_QUOTED]!r}); {cause}"
        )


def encode_text_blocks(
    work: BlockEncoder, sentences: Iterable[str], show_progress_bar: bool, count: Callable[[int], object]
) -> Generator[Tensor, None, None]:
    """Encodes texts block by block and yields the vectors of each block, in order and on demand.

    Args:
        work: Encoder of a block. With several devices, a copy in a process for each device encodes, and vectors
            are on the CPU.
        sentences: Texts, which are read a block at a time; one block ahead on a GPU, and two blocks for each of
            several devices.
        show_progress_bar: Whether to draw a progress bar.
        count: Function that is called before each block is yielded, with the number of texts so far that were
            truncated to the length limit.
    """
    truncated, blocks = 0, text_blocks(sentences, work.encoding.block_size)
    with progress_bar(sentences, show_progress_bar) as advance:
        if work.encoding.devices is None:
            # On a CPU a tokenizing thread slows the network: 0.97 to 0.99 of the speed on two cores.
            encode = encode_serially if work.device.type == "cpu" else encode_with_prefetch
            results = encode(work, blocks, advance)
        else:
            results = encode_in_processes(work, blocks, advance)
        with closing(results):
            for block in results:
                truncated += block.truncated
                count(truncated)
                yield block.vectors


def encode_whole(
    encode: Callable[[TextBlock, Callable[[int], object]], tuple[_Encoded, int]],
    work: BlockEncoder,
    sentences: Iterable[str],
    show_progress_bar: bool,
    count: Callable[[int], object],
) -> list[_Encoded]:
    """Returns the results of ``encode_tokens`` or ``encode_sparse`` of ``work`` for each block of texts.

    The other arguments are those of ``encode_text_blocks``.
    """
    with progress_bar(sentences, show_progress_bar) as advance:
        found = [encode(block, advance) for block in text_blocks(sentences, work.encoding.block_size)]
    count(sum(truncated for _, truncated in found))
    return [result for result, _ in found]


@contextmanager
def progress_bar(sentences: Iterable[object], is_shown: bool) -> Iterator[Callable[[int], object]]:
    """Draws a progress bar of texts. Yields a function that advances the bar by a number of texts."""
    columns = TextColumn("Encoding"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, disable=not is_shown) as bar:
        task = bar.add_task("Encoding", total=len(sentences) if isinstance(sentences, Sized) else None)
        yield lambda texts: bar.advance(task, texts)


def encode_serially(
    work: BlockEncoder, blocks: Iterator[TextBlock], advance: Callable[[int], object]
) -> Generator[VectorBlock, None, None]:
    """Encodes blocks one after the other in this thread. Reads no block before it is requested."""
    for block in blocks:
        yield work(block, advance)


def encode_in_processes(
    work: BlockEncoder, blocks: Iterator[TextBlock], advance: Callable[[int], object]
) -> Generator[VectorBlock, None, None]:
    """Encodes blocks in processes, one for each device. The vectors are on the CPU."""
    assert work.encoding.devices is not None
    encoder = _ArrayEncoder(replace(work, on_cpu=True))
    with closing(map_on_devices(encoder, blocks, work.encoding.devices)) as results:
        for vectors, truncated in results:
            advance(len(vectors))
            yield VectorBlock(torch.from_numpy(vectors), truncated)


def encode_with_prefetch(
    work: BlockEncoder, blocks: Iterator[TextBlock], advance: Callable[[int], object]
) -> Generator[VectorBlock, None, None]:
    """Encodes blocks in order, while a thread tokenizes the next block.

    Texts are read in the caller's thread. An error of a block is raised after the vectors of all earlier blocks.
    Nothing runs while the caller uses the vectors.
    """

    def tokenize_next() -> Future[tuple[TextBlock, list[TemplatedText]] | None]:
        try:
            block = next(blocks, None)
        except Exception as error:
            failed: Future[tuple[TextBlock, list[TemplatedText]] | None] = Future()
            failed.set_exception(error)
            return failed
        return thread.submit(lambda: None if block is None else (block, work.tokenize(block)))

    with ThreadPoolExecutor(1) as thread:
        future = tokenize_next()
        while (result := future.result()) is not None:
            block, tokens = result
            future = tokenize_next()
            vectors = work(block, advance, tokens)
            wait([future])
            yield vectors


@dataclass(frozen=True, slots=True)
class _ArrayEncoder:
    """Encodes a block of texts to an array for a pipe. A tensor would need shared memory, which can be small."""

    work: BlockEncoder

    def __call__(self, block: TextBlock) -> tuple[Array, int]:
        vectors, truncated = self.work(block)
        return vectors.numpy(), truncated


def join_blocks(blocks: Iterable[Tensor], total: int | None) -> Tensor | None:
    """Concatenates the vectors of all blocks, (N, D). Returns None if there is no block.

    Args:
        blocks: Vectors of each block, (n, D).
        total: Number of vectors, N, to allocate memory once. If None, the concatenation needs twice the memory.

    Raises:
        ValueError: The blocks have another number of vectors than ``total``.

    Example:
        >>> join_blocks([torch.zeros(2, 1), torch.ones(1, 1)], total=3).flatten()
        tensor([0., 0., 1.])
    """
    if total is None:
        parts = list(blocks)
        return torch.cat(parts) if parts else None
    joined, done = None, 0
    for block in blocks:
        start, done = done, done + len(block)
        if done > total:
            break
        if joined is None:
            joined = block.new_empty(total, block.shape[1])
        joined[start:done] = block
    if done != total:
        raise InvalidValueError(
            f"encode: expected {total:,} texts, as their len() says, got "
            f"{'more' if done > total else f'{done:,}'}; give an iterator over them"
        )
    return joined
