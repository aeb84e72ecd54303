"""Encoding of texts to vectors: the options of one call, and the blocks in which it runs.

One block of texts is in memory, however many texts there are.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import numpy.typing as npt
import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

from contrastive_text.core.batch import sent
from contrastive_text.core.checks import at_least, one_of
from contrastive_text.core.errors import InvalidTextError, InvalidTypeError, InvalidValueError
from contrastive_text.core.native import check_not_forked
from contrastive_text.core.storage.text_files import lone_surrogate
from contrastive_text.core.types import NO_FRAME, Frame
from contrastive_text.data import TextTokenizer
from contrastive_text.data.collator import collate_texts
from contrastive_text.data.prompts import Prompts
from contrastive_text.data.tokenizing import Framed
from contrastive_text.encoders.prepacked import prepacked
from contrastive_text.encoders.shared_use import shared_network
from contrastive_text.inference.device_pool import check_devices, map_on_devices
from contrastive_text.inference.quantization import Precision, quantize
from contrastive_text.inference.runtimes import RuntimeEncoder

Vectors: TypeAlias = Tensor | npt.NDArray[Any]  # Any: float32, or a byte for some precisions

Device: TypeAlias = str | torch.device | list[str] | tuple[str, ...]
"""One device, or the names of several."""

BLOCK_SIZE = 16_384
"""Texts of a block: 256 batches of 64, so that sorting by length leaves almost no padding, and 25 MB of vectors
with 384 features."""

_QUOTED = 60
"""Characters of a text that an error shows."""

_PREPACKED_FROM = 2048
"""Tokens from which weights are reordered first: that costs some tenth of the time that it saves."""


@dataclass(frozen=True, slots=True, eq=False)  # an array is neither equal to another nor not
class Encoding:
    """Options of an encoding call; ``SentenceEncoder.encode`` has the same options and explains each.

    Args:
        block_size: Texts that are read, encoded and saved together.
        batch_size: Texts at once.
        normalize_embeddings: Whether to return vectors of unit length.
        prompt: Prompt of every text; None for the prompt of ``prompt_name``.
        prompt_name: Name of one of the model's prompts; None for its default.
        truncate_dim: Features to keep, the first ones; None for the model's own number, or all.
        precision: ``float32``, or a byte or a bit for each feature.
        ranges: Smallest and largest value of each feature, (2, D), for ``int8`` and ``uint8``.
        device: A device or a list; None for the model's device.
        max_length: Longest text in tokens with special tokens; None for the model's.

    Raises:
        ValueError: A size below 1, a name of no precision or no device, an empty list of devices, or both a
            prompt and the name of one.

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

    def __post_init__(self) -> None:
        if self.devices is not None:
            check_devices(self.devices)
        at_least("encode.batch_size", self.batch_size, 1)
        at_least("encode.block_size", self.block_size, 1)
        if self.prompt is not None and self.prompt_name is not None:
            raise InvalidValueError(
                f"encode.prompt: expected none beside prompt_name, got {self.prompt!r} and {self.prompt_name!r}; "
                "give one of them"
            )
        one_of("encode.precision", self.precision, Precision)

    def prompt_in(self, prompts: Prompts) -> str:
        """Returns the prompt of every text, by a model's prompts."""
        return prompts.text(self.prompt_name) if self.prompt is None else self.prompt

    @property
    def is_byte(self) -> bool:
        """Whether a feature becomes a byte, which needs ranges."""
        return self.precision in ("int8", "uint8")

    @property
    def devices(self) -> Sequence[str] | None:
        """The devices that each get a process; None for one device, which needs none."""
        return self.device if isinstance(self.device, list | tuple) else None


class TextBlock(NamedTuple):
    """Consecutive texts.

    Args:
        start: Place of the first text among all texts.
        texts: The texts.
    """

    start: int
    texts: list[str]


class VectorBlock(NamedTuple):
    """The vectors of a block.

    Args:
        vectors: (n, D), in the order of the texts.
        truncated: Number of texts that were cut at the length limit.
    """

    vectors: Tensor
    truncated: int


