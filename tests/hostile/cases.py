"""All hostile cases."""

from __future__ import annotations

from hostile import (
    arguments,
    encodings,
    escapes,
    kinds_of_files,
    names,
    sizes,
    tables,
    values,
)

THEMES = (
    encodings,
    sizes,
    kinds_of_files,
    tables,
    values,
    escapes,
    names,
    arguments,
)
CASES = tuple(case for theme in THEMES for case in theme.CASES)
