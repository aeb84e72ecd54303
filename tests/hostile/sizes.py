"""Files that are far larger, deeper or wider than texts are."""

from __future__ import annotations

from hostile.case import answer, counted, right
from hostile.commands import embedded
from hostile.makers import vectors

CASES = (
    answer(
        "JSON 900 levels deep in a list of texts",
        embedded("in.jsonl"),
        {"in.jsonl": '{"text": ' + "[" * 900 + '"a"' + "]" * 900 + "}\n"},
        "in.jsonl:1",
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
