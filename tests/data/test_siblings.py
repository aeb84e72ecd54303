"""How many rows have an anchor with other positives, and how many meet one in a step."""

from __future__ import annotations

from itertools import combinations

import pytest

from contrastive_text.core.types import Row
from contrastive_text.data.training_set import sibling_rows


def row(anchor: str, positive: str, target: float = 1.0) -> Row:
    return {"anchor": anchor, "positive": positive, "target": target}


PAIRS = [row("a", "b"), row("a", "c"), row("a", "d"), row("e", "f"), row("g", "h"), row("g", "h"), row("i", "c")]


def test_an_estimate_is_near_the_share_over_all_batches() -> None:
    having, met, looked_at = sibling_rows(PAIRS, batch_size=3)
    assert (having, looked_at) == (3, 7)  # a copy of a pair is no sibling, nor another anchor's pair
    batches = [batch for batch in combinations(range(7), 3) for _ in batch]
    meets = sum(len({0, 1, 2} & {*batch}) for batch in combinations(range(7), 3) if len({0, 1, 2} & {*batch}) > 1)
    assert met == pytest.approx(meets / len(batches), abs=0.03)


def test_all_siblings_meet_in_a_batch_of_all_rows_and_none_in_one_of_one() -> None:
    assert sibling_rows(PAIRS, batch_size=7)[1] == pytest.approx(3 / 7)
    assert sibling_rows(PAIRS, batch_size=1)[1] == 0.0


def test_pairs_that_do_not_belong_together_and_rows_without_pairs_count_as_none() -> None:
    rows = [row("a", "b"), row("a", "c", target=0.0)]
    assert sibling_rows(rows, batch_size=2) == (2, 1.0, 2)
    assert sibling_rows(rows, batch_size=2, labelled=True) == (0, 0.0, 1)
    assert sibling_rows([{"text": "a"}, {"text": "a"}], batch_size=2) == (0, 0.0, 0)
