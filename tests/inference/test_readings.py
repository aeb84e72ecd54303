"""Several poolers of one network: the vectors of each alone, from one pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from torch import nn

from contrastive_text.encoders import TransformerEncoder
from contrastive_text.evaluation.cached import CachedEncoder
from contrastive_text.inference import vectors_by_pooler
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.inference.several_poolers import models_by_pooler
from contrastive_text.poolers import CLSPooler

POOLERS = ("CLSPooler", "MeanPooler", "FirstLastPooler(first='block_1')", "LastTwoPooler")
ROUNDING = 1e-6  # float32: the head's matrix product is over other rows


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> SentenceEncoder:
    """A model of [CLS] with a head, unit length and features left out."""
    bert = tiny.save_bert(tmp_path_factory.mktemp("readings"))
    head = nn.Sequential(nn.Linear(16, 5), nn.Tanh())
    return SentenceEncoder(TransformerEncoder(bert), CLSPooler(), head, normalize=True, truncate_dim=3).eval()


@pytest.fixture
def passes(model: SentenceEncoder) -> list[int]:
    """Rows of each forward pass of the network, as they come."""
    rows: list[int] = []
    forward = model.encoder.blocks

    def counted(batch: Any, *args: Any, **options: Any) -> Any:
        rows.append(len(batch.lengths))
        return forward(batch, *args, **options)

    model.encoder.blocks = counted  # type: ignore[method-assign]  # counts, and calls it
    return rows


@pytest.mark.filterwarnings("ignore:the model is read with .* its head belongs to CLSPooler")
def test_several_poolers_share_one_pass_and_have_the_vectors_of_each_alone(
    model: SentenceEncoder, passes: list[int]
) -> None:
    texts = tiny.TEXTS[:20]
    alone = {
        name: each.encode(texts) for name, each in models_by_pooler(model.parts, POOLERS, "the model").items()
    }
    assert sum(rows for rows in passes if rows > 1) == len(POOLERS) * len(texts)
    passes.clear()
    found = vectors_by_pooler(model, POOLERS, texts)
    assert list(found) == list(alone) == list(POOLERS)
    assert [vectors.shape[1] for vectors in found.values()] == [3, 16, 16, 16]
    for name, vectors in found.items():
        np.testing.assert_allclose(vectors, alone[name], rtol=0, atol=ROUNDING)
    assert sum(rows for rows in passes if rows > 1) == len(texts)  # and a text for each, which measures its width


@pytest.mark.filterwarnings("ignore:the model is read with .* its head belongs to CLSPooler")
def test_cached_readings_share_passes_and_none_has_the_vectors_of_another(
    model: SentenceEncoder, passes: list[int], tmp_path: Path
) -> None:
    read = models_by_pooler(model.parts, POOLERS[:2], "the model")
    cls, mean = CachedEncoder.each(read, tmp_path).values()
    first = cls(tiny.TEXTS[:9])
    passes.clear()
    assert mean(tiny.TEXTS[:9]).shape == (9, 16) and passes == []  # encoded with the first
    assert (cls.encoded, mean.encoded) == (9, 9)
    (alone,) = CachedEncoder.each({"cls": model}, tmp_path).values()
    assert np.array_equal(alone(tiny.TEXTS[:9]), first) and alone.encoded == 0
    alone(tiny.TEXTS[9:12])
    again, other = CachedEncoder.each(read, tmp_path).values()
    assert other(tiny.TEXTS[:14]).shape == (14, 16) and (again.encoded, other.encoded) == (0, 5)
    assert again(tiny.TEXTS[:14]).shape == (14, 3) and (again.encoded, other.encoded) == (2, 5)


def test_one_pooler_twice_is_refused(model: SentenceEncoder) -> None:
    with pytest.raises(ValueError, match="expected different ones, got CLSPooler, CLSPooler"):
        vectors_by_pooler(model, ["CLSPooler", CLSPooler()], ["a"])
