"""Records of earlier work that were damaged: vectors, caches, sweeps, ensembles, runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest
from hostile.cases import (
    DEEP,
    SWEPT,
    TWO,
    Case,
    Change,
    Content,
    Make,
    answer,
    array,
    copied,
    edited,
    fifo,
    folder,
    half_zeroed,
    halved,
    over_files,
    put,
    replaced,
    right,
    vectors,
)
from hostile.judging import judge
from hostile.sound import Sound

EMBED = "embed $texts v.npy --model $bert --device cpu --block_size 10"
SEARCH = "search $texts 'an old bird' --model $bert --index v.npy --device cpu"
CACHE = "evaluate $bert $pairs --cache cache --device cpu"
TEST = "test --ckpt_path e --data.tasks.sst.test $labelled --trainer.accelerator cpu"
SWEEP = f"{SWEPT} --vary model.pooler=CLSPooler --output s"
REPORT = "report r --output page"
INDEX = {"v.npy": copied("vectors"), "v.npy.json": copied("vectors_record")}
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


def choice(**changes: object) -> Change:
    """Returns a change of the member that an ensemble has chosen for its task; ``...`` removes a key."""

    def change(content: bytes) -> bytes:
        record = json.loads(content)
        tasks = record["tasks"]
        tasks["sst"] = {name: value for name, value in {**tasks["sst"], **changes}.items() if value is not ...}
        return json.dumps(record).encode()

    return change


# Kind of record -> command, sound files, place and kind of the record, its name in the place, and printed words.
RECORDS: dict[str, tuple[str, Mapping[str, Make], str, str, str, str]] = {
    "a record of an index": (SEARCH, INDEX, "v.npy.json", "vectors_record", "", "v.npy"),
    "a record of an unfinished output": (
        EMBED,
        UNFINISHED,
        "v.npy.unfinished.json",
        "unfinished_record",
        "",
        "v.npy.unfinished",
    ),
    "an ensemble's list": (TEST, {}, "e", "ensemble", "ensemble.json", "ensemble.json"),
    "a sweep's scores.json": (SWEEP, {}, "s", "sweep", "scores.json", "scores.json"),
}
VECTORS = {
    "an index": (SEARCH, INDEX, "v.npy", "vectors", "", "v.npy"),
    "an unfinished output": (EMBED, UNFINISHED, "v.npy.unfinished", "unfinished", "", "v.npy.unfinished"),
}
IN_JSON: dict[str, Content | Change] = {
    "that is empty": "",
    "cut short": halved,
    "that is a list": "[]",
    "that is null": "null",
    "5,000 levels deep": DEEP,
}
IN_BYTES: dict[str, Content | Change] = {
    "half of zeros": half_zeroed,
    "with one bit changed": lambda content: content[:200] + bytes([content[200] ^ 1]) + content[201:],
    "cut short": halved,
    "of no bytes": b"",
    "of words": b"no vectors",
}
OTHER = {
    "a record of an index": {
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
    "an ensemble's list": {
        "of no tasks": '{"tasks": {}}',
        "of a task that is a number": '{"tasks": {"sst": 5}}',
        "with a key too few": choice(metric=...),
        "with a score that is a word": choice(score="high"),
        "with a member anywhere": choice(member="/etc/passwd"),
        "with a member that is a number": choice(member=5),
    },
    "an index": {
        "whose last vector is zero": lambda content: content[:-64] + bytes(64),
        "with a byte after it": lambda content: content + b"x",
        "with a broken header": lambda content: content.replace(b"descr", b"evil!"),
    },
    "an unfinished output": {"of zeros": lambda content: bytes(len(content))},
}


def over(
    kinds: Mapping[str, tuple[str, Mapping[str, Make], str, str, str, str]],
    corruptions: Mapping[str, Content | Change],
) -> Iterator[Case]:
    """Yields the product of kinds of records and corruptions, and the corruptions of a kind alone."""
    for kind, (command, files, place, sound, file, says) in kinds.items():
        for how, change in {**corruptions, **OTHER.get(kind, {})}.items():
            yield answer(f"{kind} {how}", command, {**files, place: corrupted(sound, file, change)}, says)


ARRAYS = {
    "of 32 features": np.ones((40, 32), np.float32),
    "of 7 features": np.ones((40, 7), np.float32),
    "of 39 vectors": np.ones((39, 16), np.float32),
    "of NaN": np.full((40, 16), np.nan, np.float32),
    "of doubles": np.ones((40, 16)),
    "of words": np.array([["a"] * 16] * 40),
    "of objects": np.array([[None] * 16] * 40),
    "of one dimension": np.ones(640, np.float32),
}
INDEXES = (
    *(
        answer(f"an index {how}", SEARCH, {**INDEX, "v.npy": array(values)}, "v.npy")
        for how, values in ARRAYS.items()
    ),
    answer("an index without its record", SEARCH, {"v.npy": copied("vectors")}, "v.npy.json"),
    answer("an index of other texts", SEARCH.replace("$texts", "in.txt"), {**INDEX, "in.txt": TWO}, "v.npy"),
    answer("an index of another model", SEARCH.replace("$bert", "$foreign"), INDEX, "v.npy"),
    answer("an index that is a named pipe", SEARCH, {**INDEX, "v.npy": fifo}, "v.npy"),
    answer("a record of an index that is a named pipe", SEARCH, {**INDEX, "v.npy.json": fifo}, "v.npy"),
    right("an index as it was left", SEARCH, INDEX, "an old bird"),
    *over_files(
        "answer",
        "embed $texts v.npy --model $bert --precision int8 --ranges r.npy",
        {
            "ranges of another width": ("r.npy", array(np.ones((2, 7))), "ranges"),
            "ranges that are reversed": ("r.npy", array(np.stack([np.ones(16), -np.ones(16)])), "ranges"),
            "ranges of NaN": ("r.npy", array(np.full((2, 16), np.nan)), "ranges"),
            "ranges of objects": ("r.npy", array(np.array([[None] * 16] * 2))),
            "ranges that are a named pipe": ("r.npy", fifo),
        },
    ),
)
MADE_AGAIN = (
    Case(
        "an unfinished output is resumed",
        EMBED,
        UNFINISHED,
        "right",
        ("20 of 40 texts are encoded already",),
        vectors(40),
        may_change=("v.npy.unfinished",),
    ),
    Case(
        "an unfinished output is thrown away",
        f"{EMBED} --restart",
        {**UNFINISHED, "v.npy.unfinished": b"x"},
        "right",
        (),
        vectors(40),
        may_change=("v.npy.unfinished",),
    ),
    right("a cache as it was left", CACHE, {"cache": copied("cache")}, "0 distinct texts encoded"),
    *(
        Case(
            f"a cache {how} is reported and made again",
            CACHE,
            {"cache": corrupted("cache", "*.safetensors", change)},
            "counted",
            ("cache",),
            may_change=("cache",),
        )
        for how, change in IN_BYTES.items()
    ),
    answer("a cache that is a file", CACHE, {"cache": "x"}, "cache"),
    answer("a cache that is a named pipe", CACHE, {"cache": fifo}, "cache"),
)
ENSEMBLES = (
    answer(
        "an ensemble's list with a member above it",
        TEST,
        {"e": corrupted("ensemble", "ensemble.json", choice(member="../c.ckpt")), "c.ckpt": copied("checkpoint")},
        "ensemble.json",
    ),
    answer(
        "an ensemble's list with a member that is a list",
        "predict --ckpt_path e --data.tasks.sst.predict $labelled --trainer.accelerator cpu",
        {"e": corrupted("ensemble", "ensemble.json", choice(member=["a"]))},
        "ensemble.json",
    ),
    *over_files(
        "answer",
        TEST,
        {
            "an ensemble's list with a member that is gone": (
                "e",
                corrupted("ensemble", "ensemble.json", choice(member="member-9.ckpt")),
                "member-9.ckpt",
            ),
            "an ensemble with a member cut short": (
                "e",
                copied("ensemble", {"member-1.ckpt": halved}),
                "member-1.ckpt",
            ),
        },
    ),
    *(
        answer(f"an ensemble {name}", command, {"e": copied("ensemble")}, says)
        for name, command, says in (
            ("with a task that it doesn't have", TEST.replace("sst", "sts"), "sts"),
            ("that is trained", "fit --ckpt_path e --trainer.max_steps 4", "e"),
            ("without files", TEST.replace("$labelled", "null"), "data.tasks"),
        )
    ),
    answer("a sweep into the folder of another", f"{SWEEP} --lr 1", {"s": copied("sweep")}, "--output"),
)
RUNS = (
    *(
        answer(f"a run's {file} {how}", REPORT, {"r": copied("run", {file: content})}, file)
        for file, how, content in (
            ("config.yaml", "of a broken bracket", "data: {a: [\n"),
            ("config.yaml", "that is a list", "- a\n"),
            ("config.yaml", "that is no UTF-8", b"a: \xff\n"),
            ("metrics.csv", "of words", "a,b\nx,y\n"),
            ("metrics.csv", "without steps", "epoch,train/loss\n0,1.5\n"),
            ("metrics.csv", "with a word for a figure", "epoch,step,train/loss\n0,0,good\n"),
            ("metrics.csv", "with a cell too many", "epoch,step,train/loss\n0,0,1.5,7,8\n"),
            ("metrics.csv", "that is no UTF-8", b"epoch,step,train/loss\n0,0,\xff\n"),
            ("metrics.csv", "with a NUL", b"epoch,step,train/loss\n0,0,1\0\n"),
        )
    ),
    answer(
        "a run's config.yaml that is a named pipe",
        REPORT,
        {"r": copied("run", {"config.yaml": None}), "r/config.yaml": fifo},
        "config.yaml",
    ),
    answer(
        "a run whose checkpoints are folders",
        REPORT,
        {"r": copied("run"), "r/checkpoints/step=9.ckpt": folder},
        "step=9.ckpt",
    ),
)
CASES = (*over(RECORDS, IN_JSON), *over(VECTORS, IN_BYTES), *INDEXES, *MADE_AGAIN, *ENSEMBLES, *RUNS)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=attrgetter("name"))
def test_a_damaged_record_is_refused_or_made_again(case: Case, tmp_path: Path, sound: Sound) -> None:
    judge(case, tmp_path, sound)
