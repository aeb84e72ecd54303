"""What is no plain file, or of another kind than its name says."""

from __future__ import annotations

from hostile.case import answer, counted, right
from hostile.commands import TWO, embedded
from hostile.makers import fifo, folder, half_zeroed, halved, link, packed, unix_socket, vectors

CASES = (
    answer("a folder without texts", embedded("in"), {"in": folder}, "in: expected"),
    answer("a folder named like a file", "evaluate $bert in.tsv", {"in.tsv": folder}, "in.tsv", "folder"),
    answer("a named pipe", embedded("in.txt"), {"in.txt": fifo}, "in.txt", "file"),
    answer("a named pipe of pairs", "evaluate $bert in.tsv", {"in.tsv": fifo}, "in.tsv", "file"),
    answer("a named pipe that is packed", embedded("in.txt.gz"), {"in.txt.gz": fifo}, "in.txt.gz", "file"),
    answer("a named pipe of texts in diagnose", "diagnose $bert in.txt", {"in.txt": fifo}, "in.txt", "file"),
    answer("a named pipe of queries", "search $texts --queries in.txt --model $bert", {"in.txt": fifo}, "in.txt"),
    answer(
        "a link to a named pipe", embedded("in.txt"), {"pipe": fifo, "in.txt": link("pipe")}, "in.txt", "file"
    ),
    answer("/dev/zero by a link", embedded("in.txt"), {"in.txt": link("/dev/zero")}, "in.txt", "file"),
    answer("/dev/zero by a packed name", embedded("in.txt.gz"), {"in.txt.gz": link("/dev/zero")}, "in.txt.gz"),
    answer("/dev/null", embedded("in.txt"), {"in.txt": link("/dev/null")}, "in.txt"),
    answer("/dev/urandom as pairs", "evaluate $bert in.tsv", {"in.tsv": link("/dev/urandom")}, "in.tsv"),
    answer("a socket", embedded("in.txt"), {"in.txt": unix_socket}, "in.txt", "file"),
    answer("a link to nothing", embedded("in.txt"), {"in.txt": link("nothing.txt")}, "in.txt"),
    answer("a link to itself", embedded("in.txt"), {"in.txt": link("in.txt")}, "in.txt"),
    answer(
        "two links to each other", embedded("a.txt"), {"a.txt": link("b.txt"), "b.txt": link("a.txt")}, "a.txt"
    ),
    answer("a file where a folder is named", embedded("in.txt/more.txt"), {"in.txt": TWO}, "in.txt/more.txt"),
    answer("a name of 300 letters", embedded("x" * 300 + ".txt"), {}, "xxx"),
    answer("an empty file", embedded("in.txt"), {"in.txt": b""}, "in.txt", "at least one row with text"),
    answer("an empty packed file", embedded("in.txt.gz"), {"in.txt.gz": packed(b"")}, "in.txt.gz"),
    answer("a packed file of no bytes", embedded("in.txt.gz"), {"in.txt.gz": b""}, "in.txt.gz"),
    answer("a packed name over plain text", embedded("in.txt.gz"), {"in.txt.gz": TWO}, "in.txt.gz", "gzip"),
    answer("packed twice", embedded("in.txt.gz"), {"in.txt.gz": packed(packed(TWO.encode()))}, "in.txt.gz"),
    answer(
        "a packed name twice", embedded("in.txt.gz.gz"), {"in.txt.gz.gz": packed(TWO.encode())}, "in.txt.gz.gz"
    ),
    answer(
        "a packed file cut short",
        embedded("in.txt.gz"),
        {"in.txt.gz": halved(packed(TWO.encode() * 50))},
        "in.txt.gz",
        "gzip",
    ),
    answer(
        "a packed file with zeros",
        embedded("in.txt.gz"),
        {"in.txt.gz": half_zeroed(packed(TWO.encode() * 50))},
        "in.txt.gz",
        "gzip",
    ),
    answer(
        "a packed file with another checksum",
        embedded("in.txt.gz"),
        {"in.txt.gz": packed(TWO.encode())[:-8] + b"\1\2\3\4" + packed(TWO.encode())[-4:]},
        "in.txt.gz",
        "gzip",
    ),
    answer(
        "words after a packed file",
        embedded("in.txt.gz"),
        {"in.txt.gz": packed(TWO.encode()) + b"more"},
        "in.txt.gz",
        "gzip",
    ),
    right(
        "two packed files one after the other",
        embedded("in.txt.gz"),
        {"in.txt.gz": packed(TWO.encode()) + packed(b"a third\n")},
        check=vectors(3),
    ),
    answer("a file of no suffix", embedded("texts"), {"texts": TWO}, "texts", ".txt"),
    answer("a suffix of another format", embedded("texts.parquet"), {"texts.parquet": b"PAR1"}, "texts.parquet"),
    answer("a suffix and nothing before it", embedded(".txt"), {".txt": TWO}, ".txt"),
    right("a suffix in capitals", embedded("IN.TXT"), {"IN.TXT": TWO}, check=vectors(2)),
    right(
        "a link to a file", embedded("in.txt"), {"real.txt": TWO, "in.txt": link("real.txt")}, check=vectors(2)
    ),
    counted(
        "a folder with an empty document and other files",
        embedded("docs"),
        {"docs/a.txt": "a dog", "docs/b.txt": "", "docs/c.pdf": "x", "docs/d/e.txt": "a bird"},
        "1 other file ignored",
        "1 empty file left out",
        "2 rows",
    ),
    answer(
        "a folder with a document that is no text",
        embedded("docs"),
        {"docs/a.txt": "a dog", "docs/b.txt": b"\xff\xfe\xfa"},
        "b.txt",
        "UTF-8",
    ),
    answer(
        "a folder with a named pipe among its documents",
        embedded("docs"),
        {"docs/a.txt": "a dog", "docs/b.txt": fifo},
        "b.txt",
    ),
    answer(
        "a folder with a link to a folder above it",
        embedded("docs"),
        {"docs/.hidden.txt": "a dog", "docs/loop": link("..")},
        "docs",
    ),
)
