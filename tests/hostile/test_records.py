"""Damaged records of earlier work: vectors, caches, sweeps, ensembles, runs, and what ``verify`` reads."""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Iterator, Mapping
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest
from hostile.cases import (
    DEEP,
    EMBED_TEXTS,
    SWEPT,
    TWO,
    Case,
    Change,
    Content,
    Make,
    answer,
    array,
    copied,
    counted,
    edited,
    fifo,
    folder,
    half_zeroed,
    halved,
    link,
    over_files,
    put,
    refusals,
    replaced,
    right,
    sparse,
    unix_socket,
    vectors,
)
from hostile.judging import judge
from hostile.sound import Sound

from contrastive_text.core.storage.manifests import MANIFEST
from contrastive_text.training import AtomicCheckpointIO

RESUME = f"{EMBED_TEXTS} --block_size 10"
BUILD = "index build $texts i --model $bert --vectors v.npy --device cpu"
CACHE = "evaluate $bert $pairs --cache cache --device cpu"
TEST = "test --ckpt_path e --data.tasks.sst.test $labeled --trainer.accelerator cpu"
SWEEP = f"{SWEPT} --vary model.pooler=CLSPooler --output s"
REPORT = "report r --output page"
STORED = {"v.npy": copied("vectors"), "v.npy.json": copied("vectors_record")}
UNFINISHED = {"v.npy.unfinished": copied("unfinished"), "v.npy.unfinished.json": copied("unfinished_record")}


def corrupted(name: str, file: str, change: Content | Change) -> Make:
    """Returns what copies a sound file, or a folder, and changes it, or the files of a name in it."""

    def make(path: Path, sound: Mapping[str, str]) -> None:
        copied(name)(path, sound)
        for place in path.rglob(file) if file else [path]:
            put(place, change, sound)

    return make


def made_of(**changes: object) -> Change:
    """Returns a change of what a record says that vectors are made of."""

    def change(content: bytes) -> bytes:
        record = json.loads(content)
        record.get("made_of", record.get("record", record)).update(changes)
        return json.dumps(record).encode()

    return change


def chosen(**changes: object) -> Make:
    """Returns an ensemble with another choice for its task; ``...`` removes a key."""

    def change(content: bytes) -> bytes:
        record = json.loads(content)
        record["tasks"]["sst"] = json.loads(edited(**changes)(json.dumps(record["tasks"]["sst"]).encode()))
        return json.dumps(record).encode()

    return copied("ensemble", {"ensemble.json": change})


# Kind of record -> command, sound files, place and kind of the record, its name in the place, and printed words.
Kind = tuple[str, Mapping[str, Make], str, str, str, str]
UNFINISHED_RECORD = (RESUME, UNFINISHED, "v.npy.unfinished.json", "unfinished_record", "", "v.npy.unfinished")
RECORDS: dict[str, Kind] = {
    "a record of vectors": (BUILD, STORED, "v.npy.json", "vectors_record", "", "v.npy"),
    "a record of an unfinished output": UNFINISHED_RECORD,
    "an ensemble's list": (TEST, {}, "e", "ensemble", "ensemble.json", "ensemble.json"),
    "a sweep's scores.json": (SWEEP, {}, "s", "sweep", "scores.json", "scores.json"),
}
VECTORS: dict[str, Kind] = {
    "vectors": (BUILD, STORED, "v.npy", "vectors", "", "v.npy"),
    "an unfinished output": (RESUME, UNFINISHED, "v.npy.unfinished", "unfinished", "", "v.npy.unfinished"),
}
IN_JSON: dict[str, Content | Change] = {"cut short": halved, "that is a list": "[]", "5,000 levels deep": DEEP}
IN_BYTES: dict[str, Content | Change] = {
    "half of zeros": half_zeroed,
    "with one bit changed": lambda content: content[:200] + bytes([content[200] ^ 1]) + content[201:],
    "of no bytes": b"",
    "of words": b"no vectors",
}
OTHER: dict[str, dict[str, Content | Change]] = {
    "a record of vectors": {
        "of another model": made_of(model="0" * 32),
        "of other texts": made_of(texts="0" * 32),
        "of bytes": made_of(precision="int8"),
        "with a list for what it is made of": edited(made_of=[]),
        "without what it is made of": edited(made_of=...),
        "of other bytes": edited(vectors={"size": 1, "sha256": "0"}),
    },
    "a record of an unfinished output": {
        "of more bytes": replaced('"size": 1408', '"size": 2048'),
        "of -1 bytes": replaced('"size": 1408', '"size": -1'),
        "of a word of bytes": replaced('"size": 1408', '"size": "1408"'),
        "of another model": made_of(model="0" * 32),
    },
    "an index": {
        "whose last vector is zero": lambda content: content[:-64] + bytes(64),
        "with a byte after it": lambda content: content + b"x",
        "with a broken header": replaced("descr", "evil!"),
    },
}


