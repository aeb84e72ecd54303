"""Files of texts, tables and scores that are odd: each is refused, or read and its losses counted."""

from __future__ import annotations

import json
from operator import attrgetter
from pathlib import Path

import pytest
from hostile.cases import (
    EMBED_FILE,
    EMBEDDED,
    EVALUATE_FILE,
    HEAD,
    TABLE,
    TWO,
    Case,
    answer,
    embedded,
    fifo,
    folder,
    half_zeroed,
    halved,
    link,
    over_files,
    over_words,
    packed,
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
CUT = "1 of 2 texts are longer than 32 tokens"
ZIPPED = packed(TWO.encode())
ESCAPES = "x[/bold]y\n[red]a dog[/red]\n\x1b]0;title\x07\x1b[2Jclear\n\x1b[31mred\n\u202egnirts\n"


def subsets(name: str) -> str:
    """Returns a table of two sub-sets, one of this name."""
    rows = (f"a dog\tb\t1\t{name}", f"c\td\t2\t{name}", "e\tf\t1\tother", "g\th\t2\tother")
    return "\n".join(["sentence1\tsentence2\tscore\tgenre", *rows]) + "\n"


ENCODINGS = over_files(
    "answer",
    EMBED_FILE,
    {
        "UTF-16 with a mark": ("in.txt", TWO.encode("utf-16"), "UTF-8"),
        "UTF-16 without a mark": ("in.txt", TWO.encode("utf-16-le"), "UTF-8"),
        "UTF-16 big-endian without a mark": ("in.txt", TWO.encode("utf-16-be"), "UTF-8"),
        "UTF-32": ("in.txt", TWO.encode("utf-32"), "UTF-8"),
        "Latin-1 in the second line": ("in.txt", b"a dog\nein gr\xfcner Baum\n", "in.txt:2", "UTF-8"),
        "a text cut inside a character": ("in.txt", b"a dog\nein gr\xc3", "in.txt:2", "UTF-8"),
        "a surrogate encoded as UTF-8": ("in.txt", b"a dog\n\xed\xa0\x80 x\n", "in.txt:2", "UTF-8"),
        "an overlong encoding": ("in.txt", b"a dog\nx \xc0\xaf y\n", "in.txt:2", "UTF-8"),
        "a NUL inside a text": ("in.txt", b"a dog\na\0b\n", "in.txt:2"),
        "a file of NULs": ("in.txt", bytes(100)),
        "lines that end in carriage returns alone": ("in.txt", b"a dog\rthe river\rthe man\r"),
        "a PNG named .txt": ("in.txt", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(256)), "in.txt:1", "UTF-8"),
        "a gzip file named .txt": ("in.txt", ZIPPED, "in.txt:1", "UTF-8"),
        "zero-width characters and nothing else": (
            "in.txt",
            "\u200b\n\u200d\u200c\n",
            "at least one row with text",
        ),
        "blanks of all kinds and nothing else": ("in.txt", " \n\t\n\u3000\u00a0\n", "at least one row with text"),
        "an empty file": ("in.txt", b"", "in.txt", "at least one row with text"),
        "an empty packed file": ("in.txt.gz", packed(b"")),
        "a packed file of no bytes": ("in.txt.gz", b""),
        "a packed name over plain text": ("in.txt.gz", TWO, "gzip"),
        "packed twice": ("in.txt.gz", packed(ZIPPED)),
        "a packed name twice": ("in.txt.gz.gz", ZIPPED),
        "a packed file cut short": ("in.txt.gz", halved(packed(TWO.encode() * 50)), "gzip"),
        "a packed file with zeros": ("in.txt.gz", half_zeroed(packed(TWO.encode() * 50)), "gzip"),
        "a packed file with another checksum": ("in.txt.gz", ZIPPED[:-8] + b"\1\2\3\4" + ZIPPED[-4:], "gzip"),
        "words after a packed file": ("in.txt.gz", ZIPPED + b"more", "gzip"),
    },
)
KINDS = (
    *over_files(
        "answer",
        EMBED_FILE,
        {
            "a folder without texts": ("in", folder, "in: expected"),
            "a named pipe": ("in.txt", fifo, "in.txt", "file"),
            "a named pipe that is packed": ("in.txt.gz", fifo, "file"),
            "a socket": ("in.txt", unix_socket, "in.txt", "file"),
            "/dev/zero by a link": ("in.txt", link("/dev/zero"), "in.txt", "file"),
            "/dev/zero by a packed name": ("in.txt.gz", link("/dev/zero")),
            "/dev/null": ("in.txt", link("/dev/null")),
            "a link to nothing": ("in.txt", link("nothing.txt")),
            "a link to itself": ("in.txt", link("in.txt")),
            "a file of no suffix": ("texts", TWO, "texts", ".txt"),
            "a suffix of another format": ("texts.parquet", b"PAR1"),
            "a suffix and nothing before it": (".txt", TWO),
        },
    ),
    *over_files(
        "answer",
        EVALUATE_FILE,
        {
            "a folder named like a file": ("in.tsv", folder, "in.tsv", "folder"),
            "a named pipe of pairs": ("in.tsv", fifo, "in.tsv", "file"),
            "/dev/urandom as pairs": ("in.tsv", link("/dev/urandom")),
        },
    ),
    answer("a named pipe of texts in diagnose", "diagnose $bert in.txt", {"in.txt": fifo}, "in.txt", "file"),
    answer("a named pipe of queries", "search $texts --queries in.txt --model $bert", {"in.txt": fifo}, "in.txt"),
    answer("a link to a named pipe", EMBEDDED, {"pipe": fifo, "in.txt": link("pipe")}, "in.txt", "file"),
    answer("two links to each other", EMBEDDED, {"in.txt": link("b.txt"), "b.txt": link("in.txt")}, "in.txt"),
    answer("a file where a folder is named", embedded("in.txt/more.txt"), {"in.txt": TWO}, "in.txt/more.txt"),
    answer("a name of 300 letters", embedded("x" * 300 + ".txt"), {}, "xxx"),
    right("a link to a file", EMBEDDED, {"real.txt": TWO, "in.txt": link("real.txt")}, check=vectors(2)),
)
DOCUMENTS = (
    Case(
        "a folder with an empty document and other files",
        embedded("docs"),
        {"docs/a.txt": "a dog", "docs/b.txt": "", "docs/c.pdf": "x", "docs/d/e.txt": "a bird"},
        "counted",
        ("1 other file ignored", "1 empty file left out", "2 rows"),
    ),
    *(
        answer(f"a folder with {name}", embedded("docs"), {"docs/a.txt": "a dog", **other}, *says)
        for name, other, *says in (
            ("a document that is no text", {"docs/b.txt": b"\xff\xfe\xfa"}, "b.txt", "UTF-8"),
            ("a named pipe among its documents", {"docs/b.txt": fifo}, "b.txt"),
        )
    ),
    answer(
        "a folder with a link to a folder above it",
        embedded("docs"),
        {"docs/.hidden.txt": "a dog", "docs/loop": link("..")},
        "docs",
    ),
)
TABLES = (
    *over_files(
        "answer",
        EVALUATE_FILE,
        {
            "a row with a cell too many": ("in.tsv", TABLE + "a\tb\t1\tc\n", "in.tsv:5", "3 fields"),
            "a row with a cell too few": ("in.tsv", TABLE + "a\tb\n", "in.tsv:5"),
            "a column twice": ("in.tsv", "sentence1\tsentence1\tscore\na\tb\t1\n", "in.tsv:1", "sentence1"),
            "two columns for one thing": ("in.tsv", subsets("x").replace("genre", "label"), "score and label"),
            "no column for the second text": ("in.tsv", "sentence1\tscore\na\t1\n", "in.tsv", "positive"),
            "no column for the score": ("in.tsv", "sentence1\tsentence2\na\tb\n", "in.tsv", "target"),
            "a header and nothing below it": ("in.tsv", HEAD, "in.tsv", "at least one row"),
            "blank lines above the header": ("in.tsv", "\n\n" + TABLE),
            "a quote that is never closed": ("in.csv", 'sentence1,sentence2,score\n"a,b,1\na,b,2\n', "in.csv:2"),
            "a quote in the middle of a field": (
                "in.csv",
                'sentence1,sentence2,score\n"a "b"",c,1\n',
                "in.csv:2",
            ),
            "an underscore in a score": ("in.tsv", TABLE + "a\tb\t1_000\n", "in.tsv:5"),
            "a digit of another script for a score": ("in.tsv", TABLE + "a\tb\t\u0661\n", "in.tsv:5"),
            "no row has a score": ("in.tsv", HEAD + "a\tb\t-1\nc\td\t-1\n"),
            "a score that is a list in JSON": ("in.jsonl", PAIR + "[1]}\n", "in.jsonl:1"),
            "a score that is NaN in JSON": ("in.jsonl", PAIR + "NaN}\n", "in.jsonl:1"),
            "a score of 400 digits in JSON": ("in.jsonl", PAIR + "9" * 400 + "}\n", "in.jsonl:1"),
            "escapes in a column's name": (
                "in.tsv",
                "sentence1\t\x1b[2Jother\tscore\na\tb\t1\n",
                "in.tsv",
                "other",
            ),
            "escapes in a value": ("in.tsv", TABLE + "a\tb\t\x1b[31mred\n", "in.tsv:5"),
            **{
                f"{value!r} for a score": ("in.tsv", TABLE + f"a\tb\t{value}\n", "in.tsv:5", "score")
                for value in ("nan", "inf", "-inf", "1e999", "good", "0x10", "1,5", "--1", "1 2")
            },
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
                TABLE + "\n\n\ta bird\t1\n",
                "2 blank lines left out",
                "1 row with an empty text left out",
            ),
        },
    ),
    *over_files(
        "right",
        EVALUATE_FILE,
        {
            "a mark of UTF-8 is no part of a column's name": ("in.tsv", "\ufeff" + TABLE, "in.tsv", " 3 "),
            "a score of 20 digits": ("in.tsv", TABLE + "a\tb\t12345678901234567890\n", " 4 "),
            "all scores are equal": (
                "in.tsv",
                HEAD + "a\tb\t1\nc\td\t1\ne\tf\t1\n",
                "no order to compare",
                "in.tsv",
            ),
            "all pairs are the same pair": (
                "in.tsv",
                HEAD + "a\tb\t1\na\tb\t2\na\tb\t3\n",
                "no order to compare",
            ),
            "one pair": ("in.tsv", HEAD + "a\tb\t1\n", "n/a"),
            "scores that are true and false in JSON": (
                "in.jsonl",
                f"{PAIR}true}}\n{PAIR}false}}\n".replace('"a"', '"c"', 1),
                " 2 ",
            ),
            "markup in the names of sub-sets": ("in.tsv", subsets("[/red]x"), "[/red]x"),
            "escapes in the names of sub-sets": ("in.tsv", subsets("\x1b[2Jx"), "in.tsv"),
            "pairs whose file's name is markup": ("[red]x.tsv", TABLE, "[red]x.tsv"),
            "pairs whose file's name is no UTF-8": ("a\udcff.tsv", TABLE, ".tsv"),
        },
    ),
    answer("a column that isn't there", embedded("in.tsv --column body"), {"in.tsv": "text\tn\na\t1\n"}, "body"),
    answer("--columns of no library column", "evaluate $bert in.tsv --columns gold=x", {"in.tsv": TABLE}, "gold"),
)
JSON = over_files(
    "answer",
    EMBED_FILE,
    {
        "a text that is a number in JSON": ("in.jsonl", '{"text": 5}\n', "in.jsonl:1"),
        "a text that is an object in JSON": ("in.jsonl", '{"text": {"a": "b"}}\n', "in.jsonl:1"),
        "a list of texts and numbers": ("in.jsonl", '{"text": ["a", 1]}\n', "in.jsonl:1"),
        "JSON over several lines": ("in.jsonl", '{\n  "text": "a"\n}\n', "in.jsonl:1"),
        "a JSON number beyond all digits": ("in.jsonl", '{"text": "a", "n": ' + "9" * 5000 + "}\n", "in.jsonl:1"),
        "a name twice in one object": ("in.jsonl", '{"text": "a dog", "text": "a bird"}\n', "in.jsonl:1", "text"),
        "half a surrogate pair in JSON": ("in.jsonl", '{"text": "a \\ud800 b"}\n', "in.jsonl:1"),
        "half a surrogate pair in a name of JSON": ("in.jsonl", '{"text": "a", "\\udc00": 1}\n', "in.jsonl:1"),
        "a NUL escaped in JSON": ("in.jsonl", '{"text": "a\\u0000b"}\n', "in.jsonl:1"),
        "NaN for a text": ("in.jsonl", '{"text": NaN}\n', "in.jsonl:1"),
        "escapes in JSON that is broken": ("in.jsonl", '"\\u001b[2J\x1b[2J"\n', "in.jsonl:1"),
    },
)
READ = (
    *over_files(
        "right",
        EMBED_FILE,
        {
            "a mark of UTF-8 is no text": ("in.txt", "\ufeff" + TWO, 2),
            "Windows' line ends": ("in.txt", "a dog\r\nthe river\r\n", 2),
            "no newline at the end": ("in.txt", "a dog\nthe river", 2),
            "U+2028, U+0085 and form feeds end no line": ("in.txt", "a\u2028dog\nthe\x85river\x0cbank\x0b\n", 2),
            "words of no alphabet that the model knows": ("in.txt", "\u6c34\u7684\n\U0001f600\n\U00010348\n", 3),
            "combining marks, 500 on one letter": ("in.txt", "a" + "\u0301" * 500 + "\n", 1),
            "two packed files one after the other": ("in.txt.gz", ZIPPED + packed(b"a third\n"), 3),
            "a suffix in capitals": ("IN.TXT", TWO, 2),
            "a whole surrogate pair in JSON": ("in.jsonl", '{"text": "a \\ud83d\\ude00"}\n', 1),
            "separators, quotes and newlines inside a CSV's field": (
                "in.csv",
                'text,n\n"a dog, ""the"" dog,\nand more",1\na bird,2\n',
                2,
            ),
            "a column's name of markup": ("in.tsv", "text\t[/b]\na\t1\n", "[/b]", 1),
            "a file's name with blanks": ("my own texts .txt", TWO, 2),
            "a file's name with a newline": ("two\nlines.txt", TWO, 2),
            "a file's name with quotes": ('it\'s "so".txt', TWO, 2),
            "a file's name with markup": ("[/bold]x[red].txt", TWO, 2),
            "a file's name with the start of markup": ("[red]x[.txt", TWO, 2),
            "a file's name with escapes": ("\x1b[2Jx.txt", TWO, 2),
            "a file's name of other letters": ("\u6587\u7ae0\U0001f600.txt", TWO, 2),
            "a file's name that looks like an option, after ./": ("./--model.txt", TWO, 2),
            "a file's name of a format's braces": ("{0}%s{x}.txt", TWO, 2),
            "a file's name with a backslash": ("a\\nb.txt", TWO, 2),
            "a file's name that is no UTF-8": ("a\udcff.txt", TWO, 2),
        },
    ),
    *over_files(
        "counted",
        EMBED_FILE,
        {
            "a text of zero-width characters is none": (
                "in.txt",
                "a dog\n\u200b\u200d\ufeff\u2060\nthe river\n",
                "2 rows",
                "1 row",
                "left out",
            ),
            "null and an empty list in JSON": (
                "in.jsonl",
                '{"text": null}\n{"text": []}\n{"text": "a dog"}\n{"n": 1}\n',
                "3 rows with an empty text left out",
            ),
        },
    ),
    *over_files(
        "right",
        "search {} 'x[/bold]y' --model $bert --top_k 5",
        {"escapes and markup in the texts of search": ("in.txt", ESCAPES, "x[/bold]y", "[red]a dog[/red]")},
    ),
    *over_files(
        "right",
        "search {} q --model $bert --format json",
        {"escapes and markup in texts that are shown as JSON": ("in.txt", ESCAPES, "x[/bold]y")},
    ),
    *over_files(
        "right",
        "duplicates {} d.tsv --model $bert --threshold 1",
        {
            "escapes and markup in the texts of duplicates": ("in.txt", ESCAPES, "d.tsv"),
            "quotes are characters in a TSV": ("in.tsv", 'text\n"a dog\na "bird"\n', "0 exact repeats"),
        },
    ),
    *over_files(
        "right",
        "embed --model $bert -- {} v.npy",
        {"a file's name that begins with a dash, after --": ("-in.txt", TWO, 2)},
    ),
    right(
        "an output's name with blanks and quotes",
        'embed $texts "it\'s v.npy" --model $bert',
        {},
        check=vectors(40, name="it's v.npy"),
    ),
    right("escapes in a query", "search $texts '\x1b]0;title\x07' --model $bert", {}, "title"),
)
WORDS = over_words(
    "answer",
    "",
    {
        "escapes in an option": ("embed $texts v.npy --model $bert '--\x1b[2J' 1", "no option"),
        "escapes in a command": ("'em\x1b[2Jbed'", "expected one of"),
        "escapes in a model's name": ("embed $texts v.npy --model 'a\x1b]0;x\x07b'", "model"),
        **{
            f"escapes in {what}": (command.format("'a\x1b[2Jb'"), r"\x1b[2J")
            for what, command in {
                "a table's name": "evaluate $bert {}.tsv",
                "an output's folder": "embed $texts {}/v.npy --model $bert",
                "a run's name": "report {}",
                "a recipe's name": "fit --recipe {}",
                "a configuration's name": "fit --config {}",
                "a trusted module's name": "fit --recipe simcse --trust {}",
            }.items()
        },
        "a missing file whose name is no UTF-8": ("embed 'a\udcff.txt' v.npy --model $bert", ".txt"),
    },
)
LARGE = (
    *over_files(
        "answer",
        EMBED_FILE,
        {
            "a line of 64 MiB": ("in.txt", sparse(64 << 20), "in.txt:1"),
            "a text of 64 MiB, packed": ("in.txt.gz", packed(b"a" * (1 << 20), 64)),
            "a gzip bomb of one line": ("in.txt.gz", packed(b"a" * (8 << 20), 512)),
            "a gzip bomb of many lines": ("in.txt.gz", packed(b"the cold river\n" * (1 << 19), 512)),
            "JSON 100,000 levels deep": (
                "in.jsonl",
                '{"text": "a"}\n{"text": ' + "[" * 100_000 + "\n",
                "in.jsonl:2",
            ),
            "JSON 100,000 levels deep that is whole": (
                "in.jsonl",
                '{"text": "a", "more": ' + "[" * 100_000 + "]" * 100_000 + "}\n",
                "in.jsonl:1",
            ),
            "JSON 900 levels deep in a list of texts": (
                "in.jsonl",
                '{"text": ' + "[" * 900 + '"a"' + "]" * 900 + "}\n",
                "in.jsonl:1",
            ),
            "20,000 names in JSON and none for text": (
                "in.jsonl",
                json.dumps(dict.fromkeys(COLUMNS, 1)) + "\n",
                "text",
            ),
            "20,000 columns and none for text": (
                "in.tsv",
                "\t".join(COLUMNS) + "\n" + "\t".join("x" * 20_000) + "\n",
                "text",
            ),
        },
    ),
    *over_files(
        "answer",
        EVALUATE_FILE,
        {"a gzip bomb of a table": ("in.tsv.gz", packed(b"sentence1\tsentence2\tscore\n" * (1 << 18), 512))},
    ),
    *over_files(
        "counted",
        EMBED_FILE,
        {
            "a text of 100,000 words": ("in.txt", "dog " * 100_000 + "\na bird\n", CUT),
            "a word of 100,000 letters among others": (
                "in.txt",
                "a dog " * 40 + "x" * 100_000 + "\na bird\n",
                CUT,
            ),
        },
    ),
    *over_files(
        "right",
        EMBED_FILE,
        {
            "a field of a CSV longer than the module's limit": (
                "in.csv",
                "text,n\n" + "word " * 40_000 + ",1\n",
                1,
            )
        },
    ),
)
CASES = (*ENCODINGS, *KINDS, *DOCUMENTS, *TABLES, *JSON, *READ, *WORDS)


@pytest.mark.parametrize("case", CASES, ids=attrgetter("name"))
def test_an_odd_file_is_refused_counted_or_read(case: Case, tmp_path: Path, sound: Sound) -> None:
    judge(case, tmp_path, sound)


@pytest.mark.slow
@pytest.mark.parametrize("case", LARGE, ids=attrgetter("name"))
def test_a_file_of_any_size_is_refused_counted_or_read(case: Case, tmp_path: Path, sound: Sound) -> None:
    judge(case, tmp_path, sound)
