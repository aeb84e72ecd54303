"""Damage that chance does: to bytes, and to the values of JSON."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats() | st.text(max_size=20)
    | st.sampled_from(["os.system", "../x", "a\0b", "", "contrastive_text.poolers.MeanPooler", "1e999"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
"""What JSON can hold."""


@st.composite
def damaged_bytes(draw: st.DrawFn, content: bytes) -> bytes:
    """Draws a change of some bytes: other ones, fewer, more, zeros."""
    place = draw(st.integers(0, len(content)))
    length = draw(st.integers(0, 64))
    kind = draw(st.sampled_from(["other", "cut", "zeros", "more", "less", "bit"]))
    if kind == "cut":
        return content[:place]
    if kind == "zeros":
        return content[:place] + bytes(len(content) - place)
    if kind == "less":
        return content[:place] + content[place + length :]
    if kind == "bit" and content:
        place = min(place, len(content) - 1)
        return content[:place] + bytes([content[place] ^ (1 << draw(st.integers(0, 7)))]) + content[place + 1 :]
    new = draw(st.binary(min_size=1, max_size=64))
    return content[:place] + new + content[place + (len(new) if kind == "other" else 0) :]


def _places(value: Any) -> Iterator[tuple[Any, Any]]:  # Any: JSON
    """Yields every container with each of its keys."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


@st.composite
def damaged_json(draw: st.DrawFn, value: Any) -> Any:  # Any: JSON
    """Draws a change of one to three values, anywhere inside: another one, or none."""
    changed = {"": copy.deepcopy(value)}
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(changed))[:400]
        container, key = places[draw(st.integers(0, len(places) - 1))]
        if draw(st.booleans()) or container is changed:
            container[key] = draw(values)
        else:
            del container[key]
    return changed[""]
