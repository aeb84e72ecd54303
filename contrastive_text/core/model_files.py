"""The files that make a model's folder: written whole with a manifest, and checked before any of them is used."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from contrastive_text.core.disk import replacing_folder
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.manifests import MANIFEST, Manifest

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
