"""Vectors on disk are found by search and by text id, and refused where they are another's or damaged."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from covering import rest_slow
from vectors_on_disk import MANY, SMALL, attempt, embedded, rows_of, stopped

from contrastive_text.cli.models import read_document_vectors
from contrastive_text.core.random import text_id
from contrastive_text.data.files.readers import TextStream
from contrastive_text.inference import vector_files
from contrastive_text.inference.embedding_run import EmbeddingRun
from contrastive_text.inference.encoding import Encoding
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.inference.vector_files import Shard, TextVectors, check_output_path, write_vectors

ROWS = [(tiny.TEXTS[i], tiny.TEXTS[i + 1], tiny.TEXTS[i % 3]) for i in range(20)]
SEVEN = Encoding(block_size=7)
OF = 7
"""Parts of 34 and 35 of the 240 texts, and none ends where a block does."""


@pytest.fixture
def triples(tmp_path: Path) -> TextStream:
    path = tmp_path / "train.tsv"
    path.write_text("".join("\t".join(row) + "\n" for row in [("anchor", "positive", "negative"), *ROWS]))
    return TextStream(path, distinct=True)


# Formats


@pytest.mark.parametrize("suffix", [".npy", ".tsv", ".parquet"])
@pytest.mark.parametrize("kind", [np.float32, np.int8, np.uint8])
def test_written_vectors_are_read_back(
    tmp_path: Path, suffix: str, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vector_files, "_ROWS", 3)
    vectors = (np.random.default_rng(0).normal(size=(7, 4)) * 50).astype(kind)
    (tmp_path / f"v{suffix}.json").write_text("of older vectors")
    write_vectors(tmp_path / f"v{suffix}", vectors)
    assert np.array_equal(rows_of(tmp_path / f"v{suffix}"), vectors)  # nine digits hold a float32
    assert [path.name for path in tmp_path.iterdir()] == [f"v{suffix}"]


# Vectors of a corpus


def test_the_vectors_of_embed_are_those_of_the_corpus(
    model: SentenceEncoder, texts: TextStream, tmp_path: Path
) -> None:
    EmbeddingRun(model, texts, tmp_path / "c.npy", replace(SMALL, truncate_dim=5)).finish()
    (vectors,) = read_document_vectors(model, TextStream(texts.path), str(tmp_path / "c.npy"))
    # The vector of a text alone differs from that in its block by rounding.
    np.testing.assert_allclose(vectors[33], model.encode(MANY[33], truncate_dim=5), rtol=0, atol=1e-5)
    assert len(vectors) == 240


def test_other_vectors_are_refused(
    model: SentenceEncoder, texts: TextStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=r"expected a name that ends in \.npy, got '\.tsv'"):
        read_document_vectors(model, texts, tmp_path / "c.tsv")
    with pytest.raises(FileNotFoundError, match="expected vectors, got nothing there; write them with"):
        read_document_vectors(model, texts, tmp_path / "c.npy")
    EmbeddingRun(model, texts, tmp_path / "c.npy", Encoding(precision="ubinary")).finish()
    with pytest.raises(ValueError, match="got precision ubinary instead of float32"):
        read_document_vectors(model, texts, tmp_path / "c.npy")
    EmbeddingRun(model, texts, tmp_path / "c.npy", Encoding(normalize_embeddings=True), restart=True).finish()
    assert read_document_vectors(model, texts, tmp_path / "c.npy")
    dotted = copy.copy(model)
    dotted.similarity_fn_name = "dot"
    with pytest.raises(ValueError, match=r"got another model|normalize_embeddings True instead of False"):
        read_document_vectors(dotted, texts, tmp_path / "c.npy")
    (tmp_path / "c.npy.json").write_text('{"made_of": {}, "block": 16777216, "sha256": "0"}')
    with pytest.raises(ValueError, match=r"expected a record with a SHA-256, got the form of .* reads it; "):
        read_document_vectors(model, texts, tmp_path / "c.npy")
    for name, said in (
        ("no/v.npy", "an existing folder, found none at .*no"),
        (f"{'v' * 245}.npy", "name too long"),
    ):
        with pytest.raises(OSError, match=said):
            check_output_path(tmp_path / name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match="parquet: expected pyarrow, found none"):
        check_output_path(tmp_path / "v.parquet")


@pytest.mark.parametrize("name", rest_slow(["v.npy", "v.npy.ids.npy", "w.npy.unfinished"]))
def test_a_changed_byte_is_refused(
    model: SentenceEncoder, texts: TextStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    EmbeddingRun(model, texts, tmp_path / "v.npy", SMALL, with_ids=True).finish()
    stopped(model, texts, tmp_path / "w.npy", monkeypatch)
    content = bytearray((tmp_path / name).read_bytes())
    content[1000] ^= 1
    (tmp_path / name).write_bytes(content)
    reads: list[Callable[[], object]] = [lambda: EmbeddingRun(model, texts, tmp_path / "w.npy", SMALL)]
    if name.startswith("v"):
        reads = [
            lambda: read_document_vectors(model, texts, tmp_path / "v.npy"),
            lambda: TextVectors(tmp_path / "v.npy"),
        ]
    for read in reads:
        with pytest.raises(
            ValueError, match=r"expected (unchanged vectors|the vectors of its record), got change"
        ):
            read()


# Text ids


def test_each_text_of_each_column_has_the_vector_that_encode_gives(
    model: SentenceEncoder, triples: TextStream, tmp_path: Path
) -> None:
    EmbeddingRun(model, triples, tmp_path / "v.npy", SEVEN, with_ids=True).finish()
    found = TextVectors(tmp_path / "v.npy")
    assert (len(found), found.features) == (21, 16)
    texts = [text for row in ROWS for text in row]
    ids = np.array(list(map(text_id, texts)))
    assert np.allclose(found.vectors_of_ids(ids), model.encode(texts), atol=1e-6)
    unknown = np.array([text_id("another"), ids.min() - 1, ids.max() + 1, ids[0]])
    assert found.has_vectors(unknown).tolist() == [False, False, False, True]
    assert pickle.loads(pickle.dumps(found)).identity == found.identity


@pytest.mark.slow
def test_a_run_that_was_broken_off_ends_with_the_same_table(
    model: SentenceEncoder, triples: TextStream, tmp_path: Path
) -> None:
    EmbeddingRun(model, triples, tmp_path / "whole.npy", SEVEN, with_ids=True).finish()
    killed, number = 0, 5  # then at each call of the system after it, the table's too
    while attempt(EmbeddingRun(model, triples, tmp_path / "broken.npy", SEVEN, with_ids=True), "any", number):
        killed, number = killed + 1, 5 + killed
        assert (tmp_path / "broken.npy").exists() <= (tmp_path / "broken.npy.ids.npy").exists()
    assert killed > 3
    for end in (".npy", ".npy.ids.npy"):
        assert (tmp_path / f"whole{end}").read_bytes() == (tmp_path / f"broken{end}").read_bytes()
    EmbeddingRun(model, TextStream(triples.path), tmp_path / "whole.npy", SEVEN).finish()
    assert not (tmp_path / "whole.npy.ids.npy").exists()


def test_what_is_no_such_file_is_refused(model: SentenceEncoder, triples: TextStream, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"expected vectors, got nothing there; .*--distinct"):
        TextVectors(tmp_path / "v.npy")
    write_vectors(tmp_path / "v.npy", np.ones((2, 3)))
    with pytest.raises(
        ValueError, match=r"expected the record v.npy.json next to it, got no such file; .*--distinct"
    ):
        TextVectors(tmp_path / "v.npy")
    EmbeddingRun(model, triples, tmp_path / "v.npy", SEVEN, with_ids=True).finish()
    EmbeddingRun(
        model, triples, tmp_path / "v.npy", Encoding(precision="ubinary"), restart=True, with_ids=True
    ).finish()
    with pytest.raises(ValueError, match="expected vectors of floating-point numbers, got uint8"):
        TextVectors(tmp_path / "v.npy")


# Parts


def write_parts(model: SentenceEncoder, texts: TextStream, path: Path, of: int = OF, **options: object) -> None:
    for number in range(of, 0, -1):
        EmbeddingRun(model, texts, path, shard=Shard(number, of), **{"encoding": SMALL, **options}).finish()


def test_parts_hold_each_vector_once_and_in_its_place(
    model: SentenceEncoder, texts: TextStream, tmp_path: Path
) -> None:
    embedded(model, texts, tmp_path / "whole.npy")
    write_parts(model, texts, tmp_path / "v.npy")
    (whole,) = read_document_vectors(model, texts, tmp_path / "whole.npy")
    parts = read_document_vectors(model, texts, tmp_path / "v.npy")
    assert [len(part) for part in parts] == [34, 34, 34, 35, 34, 34, 35]
    # Batches of other texts sum in another order: float32 with 16 terms.
    np.testing.assert_allclose(np.concatenate(parts), whole, atol=1e-6)


def test_vectors_of_distinct_texts_are_found_in_any_part(model: SentenceEncoder, tmp_path: Path) -> None:
    texts = TextStream(tiny.write_texts(tmp_path / "twice.txt", tiny.TEXTS * 2), distinct=True)
    EmbeddingRun(model, texts, tmp_path / "whole.npy", SMALL, with_ids=True).finish()
    write_parts(model, texts, tmp_path / "v.npy", of=3, with_ids=True)
    whole, parts = TextVectors(tmp_path / "whole.npy"), TextVectors(tmp_path / "v.npy")
    assert (len(parts), parts.features) == (len(whole), whole.features) == (40, 16)
    np.testing.assert_allclose(parts.vectors_of_texts(tiny.TEXTS), whole.vectors_of_texts(tiny.TEXTS), atol=1e-6)
    ids = np.array([text_id("another"), text_id(tiny.TEXTS[0]), text_id(tiny.TEXTS[39])])
    assert parts.has_vectors(ids).tolist() == [False, True, True]
    assert parts.identity != whole.identity
    (tmp_path / "v-00002-of-00003.npy.ids.npy").unlink()
    with pytest.raises(ValueError, match=r"v-00002-of-00003\.npy: expected unchanged .*\.ids\.npy: no file"):
        TextVectors(tmp_path / "v.npy")


def change_a_byte(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + b"x")


def exchange(path: Path) -> None:
    for end in ("", ".json"):
        one, other = (path.with_name(f"v-0000{number}-of-00003.npy{end}") for number in (1, 2))
        between = one.rename(path.parent / "between")
        other.rename(one)
        between.rename(other)


@pytest.mark.parametrize(
    ("change", "said"),
    rest_slow(
        [
            (Path.unlink, "expected all 3 parts, got 2; run contrastive-text embed with --shard 2/3"),
            (exchange, r"v-00001-of-00003\.npy: expected this part .* got shard 2/3 instead of 1/3"),
            (change_a_byte, r"v-00002-of-00003\.npy: expected unchanged vectors, got changes"),
            ({"shard": Shard(1, 2)}, "expected shards of one number of parts, got shards of 2 and of 3; delete"),
            ({"texts": MANY[1:]}, r"v-00002-of-00003\.npy: expected this part .* got other texts"),
            (
                {"encoding": replace(SMALL, truncate_dim=5)},
                r"v-00002-of-00003\.npy: expected this part .* got truncate_dim 5 instead of None",
            ),
        ],
        quick=2,
    ),
)
def test_parts_that_are_no_whole_are_refused(
    model: SentenceEncoder, texts: TextStream, tmp_path: Path, change: Any, said: str
) -> None:
    write_parts(model, texts, tmp_path / "v.npy", of=3)
    with pytest.raises(ValueError, match=r"v-00001-of-00003\.npy: .* got shard 1/3 instead of None"):
        read_document_vectors(model, texts, tmp_path / "v-00001-of-00003.npy")
    if callable(change):
        change(tmp_path / "v-00002-of-00003.npy")
    else:
        options = {"shard": Shard(2, 3), "encoding": SMALL, **change}
        others = TextStream(tiny.write_texts(tmp_path / "others.txt", options.pop("texts", MANY)))
        EmbeddingRun(model, others, tmp_path / "v.npy", **options).finish()
    with pytest.raises(ValueError, match=said):
        read_document_vectors(model, texts, tmp_path / "v.npy")
