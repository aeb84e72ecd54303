"""Outputs that would write over an input, or that have no place: every command that writes a file."""

from __future__ import annotations

from dataclasses import replace

import tiny
from hostile.case import answer
from hostile.commands import FIT, TABLE, TWO
from hostile.makers import copied, fifo, folder, link

SOUND = {"in.txt": "".join(f"{text}\n" for text in tiny.TEXTS), "in.tsv": TABLE, "m": copied("bert")}
QUICK = "--resamples 10"

OVER_INPUTS = (
    answer(
        "embed over its texts, by another name",
        "embed in.txt v.npy --model m",
        {**SOUND, "v.npy": link("in.txt")},
        "v.npy",
    ),
    answer(
        "embed over its ranges",
        "embed in.txt r.npy --model m --precision int8 --ranges r.npy",
        {**SOUND, "r.npy": b"\x93NUMPY"},
        "r.npy",
    ),
    answer("duplicates over its texts", "duplicates in.tsv in.tsv --model m", SOUND, "in.tsv"),
    answer("duplicates over its texts, by ./", "duplicates in.tsv ./in.tsv --model m", SOUND, "in.tsv"),
    answer(
        "duplicates that keep over their texts",
        "duplicates in.txt d.tsv --keep in.txt --model m",
        SOUND,
        "in.txt",
    ),
    answer(
        "duplicates that keep over their pairs", "duplicates in.txt d.tsv --keep d.tsv --model m", SOUND, "d.tsv"
    ),
    answer(
        "an index over the corpus",
        "search in.txt q --model m --index v.npy",
        {**SOUND, "v.npy": link("in.txt")},
        "v.npy",
    ),
    answer(
        "an index over the queries",
        "search in.txt --queries q.npy --model m --index q.npy",
        {**SOUND, "q.npy": TWO},
        "q.npy",
    ),
    answer("diagnose over its texts", "diagnose m in.txt --output in.txt", SOUND, "in.txt"),
    answer("diagnose over its pairs", "diagnose m in.txt --pairs in.tsv --output in.tsv", SOUND, "in.tsv"),
    answer("diagnose over its model", "diagnose m in.txt --output m/config.json", SOUND, "config.json"),
    answer("compare over its pairs", f"compare m m --data in.tsv --output in.tsv {QUICK}", SOUND, "in.tsv"),
    answer(
        "compare over its texts",
        f"compare m m --data in.tsv --texts in.txt --output in.txt {QUICK}",
        SOUND,
        "in.txt",
    ),
    answer("compare over a model", f"compare m m --data in.tsv --output m/model.safetensors {QUICK}", SOUND, "m"),
    answer(
        "compare over its pairs, by a link",
        f"compare m m --data in.tsv --output out {QUICK}",
        {**SOUND, "out": link("in.tsv")},
        "out",
    ),
    answer("postprocess over its model", "postprocess m in.txt m --remove_components 1", SOUND, "m: expected"),
    answer(
        "postprocess over its model, by a link",
        "postprocess m in.txt n --remove_components 1",
        {**SOUND, "n": link("m")},
        "n",
    ),
    answer(
        "postprocess over the folder of its texts",
        "postprocess m docs docs --remove_components 1",
        {**SOUND, "docs/a.txt": "a dog", "docs/b.txt": "a bird"},
        "docs",
    ),
    answer("onnx over its model", "onnx m m", SOUND, "m: expected"),
    answer("onnx over its model, by ./", "onnx m ./m/", SOUND, "expected"),
    answer("report over its pairs", "report $run --pairs p/index.html --output p", {"p/index.html": TABLE}, "p"),
)

