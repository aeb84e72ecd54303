"""Files of vectors: whole or not at all, the same bytes after a kill, refused for another model."""

from __future__ import annotations

import errno
import io
import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from covering import rest_slow

from contrastive_text.data.files.streaming import TextStream
from contrastive_text.inference.encoding import Encoding
from contrastive_text.inference.quantization import quantize, value_ranges
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.inference.vector_files import (
    EmbeddingRun,
    UnfinishedVectors,
    VectorIndex,
    VectorRecord,
    check_suffix,
    formats,
    unfinished,
    write_vectors,
)

MANY = tuple(f"{text} and {i}" for i in range(6) for text in tiny.TEXTS)
SMALL = Encoding(block_size=50, batch_size=16)
"""Five blocks of the 240 texts, the last one shorter."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> SentenceEncoder:
    folder = tiny.save_bert(tmp_path_factory.mktemp("bert"))
    with pytest.warns(UserWarning, match="names no pooler"):
        return SentenceEncoder.from_pretrained(folder)


@pytest.fixture
def texts(tmp_path: Path) -> TextStream:
    return TextStream(tiny.write_texts(tmp_path / "texts.txt", MANY))


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


def test_appended_blocks_are_the_bytes_of_one_array(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(10, 3)).astype(np.float32)
    file = io.BytesIO()
    np.save(file, vectors)
    for size in (1, 4, 10):
        growing = UnfinishedVectors(tmp_path / "v.npy", {}, count=10)
        for start in range(0, 10, size):
            growing.append(vectors[start : start + size], truncated=0)
        assert growing.finish() == (10, 3)
        assert (tmp_path / "v.npy").read_bytes() == file.getvalue()


@pytest.mark.parametrize("encoding", [
    SMALL,
    Encoding(block_size=50, normalize_embeddings=True, truncate_dim=5),
    Encoding(block_size=50, precision="ubinary"),
    Encoding(block_size=50, precision="binary", truncate_dim=12),
])  # fmt: skip
def test_a_file_holds_what_encode_gives_block_by_block(
    model: SentenceEncoder, texts: TextStream, tmp_path: Path, encoding: Encoding
) -> None:
    embedded(model, texts, tmp_path / "v.npy", encoding)
    expected = [
        model.encode(
            MANY[start : start + 50],
            batch_size=encoding.batch_size,
            normalize_embeddings=encoding.normalize_embeddings,
            truncate_dim=encoding.truncate_dim,
            precision=encoding.precision,
        )
        for start in range(0, len(MANY), 50)
    ]
    assert np.array_equal(np.load(tmp_path / "v.npy"), np.concatenate(expected))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["texts.txt", "v.npy", "v.npy.json"]


@pytest.mark.parametrize("given", [True, False], ids=["ranges", "calibrated"])
def test_a_byte_has_the_ranges_that_lie_beside_it(
    model: SentenceEncoder, texts: TextStream, tmp_path: Path, given: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("contrastive_text.inference.vector_files.embedding.CALIBRATION", 120)
    vectors = np.concatenate([model.encode(MANY[at : at + 50], batch_size=16) for at in range(0, 240, 50)])
    ranges = np.array([[-3.0] * 16, [3.0] * 16], np.float32) if given else None
    encoding = Encoding(block_size=50, batch_size=16, precision="int8", ranges=ranges)
    run = EmbeddingRun(model, texts, tmp_path / "v.npy", encoding)
    run.finish()
    used = np.load(run.ranges_path)
    expected = ranges if given else value_ranges(model.encode(MANY[:120], batch_size=16)).numpy()
    assert np.array_equal(used, expected)
    assert np.array_equal(np.load(tmp_path / "v.npy"), quantize(torch.as_tensor(vectors), "int8", used).numpy())


def test_ranges_without_a_byte_are_refused(model: SentenceEncoder, texts: TextStream, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="ranges: expected int8 or uint8 for them, got float32"):
        EmbeddingRun(model, texts, tmp_path / "v.npy", Encoding(ranges=np.zeros((2, 16))))


KILLS = {"fsync": (1, 2, 3, 13, 17), "replace": (1, 2, 6, 7), "unlink": (1, 2, 3)}
"""Calls at which a run of five blocks dies: of the first blocks, of their records, and of all that ends it."""


@pytest.mark.parametrize("suffix", rest_slow([".npy", ".tsv"]))
def test_whenever_it_is_killed_the_output_is_whole_or_not_there_and_the_next_run_gives_the_same_bytes(
    model: SentenceEncoder, texts: TextStream, tmp_path: Path, suffix: str
) -> None:
    expected = embedded(model, texts, tmp_path / f"expected{suffix}")
    died, went_on = 0, 0
    for step, number in [(step, number) for step, numbers in KILLS.items() for number in numbers]:
        folder = tmp_path / f"{step}{number}"
        folder.mkdir()
        out = folder / f"v{suffix}"
        run = EmbeddingRun(model, texts, out, SMALL)
        with pytest.MonkeyPatch.context() as patched:
            killed_at(step, number, patched)
            try:
                run.finish()
            except Killed:
                died += 1
        assert not out.exists() or out.read_bytes() == expected
        again = EmbeddingRun(model, texts, out, SMALL)
        went_on += again.done > 0
        again.finish()
        assert out.read_bytes() == expected
        assert sorted(path.name for path in folder.iterdir()) == [out.name, f"{out.name}.json"]
    assert died == 12
    assert went_on >= 5


def test_an_older_output_stays_until_the_new_one_is_whole(
    model: SentenceEncoder, texts: TextStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "v.npy"
    out.write_bytes(b"older")
    killed_at("fsync", 5, monkeypatch)
    with pytest.raises(Killed):
        embedded(model, texts, out)
    assert out.read_bytes() == b"older"


def beside(out: Path) -> list[bytes]:
    """Vectors, record and ranges, as far as they are there."""
    paths = (out, out.with_name(f"{out.name}.json"), out.with_name(f"{out.name}.ranges.npy"))
    return [path.read_bytes() for path in paths if path.exists()]


def attempt(run: EmbeddingRun, step: str, number: int) -> bool:
    """Whether a run died at a call."""
    with pytest.MonkeyPatch.context() as patched:
        killed_at(step, number, patched)
        try:
            run.finish()
        except Killed:
            return True
    return False


@pytest.mark.parametrize("suffix", rest_slow([".npy", ".tsv"]))
def test_no_two_kills_make_vectors_of_nothing_or_part_vectors_from_their_record(
    model: SentenceEncoder, tmp_path: Path, suffix: str
) -> None:
    texts = TextStream(tiny.write_texts(tmp_path / "few.txt", MANY[:6]))
    older_ranges, ranges = (np.float32([[-end] * 16, [end] * 16]) for end in (1, 3))
    older_run = Encoding(block_size=3, normalize_embeddings=True, precision="int8", ranges=older_ranges)
    new_run = Encoding(block_size=3, precision="int8", ranges=ranges)
    EmbeddingRun(model, texts, tmp_path / f"v{suffix}", older_run).finish()
    older = beside(tmp_path / f"v{suffix}")
    kept = [path for path in tmp_path.iterdir() if path.name.startswith("v.")]
    (tmp_path / "new").mkdir()
    EmbeddingRun(model, texts, tmp_path / "new" / f"v{suffix}", new_run).finish()
    new = beside(tmp_path / "new" / f"v{suffix}")
    assert len(older) == len(new) == 3
    number, died = 0, True
    while died:
        number += 1
        out = tmp_path / str(number) / f"v{suffix}"
        out.parent.mkdir()
        for path in kept:
            shutil.copy(path, out.parent)
        died = attempt(EmbeddingRun(model, texts, out, new_run), "any", number)
        assert not out.exists() or beside(out) in (older, new)
        again = EmbeddingRun(model, texts, out, new_run)
        assert attempt(again, "fsync", 1 if again.done else 3)  # a first block comes behind the ranges
        assert not out.exists() or beside(out) in (older, new)
        EmbeddingRun(model, texts, out, new_run).finish()
        assert beside(out) == new
        assert len(list(out.parent.iterdir())) == 3
    assert number == {".npy": 25, ".tsv": 28}[suffix]  # one more than there are calls


def test_a_record_without_vectors_counts_for_nothing(
    model: SentenceEncoder, texts: TextStream, tmp_path: Path
) -> None:
    expected = embedded(model, texts, tmp_path / "expected.npy")
    out, left = tmp_path / "v.npy", tmp_path / "v.npy.unfinished.json"
    shutil.copy(tmp_path / "expected.npy.json", left)  # as where the vectors were deleted by hand
    assert attempt(EmbeddingRun(model, texts, out, SMALL), "fsync", 1)
    assert EmbeddingRun(model, texts, out, SMALL).done == 0
    assert embedded(model, texts, out) == expected


def test_one_run_at_a_time_writes_a_file(model: SentenceEncoder, texts: TextStream, tmp_path: Path) -> None:
    out = tmp_path / "v.npy"
    run = EmbeddingRun(model, texts, out, SMALL)
    for restart in (False, True):
        with pytest.raises(ValueError, match=r"v\.npy: .* got another process that is writing it; let"):
            EmbeddingRun(model, texts, out, SMALL, restart=restart)
    EmbeddingRun(model, texts, tmp_path / "w.npy", SMALL).finish()
    run.finish()
    assert embedded(model, texts, out) == (tmp_path / "w.npy").read_bytes()
    assert not list(tmp_path.glob("*.lock"))


def test_a_name_too_long_is_told(model: SentenceEncoder, texts: TextStream, tmp_path: Path) -> None:
    with pytest.raises(
        OSError, match="expected a name that can be written to, got File name too long; name another"
    ):
        EmbeddingRun(model, texts, tmp_path / f"{'v' * 245}.npy", SMALL)


def test_ranges_stay_with_their_vectors(model: SentenceEncoder, texts: TextStream, tmp_path: Path) -> None:
    out, byte = tmp_path / "v.npy", Encoding(block_size=50, precision="int8")
    EmbeddingRun(model, texts, out, byte).finish()
    before = beside(out)
    with pytest.raises(ValueError, match=r"expected smallest and largest value of 16 features, \(2, 16\)"):
        EmbeddingRun(model, texts, out, replace(byte, ranges=np.zeros((2, 15))))
    wide = replace(byte, ranges=np.float32([[-9] * 16, [9] * 16]))
    assert attempt(EmbeddingRun(model, texts, out, wide), "fsync", 5)
    assert beside(out) == before
    EmbeddingRun(model, texts, out, SMALL, restart=True).finish()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["texts.txt", "v.npy", "v.npy.json"]


def test_ranges_are_those_of_the_features_that_are_kept(
    model: SentenceEncoder, texts: TextStream, tmp_path: Path
) -> None:
    ranges = np.float32([[-3] * 5, [3] * 5])
    encoding = Encoding(block_size=240, precision="int8", truncate_dim=5, ranges=ranges)
    run = EmbeddingRun(model, texts, tmp_path / "v.npy", encoding)
    assert run.finish() == (240, 5)


def stopped(model: SentenceEncoder, texts: TextStream, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves two blocks of an unfinished output."""
    with monkeypatch.context() as patched:
        killed_at("fsync", 7, patched)  # a block, its record and the folder are three
        with pytest.raises(Killed):
            embedded(model, texts, out)
    assert EmbeddingRun(model, texts, out, SMALL).done == 100


