"""Mined negatives compared with slow loops over the same vectors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contrastive_text.inference.mining import Mined, Mining, PairTexts, Space, mine

EVERYTHING = 1_000
"""More candidates than there are."""


def few_texts(queries: int, rows: int, further: int, seed: int) -> tuple[list[tuple[str, str]], list[str]]:
    """Pairs in which queries and positives occur again, and a corpus that has some of both."""
    noise = torch.Generator().manual_seed(seed)
    numbers = torch.randint(1_000, (rows, 2), generator=noise).tolist()
    pairs = [(f"q{one % queries}", f"p{other % (2 * queries)}") for one, other in numbers]
    return pairs, [f"c{number}" for number in range(further)] + [pairs[0][0], pairs[-1][1]]


def space_of(texts: PairTexts, seed: int, features: int = 4) -> Space:
    """Vectors on a coarse grid, so that some are equal."""
    noise = torch.Generator().manual_seed(seed)
    parts = [
        torch.randint(-2, 3, (len(each), features), generator=noise) for each in (texts.queries, texts.corpus)
    ]
    return Space(*(part.float() + 0.25 for part in parts))


def cosine(one: torch.Tensor, other: torch.Tensor) -> float:
    return float(torch.nn.functional.normalize(one, dim=0) @ torch.nn.functional.normalize(other, dim=0))


def slowly(texts: PairTexts, space: Space, mining: Mining) -> tuple[list[list[int]], Counter[str]]:
    """The negatives of each query, nearest first, and what was removed, in plain loops."""
    found, removed = [], Counter[str]()
    for query, (positives, own) in enumerate(zip(texts.positives, texts.query_ids, strict=True)):
        scored = sorted(
            (-cosine(space.queries[query], vector), place) for place, vector in enumerate(space.corpus)
        )
        candidates = [(place, -score) for score, place in scored if place not in positives and place != own]
        lowest = min(cosine(space.queries[query], space.corpus[place]) for place in positives)
        left, kept = 0, []
        for rank, (place, score) in enumerate(candidates[: mining.depth]):
            reasons = {
                "near": mining.same is not None
                and max(cosine(space.corpus[place], space.corpus[each]) for each in positives) >= mining.same,
                "absolute_margin": mining.absolute_margin is not None and score + mining.absolute_margin > lowest,
                "relative_margin": mining.relative_margin is not None
                and score > lowest - abs(lowest) * mining.relative_margin,
                "max_score": mining.max_score is not None and score > mining.max_score,
                "min_score": mining.min_score is not None and score < mining.min_score,
            }
            removed["candidates"] += 1
            if reason := next((name for name, holds in reasons.items() if holds), None):
                removed[reason] += 1
                continue
            if (rank if mining.ranks == "before" else left) >= mining.range_min:
                kept.append(place)
            left += 1
        found.append(kept[: mining.negatives])
    return found, removed


@st.composite
def options(draw: st.DrawFn) -> Mining:
    """Any options with odd bounds, on which no cosine of the grid lies."""

    def maybe(low: float, high: float) -> float | None:
        return draw(st.none() | st.floats(low, high).map(lambda bound: round(bound, 2) + 0.00317))

    least = draw(st.integers(0, 4))
    return Mining(
        negatives=draw(st.integers(1, 3)),
        range_min=least,
        range_max=draw(st.sampled_from([least + 3, least + 8, EVERYTHING])),
        ranks=draw(st.sampled_from(["before", "after"])),
        absolute_margin=maybe(0.0, 0.4),
        relative_margin=maybe(0.0, 0.4),
        max_score=maybe(0.5, 0.9),
        min_score=maybe(-0.9, 0.3),
        same=draw(st.sampled_from([None, 0.90317, 0.97317])),
    )


@settings(max_examples=20)
@given(options(), st.integers(0, 2**31))
def test_negatives_and_what_was_removed_are_those_of_slow_loops(mining: Mining, seed: int) -> None:
    pairs, corpus = few_texts(queries=5, rows=8, further=6, seed=seed)
    texts = PairTexts(pairs, corpus)
    # In general position: in a tie the order of a sum would decide.
    noise = torch.Generator().manual_seed(seed)
    space = Space(*(torch.randn(len(each), 4, generator=noise) for each in (texts.queries, texts.corpus)))
    found, removed = mine(texts, space, mining, range(len(texts.queries)))
    expected, counted = slowly(texts, space, mining)
    assert [each.negatives for each in found] == expected
    assert {
        name: count for name, count in removed.items() if count and name not in ("siblings", "equal")
    } == counted
    for each in found:
        own = space.queries[each.query]
        assert each.scores == pytest.approx(
            [cosine(own, space.corpus[place]) for place in each.negatives], abs=1e-5
        )
        positives = texts.positives[each.query]
        assert each.positives == pytest.approx(
            [cosine(own, space.corpus[place]) for place in positives], abs=1e-5
        )


def test_siblings_equal_texts_and_near_duplicates_never_become_negatives_and_are_counted() -> None:
    texts = PairTexts([("q", "p1"), ("q", "p2"), ("r", "p3")], corpus=["q", "like p1", "far"])
    queries = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    vectors = {"q": [1.0, 0.0], "like p1": [1.0, 0.11], "far": [-1.0, 0.2], "p1": [1.0, 0.1], "p2": [0.9, 0.5]}
    vectors["p3"] = [0.1, 0.9]
    space = Space(queries, torch.tensor([vectors[text] for text in texts.corpus]))
    (first, second), removed = mine(texts, space, Mining(negatives=2), range(2))
    assert [texts.corpus[place] for place in first.negatives] == ["p3", "far"]
    assert [texts.corpus[place] for place in second.negatives] == ["p2", "far"]
    assert (removed["siblings"], removed["equal"], removed["near"]) == (2, 1, 1)
    (without, _), _ = mine(texts, space, Mining(negatives=1, same=None), range(2))
    assert texts.corpus[without.negatives[0]] == "like p1"


def test_random_negatives_depend_on_the_query_and_the_seed_alone() -> None:
    pairs, corpus = few_texts(queries=20, rows=30, further=60, seed=3)
    texts = PairTexts(pairs, corpus)
    space = space_of(texts, seed=4)

    def found(places: range, seed: int) -> list[Mined]:
        return mine(texts, space, Mining(3, range_max=40, take="random", seed=seed), places)[0]

    whole = found(range(len(texts.queries)), seed=1)
    assert [*found(range(7), seed=1), *found(range(7, len(texts.queries)), seed=1)] == whole
    assert [each.negatives for each in found(range(len(texts.queries)), seed=2)] != [
        each.negatives for each in whole
    ]
    assert all(each.scores == sorted(each.scores, reverse=True) for each in whole)


def test_another_model_judges_and_orders_the_candidates_of_the_first() -> None:
    texts = PairTexts([("q", "p")], corpus=["a", "b", "c"])
    nearest = Space(torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.1], [1.0, 0.3], [0.1, 1.0], [1.0, 0.0]]))
    judge = Space(torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 0.1], [0.5, 0.5], [0.0, 1.0], [0.3, 1.0]]))
    mining = Mining(negatives=2, range_max=2, same=None, relative_margin=0.05)
    (found,), removed = mine(texts, nearest, mining, range(1), rescored=judge)
    assert [texts.corpus[place] for place in found.negatives] == ["b", "a"]  # c is not among the two nearest
    assert found.scores == pytest.approx([0.7071, 0.0995], abs=1e-4) and found.positives == pytest.approx(
        [0.9578], abs=1e-4
    )
    assert removed["candidates"] == 2


ONE = PairTexts([("a", "b")])
REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: Mining(negatives=0), "negatives: expected 1 or more, got 0"),
    (lambda: Mining(range_min=-1), "range_min: expected 0 or more, got -1"),
    (lambda: Mining(range_min=5, range_max=7), "range_max: .*room for 3 negatives after the first 5, so 8 or"),
    (lambda: Mining(relative_margin=-0.1), "relative_margin: expected 0 or more"),
    (lambda: Mining(absolute_margin=float("nan")), "absolute_margin: expected 0 or more, got nan"),
    (lambda: Mining(min_score=0.5, max_score=0.4), "min_score: expected less than max_score"),
    (lambda: Mining(same=1.5), "same: .* above 0 to 1, got 1.5"),
    (lambda: Mining(take="best"), "take: .* got 'best'"),  # type: ignore[arg-type]  # the point
    (lambda: PairTexts([], ["a"]), "expected pairs of a query and a positive, got no pair"),
    (lambda: PairTexts([("a", 3)]), "expected texts, got int in pair 0"),  # type: ignore[list-item]  # the point
    (lambda: PairTexts([("a", "b\0c")]), r"without the character U\+0000, which training refuses"),
    (lambda: PairTexts([("q", "p")], ["a", "b\udc80"]), "half a surrogate.* in text 1 of the corpus;"),
    (lambda: PairTexts([("q", "p"), ("q\ud800", "r")]), "half a surrogate.* in pair 1;"),
    (
        lambda: mine(ONE, Space(torch.eye(2), torch.eye(2)[:1]), Mining(), range(1)),
        "expected vectors of 1 queries and 1 texts, got 2 and 1",
    ),
    (
        lambda: mine(ONE, Space(torch.ones(1, 2), torch.full((1, 2), torch.nan)), Mining(), range(1)),
        "corpus: expected finite numbers",
    ),
]


@pytest.mark.parametrize(("call", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_options_texts_and_vectors_that_cannot_be_are_refused(call: Callable[[], object], words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        call()
