"""Checks of the files of a model folder before Transformers reads them: they may be damaged or untrusted."""

from __future__ import annotations

import base64
import json
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage.manifests import MANIFEST_ADVICE, check_whole
from contrastive_text.core.storage.records import Record, describe_value
from contrastive_text.core.storage.weights import check_dense, is_weight

_RECORDS = (
    "config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "model.safetensors.index.json", "pytorch_model.bin.index.json",
)  # fmt: skip
"""JSON files in a model folder that Transformers reads, and that must hold mappings."""
_COUNT_FIELDS, _MAX_LAYERS = re.compile("layers|groups|experts|layer$"), 1000
"""Fields of ``config.json`` that hold a number of parts to build, and the largest number that is accepted."""
_IMPLEMENTATION_SUFFIX = "_implementation"
"""Suffix of a key of ``config.json`` that names the code for attention or for experts."""
_FLOATS = ("F16", "BF16", "F32", "F64")
_MAX_PARTS = 100
"""Largest number of normalizers and pre-tokenizers of a tokenizer; tokenizers in use have fewer than twenty."""
_MAX_GROWTH, _MAX_PREPENDED = 64, 1024
"""Largest number of characters that normalizers put in place of one, and before a text; usual are one or two."""


def check_folder(name: str) -> None:
    """Checks that a model folder is unchanged since it was saved, and that its JSON files are records.

    Args:
        name: A folder; any other name passes.

    Raises:
        ValueError: A damaged file, numbers that no network has, or a name of code that would be downloaded and
            run.
    """
    folder = Path(name)
    if not folder.is_dir():
        return
    check_whole(folder)
    records = {
        file.name: Record.read(file, MANIFEST_ADVICE) for file in map(folder.joinpath, _RECORDS) if file.exists()
    }
    for index in (record for name, record in records.items() if name.endswith(".index.json")):
        weight_files = index.record("weight_map", {})
        for weight in weight_files:
            if Path(weight_files.text(weight)).name != weight_files.text(weight):
                raise weight_files.refusal(
                    "the name of a file in the same folder", weight_files.values[weight], weight
                )
    if (config := records.get("config.json")) is not None:
        check_implementations(str(folder / "config.json"), config.values)
        if type(config.values.get("pad_token_id")) is int:  # some architectures have a list
            config.integer("pad_token_id", least=0)
        for key in filter(_COUNT_FIELDS.search, config):
            if type(config.values[key]) is int:  # excludes booleans
                config.integer(key, most=_MAX_LAYERS)
    for file in (file for kind in ("tokenizer.json", "*.safetensors", "*.bin") for file in folder.glob(kind)):
        if not file.is_file():  # a pipe, or a link to nothing
            raise InvalidValueError(f"{file}: expected a file, got something else; {MANIFEST_ADVICE}")


def check_implementations(where: str, config: Mapping[str, object], inside: bool = False) -> None:
    """Checks that a configuration names no kernels that Transformers would download and run."""
    for key, value in config.items():
        if isinstance(value, Mapping):  # an inner encoder, or a mapping of part to kernel
            check_implementations(f"{where}: {key}", value, inside=inside or key.endswith(_IMPLEMENTATION_SUFFIX))
        elif (inside or key.endswith(_IMPLEMENTATION_SUFFIX)) and isinstance(value, str) and "/" in value:
            raise InvalidValueError(
                f"{where}: {key}: expected an implementation of Transformers, such as sdpa, got "
                f"{describe_value(value)}, code that would be downloaded and run; remove the key"
            )


def check_weight_files(files: Iterable[Path]) -> None:
    """Checks that the weights in files are dense floating-point numbers of 16 bits or more.

    Transformers would cast quantized weights without their scales, 8-bit floats and complex numbers silently.
    The vectors would be those of another model. Unreadable files are left to Transformers, which reports them.

    Args:
        files: Files named ``*.safetensors`` and ``*.bin``.

    Raises:
        ValueError: A tensor of another type; the message has its file and name.
    """
    for file in files:
        if file.suffix == ".safetensors":
            _check_types(file)
        elif zipfile.is_zipfile(file):  # older files can't be mapped, and would be read twice
            try:
                content = torch.load(file, weights_only=True, mmap=True, map_location="cpu")
            except Exception:  # reported by Transformers
                continue
            check_dense(content, str(file), MANIFEST_ADVICE)


