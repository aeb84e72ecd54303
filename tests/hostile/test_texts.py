"""Files of texts, tables and scores that are odd: each is refused, or read and its losses counted.

The commands print no control character and leave nothing; tests/data has what the readers alone refuse.
"""

from __future__ import annotations

import json
from operator import attrgetter
from pathlib import Path

import pytest
from covering import rest_slow
from hostile.cases import (
    EMBED_FILE,
    EMBEDDED,
    EVALUATE_FILE,
    HEAD,
    TABLE,
    TWO,
    Case,
    Content,
    FileRows,
    answer,
    counted,
    embedded,
    fifo,
    folder,
    half_zeroed,
    link,
    over_files,
    packed,
    refusals,
    right,
    sparse,
    unix_socket,
    vectors,
)
from hostile.judging import judge
from hostile.sound import Sound

PAIR = '{"anchor": "a", "positive": "b", "score": '
"""Beginning of a pair in JSON, up to its score."""
COLUMNS = [f"c{i}" for i in range(20_000)]
CUT = "1 of 2 texts exceed 32 tokens"
ZIPPED = packed(TWO.encode())
ESCAPES = "x[/bold]y\n[red]a dog[/red]\n\x1b]0;title\x07\x1b[2Jclear\n\x1b[31mred\n\u202egnirts\n"
DASHED = "embed --model $bert -- -in.txt v.npy"
NO_ROW = "at least one row with text"


def subsets(name: str) -> str:
    """Returns a table of two sub-sets, one of this name."""
    rows = (f"a dog\tb\t1\t{name}", f"c\td\t2\t{name}", "e\tf\t1\tother", "g\th\t2\tother")
    return "\n".join(["sentence1\tsentence2\tscore\tgenre", *rows]) + "\n"


