"""All hostile cases."""

from __future__ import annotations

from dataclasses import replace

from hostile import (
    arguments,
    checkpoints,
    configurations,
    encodings,
    escapes,
    kinds_of_files,
    models,
    names,
    outputs,
    records,
    sizes,
    tables,
    training,
    values,
    verified,
)

QUICK = (
    encodings,
    kinds_of_files,
    tables,
    values,
    escapes,
    names,
    verified,
)
SLOW = (
    arguments,
    sizes,
    outputs,
    training,
    configurations,
    models,
    checkpoints,
    records,
)
CASES = (
    *(case for theme in QUICK for case in theme.CASES),
    *(replace(case, slow=True) for theme in SLOW for case in theme.CASES),
)
