"""The user's text files: opened only where they have an end, read within bounds, and named in every answer."""

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
from contrastive_text.core.libraries import is_failure

_UNCHECKED = 4 * 2**20
"""Bytes that a ``.gz`` may unpack to before its ratio counts: they fit into any memory."""
_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
}
_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",  # before UTF-16, whose mark it begins with
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
_VISIBLE = re.compile(
    # White space, controls, and what Unicode's DerivedCoreProperties.txt calls Default_Ignorable_Code_Point;
    # U+2800 is a braille cell without dots.
    "[^\\s\x00-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


@dataclass(frozen=True, slots=True)
class Bounds:
    """How large what is in a data file may be; more is refused with its line, before it fills the memory.

    Args:
        line: Bytes of a line, unpacked.
        depth: Lists and objects within each other in a line of ``.jsonl``.
        ratio: Bytes that a byte of ``.gz`` may unpack to, beyond the first 4 MiB of a file; text has 3 to 20.

    Raises:
        ValueError: A number below 1.

    Example:
        >>> Bounds(depth=8)
        Bounds(line=16777216, depth=8, ratio=200)
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
    def of(cls, given: Mapping[str, int] | None) -> Bounds:
        """Returns the usual bounds with those that are given in their place.

        Raises:
            ValueError: Another name.
        """
        usual = asdict(USUAL)
        if unknown := [name for name in given or () if name not in usual]:
            raise InvalidValueError(
                f"bounds: expected {', '.join(usual)}, got {unknown[0]!r}; take one of these names"
            )
        return cls(**usual | dict(given or {}))


USUAL = Bounds()


def is_blank(text: str) -> bool:
    r"""Whether nothing of a text can be seen: white space, zero-width characters, or nothing at all.

    Example:
        >>> is_blank("\u200b \ufeff"), is_blank("a\u200b")
        (True, False)
    """
    return _VISIBLE.search(text) is None


def lone_surrogate(text: str) -> str | None:
    r"""Returns which half of a surrogate pair a text has alone, and where; None if UTF-8 can hold the text.

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
def naming_file(path: str | Path) -> Iterator[None]:
    """Turns what the system says of a file that is read into an answer that names it.

    Raises:
        MissingFileError: It isn't there.
        DiskError: It can't be read.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, ContrastiveTextError) or not is_failure(error):
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
def opened(path: Path) -> Iterator[BinaryIO]:
    """Opens a file that has an end; pipes and devices are refused, as files are read more than once.

    Raises:
        MissingFileError: It isn't there.
        DiskError: It can't be read.
        InvalidValueError: It is no file.
    """
    check_has_an_end(path)
    with naming_file(path), path.open("rb") as file:
        yield file


def check_has_an_end(path: Path) -> None:
    """Checks for pipes and devices, which block or never end, and for folders; see ``opened``."""
    with naming_file(path):
        kind = stat.S_IFMT(os.stat(path).st_mode)
    if kind != stat.S_IFREG:
        todo = "name its files" if kind == stat.S_IFDIR else "write what comes out of it to a file first"
        raise InvalidValueError(f"{path}: expected a file, got {_KINDS.get(kind, 'no file')}; {todo}")


def decoded_lines(path: Path, bounds: Bounds = USUAL, encoding: str = "utf-8") -> Iterator[str]:
    """Yields the lines of a file, unpacked where it ends in ``.gz``, each with its newline.

    Memory holds one of them. Lines end at newlines alone; a mark of UTF-8 at the beginning is left out.

    Raises:
        MissingFileError: The file isn't there.
        DiskError: It can't be read.
        InvalidValueError: It is no file, no whole ``.gz``, of another encoding, or out of bounds.
    """
    is_packed = path.suffix.lower() == ".gz"
    # gzip's own type is no BinaryIO, but is read like one.
    with (
        opened(path) as packed,
        cast("BinaryIO", gzip.open(packed) if is_packed else nullcontext(packed)) as file,
    ):
        number = unpacked = 0
        checked = _UNCHECKED
        try:
            while line := file.readline(bounds.line + 1):
                number += 1
                unpacked += len(line)
                if len(line) > bounds.line:
                    raise _too_long(f"{path}:{number}", line, bounds.line)
                if is_packed and unpacked > checked:
                    checked += 2**20
                    _check_ratio(path, unpacked, packed.tell(), bounds.ratio)
                yield _decoded(f"{path}:{number}", line, first=number == 1, encoding=encoding)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise InvalidValueError(
                f"{path}: expected a whole gzip file, got a broken one ({error}); fetch it again"
            ) from None


def read_text(path: Path, bounds: Bounds = USUAL) -> str:
    """Returns the whole text of a file; see ``decoded_lines``."""
    return "".join(decoded_lines(path, bounds))


def _decoded(where: str, line: bytes, first: bool, encoding: str) -> str:
    if first:
        line = line.removeprefix(codecs.BOM_UTF8)
        if name := next((name for mark, name in _MARKS.items() if line.startswith(mark)), None):
            raise _foreign(where, name, encoding)
    if b"\0" in line:
        raise _foreign(where, "a NUL byte, as UTF-16, UTF-32 and damaged files have", encoding)
    try:
        return line.decode(encoding)
    except UnicodeDecodeError as error:
        raise _foreign(where, f"the byte 0x{error.object[error.start]:02x}", encoding) from None


def _foreign(where: str, got: str, encoding: str) -> InvalidValueError:
    name = encoding.upper()
    return InvalidValueError(f"{where}: expected {name}, got {got}; save the file as {name}")


def _too_long(where: str, line: bytes, bound: int) -> InvalidValueError:
    returns = line.count(b"\r")
    got = f"carriage returns alone, {returns:,} of them" if returns else "more"
    todo = "let lines end in newlines" if returns else "put a text on each line"
    return InvalidValueError(
        f"{where}: expected a line of at most {bound:,} bytes, got {got}; {todo}, or raise the bound `line`"
    )


def _check_ratio(path: Path, unpacked: int, packed: int, bound: int) -> None:
    if unpacked > bound * max(packed, 1):
        raise InvalidValueError(
            f"{path}: expected at most {bound:,} bytes out of each byte of a .gz, got "
            f"{unpacked // max(packed, 1):,} of the first {packed:,}; raise the bound `ratio` if it is what it "
            "should be"
        )
