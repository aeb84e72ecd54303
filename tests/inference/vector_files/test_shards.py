"""Parts of a file of vectors are one file to what reads them, and refused where they don't belong together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tiny
from covering import rest_slow
from vectors_on_disk import MANY, SMALL, attempt, embedded

from contrastive_text.core.random import text_id
from contrastive_text.data.files.readers import TextStream
from contrastive_text.inference.encoding import Encoding
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.inference.vector_files import EmbeddingRun, Shard, TextVectors, VectorIndex

OF = 7
"""Parts of 34 and 35 of the 240 texts, and none ends where a block does."""


def write_parts(model: SentenceEncoder, texts: TextStream, path: Path, of: int = OF, **options: object) -> None:
    for number in range(of, 0, -1):
        EmbeddingRun(model, texts, path, shard=Shard(number, of), **{"encoding": SMALL, **options}).finish()


def test_parts_hold_each_vector_once_and_in_its_place(
    model: SentenceEncoder, texts: TextStream, tmp_path: Path
) -> None:
    embedded(model, texts, tmp_path / "whole.npy")
    write_parts(model, texts, tmp_path / "v.npy")
    whole = VectorIndex.load(model, texts, tmp_path / "whole.npy")
    index = VectorIndex.load(model, texts, tmp_path / "v.npy")
    assert [len(part) for part in index.parts] == [34, 34, 34, 35, 34, 34, 35]
    # Batches of other texts sum in another order: float32 with 16 terms.
    np.testing.assert_allclose(index.vectors, whole.vectors, atol=1e-6)
    queries = [MANY[0], MANY[130], "a bird sings"]
    for hits, same in zip(index.search(queries, top_k=60), whole.search(queries, top_k=60), strict=True):
        assert [hit.score for hit in hits] == pytest.approx([hit.score for hit in same], abs=2e-6)
        # Several texts may be the best: the learned tokenizer has no tokens for most numbers in them.
        best = index.vectors[hits[0].corpus_id], whole.vectors[same[0].corpus_id]
        np.testing.assert_allclose(*best, atol=1e-6)
        assert len({hit.corpus_id for hit in hits}) == 60


def test_a_part_that_is_killed_is_taken_up_again_with_the_same_bytes(
    model: SentenceEncoder, texts: TextStream, tmp_path: Path
) -> None:
    def part(name: str) -> EmbeddingRun:
        return EmbeddingRun(model, texts, tmp_path / name, Encoding(block_size=20), shard=Shard(2, 3))

    part("whole.npy").finish()
    assert attempt(part("v.npy"), "fsync", 4)
    run = part("v.npy")
    assert (run.done, run.count) == (20, 80)
    run.finish()
    names = [tmp_path / f"{name}-00002-of-00003.npy" for name in ("whole", "v")]
    assert names[0].read_bytes() == names[1].read_bytes()


def test_texts_that_change_outside_of_a_part_while_it_is_encoded_give_no_output(
    model: SentenceEncoder, texts: TextStream, tmp_path: Path
) -> None:
    run = EmbeddingRun(model, texts, tmp_path / "v.npy", SMALL, shard=Shard(1, 3))
    tiny.write_texts(texts.path, (*MANY[:-1], "another last one"))
    with pytest.raises(ValueError, match="expected the texts that were there at the start, got others"):
        run.finish()
    assert [path.name for path in tmp_path.iterdir()] == ["texts.txt"]


def test_vectors_of_distinct_texts_are_found_in_any_part(model: SentenceEncoder, tmp_path: Path) -> None:
    texts = TextStream(tiny.write_texts(tmp_path / "twice.txt", tiny.TEXTS * 2), distinct=True)
    EmbeddingRun(model, texts, tmp_path / "whole.npy", SMALL, with_ids=True).finish()
    write_parts(model, texts, tmp_path / "v.npy", of=3, with_ids=True)
    whole, parts = TextVectors(tmp_path / "whole.npy"), TextVectors(tmp_path / "v.npy")
    assert (len(parts), parts.features) == (len(whole), whole.features) == (40, 16)
    np.testing.assert_allclose(parts.of_texts(tiny.TEXTS), whole.of_texts(tiny.TEXTS), atol=1e-6)
    ids = np.array([text_id("another"), text_id(tiny.TEXTS[0]), text_id(tiny.TEXTS[39])])
    assert parts.knows(ids).tolist() == [False, True, True]
    assert parts.identity != whole.identity
    (tmp_path / "v-00002-of-00003.npy.ids.npy").unlink()
    with pytest.raises(ValueError, match=r"v-00002-of-00003\.npy: expected .*\.ids\.npy beside it, got none"):
        TextVectors(tmp_path / "v.npy")


def begin_the_second(model: SentenceEncoder, texts: TextStream, path: Path) -> None:
    Shard(2, 3).path(path).unlink()
    assert attempt(EmbeddingRun(model, texts, path, Encoding(block_size=20), shard=Shard(2, 3)), "fsync", 4)


def add_of_another_division(model: SentenceEncoder, texts: TextStream, path: Path) -> None:
    EmbeddingRun(model, texts, path, SMALL, shard=Shard(1, 2)).finish()


def of_another_model(_model: SentenceEncoder, texts: TextStream, path: Path) -> None:
    with pytest.warns(UserWarning, match="names no pooler"):
        other = SentenceEncoder.from_pretrained(tiny.save_bert(path.parent / "other", seed=1))
    EmbeddingRun(other, texts, path, SMALL, shard=Shard(3, 3)).finish()


def of_other_texts(model: SentenceEncoder, _texts: TextStream, path: Path) -> None:
    other = TextStream(tiny.write_texts(path.parent / "other.txt", MANY[1:]))
    EmbeddingRun(model, other, path, SMALL, shard=Shard(3, 3)).finish()


def of_fewer_features(model: SentenceEncoder, texts: TextStream, path: Path) -> None:
    EmbeddingRun(model, texts, path, Encoding(truncate_dim=5), shard=Shard(2, 3)).finish()


def exchange(_model: SentenceEncoder, _texts: TextStream, path: Path) -> None:
    for end in ("", ".json"):
        one, other = (path.parent / f"v-0000{number}-of-00003.npy{end}" for number in (1, 2))
        between = one.rename(path.parent / "between")
        other.rename(one)
        between.rename(other)


def change_a_byte(_model: SentenceEncoder, _texts: TextStream, path: Path) -> None:
    place = Shard(2, 3).path(path)
    place.write_bytes(place.read_bytes()[:-1] + b"x")


@pytest.mark.parametrize(
    ("happens", "said"),
    rest_slow(
        [
            (begin_the_second, "expected all 3 parts, got 2; run contrastive-text embed with --shard 2/3"),
            (add_of_another_division, "expected the parts of one division, got some of 2 and of 3; delete"),
            (of_another_model, r"v-00003-of-00003\.npy: expected this part .* got another model"),
            (of_other_texts, r"v-00003-of-00003\.npy: expected this part .* got other texts"),
            (
                of_fewer_features,
                r"v-00002-of-00003\.npy: expected this part .* got truncate_dim 5 instead of None",
            ),
            (exchange, r"v-00001-of-00003\.npy: expected this part .* got shard 2/3 instead of 1/3"),
            (
                change_a_byte,
                r"v-00002-of-00003\.npy: expected the vectors as they were written, got changed ones",
            ),
        ],
        quick=3,
    ),
)
def test_parts_that_are_no_whole_are_refused(
    model: SentenceEncoder,
    texts: TextStream,
    tmp_path: Path,
    happens: Callable[[SentenceEncoder, TextStream, Path], None],
    said: str,
) -> None:
    write_parts(model, texts, tmp_path / "v.npy", of=3)
    happens(model, texts, tmp_path / "v.npy")
    with pytest.raises(ValueError, match=said):
        VectorIndex.load(model, texts, tmp_path / "v.npy")


def test_a_part_alone_and_parts_of_other_texts_are_no_index(
    model: SentenceEncoder, texts: TextStream, tmp_path: Path
) -> None:
    write_parts(model, texts, tmp_path / "v.npy", of=2)
    with pytest.raises(ValueError, match=r"v-00001-of-00002\.npy: .* got shard 1/2 instead of None"):
        VectorIndex.load(model, texts, tmp_path / "v-00001-of-00002.npy")
    other = tiny.write_texts(tmp_path / "other.txt", MANY[1:])
    with pytest.raises(ValueError, match="expected an index of this model and these texts, got other texts"):
        VectorIndex.load(model, other, tmp_path / "v.npy")


def test_bytes_in_parts_need_ranges_that_all_parts_share(
    model: SentenceEncoder, texts: TextStream, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="ranges: expected some for int8 with a shard"):
        EmbeddingRun(model, texts, tmp_path / "v.npy", Encoding(precision="int8"), shard=Shard(1, 2))
    encoding = Encoding(precision="int8", ranges=np.float32([[-3] * 16, [3] * 16]))
    assert EmbeddingRun(model, texts, tmp_path / "v.npy", encoding, shard=Shard(1, 2)).finish() == (120, 16)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("0/16", "expected 1/N to N/N, .* got 0/16; add 1 to an index that begins at 0"),
        ("17/16", "expected 1/N to N/N, .* got 17/16$"),
        ("3", "expected K/N, such as 3/16 .* got '3'"),
        ("-1/4", "expected K/N"),
    ],
)
def test_a_number_that_no_shard_has_is_refused(word: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Shard.parse(word)


def test_more_parts_than_texts_are_refused(model: SentenceEncoder, texts: TextStream, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="shard 1/241: expected no more parts than there are texts, got 240"):
        EmbeddingRun(model, texts, tmp_path / "v.npy", shard=Shard(1, 241))