TEXTS: FileRows = {
    "UTF-16 big-endian without a mark": ("in.txt", TWO.encode("utf-16-be"), "UTF-8"),
    "a text cut inside a character": ("in.txt", b"a dog\nein gr\xc3", "in.txt:2", "UTF-8"),
    "a surrogate encoded as UTF-8": ("in.txt", b"a dog\n\xed\xa0\x80 x\n", "in.txt:2", "UTF-8"),
    "an overlong encoding": ("in.txt", b"a dog\nx \xc0\xaf y\n", "in.txt:2", "UTF-8"),
    "a file of NULs": ("in.txt", bytes(100)),
    "lines that end in carriage returns alone": ("in.txt", b"a dog\rthe river\rthe man\r"),
    "a PNG named .txt": ("in.txt", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(256)), "in.txt:1", "UTF-8"),
    "a gzip file named .txt": ("in.txt", ZIPPED, "in.txt:1", "UTF-8"),
    "zero-width characters and nothing else": ("in.txt", "\u200b\n\u200d\u200c\n", NO_ROW),
    "blanks of all kinds and nothing else": ("in.txt", " \n\t\n\u3000\u00a0\n", NO_ROW),
    "an empty packed file": ("in.txt.gz", packed(b"")),
    "a packed file of no bytes": ("in.txt.gz", b""),
    "packed twice": ("in.txt.gz", packed(ZIPPED)),
    "a packed name twice": ("in.txt.gz.gz", ZIPPED),
    "a packed file with zeros": ("in.txt.gz", half_zeroed(packed(TWO.encode() * 50)), "gzip"),
    "a packed file with another checksum": ("in.txt.gz", ZIPPED[:-8] + b"\1\2\3\4" + ZIPPED[-4:], "gzip"),
    "words after a packed file": ("in.txt.gz", ZIPPED + b"more", "gzip"),
    "a folder without texts": ("in", folder, "in: expected"),
    "a named pipe that is packed": ("in.txt.gz", fifo, "file"),
    "a socket": ("in.txt", unix_socket, "in.txt", "file"),
    "/dev/zero by a link": ("in.txt", link("/dev/zero"), "in.txt", "file"),
    "/dev/zero by a packed name": ("in.txt.gz", link("/dev/zero")),
    "/dev/null": ("in.txt", link("/dev/null")),
    "a link to nothing": ("in.txt", link("nothing.txt")),
    "a link to itself": ("in.txt", link("in.txt")),
    "a suffix and nothing before it": (".txt", TWO),
    "a text that is an object in JSON": ("in.jsonl", '{"text": {"a": "b"}}\n', "in.jsonl:1"),
    "a list of texts and numbers": ("in.jsonl", '{"text": ["a", 1]}\n', "in.jsonl:1"),
    "JSON over several lines": ("in.jsonl", '{\n  "text": "a"\n}\n', "in.jsonl:1"),
    "a JSON number beyond all digits": ("in.jsonl", '{"text": "a", "n": ' + "9" * 5000 + "}\n", "in.jsonl:1"),
    "half a surrogate pair in JSON": ("in.jsonl", '{"text": "a \\ud800 b"}\n', "in.jsonl:1"),
    "half a surrogate pair in a name of JSON": ("in.jsonl", '{"text": "a", "\\udc00": 1}\n', "in.jsonl:1"),
    "NaN for a text": ("in.jsonl", '{"text": NaN}\n', "in.jsonl:1"),
    "escapes in JSON that is broken": ("in.jsonl", '"\\u001b[2J\x1b[2J"\n', "in.jsonl:1"),
}
PAIRS: FileRows = {
    "a folder named like a file": ("in.tsv", folder, "in.tsv", "folder"),
    "/dev/urandom as pairs": ("in.tsv", link("/dev/urandom")),
    "two columns for one thing": ("in.tsv", subsets("x").replace("genre", "label"), "score and label"),
    "a header and nothing below it": ("in.tsv", HEAD, "in.tsv", "at least one row"),
    "blank lines above the header": ("in.tsv", "\n\n" + TABLE),
    "a quote that is never closed": ("in.csv", 'sentence1,sentence2,score\n"a,b,1\na,b,2\n', "in.csv:2"),
    "no row has a score": ("in.tsv", HEAD + "a\tb\t-1\nc\td\t-1\n"),
    "a score that is a list in JSON": ("in.jsonl", PAIR + "[1]}\n", "in.jsonl:1"),
    "a score of 400 digits in JSON": ("in.jsonl", PAIR + "9" * 400 + "}\n", "in.jsonl:1"),
    "escapes in a column's name": ("in.tsv", "sentence1\t\x1b[2Jother\tscore\na\tb\t1\n", "in.tsv", "other"),
    "escapes in a value": ("in.tsv", TABLE + "a\tb\t\x1b[31mred\n", "in.tsv:5"),
    "a word for a score": ("in.tsv", TABLE + "a\tb\tgood\n", "in.tsv:5", "score"),
    "infinity for a score": ("in.tsv", TABLE + "a\tb\t1e999\n", "in.tsv:5", "score"),
}
READ_TEXTS: FileRows = {
    "a mark of UTF-8 is no text": ("in.txt", "\ufeff" + TWO, 2),
    "Windows' line ends": ("in.txt", "a dog\r\nthe river\r\n", 2),
    "no newline at the end": ("in.txt", "a dog\nthe river", 2),
    "U+2028, U+0085 and form feeds end no line": ("in.txt", "a\u2028dog\nthe\x85river\x0cbank\x0b\n", 2),
    "words of no alphabet that the model knows": ("in.txt", "\u6c34\u7684\n\U0001f600\n\U00010348\n", 3),
    "combining marks, 500 on one letter": ("in.txt", "a" + "\u0301" * 500 + "\n", 1),
    "two packed files one after the other": ("in.txt.gz", ZIPPED + packed(b"a third\n"), 3),
    "a suffix in capitals": ("IN.TXT", TWO, 2),
    "a whole surrogate pair in JSON": ("in.jsonl", '{"text": "a \\ud83d\\ude00"}\n', 1),
    "quotes and newlines in a CSV's field": ("in.csv", 'text,n\n"a, ""the"" dog,\nand more",1\na bird,2\n', 2),
    "a column's name of markup": ("in.tsv", "text\t[/b]\na\t1\n", "[/b]", 1),
    "a file's name with a newline": ("two\nlines.txt", TWO, 2),
    "a file's name with quotes and blanks": ('it\'s "so" .txt', TWO, 2),
    "a file's name with markup": ("[/bold]x[red].txt", TWO, 2),
    "a file's name with the start of markup": ("[red]x[.txt", TWO, 2),
    "a file's name with escapes": ("\x1b[2Jx.txt", TWO, 2),
    "a file's name of other letters": ("\u6587\u7ae0\U0001f600.txt", TWO, 2),
    "a file's name that looks like an option, after ./": ("./--model.txt", TWO, 2),
    "a file's name of a format's braces": ("{0}%s{x}.txt", TWO, 2),
    "a file's name with a backslash": ("a\\nb.txt", TWO, 2),
    "a file's name that is no UTF-8": ("a\udcff.txt", TWO, 2),
}
READ_PAIRS: FileRows = {
    "a mark of UTF-8 is no part of a column's name": ("in.tsv", "\ufeff" + TABLE, "in.tsv", " 3 "),
    "a score of 20 digits": ("in.tsv", TABLE + "a\tb\t12345678901234567890\n", " 4 "),
    "all scores are equal": ("in.tsv", HEAD + "a\tb\t1\nc\td\t1\n", "correlation is undefined", "in.tsv"),
    "all pairs are the same pair": ("in.tsv", HEAD + "a\tb\t1\na\tb\t2\na\tb\t3\n", "correlation is undefined"),
    "one pair": ("in.tsv", HEAD + "a\tb\t1\n", "n/a"),
    "scores that are true and false": ("in.jsonl", f"{PAIR}true}}\n{PAIR.replace('a', 'c', 1)}false}}\n", " 2 "),
    "markup in the names of sub-sets": ("in.tsv", subsets("[/red]x"), "[/red]x"),
    "escapes in the names of sub-sets": ("in.tsv", subsets("\x1b[2Jx"), "in.tsv"),
    "pairs whose file's name is markup": ("[red]x.tsv", TABLE, "[red]x.tsv"),
}
NO_TEXT = '{"text": null}\n{"text": []}\n{"text": "a dog"}\n{"n": 1}\n'
EMPTY_CELL = TABLE + "\n\n\ta bird\t1\n"
LEFT_OUT = (
    *over_files(
        "counted",
        EMBED_FILE,
        {
            "a text of zero-width characters": ("in.txt", "a dog\n\u200b\u200d\u2060\nb\n", "1 row", "left out"),
            "null and an empty list in JSON": ("in.jsonl", NO_TEXT, "3 rows with an empty text left out"),
        },
    ),
    *over_files(
        "counted",
        EVALUATE_FILE,
        {
            "-1 is no score in GLUE's hidden test sets": ("in.tsv", TABLE + "a\tb\t-1\n", "left out"),
            "an empty score is none": ("in.tsv", TABLE + "a\tb\t\n", "left out"),
            "blank lines and empty cells": (
                "in.tsv",
                EMPTY_CELL,
                "2 blank lines left out",
                "1 row with an empty",
            ),
        },
    ),
    counted(
        "a folder with an empty document and other files",
        embedded("docs"),
        {"docs/a.txt": "a dog", "docs/b.txt": "", "docs/c.pdf": "x", "docs/d/e.txt": "a bird"},
        "1 other file ignored",
        "1 empty file left out",
        "2 rows",
    ),
)
# Command, files, and words of the error.
PLACES: dict[str, tuple[str, dict[str, Content], *tuple[str, ...]]] = {
    "a named pipe of texts in diagnose": ("diagnose $bert in.txt", {"in.txt": fifo}, "in.txt", "file"),
    "a named pipe of queries": ("search $texts --queries in.txt --model $bert", {"in.txt": fifo}, "in.txt"),
    "a link to a named pipe": (EMBEDDED, {"pipe": fifo, "in.txt": link("pipe")}, "in.txt", "file"),
    "two links to each other": (EMBEDDED, {"in.txt": link("b.txt"), "b.txt": link("in.txt")}, "in.txt"),
    "a file where a folder is named": (embedded("in.txt/more.txt"), {"in.txt": TWO}, "in.txt/more.txt"),
    "a name of 300 letters": (embedded("x" * 300 + ".txt"), {}, "xxx"),
    "a document that is no text": (
        embedded("docs"),
        {"docs/a.txt": "a", "docs/b.txt": b"\xff\xfe"},
        "b.txt",
        "UTF-8",
    ),
    "a named pipe among documents": (embedded("docs"), {"docs/a.txt": "a", "docs/b.txt": fifo}, "b.txt"),
    "a link to a folder above": (embedded("docs"), {"docs/.hidden.txt": "a", "docs/loop": link("..")}, "docs"),
    "--columns of no library column": ("evaluate $bert in.tsv --columns gold=x", {"in.tsv": TABLE}, "gold"),
}
SHOWN = (
    *(
        right(name, command, {"in.txt": ESCAPES}, *says)
        for name, command, *says in (
            ("search", "search in.txt 'x[/bold]y' --model $bert --top_k 5", "x[/bold]y", "[red]a dog[/red]"),
            ("search as JSON", "search in.txt q --model $bert --format json", "x[/bold]y"),
            ("duplicates", "duplicates in.txt d.tsv --model $bert --threshold 1", "d.tsv"),
        )
    ),
    right("a file's name that begins with a dash", DASHED, {"-in.txt": TWO}, check=vectors(2)),
    right(
        "an output's name with blanks and quotes",
        'embed $texts "it\'s v.npy" --model $bert',
        {},
        check=vectors(40, name="it's v.npy"),
    ),
    right("escapes in a query", "search $texts '\x1b]0;title\x07' --model $bert", {}, "title"),
    *refusals(
        "",
        {
            "embed $texts v.npy --model $bert '--\x1b[2J' 1": "no option",
            "'em\x1b[2Jbed'": "expected one of",
            "embed $texts v.npy --model 'a\x1b]0;x\x07b'": "model",
            "evaluate $bert 'a\x1b[2Jb'.tsv": r"\x1b[2J",
            "embed $texts 'a\x1b[2Jb'/v.npy --model $bert": r"\x1b[2J",
            "report 'a\x1b[2Jb'": r"\x1b[2J",
            "fit --recipe 'a\x1b[2Jb'": r"\x1b[2J",
            "fit --config 'a\x1b[2Jb'": r"\x1b[2J",
            "fit --recipe simcse --trust 'a\x1b[2Jb'": r"\x1b[2J",
        },
    ),
)
LEVELS = '{"text": "a", "more": ' + "[" * 100_000 + "]" * 100_000 + "}\n"
WIDE = "\t".join(COLUMNS) + "\n" + "\t".join("x" * 20_000) + "\n"
LARGE = (
    *over_files(
        "answer",
        EMBED_FILE,
        {
            "a line of 64 MiB": ("in.txt", sparse(64 << 20), "in.txt:1"),
            "a text of 64 MiB, packed": ("in.txt.gz", packed(b"a" * (1 << 20), 64)),
            "JSON 100,000 levels deep that is whole": ("in.jsonl", LEVELS, "in.jsonl:1"),
            "20,000 names in JSON": ("in.jsonl", json.dumps(dict.fromkeys(COLUMNS, 1)) + "\n", "text"),
            "20,000 columns": ("in.tsv", WIDE, "text"),
        },
    ),
    *over_files(
        "answer", EVALUATE_FILE, {"a bomb of a table": ("in.tsv.gz", packed(HEAD.encode() * (1 << 18), 512))}
    ),
    *over_files(
        "counted",
        EMBED_FILE,
        {
            "a text of 100,000 words": ("in.txt", "dog " * 100_000 + "\na bird\n", CUT),
            "a word of 100,000 letters": ("in.txt", "a dog " * 40 + "x" * 100_000 + "\na bird\n", CUT),
        },
    ),
    right(
        "a field of a CSV longer than the module's limit",
        embedded("in.csv"),
        {"in.csv": "text,n\n" + "word " * 40_000 + ",1\n"},
        check=vectors(1),
    ),
)
CASES = (
    *over_files("answer", EMBED_FILE, TEXTS), *over_files("answer", EVALUATE_FILE, PAIRS),
    *over_files("right", EMBED_FILE, READ_TEXTS), *over_files("right", EVALUATE_FILE, READ_PAIRS),
    *(answer(name, command, files, *says) for name, (command, files, *says) in PLACES.items()),
    *LEFT_OUT, *SHOWN,
)  # fmt: skip
THIRDS = rest_slow([*CASES[::3], *CASES[1::3], *CASES[2::3]], quick=len(CASES[::3]))


@pytest.mark.parametrize("case", THIRDS, ids=attrgetter("name"))
def test_an_odd_file_is_refused_counted_or_read(case: Case, tmp_path: Path, sound: Sound) -> None:
    judge(case, tmp_path, sound)


@pytest.mark.slow
@pytest.mark.parametrize("case", LARGE, ids=attrgetter("name"))
def test_a_file_of_any_size_is_refused_counted_or_read(case: Case, tmp_path: Path, sound: Sound) -> None:
    judge(case, tmp_path, sound)
