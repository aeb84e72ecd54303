"""A model's folder is the older one, the newer one, or refused; nothing damaged is used."""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from core.storage.test_disk import kill_at
from torch import nn

from contrastive_text.core.errors import ContrastiveTextError, DiskError, InvalidValueError
from contrastive_text.core.storage.manifests import MANIFEST, Manifest
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.poolers import CLSPooler, MeanPooler, Pooler

TEXTS = list(tiny.TEXTS[:5])


@pytest.fixture(scope="module")
def other_bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny.save_bert(tmp_path_factory.mktemp("other"), seed=1, num_hidden_layers=1)


def model(bert: str, pooler: Pooler | None = None, width: int | None = 4, **options: Any) -> SentenceEncoder:
    torch.manual_seed(width or 0)
    head = None if width is None else nn.Sequential(nn.Linear(16, width))
    return SentenceEncoder(TransformerEncoder(bert), pooler or CLSPooler(), head=head, **options)


def vectors(model: SentenceEncoder) -> np.ndarray[Any, Any]:
    return np.asarray(model.encode(TEXTS))


def loaded(folder: Path) -> np.ndarray[Any, Any]:
    return vectors(SentenceEncoder.from_pretrained(folder, device="cpu"))


def test_a_saved_folder_has_a_manifest_of_all_its_files_and_one_permission(bert: str, tmp_path: Path) -> None:
    model(bert, normalize=True).save_pretrained(tmp_path / "model")
    manifest = Manifest.read(tmp_path / "model")
    files = {
        path.relative_to(tmp_path / "model"): path for path in (tmp_path / "model").rglob("*") if path.is_file()
    }
    assert manifest is not None
    assert set(manifest.files) == {name.as_posix() for name in files} - {MANIFEST}
    assert not manifest.damage(tmp_path / "model")
    (tmp_path / "any").write_text("")
    assert {stat.S_IMODE(path.stat().st_mode) for path in files.values()} == {
        stat.S_IMODE((tmp_path / "any").stat().st_mode)
    }


def test_no_older_weights_are_read_in_place_of_new_ones(bert: str, tmp_path: Path) -> None:
    """As sentence-transformers and Transformers of other versions leave them beside ours."""
    mine = (
        "notes.txt",
        "pytorch_model_head.bin",
        "model-mine.safetensors",
        "mine.safetensors",
        "2_Dense/notes.txt",
        "9_Mine/pytorch_model.bin",
    )
    theirs = (
        "pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "pytorch_model.bin.index.json", "tf_model.h5",
        "model-00001-of-00002.safetensors", "model.safetensors.index.json", "2_Dense/pytorch_model.bin",
        "adapter_config.json", "adapter_model.safetensors", "added_tokens.json",
    )  # fmt: skip
    for name in (*mine, *theirs):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    saved = model(bert)
    stale = {"linear.weight": torch.zeros(4, 16), "linear.bias": torch.zeros(4)}
    torch.save(stale, tmp_path / "2_Dense" / "pytorch_model.bin")
    saved.save_pretrained(tmp_path)
    assert np.array_equal(loaded(tmp_path), vectors(saved))
    assert [name for name in (*mine, *theirs) if (tmp_path / name).exists()] == list(mine)
    torch.save(stale, tmp_path / "2_Dense" / "pytorch_model.bin")  # even where one is put there later
    assert np.array_equal(loaded(tmp_path), vectors(saved))


def test_what_an_older_save_of_ours_wrote_goes(bert: str, tmp_path: Path) -> None:
    model(bert, normalize=True).save_pretrained(tmp_path)
    (tmp_path / "2_Dense" / "notes.txt").write_text("mine")
    (tmp_path / "old.txt").write_text("mine")
    plain = model(bert, MeanPooler(), width=None)
    plain.save_pretrained(tmp_path)
    assert [path.name for path in (tmp_path / "2_Dense").iterdir()] == ["notes.txt"]
    assert (tmp_path / "old.txt").exists()
    assert np.array_equal(loaded(tmp_path), vectors(plain))


def test_a_model_is_saved_into_the_folder_it_was_loaded_from(bert: str, tmp_path: Path) -> None:
    model(bert).save_pretrained(tmp_path)
    again = SentenceEncoder.from_pretrained(tmp_path, device="cpu")
    before = vectors(again)
    with torch.no_grad():
        next(again.head.parameters()).mul_(2)  # type: ignore[union-attr]  # it has one
    again.save_pretrained(tmp_path)
    assert np.array_equal(loaded(tmp_path), vectors(again))
    assert not np.array_equal(vectors(again), before)


