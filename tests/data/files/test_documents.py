"""Folders of documents: each text file in one or below it is a text."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from data_files import PAIR, refuses, texts, write

from contrastive_text.core.errors import ContrastiveTextError
from contrastive_text.data.files.readers import TextStream, read_rows


def test_every_txt_file_of_a_folder_is_one_document(tmp_path: Path) -> None:
    folder = tmp_path / "essays"
    (folder / "b").mkdir(parents=True)
    write(folder / "c.txt.gz", "third")
    write(folder / "b" / "x.TXT", "second,\r\n  of two\u2028lines ")
    write(folder / "a.txt", "\ufefffirst\n\nafter a blank line\n")
    table = read_rows(folder, ["text"])
    assert texts(table) == ["first\n\nafter a blank line\n", "second,\r\n  of two\u2028lines ", "third"]
    assert table.description == "essays: text -> text (a .txt file each); 3 rows"
    assert table.source == (str(folder),)


def test_empty_files_of_a_folder_are_left_out_and_others_ignored_aloud(tmp_path: Path) -> None:
    (tmp_path / ".checkpoints").mkdir()
    names = {"a.txt": "one", "b.txt": " \n\t\n", "c.txt": "", "._a.txt": "not\xe9 a text", "readme.md": "ignored"}
    for name, text in (names | {".checkpoints/a.txt": "a copy"}).items():
        write(tmp_path / name, text)
    table = read_rows(str(tmp_path), ["text"])
    assert texts(table) == ["one"]
    assert table.description == (
        f"{tmp_path.name}: text -> text (a .txt file each); 3 other files ignored; 1 row; 2 empty files left out"
    )


def test_a_folder_below_that_cannot_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", ".hidden"):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "x.txt", name)
    scandir = os.scandir

    def locked(path: str | Path) -> Any:  # a permission would not keep root out
        if Path(path).name in names:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", locked)
    names = {".hidden"}  # which is not read anyway
    assert texts(read_rows(tmp_path, ["text"])) == list(TextStream(tmp_path)) == ["a", "b"]
    names = {"b"}
    for read in (lambda: read_rows(tmp_path, ["text"]), lambda: list(TextStream(tmp_path))):
        with pytest.raises(ContrastiveTextError, match=re.escape(str(tmp_path / "b")) + ".*Permission denied"):
            read()


@pytest.mark.parametrize(
    ("name", "content", "reads", "words"),
    [
        ("a.tsv", "one", ["text"], ["a folder with .txt files, a document each", "got a.tsv;", "name its files"]),
        ("b/c.md", "one", ["text"], ["got b/c.md;"]),
        ("b/", "", ["text"], ["got no file;"]),
        ("a.txt", "\n", ["text"], ["expected at least one row with text, got 1 empty file left out"]),
        ("b.txt", b"caf\xe9", ["text"], ["b.txt:1: expected UTF-8, got the byte 0xe9"]),
        ("a.txt", "one", PAIR, ["expected a file, got a folder", "a.txt"]),
        ("a.txt", "one", ["text", "target"], ["expected a file, got a folder", "a.txt"]),
    ],
)
def test_a_folder_is_refused_with_what_it_holds(
    tmp_path: Path, name: str, content: str | bytes, reads: Sequence[str], words: Sequence[str]
) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    if name.endswith("/"):
        (tmp_path / name).mkdir()
    else:
        write(tmp_path / name, content)
    with refuses(str(tmp_path), *words):
        read_rows(tmp_path, reads)
