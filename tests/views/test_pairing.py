"""Pairings: which texts of a row belong together."""

from __future__ import annotations

import numpy as np
import pytest

from contrastive_text.types import Example, Row
from contrastive_text.views import Given, Pairing, SameText

RNG = np.random.default_rng(0)


def test_same_text_pairs_a_text_with_itself() -> None:
    assert SameText()({"text": "snow falls"}, RNG) == [Example(anchor="snow falls", positives=("snow falls",))]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"anchor": "a", "positive": "b"}, Example("a", ("b",))),
        ({"anchor": "a", "positive": "b", "target": 3}, Example("a", ("b",), target=3.0)),
        ({"anchor": "a", "positive": "b", "negative": "c"}, Example("a", ("b",), ("c",))),
        (
            {"anchor": "a", "positive": "b", "negative_1": "c", "negative_2": "d"},
            Example("a", ("b",), ("c", "d")),
        ),
    ],
)
def test_given_takes_the_columns_in_their_roles(row: Row, expected: Example) -> None:
    assert Given()(row, RNG) == [expected]


@pytest.mark.parametrize("pairing", [SameText(), Given()])
def test_a_pairing_names_the_columns_that_it_reads(pairing: Pairing) -> None:
    row: Row = dict.fromkeys(pairing.reads, "a text")
    assert len(pairing(row, RNG)) == 1
    for name in pairing.reads:
        with pytest.raises(KeyError, match=name):
            pairing({other: text for other, text in row.items() if other != name}, RNG)
