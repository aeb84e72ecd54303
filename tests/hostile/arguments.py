"""Odd arguments of the commands over a saved model: numbers, names, options that don't go together."""

from __future__ import annotations

from hostile.case import Case, answer, counted, right
from hostile.commands import TWO
from hostile.makers import folder, vectors

EMBED = "embed $texts v.npy --model $bert --device cpu"
SEARCH = "search $texts 'an old bird' --model $bert --device cpu"
DUPLICATES = "duplicates $texts d.tsv --model $bert --device cpu"
DIAGNOSE = "diagnose $bert $texts --device cpu"
COMPARE = "compare $bert $bert --data $pairs --resamples 10 --device cpu"
EVALUATE = "evaluate $bert $pairs --device cpu"
POSTPROCESS = "postprocess $bert $texts out --device cpu"


def refused(command: str, option: str, *values: str) -> tuple[Case, ...]:
    """Returns a case for each value that an option of a command must refuse by its name."""
    name = command.partition(" ")[0]
    return tuple(
        answer(f"{name} {option} {value or 'empty'}", f"{command} {option}={value}", {}, option.lstrip("-"))
        for value in values
    )


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
    *(
        answer(
            f"postprocess --remove_components {value}",
            f"{POSTPROCESS} --remove_components={value}",
            {},
            "components",
        )
        for value in ("0", "-1", "17", "nan")
    ),
    *refused(f"{POSTPROCESS} --whiten", "--features", "0", "-1", "17", "9" * 20),
    *refused(f"{POSTPROCESS} --whiten", "--batch_size", "0"),
    *refused("onnx $bert out", "--opset", "x"),
    answer("onnx --opset 0", "onnx $bert out --opset=0", {}, "opset"),
    answer("onnx --opset -1", "onnx $bert out --opset=-1", {}, "opset"),
    answer("onnx --opset 99", "onnx $bert out --opset=99", {}, "opset"),
    *refused("report $run --output page", "--limit", "0", "-1", "x"),
    *refused("report $run --output page", "--device", "nope"),
    right("embed --batch_size 1000000000000", f"{EMBED} --batch_size 1000000000000", {}, check=vectors(40)),
    right("embed --batch_size of a blank and 5", f"{EMBED} --batch_size ' 5'", {}, check=vectors(40)),
    right("embed --block_size 13", f"{EMBED} --block_size 13", {}, check=vectors(40)),
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
    answer("a command in capitals", "Embed", {}, "expected one of"),
    answer("an empty command", "''", {}, "expected one of"),
    answer("a command that is an option", "--recipe simcse", {}, "expected one of"),
    answer("a command of dots", "../fit", {}, "expected one of"),
    answer("a command of a module of ours", "main", {}, "expected one of"),
    answer("a command with a blank", "'fit '", {}, "did you mean fit?"),
    answer("no arguments for embed", "embed", {}, "required"),
    answer("no arguments for compare", "compare", {}, "required"),
    answer("an argument too many", f"{EMBED} more.txt", {}, "more.txt"),
    answer("an option that is cut short", f"{EMBED} --batch 3", {}, "--batch_size"),
    answer("an option without its value", "embed $texts v.npy --model", {}, "--model"),
    answer("an option with one dash", f"{EMBED} -batch_size 3", {}, "batch_size"),
    answer("an option of another command", f"{EMBED} --threshold 0.5", {}, "--threshold"),
    answer("an empty input", "embed '' v.npy --model $bert", {}, "expected"),
    answer("an empty model", "embed $texts v.npy --model ''", {}, "model"),
    answer("an empty output", "embed $texts '' --model $bert", {}, "expected"),
    answer("an empty query", "search $texts '' --model $bert", {}, "query"),
    answer("a query of zero-width characters", "search $texts '\u200b' --model $bert", {}, "query"),
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
    answer("no query", "search $texts --model $bert", {}, "--queries"),
    answer("--query_column without --queries", f"{SEARCH} --query_column q", {}, "--queries"),
    counted(
        "a query that is cut", f"search $texts '{'bird ' * 100}' --model $bert", {}, "1 of 1 texts are longer"
    ),
    answer("--ranges without bytes", f"{EMBED} --ranges r.npy", {"r.npy": b"x"}, "--ranges"),
    answer("--ranges that aren't there", f"{EMBED} --precision int8 --ranges r.npy", {}, "r.npy"),
    answer("one model to compare", "compare $bert --data $pairs", {}, "models"),
    answer("a suite that isn't known", "evaluate $bert --suite gleu --data .", {}, "suite"),
    answer("a suite and files", "evaluate $bert $pairs --suite sts --data .", {}, "files"),
    answer("a suite without data", "evaluate $bert --suite sts", {}, "--data"),
    answer("a suite over a file", "evaluate $bert --suite transfer --data $pairs", {}, "pairs.tsv"),
    answer("a suite over a folder that isn't there", "evaluate $bert --suite sts --data nowhere", {}, "nowhere"),
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
    answer("a model that is a file", "embed $texts v.npy --model $texts", {}, "texts.txt"),
    answer("a model that isn't there", "embed $texts v.npy --model ./nowhere", {}, "nowhere"),
    answer(
        "a model on a hub that is out of reach", "embed $texts v.npy --model no/such-model", {}, "no/such-model"
    ),
    answer("a model of four names", "embed $texts v.npy --model a/b/c/d", {}, "a/b/c/d"),
    answer(
        "a model above the root",
        "embed $texts v.npy --model ../../../../../../../../../../nowhere",
        {},
        "nowhere",
    ),
    answer("a hub's data set of no split", "embed hub: v.npy --model $bert", {}, "hub:"),
    answer(
        "a split that a file doesn't have",
        "embed in.tsv v.npy --model $bert --split testing",
        {"in.tsv": "text\tsplit\na\ttrain\nb\ttest\n"},
        "testing",
    ),
)

CASES = (*NUMBERS, *WORDS)
