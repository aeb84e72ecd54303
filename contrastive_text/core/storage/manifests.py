"""SHA-256 digests of files, and folders that are written atomically and checked against a manifest before use."""

from __future__ import annotations

import glob
import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path, PurePosixPath

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage.disk import atomic_folder
from contrastive_text.core.storage.records import Record, write_json

MANIFEST = "contrastive_text.manifest.json"
"""File name of a folder's manifest."""
READ_WHOLE = 1 << 30
"""Largest size in bytes of a file that is compared with its digest on every load: 1 GiB, which takes a second."""
MODULES = "modules.json"
"""File by which a saved model is recognized. It is written last."""
CONFIG = "config.json"
"""File by which a network of Transformers is recognized."""
GRAPH = "model.onnx"
"""File by which an exported model is recognized."""
MANIFEST_ADVICE = f"save the model again; where you changed the file yourself, delete {MANIFEST}"
"""Advice in errors for a model folder that differs from its manifest."""
OLD_FORM = "the form of development versions up to commit 13d7e1f, which reads it"
"""Name of an older manifest format with a digest of every 16 MiB, for errors."""
_STALE_WEIGHTS = (
    "model.safetensors", "model-*-of-*.safetensors", "model.safetensors.index.json",
    "pytorch_model.bin", "pytorch_model-*-of-*.bin", "pytorch_model.bin.index.json", "tf_model.h5",
    "flax_model.msgpack", "adapter_config.json", "adapter_model.*", "added_tokens.json",
    "special_tokens_map.json",
)  # fmt: skip
"""Files of an older model that Transformers would read in place of the new files, or in addition."""
_READ_SUFFIXES = {".json", ".safetensors", ".bin", ".txt", ".model", ".jinja", ".onnx", ".data", ".xml"}
_READ_FOLDERS = re.compile(r"\d+_\w+|additional_chat_templates|openvino|onnx")
"""Suffixes of files, and names of folders, that loading a model folder reads."""
UNREAD = ("*.onnx", "openvino/*", "*.h5")
"""Files of a model on the hub that are never downloaded."""
_PART = 1 << 20
_checked: dict[Path, list[tuple[str, int, int, int]]] = {}