def over(kinds: Mapping[str, Kind], corruptions: Mapping[str, Content | Change]) -> Iterator[Case]:
    """Yields the product of kinds of records and corruptions, and the corruptions of a kind alone."""
    for kind, (command, files, place, sound, file, says) in kinds.items():
        for how, change in {**corruptions, **OTHER.get(kind, {})}.items():
            yield answer(f"{kind} {how}", command, {**files, place: corrupted(sound, file, change)}, says)


ARRAYS: dict[str, Make] = {
    "of 7 features": array(np.ones((40, 7), np.float32)),
    "of 39 vectors": array(np.ones((39, 16), np.float32)),
    "of NaN": array(np.full((40, 16), np.nan, np.float32)),
    "of doubles": array(np.ones((40, 16))),
    "of objects": array(np.array([[None] * 16] * 40)),
    "of one dimension": array(np.ones(640, np.float32)),
    "that is a named pipe": fifo,
}
RANGES: dict[str, Make] = {
    "of another width": array(np.ones((2, 7))),
    "that are reversed": array(np.stack([np.ones(16), -np.ones(16)])),
    "of objects": array(np.array([[None] * 16] * 2)),
    "that are a named pipe": fifo,
}
RANGED = f"{EMBED_TEXTS} --precision int8 --ranges r.npy"
STORED_VECTORS = (
    *(answer(f"vectors {how}", BUILD, {**STORED, "v.npy": made}, "v.npy") for how, made in ARRAYS.items()),
    *(answer(f"ranges {how}", RANGED, {"r.npy": made}, "r") for how, made in RANGES.items()),
    answer("vectors without its record", BUILD, {"v.npy": copied("vectors")}, "v.npy.json"),
    answer("vectors of other texts", BUILD.replace("$texts", "in.txt"), {**STORED, "in.txt": TWO}, "v.npy"),
    answer("vectors of another model", BUILD.replace("$bert", "$foreign"), STORED, "v.npy"),
    answer("a record of vectors that is a named pipe", BUILD, {**STORED, "v.npy.json": fifo}, "v.npy"),
    right("vectors as they were left", BUILD, STORED, "40 documents written to i"),
)
MADE_AGAIN = (
    *(
        Case(name, command, files, "right", says, vectors(40), may_change=("v.npy.unfinished",))
        for name, command, files, says in (
            ("an unfinished output is resumed", RESUME, UNFINISHED, ("20 of 40 texts are encoded already",)),
            ("an unfinished output is thrown away", f"{RESUME} --restart", {"v.npy.unfinished": b"x"}, ()),
        )
    ),
    right("a cache as it was left", CACHE, {"cache": copied("cache")}, "0 distinct texts encoded"),
    *(
        counted(
            f"a cache {how} is reported and made again",
            CACHE,
            {"cache": corrupted("cache", "*.safetensors", change)},
            "cache",
            may_change=("cache",),
        )
        for how, change in IN_BYTES.items()
    ),
    answer("a cache that is a named pipe", CACHE, {"cache": fifo}, "cache"),
)
PREDICT = "predict --ckpt_path e --data.tasks.sst.predict $labeled --trainer.accelerator cpu"
CHOICES = {
    "with a key too few": chosen(metric=...),
    "with a score that is a word": chosen(score="high"),
    "with a member anywhere": chosen(member="/etc/passwd"),
    "with a member above it": chosen(member="../c.ckpt"),
    "of no tasks": copied("ensemble", {"ensemble.json": '{"tasks": {}}'}),
}
ENSEMBLES = (
    *(
        answer(f"an ensemble {how}", TEST, {"e": made, "c.ckpt": copied("checkpoint")}, "ensemble.json")
        for how, made in CHOICES.items()
    ),
    answer("a member that is a list", PREDICT, {"e": chosen(member=["a"])}, "ensemble.json"),
    answer("a member that is gone", TEST, {"e": chosen(member="member-9.ckpt")}, "e", "member-9.ckpt"),
    answer("a member cut short", TEST, {"e": copied("ensemble", {"member-1.ckpt": halved})}, "member-1.ckpt"),
    answer("a sweep into the folder of another", f"{SWEEP} --lr 1", {"s": copied("sweep")}, "--output"),
)
STEP = "epoch,step,train/loss\n0,0,"
OF_A_RUN: dict[str, tuple[str, Content | None]] = {
    "of a broken bracket": ("config.yaml", "data: {a: [\n"),
    "that is a list": ("config.yaml", "- a\n"),
    "that is no UTF-8": ("config.yaml", b"a: \xff\n"),
    "of words": ("metrics.csv", "a,b\nx,y\n"),
    "without steps": ("metrics.csv", "epoch,train/loss\n0,1.5\n"),
    "with a word for a figure": ("metrics.csv", f"{STEP}good\n"),
    "with a cell too many": ("metrics.csv", f"{STEP}1.5,7,8\n"),
    "with a NUL": ("metrics.csv", f"{STEP}1\0\n"),
}
PIPED = {"r": copied("run", {"config.yaml": None}), "r/config.yaml": fifo}
RUNS = (
    *(
        answer(f"a run's {file} {how}", REPORT, {"r": copied("run", {file: content})}, file)
        for how, (file, content) in OF_A_RUN.items()
    ),
    answer("a run's config.yaml that is a named pipe", REPORT, PIPED, "config.yaml"),
    answer(
        "a checkpoint that is a folder", REPORT, {"r": copied("run"), "r/checkpoints/a.ckpt": folder}, "a.ckpt"
    ),
)
CASES = (*over(RECORDS, IN_JSON), *over(VECTORS, IN_BYTES), *STORED_VECTORS, *MADE_AGAIN, *ENSEMBLES, *RUNS)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=attrgetter("name"))
def test_a_damaged_record_is_refused_or_made_again(case: Case, tmp_path: Path, sound: Sound) -> None:
    judge(case, tmp_path, sound)


