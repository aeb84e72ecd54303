"""A manifest finds every change of its files, and is refused where it has another form."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import pytest

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage import manifests
from contrastive_text.core.storage.manifests import MANIFEST, FileDigest, Manifest, start_sha256

X = {"size": 1, "sha256": hashlib.sha256(b"x").hexdigest()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a").write_bytes(bytes(range(256)) * 10)
    (tmp_path / "sub" / "b").write_text("words")
    (tmp_path / "empty").write_text("")
    Manifest.of(tmp_path).write(tmp_path)
    return tmp_path


def damage(folder: Path, whole: bool = True) -> list[str]:
    manifest = Manifest.read(folder)
    assert manifest is not None
    return manifest.damage(folder, whole)


def test_a_manifest_is_plain_json_with_size_and_sha256_of_each_file(folder: Path) -> None:
    content = json.loads((folder / MANIFEST).read_text())
    assert set(content["files"]) == {"a", "empty", "sub/b"}
    assert content["files"]["sub/b"] == {"size": 5, "sha256": hashlib.sha256(b"words").hexdigest()}
    assert damage(folder) == []
    assert Manifest.read(folder / "sub") is None


def test_every_changed_byte_is_found_or_leaves_the_manifest_as_it_was(folder: Path) -> None:
    draw, whole, unseen = random.Random(1), Manifest.read(folder), 0
    for _ in range(100):
        path = draw.choice([path for path in folder.rglob("*") if path.is_file() and path.stat().st_size])
        before = path.read_bytes()
        changed = bytearray(before)
        changed[draw.randrange(len(before))] ^= draw.randrange(1, 256)
        path.write_bytes(changed)
        try:
            found = damage(folder)
        except InvalidValueError as error:
            assert MANIFEST in str(error)
        else:
            if not found:
                unseen += 1
                assert path.name == MANIFEST and Manifest.read(folder) == whole
        path.write_bytes(before)
    assert unseen < 10  # white space of JSON


def test_a_missing_and_a_shorter_file_are_named(folder: Path) -> None:
    (folder / "a").write_bytes(b"short")
    (folder / "sub" / "b").unlink()
    assert damage(folder) == ["a: 5 bytes instead of 2,560", "sub/b: no file"]


def test_of_a_large_file_only_the_size_is_compared_unless_all_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifests, "READ_WHOLE", 100)
    for name in ("a", "sub/b"):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[:-1] + b"x")
    assert damage(folder, whole=False) == ["sub/b: changed bytes"]
    assert damage(folder) == ["a: changed bytes", "sub/b: changed bytes"]


def test_a_growing_file_is_compared_up_to_its_digest(folder: Path) -> None:
    state = start_sha256(folder / "a", 1000)
    digest = FileDigest(1000, state.hexdigest())
    assert digest.damage(folder / "a", grows=True) is None
    assert digest.damage(folder / "a") == "2,560 bytes instead of 1,000"
    state.update((folder / "a").read_bytes()[1000:])
    assert FileDigest(2560, state.hexdigest()) == FileDigest.of(folder / "a")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        *(
            ({"files": {name: X}}, "files: expected names of files in this folder, got the text")
            for name in ("../a", "/etc/passwd", "sub/../../a", "", ".", "a\\b")
        ),
        ({"files": {"a": {"size": -1, "sha256": ""}}}, "files: a: size: expected an integer of 0 or more"),
        ({"files": {"a": {"size": "1", "sha256": ""}}}, "files: a: size: expected an integer of 0 or more"),
        ({"files": {"a": {"size": 1}}}, "files: a: sha256: expected a text, got nothing"),
        ({"files": {"a": []}}, "files: a: expected a mapping"),
        ({"files": {"a": {"size": 1, "blocks": []}}}, "files: a: expected a SHA-256, got the form of"),
        ({"files": []}, "files: expected a mapping"),
        ({}, "files: expected a mapping"),
        ([], "expected a mapping"),
    ],
)
def test_a_manifest_of_another_form_is_refused(tmp_path: Path, content: Any, words: str) -> None:
    (tmp_path / MANIFEST).write_text(json.dumps(content))
    with pytest.raises(InvalidValueError, match=rf"manifest\.json: {words}.*; do this"):
        Manifest.read(tmp_path, "do this")
