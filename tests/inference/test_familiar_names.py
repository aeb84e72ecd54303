"""Names of sentence-transformers and scikit-learn: lengths, token vectors, a model in a pipeline."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import tiny
import torch
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from contrastive_text.inference.sentence_encoder import SentenceEncoder

# float32: another batch means another order of the sums in a matrix product. Vectors have entries of size 1.
ROUNDING = 1e-5
LONG = " ".join(tiny.TEXTS)


def test_the_dimension_is_that_of_the_vectors(folder: str) -> None:
    model = SentenceEncoder.from_pretrained(folder)
    assert model.get_embedding_dimension() == model.get_sentence_embedding_dimension() == 16
    model = SentenceEncoder.from_pretrained(folder, truncate_dim=5)
    assert model.get_sentence_embedding_dimension() == model.encode("a bird").shape[0] == 5


def test_a_set_length_truncates_texts_queries_and_saved_models(folder: str, tmp_path: Path) -> None:
    model = SentenceEncoder.from_pretrained(folder)
    expected = model.encode(LONG, max_length=6)
    model.query_length = 9
    model.max_seq_length = 6
    assert (model.max_length, model.max_seq_length, model.query_length) == (6, 6, None)
    assert np.array_equal(model.encode(LONG), expected) and np.array_equal(model.encode_query(LONG), expected)
    model.save_pretrained(tmp_path / "short")
    assert SentenceEncoder.from_pretrained(tmp_path / "short").max_seq_length == 6
    model.max_length = None
    assert model.max_length == 32
    with pytest.raises(ValueError, match=r"SentenceEncoder\.max_length: expected at most 32 tokens, got 33"):
        model.max_seq_length = 33
    with pytest.raises(ValueError, match=r"max_length: expected room for a token .* got 2"):
        model.max_seq_length = 2
    assert model.max_length == 32


@pytest.mark.parametrize("prompt", [None, "the bird: "])
def test_token_vectors_are_those_of_sentence_transformers(folder: str, prompt: str | None) -> None:
    theirs = pytest.importorskip("sentence_transformers").SentenceTransformer(folder, device="cpu")
    model = SentenceEncoder.from_pretrained(folder, device="cpu")
    texts = [*tiny.TEXTS[:7], LONG, "bird"]
    vectors = model.encode(texts, batch_size=3, output_value="token_embeddings", prompt=prompt)
    assert model.truncated == 1
    expected = theirs.encode(texts, batch_size=3, output_value="token_embeddings", prompt=prompt)
    assert type(vectors) is type(expected) is list
    for tokens, their_tokens in zip(vectors, expected, strict=True):
        torch.testing.assert_close(tokens, their_tokens, rtol=0, atol=ROUNDING)
    single = model.encode(texts[0], output_value="token_embeddings", prompt=prompt)
    torch.testing.assert_close(single, expected[0], rtol=0, atol=ROUNDING)
    assert model.encode([], output_value="token_embeddings") == []


def test_options_that_token_vectors_cannot_have_are_refused(model: SentenceEncoder) -> None:
    refused: dict[str, Any] = {"normalize_embeddings": True, "truncate_dim": 3, "precision": "binary"}
    refused |= {"ranges": np.zeros((2, 16)), "device": ["cpu", "cpu"]}
    for name, value in refused.items():
        with pytest.raises(
            ValueError, match=rf"encode\.{name}: expected .* with output_value='token_embeddings'"
        ):
            model.encode(["bird"], output_value="token_embeddings", **{name: value})
    with pytest.raises(ValueError, match=r"encode\.output_value: expected .*, got 'tokens'"):
        model.encode("bird", output_value="tokens")  # type: ignore[call-overload]  # the error
    damaged = pickle.loads(pickle.dumps(model))
    with torch.no_grad():
        damaged.encoder.model.embeddings.word_embeddings.weight.fill_(torch.nan)
    with pytest.raises(ValueError, match="expected finite vectors, got NaN or infinity for text 0"):
        damaged.encode(["bird", "dog"], output_value="token_embeddings")


LABELS = [number % 2 for number in range(40)]


def test_a_pipeline_of_scikit_learn_takes_the_model(model: SentenceEncoder) -> None:
    pipeline = make_pipeline(model, LogisticRegression())
    assert pipeline.fit(tiny.TEXTS, LABELS) is pipeline
    alone = LogisticRegression().fit(model.encode(tiny.TEXTS), LABELS)
    expected = alone.predict_proba(model.encode(tiny.TEXTS))
    for texts in (tiny.TEXTS, np.array(tiny.TEXTS), pandas.Series(tiny.TEXTS, index=range(40, 80))):
        np.testing.assert_allclose(pipeline.predict_proba(texts), expected, rtol=0, atol=ROUNDING)
    assert "SentenceEncoder" in repr(pipeline) and pipeline._repr_html_()
    assert clone(pipeline)[0] is model and pickle.loads(pickle.dumps(pipeline)).predict(["bird"]).shape == (1,)


def test_the_models_of_a_cross_validated_grid_are_one(model: SentenceEncoder) -> None:
    pipeline = make_pipeline(model, LogisticRegression())
    search = GridSearchCV(pipeline, {"logisticregression__C": [0.1, 1.0]}, cv=2).fit(tiny.TEXTS, LABELS)
    assert search.best_estimator_[0] is model
    with pytest.raises(
        ValueError, match=r"SentenceEncoder\.set_params: expected no parameters, got truncate_dim"
    ):
        pipeline.set_params(sentenceencoder__truncate_dim=3)


def test_a_column_of_a_table_is_a_step_next_to_others(model: SentenceEncoder) -> None:
    table = pandas.DataFrame({"text": tiny.TEXTS, "length": range(40)})
    columns = ColumnTransformer([("text", model, "text"), ("length", "passthrough", ["length"])])
    features = columns.fit_transform(table)
    np.testing.assert_allclose(features[:, :16], model.encode(tiny.TEXTS), rtol=0, atol=ROUNDING)
    assert features[:, 16].tolist() == [*range(40)]
    for texts, shape in ((table[["text"]], r"\(40, 1\)"), ("a bird", r"\(\)")):
        with pytest.raises(
            TypeError, match=f"transform: expected N texts in one column, got .* of shape {shape}"
        ):
            model.transform(texts)
    with pytest.raises(TypeError, match="expected texts, got float at place 1"):
        model.transform(pandas.Series(["a", float("nan")], dtype=object))
