"""Files of vectors for tests: made, killed at a step, damaged."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tiny

from contrastive_text.data.files.readers import TextStream
from contrastive_text.inference.embedding_run import EmbeddingRun
from contrastive_text.inference.encoding import Encoding
from contrastive_text.inference.sentence_encoder import SentenceEncoder

MANY = tuple(f"{text} and {i}" for i in range(6) for text in tiny.TEXTS)
SMALL = Encoding(block_size=50, batch_size=16)
"""Five blocks of the 240 texts, the last one shorter."""


class Killed(BaseException):
    """Stands for the end of the process: nothing that is run afterwards belongs to the run."""


def killed_at(step: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a call of the operating system, of one kind or any, be the last one of the process."""
    calls = {"fsync": 0, "replace": 0, "unlink": 0, "any": 0}

    def counted(name: str, call: Callable[..., None]) -> Callable[..., None]:
        def run(*arguments: object) -> None:
            passing = isinstance(arguments[0], Path) and arguments[0].name.endswith((".tmp", ".lock"))
            if name == "unlink" and passing:
                return None  # a killed process would leave it there
            calls[name] += 1
            calls["any"] += 1
            if step in (name, "any") and calls[step] == number:
                raise Killed
            return call(*arguments)

        return run

    for name in ("fsync", "replace", "unlink"):
        monkeypatch.setattr(os, name, counted(name, getattr(os, name)))


def embedded(model: SentenceEncoder, texts: TextStream, path: Path, encoding: Encoding = SMALL) -> bytes:
    EmbeddingRun(model, texts, path, encoding).finish()
    return path.read_bytes()


def rows_of(path: Path) -> np.ndarray:
    if path.suffix == ".npy":
        return np.load(path)
    if path.suffix == ".tsv":
        return np.loadtxt(path, delimiter="\t", dtype=np.float32)
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs the parquet extra")
    return np.array(parquet.read_table(path)["embedding"].to_pylist())


def beside(out: Path) -> list[bytes]:
    """Vectors, record and ranges, as far as they are there."""
    paths = (out, out.with_name(f"{out.name}.json"), out.with_name(f"{out.name}.ranges.npy"))
    return [path.read_bytes() for path in paths if path.exists()]


def attempt(run: EmbeddingRun, step: str, number: int) -> bool:
    """Runs an embedding that is killed at a system call. Returns whether it was killed."""
    with pytest.MonkeyPatch.context() as patched:
        killed_at(step, number, patched)
        try:
            run.finish()
        except Killed:
            return True
    return False


def stopped(model: SentenceEncoder, texts: TextStream, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves two blocks of an unfinished output."""
    with monkeypatch.context() as patched:
        killed_at("fsync", 7, patched)  # a block, its record and the folder are three
        with pytest.raises(Killed):
            embedded(model, texts, out)
    assert EmbeddingRun(model, texts, out, SMALL).done == 100
