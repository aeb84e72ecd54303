"""Tests of the pooler of a loaded model: its own, or a requested pooler without the model's head."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny
from torch import nn

from contrastive_text.encoders import TransformerEncoder
from contrastive_text.inference.model_parts import with_pooler
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.poolers import CLSPooler, FirstLastPooler, LastTwoPooler, MeanPooler, Pooler


@pytest.fixture(scope="module")
def saved(bert: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of [CLS] with a head that keeps 5 features, of which 3 are given."""
    folder = tmp_path_factory.mktemp("saved") / "model"
    head = nn.Sequential(nn.Linear(16, 5), nn.Tanh())
    SentenceEncoder(TransformerEncoder(bert), CLSPooler(), head, truncate_dim=3).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def own(saved: Path) -> SentenceEncoder:
    return SentenceEncoder.from_pretrained(saved, device="cpu")


@pytest.mark.parametrize(
    ("name", "pooler"),
    [
        ("MeanPooler", MeanPooler()),
        ("LastTwoPooler()", LastTwoPooler()),
        ("FirstLastPooler(first=block_1)", FirstLastPooler("block_1")),
        ("contrastive_text.poolers.FirstLastPooler(first='embeddings')", FirstLastPooler("embeddings")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_another_pooler_by_its_name_reads_the_network_without_the_head(
    own: SentenceEncoder, name: str, pooler: Pooler
) -> None:
    with pytest.warns(UserWarning, match="m is read with .*: its head belongs to CLSPooler and is left out"):
        read = SentenceEncoder.of(with_pooler(own.parts, name, "m"))
    assert np.array_equal(read.encode(tiny.TEXTS), SentenceEncoder(own.encoder, pooler).encode(tiny.TEXTS))
    assert read.pooling.startswith(type(pooler).__name__)
    assert "which you named in place of CLSPooler; its head belongs" in read.pooling
    assert read.identity != own.identity


def test_a_saved_model_is_read_with_the_pooler_that_is_asked_for(own: SentenceEncoder, saved: Path) -> None:
    named = SentenceEncoder.from_pretrained(saved, pooler="CLSPooler", device="cpu")
    assert own.pooling == named.pooling == "CLSPooler"
    assert own.identity == named.identity
    with pytest.warns(UserWarning, match="left out"):
        mean = SentenceEncoder.from_pretrained(saved, pooler="MeanPooler", device="cpu")
    assert mean.encode(tiny.TEXTS[:2]).shape == (2, 16) and named.encode(tiny.TEXTS[:2]).shape == (2, 3)


def test_a_model_without_a_head_is_read_without_a_warning_and_says_what_with(own: SentenceEncoder) -> None:
    plain = SentenceEncoder(own.encoder, FirstLastPooler("block_1")).parts
    with warnings.catch_warnings(action="error"):
        read = with_pooler(plain, FirstLastPooler("embeddings"), "m")
        unnamed = with_pooler(replace(plain, pooler=None), "CLSPooler", "m")
    first = "FirstLastPooler(first='embeddings'), which you named in place of FirstLastPooler(first='block_1')"
    assert (read.pooling, unnamed.pooling) == (first, "CLSPooler, asked for")


class Deep(Pooler):
    """A pooler of a layer that a network of two blocks lacks."""

    layers = (3, -1)

    def forward(self, hidden: object) -> None:  # type: ignore[override]  # never called
        """Is never called."""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("MeanPoler", "got MeanPoler; there is no such class; did you mean MeanPooler?"),
        ("Pooler", "expected a class .*, got the base class Pooler"),
        (
            "FirstLastPooler",
            "expected the arguments of FirstLastPooler, got missing a required argument: 'first'",
        ),
        ("FirstLastPooler(first=last)", "expected embeddings or block_1, got 'last'"),
        ("MeanPooler(1)", "expected arguments with their names"),
        ("a mean", "expected a part such as Class"),
        ("collections.OrderedDict", "expected a subclass of Pooler, got collections.OrderedDict"),
        ("Deep", r"expected layers 0 \(the embeddings\) to 2, got 3 of Deep"),
    ],
)
def test_a_name_that_is_no_pooler_of_the_model_is_refused_in_words(
    own: SentenceEncoder, name: str, expected: str
) -> None:
    with pytest.raises(ValueError, match=expected):
        with_pooler(own.parts, name, "m")
