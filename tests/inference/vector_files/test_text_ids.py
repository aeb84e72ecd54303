"""Vectors of distinct texts are found by the ids that the rows of a batch carry."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import tiny
from vectors_on_disk import attempt

from contrastive_text.core.random import text_id
from contrastive_text.data.files.readers import TextStream
from contrastive_text.inference.encoding import Encoding
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.inference.vector_files import EmbeddingRun, TextVectors, write_vectors

ROWS = [(tiny.TEXTS[i], tiny.TEXTS[i + 1], tiny.TEXTS[i % 3]) for i in range(20)]
SMALL = Encoding(block_size=7)


@pytest.fixture
def triples(tmp_path: Path) -> TextStream:
    path = tmp_path / "train.tsv"
    path.write_text("".join("\t".join(row) + "\n" for row in [("anchor", "positive", "negative"), *ROWS]))
    return TextStream(path, distinct=True)


def test_each_text_of_each_column_has_the_vector_that_encode_gives(
    model: SentenceEncoder, triples: TextStream, tmp_path: Path
) -> None:
    EmbeddingRun(model, triples, tmp_path / "v.npy", SMALL, with_ids=True).finish()
    found = TextVectors(tmp_path / "v.npy")
    assert (len(found), found.features) == (21, 16)
    texts = [text for row in ROWS for text in row]
    ids = np.array(list(map(text_id, texts)))
    assert np.allclose(found.of(ids), model.encode(texts), atol=1e-6)
    unknown = np.array([text_id("another"), ids.min() - 1, ids.max() + 1, ids[0]])
    assert found.knows(unknown).tolist() == [False, False, False, True]
    assert pickle.loads(pickle.dumps(found)).identity == found.identity


def test_a_run_that_was_broken_off_ends_with_the_same_table(
    model: SentenceEncoder, triples: TextStream, tmp_path: Path
) -> None:
    EmbeddingRun(model, triples, tmp_path / "whole.npy", SMALL, with_ids=True).finish()
    killed, number = 0, 5  # then at each call of the system after it, the table's too
    while attempt(EmbeddingRun(model, triples, tmp_path / "broken.npy", SMALL, with_ids=True), "any", number):
        killed, number = killed + 1, 5 + killed
        assert (tmp_path / "broken.npy").exists() <= (tmp_path / "broken.npy.ids.npy").exists()
    assert killed > 3
    for end in (".npy", ".npy.ids.npy"):
        assert (tmp_path / f"whole{end}").read_bytes() == (tmp_path / f"broken{end}").read_bytes()
    EmbeddingRun(model, TextStream(triples.path), tmp_path / "whole.npy", SMALL).finish()
    assert not (tmp_path / "whole.npy.ids.npy").exists()


def test_what_is_no_such_file_is_refused(model: SentenceEncoder, triples: TextStream, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"expected vectors of texts, got nothing there; .*--distinct"):
        TextVectors(tmp_path / "v.npy")
    write_vectors(tmp_path / "v.npy", np.ones((2, 3)))
    with pytest.raises(ValueError, match=r"expected v.npy.json beside it, .* got none; .*--distinct"):
        TextVectors(tmp_path / "v.npy")
    EmbeddingRun(model, triples, tmp_path / "v.npy", SMALL, with_ids=True).finish()
    table = tmp_path / "v.npy.ids.npy"
    table.write_bytes(table.read_bytes()[:-1] + b"x")
    with pytest.raises(ValueError, match=r"got changed ones \(.*v.npy.ids.npy: changed bytes"):
        TextVectors(tmp_path / "v.npy")
    EmbeddingRun(
        model, triples, tmp_path / "v.npy", Encoding(precision="ubinary"), restart=True, with_ids=True
    ).finish()
    with pytest.raises(ValueError, match="expected vectors of floating-point numbers, got uint8"):
        TextVectors(tmp_path / "v.npy")
