"""The files that make a model's folder: written whole with a manifest, and checked before any of them is used."""

from __future__ import annotations

import glob
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
_checked: dict[Path, list[tuple[str, int, int, int]]] = {}


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


def check_whole(folder: Path) -> None:
    """Checks that a folder's files are those of its manifest; one without a manifest passes.

    All bytes are read, of more than 1 GiB a sample (see ``Manifest.damage``); files that are as they were when
    this process last read them, by size and time, are not read again.

    Raises:
        ValueError: A changed or missing file, by name, or a save that did not come to its end.
    """
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
