"""RepeatTokens: how many units it repeats, which ones, and rows that get longer than the limit of training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrastive_text.core.random import generator
from contrastive_text.core.types import Tokens, Vocabulary
from contrastive_text.data import Collator, KeyedRow, TextTokenizer, learn_vocabulary
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.pairings import SameText
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.views import RepeatTokens, ViewPlan

DRAWS = 300
VOCABULARY = Vocabulary(size=1000, prefix=1, suffix=1)


def text(n: int) -> Tokens:
    """Tokens 100, 101, ...: every token tells its place, and is a word."""
    return Tokens(ids=tuple(range(100, 100 + n)), words=tuple(range(n)))


def built(view: RepeatTokens) -> RepeatTokens:
    view.build(VOCABULARY)
    return view


def repeated(view: RepeatTokens, n: int) -> list[int]:
    """How many tokens each of some draws repeats."""
    return [len(view(text(n), generator(key))) - n for key in range(DRAWS)]


# methods.json: esimcse_code_max_dup_by_length_L_with_specials_rate0.32
LARGEST = {3: 0, 4: 0, 6: 0, 7: 1, 10: 2, 20: 5, 32: 9}


@pytest.mark.parametrize(("length", "largest"), LARGEST.items())
def test_esimcse_code_max_dup_by_length_l_with_specials_rate0_32(length: int, largest: int) -> None:
    found = Counter(repeated(built(RepeatTokens(0.32)), length - 2))
    # Of 300 draws of at most ten numbers each comes, but for one time in 10^13.
    assert set(found) == set(range(largest + 1))


@pytest.mark.parametrize(("n", "largest"), [(1, 0), (2, 1), (5, 1), (7, 1), (10, 2), (20, 5), (40, 9)])
def test_words_are_repeated_by_the_rule_of_the_authors_words(n: int, largest: int) -> None:
    view = built(RepeatTokens(0.32, unit="word"))
    assert set(repeated(view, n)) == set(range(largest + 1))
    assert all(view(text(n), generator(key)).ids.count(99 + n) == 1 for key in range(DRAWS))


@given(n=st.integers(0, 40), rate=st.floats(0, 1), most=st.integers(1, 12), key=st.integers(0, 2**31))
def test_what_is_repeated_stands_beside_itself_and_only_twice(n: int, rate: float, most: int, key: int) -> None:
    for unit in ("token", "word"):
        view = built(RepeatTokens(rate, most, unit=unit))(text(n), generator(key))
        assert list(view.ids) == sorted(view.ids)
        assert set(view.ids) == set(text(n).ids)
        assert max(Counter(view.ids).values(), default=0) <= 2
        assert len(view) - n < most


def test_a_word_is_repeated_with_all_its_tokens() -> None:
    tokens = Tokens(ids=(1, 2, 3, 4, 5), words=(0, 0, 1, 1, 2))
    drawn = {built(RepeatTokens(1.0, unit="word"))(tokens, generator(key)).ids for key in range(DRAWS)}
    both = (1, 2, 1, 2, 3, 4, 3, 4, 5)
    assert drawn == {tokens.ids, (1, 2, *tokens.ids), (1, 2, 3, 4, 3, 4, 5), both}


def test_every_token_is_repeated_equally_often() -> None:
    view = built(RepeatTokens(1.0, most=2))
    times = Counter(
        i for key in range(4000) for i, n in Counter(view(text(5), generator(key)).ids).items() if n > 1
    )
    # Half of the draws repeat one of five tokens: 400 times each, standard deviation 19; five of them.
    assert all(abs(times[i] - 400) < 5 * 19 for i in text(5).ids)


@pytest.fixture(scope="module")
def rows_of() -> Callable[[int | None], set[int]]:
    """From what a network takes beyond 8 tokens to the lengths of repeated rows of 12."""
    tokenizer = learn_vocabulary(["a b c d e f g h i j"], vocabulary_size=60)

    def lengths(spare: int | None) -> set[int]:
        cutting, plan = TextTokenizer(tokenizer, 8, spare), ViewPlan({"positive": [RepeatTokens(1.0)]})
        plan.build(cutting.vocabulary())
        collator = Collator(cutting, SameText(), plan, seed=0)
        rows = [KeyedRow(epoch=0, number=i, row={"text": "a b c d e f g h i j"}) for i in range(DRAWS)]
        anchors, positives = collator(rows).lengths.split(DRAWS)
        assert set(anchors.tolist()) == {8}
        return set(positives.tolist())

    return lengths


@pytest.mark.parametrize(("spare", "longest"), [(0, 8), (3, 11), (None, 14)])
def test_a_cut_text_gets_longer_as_far_as_the_network_takes_it(
    spare: int | None, longest: int, rows_of: Callable[[int | None], set[int]]
) -> None:
    # Of the 6 tokens that are left of the text all may be repeated; it is cut before that, and not after it.
    assert rows_of(spare) == set(range(8, longest + 1))


def test_the_room_beyond_the_limit_of_training_is_that_of_the_network(bert: str) -> None:
    module = ContrastiveModule(TransformerEncoder(bert, max_length=16))
    limit = module.encoder.limit
    assert limit is not None
    for max_length, spare in ((16, limit - 16), (None, 0)):
        module.encoder.max_length = max_length
        tokenizer = module.text_tokenizer()
        assert tokenizer is not None
        assert (tokenizer.max_length, tokenizer.spare) == (max_length or limit, spare)