def test_a_changed_file_is_named_and_by_hand_it_can_be_used(bert: str, tmp_path: Path) -> None:
    model(bert).save_pretrained(tmp_path)
    path = tmp_path / "sentence_bert_config.json"
    path.write_text(path.read_text().replace("32", "31"))
    for load in (SentenceEncoder.from_pretrained, lambda folder: TransformerEncoder(str(folder))):
        with pytest.raises(
            InvalidValueError, match=r"sentence_bert_config\.json: changed bytes.*delete contrast"
        ):
            load(tmp_path)
    assert loaded(tiny.by_hand(tmp_path)).shape == (5, 4)


def test_a_folder_is_read_once_and_again_when_it_has_changed(
    bert: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model(bert).save_pretrained(tmp_path)
    read: list[Path] = []
    damage = Manifest.damage
    monkeypatch.setattr(
        Manifest, "damage", lambda *given, **named: read.append(given[1]) or damage(*given, **named)
    )
    SentenceEncoder.from_pretrained(tmp_path)  # the encoder inside it has the same folder
    SentenceEncoder.from_pretrained(tmp_path)
    assert len(read) == 1
    os.utime(tmp_path / "config.json", (1, 1))
    SentenceEncoder.from_pretrained(tmp_path)
    assert len(read) == 2


def test_a_save_that_can_not_be_made_leaves_the_older_model(bert: str, tmp_path: Path) -> None:
    old = model(bert)
    old.save_pretrained(tmp_path / "model")
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskError, match="expected a place that can be written to"):
        old.save_pretrained(tmp_path / "file" / "model")
    strange = SentenceEncoder(old.encoder, old.pooler, nn.Sequential(nn.LeakyReLU()))
    with pytest.raises(ValueError, match="a head of Linear layers"):
        strange.save_pretrained(tmp_path / "model")
    assert np.array_equal(loaded(tmp_path / "model"), vectors(old))


@pytest.mark.slow  # a model is loaded after each of some 40 kills
@pytest.mark.parametrize("older", ["ours", "theirs", "plain"])
def test_a_save_killed_at_any_step_leaves_the_older_model_or_the_newer_or_a_refusal(
    bert: str, other_bert: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, older: str
) -> None:
    """At every flush, rename and removal in turn, over a model of each kind."""
    if older == "plain":
        shutil.copytree(bert, tmp_path / "old")
    else:
        model(bert, normalize=True).save_pretrained(tmp_path / "old")
    if older == "theirs":
        weights = {"linear.weight": torch.ones(4, 16), "linear.bias": torch.zeros(4)}
        (tiny.by_hand(tmp_path / "old") / "2_Dense" / "model.safetensors").unlink()
        torch.save(weights, tmp_path / "old" / "2_Dense" / "pytorch_model.bin")
    pooler = MeanPooler() if older == "plain" else None  # the newer model's too
    new = model(other_bert, MeanPooler(), width=5)
    before = vectors(SentenceEncoder.from_pretrained(tmp_path / "old", pooler=pooler, device="cpu"))
    after, found = vectors(new), {"older": 0, "newer": 0, "refused": 0}
    for stop in range(300):
        folder = tmp_path / f"{stop}"
        shutil.copytree(tmp_path / "old", folder)
        done = kill_at(stop, monkeypatch, lambda folder=folder: new.save_pretrained(folder))
        try:
            got = vectors(SentenceEncoder.from_pretrained(folder, pooler=pooler, device="cpu"))
        except ContrastiveTextError:
            found["refused"] += 1
        else:
            one = "older" if got.shape == before.shape else "newer"
            found[one] += 1
            assert np.array_equal(got, {"older": before, "newer": after}[one]), stop
        shutil.rmtree(folder)
        if done:
            break
    else:
        pytest.fail("the save has no end")
    assert one == "newer"
    assert found["older"] > 9
    assert found["refused"] > 9


def test_a_manifest_without_modules_is_an_unfinished_save_of_whatever_was_there(
    bert: str, tmp_path: Path
) -> None:
    shutil.copytree(bert, tmp_path / "model")
    model(bert, width=None).save_pretrained(tmp_path / "new")
    shutil.copy(tmp_path / "new" / MANIFEST, tmp_path / "model")
    with pytest.raises(InvalidValueError, match=r"got an unfinished one: modules\.json, .* isn't there; save"):
        SentenceEncoder.from_pretrained(tmp_path / "model")


def test_an_export_of_another_kind_is_no_unfinished_model(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_text("")
    Manifest.of(tmp_path).write(tmp_path)
    with pytest.raises(ValueError, match="expected a whole model folder"):
        SentenceEncoder.from_pretrained(tmp_path)


def test_a_folder_of_an_older_version_loads_without_a_manifest(bert: str, tmp_path: Path) -> None:
    saved = model(bert)
    saved.save_pretrained(tmp_path)
    assert json.loads((tmp_path / MANIFEST).read_text())["files"]
    assert np.array_equal(loaded(tiny.by_hand(tmp_path)), vectors(saved))
