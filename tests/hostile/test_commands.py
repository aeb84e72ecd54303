"""Odd arguments and outputs of the commands over a saved model."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path

import pytest
import tiny
from hostile.cases import (
    FIT,
    TABLE,
    TWO,
    Case,
    Content,
    answer,
    copied,
    fifo,
    folder,
    link,
    over_words,
    right,
    vectors,
)
from hostile.judging import judge
from hostile.sound import Sound

EMBED = "embed $texts v.npy --model $bert --device cpu"
SEARCH = "search $texts 'an old bird' --model $bert --device cpu"
DUPLICATES = "duplicates $texts d.tsv --model $bert --device cpu"
DIAGNOSE = "diagnose $bert $texts --device cpu"
COMPARE = "compare $bert $bert --data $pairs --resamples 10 --device cpu"
EVALUATE = "evaluate $bert $pairs --device cpu"
POSTPROCESS = "postprocess $bert $texts out --device cpu"


def refused(command: str, option: str, *values: str, says: str = "") -> Iterator[Case]:
    """Yields a case for each value that an option of a command must refuse by its name."""
    name = command.partition(" ")[0]
    for value in values:
        words = f"{command} {option}={value}"
        yield answer(f"{name} {option} {value or 'empty'}", words, {}, says or option.lstrip("-"))


NUMBERS = (
    *refused(EMBED, "--batch_size", "0", "-1", "1.5", "nan", "", "1e3", "abc"),
    *refused(EMBED, "--block_size", "0", "-1", "inf"),
    *refused(EMBED, "--truncate_dim", "0", "-1", "17", "1e400"),
    *refused(EMBED, "--device", "nope", "cuda:99", "cpu,nope", "cpu,,cpu", ":", "cpu:-1"),
    *refused(EMBED, "--dtype", "float8", ""),
    *refused(EMBED, "--precision", "int4", ""),
    *refused(SEARCH, "--top_k", "0", "-1", "nan"),
    *refused(SEARCH, "--batch_size", "0", "-5"),
    *refused(DUPLICATES, "--threshold", "nan", "inf", "-inf", "2", "0", "-1", "1e400", "abc", ""),
    *refused(DIAGNOSE, "--limit", "0", "-1", "1", "1e3"),
    *refused(DIAGNOSE, "--batch_size", "0", "-1"),
    *refused(DIAGNOSE, "--seed", "x", "1.5"),
    *refused(COMPARE, "--resamples", "-1", "0", "1.5", "9" * 20),
    *refused(COMPARE, "--batch_size", "0", "-1"),
    *refused(COMPARE, "--seed", "1.5"),
    *refused(EVALUATE, "--batch_size", "0", "-1", "x"),
    *refused(EVALUATE, "--device", "tpu9", "cuda:-5"),
    *refused(POSTPROCESS, "--remove_components", "0", "-1", "17", "nan", says="components"),
    *refused(f"{POSTPROCESS} --whiten", "--features", "0", "-1", "17", "9" * 20),
    *refused(f"{POSTPROCESS} --whiten", "--batch_size", "0"),
    *refused("onnx $bert out", "--opset", "x", "0", "-1", "99"),
    *refused("report $run --output page", "--limit", "0", "-1", "x"),
    *refused("report $run --output page", "--device", "nope"),
    *(
        right(f"embed {words}", f"{EMBED} {words}", {}, check=vectors(40))
        for words in ("--batch_size 1000000000000", "--batch_size ' 5'", "--block_size 13")
    ),
    right("embed --truncate_dim 1", f"{EMBED} --truncate_dim 1", {}, check=vectors(40, width=1)),
    right("search --top_k above the corpus", f"{SEARCH} --top_k 1000000", {}, "line 40"),
    right("duplicates --threshold 1e-9 finds every pair", f"{DUPLICATES} --threshold 1e-9", {}, "780 pairs"),
    right("search --top_k of 30 digits", f"{SEARCH} --top_k {'9' * 30}", {}, "line 40"),
    right("diagnose --seed of 40 digits", f"{DIAGNOSE} --seed {'9' * 40}", {}, "isotropy"),
    right("compare --seed -1", f"{COMPARE} --seed -1", {}, "pairs.tsv"),
    right("duplicates --threshold 1 finds none", f"{DUPLICATES} --threshold 1", {}, "0 pairs"),
    right("diagnose --limit above the texts", f"{DIAGNOSE} --limit 1000000000000", {}, "40 different texts"),
)

WORDS = (
    *over_words(
        "answer",
        "",
        {
            "a command in capitals": ("Embed", "expected one of"),
            "an empty command": ("''", "expected one of"),
            "a command that is an option": ("--recipe simcse", "expected one of"),
            "a command of dots": ("../fit", "expected one of"),
            "a command of a module of ours": ("main", "expected one of"),
            "a command with a blank": ("'fit '", "did you mean fit?"),
            "no arguments for embed": ("embed", "required"),
            "no arguments for compare": ("compare", "required"),
            "an option without its value": ("embed $texts v.npy --model", "--model"),
            "an empty input": ("embed '' v.npy --model $bert", "expected"),
            "an empty model": ("embed $texts v.npy --model ''", "model"),
            "an empty output": ("embed $texts '' --model $bert", "expected"),
            "an empty query": ("search $texts '' --model $bert", "query"),
            "a query of zero-width characters": ("search $texts '\u200b' --model $bert", "query"),
            "no query": ("search $texts --model $bert", "--queries"),
            "one model to compare": ("compare $bert --data $pairs", "models"),
            "a suite that isn't known": ("evaluate $bert --suite gleu --data .", "suite"),
            "a suite and files": ("evaluate $bert $pairs --suite sts --data .", "files"),
            "a suite without data": ("evaluate $bert --suite sts", "--data"),
            "a suite over a file": ("evaluate $bert --suite transfer --data $pairs", "pairs.tsv"),
            "a suite over a folder that isn't there": ("evaluate $bert --suite sts --data nowhere", "nowhere"),
            "a model that is a file": ("embed $texts v.npy --model $texts", "texts.txt"),
            "a model that isn't there": ("embed $texts v.npy --model ./nowhere", "nowhere"),
            "a model on a hub that is out of reach": (
                "embed $texts v.npy --model no/such-model",
                "no/such-model",
            ),
            "a model of four names": ("embed $texts v.npy --model a/b/c/d", "a/b/c/d"),
            "a model above the root": (
                "embed $texts v.npy --model ../../../../../../../../../../nowhere",
                "nowhere",
            ),
            "a hub's data set of no split": ("embed hub: v.npy --model $bert", "hub:"),
        },
    ),
    *over_words(
        "answer",
        EMBED,
        {
            "an argument too many": (" more.txt", "more.txt"),
            "an option that is cut short": (" --batch 3", "--batch_size"),
            "an option with one dash": (" -batch_size 3", "batch_size"),
            "an option of another command": (" --threshold 0.5", "--threshold"),
            "--ranges that aren't there": (" --precision int8 --ranges r.npy", "r.npy"),
        },
    ),
    right(
        "a query that begins with dashes, after --",
        "search --model $bert -- $texts '--model of a --query'",
        {},
        "--model of a --query",
        "line ",
    ),
    right("a query that is one dash", "search $texts - --model $bert", {}, "line "),
    right(
        "a text that begins with a dash", "search in.txt dog --model $bert", {"in.txt": "-dog\n--cat\n"}, "-dog"
    ),
    answer("--query_column without --queries", f"{SEARCH} --query_column q", {}, "--queries"),
    *over_words(
        "counted",
        "search $texts --model $bert ",
        {"a query that is cut": (f"'{'bird ' * 100}'", "1 of 1 texts are longer")},
    ),
    answer("--ranges without bytes", f"{EMBED} --ranges r.npy", {"r.npy": b"x"}, "--ranges"),
    answer("a suite over an empty folder", "evaluate $bert --suite sts --data empty", {"empty": folder}, "empty"),
    answer("--columns without =", f"{EVALUATE} --columns gold", {}, "--columns"),
    answer("--columns of nothing", f"{EVALUATE} --columns =", {}, "columns"),
    answer("whiten and remove", f"{POSTPROCESS} --whiten --remove_components 1", {}, "got both; drop one"),
    answer("neither whiten nor remove", POSTPROCESS, {}, "--whiten"),
    answer(
        "fewer texts than features to whiten", "postprocess $bert in.txt out --whiten", {"in.txt": TWO}, "texts"
    ),
    answer("one text to diagnose", "diagnose $bert in.txt", {"in.txt": "a dog\n"}, "in.txt"),
    answer("one text many times to diagnose", "diagnose $bert in.txt", {"in.txt": "a dog\n" * 50}, "in.txt"),
    answer(
        "one text to whiten many times",
        "postprocess $bert in.txt out --remove_components 1",
        {"in.txt": "a dog\n" * 50},
        "in.txt",
    ),
    answer(
        "a split that a file doesn't have",
        "embed in.tsv v.npy --model $bert --split testing",
        {"in.tsv": "text\tsplit\na\ttrain\nb\ttest\n"},
        "testing",
    ),
)


SOUND = {"in.txt": "".join(f"{text}\n" for text in tiny.TEXTS), "in.tsv": TABLE, "m": copied("bert")}
COMPARE_M = "compare m m --data in.tsv --resamples 10"

OVER_INPUTS = tuple(
    answer(name, command, {**SOUND, **files}, *says)
    for name, (command, files, *says) in {
        "embed over its texts, by another name": (
            "embed in.txt v.npy --model m",
            {"v.npy": link("in.txt")},
            "v.npy",
        ),
        "embed over its ranges": (
            "embed in.txt r.npy --model m --precision int8 --ranges r.npy",
            {"r.npy": b"\x93NUMPY"},
            "r.npy",
        ),
        "duplicates over its texts": ("duplicates in.tsv in.tsv --model m", {}, "in.tsv"),
        "duplicates over its texts, by ./": ("duplicates in.tsv ./in.tsv --model m", {}, "in.tsv"),
        "duplicates that keep over their texts": (
            "duplicates in.txt d.tsv --keep in.txt --model m",
            {},
            "in.txt",
        ),
        "duplicates that keep over their pairs": ("duplicates in.txt d.tsv --keep d.tsv --model m", {}, "d.tsv"),
        "an index over the corpus": (
            "search in.txt q --model m --index v.npy",
            {"v.npy": link("in.txt")},
            "v.npy",
        ),
        "an index over the queries": (
            "search in.txt --queries q.npy --model m --index q.npy",
            {"q.npy": TWO},
            "q.npy",
        ),
        "diagnose over its texts": ("diagnose m in.txt --output in.txt", {}, "in.txt"),
        "diagnose over its pairs": ("diagnose m in.txt --pairs in.tsv --output in.tsv", {}, "in.tsv"),
        "diagnose over its model": ("diagnose m in.txt --output m/config.json", {}, "config.json"),
        "compare over its pairs": (f"{COMPARE_M} --output in.tsv", {}, "in.tsv"),
        "compare over its texts": (f"{COMPARE_M} --texts in.txt --output in.txt", {}, "in.txt"),
        "compare over a model": (f"{COMPARE_M} --output m/model.safetensors", {}, "m"),
        "compare over its pairs, by a link": (f"{COMPARE_M} --output out", {"out": link("in.tsv")}, "out"),
        "postprocess over its model": ("postprocess m in.txt m --remove_components 1", {}, "m: expected"),
        "postprocess over its model, by a link": (
            "postprocess m in.txt n --remove_components 1",
            {"n": link("m")},
            "n",
        ),
        "postprocess over the folder of its texts": (
            "postprocess m docs docs --remove_components 1",
            {"docs/a.txt": "a dog", "docs/b.txt": "a bird"},
            "docs",
        ),
        "onnx over its model": ("onnx m m", {}, "m: expected"),
        "onnx over its model, by ./": ("onnx m ./m/", {}, "expected"),
        "report over its pairs": ("report $run --pairs p/index.html --output p", {"p/index.html": TABLE}, "p"),
        "fit exports over its model": (FIT.replace("$bert", "m") + " --export.dirpath m", {}, "m"),
    }.items()
)

# Command -> its words, with ``{}`` for a file or a folder that it writes, and the name of that.
FILES = {
    "embed": ("embed $texts {} --model $bert", "v.npy"),
    "duplicates": ("duplicates $texts {} --model $bert", "d.tsv"),
    "duplicates --keep": ("duplicates $texts d.tsv --keep {} --model $bert", "k.txt"),
    "search --index": ("search $texts q --model $bert --index {}", "i.npy"),
    "diagnose": ("diagnose $bert $texts --output {}", "d"),
    "compare": ("compare $bert $bert --data $pairs --resamples 10 --output {}", "d"),
}
FOLDERS = {
    "evaluate --cache": ("evaluate $bert $pairs --cache {}", "c"),
    "postprocess": ("postprocess $bert $texts {} --remove_components 1", "out"),
    "onnx": ("onnx $bert {}", "out"),
    "report": ("report $run --output {}", "page"),
    "fit --export": (f"{FIT} --export.dirpath {{}}", "model"),
    "fit --checkpoint": (f"{FIT} --checkpoint.dirpath {{}}", "c"),
    "fit --trainer": (f"{FIT} --trainer.default_root_dir {{}}", "runs"),
}
NO_FILE: dict[str, tuple[str, Content | None]] = {
    "in a folder that isn't there": ("no/", None),
    "under a file": ("taken/", "x"),
    "over a folder": ("", folder),
    "into a named pipe": ("", fifo),
}
NO_FOLDER: dict[str, tuple[str, Content | None]] = {"under a file": ("taken/", "x"), "over a file": ("", "x")}
NO_PLACE = (
    *(
        answer(
            f"{name} {how}",
            words.replace("{}", above + output),
            {} if content is None else {above.rstrip("/") or output: content},
            above.rstrip("/") if outputs is FOLDERS and above else above + output,
        )
        for outputs, places in ((FILES, NO_FILE), (FOLDERS, NO_FOLDER))
        for name, (words, output) in outputs.items()
        for how, (above, content) in places.items()
    ),
    *over_words(
        "answer",
        "",
        {
            "embed into an odd format": ("embed $texts v.csv --model $bert", "v.csv"),
            "embed to /dev/full": ("embed $texts /dev/full --model $bert", "/dev/full"),
            "embed to a name of 300 letters": (f"embed $texts {'v' * 300}.npy --model $bert", "vvv"),
            "duplicates in another format": ("duplicates $texts d.csv --model $bert", "d.csv"),
            "search with an index of another format": ("search $texts q --model $bert --index i.tsv", "i.tsv"),
            "report of nothing": ("report nowhere", "nowhere"),
            "report of one run twice": ("report $run $run --output page", "different runs"),
        },
    ),
    answer("report of a file", "report in.txt", {"in.txt": "x"}, "in.txt"),
    answer("report of an empty folder", "report r", {"r": folder}, "r"),
)


@pytest.mark.slow
@pytest.mark.parametrize("case", [*NUMBERS, *WORDS, *OVER_INPUTS, *NO_PLACE], ids=attrgetter("name"))
def test_odd_arguments_and_outputs_are_refused_or_understood(case: Case, tmp_path: Path, sound: Sound) -> None:
    judge(case, tmp_path, sound)
