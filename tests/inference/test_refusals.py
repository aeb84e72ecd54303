"""Arguments of a model in use that are refused: each error names the argument and the value."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tiny
import torch

from contrastive_text.encoders import TransformerEncoder
from contrastive_text.inference import BatchEncoder, Encoding, SentenceEncoder, UnitVectors, top_k, value_ranges
from contrastive_text.inference import quantize as fewer_bits
from contrastive_text.inference.duplicates import check_threshold, near_duplicates
from contrastive_text.inference.runtimes import RuntimeEncoder
from contrastive_text.inference.search import nearest
from contrastive_text.inference.vector_files import Shard
from contrastive_text.poolers import MeanPooler

Call = Callable[[SentenceEncoder], object]
DRAWN = np.random.default_rng(0).normal(size=(150, 20)).astype(np.float32)
SEVEN = np.arange(20) == 7
TWO, ROW_THREE = torch.ones(2, 4), torch.ones(5, 2).index_fill_(0, torch.tensor([3]), torch.inf)
ROWS = {"id": np.arange(5), "text": np.array(tiny.TEXTS[:5], dtype=object)}
NO_TEXT = {"text": np.array(["a", None], dtype=object)}


def ranges(low: float, high: Any) -> Call:  # Any: numbers
    """Returns a call that quantizes with these ends of each feature's range."""
    ends = np.stack(np.broadcast_arrays(np.full(20, low), high))
    return lambda _: fewer_bits(DRAWN, "int8", ranges=ends)


def blocks(texts: Any, **options: Any) -> Call:  # Any: also what is refused
    """Returns a call that reads all blocks of the model's vectors of texts."""
    return lambda model: list(model.encode_blocks(texts, Encoding(**options)))


def loaded(name: str) -> Call:
    return lambda _: SentenceEncoder.from_pretrained(name)


class Four(list[str]):
    """Texts with a wrong number of them."""

    def __len__(self) -> int:
        return 4


