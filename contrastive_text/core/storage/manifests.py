"""Digests of files, and folders that are written whole with a manifest and compared with it before use."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage.disk import replacing, replacing_folder
from contrastive_text.core.storage.records import MOST_BYTES

MANIFEST = "contrastive_text.manifest.json"
"""Name of a folder's manifest."""
BLOCK = 1 << 24
"""Bytes that share a digest: 16 MiB."""
READ_WHOLE = 1 << 30
"""Bytes up to which all of them are checked when they are loaded: 1 GiB; above it, a sample of blocks."""
MODULES = "modules.json"
"""The file by which a saved model is known; it is written last."""
GRAPH = "model.onnx"
"""The file by which an exported model is known."""
TODO = f"save the model again; where you changed the file yourself, delete {MANIFEST}"
"""What to do about a folder that isn't as it was saved."""
_READ_INSTEAD = (
    "model.safetensors", "model-*-of-*.safetensors", "model.safetensors.index.json",
    "pytorch_model.bin", "pytorch_model-*-of-*.bin", "pytorch_model.bin.index.json", "tf_model.h5",
    "flax_model.msgpack", "adapter_config.json", "adapter_model.*", "added_tokens.json",
    "special_tokens_map.json",
)  # fmt: skip
"""What Transformers would read of an older model in place of our files, or beside them."""
_READ_SUFFIXES = {".json", ".safetensors", ".bin", ".txt", ".model", ".jinja", ".onnx", ".data", ".xml"}
_READ_FOLDERS = re.compile(r"\d+_\w+|additional_chat_templates|openvino|onnx")
"""Files and folders of a model folder that loading reads."""
UNREAD = ("*.onnx", "openvino/*", "*.h5")
"""Files of a model on the hub that are never fetched."""
_checked: dict[Path, list[tuple[str, int, int, int]]] = {}
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


def model_place(name: str) -> Path | None:
    """Returns the folder of an embedding model, or of the hub's copy of one; None for any other name.

    Args:
        name: A folder, or a name on the hub, which is asked for ``modules.json``.
    """
    folder = Path(name)
    if folder.is_dir():
        return folder if (folder / MODULES).is_file() else None
    return None if folder.is_absolute() or name.count("/") > 1 else _hub_place(name)


@cache  # of a name on the hub
def _hub_place(name: str) -> Path | None:
    from huggingface_hub import hf_hub_download, snapshot_download  # late: of no use for a folder

    try:
        hf_hub_download(name, MODULES)
        return Path(snapshot_download(name, ignore_patterns=list(UNREAD)))
    except (OSError, ValueError):  # the hub is out of reach, or has no such model or no such file in it
        return None


@contextmanager
def whole_folder(path: Path, last: str = MODULES) -> Iterator[Path]:
    """Yields a folder to write to, which takes its place with a manifest when all of it is written.

    Whenever the process is killed, there is the older folder, or the newer one, or one that its manifest tells
    from a whole one. The files that an older manifest names go, and weights that would be read in place of the
    new ones; a user's own files stay.

    Args:
        path: The folder's place.
        last: Name of the file without which the folder isn't whole.

    Raises:
        DiskError: The place can't be written to, or the disk is full.
    """
    stale = [glob.escape(name) for name in _named_before(path)]
    with replacing_folder(path, last=last, first=MANIFEST, stale=stale) as folder:
        yield folder
        manifest = Manifest.of(folder)
        if MODULES in manifest.files:
            inside = {Path(name).parent for name in manifest.files} - {Path()}
            stale += [*_READ_INSTEAD, *(f"{place}/pytorch_model.bin" for place in inside)]
        manifest.write(folder)


def _named_before(path: Path) -> list[str]:
    with suppress(InvalidValueError, OSError):  # a damaged one names nothing that can be trusted
        manifest = Manifest.read(path)
        return [] if manifest is None else list(manifest.files)
    return []


def leads_out(path: Path, folder: Path) -> bool:
    """Returns whether a name in a model folder is, or is below, a link to a place outside of the folder.

    In the hub's cache the files of a snapshot are links to the ``blobs`` of their repository, which are inside.

    Args:
        path: The name, which need not be there.
        folder: The model folder, which may be a link itself.
    """
    root = Path(os.path.realpath(folder))
    places = [root, root.parent.parent / "blobs"] if root.parent.name == "snapshots" else [root]
    real = Path(os.path.realpath(path))
    return not any(real.is_relative_to(place) for place in places)


def check_links(folder: Path) -> None:
    """Checks that no file that loading reads is a link out of its folder.

    What such a link leads to, a secret of the user's, would else be copied into the next saved or uploaded model.

    Raises:
        ValueError: The first such link.
    """
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        inner = sorted(path.iterdir()) if _READ_FOLDERS.fullmatch(path.name) and path.is_dir() else []
        for each in (path, *inner):
            read = each.suffix in _READ_SUFFIXES or _READ_FOLDERS.fullmatch(each.name)
            if read and leads_out(each, folder):
                raise InvalidValueError(
                    f"{each}: expected a file or folder inside {folder}, got a link to {os.path.realpath(each)}; "
                    "copy the model without links (cp -rL) if you trust it"
                )


def check_whole(folder: Path) -> None:
    """Checks that a folder has no links out of it, and that its files are those of its manifest, if it has one.

    All bytes are read, of more than 1 GiB a sample (see ``Manifest.damage``); files that are as they were when
    this process last read them, by size and time, are not read again.

    Raises:
        ValueError: A link out of the folder, a changed or missing file, by name, or a save that did not come to
            its end.
    """
    check_links(folder)
    manifest = Manifest.read(folder, TODO)
    if manifest is None:
        return
    if MODULES in manifest.files and not (folder / MODULES).is_file():
        raise InvalidValueError(
            f"{folder}: expected a whole model, got an unfinished one: {MODULES}, which is written last, isn't "
            "there; save the model again"
        )
    state = _state(folder, manifest)
    if _checked.get(folder.resolve()) == state:
        return
    if damage := manifest.damage(folder):
        more = f" and {len(damage) - 3} more" if len(damage) > 3 else ""
        raise InvalidValueError(
            f"{folder}: expected the files as they were saved, got damaged ones ({'; '.join(damage[:3])}{more}); "
            f"{TODO}"
        )
    _checked[folder.resolve()] = state


def _state(folder: Path, manifest: Manifest) -> list[tuple[str, int, int, int]]:
    found = [(name, folder / name) for name in (MANIFEST, *manifest.files)]
    states = [(name, path.stat()) for name, path in found if path.exists()]
    return [(name, state.st_size, state.st_mtime_ns, state.st_ino) for name, state in states]
