"""Pairings: which texts of a row belong together."""

from __future__ import annotations

import numpy as np
import pytest

from contrastive_text.core.types import Example, Row
from contrastive_text.pairings import Given, Neighbours

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"anchor": "a", "positive": "b"}, Example("a", ("b",))),
        ({"anchor": "a", "positive": "b", "target": 3}, Example("a", ("b",))),  # the collator takes it along
        ({"anchor": "a", "positive": "b", "negative": "c"}, Example("a", ("b",), ("c",))),
        (
            {"anchor": "a", "positive": "b", "negative_1": "c", "negative_2": "d"},
            Example("a", ("b",), ("c", "d")),
        ),
    ],
)
def test_given_takes_the_columns_in_their_roles(row: Row, expected: Example) -> None:
    assert Given()(row, RNG) == [expected]


def test_given_says_how_often_each_text_stands_in_the_batch() -> None:
    row: Row = {"anchor": "a", "positive": "b", "target": 1.0}
    assert Given(views_per_text=2)(row, RNG) == [Example("a", ("b",), views_per_text=2)]


def test_neighbours_never_follow_each_other_over_the_end_of_a_file() -> None:
    files: list[list[Row]] = [
        [{"text": "a"}, {"text": "b"}, {"text": "c"}],
        [{"text": "d"}],
        [],
        [{"text": "e"}] * 2,
    ]
    rows, said = Neighbours().arrange(files)
    assert [(row["text"], row["next"]) for row in rows] == [("a", "b"), ("b", "c"), ("e", "e")]
    assert said == "3 texts with their successor"
    assert Neighbours()(rows[0], RNG) == [Example("a", ("b",))]


def test_neighbours_within_reach_are_all_drawn_and_fewer_at_the_end_of_a_file() -> None:
    pairing = Neighbours(reach=3)
    rows, said = pairing.arrange([[{"text": text} for text in "abcde"], [{"text": "f"}]])
    assert [list(row.values()) for row in rows] == [list("abcd"), list("bcde"), list("cde"), list("de")]
    assert said == "4 texts with their successors"
    for row in rows:
        drawn = [pairing(row, np.random.default_rng(seed))[0] for seed in range(60)]
        assert {each.anchor for each in drawn} == {row["text"]}
        assert sorted({positive for each in drawn for positive in each.positives}) == list(row.values())[1:]


def test_neighbours_without_a_successor_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"data\.train: expected two texts or more, one after the other, got one"
    ):
        Neighbours().arrange([[{"text": "a"}], [{"text": "b"}]])


def test_given_draws_hard_negatives_of_those_that_a_row_has() -> None:
    row = {"anchor": "a", "positive": "p", "negative": "n", "negative_2": "m", "negative_3": ""}
    drawn = {Given(negatives=1)(row, np.random.default_rng(seed))[0].negatives for seed in range(20)}
    assert drawn == {("n",), ("m",)}
    few = {**row, "negative_2": ""}
    assert Given(negatives=2)(few, np.random.default_rng(0))[0].negatives == ("n", "")
    assert Given(negatives=0)(row, np.random.default_rng(0))[0].negatives == ()
    assert Given(negatives=5)(row, np.random.default_rng(0))[0].negatives == ("n", "m", "")