def text_blocks(sentences: Iterable[str], size: int) -> Iterator[TextBlock]:
    """Yields the texts in blocks, the last one shorter. Reads no text before its block is requested.

    Raises:
        TypeError: Something that is not text.
        ValueError: A text that UTF-8 can't hold.

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
            if (found := lone_surrogate(text)) is not None:
                got = f"{found} of the text at place {place}"
                raise InvalidValueError(
                    f"encode: expected texts that UTF-8 can hold, got {got}; mend or drop the text"
                )
        yield TextBlock(start, texts)
        start += len(texts)


@dataclass(frozen=True, slots=True)
class BlockEncoder:
    """Encodes a block of texts. The vectors depend on no other block.

    Args:
        model: From a batch (S rows) to vectors (S, D).
        tokenizer: The model's tokenizer.
        encoding: The options, with the model's own values in place of names and of None.
        on_cpu: Whether the vectors are copied to the CPU.
        frame: The prompt around each text.
    """

    model: nn.Module
    tokenizer: TextTokenizer
    encoding: Encoding
    on_cpu: bool = True
    frame: Frame = NO_FRAME

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return next(self.model.parameters()).device

    def tokens(self, block: TextBlock) -> list[Framed]:
        """Returns the tokens of a block's texts, without special tokens, for ``__call__``."""
        return self.tokenizer.framed(block.texts, self.frame, with_words=False)

    def __call__(
        self,
        block: TextBlock,
        advance: Callable[[int], object] | None = None,
        tokens: Sequence[Framed] | None = None,
    ) -> VectorBlock:
        """Returns the vectors of a block.

        Args:
            block: One text or more.
            advance: Called after every batch with its number of texts.
            tokens: The texts' tokens; None to tokenize them.

        Raises:
            ValueError: A vector that is not finite, or a model that another thread trains.
            RuntimeError: On a CPU, a process forked from one that had used a model.
        """
        if self.device.type == "cpu":
            check_not_forked("encode", has_pool=self.model.runtime is not None)
        framed = self.tokens(block) if tokens is None else tokens
        with shared_network(self.model) as network:
            vectors, truncated = self._encode(network, block, framed, advance)
        self._check(vectors, block)
        vectors = vectors[:, : self.encoding.truncate_dim].contiguous()
        if self.encoding.normalize_embeddings:
            vectors = nn.functional.normalize(vectors, dim=-1)
        if self.encoding.precision != "float32":
            vectors = quantize(vectors, self.encoding.precision, self.encoding.ranges)
        return VectorBlock(vectors.cpu() if self.on_cpu else vectors, truncated)

    @torch.no_grad()  # inference mode would keep the vectors out of training
    def _encode(
        self,
        network: nn.Module,
        block: TextBlock,
        framed: Sequence[Framed],
        advance: Callable[[int], object] | None,
    ) -> tuple[Tensor, int]:
        device, size = self.device, self.encoding.batch_size
        order = sorted(range(len(framed)), key=lambda i: -framed[i].length)
        parts, truncated = [], 0
        tokens = sum(text.length for text in framed)
        is_torchs = not any(isinstance(part, RuntimeEncoder) for part in network.modules())
        is_worth_it = is_torchs and device.type == "cpu" and tokens >= _PREPACKED_FROM
        with prepacked(network) if is_worth_it else nullcontext():
            for start in range(0, len(order), size):
                chosen = [framed[i] for i in order[start : start + size]]
                batch = collate_texts(self.tokenizer, chosen, self.frame.unpooled)
                truncated += batch.truncated
                try:
                    parts.append(network(batch.to(device)))
                except InvalidTextError as error:
                    number = order[start + error.number]
                    raise error.at(block.start + number, block.texts[number]) from None
                if advance is not None:
                    advance(len(batch))
        places = torch.tensor(order, dtype=torch.long).argsort()
        return torch.cat(parts)[sent(places, device)], truncated

    def _check(self, vectors: Tensor, block: TextBlock) -> None:
        if vectors.sum().isfinite():  # one pass; the sum of finite values is beyond float32 for absurd ones only
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
            f"encode: expected finite vectors, got another for text {block.start + damaged[0]} "
            f"({text[:_QUOTED]!r}); {cause}"
        )


