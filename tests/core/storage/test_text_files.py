"""Text files are opened where they have an end, read within bounds, and named where they can't be read."""

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from contrastive_text.core.errors import DiskError, InvalidValueError, MissingFileError
from contrastive_text.core.storage.text_files import SizeLimits, decoded_lines, is_blank, read_text


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"one\na\0b\n", "a.txt:2: expected UTF-8, got a NUL byte"),
        ("one\ntwo\n".encode("utf-16-le"), "a.txt:1: expected UTF-8, got a NUL byte, as UTF-16"),
        ("one\ntwo\n".encode("utf-32-be"), "a.txt:1: expected UTF-8, got a NUL byte"),
        ("one\n".encode("utf-16"), "a.txt:1: expected UTF-8, got UTF-16; save the file as UTF-8"),
        ("one\n".encode("utf-32"), "a.txt:1: expected UTF-8, got UTF-32"),
        (b"one\ncaf\xe9\n", "a.txt:2: expected UTF-8, got the byte 0xe9"),
        (b"one\n" + b"x" * 100, "a.txt:2: expected a line of at most 64 bytes, got more"),
        (b"one\r" * 100, "a.txt:1: expected a line of at most 64 bytes, got carriage returns alone"),
    ],
)
def test_what_is_no_text_is_refused_with_its_line(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    with pytest.raises(InvalidValueError) as error:
        read_text(path, SizeLimits(line=64))
    assert str(error.value).startswith(str(tmp_path) + "/" + said)


def test_a_line_that_fills_its_bound_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbf" + b"x" * 60 + b"\n" + b"y" * 64)
    assert [len(line) for line in decoded_lines(tmp_path / "a.txt", SizeLimits(line=64))] == [61, 64]


def test_a_bomb_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "bomb.txt.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(8):
            file.write((b"0" * 1023 + b"\n") * 1024)
    with pytest.raises(InvalidValueError, match=r"expected at most 100 bytes out of each byte of a \.gz"):
        for _ in decoded_lines(path, SizeLimits(ratio=100)):
            pass
    assert sum(1 for _ in decoded_lines(path, SizeLimits(ratio=2000))) == 8 * 1024


def pipe(path: Path) -> None:
    os.mkfifo(path)


def loop(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (pipe, InvalidValueError, "expected a file, got a pipe; write what comes out of it to a file first"),
        (lambda path: path.symlink_to("/dev/zero"), InvalidValueError, "expected a file, got a device"),
        (Path.mkdir, InvalidValueError, "expected a file, got a folder; name its files"),
        (loop, DiskError, "expected a file that can be read, got Too many levels of symbolic links"),
        (lambda path: path, MissingFileError, "expected a file, got nothing there"),
    ],
)
@pytest.mark.skipif(os.name == "nt", reason="pipes and devices of POSIX")
def test_what_has_no_end_is_refused_before_it_is_opened(
    tmp_path: Path, make: Callable[[Path], object], error: type[Exception], said: str
) -> None:
    path = tmp_path / "a.txt"
    make(path)
    with pytest.raises(error) as told:
        read_text(path)
    assert f"{path}: {said}" in str(told.value)


def test_a_file_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\n")

    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", denied)  # the rights of a file do not bind root
    with pytest.raises(DiskError, match="got Permission denied; check its name and permissions"):
        read_text(path)


@pytest.mark.parametrize(
    "text", ["", " \t\n", "\u200b", "\u200d\ufe0f", "\u3164", "\u00ad\u2060 \ufeff", "\u2800"]
)
def test_what_cannot_be_seen_is_blank(text: str) -> None:
    assert is_blank(text)
    assert not is_blank(f"{text}.")


@pytest.mark.parametrize("text", ["a", "\u0301", "न\u094d", "👩\u200d🚀", "·"])
def test_what_can_be_seen_is_not(text: str) -> None:
    assert not is_blank(text)


def test_bounds_are_numbers_above_0() -> None:
    with pytest.raises(InvalidValueError, match=r"bounds\.depth: expected a whole number from 1, got 0"):
        SizeLimits(depth=0)