def _check_types(file: Path) -> None:
    """Checks that the tensors of a safetensors file have floating-point types. Only the header is read."""
    try:
        with safe_open(file, framework="pt") as weights:
            types = {name: str(weights.get_slice(name).get_dtype()) for name in weights.keys()}  # noqa: SIM118  # no mapping
    except Exception:  # reported by Transformers
        return
    for name, kind in types.items():
        is_unsupported = kind.startswith(("F8", "F6_", "F4", "C"))  # F64 has no underscore
        if is_unsupported or (is_weight(name) and kind not in _FLOATS):
            raise InvalidValueError(
                f"{file}: {name}: expected floating-point numbers of 16 bits or more, got {kind}; name a model "
                "that isn't quantized"
            )


def check_tokenizer_file(path: Path) -> None:
    """Checks that a ``tokenizer.json`` can't exhaust the memory.

    The tokenizers library would abort the process. A file that isn't the JSON of a tokenizer is left to the
    library, which reports it.

    Raises:
        ValueError: Too many normalizers or pre-tokenizers, normalizers that make texts much longer, or a table
            that is shorter than the size in its first bytes.
    """
    try:
        content = json.loads(path.read_bytes())
        parts = [*_parts(content.get("normalizer")), *_parts(content.get("pre_tokenizer"))]
    except (AttributeError, OSError, RecursionError, ValueError):
        return

    def refusal(expected: str, got: object) -> InvalidValueError:
        return InvalidValueError(f"{path}: expected {expected}, got {got}; {MANIFEST_ADVICE}")

    if len(parts) > _MAX_PARTS:
        raise refusal(f"at most {_MAX_PARTS} normalizers and pre-tokenizers", f"{len(parts):,}")
    growth = prepended = 1
    for part in parts:
        table = part.get("precompiled_charsmap")
        if isinstance(table, str) and _claims_more(table):
            raise refusal("a precompiled_charsmap of the size that it begins with", "a shorter one")
        factor = _growth(part)
        prefix = part.get("prepend")
        growth, prepended = growth * factor, prepended * factor + len(prefix if isinstance(prefix, str) else "")
        if growth > _MAX_GROWTH or prepended > _MAX_PREPENDED:
            expected = f"normalizers that make a text at most {_MAX_GROWTH} times as long"
            raise refusal(f"{expected}, with {_MAX_PREPENDED:,} characters before it", part["type"])


def _parts(part: object) -> Iterator[dict[str, Any]]:  # Any: JSON
    """Yields the single parts of a tokenizer's nested sequences of parts, in order."""
    stack = [part]
    while stack:
        item = stack.pop()
        if not isinstance(item, dict):
            continue
        children = item.get("normalizers", item.get("pretokenizers"))
        if isinstance(children, list):
            stack += reversed(children)
        else:
            yield item


def _growth(part: dict[str, Any]) -> int:  # Any: JSON
    """Returns the largest number of characters that a ``Replace`` puts in place of one; 1 for other parts."""
    content, pattern = part.get("content"), part.get("pattern")
    if part.get("type") != "Replace" or not isinstance(content, str) or not isinstance(pattern, dict):
        return 1
    literal, expression = pattern.get("String"), pattern.get("Regex")
    if isinstance(literal, str) and literal:
        return max(1, -(-len(content) // len(literal)))
    # An empty pattern inserts its content between any two characters.
    return max(1, len(content)) if isinstance(expression, str) and expression else 1 + len(content)


def _claims_more(table: str) -> bool:
    """Returns whether a SentencePiece table is shorter than the size in its first four bytes claims."""
    try:
        content = base64.b64decode(table)
    except ValueError:
        return False  # reported by the library
    return len(content) >= 4 and int.from_bytes(content[:4], "little") > len(content) - 4