VALUES: list[tuple[Call, str]] = [
    (blocks(["a"], batch_size=0), r"encode\.batch_size: .* got 0"),
    (blocks(["a"], block_size=0), r"encode\.block_size: .* got 0"),
    (blocks(["a"], precision="int4"), r"encode\.precision: .* got 'int4'"),
    (blocks(["a"], device=[]), "device: expected .* got an empty list"),
    (blocks(["a"], device=["cpu", "nope"]), "device: expected .* got 'nope'"),
    (blocks(["a"], max_length=33), r"encode\.max_length: expected at most 32 tokens, got 33"),
    (blocks(["a"], truncate_dim=0), "truncate_dim: expected 1 to 16 features, got 0"),
    (blocks(["a"], truncate_dim=17), "truncate_dim: expected 1 to 16 features, got 17"),
    (blocks(itertools.repeat("a"), precision="int8"), r"encode\.ranges: .*range of each feature for int8"),
    (blocks(["a"], precision="uint8", truncate_dim=5, ranges=np.zeros((2, 16))), r"\(2, 5\), got .* \(2, 16\)"),
    (blocks(["a long text", "b", "x\ud800"], block_size=2), r"D800\) at character 2 .* place 2"),
    (lambda model: model.encode(Four(["a"] * 3)), r"4 texts, as their len\(\) says, got 3; give an iterator"),
    (lambda model: model.encode(Four(["a"] * 5)), r"4 texts, as their len\(\) says, got more; give an iterator"),
    (lambda _: SentenceEncoder(TransformerEncoder(config=tiny.CONFIG), MeanPooler()), "got no tokenizer; train"),
    (loaded("no/such-model"), "model: expected .*folder.*no/such-model"),
    (loaded("/no/such/folder"), "model: expected .*folder.*/no/such/folder"),
    (lambda model: RuntimeEncoder(model.encoder, "tvm"), "backend: .*'tvm'"),
    (
        lambda model: RuntimeEncoder(model.encoder, "onnx", torch.bfloat16),
        r"dtype: .*got torch\.bfloat16; .*backend='onnx'",
    ),
    (lambda model: model.parts.with_runtime("torch", torch.int8), "dtype: .* floating-point .* backend='torch'"),
    (
        lambda _: fewer_bits(DRAWN, "uint8"),
        "range of each feature for uint8, got ranges=None; give ranges=value_",
    ),
    (lambda _: fewer_bits(DRAWN, "int4"), "precision: .* got 'int4'"),  # type: ignore[arg-type]  # the point
    (lambda _: fewer_bits(DRAWN, "int8", ranges=np.zeros((2, 19))), r"\(2, 20\), got the shape \(2, 19\)"),
    (lambda _: fewer_bits(np.where(SEVEN, np.nan, DRAWN), "binary"), "quantize: expected finite numbers"),
    (ranges(1, 0.0), "got 1 to 0 for feature 0 and 19 more"),
    (ranges(math.nan, math.nan), "got nan to nan for feature 0 and 19 more"),
    (ranges(0, np.where(SEVEN, np.inf, 1)), "got 0 to inf for feature 7; take"),
    (ranges(0, np.where(SEVEN, 0, 1)), "got 0 to 0 for feature 7; .* float32"),
    (ranges(-3e38, 3e38), r"got -3e[+]38 to 3e[+]38 for feature 0"),
    (ranges(0, 1e-45), "got 0 to 1.4013e-45 for feature 0"),
    (lambda _: value_ranges(DRAWN[:1]), r"two vectors or more, got the shape \(1, 20\)"),
    (lambda _: top_k(TWO[0], TWO, k=1), r"queries: expected a matrix \(N, D\), got the shape \(4,\)"),
    (lambda _: top_k(TWO, TWO[:, :3], k=1), "corpus: expected 4 features, as the queries have, got 3"),
    (lambda _: top_k(TWO, TWO.to(torch.int8), k=1), "corpus: expected floating-point vectors, got torch.int8"),
    (lambda _: top_k(TWO, TWO, k=0), "k: expected 1 or more, got 0"),
    (lambda _: top_k(TWO[:1, :2], ROW_THREE, k=1, block=2), "corpus: expected finite numbers, .* row 3"),
    (lambda _: UnitVectors.of(ROW_THREE), "corpus: expected finite numbers, got NaN or infinity in row 3"),
    (lambda _: near_duplicates(ROW_THREE, 0.5, block=2), "vectors: expected finite numbers, .* row 3"),
    (lambda _: near_duplicates(torch.ones(4, 2), 0.9, most=5), r"at most 5 pairs, got more at 0\.9"),
    (lambda _: nearest("dot", TWO, TWO[:, :2], k=1), "corpus: expected 4 features, as the queries have, got 2"),
    (lambda _: nearest("dot", TWO, TWO * torch.inf, k=1), "search: expected finite similarities"),
    (lambda _: check_threshold(0.0), "threshold: .* got 0.0"),
    (lambda _: check_threshold(1.01), "threshold: .* got 1.01"),
    (lambda _: check_threshold(math.nan), "threshold: .* got nan"),
    (lambda _: Shard.parse("17/16"), "got 17/16$"),
    (lambda _: Shard.parse("3"), "K/N, .* got '3'"),
]
TYPES: list[tuple[Call, str]] = [
    (blocks([None]), "expected texts, got NoneType at place 0"),
    (blocks([["a"]]), "expected texts, got list at place 0"),
    (blocks([*"abcde", 5], block_size=2), "expected texts, got int at place 5"),
    (lambda _: SentenceEncoder.from_pretrained("m", dtype="bf"), r"dtype: .* such as torch\.bfloat16, got 'bf'"),  # type: ignore[arg-type]  # the point
    (blocks("a bird"), "expected many texts, got one string; put it into a list"),
    (lambda _: fewer_bits(np.zeros((3, 8), np.int8), "binary"), r"floating-point vectors, got torch\.int8"),
]
BATCHES: list[tuple[dict[str, Any], object, str]] = [
    ({"column": "body"}, ROWS, r"BatchEncoder\.column: .*id, text, got 'body'"),
    ({"output": "id"}, ROWS, r"BatchEncoder\.output: .* got 'id'"),
    ({"column": "id"}, ROWS, "texts in column 'id', got int64 in row 0"),
    ({}, NO_TEXT, "texts in column 'text', got NoneType in row 1"),
    ({}, list(tiny.TEXTS), "expected a mapping of arrays or a table of Arrow, got list"),
    ({"encoding": Encoding(device=["cpu", "cpu"])}, ROWS, r"expected one device, got \['cpu', 'cpu'\]"),
]


@pytest.mark.parametrize(("call", "words"), VALUES, ids=[words for _, words in VALUES])
def test_a_value_that_cannot_be_is_refused(call: Call, words: str, model: SentenceEncoder) -> None:
    with pytest.raises(ValueError, match=words):
        call(model)


@pytest.mark.parametrize(("call", "words"), TYPES, ids=[words for _, words in TYPES])
def test_what_is_neither_text_nor_vector_is_refused(call: Call, words: str, model: SentenceEncoder) -> None:
    with pytest.raises(TypeError, match=words):
        call(model)


@pytest.mark.parametrize(("options", "batch", "words"), BATCHES, ids=[words for *_, words in BATCHES])
def test_a_batch_that_cannot_be_encoded_is_refused(
    options: dict[str, Any], batch: object, words: str, folder: str
) -> None:
    pytest.importorskip("pyarrow", reason="needs the extra parquet")
    with pytest.raises((TypeError, ValueError), match=words):
        BatchEncoder(folder, **options)(batch)
