"""Odd names of files."""

from __future__ import annotations

from hostile.case import Case, answer, right
from hostile.commands import TABLE, TWO
from hostile.makers import vectors


def _named(name: str, file: str) -> Case:
    quoted = "'" + file.replace("'", "'\\''") + "'"
    return right(name, f"embed {quoted} v.npy --model $bert", {file: TWO}, check=vectors(2))


CASES = (
    _named("a file's name with blanks", "my own texts .txt"),
    _named("a file's name with a newline", "two\nlines.txt"),
    _named("a file's name with quotes", 'it\'s "so".txt'),
    _named("a file's name with markup", "[/bold]x[red].txt"),
    _named("a file's name with the start of markup", "[red]x[.txt"),
    _named("a file's name with escapes", "\x1b[2Jx.txt"),
    _named("a file's name of other letters", "\u6587\u7ae0\U0001f600.txt"),
    _named("a file's name that looks like an option, after ./", "./--model.txt"),
    _named("a file's name of a format's braces", "{0}%s{x}.txt"),
    _named("a file's name with a backslash", "a\\nb.txt"),
    right(
        "a file's name that begins with a dash, after --",
        "embed --model $bert -- -in.txt v.npy",
        {"-in.txt": TWO},
        check=vectors(2),
    ),
    right(
        "pairs whose file's name is markup", "evaluate $bert '[red]x.tsv'", {"[red]x.tsv": TABLE}, "[red]x.tsv"
    ),
    right(
        "a file's name that is no UTF-8",
        "embed 'a\udcff.txt' v.npy --model $bert",
        {"a\udcff.txt": TWO},
        check=vectors(2),
    ),
    right("pairs whose file's name is no UTF-8", "evaluate $bert 'a\udcff.tsv'", {"a\udcff.tsv": TABLE}, ".tsv"),
    answer("a missing file whose name is no UTF-8", "embed 'a\udcff.txt' v.npy --model $bert", {}, ".txt"),
    right(
        "an output's name with blanks and quotes",
        'embed $texts "it\'s v.npy" --model $bert',
        {},
        check=vectors(40, name="it's v.npy"),
    ),
)
