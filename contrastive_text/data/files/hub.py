"""Data sets of the Hugging Face hub, and folders in its layout, read with the library ``datasets``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from contrastive_text.core.errors import MissingLibraryError
from contrastive_text.data.files.formats import Content, reading_error
from contrastive_text.data.files.frames import frame_columns, frame_rows

PREFIX = "hub:"
"""What a path begins with that names a data set of the hub."""


class HubName(NamedTuple):
    """A data set's name or folder, its configuration if it has several, and a split of it."""

    name: str
    config: str | None
    split: str


def hub_name(path: str) -> HubName:
    """Takes ``hub:NAME:SPLIT`` and ``hub:NAME:CONFIG:SPLIT`` apart.

    The name of a folder may hold colons, and a split may be part of one, as in ``train[:1000]``.

    Raises:
        ValueError: No split, or too many parts.

    Example:
        >>> hub_name("hub:sentence-transformers/all-nli:triplet:train[:10%]")
        HubName(name='sentence-transformers/all-nli', config='triplet', split='train[:10%]')
    """
    part = r"[^:+\[\]]+(?:\[[^\[\]]*\])?"
    if found := re.fullmatch(rf"(.+):({part}(?:\+{part})*)", path.removeprefix(PREFIX)):
        place, split = found.groups()
        if Path(place).is_dir() or ":" not in place:
            return HubName(place, None, split)
        name, _, config = place.rpartition(":")
        if name and config and (Path(name).is_dir() or ":" not in name):
            return HubName(name, config, split)
    raise reading_error(
        path, "hub:NAME:SPLIT or hub:NAME:CONFIG:SPLIT", "another form", "write hub:stanfordnlp/snli:train"
    )


def hub_content(path: str) -> Content:
    """Returns a split of a data set as header and records, the names of classes in place of their numbers.

    A number without a name, such as -1 for no gold label, stays. Line n is row n, from 1. Rows stay where
    ``datasets`` has them, mapped, and are read in slices.

    Raises:
        ImportError: ``datasets`` is not installed.
        ValueError: It can't load that.
    """
    name, config, split = hub_name(path)
    try:
        datasets = import_module("datasets")  # optional, and it takes a second
    except ImportError:
        raise MissingLibraryError(
            f"{path}: expected the library datasets, got none; pip install contrastive-text[datasets]"
        ) from None
    try:
        with _without_bars(datasets):
            table = datasets.load_dataset(name, config, split=split)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        todo = "check the name, the configuration, the split and the connection"
        got = f"{type(error).__name__} ({' '.join(str(error).split())})"
        raise reading_error(path, "a data set that can be loaded", got, todo) from None
    header = [str(column) for column in frame_columns(table)]
    places = [Path(each["filename"]) for each in table.cache_files]
    identity = repr([(str(place), place.stat().st_size, place.stat().st_mtime_ns) for place in places])
    return Content(header, lambda: enumerate(frame_rows(table), start=1), known=len(table), identity=identity)


@contextmanager
def _without_bars(datasets: ModuleType) -> Iterator[None]:
    """Keeps away progress bars, which every process would show."""
    shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            datasets.enable_progress_bars()
