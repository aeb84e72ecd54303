"""Files that are far larger, deeper or wider than texts are."""

from __future__ import annotations

import json

from hostile.case import answer, counted, right
from hostile.commands import embedded
from hostile.makers import packed, sparse, vectors

CASES = (
    answer("a line of 64 MiB", embedded("in.txt"), {"in.txt": sparse(64 << 20)}, "in.txt:1"),
    answer(
        "a text of 64 MiB, packed",
        embedded("in.txt.gz"),
        {"in.txt.gz": packed(b"a" * (1 << 20), 64)},
        "in.txt.gz",
    ),
    answer(
        "a gzip bomb of one line",
        embedded("in.txt.gz"),
        {"in.txt.gz": packed(b"a" * (8 << 20), 512)},
        "in.txt.gz",
    ),
    answer(
        "a gzip bomb of many lines",
        embedded("in.txt.gz"),
        {"in.txt.gz": packed(b"the cold river\n" * (1 << 19), 512)},
        "in.txt.gz",
    ),
    answer(
        "a gzip bomb of a table",
        "evaluate $bert in.tsv.gz",
        {"in.tsv.gz": packed(b"sentence1\tsentence2\tscore\n" * (1 << 18), 512)},
        "in.tsv.gz",
    ),
    answer(
        "JSON 100,000 levels deep",
        embedded("in.jsonl"),
        {"in.jsonl": '{"text": "a dog"}\n{"text": ' + "[" * 100_000 + "\n"},
        "in.jsonl:2",
    ),
    answer(
        "JSON 100,000 levels deep that is whole",
        embedded("in.jsonl"),
        {"in.jsonl": '{"text": "a dog", "more": ' + "[" * 100_000 + "]" * 100_000 + "}\n"},
        "in.jsonl:1",
    ),
    answer(
        "JSON 900 levels deep in a list of texts",
        embedded("in.jsonl"),
        {"in.jsonl": '{"text": ' + "[" * 900 + '"a"' + "]" * 900 + "}\n"},
        "in.jsonl:1",
    ),
    answer(
        "20,000 columns and none for text",
        embedded("in.tsv"),
        {"in.tsv": "\t".join(f"c{i}" for i in range(20_000)) + "\n" + "\t".join("x" * 20_000) + "\n"},
        "in.tsv",
        "text",
    ),
    answer(
        "20,000 names in JSON and none for text",
        embedded("in.jsonl"),
        {"in.jsonl": json.dumps({f"c{i}": i for i in range(20_000)}) + "\n"},
        "in.jsonl",
        "text",
    ),
    counted(
        "a text of 100,000 words",
        embedded("in.txt"),
        {"in.txt": "dog " * 100_000 + "\na bird\n"},
        "1 of 2 texts are longer than 32 tokens",
    ),
    counted(
        "a word of 100,000 letters among others",
        embedded("in.txt"),
        {"in.txt": "a dog " * 40 + "x" * 100_000 + "\na bird\n"},
        "1 of 2 texts are longer than 32 tokens",
    ),
    right(
        "a field of a CSV longer than the module's limit",
        embedded("in.csv"),
        {"in.csv": "text,n\n" + "word " * 40_000 + ",1\n"},
        check=vectors(1),
    ),
)
