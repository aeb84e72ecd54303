"""Properties that every public pairing has: examples by key alone, of the columns that it names."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import NamedTuple

import parts
import pytest

from contrastive_text import pairings
from contrastive_text.core.random import generator
from contrastive_text.core.types import Row, Tokens
from contrastive_text.pairings import Given, Neighbors, NLITriples, OneSequence, Pairing, SameText, Spans

PAGES = Path(__file__).parents[2] / "docs" / "parts"


class Case(NamedTuple):
    """A pairing, documents, the rows that it draws from, and whether examples of a row differ by key."""

    make: Callable[[], Pairing]
    documents: list[list[Row]]
    rows: int
    draws: bool = False


DOCUMENT = Tokens(ids=tuple(range(100, 140)), words=tuple(range(40)))
PAIR: Row = {"anchor": "a", "positive": "b"}
NEGATIVES: Row = {**PAIR, "negative": "n", "negative_2": "m", "negative_3": "o"}
PAIRINGS: dict[str, Case] = {
    "SameText": Case(SameText, [[{"text": "a"}, {"text": "b"}], [], [{"text": "a"}]], 3),
    "Given": Case(Given, [[PAIR, {**PAIR, "target": 1.0}], [PAIR]], 3),
    "Given with negatives": Case(lambda: Given(views_per_text=2, negatives=2), [[NEGATIVES]], 1, draws=True),
    "OneSequence": Case(OneSequence, [[PAIR]], 1),
    "Neighbors": Case(lambda: Neighbors(reach=2), [[{"text": text} for text in "abc"], [{"text": "d"}]], 2, True),
    "NLITriples": Case(NLITriples, [[{**PAIR, "target": 2.0}, {**PAIR, "positive": "c", "target": 0.0}]], 1),
    "Spans": Case(lambda: Spans(min_length=2, max_length=8), [[{"text": DOCUMENT}]], 1, draws=True),
}
every_pairing = pytest.mark.parametrize("case", PAIRINGS.values(), ids=PAIRINGS)


def test_every_public_pairing_has_an_entry() -> None:
    assert {cls.__name__ for cls in parts.public_parts(pairings, Pairing)} == {
        name.split()[0] for name in PAIRINGS
    }


@every_pairing
def test_a_pairing_is_documented_and_is_made_again_from_its_arguments(case: Case) -> None:
    pairing = case.make()
    parts.check_part(pairing)
    page = (PAGES / f"{type(pairing).__name__}.md").read_text(encoding="utf-8")
    assert f"]({type(pairing).__name__}.svg)" in page


@every_pairing
def test_examples_are_drawn_by_the_key_alone_and_rows_stay(case: Case) -> None:
    pairing, before = case.make(), deepcopy(case.documents)
    rows, said = pairing.arrange(case.documents)
    assert (list(rows), said) == (list(case.make().arrange(case.documents)[0]), said)
    assert len(rows) == case.rows
    copy: Pairing = pickle.loads(pickle.dumps(pairing))
    for row in rows:
        drawn = [pairing(row, generator(seed)) for seed in range(20)]
        assert drawn == [copy(row, generator(seed)) for seed in range(20)]
        assert not case.draws or len({repr(examples) for examples in drawn}) > 1 or len(row) == 2
        assert case.draws or all(examples == drawn[0] for examples in drawn)
    assert case.documents == before


@every_pairing
def test_every_row_gives_as_many_examples_positives_and_negatives(case: Case) -> None:
    pairing = case.make()
    shapes = set()
    for row in pairing.arrange(case.documents)[0]:
        examples = pairing(row, generator(0))
        shapes.add((len(examples), *((len(each.positives), len(each.negatives)) for each in examples)))
    assert len(shapes) == 1


@every_pairing
def test_a_pairing_names_the_columns_that_it_reads(case: Case) -> None:
    pairing = case.make()
    row = case.documents[0][0]
    assert {*pairing.reads} <= {*row}
    for name in pairing.reads:
        without = {other: value for other, value in row.items() if other != name}
        with pytest.raises(KeyError, match=name):
            pairing(pairing.arrange([[without, case.documents[0][-1]]])[0][0], generator(0))


@every_pairing
def test_only_a_pairing_that_reads_tokens_asks_for_their_number(case: Case) -> None:
    pairing = case.make()
    if not pairing.token_roles:
        assert pairing.accepts_length(0) and not pairing.shortens_spans(0)
        pairing.check_length_limit(0)
    assert (pairing.target is None) == ("target" not in pairing.reads)
