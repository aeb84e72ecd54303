"""Tokens on disk: equal to direct tokenizing, found again, told apart, mended, safe among processes."""

from __future__ import annotations

import itertools
import pickle
import shutil
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from contrastive_text.core.storage.manifests import MANIFEST
from contrastive_text.core.types import Tokens
from contrastive_text.data import TextTokenizer, learn_vocabulary
from contrastive_text.data.files import mapped
from contrastive_text.data.files.mapped import TokenTable, cache_folder, tokenize_documents
from contrastive_text.data.tokenizing import wrap_tokenizer

TEXTS = ("the old bird sings in the tree", "", "a dog!", "Zebra 日本 [MASK]\n\nnext line", " ")
FILES = ("ids", "words", "offsets", MANIFEST)


class Counting(TextTokenizer):
    """Remembers how many texts came in each call."""

    calls: list[int]

    def __call__(self, texts: Sequence[str]) -> list[Tokens]:
        self.calls.append(len(texts))
        return super().__call__(texts)


@pytest.fixture
def tokenizer(learned_tokenizer: PreTrainedTokenizerFast) -> Counting:
    counting = Counting(wrap_tokenizer(learned_tokenizer.backend_tokenizer.to_str()), max_length=4)
    counting.calls = []
    return counting


def entries(folder: Path) -> list[str]:
    """Returns what lies in a cache, hidden or not."""
    return sorted(path.name for path in folder.iterdir())


def tokens_of(table: TokenTable) -> list[object]:
    return [row["text"] for row in table]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # the tokenizer keeps nothing of a call
@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=60), max_size=6))
def test_rows_equal_direct_tokenizing(
    tmp_path_factory: pytest.TempPathFactory, tokenizer: Counting, texts: list[str]
) -> None:
    table = tokenize_documents(texts, tokenizer, tmp_path_factory.mktemp("cache"))
    assert tokens_of(table) == tokenizer(texts)
    assert table.lengths.tolist() == [len(tokens) for tokens in tokenizer(texts)]
    assert len(table) == len(texts)
    assert [table[-i - 1]["text"] for i in range(len(texts))] == tokenizer(texts)[::-1]
    for index in (len(texts), -len(texts) - 1):
        with pytest.raises(IndexError):
            table[index]


def test_the_second_call_reads_and_never_tokenizes(tmp_path: Path, tokenizer: Counting) -> None:
    made = tokenize_documents(TEXTS, tokenizer, tmp_path / "new" / "folder")
    assert made.source == f"tokenized and cached in {made.folder}"
    tokenizer.calls.clear()
    found = tokenize_documents(list(TEXTS), tokenizer, tmp_path / "new" / "folder")
    assert tokenizer.calls == []
    assert found.source == f"tokens read from {made.folder}"
    assert tokens_of(found) == tokens_of(made)


def test_other_texts_have_another_key(tmp_path: Path, tokenizer: Counting) -> None:
    every = (
        TEXTS,
        (TEXTS[0] + "s", *TEXTS[1:]),
        (*TEXTS[1:], TEXTS[0]),
        TEXTS[:-1],
        (*TEXTS, ""),
        (*TEXTS[:2], "a do", "g!", *TEXTS[3:]),
        ("the old bird sings in the tre", "e", *TEXTS[2:]),
    )
    assert len({tokenize_documents(texts, tokenizer, tmp_path).folder for texts in every}) == len(every)


def test_another_tokenizer_version_or_format_has_another_key_and_another_limit_the_same(
    tmp_path: Path, corpus: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, fewer = (learn_vocabulary(corpus, vocabulary_size=size) for size in (90, 80))
    same, more, split = (wrap_tokenizer(first.backend_tokenizer.to_str()) for _ in range(3))
    same(["a bird"], truncation=True, max_length=3, padding="max_length")
    more.add_tokens(["[DEL]"])
    split.split_special_tokens = True

    def key(tokenizer: PreTrainedTokenizerFast, limit: int | None = None) -> Path:
        return tokenize_documents(TEXTS, TextTokenizer(tokenizer, max_length=limit), tmp_path).folder

    keys = [key(first), key(more), key(split), key(fewer)]
    assert keys[0] == key(same, limit=512)
    with monkeypatch.context() as patch:
        patch.setattr(mapped, "_TOKENS_FORMAT", -1)
        keys.append(key(first))
    monkeypatch.setattr(tokenizers, "__version__", "0")
    keys.append(key(first))
    assert len({*keys}) == len(keys)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "flipped": flip,
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-4]),
    "missing": lambda path: path.unlink(),
    "another thing": lambda path: path.write_bytes(b'{"ids": [0, 0]}'),
}
ENTRIES: dict[str, Callable[[Path], object]] = {
    "a file": lambda entry: (shutil.rmtree(entry), entry.write_text("not an entry")),
    "an empty folder": lambda entry: (shutil.rmtree(entry), entry.mkdir()),
}


