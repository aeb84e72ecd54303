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
    links,
    models,
    names,
    outputs,
    records,
    sizes,
    tables,
    tensors,
    tokenizers,
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
    tensors,
    tokenizers,
    links,
)
CASES = (
    *(case for theme in QUICK for case in theme.CASES),
    *(replace(case, slow=True) for theme in SLOW for case in theme.CASES),
)