def start_sha256(path: Path, size: int | None = None) -> hashlib._Hash:
    """Returns the SHA-256 state of the first bytes of a file, to which further bytes can be added.

    Args:
        path: The file.
        size: Number of bytes; None for all.

    Raises:
        OSError: The file can't be read.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        if size is None:
            return hashlib.file_digest(file, lambda: digest)
        while size > 0 and (part := file.read(min(_PART, size))):
            digest.update(part)
            size -= len(part)
    return digest


@dataclass(frozen=True, slots=True)
class FileDigest:
    """Size and SHA-256 of a file, or of its first bytes.

    Args:
        size: Bytes.
        sha256: 64 hexadecimal digits.
    """

    size: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> FileDigest:
        """Reads a file and returns its digest."""
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256")
            return cls(file.tell(), digest.hexdigest())

    @classmethod
    def of_record(cls, record: Record) -> FileDigest:
        """Reads the digest of a file from a manifest, or from the record of a vector file.

        Raises:
            ValueError: The record has another format.
        """
        if "blocks" in record:
            raise InvalidValueError(f"{record.where}: expected a SHA-256, got {OLD_FORM}; {record.todo}")
        return cls(record.integer("size", least=0), record.text("sha256"))

    def to_json(self) -> dict[str, object]:
        """Returns the size and the digest of the file as fields of a JSON record."""
        return asdict(self)

    def damage(self, path: Path, whole: bool = True, grows: bool = False) -> str | None:
        """Compares a file with this recorded digest.

        Returns a description of the difference, or None if they match.

        Args:
            path: The file.
            whole: Whether to read all bytes; otherwise only the size of a file above ``READ_WHOLE`` is compared.
            grows: Whether the digest covers the first bytes only, and more may follow.
        """
        try:
            if not path.is_file():
                return "no file"
            size = path.stat().st_size
            if size < self.size or (size > self.size and not grows):
                return f"{size:,} bytes instead of {self.size:,}"
            if not whole and size > READ_WHOLE:
                return None
            return None if start_sha256(path, self.size).hexdigest() == self.sha256 else "changed bytes"
        except OSError as error:
            return f"can't be read ({error.strerror or error})"


@dataclass(frozen=True, slots=True)
class Manifest:
    """Manifest of a folder: the digests of all its files.

    Args:
        files: Name relative to the folder, with forward slashes -> digest.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "a").write_text("one")
        ...     Manifest.of(Path(folder)).write(Path(folder))
        ...     _ = Path(folder, "a").write_text("two")
        ...     Manifest.read(Path(folder)).damage(Path(folder))
        ['a: changed bytes']
    """

    files: Mapping[str, FileDigest]

    @classmethod
    def of(cls, folder: Path) -> Manifest:
        """Reads all files of a folder and returns their digests."""
        names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
        return cls({name: FileDigest.of(folder / name) for name in names if name != MANIFEST})

    def write(self, folder: Path) -> None:
        """Writes the manifest into the folder."""
        write_json(folder / MANIFEST, {"files": {name: digest.to_json() for name, digest in self.files.items()}})

    @classmethod
    def read(cls, folder: Path, todo: str = "save the folder again") -> Manifest | None:
        """Reads the manifest of a folder; None if there is none.

        Raises:
            ValueError: The manifest has another format, or names a file outside of the folder.
        """
        path = folder / MANIFEST
        if not path.is_file():
            return None
        files = Record.read(path, todo).record("files")
        if outside := [name for name in files if not _stays_inside(name)]:
            raise files.refusal("names of files in this folder", outside[0])
        return cls({name: FileDigest.of_record(files.record(name)) for name in files})

    def damage(self, folder: Path, whole: bool = True) -> list[str]:
        """Returns a line for every file that differs from its digest; see ``FileDigest.damage``."""
        lines = {name: digest.damage(folder / name, whole) for name, digest in self.files.items()}
        return [f"{name}: {line}" for name, line in lines.items() if line is not None]

    def check(self, folder: Path, whole: bool) -> None:
        """Checks that the files of a model folder are unchanged; see ``FileDigest.damage``.

        Raises:
            ValueError: A file is missing or was changed. The message has the first three.
        """
        if damage := self.damage(folder, whole):
            more = f" and {len(damage) - 3} more" if len(damage) > 3 else ""
            changes = f"{'; '.join(damage[:3])}{more}"
            raise InvalidValueError(
                f"{folder}: expected unchanged files, got changes ({changes}); {MANIFEST_ADVICE}"
            )


def _stays_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return bool(path.parts) and "\\" not in name and not path.is_absolute() and ".." not in path.parts


def find_model_folder(name: str) -> Path | None:
    """Returns the folder of an embedding model, local or in the hub's cache; None for any other name.

    Args:
        name: A folder, or a name on the hub, where ``modules.json`` is looked up.
    """
    folder = Path(name)
    if folder.is_dir():
        return folder if (folder / MODULES).is_file() else None
    return None if folder.is_absolute() or name.count("/") > 1 else _hub_place(name)


@cache  # of a name on the hub
def _hub_place(name: str) -> Path | None:
    from huggingface_hub import hf_hub_download, snapshot_download  # late: a folder doesn't need it

    try:
        hf_hub_download(name, MODULES)
        return Path(snapshot_download(name, ignore_patterns=list(UNREAD)))
    except (OSError, ValueError):  # the hub can't be reached, or has no such model, or the model lacks the file
        return None


@contextmanager
def folder_with_manifest(path: Path, last: str = MODULES) -> Iterator[Path]:
    """Writes a folder with a manifest: yields a temporary folder, whose files move to ``path`` at the end.

    Whenever the process is killed, ``path`` holds the older or the newer files, or files that differ from their
    manifest. Files that an older manifest names are removed, and weights that would be read in place of the new
    weights. A user's own files stay.

    Args:
        path: Path of the folder.
        last: Name of the file without which the folder counts as incomplete.

    Raises:
        DiskError: ``path`` can't be written to, or the disk is full.
    """
    stale: list[str] = []
    with suppress(InvalidValueError, OSError):  # a damaged manifest can't be trusted
        manifest = Manifest.read(path)
        stale += [glob.escape(name) for name in manifest.files] if manifest else []
    with atomic_folder(path, first=MANIFEST, last=last, stale=stale) as folder:
        yield folder
        manifest = Manifest.of(folder)
        if last == CONFIG:  # a network of Transformers, without other modules
            stale += [*_STALE_WEIGHTS, MODULES]
        if MODULES in manifest.files:
            folders = {Path(name).parent for name in manifest.files} - {Path()}
            stale += [*_STALE_WEIGHTS, *(f"{place}/pytorch_model.bin" for place in folders)]
        manifest.write(folder)


def is_outside_link(path: Path, folder: Path) -> bool:
    """Returns whether a path in a model folder is, or is below, a link to a place outside of the folder.

    In the hub's cache the files of a snapshot are links to the ``blobs`` of their repository, which are inside.

    Args:
        path: The path, which need not exist.
        folder: The model folder, which may be a link itself.
    """
    root = Path(os.path.realpath(folder))
    roots = [root, root.parent.parent / "blobs"] if root.parent.name == "snapshots" else [root]
    real = Path(os.path.realpath(path))
    return not any(real.is_relative_to(place) for place in roots)


def check_links(folder: Path) -> None:
    """Checks that no file that loading reads is a link to a place outside of its folder.

    Otherwise the target of the link, such as a secret file of the user, would be copied into the next model that
    is saved or uploaded.

    Raises:
        ValueError: The first such link.
    """
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        inner = sorted(path.iterdir()) if _READ_FOLDERS.fullmatch(path.name) and path.is_dir() else []
        for name in (path, *inner):
            is_read = name.suffix in _READ_SUFFIXES or _READ_FOLDERS.fullmatch(name.name)
            if is_read and is_outside_link(name, folder):
                raise InvalidValueError(
                    f"{name}: expected a file or folder inside {folder}, got a link to {os.path.realpath(name)}; "
                    "copy the model without links (cp -rL) if you trust it"
                )


def check_whole(folder: Path) -> None:
    """Checks that a folder has no links to other places, and that its files match its manifest, if it has one.

    Files up to 1 GiB are read. For a larger file only the size is compared; ``contrastive-text verify`` reads it.
    A file whose size and time are unchanged since the last check in this process is not read again.

    Raises:
        ValueError: A link to another place, a changed or missing file, or an unfinished save. The message names
            it.
    """
    check_links(folder)
    manifest = Manifest.read(folder, MANIFEST_ADVICE)
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
    manifest.check(folder, whole=False)
    _checked[folder.resolve()] = state


def _state(folder: Path, manifest: Manifest) -> list[tuple[str, int, int, int]]:
    """Returns name, size, time and inode of the manifest and of each file in it."""
    places = [(name, folder / name) for name in (MANIFEST, *manifest.files)]
    states = [(name, path.stat()) for name, path in places if path.exists()]
    return [(name, state.st_size, state.st_mtime_ns, state.st_ino) for name, state in states]