@pytest.mark.parametrize(
    ("name", "damage"), [*itertools.product(FILES, DAMAGES), *itertools.product(("",), ENTRIES)]
)
def test_a_damaged_entry_is_made_anew(tmp_path: Path, tokenizer: Counting, name: str, damage: str) -> None:
    made = tokenize_documents(TEXTS, tokenizer, tmp_path)
    whole = {file: (made.folder / file).read_bytes() for file in FILES}
    (DAMAGES | ENTRIES)[damage](made.folder / name)
    file = ".*" if name == MANIFEST else name or MANIFEST  # a digest of any of the files may have changed
    with pytest.warns(UserWarning, match=f"damaged tokens .{file}: .*; they are created again"):
        mended = tokenize_documents(TEXTS, tokenizer, tmp_path)
    assert mended.source.startswith("tokenized")
    assert tokens_of(mended) == tokenizer(TEXTS)
    assert {file: (made.folder / file).read_bytes() for file in FILES} == whole
    assert entries(tmp_path) == [made.folder.name]


def test_a_pickled_table_is_a_name_and_maps_the_same_files_from_another_folder(
    tmp_path: Path, tokenizer: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    texts = [f"{text} {number}" for number in range(50) for text in TEXTS]
    table = tokenize_documents(texts, tokenizer, Path("cache"))
    for array in (table._ids, table._words):
        assert isinstance(array.base, np.memmap) and not array.flags.writeable
    pickled = pickle.dumps(table)
    assert len(pickled) < 1000 < table.lengths.sum()
    tokenizer.calls.clear()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    copy = pickle.loads(pickled)
    assert tokens_of(copy) == tokens_of(table)
    assert (copy.folder, copy.source, tokenizer.calls) == (table.folder, table.source, [])


def test_texts_are_tokenized_in_blocks_of_bounded_size(
    tmp_path: Path, tokenizer: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped, "_BLOCK_CHARACTERS", 100)
    texts = ["a bird " * number for number in (1, 2, 3, 40, 1, 1, 1, 5, 5, 5, 5, 5)]
    table = tokenize_documents(texts, tokenizer, tmp_path)
    calls = list(tokenizer.calls)
    assert len(calls) > 3
    assert sum(calls) == len(texts)
    assert tokens_of(table) == tokenizer(texts)
    starts = np.cumsum([0, *calls]).tolist()
    for start, stop in pairwise(starts):
        assert sum(map(len, texts[start + 1 : stop])) < 100  # the first text alone may pass the bound


def test_an_interrupted_call_leaves_nothing(tmp_path: Path, learned_tokenizer: PreTrainedTokenizerFast) -> None:
    class Interrupted(TextTokenizer):
        def __call__(self, texts: Sequence[str]) -> list[Tokens]:
            assert texts
            assert entries(tmp_path)  # the tokens so far
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tokenize_documents(TEXTS, Interrupted(learned_tokenizer, max_length=None), tmp_path)
    assert entries(tmp_path) == []


@pytest.mark.parametrize("damaged", [False, True])
def test_of_many_at_once_one_tokenizes_and_all_get_the_tokens(
    tmp_path: Path, learned_tokenizer: PreTrainedTokenizerFast, tokenizer: Counting, damaged: bool
) -> None:
    description = learned_tokenizer.backend_tokenizer.to_str()
    together = threading.Barrier(6)
    tables: list[TokenTable] = []
    calls: list[int] = []
    if damaged:
        flip(tokenize_documents(TEXTS, tokenizer, tmp_path).folder / "ids")

    def run() -> None:
        own = Counting(wrap_tokenizer(description), max_length=None)
        own.calls = calls
        together.wait(timeout=60)
        tables.append(tokenize_documents(TEXTS, own, tmp_path))

    threads = [threading.Thread(target=run) for _ in range(6)]
    with pytest.warns(UserWarning, match="damaged tokens") if damaged else nullcontext():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    direct = TextTokenizer(learned_tokenizer, max_length=None)(TEXTS)
    assert [tokens_of(table) for table in tables] == [direct] * 6
    assert calls == [len(TEXTS)]
    assert len(entries(tmp_path)) == 1


def test_the_default_folder_is_the_users_cache(
    tmp_path: Path, tokenizer: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert tokenize_documents(TEXTS, tokenizer).folder.parent == tmp_path / "xdg" / "contrastive_text" / "tokens"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder(None, "tokens") == tmp_path / ".cache" / "contrastive_text" / "tokens"
    table = tokenize_documents(TEXTS, tokenizer, Path("~/mine"))
    assert table.folder.parent == tmp_path / "mine"


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, tokenizer: Counting) -> None:
    taken = tmp_path / "taken"
    taken.write_text("a file")
    with pytest.raises(
        OSError, match=r"cache_dir: expected a folder that can be written, got .*taken .*name another"
    ):
        tokenize_documents(TEXTS, tokenizer, taken)
    assert tokenizer.calls == []


def test_a_tokenizer_without_a_description_is_refused(tmp_path: Path, tokenizer: Counting) -> None:
    class Slow:
        pass

    tokenizer.tokenizer = Slow()  # type: ignore[assignment]  # what is refused
    with pytest.raises(TypeError, match="expected a fast tokenizer, whose identity is known, got Slow"):
        tokenize_documents(TEXTS, tokenizer, tmp_path)
