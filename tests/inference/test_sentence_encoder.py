"""A model in use: encode, similarity, search, and what is refused."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from torch import nn

from contrastive_text.core.batch import Hidden
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.inference.encoding import Encoding
from contrastive_text.inference.quantization import Precision, quantize, value_ranges
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.poolers import CLSPooler, MeanPooler, Pooler

# float32: another batch means another width of padding and another order of the sums in a matrix product.
# Vectors have entries of size 1.
ROUNDING = 1e-5


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


def test_the_shape_follows_the_texts_and_a_tensor_can_be_trained_on(model: SentenceEncoder) -> None:
    vectors = model.encode(tiny.TEXTS[:2])
    assert model.encode(tiny.TEXTS[0]).shape == (16,)
    assert model.encode([tiny.TEXTS[0]]).shape == (1, 16)
    with_head = SentenceEncoder(model.encoder, model.pooler, head=nn.Sequential(nn.Linear(16, 3), nn.Tanh()))
    for empty in ([], iter(())):
        assert model.encode(empty).shape == (0, 16)
        assert with_head.encode(empty, convert_to_tensor=True).shape == (0, 3)
    tensor = model.encode((text for text in tiny.TEXTS[:2]), convert_to_tensor=True)
    assert isinstance(tensor, torch.Tensor) and not tensor.requires_grad
    assert np.array_equal(tensor.numpy(), vectors)
    weight = torch.ones(model.features, requires_grad=True)
    (tensor @ weight).sum().backward()
    assert weight.grad is not None


def test_the_vectors_are_those_of_transformers_by_hand(model: SentenceEncoder) -> None:
    inputs = model.encoder.tokenizer(list(tiny.TEXTS), padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = model.encoder.model(**inputs).last_hidden_state
    mask = inputs["attention_mask"].unsqueeze(-1)
    expected = (hidden * mask).sum(dim=1) / mask.sum(dim=1)
    vectors = model.encode(tiny.TEXTS, convert_to_tensor=True)
    torch.testing.assert_close(vectors, expected, rtol=0, atol=ROUNDING)


def test_texts_are_cut_at_the_network_s_limit_or_a_shorter_one(bert: str, model: SentenceEncoder) -> None:
    words = " ".join(tiny.TEXTS).split()
    short = SentenceEncoder(TransformerEncoder(bert), CLSPooler(), max_length=4)
    assert model.max_length == 32
    # The 30 words are in the vocabulary.
    pairs = ((model, words[:200], words[:30]), (short, ["the", "old", "bird"], ["the", "old", "dog"]))
    for each, one, other in pairs:
        vectors = each.encode([" ".join(one), " ".join(other)])
        np.testing.assert_allclose(vectors[0], vectors[1], rtol=0, atol=ROUNDING)


# Many texts, block by block


@pytest.mark.parametrize("size", [7, 40, 100])
def test_blocks_come_in_order_and_join_to_what_encode_gives(model: SentenceEncoder, size: int) -> None:
    blocks = list(model.encode_blocks(iter(tiny.TEXTS), Encoding(block_size=size)))
    assert [len(block) for block in blocks] == [min(size, 40 - start) for start in range(0, 40, size)]
    np.testing.assert_allclose(np.concatenate(blocks), model.encode(tiny.TEXTS), rtol=0, atol=ROUNDING)


def test_the_vectors_of_a_block_depend_on_its_own_texts_alone(model: SentenceEncoder) -> None:
    whole = list(model.encode_blocks(tiny.TEXTS, Encoding(block_size=9)))
    resumed = list(model.encode_blocks(tiny.TEXTS[18:], Encoding(block_size=9)))
    for given, expected in zip(resumed, whole[2:], strict=True):
        assert np.array_equal(given, expected)
    changed = list(model.encode_blocks([*tiny.TEXTS[:9], *reversed(tiny.TEXTS[9:])], Encoding(block_size=9)))
    assert np.array_equal(changed[0], whole[0])


def test_endless_texts_are_read_a_block_at_a_time(model: SentenceEncoder) -> None:
    numbers = itertools.count()
    blocks = model.encode_blocks((tiny.TEXTS[number % 40] for number in numbers), Encoding(block_size=8))
    assert next(numbers) == 0  # nothing is read before it is asked for
    assert np.asarray(next(blocks)).shape == (8, 16)
    assert next(numbers) == 9
    next(blocks)
    assert next(numbers) == 18


def test_cut_texts_are_counted_over_the_whole_call(model: SentenceEncoder) -> None:
    long = " ".join(tiny.TEXTS)
    model.encode(text for text in (long, "bird", long, long))
    assert model.truncated == 3
    blocks = model.encode_blocks([long, "bird", long, long], Encoding(block_size=2))
    assert model.truncated == 0
    next(blocks)
    assert model.truncated == 1
    list(blocks)
    assert model.truncated == 3
    model.encode("bird")
    assert model.truncated == 0
    cut, uncut = (model.encode_blocks([text] * 4, Encoding(block_size=2)) for text in (long, "bird"))
    numbers = []
    for blocks_of in (cut, uncut, cut, uncut):
        next(blocks_of)
        numbers.append(model.truncated)
    assert numbers == [2, 0, 4, 0]


def test_the_bar_counts_texts(model: SentenceEncoder, capsys: pytest.CaptureFixture[str]) -> None:
    model.encode(tiny.TEXTS, show_progress_bar=True, batch_size=7)
    assert "40/40" in capsys.readouterr().out
    model.encode(iter(tiny.TEXTS), show_progress_bar=True)
    assert "40/?" in capsys.readouterr().out
    model.encode(tiny.TEXTS)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("where", "value"), [("weights", math.nan), ("overflow", 1e25)])
def test_vectors_that_are_not_finite_are_an_error_that_names_the_text(
    bert: str, where: str, value: float
) -> None:
    damaged = SentenceEncoder.from_pretrained(bert, pooler=MeanPooler())
    word = damaged.encoder.tokenizer.convert_tokens_to_ids("guitar")
    if where == "weights":
        with torch.no_grad():
            damaged.encoder.model.embeddings.word_embeddings.weight[word] = value
        cause = r"weights are damaged \(in encoder\.model\.embeddings\.word_embeddings\.weight\): save it again"
    else:
        damaged.head = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
        with torch.no_grad():
            for layer in damaged.head:
                layer.weight.copy_(value * torch.eye(16))
        cause = r"float32 is too narrow for it: load the model with dtype=torch\.float32"
    place = next(i for i, text in enumerate(tiny.TEXTS) if "guitar" in text) if where == "weights" else 0
    with pytest.raises(ValueError, match=f"infinity for text {place} .'{tiny.TEXTS[place]}'.; .*{cause}"):
        list(damaged.encode_blocks(tiny.TEXTS, Encoding(block_size=3)))


# Fewer features, fewer bits


@pytest.mark.parametrize("normalize", [False, True])
def test_the_first_features_are_kept_before_vectors_get_unit_length(
    model: SentenceEncoder, normalize: bool
) -> None:
    expected = model.encode(tiny.TEXTS)[:, :5]
    if normalize:
        expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    given = model.encode(tiny.TEXTS, truncate_dim=5, normalize_embeddings=normalize)
    np.testing.assert_allclose(given, expected, rtol=0, atol=1e-6)  # float32, one division
    (block,) = model.encode_blocks(tiny.TEXTS, Encoding(truncate_dim=5), convert_to_tensor=True)
    assert torch.as_tensor(block).untyped_storage().nbytes() == 40 * 5 * 4  # the other features are gone


def test_a_model_s_own_number_of_features_is_saved_and_can_be_changed(bert: str, tmp_path: Path) -> None:
    theirs = pytest.importorskip("sentence_transformers", reason="the comparison needs the dev extra")
    model = SentenceEncoder.from_pretrained(bert, pooler=MeanPooler(), truncate_dim=6)
    assert model.encode(tiny.TEXTS).shape == (40, 6)
    assert model.encode(tiny.TEXTS, truncate_dim=16).shape == (40, 16)
    assert model.encode([]).shape == (0, 6)
    model.save_pretrained(tmp_path)
    loaded = SentenceEncoder.from_pretrained(tmp_path)
    assert loaded.truncate_dim == 6
    assert np.array_equal(loaded.encode(tiny.TEXTS), model.encode(tiny.TEXTS))
    assert loaded.identity == model.identity != SentenceEncoder.from_pretrained(tmp_path, truncate_dim=7).identity
    expected = theirs.SentenceTransformer(str(tmp_path), device="cpu").encode(list(tiny.TEXTS))
    np.testing.assert_allclose(loaded.encode(tiny.TEXTS), expected, rtol=0, atol=ROUNDING)


class FirstAndMean(Pooler):
    """A pooler that gives twice as many features as the encoder."""

    def forward(self, hidden: Hidden) -> torch.Tensor:
        return torch.cat([CLSPooler()(hidden), MeanPooler()(hidden)], dim=1)


def test_a_pooler_of_one_s_own_may_give_any_number_of_features(bert: str) -> None:
    wide = SentenceEncoder(TransformerEncoder(bert), FirstAndMean())
    assert wide.encode(tiny.TEXTS).shape == (40, 32)
    assert wide.encode([]).shape == (0, 32)
    assert np.array_equal(wide.encode(tiny.TEXTS, truncate_dim=20), wide.encode(tiny.TEXTS)[:, :20])
    wide.head = nn.Sequential(nn.Linear(32, 3))
    with pytest.raises(ValueError, match="expected 1 to 3 features, got 20"):
        wide.encode(tiny.TEXTS, truncate_dim=20)


@pytest.mark.parametrize("precision", ["int8", "uint8"])
def test_bytes_come_from_ranges_and_do_not_depend_on_blocks(model: SentenceEncoder, precision: Precision) -> None:
    ranges = value_ranges(np.concatenate([model.encode(tiny.TEXTS, truncate_dim=11)] * 3))
    whole = model.encode(tiny.TEXTS, precision=precision, truncate_dim=11, ranges=ranges)
    assert whole.dtype == np.dtype(precision)
    expected = quantize(model.encode(tiny.TEXTS, truncate_dim=11), precision, ranges=ranges).numpy()
    assert np.array_equal(whole, expected)
    options = {"precision": precision, "truncate_dim": 11, "ranges": ranges}
    blocks = np.concatenate(list(model.encode_blocks(tiny.TEXTS, Encoding(block_size=13, **options))))
    # Rounding moves a value over the edge of its step at most.
    assert int(np.abs(blocks.astype(int) - whole.astype(int)).max()) <= 1
    assert model.encode([], **options).shape == (0, 11)
    assert model.encode([], **options).dtype == np.dtype(precision)
    bits = model.encode(tiny.TEXTS, precision="ubinary", truncate_dim=11)
    assert np.array_equal(bits, quantize(model.encode(tiny.TEXTS, truncate_dim=11), "ubinary").numpy())


# Devices


def test_a_named_device_is_where_the_model_moves_and_stays(bert: str) -> None:
    model = SentenceEncoder.from_pretrained(bert, pooler=MeanPooler(), device="cpu")
    model.encode_blocks(
        tiny.TEXTS, Encoding(device="meta")
    )  # a device that every machine has, and that computes nothing
    assert model.device.type == "meta"


@pytest.mark.usefixtures("warm_processes")
def test_several_devices_give_the_vectors_of_one(model: SentenceEncoder) -> None:
    model.train()
    long = " ".join(tiny.TEXTS)
    texts = [*tiny.TEXTS, long]
    options = {"normalize_embeddings": True, "truncate_dim": 7, "prompt": "an old "}
    expected = model.encode(texts, **options)
    assert model.truncated == 1
    given = model.encode(texts, device=["cpu", "cpu"], **options)
    np.testing.assert_allclose(given, expected, rtol=0, atol=ROUNDING)
    assert model.truncated == 1
    assert model.training


@pytest.mark.slow  # a process that imports all of this takes seconds to start
def test_an_error_on_one_of_several_devices_is_the_same_error(bert: str) -> None:
    damaged = SentenceEncoder.from_pretrained(bert, pooler=MeanPooler())
    with torch.no_grad():
        damaged.encoder.model.embeddings.word_embeddings.weight.fill_(math.nan)
    blocks = damaged.encode_blocks(itertools.repeat("bird"), Encoding(block_size=2, device=["cpu"]))
    with pytest.raises(ValueError, match=r"expected finite vectors, got NaN or infinity for text 0 \('bird'\)"):
        next(blocks)


# similarity and search


def test_search_finds_the_nearest_texts_best_first(model: SentenceEncoder) -> None:
    corpus = tiny.TEXTS[:20]
    hits = model.search([corpus[4], "the young woman opens the door"], corpus, top_k=6)
    assert [len(found) for found in hits] == [6, 6]
    assert hits[0][0].corpus_id == 4
    assert hits[0][0].score == pytest.approx(1.0, abs=1e-5)  # float32
    scores = model.similarity(model.encode(["the young woman opens the door"]), model.encode(corpus))[0]
    assert [hit.corpus_id for hit in hits[1]] == scores.argsort(descending=True)[:6].tolist()
    assert [hit.score for hit in hits[1]] == sorted((hit.score for hit in hits[1]), reverse=True)
    few = list(corpus[:4])
    (all_hits,) = model.search(few[1], few, top_k=10)
    assert len(all_hits) == 4
    for vectors in (model.encode(few), model.encode(few, convert_to_tensor=True)):
        assert model.search(few[1], vectors, top_k=10) == [all_hits]


# What loads


def test_a_plain_transformers_folder_takes_the_mean_and_says_so(bert: str, model: SentenceEncoder) -> None:
    with pytest.warns(UserWarning, match="names no pooler: taking the mean over tokens; give pooler="):
        guessed = SentenceEncoder.from_pretrained(bert)
    assert np.array_equal(guessed.encode(tiny.TEXTS), model.encode(tiny.TEXTS))
