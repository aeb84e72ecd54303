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
from contrastive_text.inference.runtimes import check_backend
from contrastive_text.inference.search import nearest
from contrastive_text.poolers import MeanPooler

DRAWN = np.random.default_rng(0).normal(size=(150, 20)).astype(np.float32)
DAMAGED = np.where(np.arange(20) == 7, np.nan, DRAWN)
SEVEN = np.arange(20) == 7
VECTORS = torch.ones(2, 4)
ROW_THREE = torch.ones(5, 2).index_fill_(0, torch.tensor([3]), torch.inf)


def ranges(low: float, high: Any) -> Callable[[], object]:  # Any: numbers
    """Returns a call that quantizes with these ends of each feature's range."""
    ends = np.stack(np.broadcast_arrays(np.full(20, low), high))
    return lambda: fewer_bits(DRAWN, "int8", ranges=ends)


PLAIN: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "no batch": (lambda: Encoding(batch_size=0), ValueError, r"encode\.batch_size: .* got 0"),
    "no block": (lambda: Encoding(block_size=0), ValueError, r"encode\.block_size: .* got 0"),
    "an unknown precision": (
        lambda: Encoding(precision="int4"),  # type: ignore[arg-type]  # the point
        ValueError,
        r"encode\.precision: .* got 'int4'",
    ),
    "no device": (lambda: Encoding(device=[]), ValueError, "device: expected .* got an empty list"),
    "an unknown device": (lambda: Encoding(device=["cpu", "nope"]), ValueError, "device: expected .* got 'nope'"),
    "no tokenizer": (
        lambda: SentenceEncoder(TransformerEncoder(config=tiny.CONFIG), MeanPooler()),
        ValueError,
        "expected an encoder with a tokenizer, got none",
    ),
    "a missing model": (
        lambda: SentenceEncoder.from_pretrained("no/such-model"),
        ValueError,
        "model: expected .*folder.*no/such-model",
    ),
    "a missing folder": (
        lambda: SentenceEncoder.from_pretrained("/no/such/folder"),
        ValueError,
        "model: expected .*folder.*/no/such/folder",
    ),
    "an unknown backend": (lambda: check_backend("tvm", torch.float32), ValueError, "backend: .*'tvm'"),
    "a type that onnxruntime lacks": (
        lambda: check_backend("onnx", torch.bfloat16),
        ValueError,
        r"dtype: .*got torch\.bfloat16; .*backend='onnx'",
    ),
    "bytes without ranges": (
        lambda: fewer_bits(DRAWN, "uint8"),
        ValueError,
        "range of each feature for uint8, got none; give ranges=value_",
    ),
    "ranges of other features": (
        lambda: fewer_bits(DRAWN, "int8", ranges=np.zeros((2, 19))),
        ValueError,
        r"\(2, 20\), got the shape \(2, 19\)",
    ),
    "ranges the wrong way round": (ranges(1, 0.0), ValueError, "got 1 to 0 for feature 0 and 19 more"),
    "ranges of NaN": (ranges(math.nan, math.nan), ValueError, "got nan to nan for feature 0 and 19 more"),
    "an infinite range": (ranges(0, np.where(SEVEN, np.inf, 1)), ValueError, "got 0 to inf for feature 7; take"),
    "an empty range": (ranges(0, np.where(SEVEN, 0, 1)), ValueError, "got 0 to 0 for feature 7; .* float32"),
    "a range beyond float32": (ranges(-3e38, 3e38), ValueError, r"got -3e[+]38 to 3e[+]38 for feature 0"),
    "a range below float32": (ranges(0, 1e-45), ValueError, "got 0 to 1.4013e-45 for feature 0"),
    "ranges of one vector": (lambda: value_ranges(DRAWN[:1]), ValueError, r"got the shape \(1, 20\)"),
    "NaN in fewer bits": (
        lambda: fewer_bits(DAMAGED, "binary"),
        ValueError,
        "quantize: expected finite numbers",
    ),
    "bytes in fewer bits": (
        lambda: fewer_bits(np.zeros((3, 8), np.int8), "binary"),
        TypeError,
        r"expected floating-point vectors, got torch\.int8",
    ),
    "a query that is no matrix": (
        lambda: top_k(torch.ones(4), VECTORS, k=1),
        ValueError,
        r"queries: expected a matrix \(N, D\), got the shape \(4,\)",
    ),
    "a corpus of other features": (
        lambda: top_k(VECTORS, VECTORS[:, :3], k=1),
        ValueError,
        "corpus: expected 4 features, as the queries have, got 3",
    ),
    "a corpus of integers": (
        lambda: top_k(VECTORS, VECTORS.to(torch.int8), k=1),
        ValueError,
        "corpus: expected floating-point vectors, got torch.int8",
    ),
    "no hits": (lambda: top_k(VECTORS, VECTORS, k=0), ValueError, "k: expected 1 or more, got 0"),
    "an infinite corpus": (
        lambda: top_k(VECTORS[:1, :2], ROW_THREE, k=1, block=2),
        ValueError,
        "corpus: expected finite numbers, got others in row 3",
    ),
    "infinite vectors": (
        lambda: near_duplicates(ROW_THREE, threshold=0.5, block=2),
        ValueError,
        "vectors: expected finite numbers, got others in row 3",
    ),
    "an infinite corpus made ready": (
        lambda: UnitVectors.of(ROW_THREE),
        ValueError,
        "corpus: expected finite numbers, got others in row 3",
    ),
    "other features by dot product": (
        lambda: nearest("dot", VECTORS, VECTORS[:, :2], k=1),
        ValueError,
        "corpus: expected 4 features, as the queries have, got 2",
    ),
    "infinite dot products": (
        lambda: nearest("dot", VECTORS, VECTORS * torch.inf, k=1),
        ValueError,
        "search: expected finite similarities",
    ),
    "too many pairs": (
        lambda: near_duplicates(torch.ones(4, 2), threshold=0.9, most=5),
        ValueError,
        r"expected at most 5 pairs, got more at 0\.9; take a higher one",
    ),
    **{
        f"a threshold of {value}": (
            lambda value=value: check_threshold(value),
            ValueError,
            f"threshold: .*{value}",
        )
        for value in (0.0, -0.5, 1.01, math.nan)
    },
}
OF_A_MODEL: dict[str, tuple[Callable[[SentenceEncoder], object], type[Exception], str]] = {
    "None for a text": (
        lambda model: model.encode([None]),  # type: ignore[list-item]  # the point
        TypeError,
        "expected texts, got NoneType at place 0",
    ),
    "a number for a text": (
        lambda model: model.encode(["a", 3]),  # type: ignore[list-item]  # the point
        TypeError,
        "expected texts, got int at place 1",
    ),
    "a number in a later block": (
        lambda model: list(model.encode_blocks([*"abcde", 5], Encoding(block_size=2))),  # type: ignore[list-item]  # the point
        TypeError,
        "expected texts, got int at place 5",
    ),
    "one text for blocks": (
        lambda model: model.encode_blocks("a bird"),
        TypeError,
        "expected many texts, got one string; put it into a list",
    ),
    "a length above the limit": (
        lambda model: model.encode(["a"], max_length=33),
        ValueError,
        r"encode\.max_length: expected at most 32 tokens, got 33",
    ),
    **{
        f"{features} features": (
            lambda model, features=features: model.encode_blocks(["a"], Encoding(truncate_dim=features)),
            ValueError,
            f"truncate_dim: expected 1 to 16 features, got {features}",
        )
        for features in (0, 17, -1)
    },
    "bytes without ranges": (
        lambda model: model.encode_blocks(itertools.repeat("a"), Encoding(precision="int8")),
        ValueError,
        r"encode\.ranges: expected the range of each feature for int8",
    ),
    "ranges of more features": (
        lambda model: model.encode(["a"], precision="uint8", truncate_dim=5, ranges=np.zeros((2, 16))),
        ValueError,
        r"expected smallest and largest value of 5 features, \(2, 5\), got the shape \(2, 16\)",
    ),
}


