"""Every changed byte of what was written is found by `verify`; the exit status says whether one was."""

from __future__ import annotations

import errno
import os
import random
import re
import shutil
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import tiny
from shells import Shell

from contrastive_text.core.storage.manifests import MANIFEST
from contrastive_text.data import TextTokenizer, learn_vocabulary
from contrastive_text.data.files.mapped import tokenize_documents
from contrastive_text.data.files.readers import TextStream
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.evaluation.cached import CachedEncoder
from contrastive_text.inference.embedding_run import EmbeddingRun, UnfinishedVectors
from contrastive_text.inference.encoding import Encoding
from contrastive_text.inference.index import Index
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.poolers import CLSPooler
from contrastive_text.runs.verification import verify
from contrastive_text.training import AtomicCheckpointIO


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verify")
    encoder = TransformerEncoder(tiny.save_bert(folder / "bert"))
    SentenceEncoder(encoder, CLSPooler(), normalize=True).save_pretrained(folder / "model")
    return folder / "model"


def damaged(path: Path) -> list[str]:
    return [found.path.name for found in verify(path) if found.damage is not None]


@pytest.fixture(scope="module")
def made(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index, bytes and a table of ids beside them, an unfinished output, caches, tokens."""
    folder = tmp_path_factory.mktemp("made")
    loaded = SentenceEncoder.from_pretrained(model, device="cpu")
    texts = TextStream(tiny.write_texts(folder / "texts.txt"))
    EmbeddingRun(loaded, texts, folder / "index.npy").finish()
    for name in ("bytes.npy", "table.tsv"):
        EmbeddingRun(loaded, texts, folder / name, Encoding(precision="int8")).finish()
    EmbeddingRun(loaded, TextStream(texts.path, distinct=True), folder / "distinct.npy").finish()
    growing = UnfinishedVectors(folder / "begun.npy", {}, count=100)
    growing.append(np.ones((30, 16), np.float32), truncated=0)
    CachedEncoder(loaded, folder / "cache")(tiny.TEXTS)
    tokenize_documents(tiny.TEXTS, TextTokenizer(learn_vocabulary(tiny.TEXTS, 90), None), folder / "tokens")
    shutil.copytree(model, folder / "model")
    return folder


@pytest.mark.filterwarnings("ignore:value_ranges")  # of few texts
def test_every_changed_byte_of_models_vectors_and_caches_is_found(made: Path) -> None:
    """Each file at least once, and then as likely as it is long. A record has no digest; its files have."""
    known = {found.path for found in verify(made) if found.has_digest}
    unknown = {path for path in made.rglob("*") if path.is_file()} - known
    assert {path.name for path in unknown} == {"texts.txt"}
    assert damaged(made) == []
    draw, begun = random.Random(2), made / "begun.npy.unfinished"
    sizes = {path: path.stat().st_size for path in sorted(known)} | {begun: 128 + 30 * 16 * 4}
    for path in [*sizes, *draw.choices(list(sizes), weights=list(sizes.values()), k=100 - len(sizes))]:
        before = path.read_bytes()
        after = bytearray(before)
        place, change = draw.randrange(sizes[path]), draw.randrange(1, 256)
        after[place] ^= change
        path.write_bytes(after)
        if path.name != MANIFEST and not path.name.endswith(("npy.json", "tsv.json", "unfinished.json")):
            assert damaged(made) == [path.name], (place, change)
        path.write_bytes(before)


def test_a_changed_byte_of_the_vectors_of_an_index_is_found(model: Path, tmp_path: Path) -> None:
    with closing(Index.create(tmp_path / "index", model, device="cpu")) as index:
        index.add(tiny.TEXTS)
    vectors = tmp_path / "index" / "vectors-0.npy"
    assert [found.path for found in verify(tmp_path) if found.has_digest] == [vectors]
    vectors.write_bytes(vectors.read_bytes()[:-1] + b"x")
    assert damaged(tmp_path) == ["vectors-0.npy"]
    (tmp_path / "index" / "index.sqlite").write_bytes(b"words" * 1000)
    assert damaged(tmp_path) == ["index.sqlite"]


def test_every_changed_digit_of_a_digest_is_found(made: Path) -> None:
    records = [path for path in made.rglob("*.json") if b'"sha256"' in path.read_bytes()]
    assert len(records) > 5
    for path in records:
        before = path.read_bytes()
        for place in [match.start(1) for match in re.finditer(rb'"(?:size|sha256)": "?(\w)', before)]:
            path.write_bytes(before[:place] + (b"1" if before[place] != b"1"[0] else b"2") + before[place + 1 :])
            assert damaged(made), (path, place)
        path.write_bytes(before)


def test_what_is_written_after_the_last_saved_block_does_not_count(made: Path) -> None:
    begun = made / "begun.npy.unfinished"
    content = begun.read_bytes()
    begun.write_bytes(content[:-1] + b"x")
    assert damaged(made) == []


def test_all_that_lies_in_a_run_is_looked_at(shell: Shell, model: Path, here: Path) -> None:
    (here / "run" / "checkpoints").mkdir(parents=True)
    shutil.copytree(model, "run/model")
    checkpoint = here / "run/checkpoints/a.ckpt"
    AtomicCheckpointIO().save_checkpoint({"state_dict": {}}, checkpoint)
    Path("run/config.yaml").write_text("a: 1\n")
    Path("run/model/notes.txt").write_text("mine\n")
    Path("run/again").symlink_to(here / "run")
    said = shell("verify run").out
    for line in (
        "run/checkpoints/a.ckpt: ok by the checksums of its archive\n",
        "run/model/model.safetensors: ok\n",
        "run/model/1_Pooling/config.json: ok\n",
        "run: no digest of this library for config.yaml\n",
        "run/model: no digest of this library for notes.txt\n",
        "files are byte for byte what was written\n",
    ):
        assert line in said
    Path("run/model/modules.json").unlink()
    content = bytearray(checkpoint.read_bytes())
    content[len(content) // 2] ^= 1
    checkpoint.write_bytes(content)
    assert shell.status("verify run") == 2
    out, err = shell.capture.readouterr()
    assert "run/model/modules.json: damaged: no file\n" in out
    assert "run/checkpoints/a.ckpt: damaged: expected a whole checkpoint" in out
    assert "run: expected files that match their digests, got 2 damaged of" in err
    assert shell.status("verify run/checkpoints/a.ckpt") == 2


def test_what_cannot_be_read_is_damaged_and_the_rest_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.ckpt", "b.ckpt"):
        AtomicCheckpointIO().save_checkpoint({"state_dict": {}}, tmp_path / name)
    for place in ("locked", "v.npy", "v.npy.json"):
        (tmp_path / place).mkdir() if place == "locked" else (tmp_path / place).write_text("{}")
    (tmp_path / ".contrastive-text.host.0.1.0.tmp").mkdir()
    (tmp_path / ".contrastive-text.host.0.1.0.tmp" / MANIFEST).write_text("half")
    (tmp_path / "loose").symlink_to(tmp_path / "nothing")
    opened, listed = Path.open, Path.iterdir

    def refused(path: Path) -> None:
        if path.name in ("a.ckpt", "locked", "v.npy.json"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(
        Path, "open", lambda path, *rest, **named: (refused(path), opened(path, *rest, **named))[1]
    )
    monkeypatch.setattr(Path, "iterdir", lambda path: (refused(path), listed(path))[1])
    unread = f"can't be read ({os.strerror(errno.EACCES)})"
    found = {each.path.name: each for each in verify(tmp_path)}
    assert "Permission denied" in str(found.pop("v.npy.json").damage)
    assert {name: each.damage for name, each in found.items() if each.has_digest} == {
        "a.ckpt": unread, "b.ckpt": None, "locked": unread
    }  # fmt: skip
    assert {name for name, each in found.items() if not each.has_digest} == {"v.npy", "loose"}
