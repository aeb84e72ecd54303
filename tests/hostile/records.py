"""Records of earlier work that were damaged or changed: vectors, indexes, caches, sweeps, ensembles, runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from hostile.case import Case, answer, right
from hostile.commands import SWEPT, TWO
from hostile.makers import array, copied, edited, fifo, flipped, folder, half_zeroed, halved, replaced, vectors

SEARCH = "search $texts 'an old bird' --model $bert --index v.npy --device cpu"
INDEX = {"v.npy": copied("vectors"), "v.npy.json": copied("vectors_record")}


def index(name: str, file: str, change: Any, *says: str) -> Case:  # Any: what copied takes
    """Returns a case of an index with a file changed."""
    sound = {"v.npy": "vectors", "v.npy.json": "vectors_record"}
    files = {**INDEX, file: copied(sound[file], {"": change})}
    return answer(name, SEARCH, files, *(says or ("v.npy",)))


def _zero_row(content: bytes) -> bytes:
    return content[:-64] + bytes(64)


VECTORS = (
    index("an index half of zeros", "v.npy", half_zeroed),
    index("an index with one bit changed", "v.npy", flipped),
    index("an index cut short", "v.npy", halved),
    index("an index whose last vector is zero", "v.npy", _zero_row),
    index("an index with a byte after it", "v.npy", lambda content: content + b"x"),
    index("an index of no bytes", "v.npy", lambda _: b""),
    index("an index with a broken header", "v.npy", lambda content: content.replace(b"descr", b"evil!")),
    index("a record of an index that is empty", "v.npy.json", ""),
    index("a record of an index cut short", "v.npy.json", halved),
    index("a record of an index that is a list", "v.npy.json", "[]"),
    index("a record of an index that is null", "v.npy.json", "null"),
    index(
        "a record of an index of another model", "v.npy.json", lambda content: _made_of(content, model="0" * 32)
    ),
    index("a record of an index of other texts", "v.npy.json", lambda content: _made_of(content, texts="0" * 32)),
    index("a record of an index of bytes", "v.npy.json", lambda content: _made_of(content, precision="int8")),
    index("a record of an index with a list for what it is made of", "v.npy.json", edited(made_of=[])),
    index("a record of an index without what it is made of", "v.npy.json", edited(made_of=...)),
    index("a record of an index of other bytes", "v.npy.json", edited(vectors={"size": 1, "sha256": "0"})),
    index("a record of an index 5,000 levels deep", "v.npy.json", '{"made_of": ' * 5000 + "1" + "}" * 5000),
    answer("an index without its record", SEARCH, {"v.npy": copied("vectors")}, "v.npy.json"),
    answer("an index of 32 features", SEARCH, {**INDEX, "v.npy": array(np.ones((40, 32), np.float32))}, "v.npy"),
    answer("an index of 7 features", SEARCH, {**INDEX, "v.npy": array(np.ones((40, 7), np.float32))}, "v.npy"),
    answer("an index of 39 vectors", SEARCH, {**INDEX, "v.npy": array(np.ones((39, 16), np.float32))}, "v.npy"),
    answer("an index of NaN", SEARCH, {**INDEX, "v.npy": array(np.full((40, 16), np.nan, np.float32))}, "v.npy"),
    answer("an index of doubles", SEARCH, {**INDEX, "v.npy": array(np.ones((40, 16)))}, "v.npy"),
    answer("an index of words", SEARCH, {**INDEX, "v.npy": array([["a"] * 16] * 40)}, "v.npy"),
    answer("an index of objects", SEARCH, {**INDEX, "v.npy": array(np.array([[None] * 16] * 40))}, "v.npy"),
    answer("an index of one dimension", SEARCH, {**INDEX, "v.npy": array(np.ones(640, np.float32))}, "v.npy"),
    answer("an index of other texts", SEARCH.replace("$texts", "in.txt"), {**INDEX, "in.txt": TWO}, "v.npy"),
    answer("an index of another model", SEARCH.replace("$bert", "$foreign"), INDEX, "v.npy"),
    answer("an index that is a named pipe", SEARCH, {**INDEX, "v.npy": fifo}, "v.npy"),
    answer("a record of an index that is a named pipe", SEARCH, {**INDEX, "v.npy.json": fifo}, "v.npy"),
    right("an index as it was left", SEARCH, INDEX, "an old bird"),
    answer(
        "ranges of another width",
        "embed $texts v.npy --model $bert --precision int8 --ranges r.npy",
        {"r.npy": array(np.ones((2, 7)))},
        "ranges",
    ),
    answer(
        "ranges that are reversed",
        "embed $texts v.npy --model $bert --precision int8 --ranges r.npy",
        {"r.npy": array(np.stack([np.ones(16), -np.ones(16)]))},
        "ranges",
    ),
    answer(
        "ranges of NaN",
        "embed $texts v.npy --model $bert --precision int8 --ranges r.npy",
        {"r.npy": array(np.full((2, 16), np.nan))},
        "ranges",
    ),
    answer(
        "ranges of objects",
        "embed $texts v.npy --model $bert --precision int8 --ranges r.npy",
        {"r.npy": array(np.array([[None] * 16] * 2))},
        "r.npy",
    ),
    answer(
        "ranges that are a named pipe",
        "embed $texts v.npy --model $bert --precision int8 --ranges r.npy",
        {"r.npy": fifo},
        "r.npy",
    ),
)


def _made_of(content: bytes, **changes: object) -> bytes:
    record = json.loads(content)
    place = record.get("made_of", record.get("record", record))
    place.update(changes)
    return json.dumps(record).encode()


EMBED = "embed $texts v.npy --model $bert --device cpu --block_size 10"
UNFINISHED = {"v.npy.unfinished": copied("unfinished"), "v.npy.unfinished.json": copied("unfinished_record")}


def unfinished(name: str, file: str, change: Any) -> Case:  # Any: what copied takes
    """Returns a case of an unfinished output with a file changed."""
    sound = "unfinished_record" if file.endswith(".json") else "unfinished"
    return answer(name, EMBED, {**UNFINISHED, file: copied(sound, {"": change})}, "v.npy.unfinished")


def _first_block(content: bytes) -> bytes:
    return content[:200] + bytes([content[200] ^ 1]) + content[201:]


OUTPUTS = (
    right(
        "an unfinished output is gone on with",
        EMBED,
        UNFINISHED,
        "20 of 40 texts are encoded already",
        check=vectors(40),
    ),
    unfinished("an unfinished output with a bit changed", "v.npy.unfinished", _first_block),
    unfinished("an unfinished output cut short", "v.npy.unfinished", halved),
    unfinished("an unfinished output of no bytes", "v.npy.unfinished", b""),
    unfinished("an unfinished output of zeros", "v.npy.unfinished", lambda content: bytes(len(content))),
    unfinished("a record of an unfinished output that is empty", "v.npy.unfinished.json", ""),
    unfinished("a record of an unfinished output cut short", "v.npy.unfinished.json", halved),
    unfinished("a record of an unfinished output that is a list", "v.npy.unfinished.json", "[1]"),
    unfinished(
        "a record of an unfinished output of more bytes",
        "v.npy.unfinished.json",
        replaced('"size": 1408', '"size": 2048'),
    ),
    unfinished(
        "a record of an unfinished output of -1 bytes",
        "v.npy.unfinished.json",
        replaced('"size": 1408', '"size": -1'),
    ),
    unfinished(
        "a record of an unfinished output of a word of bytes",
        "v.npy.unfinished.json",
        replaced('"size": 1408', '"size": "1408"'),
    ),
    unfinished(
        "a record of an unfinished output of another model",
        "v.npy.unfinished.json",
        lambda content: _made_of(content, model="0" * 32),
    ),
    right(
        "an unfinished output is thrown away",
        f"{EMBED} --restart",
        {**UNFINISHED, "v.npy.unfinished": b"x"},
        check=vectors(40),
    ),
)

_REPLACED = tuple(
    Case(
        case.name, case.command, case.files, case.outcome, case.says, case.check, may_change=("v.npy.unfinished",)
    )
    if case.outcome == "right"
    else case
    for case in OUTPUTS
)

CACHE = "evaluate $bert $pairs --cache cache --device cpu"


def _in_cache(change: Any) -> Any:  # Any: a change of bytes; a Make
    def make(path: Path, sound: Any) -> None:
        copied("cache")(path, sound)
        for file in path.rglob("*.safetensors"):
            file.write_bytes(change(file.read_bytes()))

    return make


CACHES = (
    right("a cache as it was left", CACHE, {"cache": copied("cache")}, "0 distinct texts encoded"),
    *(
        Case(
            f"a cache {how} is told of and made anew",
            CACHE,
            {"cache": _in_cache(change)},
            "counted",
            ("cache",),
            may_change=("cache",),
        )
        for how, change in (
            ("half of zeros", half_zeroed),
            ("with one bit changed", flipped),
            ("cut short", halved),
            ("of no bytes", lambda _: b""),
            ("of words", lambda _: b"no vectors"),
        )
    ),
    answer("a cache that is a file", CACHE, {"cache": "x"}, "cache"),
    answer("a cache that is a named pipe", CACHE, {"cache": fifo}, "cache"),
)


def ensemble(
    name: str, change: Any, *says: str, command: str = "test", more: Any = None
) -> Case:  # Any: of copied
    """Returns a case of an ensemble whose list was changed."""
    words = {
        "test": "test --ckpt_path e --data.tasks.sst.test $labelled --trainer.accelerator cpu",
        "predict": "predict --ckpt_path e --data.tasks.sst.predict $labelled --trainer.accelerator cpu",
    }[command]
    return answer(
        name,
        words,
        {"e": copied("ensemble", {"ensemble.json": change}), **(more or {})},
        *(says or ("ensemble.json",)),
    )


def _choice(**changes: object) -> Any:  # Any: a change of bytes
    def change(content: bytes) -> bytes:
        record = json.loads(content)
        tasks = record["tasks"] if "tasks" in record else record["record"]["tasks"]
        tasks["sst"] = {name: value for name, value in {**tasks["sst"], **changes}.items() if value is not ...}
        return json.dumps(record).encode()

    return change


ENSEMBLES = (
    ensemble("an ensemble's list that is empty", ""),
    ensemble("an ensemble's list that is cut short", halved),
    ensemble("an ensemble's list that is a list", "[]"),
    ensemble("an ensemble's list that is null", "null"),
    ensemble("an ensemble's list of no tasks", '{"tasks": {}}'),
    ensemble("an ensemble's list of a task that is a number", '{"tasks": {"sst": 5}}'),
    ensemble("an ensemble's list with a key too few", _choice(metric=...)),
    ensemble("an ensemble's list with a score that is a word", _choice(score="high")),
    ensemble(
        "an ensemble's list with a member above it",
        _choice(member="../c.ckpt"),
        more={"c.ckpt": copied("checkpoint")},
    ),
    ensemble("an ensemble's list with a member anywhere", _choice(member="/etc/passwd")),
    ensemble("an ensemble's list with a member that is gone", _choice(member="member-9.ckpt"), "member-9.ckpt"),
    ensemble("an ensemble's list with a member that is a number", _choice(member=5)),
    ensemble("an ensemble's list with a member that is a list", _choice(member=["a"]), command="predict"),
    ensemble("an ensemble's list 5,000 levels deep", '{"tasks": ' * 5000 + "1" + "}" * 5000),
    answer(
        "an ensemble with a member cut short",
        "test --ckpt_path e --data.tasks.sst.test $labelled --trainer.accelerator cpu",
        {"e": copied("ensemble", {"member-1.ckpt": halved})},
        "member-1.ckpt",
    ),
    answer(
        "an ensemble with a task that it doesn't have",
        "test --ckpt_path e --data.tasks.sts.test $labelled --trainer.accelerator cpu",
        {"e": copied("ensemble")},
        "sts",
    ),
    answer(
        "an ensemble that is trained", "fit --ckpt_path e --trainer.max_steps 4", {"e": copied("ensemble")}, "e"
    ),
    answer(
        "an ensemble without files",
        "test --ckpt_path e --trainer.accelerator cpu --data.tasks.sst.test null",
        {"e": copied("ensemble")},
        "data.tasks",
    ),
)

REAL_SWEEP = f"{SWEPT} --vary model.pooler=CLSPooler --output s"


def sweep(name: str, file: str, change: Any, *says: str) -> Case:  # Any: what copied takes
    """Returns a case of a sweep's folder with a record changed."""

    def make(path: Path, sound: Any) -> None:
        copied("sweep")(path, sound)
        (place,) = path.rglob(file)
        place.write_bytes(change(place.read_bytes()) if callable(change) else change.encode())

    return Case(name, REAL_SWEEP, {"s": make}, "answer", says or (file,))


