"""Whether a checkpoint on disk is whole."""

from __future__ import annotations

import zipfile
from pathlib import Path


def verify_checkpoint(path: str | Path) -> None:
    """Checks that a checkpoint file is there and undamaged.

    ``torch.load`` reads a file with a flipped byte in its tensors without a word; the checksums of the zip
    archive that the file is catch it.

    Args:
        path: A ``.ckpt`` file.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is cut short, empty or has damaged bytes.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"checkpoint: expected a file, found none at {path}; check --ckpt_path")
    advice = "it was cut short or changed after it was written, so use another checkpoint"
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except Exception as error:  # a damaged header raises BadZipFile, UnicodeDecodeError, NotImplementedError, ...
        raise ValueError(
            f"{path}: expected a whole checkpoint, got a damaged file ({error}); {advice}"
        ) from error
    if damaged is not None:
        raise ValueError(f"{path}: expected a whole checkpoint, got damaged bytes in {damaged}; {advice}")