NO_PLACE = (
    answer("embed into a folder that isn't there", "embed $texts no/v.npy --model $bert", {}, "no/v.npy"),
    answer("embed under a file", "embed $texts f/v.npy --model $bert", {"f": "x"}, "f/v.npy"),
    answer("embed over a folder", "embed $texts v.npy --model $bert", {"v.npy": folder}, "v.npy"),
    answer("embed into a named pipe", "embed $texts v.npy --model $bert", {"v.npy": fifo}, "v.npy"),
    answer("embed into an odd format", "embed $texts v.csv --model $bert", {}, "v.csv"),
    answer("embed to a name of 300 letters", f"embed $texts {'v' * 300}.npy --model $bert", {}, "vvv"),
    answer("embed to /dev/full", "embed $texts /dev/full --model $bert", {}, "/dev/full"),
    answer(
        "duplicates into a folder that isn't there", "duplicates $texts no/d.tsv --model $bert", {}, "no/d.tsv"
    ),
    answer("duplicates over a folder", "duplicates $texts d.tsv --model $bert", {"d.tsv": folder}, "d.tsv"),
    answer("duplicates in another format", "duplicates $texts d.csv --model $bert", {}, "d.csv"),
    answer(
        "duplicates that keep into a folder that isn't there",
        "duplicates $texts d.tsv --keep no/k.txt --model $bert",
        {},
        "no/k.txt",
    ),
    answer("duplicates into a named pipe", "duplicates $texts d.tsv --model $bert", {"d.tsv": fifo}, "d.tsv"),
    answer(
        "search with an index under a file", "search $texts q --model $bert --index f/i.npy", {"f": "x"}, "i.npy"
    ),
    answer("search with an index of another format", "search $texts q --model $bert --index i.tsv", {}, "i.tsv"),
    answer(
        "search with a folder for an index",
        "search $texts q --model $bert --index i.npy",
        {"i.npy": folder},
        "i.npy",
    ),
    answer("diagnose into a folder that isn't there", "diagnose $bert $texts --output no/d", {}, "no/d"),
    answer("diagnose over a folder", "diagnose $bert $texts --output d", {"d": folder}, "d: expected"),
    answer("diagnose into a named pipe", "diagnose $bert $texts --output d", {"d": fifo}, "d: expected"),
    answer(
        "compare over a folder", f"compare $bert $bert --data $pairs --output d {QUICK}", {"d": folder}, "d: "
    ),
    answer("compare under a file", f"compare $bert $bert --data $pairs --output d/e {QUICK}", {"d": "x"}, "d/e"),
    answer("evaluate --cache under a file", "evaluate $bert $pairs --cache f/c", {"f": "x"}, "f/c"),
    answer("postprocess over a file", "postprocess $bert $texts out --remove_components 1", {"out": "x"}, "out"),
    answer("postprocess under a file", "postprocess $bert $texts f/out --remove_components 1", {"f": "x"}, "f"),
    answer("onnx over a file", "onnx $bert out", {"out": "x"}, "out"),
    answer("onnx under a file", "onnx $bert f/out", {"f": "x"}, "f"),
    answer("report over a file", "report $run --output page", {"page": "x"}, "page"),
    answer("report under a file", "report $run --output f/page", {"f": "x"}, "f"),
    answer("report of a file", "report in.txt", {"in.txt": "x"}, "in.txt"),
    answer("report of an empty folder", "report r", {"r": folder}, "r"),
    answer("report of nothing", "report nowhere", {}, "nowhere"),
    answer("report of one run twice", "report $run $run --output page", {}, "different runs"),
    answer("fit exports over a file", "FIT --export.dirpath f", {"f": "x"}, "f: expected"),
    answer("fit exports under a file", "FIT --export.dirpath f/model", {"f": "x"}, "f/model"),
    answer("fit keeps checkpoints under a file", "FIT --checkpoint.dirpath f/c", {"f": "x"}, "f"),
    answer("fit runs under a file", "FIT --trainer.default_root_dir f/runs", {"f": "x"}, "f"),
    answer(
        "fit exports over its model",
        "fit --recipe simcse --model.encoder.model_name_or_path m --data.train "
        "$texts --data.batch_size 8 --trainer.accelerator cpu --trainer.max_steps 1 --export.dirpath m",
        {"m": copied("bert")},
        "m",
    ),
)


CASES = tuple(replace(case, command=case.command.replace("FIT", FIT)) for case in (*OVER_INPUTS, *NO_PLACE))