@pytest.mark.parametrize(
    ("encoding", "said"),
    [
        (Encoding(block_size=49, batch_size=16), "block_size 50 instead of 49"),
        (
            Encoding(block_size=50, batch_size=17, truncate_dim=3),
            "batch_size 16 instead of 17, truncate_dim None",
        ),
        (
            Encoding(block_size=50, batch_size=16, normalize_embeddings=True),
            "normalize_embeddings False instead of",
        ),
        (Encoding(block_size=50, batch_size=16, precision="ubinary"), "precision float32 instead of ubinary"),
    ],
)
def test_other_options_are_refused_and_restart_begins_anew(
    model: SentenceEncoder,
    texts: TextStream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    encoding: Encoding,
    said: str,
) -> None:
    out = tmp_path / "v.npy"
    stopped(model, texts, out, monkeypatch)
    with pytest.raises(ValueError, match=f"v.npy.unfinished: expected vectors of these .*{said}.*--restart"):
        EmbeddingRun(model, texts, out, encoding)
    run = EmbeddingRun(model, texts, out, encoding, restart=True)
    assert run.done == 0
    run.finish()
    assert out.read_bytes() == embedded(model, texts, tmp_path / "w.npy", encoding)


def test_another_model_and_changed_texts_are_refused(
    model: SentenceEncoder, texts: TextStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "v.npy"
    stopped(model, texts, out, monkeypatch)
    with pytest.warns(UserWarning, match="names no pooler"):
        other = SentenceEncoder.from_pretrained(tiny.save_bert(tmp_path / "other", seed=1))
    with pytest.raises(ValueError, match=f"got model {model.identity} instead of {other.identity}; give"):
        EmbeddingRun(other, texts, out, SMALL)
    tiny.write_texts(texts.path, (*MANY[:-1], "another last one"))
    with pytest.raises(ValueError, match=r"got texts [0-9a-f]{32} instead of [0-9a-f]{32}; give"):
        EmbeddingRun(model, TextStream(texts.path), out, SMALL)


@pytest.mark.parametrize("changed", [MANY[:-1], (*MANY, "one more"), (*MANY[:-1], "another last one")])
def test_texts_that_change_while_they_are_encoded_give_no_output(
    model: SentenceEncoder, texts: TextStream, tmp_path: Path, changed: tuple[str, ...]
) -> None:
    run = EmbeddingRun(model, texts, tmp_path / "v.npy", SMALL)
    tiny.write_texts(texts.path, changed)
    with pytest.raises(ValueError, match="expected the texts that were there at the start, got others"):
        run.finish()
    assert [path.name for path in tmp_path.iterdir()] == ["texts.txt"]


def zero_half(path: Path) -> None:
    content = path.read_bytes()
    half = len(content) // 2
    path.write_bytes(content[:half] + bytes(len(content) - half))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])


