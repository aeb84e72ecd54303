"""Files in other encodings, with odd line ends, of characters that nobody sees."""

from __future__ import annotations

import gzip

from hostile.case import counted, right
from hostile.commands import TABLE, TWO, embedded, texts_file
from hostile.makers import vectors

CASES = (
    texts_file("UTF-16 with a mark", TWO.encode("utf-16"), "UTF-8"),
    texts_file("UTF-16 without a mark", TWO.encode("utf-16-le"), "UTF-8"),
    texts_file("UTF-16 big-endian without a mark", TWO.encode("utf-16-be"), "UTF-8"),
    texts_file("UTF-32", TWO.encode("utf-32"), "UTF-8"),
    texts_file(
        "Latin-1 in the second line", "a dog\nein gr\u00fcner Baum\n".encode("latin-1"), "in.txt:2", "UTF-8"
    ),
    texts_file("a text cut inside a character", "a dog\nein gr\u00fc".encode()[:-1], "in.txt:2", "UTF-8"),
    texts_file("a surrogate encoded as UTF-8", b"a dog\n\xed\xa0\x80 x\n", "in.txt:2", "UTF-8"),
    texts_file("an overlong encoding", b"a dog\nx \xc0\xaf y\n", "in.txt:2", "UTF-8"),
    texts_file("a NUL inside a text", b"a dog\na\0b\n", "in.txt:2"),
    texts_file("a file of NULs", bytes(100), "in.txt"),
    texts_file("lines that end in carriage returns alone", b"a dog\rthe river\rthe man\r", "in.txt"),
    texts_file(
        "a PNG named .txt", b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + bytes(range(256)), "in.txt:1", "UTF-8"
    ),
    texts_file("a gzip file named .txt", gzip.compress(TWO.encode()), "in.txt:1", "UTF-8"),
    right(
        "a mark of UTF-8 is no text",
        embedded("in.txt"),
        {"in.txt": b"\xef\xbb\xbf" + TWO.encode()},
        check=vectors(2),
    ),
    right(
        "a mark of UTF-8 is no part of a column's name",
        "evaluate $bert in.tsv",
        {"in.tsv": b"\xef\xbb\xbf" + TABLE.encode()},
        "in.tsv",
        " 3 ",
    ),
    right("Windows' line ends", embedded("in.txt"), {"in.txt": "a dog\r\nthe river\r\n"}, check=vectors(2)),
    right("no newline at the end", embedded("in.txt"), {"in.txt": "a dog\nthe river"}, check=vectors(2)),
    right(
        "U+2028, U+0085 and form feeds end no line",
        embedded("in.txt"),
        {"in.txt": "a\u2028dog\nthe\u0085river\x0cbank\x0b\n"},
        check=vectors(2),
    ),
    right(
        "words of no alphabet that the model knows",
        embedded("in.txt"),
        {"in.txt": "\u6c34\u7684\u6cb3\n\U0001f600\U0001f600\n\U00010348\n"},
        check=vectors(3),
    ),
    right(
        "combining marks, 500 on one letter",
        embedded("in.txt"),
        {"in.txt": "a" + "\u0301" * 500 + "\n"},
        check=vectors(1),
    ),
    counted(
        "a text of zero-width characters is none",
        embedded("in.txt"),
        {"in.txt": "a dog\n\u200b\u200d\ufeff\u2060\nthe river\n"},
        "2 rows",
        "1 row",
        "left out",
    ),
    texts_file("zero-width characters and nothing else", "\u200b\n\u200d\u200c\n", "at least one row with text"),
    texts_file("blanks of all kinds and nothing else", " \n\t\n\u3000\u00a0\n", "at least one row with text"),
)
