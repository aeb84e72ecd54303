"""Tests of the command ``views``: marked changes of a row, and the edit rate of each view on real rows."""

from __future__ import annotations

import numpy as np
import pytest
import tiny
from torch import Tensor

from contrastive_text.core.random import RowRandom
from contrastive_text.core.types import Tokens, Vocabulary
from contrastive_text.data import Collator, KeyedRow, learn_vocabulary
from contrastive_text.data.tokenizing import TextTokenizer
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.evaluation.view_edits import both_views, edit_rates, pieces, unaltered
from contrastive_text.pairings import SameText
from contrastive_text.views import (
    DeleteTokens,
    FeatureCutoff,
    GradientView,
    SwapWords,
    TokenCutoff,
    TokenView,
    ViewPlan,
)

ROWS = [KeyedRow(0, i, {"text": text}) for i, text in enumerate(tiny.TEXTS)]


class Backwards(TokenView):
    """Turns the positions around, and leaves the tokens."""

    after_specials = True
    sets_positions = True

    def __call__(self, tokens: Tokens, rng: np.random.Generator) -> Tokens:
        del rng
        n = len(tokens)
        return Tokens(tokens.ids, tokens.words, positions=tuple(range(n - 1, -1, -1)), labels=tokens.labels)


class Uphill(GradientView):
    """Follows the gradient, which only training knows."""

    def __call__(self, embeddings: Tensor, gradient: Tensor, mask: Tensor, rng: RowRandom) -> Tensor:
        del mask, rng
        return embeddings + gradient


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> TransformerEncoder:
    return TransformerEncoder(tiny.save_bert(tmp_path_factory.mktemp("bert")))


def collator(encoder: TransformerEncoder, plan: ViewPlan) -> Collator:
    assert encoder.tokenizer is not None
    return Collator(TextTokenizer(encoder.tokenizer, max_length=32), SameText(), plan, seed=0)


def test_what_went_and_what_came_is_marked() -> None:
    tokenizer = learn_vocabulary(["a b c d e f"], vocabulary_size=40)
    a, b, c, d = tokenizer.convert_tokens_to_ids(["a", "b", "c", "d"])
    assert pieces([a, b, c], [a, b, c], tokenizer) == [("kept", "a b c")]
    assert pieces([a, b, c], [a, c], tokenizer) == [("kept", "a"), ("gone", "b"), ("kept", "c")]
    assert pieces([a, c], [a, d, c], tokenizer) == [("kept", "a"), ("new", "d"), ("kept", "c")]
    changed = [("kept", "a"), ("gone", "b"), ("new", "d"), ("kept", "c")]
    assert pieces([a, b, c], [a, d, c], tokenizer) == changed
    # If the longest common run (a c) were matched first, a kept "a" would be marked as new.
    deleted = pieces([a, b, a, c, a, b, c, a], [a, a, a, c], tokenizer)
    assert [piece.text for piece in deleted if piece.kind == "new"] == []


def test_each_view_is_measured_against_what_enters_it(bert: TransformerEncoder) -> None:
    plan = ViewPlan(
        {
            "anchor": [TokenCutoff(1.0, specials=False)],
            "positive": [SwapWords(0.0), DeleteTokens(0.5), Backwards(), FeatureCutoff(0.25), Uphill()],
        }
    )
    plan.build(Vocabulary(size=40, prefix=1, suffix=1))
    inner, swap, delete, turn, cut, uphill = edit_rates(collator(bert, plan), bert, ROWS)
    assert [edit.place for edit in (swap, uphill)] == ["views.positive[0]", "views.positive[4]"]
    assert (swap.rate, swap.unit) == (0.0, "tokens")
    lengths = [len(text.split()) + 2 for text in tiny.TEXTS]
    gone = sum(round(0.5 * (n - 2)) for n in lengths)
    assert (delete.rate, delete.unit) == (pytest.approx(gone / sum(lengths)), "tokens")
    left = [n - round(0.5 * (n - 2)) for n in lengths]
    middle = sum(n % 2 for n in left)  # the middle of an odd row keeps its place
    assert (turn.rate, turn.unit) == (pytest.approx(1 - middle / sum(left)), "positions")
    assert (cut.rate, cut.unit) == (pytest.approx(0.25), "entries")
    assert (inner.rate, inner.unit) == (pytest.approx(1 - 2 * len(lengths) / sum(lengths)), "entries")
    assert uphill.rate is None


def test_the_unaltered_rows_stand_where_the_altered_ones_do(bert: TransformerEncoder) -> None:
    altering = collator(bert, ViewPlan({"positive": [DeleteTokens(0.5)], "original": [DeleteTokens(0.5)]}))
    before, after = unaltered(altering)(ROWS[:4]), altering(ROWS[:4])
    assert before.slots == after.slots
    assert before.lengths.tolist() == [len(text.split()) + 2 for _ in range(3) for text in tiny.TEXTS[:4]]


class Every(TokenView):
    """Puts one token in the place of every one with an even or odd place, and of the first."""

    def __init__(self, odd: int) -> None:
        self.odd = odd

    def __call__(self, tokens: Tokens, rng: np.random.Generator) -> Tokens:
        del rng
        ids = [999 if i % 2 == self.odd or i == 0 else token for i, token in enumerate(tokens.ids)]
        return Tokens(tuple(ids), tokens.words)


def test_what_two_views_of_a_text_have_in_common_is_told(bert: TransformerEncoder) -> None:
    texts = ("a bird sings in the tree", "a bird runs in the tree", "the tall man reads one book")
    rows = [KeyedRow(0, i, {"text": text}) for i, text in enumerate(texts)]
    plan = ViewPlan({"anchor": [Every(1)], "positive": [Every(0)], "original": [Every(0)]})
    places, alike = both_views(collator(bert, plan), rows)
    # Of six places 0, 1, 3, 5 and 0, 2, 4: one in common; sings or runs, at the third place, is replaced.
    assert places == ("anchor 0 and positive 0", "both", f"{2 / 7:.1%} of the changed places are the same")
    assert alike == ("all", "all", "1 of 6 texts made equal to another one")
    assert both_views(collator(bert, ViewPlan({"positive": [FeatureCutoff()]})), rows) == []


def test_a_measurement_leaves_the_encoder_as_it_was(bert: TransformerEncoder) -> None:
    weights = {name: value.clone() for name, value in bert.state_dict().items()}
    edit_rates(collator(bert, ViewPlan({"anchor": [FeatureCutoff()]})), bert, ROWS[:4])
    assert all((weights[name] == value).all() for name, value in bert.state_dict().items())