def encode_each(
    work: BlockEncoder, sentences: Iterable[str], show_progress_bar: bool, count: Callable[[int], object]
) -> Generator[Tensor, None, None]:
    """Yields the vectors of each block of texts in order, on demand.

    Args:
        work: Encodes a block here. For several devices, a copy in a process for each encodes, and the vectors are
            on the CPU.
        sentences: Read a block at a time; on a GPU one block ahead, with several devices two for each.
        show_progress_bar: Whether to draw a bar.
        count: Called before each block with the number of texts so far that were cut at the length limit.
    """
    total, truncated = len(sentences) if isinstance(sentences, Sized) else None, 0
    blocks = text_blocks(sentences, work.encoding.block_size)
    columns = TextColumn("Encoding"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, disable=not show_progress_bar) as bar:
        task = bar.add_task("Encoding", total=total)
        if work.encoding.devices is None:
            # On a CPU a tokenizing thread slows the network: 0.97 to 0.99 of the speed on two cores.
            encode = encode_in_turn if work.device.type == "cpu" else encode_ahead
            results = encode(work, blocks, lambda texts: bar.advance(task, texts))
        else:
            results = encode_elsewhere(work, blocks, lambda texts: bar.advance(task, texts))
        with closing(results):
            for block in results:
                truncated += block.truncated
                count(truncated)
                yield block.vectors


def encode_in_turn(
    work: BlockEncoder, blocks: Iterator[TextBlock], advance: Callable[[int], object]
) -> Generator[VectorBlock, None, None]:
    """Yields the vectors of each block. Reads a block after the vectors of the block before are taken."""
    for block in blocks:
        yield work(block, advance)


def encode_elsewhere(
    work: BlockEncoder, blocks: Iterator[TextBlock], advance: Callable[[int], object]
) -> Generator[VectorBlock, None, None]:
    """Yields the same from processes, one for each device, with the vectors on the CPU."""
    assert work.encoding.devices is not None
    with closing(map_on_devices(_Sent(replace(work, on_cpu=True)), blocks, work.encoding.devices)) as results:
        for vectors, truncated in results:
            advance(len(vectors))
            yield VectorBlock(torch.from_numpy(vectors), truncated)


def encode_ahead(
    work: BlockEncoder, blocks: Iterator[TextBlock], advance: Callable[[int], object]
) -> Generator[VectorBlock, None, None]:
    """Yields the same, while a thread tokenizes the next block, which has been read before.

    Texts are read in the caller's thread. An error of a block is raised in its turn, after the vectors before it.
    Nothing runs while the caller uses the vectors.
    """

    def following() -> Future[tuple[TextBlock, list[Framed]] | None]:
        try:
            block = next(blocks, None)
        except Exception as error:
            failed: Future[tuple[TextBlock, list[Framed]] | None] = Future()
            failed.set_exception(error)
            return failed
        return thread.submit(lambda: None if block is None else (block, work.tokens(block)))

    with ThreadPoolExecutor(1) as thread:
        coming = following()
        while (ready := coming.result()) is not None:
            block, tokens = ready
            coming = following()
            vectors = work(block, advance, tokens)
            wait([coming])
            yield vectors


@dataclass(frozen=True, slots=True)
class _Sent:
    """Encodes to arrays, which are sent through a pipe. Tensors would use shared memory, which can be small."""

    work: BlockEncoder

    def __call__(self, block: TextBlock) -> tuple[npt.NDArray[Any], int]:  # Any: of the precision asked for
        vectors, truncated = self.work(block)
        return vectors.numpy(), truncated


def join_blocks(blocks: Iterable[Tensor], total: int | None) -> Tensor | None:
    """Returns the vectors of all blocks, (N, D), or None if there is no block.

    Args:
        blocks: (n, D) each.
        total: N, to allocate memory once; None if unknown, which takes twice as much memory at the end.

    Raises:
        ValueError: Another number of vectors.

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
