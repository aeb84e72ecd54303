"""Folders of a cache: made once by one of several processes, found by all others, whole or not there."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from contrastive_text.core.errors import DiskError
from contrastive_text.core.storage.disk import held, remove_abandoned
from contrastive_text.core.storage.manifests import MANIFEST, Manifest, whole_folder


def cached(
    folder: Path, key: str, what: str, names: Sequence[str], make: Callable[[Path], None]
) -> tuple[Path, bool]:
    """Returns an entry of a cache, and whether this call has made it.

    An entry whose bytes aren't those of its manifest is told of and made anew. Of two processes that want the
    same one, the second waits for the first and takes what that has made.

    Args:
        folder: Of all entries.
        key: Name of the entry, which stands for all that it is made of.
        what: What the entry holds, for messages.
        names: Its files.
        make: Writes them into a folder; what it raises leaves nothing.

    Warns:
        UserWarning: A damaged entry.

    Raises:
        OSError: The folder can't be written.
    """
    entry = folder / key
    if not _damage(entry, names):
        return entry, False
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            remove_abandoned(folder)
            stack.enter_context(held(entry, wait=True))
        except OSError as error:
            raise DiskError(
                f"cache_dir: expected a folder that can be written, got {folder} ({error}); name another one"
            ) from None
        if not (damage := _damage(entry, names)):
            return entry, False
        if os.path.lexists(entry):
            warnings.warn(f"{entry}: damaged {what} ({'; '.join(damage)}); they are made anew", stacklevel=3)
        if not entry.is_dir():
            entry.unlink(missing_ok=True)
        with whole_folder(entry, last=names[-1]) as made:
            make(made)
    return entry, True


def cache_folder(given: Path | None, kind: str) -> Path:
    """Returns the folder of a cache: the given one, or ``contrastive_text/KIND`` in the user's cache folder.

    That is in ``$XDG_CACHE_HOME`` or ``~/.cache``.
    """
    if given is not None:
        return given.expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "contrastive_text", kind).absolute()


def _damage(entry: Path, names: Sequence[str]) -> list[str]:
    """Returns what is wrong with an entry; nothing for a whole one."""
    try:
        manifest = Manifest.read(entry)
    except (OSError, ValueError):
        return [f"{MANIFEST}: changed"]
    if manifest is None or not set(names) <= set(manifest.files):
        return [f"{MANIFEST}: none of these files"]
    return manifest.damage(entry, whole=False)
