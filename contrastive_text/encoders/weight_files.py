"""Weight files of a model folder, checked before Transformers reads them: it casts any tensor to float32."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import safe_open

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage.manifests import TODO
from contrastive_text.core.storage.weights import check_dense, is_weight

_FLOATS = ("F16", "BF16", "F32", "F64")


def check_weight_files(files: Iterable[Path]) -> None:
    """Checks that the weights in files are dense floating-point numbers of 16 bits or more.

    Quantized weights without their scales, 8-bit floats and complex numbers would be cast without a word, and
    give vectors of another model. Files that can't be read are left to Transformers, which says why.

    Args:
        files: Files named ``*.safetensors`` and ``*.bin``.

    Raises:
        ValueError: Another tensor, with its file and name.
    """
    for file in files:
        if file.suffix == ".safetensors":
            _check_types(file)
        elif zipfile.is_zipfile(file):  # older files can't be mapped, and would be read twice
            try:
                content = torch.load(file, weights_only=True, mmap=True, map_location="cpu")
            except Exception:  # answered by Transformers
                continue
            check_dense(content, str(file), TODO)


def _check_types(file: Path) -> None:
    """Checks the types of a safetensors file, of which only the header is read."""
    try:
        with safe_open(file, framework="pt") as opened:
            types = {name: str(opened.get_slice(name).get_dtype()) for name in opened.keys()}  # noqa: SIM118  # no mapping
    except Exception:  # answered by Transformers
        return
    for name, kind in types.items():
        odd = kind.startswith(("F8", "F6", "F4", "C"))
        if odd or (is_weight(name) and kind not in _FLOATS):
            raise InvalidValueError(
                f"{file}: {name}: expected floating-point numbers of 16 bits or more, got {kind}; name a model "
                "that isn't quantized"
            )
