"""Batches of a table get the vectors that ``encode`` gives, in arrays and in Arrow's tables."""

from __future__ import annotations

import numpy as np
import pytest
import tiny

from contrastive_text.inference import BatchEncoder, Encoding, SentenceEncoder


def arrays(count: int = 5) -> dict[str, np.ndarray]:
    return {"id": np.arange(count), "text": np.array(tiny.TEXTS[:count], dtype=object)}


def test_each_row_of_a_batch_keeps_its_values_and_gets_its_vector(folder: str) -> None:
    encode = BatchEncoder(folder)
    expected = SentenceEncoder.from_pretrained(folder).encode(tiny.TEXTS[:5])
    batch = arrays()
    found = encode(batch)
    assert list(batch) == ["id", "text"]
    assert found["id"].tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_allclose(found["embedding"], expected, atol=1e-6)
    blank = {"text": np.array(["a bird", "", " "], dtype=object)}
    assert encode(blank)["embedding"].shape == (3, 16)


def test_a_table_of_arrow_gets_lists_of_fixed_size_and_an_empty_one_the_same_columns(folder: str) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="needs the extra parquet")
    encode = BatchEncoder(folder, output="vector", encoding=Encoding(truncate_dim=5, normalize_embeddings=True))
    table = pyarrow.table({"id": range(5), "text": tiny.TEXTS[:5]})
    found = encode(table)
    assert table.column_names == ["id", "text"]
    assert found.schema.field("vector").type == pyarrow.list_(pyarrow.float32(), 5)
    vectors = np.array(found["vector"].to_pylist())
    np.testing.assert_allclose(vectors, encode(arrays())["vector"], atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert encode(table.slice(0, 0)).schema == found.schema
    assert len(encode(table.slice(0, 0))) == 0
