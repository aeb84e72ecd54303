"""A model in use: encode, similarity, search, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from torch import nn

from contrastive_text.encoders import TransformerEncoder
from contrastive_text.poolers import CLSPooler, MeanPooler
from contrastive_text.sentence_encoder import SentenceEncoder

# float32: another batch means another width of padding and another order of the sums in a matrix product.
# Vectors have entries of size 1.
ROUNDING = 1e-5


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny.save_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def model(bert: str) -> SentenceEncoder:
    return SentenceEncoder.from_pretrained(bert, pooler=MeanPooler())


# encode


def test_vectors_come_in_the_order_of_the_texts_whatever_their_lengths(model: SentenceEncoder) -> None:
    texts = [tiny.TEXTS[3], "bird", *tiny.TEXTS[10:14], "the man", tiny.TEXTS[3]]
    vectors = model.encode(texts, batch_size=3)
    assert isinstance(vectors, np.ndarray)
    assert vectors.shape == (8, 16)
    assert vectors.dtype == np.float32
    for text, vector in zip(texts, vectors, strict=True):
        np.testing.assert_allclose(vector, model.encode(text), rtol=0, atol=ROUNDING)
    distances = np.linalg.norm(vectors[:, None] - vectors, axis=-1)
    assert (distances[~np.eye(8, dtype=bool)] > 0.1).sum() == 8 * 7 - 2  # only the text that stands twice


def test_one_string_gives_one_vector_and_a_list_of_one_a_matrix(model: SentenceEncoder) -> None:
    assert model.encode(tiny.TEXTS[0]).shape == (16,)
    assert model.encode([tiny.TEXTS[0]]).shape == (1, 16)
    assert model.encode(tiny.TEXTS[:2]).shape == (2, 16)  # a tuple


def test_no_texts_give_an_empty_matrix_of_the_right_width(model: SentenceEncoder) -> None:
    assert model.encode([]).shape == (0, 16)
    with_head = SentenceEncoder(model.encoder, model.pooler, head=nn.Sequential(nn.Linear(16, 3), nn.Tanh()))
    assert with_head.encode([], convert_to_tensor=True).shape == (0, 3)


@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_the_batch_size_changes_nothing(model: SentenceEncoder, batch_size: int) -> None:
    expected = model.encode(tiny.TEXTS, batch_size=40)
    np.testing.assert_allclose(model.encode(tiny.TEXTS, batch_size=batch_size), expected, rtol=0, atol=ROUNDING)


def test_the_vectors_are_those_of_transformers_by_hand(model: SentenceEncoder) -> None:
    inputs = model.encoder.tokenizer(list(tiny.TEXTS), padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = model.encoder.model(**inputs).last_hidden_state
    mask = inputs["attention_mask"].unsqueeze(-1)
    expected = (hidden * mask).sum(dim=1) / mask.sum(dim=1)
    vectors = model.encode(tiny.TEXTS, convert_to_tensor=True)
    torch.testing.assert_close(vectors, expected, rtol=0, atol=ROUNDING)


def test_a_tensor_is_given_when_asked(model: SentenceEncoder) -> None:
    vectors = model.encode(tiny.TEXTS[:3], convert_to_tensor=True)
    assert isinstance(vectors, torch.Tensor)
    assert not vectors.requires_grad
    assert np.array_equal(vectors.numpy(), model.encode(tiny.TEXTS[:3]))


def test_normalised_vectors_have_unit_length_and_the_same_direction(model: SentenceEncoder) -> None:
    plain, unit = (model.encode(tiny.TEXTS, normalize_embeddings=on) for on in (False, True))
    lengths = np.linalg.norm(plain, axis=1, keepdims=True)
    assert float(np.abs(lengths - 1).min()) > 0.1
    np.testing.assert_allclose(unit, plain / lengths, rtol=0, atol=1e-6)  # float32, one division


def test_a_prompt_stands_before_every_text(model: SentenceEncoder) -> None:
    prompted = model.encode(["bird", "the man"], prompt="an old ")
    np.testing.assert_allclose(prompted, model.encode(["an old bird", "an old the man"]), rtol=0, atol=ROUNDING)
    assert float(np.abs(prompted - model.encode(["bird", "the man"])).max()) > 0.1


def test_encoding_switches_dropout_off_and_is_repeatable(model: SentenceEncoder) -> None:
    model.train()
    first = model.encode(tiny.TEXTS)
    model.train()
    assert np.array_equal(first, model.encode(tiny.TEXTS))


@pytest.mark.parametrize(("texts", "name"), [([None], "NoneType"), (["a", 3], "int"), ([["a"]], "list")])
def test_what_is_not_text_is_refused_with_its_place(model: SentenceEncoder, texts: list[str], name: str) -> None:
    with pytest.raises(TypeError, match=f"expected texts, got {name} at place {len(texts) - 1}"):
        model.encode(texts)


def test_a_batch_of_none_is_refused(model: SentenceEncoder) -> None:
    with pytest.raises(ValueError, match=r"encode\.batch_size: expected 1 or more, got 0"):
        model.encode(["a"], batch_size=0)


def test_a_text_above_the_limit_is_cut(model: SentenceEncoder) -> None:
    words = " ".join(tiny.TEXTS).split()
    whole, head = " ".join(words[:200]), " ".join(words[:30])
    assert model.max_length == 32
    assert len(model.encoder.tokenizer(head).input_ids) == 32  # the 30 words are all known ones
    vectors = model.encode([whole, head])
    np.testing.assert_allclose(vectors[0], vectors[1], rtol=0, atol=ROUNDING)


def test_a_shorter_limit_of_one_s_own_holds(bert: str) -> None:
    short = SentenceEncoder(TransformerEncoder(bert), CLSPooler(), max_length=4)
    vectors = short.encode(["the old bird sings", "the old dog"])
    np.testing.assert_allclose(vectors[0], short.encode("the old"), rtol=0, atol=ROUNDING)
    np.testing.assert_allclose(vectors[0], vectors[1], rtol=0, atol=ROUNDING)


def test_an_empty_text_has_a_vector_of_its_special_tokens(model: SentenceEncoder) -> None:
    vectors = model.encode(["", tiny.TEXTS[0], "  "])
    assert np.isfinite(vectors).all()
    np.testing.assert_allclose(vectors[0], vectors[2], rtol=0, atol=ROUNDING)
    assert float(np.abs(vectors[0] - vectors[1]).max()) > 0.1


def test_a_model_without_a_tokenizer_is_refused() -> None:
    with pytest.raises(ValueError, match="expected an encoder with a tokenizer, got none; train it first"):
        SentenceEncoder(TransformerEncoder(config=tiny.CONFIG), MeanPooler())


# similarity and search


def test_similarity_is_the_cosine_of_every_pair(model: SentenceEncoder) -> None:
    some, others = model.encode(tiny.TEXTS[:3]), model.encode(tiny.TEXTS[5:9], convert_to_tensor=True)
    scores = model.similarity(some, others)
    assert scores.shape == (3, 4)
    for i in range(3):
        for j in range(4):
            u, v = some[i].astype(np.float64), others[j].numpy().astype(np.float64)
            cosine = u @ v / np.linalg.norm(u) / np.linalg.norm(v)
            assert float(scores[i, j]) == pytest.approx(cosine, abs=1e-6)  # float32


def test_search_finds_the_nearest_texts_best_first(model: SentenceEncoder) -> None:
    corpus = tiny.TEXTS[:20]
    hits = model.search([corpus[4], "the young woman opens the door"], corpus, top_k=6)
    assert [len(found) for found in hits] == [6, 6]
    assert hits[0][0].corpus_id == 4
    assert hits[0][0].score == pytest.approx(1.0, abs=1e-5)  # float32
    scores = model.similarity(model.encode(["the young woman opens the door"]), model.encode(corpus))[0]
    assert [hit.corpus_id for hit in hits[1]] == scores.argsort(descending=True)[:6].tolist()
    assert [hit.score for hit in hits[1]] == sorted((hit.score for hit in hits[1]), reverse=True)


def test_search_takes_vectors_one_query_and_more_hits_than_there_are(model: SentenceEncoder) -> None:
    corpus = list(tiny.TEXTS[:4])
    from_texts = model.search(corpus[1], corpus, top_k=10)
    assert from_texts[0][0].corpus_id == 1
    assert len(from_texts) == 1
    assert len(from_texts[0]) == 4
    for vectors in (model.encode(corpus), model.encode(corpus, convert_to_tensor=True)):
        assert model.search(corpus[1], vectors, top_k=10) == from_texts


# What loads


def test_a_plain_transformers_folder_takes_the_mean_and_says_so(bert: str, model: SentenceEncoder) -> None:
    with pytest.warns(UserWarning, match="names no pooler: taking the mean over tokens; give pooler="):
        guessed = SentenceEncoder.from_pretrained(bert)
    assert np.array_equal(guessed.encode(tiny.TEXTS), model.encode(tiny.TEXTS))


def test_another_pooler_than_the_saved_one_is_refused(model: SentenceEncoder, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    with pytest.raises(
        ValueError, match="was saved with MeanPooler, got CLSPooler; its scores would not be comp"
    ):
        SentenceEncoder.from_pretrained(tmp_path, pooler=CLSPooler())
    same = SentenceEncoder.from_pretrained(tmp_path, pooler=MeanPooler())
    assert np.array_equal(same.encode(tiny.TEXTS), model.encode(tiny.TEXTS))


@pytest.mark.parametrize("name", ["no/such-model", "/no/such/folder"])
def test_a_model_that_is_not_there_is_refused_in_words(name: str) -> None:
    with pytest.raises(ValueError, match=f"model: expected .*folder.*{name}"):
        SentenceEncoder.from_pretrained(name)


# What an import costs


def loaded_by(statement: str) -> set[str]:
    """The modules that a statement loads in a fresh interpreter."""
    code = f"{statement}\nimport sys\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return set(done.stdout.split())


def test_importing_the_package_loads_no_trainer_no_peer_and_no_plots() -> None:
    loaded = loaded_by("import contrastive_text")
    assert "contrastive_text" in loaded
    assert not loaded & {"pytorch_lightning", "lightning", "sentence_transformers", "matplotlib"}


def test_the_way_from_text_to_vectors_loads_neither_lightning_nor_objectives() -> None:
    loaded = loaded_by("from contrastive_text import SentenceEncoder")
    assert "contrastive_text.sentence_encoder" in loaded
    unwanted = {"pytorch_lightning", "lightning", "sentence_transformers", "matplotlib"}
    assert not loaded & {*unwanted, "contrastive_text.objectives", "contrastive_text.module"}
