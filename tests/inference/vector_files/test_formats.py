"""Vectors are written in three formats, each with a record of its bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from vectors_on_disk import (
    changed_bytes,
    rows_of,
)

from contrastive_text.data.files.readers import TextStream
from contrastive_text.inference.encoding import Encoding
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.inference.vector_files import (
    EmbeddingRun,
    VectorRecord,
    check_suffix,
    formats,
    write_vectors,
)


@pytest.mark.parametrize("suffix", [".npy", ".tsv", ".parquet"])
@pytest.mark.parametrize("kind", [np.float32, np.int8, np.uint8])
def test_written_vectors_are_read_back(
    tmp_path: Path, suffix: str, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "_ROWS", 3)
    vectors = (np.random.default_rng(0).normal(size=(7, 4)) * 50).astype(kind)
    write_vectors(tmp_path / f"v{suffix}", vectors)
    assert np.array_equal(rows_of(tmp_path / f"v{suffix}"), vectors)  # nine digits hold a float32
    assert [path.name for path in tmp_path.iterdir()] == [f"v{suffix}"]


def test_a_name_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ValueError, match=r"v\.csv: expected a name that ends in \.npy, \.tsv or \.parquet, got '\.csv'"
    ):
        check_suffix(tmp_path / "v.csv")
    with pytest.raises(FileNotFoundError, match=r"expected an existing folder, found none at .*no"):
        check_suffix(tmp_path / "no" / "v.npy")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(ImportError, match="parquet: expected pyarrow, found none"):
        check_suffix(tmp_path / "v.parquet")


@pytest.mark.parametrize("suffix", [".npy", ".tsv", ".parquet"])
def test_a_record_knows_the_bytes_of_its_vectors_and_ranges(
    model: SentenceEncoder, texts: TextStream, tmp_path: Path, suffix: str
) -> None:
    out = tmp_path / f"v{suffix}"
    EmbeddingRun(model, texts, out, Encoding(block_size=100, precision="int8")).finish()
    record = VectorRecord.read(out, "")
    assert record.damage(out) == []
    files = [out, tmp_path / f"v{suffix}.ranges.npy"]
    for file in changed_bytes(files, [path.stat().st_size for path in files], count=20):
        assert [line.partition(": ")[0] for line in record.damage(out)] == [str(file)]
