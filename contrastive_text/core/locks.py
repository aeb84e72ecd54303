"""One process at a time writes an output."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from contrastive_text.core.disk import held
from contrastive_text.core.errors import InvalidValueError


@contextmanager
def alone_with(path: Path) -> Iterator[None]:
    """Keeps other processes from writing an output meanwhile.

    Args:
        path: A file or a folder; the folders around it are made.

    Raises:
        OSError: The folder around it can't be written to.
        ValueError: Another process is writing it.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, alone_with(Path(folder, "v.npy")):
        ...     Path(folder, "v.npy").write_text("one writer")
        10
    """
    with held(Path(os.path.realpath(path))) as mine:
        if not mine:
            raise InvalidValueError(
                f"{path}: expected to be alone with it, got another process that is writing it; let that one "
                "end, or name another"
            )
        yield
