"""Tables and lines of JSON that are ragged, ambiguous or of other types."""

from __future__ import annotations

from hostile.case import answer, counted, right
from hostile.commands import TABLE, embedded
from hostile.makers import vectors

CASES = (
    answer(
        "a row with a cell too many",
        "evaluate $bert in.tsv",
        {"in.tsv": TABLE + "a\tb\t1\tc\n"},
        "in.tsv:5",
        "3 fields",
    ),
    answer("a row with a cell too few", "evaluate $bert in.tsv", {"in.tsv": TABLE + "a\tb\n"}, "in.tsv:5"),
    answer(
        "a column twice",
        "evaluate $bert in.tsv",
        {"in.tsv": "sentence1\tsentence1\tscore\na\tb\t1\n"},
        "in.tsv:1",
        "sentence1",
    ),
    answer(
        "two columns for one thing",
        "evaluate $bert in.tsv",
        {"in.tsv": "sentence1\tsentence2\tscore\tlabel\na\tb\t1\t2\n"},
        "in.tsv",
        "score and label",
    ),
    answer(
        "no column for the second text",
        "evaluate $bert in.tsv",
        {"in.tsv": "sentence1\tscore\na\t1\n"},
        "in.tsv",
        "positive",
    ),
    answer(
        "no column for the score",
        "evaluate $bert in.tsv",
        {"in.tsv": "sentence1\tsentence2\na\tb\n"},
        "in.tsv",
        "target",
    ),
    answer(
        "a header and nothing below it",
        "evaluate $bert in.tsv",
        {"in.tsv": "sentence1\tsentence2\tscore\n"},
        "in.tsv",
        "at least one row",
    ),
    answer("blank lines above the header", "evaluate $bert in.tsv", {"in.tsv": "\n\n" + TABLE}, "in.tsv"),
    answer(
        "a quote that is never closed",
        "evaluate $bert in.csv",
        {"in.csv": 'sentence1,sentence2,score\n"a dog,a bird,1\na,b,2\n'},
        "in.csv:2",
    ),
    answer(
        "a quote in the middle of a field",
        "evaluate $bert in.csv",
        {"in.csv": 'sentence1,sentence2,score\n"a "dog" here",a bird,1\n'},
        "in.csv:2",
    ),
    answer(
        "a column that isn't there",
        embedded("in.tsv", "--column body"),
        {"in.tsv": "text\tn\na\t1\n"},
        "in.tsv",
        "body",
    ),
    answer(
        "--columns of no library column", "evaluate $bert in.tsv --columns gold=score", {"in.tsv": TABLE}, "gold"
    ),
    answer("a text that is a number in JSON", embedded("in.jsonl"), {"in.jsonl": '{"text": 5}\n'}, "in.jsonl:1"),
    answer(
        "a text that is an object in JSON",
        embedded("in.jsonl"),
        {"in.jsonl": '{"text": {"a": "b"}}\n'},
        "in.jsonl:1",
    ),
    answer(
        "a list of texts and numbers", embedded("in.jsonl"), {"in.jsonl": '{"text": ["a", 1]}\n'}, "in.jsonl:1"
    ),
    answer("JSON over several lines", embedded("in.jsonl"), {"in.jsonl": '{\n  "text": "a"\n}\n'}, "in.jsonl:1"),
    answer(
        "a JSON number beyond all digits",
        embedded("in.jsonl"),
        {"in.jsonl": '{"text": "a", "n": ' + "9" * 5000 + "}\n"},
        "in.jsonl:1",
    ),
    answer(
        "a name twice in one object",
        embedded("in.jsonl"),
        {"in.jsonl": '{"text": "a dog", "text": "a bird"}\n'},
        "in.jsonl:1",
        "text",
    ),
    answer(
        "half a surrogate pair in JSON",
        embedded("in.jsonl"),
        {"in.jsonl": '{"text": "a \\ud800 b"}\n'},
        "in.jsonl:1",
    ),
    answer(
        "half a surrogate pair in a name of JSON",
        embedded("in.jsonl"),
        {"in.jsonl": '{"text": "a", "\\udc00": 1}\n'},
        "in.jsonl:1",
    ),
    answer("a NUL escaped in JSON", embedded("in.jsonl"), {"in.jsonl": '{"text": "a\\u0000b"}\n'}, "in.jsonl:1"),
    answer("NaN for a text", embedded("in.jsonl"), {"in.jsonl": '{"text": NaN}\n'}, "in.jsonl:1"),
    right(
        "a whole surrogate pair in JSON",
        embedded("in.jsonl"),
        {"in.jsonl": '{"text": "a \\ud83d\\ude00"}\n'},
        check=vectors(1),
    ),
    counted(
        "null and an empty list in JSON",
        embedded("in.jsonl"),
        {"in.jsonl": '{"text": null}\n{"text": []}\n{"text": "a dog"}\n{"n": 1}\n'},
        "3 rows with an empty text left out",
    ),
    counted(
        "blank lines and empty cells",
        "evaluate $bert in.tsv",
        {"in.tsv": TABLE + "\n\n\ta bird\t1\n"},
        "2 blank lines left out",
        "1 row with an empty text left out",
    ),
    right(
        "quotes are characters in a TSV",
        "duplicates in.tsv d.tsv --model $bert --threshold 1",
        {"in.tsv": 'text\n"a dog\na "bird"\n'},
        "0 exact repeats",
    ),
    right(
        "separators, quotes and newlines inside a CSV's field",
        embedded("in.csv"),
        {"in.csv": 'text,n\n"a dog, ""the"" dog,\nand more",1\na bird,2\n'},
        check=vectors(2),
    ),
)