def of_few_features(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.ones((240, 7), np.float32))


def of_others(path: Path) -> None:
    """Replaces all vectors by others of their shape."""
    with path.open("rb+") as file:
        np.lib.format.read_magic(file)
        np.lib.format.read_array_header_1_0(file)
        rest = np.fromfile(file, np.float32)
        file.seek(-rest.nbytes, os.SEEK_END)
        file.write((rest * 2).tobytes())


DAMAGES = (zero_half, cut, of_few_features, of_others)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_unfinished_file_is_refused(
    model: SentenceEncoder,
    texts: TextStream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[Path], None],
) -> None:
    stopped(model, texts, tmp_path / "v.npy", monkeypatch)
    kept = tmp_path / "v.npy.unfinished"
    with kept.open("rb+") as file:
        file.truncate(128 + 100 * 16 * 4)  # nobody vouches for what is behind
    damage(kept)
    with pytest.raises(ValueError, match=r"expected 100 vectors as they were written, got .*begin anew"):
        EmbeddingRun(model, texts, tmp_path / "v.npy", SMALL)


def test_what_lies_behind_the_last_saved_block_of_an_unfinished_file_does_not_count(
    model: SentenceEncoder, texts: TextStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped(model, texts, tmp_path / "v.npy", monkeypatch)
    with (tmp_path / "v.npy.unfinished").open("rb+") as file:
        file.seek(128 + 100 * 16 * 4)
        file.write(b"half a block")
    assert embedded(model, texts, tmp_path / "v.npy") == embedded(model, texts, tmp_path / "w.npy")


def test_an_unfinished_file_that_is_a_link_is_not_written_through(
    model: SentenceEncoder, texts: TextStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped(model, texts, tmp_path / "v.npy", monkeypatch)
    kept = tmp_path / "v.npy.unfinished"
    kept.rename(tmp_path / "theirs")
    kept.symlink_to(tmp_path / "theirs")
    before = (tmp_path / "theirs").read_bytes()
    with pytest.raises(ValueError, match="unfinished: a link"):
        EmbeddingRun(model, texts, tmp_path / "v.npy", SMALL)
    EmbeddingRun(model, texts, tmp_path / "v.npy", SMALL, restart=True).finish()
    assert (tmp_path / "theirs").read_bytes() == before


def changed_bytes(files: Sequence[Path], sizes: Sequence[int], count: int = 100) -> Iterator[Path]:
    """Changes one byte drawn from all of the files at a time, and puts it back."""
    draw = random.Random(7)
    for _ in range(count):
        (at,) = draw.choices(range(len(files)), weights=sizes)
        whole = files[at].read_bytes()
        changed = bytearray(whole)
        changed[draw.randrange(sizes[at])] ^= draw.randrange(1, 256)
        files[at].write_bytes(changed)
        yield files[at]
        files[at].write_bytes(whole)


def test_every_changed_byte_of_an_unfinished_output_is_found(
    model: SentenceEncoder, texts: TextStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, byte = tmp_path / "v.npy", Encoding(block_size=50, batch_size=16, precision="int8")
    with monkeypatch.context() as patched:
        killed_at("fsync", 9, patched)  # the ranges are two more
        with pytest.raises(Killed):
            embedded(model, texts, out, byte)
    run = EmbeddingRun(model, texts, out, byte)
    assert run.done == 100
    run._vectors.close()
    files = [tmp_path / f"v.npy.unfinished{suffix}" for suffix in ("", ".json", ".ranges.npy")]
    sizes = [128 + 100 * 16, *(path.stat().st_size for path in files[1:])]
    for file in changed_bytes(files, sizes):
        with pytest.raises(ValueError, match=f"{file.name}: .*; begin anew"):
            EmbeddingRun(model, texts, out, byte)
    assert EmbeddingRun(model, texts, out, byte).done == 100


def test_a_disk_that_would_be_full_is_told_of_before_much_is_encoded(
    model: SentenceEncoder, texts: TextStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unfinished.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 1000))
    with pytest.raises(OSError, match=r"expected room for 240 vectors, got 0\.0 GB free of 0\.0 GB; make room"):
        embedded(model, texts, tmp_path / "v.npy")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["texts.txt"]


def test_a_full_disk_keeps_the_blocks_before_and_the_next_run_goes_on(
    model: SentenceEncoder, texts: TextStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = iter([*[None] * 6, OSError(28, "No space left on device")])

    def fails_at_last(_: int) -> None:
        if (error := next(written)) is not None:
            raise error

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fails_at_last)
        with pytest.raises(OSError, match=r"No space left on device; make room .* goes on behind the first 100"):
            embedded(model, texts, tmp_path / "v.npy")
    assert embedded(model, texts, tmp_path / "v.npy") == embedded(model, texts, tmp_path / "w.npy")


def test_another_failure_of_the_disk_is_not_called_a_lack_of_room(
    model: SentenceEncoder, texts: TextStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    run = EmbeddingRun(model, texts, tmp_path / "v.npy", SMALL)
    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(
        OSError, match=r"a disk that takes 240 .* got Input/output error; put .* behind the first 0$"
    ):
        run.finish()
    assert run.done == 0  # the block is there, but no record says so


def test_cut_texts_are_counted_over_all_runs(
    model: SentenceEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = " ".join(tiny.TEXTS[:6])
    texts = TextStream(
        tiny.write_texts(tmp_path / "t.txt", tuple(long if i % 50 == 0 else t for i, t in enumerate(MANY)))
    )
    stopped(model, texts, tmp_path / "v.npy", monkeypatch)
    run = EmbeddingRun(model, texts, tmp_path / "v.npy", SMALL)
    assert run.truncated == 2
    run.finish()
    assert run.truncated == 5


# The index


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
    for name, value in (("model", "x"), ("texts", "y"), ("precision", "int8")):
        replace(made, made_of={**made.made_of, name: value}).write(place)
        yield (
            ValueError,
            f"expected an index of this model and these texts, got {name} {value} instead of .*; delete",
        )
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
