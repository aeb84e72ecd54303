"""Blocks of texts whose tokens are made while the block before is encoded: the same vectors, and nothing else."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from unittest import mock

import pytest
import tiny
import torch

from contrastive_text.core.batch import Batch
from contrastive_text.core.types import NO_TEMPLATE, Template
from contrastive_text.data import TextTokenizer
from contrastive_text.data.tokenizing import TemplatedText
from contrastive_text.inference.encoding import (
    BlockEncoder,
    Encoding,
    encode_serially,
    encode_text_blocks,
    encode_with_prefetch,
    text_blocks,
)
from contrastive_text.inference.sentence_encoder import SentenceEncoder

LONGEST = 30
"""Seconds to wait for a thread, which takes far less."""


@pytest.fixture(scope="module")
def work(model: SentenceEncoder) -> BlockEncoder:
    return BlockEncoder(model, model.tokenizer, Encoding(block_size=9, batch_size=4), template=NO_TEMPLATE)


def nothing(_: int) -> None:
    pass


def workers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if "ThreadPoolExecutor" in thread.name]


@pytest.mark.parametrize("count", [0, 5, 9, 40])
def test_what_is_encoded_ahead_has_the_same_bits(work: BlockEncoder, count: int) -> None:
    texts = [" ".join(tiny.TEXTS), *tiny.TEXTS][:count]
    done: list[int] = []
    ahead = list(encode_with_prefetch(work, text_blocks(texts, 9), done.append))
    in_turn = list(encode_serially(work, text_blocks(texts, 9), nothing))
    assert [block.truncated for block in ahead] == [block.truncated for block in in_turn]
    for given, expected in zip(ahead, in_turn, strict=True):
        assert torch.equal(given.vectors, expected.vectors)
    assert sum(done) == count


def test_a_block_is_tokenized_while_the_one_before_is_encoded(work: BlockEncoder) -> None:
    tokenized = [threading.Event() for _ in range(3)]
    threads = []
    templated, forward = TextTokenizer.tokenize_with_template, SentenceEncoder.forward

    def tell(
        own: TextTokenizer, texts: Sequence[str], template: Template, with_words: bool
    ) -> list[TemplatedText]:
        threads.append(threading.current_thread())
        tokenized[len(threads) - 1].set()
        return templated(own, texts, template, with_words)

    def heed(own: SentenceEncoder, batch: Batch) -> torch.Tensor:
        assert tokenized[min(len(blocks) + 1, 2)].wait(LONGEST)
        return forward(own, batch)

    blocks: list[object] = []
    with (
        mock.patch.object(TextTokenizer, "tokenize_with_template", tell),
        mock.patch.object(SentenceEncoder, "forward", heed),
    ):
        for block in encode_with_prefetch(work, text_blocks(tiny.TEXTS[:27], 9), nothing):
            blocks.append(block)  # so that it is as long while the next one is made
    assert len(blocks) == len(threads) == 3
    assert threading.main_thread() not in threads


def test_texts_are_read_one_block_ahead_in_the_thread_of_who_asks(work: BlockEncoder) -> None:
    read = []

    def texts() -> Iterator[str]:
        for number in itertools.count():
            read.append(threading.current_thread())
            yield tiny.TEXTS[number % 40]

    blocks = encode_with_prefetch(work, text_blocks(texts(), 9), nothing)
    for asked in range(1, 4):
        next(blocks)
        assert len(read) == (asked + 1) * 9
    blocks.close()
    assert set(read) == {threading.current_thread()}
    assert not workers()


def test_an_error_comes_in_its_turn_and_leaves_nothing_running(work: BlockEncoder) -> None:
    blocks = encode_with_prefetch(work, text_blocks([*tiny.TEXTS[:9], 5], 9), nothing)  # type: ignore[list-item]  # the point
    assert len(next(blocks).vectors) == 9
    with pytest.raises(TypeError, match="expected texts, got int at place 9"):
        next(blocks)
    assert not workers()
    blocks = encode_with_prefetch(work, text_blocks(tiny.TEXTS, 9), nothing)
    next(blocks)
    with (
        mock.patch.object(SentenceEncoder, "forward", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        next(blocks)
    assert not workers()


def test_on_a_cpu_no_thread_takes_from_the_network(work: BlockEncoder) -> None:
    with mock.patch("contrastive_text.inference.encoding.ThreadPoolExecutor", side_effect=AssertionError):
        assert len(list(encode_text_blocks(work, tiny.TEXTS, show_progress_bar=False, count=nothing))) == 5
