"""Vectors in fewer bits, against sentence-transformers' own and against loops that spell out the rules."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch

from contrastive_text.inference.quantization import PRECISIONS, Precision, quantize, value_ranges

DRAWN = np.random.default_rng(0).normal(size=(150, 20)).astype(np.float32)  # 20: not a whole number of bytes


@pytest.fixture(scope="module")
def theirs() -> Any:
    module = pytest.importorskip("sentence_transformers.util.quantization", reason="needs the dev extra")
    return module.quantize_embeddings


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("shape", [(150, 20), (150, 16), (1, 5), (20,)], ids=str)
def test_values_and_types_are_those_of_sentence_transformers(
    theirs: Any, precision: Precision, shape: tuple[int, ...]
) -> None:
    vectors = DRAWN.reshape(-1)[: math.prod(shape)].reshape(shape)
    ranges = np.stack([np.full(shape[-1], -1.5), np.full(shape[-1], 1.3)]).astype(np.float32)  # some are beyond
    expected = theirs(vectors, precision=precision, ranges=ranges)
    given = quantize(vectors, precision, ranges=ranges)
    assert given.numpy().dtype == expected.dtype
    assert np.array_equal(given.numpy(), expected)


@pytest.mark.parametrize("precision", ["int8", "uint8"])
def test_ranges_are_those_that_they_calibrate(theirs: Any, precision: Precision) -> None:
    expected = theirs(DRAWN[:30], precision=precision, calibration_embeddings=DRAWN)
    assert np.array_equal(quantize(DRAWN[:30], precision, ranges=value_ranges(DRAWN)).numpy(), expected)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_no_vectors_keep_width_and_type(precision: Precision) -> None:
    empty = quantize(torch.empty(0, 20), precision, ranges=torch.tensor([[0.0], [1.0]]).expand(2, 20))
    assert empty.shape == (0, 3 if "binary" in precision else 20)
    assert empty.dtype == quantize(torch.from_numpy(DRAWN), precision, ranges=value_ranges(DRAWN)).dtype


def test_bits_are_the_signs_in_the_order_of_the_features() -> None:
    for row, packed in zip(DRAWN, quantize(DRAWN, "ubinary").tolist(), strict=True):
        bits = "".join("1" if value > 0 else "0" for value in row) + "0000"
        assert packed == [int(bits[i : i + 8], base=2) for i in (0, 8, 16)]
    assert quantize(np.zeros(8, dtype=np.float32), "ubinary").tolist() == [0]  # 0 is not above 0


def test_a_byte_is_the_step_between_the_ends_of_the_range() -> None:
    ranges = torch.tensor([[-100.0, 2.0], [155.0, 257.0]])  # steps of 1
    vectors = torch.tensor([[-100.0, 2.0], [155.0, 2.5], [-999.0, 1.0], [999.0, 400.0], [0.9, 3.0]])
    expected = [[0, 0], [255, 0], [0, 0], [255, 255], [100, 1]]
    assert quantize(vectors, "uint8", ranges=ranges).tolist() == expected
    signed = [[low - 128, high - 128] for low, high in expected]
    assert quantize(vectors, "int8", ranges=ranges).tolist() == signed


def test_few_vectors_for_ranges_give_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        value_ranges(DRAWN[:100])
    with pytest.warns(UserWarning, match="from 99 vectors are a matter of luck; take 100 or more"):
        value_ranges(DRAWN[:99])
