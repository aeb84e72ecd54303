"""Vectors that many tasks share: encoded once, kept by model and text, never another model's."""

import os
import platform
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from covering import rest_slow
from safetensors.numpy import load_file, save_file

from contrastive_text import SentenceEncoder
from contrastive_text.core.storage import disk
from contrastive_text.data.prompts import Prompts
from contrastive_text.evaluation.cached import CachedEncoder
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


@pytest.mark.parametrize("change", rest_slow(["pooler", "length", "prompt", "weights"], quick=2))
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


def test_the_identity_outlives_saving_and_encoding(bert: str, tmp_path: Path) -> None:
    saved = model(bert)
    before = saved.identity
    saved.encode(tiny.TEXTS)
    saved.save_pretrained(tmp_path / "model")
    assert saved.identity == before
    assert SentenceEncoder.from_pretrained(tmp_path / "model", device="cpu").identity == before


def zero_half(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] + bytes(len(content) - len(content) // 2))


def of_few_features(path: Path) -> None:
    keys = load_file(path)["keys"]
    save_file({"keys": keys, "vectors": np.ones((len(keys), 7), np.float32)}, path, {"truncated": "0"})


def of_another_model(path: Path) -> None:
    """Puts the vectors of another model in the folder of this one."""
    other = CachedEncoder(model(tiny.save_bert(path.parents[2] / "other", seed=1)), path.parents[2] / "others")
    other(tiny.TEXTS)
    assert other.folder is not None
    (theirs,) = other.folder.iterdir()
    theirs.rename(path.parent / theirs.name)
    path.unlink()


DAMAGES: tuple[Callable[[Path], object], ...] = (
    zero_half,
    of_few_features,
    of_another_model,
    lambda path: path.write_bytes(path.read_bytes()[:-100]),
    lambda path: path.write_bytes(b""),
)


@pytest.mark.parametrize("damage", rest_slow(DAMAGES, quick=2))
def test_a_damaged_file_is_told_of_and_made_anew(
    bert: str, tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    cache = tmp_path / "cache"
    before = CachedEncoder(model(bert), cache)(tiny.TEXTS)
    (file,) = cache.rglob("*.safetensors")
    damage(file)
    with pytest.warns(UserWarning, match="safetensors: damaged .*; deleted, and its texts are encoded anew"):
        embed = CachedEncoder(model(bert), cache)
    assert torch.equal(embed(tiny.TEXTS), before)
    assert embed.encoded == len(tiny.TEXTS)
    again = CachedEncoder(model(bert), cache)
    assert torch.equal(again(tiny.TEXTS), before)
    assert again.encoded == 0


def test_every_changed_byte_is_found(bert: str, tmp_path: Path) -> None:
    loaded = model(bert)
    CachedEncoder(loaded, tmp_path)(tiny.TEXTS)
    (file,) = tmp_path.rglob("*.safetensors")
    whole, draw = file.read_bytes(), random.Random(5)
    for _ in range(100):
        changed = bytearray(whole)
        changed[draw.randrange(len(whole))] ^= draw.randrange(1, 256)
        file.write_bytes(changed)
        with pytest.warns(UserWarning, match="damaged"):
            CachedEncoder(loaded, tmp_path)
        assert not file.exists()


def test_a_kill_at_any_step_leaves_a_whole_file_or_none(
    bert: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = model(bert)
    for step in ("fsync", "replace"):
        with monkeypatch.context() as patched:
            patched.setattr(os, step, stopped)
            with pytest.raises(KeyboardInterrupt):
                CachedEncoder(loaded, tmp_path)(tiny.TEXTS)
        assert not list(tmp_path.rglob("*.safetensors"))
    left = (
        tmp_path
        / loaded.identity
        / f".contrastive-text.{platform.node()}.{disk._process_space()}.{os.getpid()}.ab.tmp"
    )
    left.write_text("half")  # as a process that is killed leaves it
    CachedEncoder(loaded, tmp_path)(tiny.TEXTS)
    assert not left.exists()
    assert CachedEncoder(loaded, tmp_path)(tiny.TEXTS).shape == (len(tiny.TEXTS), 16)


def stopped(*_: object) -> None:
    raise KeyboardInterrupt


def test_texts_that_earlier_runs_have_cut_are_counted(bert: str, tmp_path: Path) -> None:
    long, longer = (f"{20 * 'the old bird sings '}{number}" for number in ("one", "two"))
    first = CachedEncoder(model(bert), tmp_path)
    first(["a bird", long])
    first([long, longer])
    assert (first.truncated, first.truncated_earlier) == (2, 0)
    again = CachedEncoder(model(bert), tmp_path)
    again(["a bird", long])
    assert (again.encoded, again.truncated, again.truncated_earlier) == (0, 0, 2)


@pytest.mark.parametrize("inside", ["", "vectors"])
def test_a_file_in_place_of_the_folder_is_refused_at_once(bert: str, tmp_path: Path, inside: str) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ValueError, match="file: expected a folder for vectors, got a file; name another"):
        CachedEncoder(model(bert), file / inside)


def test_what_is_not_text_is_refused_with_its_place(bert: str) -> None:
    with pytest.raises(TypeError, match="expected texts, got int at place 1"):
        CachedEncoder(model(bert))(["a", 3])  # type: ignore[list-item]  # the error is the test
