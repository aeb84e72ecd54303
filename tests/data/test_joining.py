"""Consecutive texts are joined up to a limit of tokens that no row passes, in their order, within documents."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from contrastive_text.data import Clean, Table, TextTokenizer, learn_vocabulary, read_rows
from contrastive_text.data.preparation import joined
from contrastive_text.pairings import Neighbours


def byte_level() -> PreTrainedTokenizerFast:
    """A tokenizer as RoBERTa's: a word has other tokens at the start of a text than after a blank."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<s>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=alphabet, special_tokens=special, show_progress=False
    )
    tokenizer.train_from_iterator([" ".join(tiny.TEXTS)] * 3, trainer)
    ends = [(token, tokenizer.token_to_id(token)) for token in special]
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=ends)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


TOKENIZERS = [
    TextTokenizer(made, max_length=64)
    for made in (byte_level(), learn_vocabulary(tiny.TEXTS, vocabulary_size=80))
]


def table_of(*documents: list[str]) -> Table:
    rows = tuple({"text": text} for texts in documents for text in texts)
    return Table(rows, ("a.txt",), "a.txt", sizes=tuple(map(len, documents)))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


some_texts = st.lists(st.sampled_from([*tiny.TEXTS[:12], "  spaced  ", "a"]), min_size=1, max_size=12)


@pytest.mark.slow
@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=["byte level", "word pieces"])
@settings(max_examples=40)
@given(documents=st.lists(some_texts, min_size=1, max_size=3), limit=st.integers(4, 64))
def test_rows_are_as_long_as_they_can_be_and_no_longer(
    tokenizer: TextTokenizer, cache: Path, documents: list[list[str]], limit: int
) -> None:
    table = joined(table_of(*documents), limit, tokenizer, cache, "data.task.join")
    room = limit - tokenizer.specials

    def tokens(text: str) -> int:
        return len(tokenizer.ids([text])[0])

    for rows, texts in zip(table.documents, documents, strict=True):
        left = [text.strip() for text in texts]
        for row in (str(row["text"]) for row in rows):
            count = next(n for n in range(len(left), 0, -1) if row.strip() == " ".join(left[:n]))
            assert tokens(row) <= room or count == 1
            if left[count:]:
                assert tokens(f"{row} {left[count]}") > room
            left = left[count:]
        assert not left


def test_a_blank_line_and_the_end_of_a_file_end_a_document_and_it_is_said(tmp_path: Path, cache: Path) -> None:
    one, two, three = tmp_path / "one.txt", tmp_path / "two.jsonl", tmp_path / "folder"
    one.write_text("a b\nc d\n\n\ne f\n")
    two.write_text('{"text": "g"}\n{"text": "h i"}\n\n{"text": "j"}\n')
    three.mkdir()
    for name in "kl":
        (three / f"{name}.txt").write_text(f"{name}\n")
    table = read_rows([one, two, three], reads=("text",))
    assert table.sizes == (2, 1, 2, 1, 1, 1)
    whole = joined(table, 64, TOKENIZERS[0], cache, "data.task.join")
    assert [row["text"] for row in whole] == ["a b c d", "e f", "g h i", "j", "k\n".strip(), "l"]
    assert whole.understood.splitlines()[-1] == (
        "joined: 6 rows of up to 64 tokens, from 8 texts in 6 documents, 0 of them longer and alone"
    )
    assert len(Neighbours().arrange(table.documents)[0]) == 2


def test_a_run_trains_on_joined_rows_after_they_are_cleaned(tmp_path: Path) -> None:
    texts = tuple(f"{text}   yes" for text in tiny.TEXTS)
    train = tiny.write_texts(tmp_path / "texts.txt", texts)
    bert = tiny.save_bert(tmp_path / "bert")
    clean = Clean(collapse=True, leading_blank=True)
    data = tiny.data(train, join=32, clean=clean, limit=5, batch_size=5, cache_dir=str(tmp_path / "cache"))
    data.attach(tiny.module(bert))
    data.setup("fit")
    (batch,) = data.train_dataloader()
    assert batch.truncated == 0
    assert int(batch.lengths.max()) <= 32
    rows = [str(row["text"]) for row in data.training.of().texts]
    assert all(row.startswith(" ") and "  " not in row for row in rows)
    assert "joined: " in data.facts()["training data"]