@pytest.mark.parametrize("name", PLAIN)
def test_an_argument_that_cannot_be_is_refused_with_its_value(name: str) -> None:
    call, error, words = PLAIN[name]
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize("name", OF_A_MODEL)
def test_an_argument_of_a_model_is_refused_before_anything_is_read(name: str, model: SentenceEncoder) -> None:
    call, error, words = OF_A_MODEL[name]
    with pytest.raises(error, match=words):
        call(model)


@pytest.fixture(scope="module")
def model(bert: str) -> SentenceEncoder:
    return SentenceEncoder.from_pretrained(bert, pooler=MeanPooler())


BATCHES: dict[str, tuple[dict[str, Any], object, type[Exception], str]] = {
    "no column of texts": ({"column": "body"}, None, ValueError, r"BatchEncoder\.column: .*id, text, got 'body'"),
    "a column in its place": ({"output": "id"}, None, ValueError, r"BatchEncoder\.output: .* got 'id'"),
    "a column of numbers": ({"column": "id"}, None, TypeError, "texts in column 'id', got int64 in row 0"),
    "a text that is None": (
        {},
        {"text": np.array(["a", None], dtype=object)},
        TypeError,
        "texts in column 'text', got NoneType in row 1",
    ),
    "a list": ({}, list(tiny.TEXTS), TypeError, "expected a mapping of arrays or a table of Arrow, got list"),
    "several devices": (
        {"encoding": Encoding(device=["cpu", "cpu"])},
        None,
        ValueError,
        r"expected one device, got \['cpu', 'cpu'\]",
    ),
}


@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_that_cannot_be_encoded_is_refused(name: str, folder: str) -> None:
    pytest.importorskip("pyarrow", reason="needs the extra parquet")
    options, batch, error, words = BATCHES[name]
    texts = {"id": np.arange(5), "text": np.array(tiny.TEXTS[:5], dtype=object)}
    with pytest.raises(error, match=words):
        BatchEncoder(folder, **options)(texts if batch is None else batch)


@pytest.fixture(scope="module")
def folder(model: SentenceEncoder, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("batches") / "model"
    model.save_pretrained(folder)
    return str(folder)
