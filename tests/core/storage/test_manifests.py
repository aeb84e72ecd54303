"""A manifest knows every byte of its files, and of itself."""

import os
import random
from pathlib import Path

import pytest

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage import manifests
from contrastive_text.core.storage.manifests import (
    MANIFEST,
    FileDigest,
    Manifest,
    read_sealed,
    sealed,
    write_sealed,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a").write_bytes(bytes(range(256)) * 10)
    (tmp_path / "sub" / "b").write_text("words")
    (tmp_path / "empty").write_text("")
    Manifest.of(tmp_path).write(tmp_path)
    return tmp_path


def damage(folder: Path, whole: bool | None = None) -> list[str]:
    read = Manifest.read(folder)
    assert read is not None
    return read.damage(folder, whole)


def test_a_whole_folder_is_whole(folder: Path) -> None:
    assert damage(folder) == []
    assert Manifest.read(folder / "sub") is None


def test_every_changed_byte_shows_of_files_and_of_the_manifest(folder: Path) -> None:
    draw = random.Random(1)
    for _ in range(200):
        path = draw.choice([path for path in folder.rglob("*") if path.is_file() and path.stat().st_size])
        before = path.read_bytes()
        changed = bytearray(before)
        changed[draw.randrange(len(before))] ^= draw.randrange(1, 256)
        path.write_bytes(changed)
        if path.name == MANIFEST:
            with pytest.raises(InvalidValueError, match="got a changed one"):
                damage(folder)
        else:
            assert len(damage(folder)) == 1
        path.write_bytes(before)


def test_a_missing_and_a_shorter_file_show(folder: Path) -> None:
    (folder / "a").write_bytes(b"short")
    (folder / "sub" / "b").unlink()
    assert damage(folder) == ["a: 5 bytes instead of 2,560", "sub/b: no file"]


def test_of_a_large_file_first_and_last_block_and_some_between_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifests, "BLOCK", 10)
    path = tmp_path / "a"
    path.write_bytes(bytes(1000))
    digest = FileDigest.of(path)
    assert len(digest.blocks) == 100
    found = {}
    for place in (0, 15, 999):
        path.write_bytes(bytes(place) + b"x" + bytes(999 - place))
        found[place] = [digest.damage(path, whole) is not None for whole in (True, False)]
    assert found == {0: [True, True], 15: [True, False], 999: [True, True]}


@pytest.mark.parametrize("name", ["../a", "/etc/passwd", "sub/../../a", "", "."])
def test_no_manifest_leads_out_of_its_folder(tmp_path: Path, name: str) -> None:
    content = {"block": manifests.BLOCK, "files": {name: {"size": 0, "blocks": []}}}
    write_sealed(tmp_path / MANIFEST, content)
    with pytest.raises(InvalidValueError, match="expected a manifest"):
        Manifest.read(tmp_path)


@pytest.mark.parametrize(
    ("block", "digest"),
    [
        (10, {"size": 0, "blocks": []}),
        (manifests.BLOCK, {"size": 1, "blocks": []}),
        (manifests.BLOCK, {"size": "1", "blocks": ["a"]}),
        (manifests.BLOCK, {"size": 1, "blocks": [1]}),
        (manifests.BLOCK, {"size": 1}),
        (manifests.BLOCK, []),
    ],
)
def test_a_manifest_of_another_form_is_refused(tmp_path: Path, block: int, digest: object) -> None:
    write_sealed(tmp_path / MANIFEST, {"block": block, "files": {"a": digest}})
    with pytest.raises(InvalidValueError, match="expected a manifest of this version's form, got another; save"):
        Manifest.read(tmp_path)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"sha256": "0"}', "[" * 100_000, '{"rows": 1}', "\0"])
def test_what_is_no_record_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "r").write_text(content)
    with pytest.raises(InvalidValueError, match="do this"):
        read_sealed(tmp_path / "r", "do this")


def test_a_record_is_read_as_written(tmp_path: Path) -> None:
    record = {"rows": 3, "of": {"é": [1.5, None, True]}}
    write_sealed(tmp_path / "r", record)
    assert read_sealed(tmp_path / "r", "") == record
    with pytest.raises(ValueError, match="JSON"):
        sealed({"loss": float("nan")})


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_a_record_that_is_no_regular_file_or_has_no_end_is_refused_unread(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "linked").symlink_to("/dev/zero")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 30)
    for name in ("pipe", "linked", "large"):
        with pytest.raises(
            InvalidValueError, match=f"{name}: expected a file of at most .* bytes, got another; do"
        ):
            read_sealed(tmp_path / name, "do this")
