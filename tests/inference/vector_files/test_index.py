"""An index finds what its model finds, and is refused where it is another's or changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny
from vectors_on_disk import (
    DAMAGES,
    MANY,
    SMALL,
    changed_bytes,
)

from contrastive_text.data.files.readers import TextStream
from contrastive_text.inference.encoding import Encoding
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.inference.vector_files import (
    VectorIndex,
    VectorRecord,
    write_vectors,
)


@pytest.fixture
def index(model: SentenceEncoder, texts: TextStream, tmp_path: Path) -> VectorIndex:
    return VectorIndex.build(model, texts.path, tmp_path / "corpus.npy", SMALL)


def test_an_index_finds_what_the_model_finds_among_the_texts(
    model: SentenceEncoder, texts: TextStream, index: VectorIndex, tmp_path: Path
) -> None:
    queries = ["a bird sings", tiny.TEXTS[7]]
    for each in (index, VectorIndex.load(model, str(texts.path), str(tmp_path / "corpus.npy"))):
        assert len(each) == 240
        found = each.search(queries, top_k=4)
        expected = model.search(queries, np.array(index.vectors), top_k=4)
        assert [[hit.corpus_id for hit in hits] for hits in found] == [
            [h.corpus_id for h in hits] for hits in expected
        ]
        for hits, same in zip(found, expected, strict=True):
            # Both are products of float32 with 16 terms.
            assert [hit.score for hit in hits] == pytest.approx([hit.score for hit in same], abs=2e-6)
    assert each.search(queries[0], top_k=4)[0][0].corpus_id == found[0][0].corpus_id


def test_an_index_of_fewer_features_is_asked_with_as_many(
    model: SentenceEncoder, texts: TextStream, tmp_path: Path
) -> None:
    index = VectorIndex.build(model, texts, tmp_path / "c.npy", Encoding(block_size=240, truncate_dim=5))
    # The vector of a text alone differs from that in its block by rounding.
    assert index.search(MANY[33], top_k=1)[0][0].score == pytest.approx(1, abs=1e-5)


def refusals(folder: Path) -> Iterator[tuple[type[Exception], str]]:
    """Makes an index useless in several ways, one after the other."""
    place, record = folder / "corpus.npy", folder / "corpus.npy.json"
    made = VectorRecord.read(place, "")
    for name, value, said in (
        ("model", "x", "another model"),
        ("texts", "y", "other texts"),
        ("precision", "int8", "precision int8 instead of float32"),
        ("prompt", "query: ", "prompt 'query: ' instead of None; .* with --prompt_name document"),
    ):
        replace(made, made_of={**made.made_of, name: value}).write(place)
        yield ValueError, f"expected an index of this model and these texts, got {said}; .*delete"
    record.unlink()
    yield ValueError, r"expected corpus\.npy\.json beside it, which says of what it was made, got none; delete"
    place.unlink()
    yield FileNotFoundError, "expected an index, got nothing there; build it first"


def test_an_index_of_something_else_is_refused(
    model: SentenceEncoder, texts: TextStream, index: VectorIndex, tmp_path: Path
) -> None:
    for kind, said in refusals(tmp_path):
        with pytest.raises(kind, match=said):
            VectorIndex.load(model, texts, tmp_path / "corpus.npy")
    del index


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_index_is_refused(
    model: SentenceEncoder,
    texts: TextStream,
    index: VectorIndex,
    tmp_path: Path,
    damage: Callable[[Path], None],
) -> None:
    del index
    damage(tmp_path / "corpus.npy")
    with pytest.raises(ValueError, match=r"expected the vectors as they were written, got .*; delete it"):
        VectorIndex.load(model, texts, tmp_path / "corpus.npy")


def test_every_changed_byte_of_an_index_and_its_record_is_found(
    model: SentenceEncoder, texts: TextStream, index: VectorIndex, tmp_path: Path
) -> None:
    del index
    files = [tmp_path / "corpus.npy", tmp_path / "corpus.npy.json"]
    for _ in changed_bytes(files, [path.stat().st_size for path in files]):
        with pytest.raises(ValueError, match="; delete it"):
            VectorIndex.load(model, texts, tmp_path / "corpus.npy")
    assert len(VectorIndex.load(model, texts, tmp_path / "corpus.npy")) == 240


def test_vectors_that_no_query_can_be_compared_with_are_no_index(model: SentenceEncoder) -> None:
    for vectors in (np.zeros((3, 17), np.float32), np.zeros((3, 16)), np.zeros(16, np.float32)):
        with pytest.raises(ValueError, match="VectorIndex: expected float32 of 1 to 16 features, got"):
            VectorIndex(model, vectors)


def test_other_vectors_over_an_index_take_its_record_away(index: VectorIndex, tmp_path: Path) -> None:
    write_vectors(tmp_path / "corpus.npy", np.array(index.vectors))
    assert not (tmp_path / "corpus.npy.json").exists()


def test_what_can_be_no_index_is_refused(model: SentenceEncoder, texts: TextStream, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected a name that ends in \.npy for an index, got '\.tsv'"):
        VectorIndex.build(model, texts, tmp_path / "c.tsv")
    with pytest.raises(ValueError, match="expected float32 for an index, got int8"):
        VectorIndex.build(model, texts, tmp_path / "c.npy", Encoding(precision="int8"))
