"""Vectors that many tasks share: encoded once, kept by model and text, never another model's."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from covering import rest_slow
from parts import check_refused

from contrastive_text import SentenceEncoder
from contrastive_text.data.prompts import Prompts
from contrastive_text.evaluation.cached import CachedEncoder
from contrastive_text.inference import quantize
from contrastive_text.poolers import CLSPooler, MeanPooler


def model(bert: str) -> SentenceEncoder:
    return SentenceEncoder.from_pretrained(bert, pooler=MeanPooler(), device="cpu")


def test_vectors_are_those_of_encode_in_the_order_asked_for(bert: str) -> None:
    embed = CachedEncoder(model(bert))
    first = embed(tiny.TEXTS[:5])
    asked = [tiny.TEXTS[i] for i in (7, 2, 7, 0, 9)]
    second = embed(asked)
    assert first.shape == (5, 16) and second.shape == (5, 16)
    torch.testing.assert_close(second, torch.as_tensor(model(bert).encode(asked)))
    assert embed.encoded == 7  # 5 and two new ones; the repeated text once
    assert embed([]).shape == (0, 16)


def test_vectors_are_evaluated_as_the_values_of_their_bits_or_bytes(bert: str) -> None:
    vectors = CachedEncoder(model(bert))(tiny.TEXTS)
    bits = CachedEncoder(model(bert), precision="binary")(tiny.TEXTS)
    assert torch.equal(bits, torch.where(vectors > 0, 1.0, -1.0))
    assert torch.equal(
        torch.from_numpy(np.unpackbits(quantize(vectors, "ubinary").numpy(), axis=1)), (bits > 0).byte()
    )
    embed = CachedEncoder(model(bert), precision="int8")
    with pytest.warns(UserWarning, match="ranges from 40 vectors"):
        first = embed(tiny.TEXTS)
    expected = quantize(vectors, "int8", torch.stack([vectors.amin(dim=0), vectors.amax(dim=0)]))
    assert torch.equal(first, expected.float())
    assert torch.equal(embed(tiny.TEXTS[:3]), first[:3])  # by the ranges of the first call


def test_a_second_run_encodes_nothing_and_gives_equal_bits(bert: str, tmp_path: Path) -> None:
    before = CachedEncoder(model(bert), tmp_path)(tiny.TEXTS)
    again = CachedEncoder(model(bert), tmp_path)
    assert torch.equal(again(tiny.TEXTS), before)
    assert again.encoded == 0
    again([*tiny.TEXTS, "a new text"])
    assert again.encoded == 1
    assert CachedEncoder(model(bert), tmp_path)(["a new text"]).shape == (1, 16)


def test_queries_and_documents_have_their_own_prompts_and_vectors(bert: str, tmp_path: Path) -> None:
    prompted = model(bert)
    prompted.prompts = Prompts({"query": "who sings ", "document": "an old "}, "query")
    embed, texts = CachedEncoder(prompted, tmp_path), tiny.TEXTS[:3]
    torch.testing.assert_close(embed(texts, "query"), torch.as_tensor(prompted.encode_query(texts)))
    torch.testing.assert_close(embed(texts, "document"), torch.as_tensor(prompted.encode_document(texts)))
    assert torch.equal(embed(texts), embed(texts, "query")) and embed.encoded == 6
    again = CachedEncoder(prompted, tmp_path)
    assert torch.equal(again(texts, "document"), embed(texts, "document")) and again.encoded == 0


@pytest.mark.parametrize("change", rest_slow(["pooler", "length", "prompt", "weights"]))
def test_another_model_never_gets_the_vectors(bert: str, tmp_path: Path, change: str) -> None:
    CachedEncoder(model(bert), tmp_path)(tiny.TEXTS)
    other = model(bert)
    if change == "pooler":
        other = SentenceEncoder.from_pretrained(bert, pooler=CLSPooler(), device="cpu")
    elif change == "length":
        other = SentenceEncoder.from_pretrained(bert, pooler=MeanPooler(), max_length=6, device="cpu")
    elif change == "prompt":
        other.prompts = Prompts({"query": "query: "}, "query")
    else:
        with torch.no_grad():
            next(other.parameters()).view(-1)[0] += 1e-6
    assert other.identity != model(bert).identity
    embed = CachedEncoder(other, tmp_path)
    embed(tiny.TEXTS)
    assert embed.encoded == len(tiny.TEXTS)


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def of_another_model(path: Path) -> None:
    """Puts the vectors of another model in the folder of this one."""
    other = CachedEncoder(model(tiny.save_bert(path.parents[2] / "other", seed=1)), path.parents[2] / "others")
    other(tiny.TEXTS)
    assert other.folder is not None
    (theirs,) = other.folder.iterdir()
    theirs.rename(path.parent / theirs.name)
    path.unlink()


DAMAGES: tuple[Callable[[Path], object], ...] = (
    flip_a_bit,
    of_another_model,
    lambda path: path.write_bytes(path.read_bytes()[:-100]),
    lambda path: path.write_bytes(b""),
)


@pytest.mark.parametrize("damage", rest_slow(DAMAGES))
def test_a_damaged_file_is_told_of_and_made_anew(
    bert: str, tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    cache = tmp_path / "cache"
    before = CachedEncoder(model(bert), cache)(tiny.TEXTS)
    (file,) = cache.rglob("*.safetensors")
    damage(file)
    with pytest.warns(UserWarning, match="safetensors: damaged .*; deleted, and its texts are encoded again"):
        embed = CachedEncoder(model(bert), cache)
    assert torch.equal(embed(tiny.TEXTS), before)
    assert embed.encoded == len(tiny.TEXTS)
    again = CachedEncoder(model(bert), cache)
    assert torch.equal(again(tiny.TEXTS), before)
    assert again.encoded == 0


def test_texts_that_earlier_runs_have_cut_are_counted(bert: str, tmp_path: Path) -> None:
    long, longer = (f"{20 * 'the old bird sings '}{number}" for number in ("one", "two"))
    first = CachedEncoder(model(bert), tmp_path)
    first(["a bird", long])
    first([long, longer])
    assert (first.truncated, first.truncated_earlier) == (2, 0)
    again = CachedEncoder(model(bert), tmp_path)
    again(["a bird", long])
    assert (again.encoded, again.truncated, again.truncated_earlier) == (0, 0, 2)


@pytest.mark.parametrize(
    ("folder", "texts", "error", "words"),
    [
        ("file", [], ValueError, ["file", "expected a folder for vectors"]),
        ("file/vectors", [], ValueError, ["file", "expected a folder for vectors"]),
        (None, ["a", 3], TypeError, ["expected texts", "int", "place 1"]),
    ],
)
def test_a_wrong_folder_or_text_is_refused(
    bert: str, tmp_path: Path, folder: str | None, texts: list[str], error: type[Exception], words: list[str]
) -> None:
    (tmp_path / "file").touch()
    place = None if folder is None else tmp_path / folder
    check_refused(lambda: CachedEncoder(model(bert), place)(texts), error, words)
