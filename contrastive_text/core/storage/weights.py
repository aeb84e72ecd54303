"""Identity of weights from sampled values, and tensors in files of any origin: read and checked."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.libraries import read_errors_as

_SAMPLE_SIZE = 4096
"""Number of values of a weight that its identity is computed from."""


def sampled_identity(weights: Mapping[str, Tensor]) -> str:
    """Returns 32 hex digits that identify weights by their names, shapes and sampled values, in any precision.

    It is fast and distinguishes models. It doesn't detect a single changed byte.

    Example:
        >>> weight = torch.arange(6.0).view(2, 3)
        >>> sampled_identity({"a": weight}) == sampled_identity({"a": weight.bfloat16()})
        True
    """
    samples = {}
    for name, weight in weights.items():
        values = weight.detach().reshape(-1)
        samples[f"{name} {tuple(weight.shape)}"] = values[:: -(-len(values) // _SAMPLE_SIZE) or 1].bfloat16()
    digest = hashlib.blake2b(digest_size=16)
    add_weights(digest, samples)
    return digest.hexdigest()


def add_weights(digest: hashlib.blake2b, weights: Mapping[str, Tensor]) -> None:
    """Adds names, types, shapes and values of weights to a digest, sorted by name.

    Example:
        >>> digest = hashlib.blake2b(digest_size=8)
        >>> add_weights(digest, {"bias": torch.zeros(2)})
        >>> digest.hexdigest() == hashlib.blake2b(digest_size=8).hexdigest()
        False
    """
    for name, weight in sorted(weights.items()):
        values = weight.detach().cpu().contiguous()
        digest.update(f"{name} {values.dtype} {tuple(values.shape)}".encode())
        digest.update(values.reshape(-1).view(torch.uint8).numpy().data)


def read_weights(path: Path, todo: str) -> dict[str, Tensor]:
    """Reads a file of tensors by name, and checks that they are dense. Floating-point tensors become float32.

    Args:
        path: Safetensors file, or a file of ``torch.save``.
        todo: What to do about a damaged file, for the error.

    Raises:
        ValueError: The file is missing or damaged, or has other content than dense tensors by name.
    """
    with read_errors_as(f"{path}: expected whole weights", todo):
        content = load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    if not isinstance(content, dict) or not all(isinstance(weight, Tensor) for weight in content.values()):
        raise InvalidValueError(f"{path}: expected tensors by name, got other content; {todo}")
    check_dense(content, str(path), todo)
    return {
        str(name): weight.float() if weight.is_floating_point() else weight for name, weight in content.items()
    }


def check_dense(content: object, where: str, todo: str) -> None:
    """Checks that the tensors in a file are dense, real, and store all of their values in the file.

    A file of a few bytes can contain a tensor of any size that repeats one value, or a tensor without values.
    Nested, sparse, quantized, complex and 8-bit float tensors lack operations that weights need. Integer weights
    belong to a quantized model whose scales are missing.

    Args:
        content: Mappings and lists with tensors in them, as returned by ``torch.load``.
        where: The file, for the error.
        todo: What to do about such a file, for the error.

    Raises:
        ValueError: A tensor of another form; the message names its place in the content.

    Example:
        >>> check_dense({"state_dict": {"weight": torch.zeros(1).expand(10**12)}}, "a.ckpt", "save it again")
        Traceback (most recent call last):
            ...
        contrastive_text.core.errors.InvalidValueError: a.ckpt: state_dict.weight: expected a dense tensor of real numbers, got one of 4,000,000,000,000 bytes over 4 in the file; save it again
    """  # noqa: E501  # the error is in one line
    for place, tensor in _tensors(content, ""):
        form = _odd_form(tensor)
        if form is None and is_weight(place) and not tensor.is_floating_point():
            form = f"whole numbers ({tensor.dtype})"
        if form is not None:
            raise InvalidValueError(
                f"{where}: {place}: expected a dense tensor of real numbers, got {form}; {todo}"
            )


def is_weight(name: str) -> bool:
    """Returns whether a tensor's name ends like a layer's weight or bias, which must be floating-point.

    Example:
        >>> is_weight("encoder.layer.0.output.dense.weight"), is_weight("embeddings.position_ids")
        (True, False)
    """
    return name.endswith(("weight", "bias"))


def _tensors(content: object, place: str) -> Iterator[tuple[str, Tensor]]:
    """Yields every tensor in nested mappings, lists and tuples, with its path in them."""
    level = [(place, content)]
    while level:  # no recursion: a file may nest lists thousands deep
        place, part = level.pop()
        if isinstance(part, Tensor):
            yield place.lstrip(".") or "the file", part
        elif isinstance(part, Mapping):
            level += [(f"{place}.{name}", value) for name, value in part.items()]
        elif isinstance(part, list | tuple | set):
            level += [(f"{place}.{number}", value) for number, value in enumerate(part)]


def _odd_form(tensor: Tensor) -> str | None:
    """Describes the form of a tensor that is not dense and real; None for a dense real tensor."""
    if tensor.is_nested:
        return "a nested one"
    if tensor.layout is not torch.strided:
        return f"a sparse one ({tensor.layout})"
    if tensor.is_quantized:
        return f"a quantized one ({tensor.dtype})"
    if tensor.is_meta:
        return "one without values (device meta)"
    if tensor.is_complex():
        return f"complex numbers ({tensor.dtype})"
    if tensor.is_floating_point() and tensor.itemsize == 1:
        return f"8-bit floats ({tensor.dtype})"
    size, stored = tensor.numel() * tensor.itemsize, tensor.untyped_storage().nbytes()
    return f"one of {size:,} bytes over {stored:,} in the file" if size > stored else None
