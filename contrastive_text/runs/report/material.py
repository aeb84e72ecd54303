"""The texts and the scored pairs that the vectors of all runs of a page are compared on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.random import generator
from contrastive_text.data import Table, read_pairs, read_rows
from contrastive_text.data.files.formats import FileForm
from contrastive_text.runs.report.run_parts import RunParts, row_texts

SEED = 42
"""Of every draw for the page."""


@dataclass(frozen=True, slots=True)
class Material:
    """What is embedded.

    Args:
        texts: Different texts, in the order of a seeded draw.
        pairs: Scored pairs; None if there are none.
        said_pairs: Which pairs these are; empty without.
        said: Which texts and pairs these are.
        lacks: Why pairs or texts are missing; empty where none are.
    """

    texts: Sequence[str]
    pairs: Table | None
    said_pairs: str
    said: str
    lacks: str


def gather(
    parts: Mapping[str, RunParts], pairs: str | Path | None, texts: str | Path | None, limit: int
) -> Material:
    """Returns the files that were named, else those of the first run that has them.

    Args:
        parts: Name of a run -> what it told.
        pairs: File of scored pairs.
        texts: File of texts.
        limit: Texts, and pairs, that are kept at most.

    Raises:
        FileNotFoundError: A named file that isn't there.
        ValueError: A named file that can't be read, or a limit that leaves too little to look at.
    """
    if limit < 20:
        raise InvalidValueError(f"report.limit: expected 20 texts or more, got {limit}")
    scored, of_pairs = _named_pairs(pairs) if pairs is not None else _run_pairs(parts)
    known, of_texts = _named_texts(texts) if texts is not None else _run_texts(parts)
    if not known and scored is not None:
        known, of_texts = row_texts(scored.rows), of_pairs
    said: list[str] = []
    if scored is not None:
        order = sorted(_drawn(len(scored), limit))
        said.append(f"{_share(len(order), len(scored))} pairs of {of_pairs}")
        scored = dataclasses.replace(scored, rows=tuple(scored[i] for i in order), sizes=(len(order),))
    said_pairs = "".join(said)
    drawn = [known[i] for i in _drawn(len(known), limit)]
    if drawn:
        said.append(f"{_share(len(drawn), len(known))} different texts of {of_texts}")
    lacks = "; ".join(dict.fromkeys(part.lacks for part in parts.values() if part.lacks))
    return Material(drawn, scored, said_pairs, " and ".join(said), lacks)


def _named_pairs(path: str | Path) -> tuple[Table, str]:
    return read_pairs(path, split="dev", form=FileForm(options={})), Path(path).name


def _named_texts(path: str | Path) -> tuple[list[str], str]:
    return row_texts(read_rows(path, reads=("text",), split="all", form=FileForm(options={})).rows), Path(
        path
    ).name


def _run_pairs(parts: Mapping[str, RunParts]) -> tuple[Table | None, str]:
    for part in parts.values():
        for name, table in part.pairs.items():
            others = f" (the first of {len(part.pairs)} validation files)" if len(part.pairs) > 1 else ""
            return table, f"{name}{others}"
    return None, ""


def _run_texts(parts: Mapping[str, RunParts]) -> tuple[Sequence[str], str]:
    for name, part in parts.items():
        if part.texts:
            return part.texts, "the training files" + (f" of {name}" if len(parts) > 1 else "")
    return [], ""


def _drawn(size: int, limit: int) -> list[int]:
    return [int(i) for i in generator(SEED).permutation(size)[:limit]]


def _share(kept: int, size: int) -> str:
    return f"all {size:,}" if kept == size else f"{kept:,} of {size:,} (drawn with seed {SEED})"
