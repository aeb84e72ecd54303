"""What was written, byte for byte: digests of files, and records that know when they were changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from contrastive_text.core.disk import replacing
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.records import MOST_BYTES

MANIFEST = "contrastive_text.manifest.json"
"""Name of a folder's manifest."""
BLOCK = 1 << 24
"""Bytes that share a digest: 16 MiB."""
READ_WHOLE = 1 << 30
"""Bytes up to which all of them are checked when they are loaded: 1 GiB; above it, a sample of blocks."""
_SAMPLE = 16
_SEAL = "sha256"


@dataclass(frozen=True, slots=True)
class FileDigest:
    """The size of a file and a digest of each of its blocks.

    Args:
        size: Bytes.
        blocks: SHA-256 of every ``BLOCK`` bytes, the last of what is left, in hexadecimal digits.
    """

    size: int
    blocks: tuple[str, ...]

    @classmethod
    def of(cls, path: Path) -> FileDigest:
        """Reads a file."""
        with path.open("rb") as file:
            blocks = tuple(iter(lambda: _next_digest(file), None))
            return cls(file.tell(), blocks)

    @classmethod
    def of_json(cls, content: Any) -> FileDigest:  # Any: JSON that others may have changed
        """Returns the digest that ``to_json`` wrote.

        Raises:
            ValueError: It is none.
        """
        try:
            size, blocks = content["size"], tuple(content["blocks"])
        except (TypeError, KeyError):
            size, blocks = None, ()
        known = isinstance(size, int) and all(isinstance(block, str) for block in blocks)
        if not known or len(blocks) != -(-size // BLOCK):
            raise InvalidValueError("expected the size of a file and a digest of each of its blocks, got others")
        return cls(size, blocks)

    def to_json(self) -> dict[str, object]:
        """Returns its fields, for a record."""
        return {"size": self.size, "blocks": list(self.blocks)}

    def damage(self, path: Path, whole: bool | None = True, grows: bool = False) -> str | None:
        """Says what is wrong with a file; None if it is what was written.

        Args:
            path: The file.
            whole: Whether to read every block, or the first, the last and some between; None for every block of
                up to ``READ_WHOLE`` bytes.
            grows: Whether more bytes may follow those that the digest is of.

        Raises:
            OSError: It can't be read.
        """
        if not path.is_file():
            return "no file"
        size = path.stat().st_size
        if size < self.size or (size > self.size and not grows):
            return f"{size:,} bytes instead of {self.size:,}"
        last = len(self.blocks) - 1
        if whole is None:
            whole = self.size <= READ_WHOLE
        few = whole or last < _SAMPLE
        chosen = range(last + 1) if few else sorted({i * last // (_SAMPLE - 1) for i in range(_SAMPLE)})
        with path.open("rb") as file:
            for number in chosen:
                file.seek(number * BLOCK)
                if _next_digest(file, min(BLOCK, self.size - number * BLOCK)) != self.blocks[number]:
                    return f"changed bytes after byte {number * BLOCK:,}"
        return None


def _next_digest(file: BinaryIO, size: int | None = None) -> str | None:
    content = file.read(BLOCK if size is None else size)
    return hashlib.sha256(content).hexdigest() if content else None


class GrowingDigest:
    """The digest of a file that is written piece by piece; nothing is read again.

    Example:
        >>> growing = GrowingDigest()
        >>> growing.update(b"one"), growing.update(b"two")
        (None, None)
        >>> growing.digest().size
        6
    """

    def __init__(self) -> None:
        self._size = 0
        self._blocks: list[str] = []
        self._last = hashlib.sha256()

    @classmethod
    def after(cls, digest: FileDigest, path: Path) -> GrowingDigest:
        """Goes on after the bytes that a digest is of; the last block of them is read."""
        growing = cls()
        whole = digest.size // BLOCK
        growing._blocks = list(digest.blocks[:whole])
        growing._size = whole * BLOCK
        with path.open("rb") as file:
            file.seek(growing._size)
            growing.update(file.read(digest.size - growing._size))
        return growing

    def copy(self) -> GrowingDigest:
        """Returns another that goes its own way from here."""
        other = GrowingDigest()
        other._size, other._blocks, other._last = self._size, list(self._blocks), self._last.copy()
        return other

    def update(self, content: bytes | memoryview) -> None:
        """Takes the next bytes."""
        left = memoryview(content).cast("B")
        while left:
            part = left[: BLOCK - self._size % BLOCK]
            self._last.update(part)
            self._size += len(part)
            left = left[len(part) :]
            if self._size % BLOCK == 0:
                self._blocks.append(self._last.hexdigest())
                self._last = hashlib.sha256()

    def digest(self) -> FileDigest:
        """Returns the digest of all bytes so far."""
        begun = self._size % BLOCK > 0
        return FileDigest(self._size, (*self._blocks, self._last.hexdigest()) if begun else tuple(self._blocks))


def sealed(content: Mapping[str, Any]) -> str:  # Any: JSON
    """Returns a record as JSON with its own digest at its end; every changed character shows.

    Raises:
        ValueError: A number that JSON has no word for, such as NaN.

    Example:
        >>> print(sealed({"rows": 2})[:24])
        {
         "rows": 2,
         "sha256":
    """
    text = json.dumps(dict(content), indent=1, allow_nan=False)
    return json.dumps({**content, _SEAL: hashlib.sha256(text.encode()).hexdigest()}, indent=1) + "\n"


def write_sealed(path: Path, content: Mapping[str, Any]) -> None:  # Any: JSON
    """Writes a record, whole or not at all."""
    with replacing(path) as file:
        file.write(sealed(content).encode())


def read_sealed(path: Path, todo: str) -> dict[str, Any]:  # Any: JSON
    """Reads a record that ``write_sealed`` wrote.

    Args:
        path: Its file.
        todo: What to do about a damaged one, for the error.

    Raises:
        OSError: It isn't there, or can't be read.
        ValueError: It was changed, or is none.
    """
    if path.exists() and (not path.is_file() or path.stat().st_size > MOST_BYTES):
        raise InvalidValueError(f"{path}: expected a file of at most {MOST_BYTES:,} bytes, got another; {todo}")
    content = path.read_bytes()
    try:
        record = json.loads(content)
        whole = isinstance(record, dict) and isinstance(record.pop(_SEAL, None), str)
        whole = whole and sealed(record).encode() == content
    except (ValueError, RecursionError):
        whole = False
    if not whole:
        raise InvalidValueError(
            f"{path}: expected a record of this library, whole as it was written, got a changed one; {todo}"
        )
    return dict(record)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files of a folder with their digests.

    Args:
        files: Name relative to the folder, with forward slashes -> digest.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "a").write_text("one")
        ...     Manifest.of(Path(folder)).write(Path(folder))
        ...     _ = Path(folder, "a").write_text("two")
        ...     Manifest.read(Path(folder)).damage(Path(folder))
        ['a: changed bytes after byte 0']
    """

    files: Mapping[str, FileDigest]

    @classmethod
    def of(cls, folder: Path, names: Sequence[str] | None = None) -> Manifest:
        """Reads the files of a folder: those named, or all."""
        found = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
        chosen = found if names is None else names
        return cls({name: FileDigest.of(folder / name) for name in chosen if name != MANIFEST})

    def write(self, folder: Path) -> None:
        """Writes it into the folder."""
        files = {name: digest.to_json() for name, digest in self.files.items()}
        write_sealed(folder / MANIFEST, {"block": BLOCK, "files": files})

    @classmethod
    def read(cls, folder: Path, todo: str = "save the folder again") -> Manifest | None:
        """Reads the manifest of a folder; None where there is none.

        Raises:
            ValueError: It was changed, or names a file outside of the folder.
        """
        path = folder / MANIFEST
        if not path.is_file():
            return None
        record = read_sealed(path, todo)
        try:
            if record["block"] != BLOCK:
                raise ValueError
            files = {str(name): FileDigest.of_json(digest) for name, digest in record["files"].items()}
            if not all(_stays_inside(name) for name in files):
                raise ValueError
        except (AttributeError, KeyError, TypeError, ValueError):
            raise InvalidValueError(
                f"{path}: expected a manifest of this version's form, got another; {todo}"
            ) from None
        return cls(files)

    def damage(self, folder: Path, whole: bool | None = None) -> list[str]:
        """Returns a line for every file that isn't what was written; none if all are.

        Args:
            folder: The folder.
            whole: Whether to read every byte; None for up to ``READ_WHOLE`` bytes, above it a sample of blocks.
        """
        if whole is None:
            whole = sum(digest.size for digest in self.files.values()) <= READ_WHOLE
        lines = {name: _damage(folder / name, digest, whole) for name, digest in self.files.items()}
        return [f"{name}: {line}" for name, line in lines.items() if line is not None]


def _damage(path: Path, digest: FileDigest, whole: bool) -> str | None:
    try:
        return digest.damage(path, whole)
    except OSError as error:  # a place of the disk that can't be read, or that may not be
        return f"can't be read ({error.strerror})"


def _stays_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return bool(path.parts) and "\\" not in name and not path.is_absolute() and ".." not in path.parts
