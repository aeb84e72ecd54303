"""Scores that are no numbers, or say nothing."""

from __future__ import annotations

from hostile.case import answer, counted, right
from hostile.commands import HEAD, TABLE

_NO_NUMBERS = tuple(
    answer(
        f"{value!r} for a score",
        "evaluate $bert in.tsv",
        {"in.tsv": TABLE + f"a\tb\t{value}\n"},
        "in.tsv:5",
        "score",
    )
    for value in ("nan", "inf", "-inf", "1e999", "good", "0x10", "1,5", "--1", "1 2")
)

CASES = (
    *_NO_NUMBERS,
    answer("an underscore in a score", "evaluate $bert in.tsv", {"in.tsv": TABLE + "a\tb\t1_000\n"}, "in.tsv:5"),
    answer(
        "a digit of another script for a score",
        "evaluate $bert in.tsv",
        {"in.tsv": TABLE + "a\tb\t\u0661\n"},
        "in.tsv:5",
    ),
    counted(
        "-1 is no score in GLUE's hidden test sets",
        "evaluate $bert in.tsv",
        {"in.tsv": TABLE + "a\tb\t-1\n"},
        "left out",
    ),
    counted("an empty score is none", "evaluate $bert in.tsv", {"in.tsv": TABLE + "a\tb\t\n"}, "left out"),
    answer(
        "no row has a score",
        "evaluate $bert in.tsv",
        {"in.tsv": "sentence1\tsentence2\tscore\na\tb\t-1\nc\td\t-1\n"},
        "in.tsv",
    ),
    right(
        "a score of 20 digits", "evaluate $bert in.tsv", {"in.tsv": TABLE + "a\tb\t12345678901234567890\n"}, " 4 "
    ),
    right(
        "all scores are equal",
        "evaluate $bert in.tsv",
        {"in.tsv": HEAD + "a dog\tb\t1\nc\td\t1\ne\tf\t1\n"},
        "no order to compare",
        "in.tsv",
    ),
    right(
        "all pairs are the same pair",
        "evaluate $bert in.tsv",
        {"in.tsv": HEAD + "a\tb\t1\na\tb\t2\na\tb\t3\n"},
        "no order to compare",
    ),
    right("one pair", "evaluate $bert in.tsv", {"in.tsv": "sentence1\tsentence2\tscore\na\tb\t1\n"}, "n/a"),
    answer(
        "a score that is a list in JSON",
        "evaluate $bert in.jsonl",
        {"in.jsonl": '{"anchor": "a", "positive": "b", "score": [1]}\n'},
        "in.jsonl:1",
    ),
    right(
        "scores that are true and false in JSON",
        "evaluate $bert in.jsonl",
        {
            "in.jsonl": '{"anchor": "a", "positive": "b", "score": true}\n{"anchor": "c", "positive": "d", '
            '"score": false}\n'
        },
        " 2 ",
    ),
    answer(
        "a score that is NaN in JSON",
        "evaluate $bert in.jsonl",
        {"in.jsonl": '{"anchor": "a", "positive": "b", "score": NaN}\n'},
        "in.jsonl:1",
    ),
    answer(
        "a score of 400 digits in JSON",
        "evaluate $bert in.jsonl",
        {"in.jsonl": '{"anchor": "a", "positive": "b", "score": ' + "9" * 400 + "}\n"},
        "in.jsonl:1",
    ),
)
