"""The file ``tokenizer.json`` of a folder, checked before the tokenizers library reads it."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage.manifests import TODO

_MOST_PARTS = 100
"""Normalizers and pre-tokenizers of a tokenizer; those in use have fewer than twenty."""
_MOST_GROWTH = 64
"""Characters that normalizers may put in the place of one; those in use put one or two."""
_MOST_PREPENDED = 1024
"""Characters that normalizers may put before a text."""
_SIZE_BYTES = 4
"""Bytes of the size at the begin of a SentencePiece table."""


def check_tokenizer_file(path: Path) -> None:
    """Checks that a ``tokenizer.json`` can't fill the memory: the library ends the process where it is full.

    A file that isn't JSON of a tokenizer's form is left to the library, which says why.

    Raises:
        ValueError: Too many normalizers or pre-tokenizers, normalizers that make texts much longer, or a table
            that claims to be larger than it is.
    """
    try:
        content = json.loads(path.read_bytes())
        parts = [*_parts(content.get("normalizer")), *_parts(content.get("pre_tokenizer"))]
    except (AttributeError, OSError, RecursionError, ValueError):
        return
    if len(parts) > _MOST_PARTS:
        raise _refusal(path, f"at most {_MOST_PARTS} normalizers and pre-tokenizers", f"{len(parts):,}")
    growth = prepended = 1
    for part in parts:
        table = part.get("precompiled_charsmap")
        if isinstance(table, str) and _claims_more(table):
            raise _refusal(path, "a precompiled_charsmap of the size that it begins with", "a shorter one")
        factor = _growth(part)
        added = part.get("prepend")
        growth, prepended = growth * factor, prepended * factor + len(added if isinstance(added, str) else "")
        if growth > _MOST_GROWTH or prepended > _MOST_PREPENDED:
            expected = f"normalizers that make a text at most {_MOST_GROWTH} times as long"
            raise _refusal(path, f"{expected}, with {_MOST_PREPENDED:,} characters before it", part["type"])


def _refusal(path: Path, expected: str, got: object) -> InvalidValueError:
    return InvalidValueError(f"{path}: expected {expected}, got {got}; {TODO}")


def _parts(part: object) -> Iterator[dict[str, Any]]:  # Any: JSON
    """Yields the single parts of a sequence of parts, in their order."""
    left = [part]
    while left:
        each = left.pop()
        if not isinstance(each, dict):
            continue
        inner = each.get("normalizers", each.get("pretokenizers"))
        if isinstance(inner, list):
            left += reversed(inner)
        else:
            yield each


def _growth(part: dict[str, Any]) -> int:  # Any: JSON
    """Returns how many characters a replacement puts in the place of one at most; 1 for any other part."""
    content, pattern = part.get("content"), part.get("pattern")
    if part.get("type") != "Replace" or not isinstance(content, str) or not isinstance(pattern, dict):
        return 1
    literal = pattern.get("String")
    if isinstance(literal, str) and literal:
        return max(1, -(-len(content) // len(literal)))
    return (
        max(1, len(content)) if isinstance(pattern.get("Regex"), str) and pattern["Regex"] else 1 + len(content)
    )


def _claims_more(table: str) -> bool:
    """Returns whether a SentencePiece table is shorter than the size in its first bytes."""
    try:
        content = base64.b64decode(table)
    except ValueError:
        return False  # answered by the library
    claimed = int.from_bytes(content[:_SIZE_BYTES], "little")
    return len(content) >= _SIZE_BYTES and claimed > len(content) - _SIZE_BYTES