SWEEPS = (
    *(
        sweep(f"a sweep's scores.json that {how}", "scores.json", change)
        for how, change in (
            ("is empty", ""),
            ("is cut short", halved),
            ("is a list", "[]"),
            ("is null", "null"),
            ("is 5,000 levels deep", '{"axes": ' * 5000 + "1" + "}" * 5000),
        )
    ),
    answer(
        "a sweep into the folder of another",
        f"{REAL_SWEEP} --lr 1",
        {"s": copied("sweep")},
        "--output",
    ),
)


def run(name: str, file: str, change: Any, *says: str) -> Case:  # Any: what copied takes
    """Returns a case of a page of a run with a file changed."""
    return answer(name, "report r --output page", {"r": copied("run", {file: change})}, *(says or (file,)))


RUNS = (
    run("a run's config.yaml of a broken bracket", "config.yaml", "data: {a: [\n"),
    run("a run's config.yaml that is a list", "config.yaml", "- a\n"),
    run("a run's config.yaml that is no UTF-8", "config.yaml", b"a: \xff\n"),
    run("a run's metrics.csv of words", "metrics.csv", "a,b\nx,y\n"),
    run("a run's metrics.csv without steps", "metrics.csv", "epoch,train/loss\n0,1.5\n"),
    run("a run's metrics.csv with a word for a figure", "metrics.csv", "epoch,step,train/loss\n0,0,good\n"),
    run("a run's metrics.csv with a cell too many", "metrics.csv", "epoch,step,train/loss\n0,0,1.5,7,8\n"),
    run("a run's metrics.csv that is no UTF-8", "metrics.csv", b"epoch,step,train/loss\n0,0,\xff\n"),
    run("a run's metrics.csv with a NUL", "metrics.csv", b"epoch,step,train/loss\n0,0,1\0\n"),
    answer(
        "a run's config.yaml that is a named pipe",
        "report r --output page",
        {"r": copied("run", {"config.yaml": None}), "r/config.yaml": fifo},
        "config.yaml",
    ),
    answer(
        "a run whose checkpoints are folders",
        "report r --output page",
        {"r": copied("run"), "r/checkpoints/step=9.ckpt": folder},
        "step=9.ckpt",
    ),
)

CASES = (*VECTORS, *_REPLACED, *CACHES, *ENSEMBLES, *SWEEPS, *RUNS)
