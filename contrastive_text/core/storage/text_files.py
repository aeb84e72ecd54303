"""A user's text files: opened only if they are regular, read within size limits, and named in every error."""

from __future__ import annotations

import codecs
import gzip
import os
import re
import stat
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, cast

from contrastive_text.core.errors import ContrastiveTextError, DiskError, InvalidValueError, MissingFileError
from contrastive_text.core.libraries import is_read_error

_FREE_UNPACKED = 4 * 2**20
"""Largest unpacked size of a ``.gz`` file in bytes that is read without checking its compression ratio: 4 MiB."""
_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
}
_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",  # before UTF-16, whose mark it begins with
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
_VISIBLE = re.compile(
    # All characters except white space, controls, and Default_Ignorable_Code_Point of Unicode's
    # DerivedCoreProperties.txt. U+2800 is a braille cell without dots.
    "[^\\s\x00-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


@dataclass(frozen=True, slots=True)
class SizeLimits:
    """Size limits for data files. A line or file above a limit is refused before it fills the memory.

    Args:
        line: Largest number of bytes in a line, unpacked.
        depth: Largest depth of nested lists and objects in a line of ``.jsonl``.
        ratio: Largest compression ratio of ``.gz`` files, checked after the first 4 MiB; text has 3 to 20.

    Raises:
        ValueError: A limit below 1.

    Example:
        >>> SizeLimits(depth=8)
        SizeLimits(line=16777216, depth=8, ratio=200)
    """

    line: int = 16 * 2**20
    depth: int = 100
    ratio: int = 200

    def __post_init__(self) -> None:
        for name, number in asdict(self).items():
            if not isinstance(number, int) or number < 1:
                raise InvalidValueError(
                    f"bounds.{name}: expected a whole number from 1, got {number!r}; leave it out"
                )

    @classmethod
    def of(cls, given: Mapping[str, int] | None) -> SizeLimits:
        """Returns the default size limits of data files with some of them replaced.

        Raises:
            ValueError: A name that is not a limit.
        """
        defaults = asdict(USUAL)
        if unknown := [name for name in given or () if name not in defaults]:
            raise InvalidValueError(
                f"bounds: expected {', '.join(defaults)}, got {unknown[0]!r}; take one of these names"
            )
        return cls(**defaults | dict(given or {}))


USUAL = SizeLimits()


def is_blank(text: str) -> bool:
    r"""Returns whether a text has no visible character: only white space or zero-width characters, or empty.

    Example:
        >>> is_blank("\u200b \ufeff"), is_blank("a\u200b")
        (True, False)
    """
    return _VISIBLE.search(text) is None


def lone_surrogate(text: str) -> str | None:
    r"""Describes the first unpaired surrogate of a text and its position; None if UTF-8 can encode the text.

    Example:
        >>> lone_surrogate("ok \ud800"), lone_surrogate("ok")
        ('half a surrogate pair (U+D800) at character 4', None)
    """
    if text.isascii():
        return None
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"half a surrogate pair (U+{ord(text[error.start]):04X}) at character {error.start + 1:,}"
    return None


@contextmanager
def naming_read_errors(path: str | Path) -> Iterator[None]:
    """Converts system errors while a file is read to errors that name the file.

    Raises:
        MissingFileError: The file doesn't exist.
        DiskError: The file can't be read.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, ContrastiveTextError) or not is_read_error(error):
            raise
        if isinstance(error, FileNotFoundError):
            raise MissingFileError(
                f"{path}: expected a file, got nothing there; check its name and folder"
            ) from error
        raise DiskError(
            f"{path}: expected a file that can be read, got {error.strerror or error}; check its name and "
            "permissions"
        ) from error


@contextmanager
def open_regular_file(path: Path) -> Iterator[BinaryIO]:
    """Opens a regular file. Pipes and devices are refused, because files are read more than once.

    Raises:
        MissingFileError: The file doesn't exist.
        DiskError: The file can't be read.
        InvalidValueError: The path isn't a regular file.
    """
    check_regular_file(path)
    with naming_read_errors(path), path.open("rb") as file:
        yield file


def check_regular_file(path: Path) -> None:
    """Raises ValueError for folders, and for pipes and devices, which block or never end; see
    ``open_regular_file``."""
    with naming_read_errors(path):
        kind = stat.S_IFMT(os.stat(path).st_mode)
    if kind != stat.S_IFREG:
        todo = "name its files" if kind == stat.S_IFDIR else "write what comes out of it to a file first"
        raise InvalidValueError(f"{path}: expected a file, got {_KINDS.get(kind, 'no file')}; {todo}")


def decoded_lines(path: Path, bounds: SizeLimits = USUAL, encoding: str = "utf-8") -> Iterator[str]:
    """Yields the lines of a text file, each with its newline. A ``.gz`` file is unpacked.

    Memory holds one line at a time. Only newlines end a line. A byte order mark of UTF-8 is skipped.

    Raises:
        MissingFileError: The file doesn't exist.
        DiskError: The file can't be read.
        InvalidValueError: It isn't a regular file or a whole ``.gz``, has another encoding, or exceeds a limit.
    """
    is_gzip = path.suffix.lower() == ".gz"
    # The type of gzip.open isn't a BinaryIO, but works like one.
    with (
        open_regular_file(path) as raw,
        cast("BinaryIO", gzip.open(raw) if is_gzip else nullcontext(raw)) as file,
    ):
        number = size = 0
        next_check = _FREE_UNPACKED
        try:
            while line := file.readline(bounds.line + 1):
                number += 1
                size += len(line)
                if len(line) > bounds.line:
                    raise _too_long(f"{path}:{number}", line, bounds.line)
                if is_gzip and size > next_check:
                    next_check += 2**20
                    _check_ratio(path, size, raw.tell(), bounds.ratio)
                yield _decoded(f"{path}:{number}", line, first=number == 1, encoding=encoding)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise InvalidValueError(
                f"{path}: expected a whole gzip file, got a broken one ({error}); download it again"
            ) from None


def read_text(path: Path, bounds: SizeLimits = USUAL) -> str:
    """Reads the whole text of a file; see ``decoded_lines``."""
    return "".join(decoded_lines(path, bounds))


def _decoded(where: str, line: bytes, first: bool, encoding: str) -> str:
    if first:
        line = line.removeprefix(codecs.BOM_UTF8)
        if name := next((name for mark, name in _BYTE_ORDER_MARKS.items() if line.startswith(mark)), None):
            raise _encoding_error(where, name, encoding)
    if b"\0" in line:
        raise _encoding_error(where, "a NUL byte, as UTF-16, UTF-32 and damaged files have", encoding)
    try:
        return line.decode(encoding)
    except UnicodeDecodeError as error:
        raise _encoding_error(where, f"the byte 0x{error.object[error.start]:02x}", encoding) from None


def _encoding_error(where: str, content: str, encoding: str) -> InvalidValueError:
    name = encoding.upper()
    return InvalidValueError(f"{where}: expected {name}, got {content}; save the file as {name}")


def _too_long(where: str, line: bytes, bound: int) -> InvalidValueError:
    returns = line.count(b"\r")
    content = f"carriage returns alone, {returns:,} of them" if returns else "more"
    todo = "let lines end in newlines" if returns else "put a text on each line"
    return InvalidValueError(
        f"{where}: expected a line of at most {bound:,} bytes, got {content}; {todo}, or raise the bound `line`"
    )


def _check_ratio(path: Path, unpacked: int, packed: int, bound: int) -> None:
    if unpacked > bound * max(packed, 1):
        raise InvalidValueError(
            f"{path}: expected at most {bound:,} bytes out of each byte of a .gz, got "
            f"{unpacked // max(packed, 1):,} of the first {packed:,}; raise the bound `ratio` if the file is "
            f"correct"
        )