# Verify

X = {"size": 1, "sha256": hashlib.sha256(b"x").hexdigest()}
"""The digest of a file that holds an x."""
NOTHING = "expected files with digests, got files without a digest"
OUTSIDE = "expected names of files in this folder"
NO_JSON = "expected JSON"


def manifest(*names: str, **other: object) -> str:
    """Returns a manifest of files that hold an x, or something else."""
    return json.dumps({"files": {name: {**X, **other} for name in names}}, indent=1)


def checkpoint(path: Path, _: Mapping[str, str]) -> None:
    """Makes a checkpoint."""
    AtomicCheckpointIO().save_checkpoint({"state_dict": {}}, path)


def cut_checkpoint(path: Path, sound: Mapping[str, str]) -> None:
    """Makes the first half of one."""
    checkpoint(path, sound)
    path.write_bytes(halved(path.read_bytes()))


def deep_folder(path: Path, sound: Mapping[str, str]) -> None:
    """Makes more folders inside each other than Python's calls can be, and a checkpoint in the last of them."""
    here = os.getcwd()
    try:
        for name in (path, *["d"] * 500):
            os.mkdir(name)
            os.chdir(name)
        checkpoint(Path("c.ckpt"), sound)
    finally:
        os.chdir(here)


def bomb() -> bytes:
    """Returns an archive with 1 MiB in it, which its directory lists 10,000 times."""
    with zipfile.ZipFile(out := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", bytes(1 << 20))
        archive.filelist *= 10_000
    return out.getvalue()


# What is odd about a folder's manifest, beside a file x that holds an x -> the manifest, and printed words.
MANIFESTS: dict[str, tuple[Content, *tuple[str, ...]]] = {
    "words": ("all is well\n", "damaged: ", NO_JSON),
    "one digit changed": (manifest("x").replace('"size": 1', '"size": 2'), "m/x: "),
    "100,000 levels": ("[" * 100_000, "levels"),
    "a number of 5,000 digits": (f'{{"a": {"9" * 5000}}}', NO_JSON),
    "1 TiB": (sparse(1 << 40), "at most"),
    "a named pipe": (fifo, NOTHING),
    "a folder": (folder, NOTHING),
    "a file above it": (manifest("../x"), OUTSIDE),
    "/etc/passwd": (manifest("/etc/passwd"), OUTSIDE),
    "2^70 bytes": (manifest("x", size=2**70), "bytes instead of"),
    "a NUL": (manifest("a\0b"), r"m/a\x00b: damaged: no file"),
    "half a character": (manifest("a\udcff"), r"m/a\udcff: damaged: no file"),
    "1,000 files that aren't there": (
        manifest(*(f"file_{i}" for i in range(1000))),
        "m/file_99: damaged: no file",
        "900 more are damaged",
        "1,000 damaged of 1,001 files",
    ),
}
UNKNOWN: dict[str, Content] = {
    "a": "x", "l": link("l"), "empty": folder, "p": fifo, "p.ckpt": fifo, "zero.ckpt": link("/dev/zero"),
    "odd/p": fifo, "odd/s": unix_socket, "vectors/v.npy": "x", "vectors/v.npy.json": fifo,
}  # fmt: skip
"""Files without a digest."""
LINE = "x\nm/weights: ok"
VERIFIED = (
    *refusals(
        "",
        {
            "verify": "path",
            "verify a b": "b",
            "verify --modle m": "--modle",
            "verify 'a\0b'": r"a\x00b: expected a file or a folder",
            "verify '\x1b[2J'": r"\x1b[2J: expected a file or a folder",
            f"verify {'v' * 300}": "too long",
            "verify a/b": "a/b: expected a file or a folder",
            "verify l": "l: expected a file or a folder",
            "verify empty": NOTHING,
            "verify p": NOTHING,
            "verify p.ckpt": NOTHING,
            "verify zero.ckpt": NOTHING,
            "verify odd": NOTHING,
            "verify vectors": NOTHING,
        },
        UNKNOWN,
    ),
    *(
        answer(f"verify of a manifest: {how}", "verify m", {f"m/{MANIFEST}": content, "m/x": "x"}, *says)
        for how, (content, *says) in MANIFESTS.items()
    ),
    *over_files(
        "answer",
        "verify {}",
        {
            "verify of a checkpoint cut short": ("c.ckpt", cut_checkpoint, "c.ckpt: damaged"),
            "verify of a checkpoint of no bytes": ("c.ckpt", b"", "c.ckpt: damaged"),
            "verify of a checkpoint of 10 GiB in 500 KB": ("c.ckpt", bomb(), "more bytes than"),
            "verify of a checkpoint of 1 TiB of zeros": ("c.ckpt", sparse(1 << 40), "c.ckpt: damaged"),
        },
    ),
    right("verify of folders 500 levels deep", "verify m", {"m": deep_folder}, "c.ckpt: ok by the checksums"),
    right(
        "verify of a file whose name would pass for a line",
        "verify m",
        {f"m/{MANIFEST}": manifest(LINE), f"m/{LINE}": "x"},
        r"m/x\nm/weights: ok: ok",
    ),
)


@pytest.mark.parametrize("case", VERIFIED, ids=attrgetter("name"))
def test_verify_names_what_is_damaged(case: Case, tmp_path: Path, sound: Sound) -> None:
    judge(case, tmp_path, sound)
