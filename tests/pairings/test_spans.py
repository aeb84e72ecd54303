"""Spans: lengths, blocks and ranges as DeCLUTR's authors coded them, every document that is served, the loss."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise, product
from typing import Any, TypeVar, cast, get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from contrastive_text.core.batch import Encoded
from contrastive_text.core.random import generator
from contrastive_text.core.types import Slot, Tokens
from contrastive_text.data.collator import example_slots
from contrastive_text.losses import NTXent
from contrastive_text.objectives import Contrastive
from contrastive_text.pairings.spans import (
    Spans,
    Start,
    Strategy,
    anchor_blocks,
    grid_starts,
    positive_starts,
    span_length,
    uniform_starts,
)

Result = TypeVar("Result")
Key = TypeVar("Key")
SIGMAS = 4
"""Standard deviations that a frequency may be off; seeds are fixed, so a pass stays a pass."""


def document(n: int, first: int = 1000) -> Tokens:
    """Tokens 1000, 1001, ...: every token tells its place."""
    return Tokens(ids=tuple(range(first, first + n)), words=tuple(range(n)))


def place_of(span: Any, first: int = 1000) -> range:
    """Returns the position of a span in ``document``, of which it must be a slice."""
    assert isinstance(span, Tokens)
    place = range(span.ids[0] - first, span.ids[-1] - first + 1)
    assert span.ids == tuple(i + first for i in place)
    assert span.words == tuple(place)
    return place


class Undecided(Exception):
    """A script ended before a draw among so many options."""


class Script:
    """In the place of a generator: gives integers from a list, and notes how likely they were."""

    def __init__(self, choices: tuple[int, ...]) -> None:
        self.choices = iter(choices)
        self.probability = Fraction(1)

    def integers(self, options: int) -> int:
        choice = next(self.choices, None)
        if choice is None:
            raise Undecided(options)
        self.probability /= options
        return choice


def outcomes(draw: Callable[[np.random.Generator], Result]) -> Iterator[tuple[Result, Fraction]]:
    """Every result of a sampler that draws nothing but integers, with its exact probability."""
    scripts: list[tuple[int, ...]] = [()]
    while scripts:
        choices = scripts.pop()
        script = Script(choices)
        try:
            result = draw(cast(np.random.Generator, script))
        except Undecided as end:
            scripts += [(*choices, i) for i in range(end.args[0])]
        else:
            yield result, script.probability


def blocks(tokens: int, anchors: int) -> list[tuple[list[int], Fraction]]:
    """Every choice of blocks of 512 tokens, by number, with its probability."""
    starts = outcomes(lambda rng: anchor_blocks(tokens, anchors, length=512, rng=rng))
    return [([start // 512 for start in chosen], probability) for chosen, probability in starts]


def shares(found: Iterable[tuple[Key, Fraction]]) -> dict[Key, Fraction]:
    """The probability of each key."""
    total: dict[Key, Fraction] = defaultdict(Fraction)
    for key, probability in found:
        total[key] += probability
    return total


@pytest.fixture(scope="module")
def pairs() -> list[tuple[range, range]]:
    """Anchors and positives as by default, drawn from a long document, far from its edges."""
    pairing, rng = Spans(anchors=1, positives=1), generator(11)
    drawn = [pairing.draw_spans(20 * 512, rng) for _ in range(20_000)]
    return [(a, p) for [(a, [p])] in drawn if a.start >= 512 and a.stop <= 19 * 512]


@pytest.mark.parametrize(
    ("beta", "length"), [(0.0, 32), (0.002, 32), (0.0021, 33), (0.5, 272), (0.9999, 511), (1.0, 512)]
)
def test_d1_a_length_is_the_floor_of_the_scaled_beta(beta: float, length: int) -> None:
    class Fixed:
        def beta(self, a: float, b: float) -> float:
            assert (a, b) == (4, 2)
            return beta

    assert span_length((4, 2), shortest=32, longest=512, rng=cast(np.random.Generator, Fixed())) == length


@pytest.mark.parametrize(("beta", "role"), [((4, 2), "anchor"), ((2, 4), "positive")])
def test_d1_lengths_have_the_moments_of_the_beta(
    vectors: dict[str, Any], beta: tuple[float, float], role: str
) -> None:
    case, n, rng = vectors["declutr_lengths"], 100_000, generator(1)
    lengths = np.array([span_length(beta, case["min"], case["max"], rng) for _ in range(n)])
    least, most = case[f"support_{role}"]
    sd = case["sd_before_floor"]
    assert lengths.min() >= least
    assert lengths.max() <= most
    # The floor takes half a token from the mean: the density hardly changes from one token to the next.
    expected = case[f"{role}_mean_exact_before_floor"] - 0.5
    assert abs(lengths.mean() - expected) < SIGMAS * sd / math.sqrt(n)
    # Both distributions have a kurtosis of 2.625, which gives the error of the standard deviation.
    assert abs(lengths.std() - sd) < SIGMAS * sd * math.sqrt((2.625 - 1) / (4 * n))


def test_d1_anchors_are_long_and_positives_short(
    vectors: dict[str, Any], pairs: list[tuple[range, range]]
) -> None:
    case = vectors["declutr_lengths"]
    bound = SIGMAS * case["sd_before_floor"] / math.sqrt(len(pairs))
    for role, spans in zip(("anchor", "positive"), zip(*pairs, strict=True), strict=True):
        mean = np.mean([len(span) for span in spans])
        assert abs(mean - (case[f"{role}_mean_exact_before_floor"] - 0.5)) < bound


def test_d2_a_document_has_room_for_twice_the_anchors(vectors: dict[str, Any]) -> None:
    case = vectors["declutr_length_check"]
    pairing = Spans(anchors=case["A"], max_length=case["max_span"])
    least = case["min_document_tokens"]
    assert not pairing.accepts_length(least - 1)
    assert pairing.accepts_length(least)
    assert not Spans(anchors=1).accepts_length(1023)
    assert Spans(anchors=1).accepts_length(1024)
    # So that one anchor sees the documents that two see.
    assert [Spans(a, min_document_tokens=2048).min_tokens for a in (1, 2)] == [2048, 2048]
    assert not Spans(anchors=1, min_document_tokens=2048).accepts_length(2047)


def test_d2_a_short_document_ends_the_run_if_asked() -> None:
    pairing = Spans(too_short="error")
    assert pairing.accepts_length(2048)
    said = r"Spans.too_short: expected documents of 2,048 tokens or more .*, got .* 2,047; set skip .* shrink"
    with pytest.raises(ValueError, match=said):
        pairing.accepts_length(2047)


def test_d2_a_short_document_gets_shorter_spans_if_asked() -> None:
    pairing = Spans(anchors=2, positives=1, too_short="shrink", anchor_beta=(1e6, 1.0))
    # 132 tokens leave room for four spans of 33, which is above the least length.
    assert [n for n in range(200) if pairing.accepts_length(n)] == list(range(132, 200))
    lengths = {
        n: max(len(a) for a, _ in pairing.draw_spans(n, generator(0))) for n in (132, 1000, 2047, 2048, 9000)
    }
    # A Beta that is hardly ever below 0.9999 makes anchors one token shorter than they may be, or as long.
    assert all(lengths[n] in (limit - 1, limit) for n, limit in ((132, 33), (1000, 250), (2047, 511)))
    assert all(lengths[n] in (511, 512) for n in (2048, 9000))


@pytest.mark.parametrize("too_short", ["skip", "shrink"])
def test_d2_spans_of_a_document_that_is_not_served_are_refused(too_short: Any) -> None:
    with pytest.raises(ValueError, match=r"Spans: expected [\d,]+ tokens or more, got 100; skip shorter"):
        Spans(too_short=too_short)({"text": document(100)}, generator(0))


def test_d3_pairs_of_blocks_have_the_probabilities_of_the_authors_code(vectors: dict[str, Any]) -> None:
    case = vectors["declutr_anchor_blocks"]
    found = shares((",".join(map(str, sorted(chosen))), p) for chosen, p in blocks(case["n"], anchors=case["A"]))
    expected = {pair: Fraction(p) for pair, p in case["unordered_block_pair_probability"].items()}
    assert found == expected


@pytest.mark.parametrize("anchors", range(1, 6))
@pytest.mark.parametrize("extra", [0, 511, 512, 1536])
def test_d4_and_d5_a_block_is_always_left_and_no_two_touch(anchors: int, extra: int) -> None:
    tokens = 2 * anchors * 512 + extra
    total = Fraction(0)
    for chosen, probability in blocks(tokens, anchors):
        assert len(chosen) == anchors
        assert 0 <= min(chosen) <= max(chosen) < tokens // 512
        assert all(b - a >= 2 for a, b in pairwise(sorted(chosen)))
        total += probability
    assert total == 1


def first_block(tokens: int, anchors: int) -> dict[int, Fraction]:
    return shares((chosen[0], probability) for chosen, probability in blocks(tokens, anchors))


def test_d6_the_first_of_four_anchors_is_at_an_edge_of_the_shortest_document(vectors: dict[str, Any]) -> None:
    expected = vectors["declutr_anchor_blocks"]["A4_n4096_first_anchor_block_probability"]
    assert first_block(4096, anchors=4) == {int(block): Fraction(p) for block, p in expected.items()}


@pytest.mark.parametrize("anchors", [1, 2, 3])
def test_d6_the_first_anchor_is_drawn_from_all_blocks_if_there_are_anchors_squared(anchors: int) -> None:
    enough = max(anchors**2, 2 * anchors)
    assert first_block(enough * 512, anchors) == dict.fromkeys(range(enough), Fraction(1, enough))
    if anchors > 2:
        assert set(first_block((enough - 1) * 512, anchors)) == {0, enough - 2}


def test_d7_the_tail_behind_the_last_whole_block_is_in_no_anchor(vectors: dict[str, Any]) -> None:
    case = vectors["declutr_anchor_blocks"]["tail_never_used"]
    last = max(max(chosen) for chosen, _ in blocks(case["n"], anchors=2)) * 512 + 511
    assert last == case["last_token_an_anchor_can_cover"]
    assert case["n"] - 1 - last == case["unused_tail_tokens"]
    # Anchors as long as a block are the blocks.
    pairing = Spans(min_length=512, positives=0)
    assert all(
        a.stop <= last + 1 for seed in range(50) for a, _ in pairing.draw_spans(case["n"], generator(seed))
    )


def test_d4_an_anchor_starts_anywhere_in_its_block_where_it_does_not_cross_the_end() -> None:
    found = shares(outcomes(lambda rng: tuple(grid_starts(8, [2], longest=4, rng=rng))))
    assert found == {(start,): Fraction(1, 6) for start in (0, 1, 2, 4, 5, 6)}


@pytest.mark.parametrize("lengths", [(2,), (1,), (2, 2), (2, 1), (1, 2)])
def test_uniform_starts_are_all_that_fit_and_equally_likely(lengths: tuple[int, ...]) -> None:
    tokens, longest, draws = 9, 2, 10_000
    fitting = [
        starts
        for starts in product(range(tokens), repeat=len(lengths))
        if all(b - a >= 2 * longest for a, b in pairwise(starts))
        and all(start + length <= tokens for start, length in zip(starts, lengths, strict=True))
    ]
    rng = generator(3)
    found = Counter(tuple(uniform_starts(tokens, lengths, longest, rng)) for _ in range(draws))
    assert set(found) == set(fitting)
    share = 1 / len(fitting)
    bound = SIGMAS * math.sqrt(draws * share * (1 - share))
    assert all(abs(count - draws * share) < bound for count in found.values())


def test_d8_d9_and_d10_starts_of_positives_are_those_of_the_cases(vectors: dict[str, Any]) -> None:
    checked = []
    for case in vectors["declutr_positive_ranges"]["cases"]:
        anchor, length, tokens = range(*case["anchor"]), case["positive_len"], case["n"]
        for strategy, name in (("any", "default"), ("subsuming", "subsuming")):
            if f"{name}_start_min" in case:
                expected = range(case[f"{name}_start_min"], case[f"{name}_start_max"] + 1)
                assert positive_starts(cast(Strategy, strategy), anchor, length, tokens) == expected
                checked.append(name)
        for name, at_start in (("", True), ("", False), ("_reference_code", False), ("_correct", True)):
            if f"adjacent_starts{name}" in case:
                found = positive_starts("adjacent", anchor, length, tokens, at_start=at_start)
                assert found == case[f"adjacent_starts{name}"]
                checked.append("adjacent")
    assert Counter(checked) == {"default": 3, "subsuming": 1, "adjacent": 4}


def test_d10_a_left_neighbor_at_token_zero_is_taken_where_nothing_else_fits() -> None:
    # The authors' code refuses it, and then chooses from nothing.
    assert positive_starts("adjacent", range(512, 1024), length=512, tokens=1024, at_start=False) == [0]
    assert positive_starts("adjacent", range(512, 1023), length=512, tokens=1024, at_start=False) == [0]
    assert positive_starts("adjacent", range(511, 1023), length=511, tokens=1534, at_start=False) == [1023]


@pytest.mark.parametrize(("at_start", "starts"), [(True, {0, 8}), (False, {8})])
def test_d10_a_pairing_takes_a_left_neighbor_at_token_zero_as_asked(at_start: bool, starts: set[int]) -> None:
    pairing = Spans(1, 1, min_length=4, max_length=4, strategy="adjacent", adjacent_at_start=at_start)
    drawn = [pairing.draw_spans(12, generator(seed)) for seed in range(50)]
    assert {positive.start for [(anchor, [positive])] in drawn if anchor.start == 4} == starts


def test_d11_positives_as_by_default_mostly_overlap_their_anchor_in_part(
    vectors: dict[str, Any], pairs: list[tuple[range, range]]
) -> None:
    def view(anchor: range, positive: range) -> str:
        if positive.stop < anchor.start or positive.start > anchor.stop:
            return "disjoint"
        if positive.start >= anchor.start and positive.stop <= anchor.stop:
            return "subsumed"
        if positive.start <= anchor.start and positive.stop >= anchor.stop:
            return "anchor_inside_positive"
        touching = positive.stop == anchor.start or positive.start == anchor.stop
        return "exactly_adjacent" if touching else "partial_overlap"

    found = Counter(view(*pair) for pair in pairs)
    expected = vectors["declutr_lengths"]["default_strategy_view_fractions_simulated_far_from_edges"]
    assert set(found) <= set(expected)
    for name, share in expected.items():
        # The shares of the sheet have three digits, the fourth being rounded.
        bound = SIGMAS * math.sqrt(share * (1 - share) / len(pairs)) + 0.0005
        assert abs(found[name] / len(pairs) - share) < bound, name


@st.composite
def served(draw: st.DrawFn) -> tuple[Spans, int]:
    """A pairing with short spans, and the length of a document that it serves."""
    least = draw(st.integers(1, 8))
    # A Beta(0.01, 0.01) is almost always very near 0 or 1: the shortest and the longest spans.
    betas = st.sampled_from([(4.0, 2.0), (2.0, 4.0), (0.01, 0.01), (0.01, 5.0), (5.0, 0.01)])
    pairing = Spans(
        anchors=draw(st.integers(1, 4)),
        positives=draw(st.integers(0, 3)),
        min_length=least,
        max_length=least + draw(st.integers(0, 12)),
        anchor_beta=draw(betas),
        positive_beta=draw(betas),
        strategy=draw(st.sampled_from(get_args(Strategy))),
        start=draw(st.sampled_from(get_args(Start))),
        too_short=draw(st.sampled_from(["error", "skip", "shrink"])),
        adjacent_at_start=draw(st.booleans()),
    )
    return pairing, pairing.min_tokens + draw(st.integers(0, 60))


@settings(max_examples=150)
@given(case=served(), seed=st.integers(0, 2**31))
def test_d4_every_document_that_is_served_gives_spans_by_the_rules(case: tuple[Spans, int], seed: int) -> None:
    pairing, tokens = case
    assert pairing.accepts_length(tokens)
    longest = min(pairing.max_length, tokens // (2 * pairing.anchors))
    examples = pairing({"text": document(tokens)}, generator(seed))
    assert len(examples) == pairing.anchors
    anchors = [place_of(example.anchor) for example in examples]
    for anchor, example in zip(anchors, examples, strict=True):
        assert 0 <= anchor.start < anchor.stop <= tokens
        assert pairing.min_length <= len(anchor) <= longest
        assert len(example.positives) == pairing.positives
        for positive in map(place_of, example.positives):
            assert 0 <= positive.start < positive.stop <= tokens
            check_positive(pairing, anchor, positive, tokens, longest)
    for before, after in pairwise(sorted(anchors, key=lambda anchor: anchor.start)):
        assert after.start - before.stop >= longest
        if pairing.start == "uniform":
            assert after.start - before.start >= 2 * longest
        else:
            assert after.start // longest - before.start // longest >= 2
    if pairing.start == "grid":
        assert all(anchor.start // longest == (anchor.stop - 1) // longest for anchor in anchors)
        assert all(anchor.stop <= tokens // longest * longest for anchor in anchors)


def check_positive(pairing: Spans, anchor: range, positive: range, tokens: int, longest: int) -> None:
    left, right = positive.stop == anchor.start, positive.start == anchor.stop
    if pairing.strategy == "subsuming":
        assert anchor.start <= positive.start < positive.stop <= anchor.stop
        assert len(positive) >= pairing.min_length
    elif pairing.strategy == "any":
        assert positive.start <= anchor.stop
        assert positive.stop >= anchor.start
        assert pairing.min_length <= len(positive) <= longest
    else:
        assert left or right
        room = min(longest, max(anchor.start, tokens - anchor.stop))
        assert min(pairing.min_length, room) <= len(positive) <= room
        if positive.start == 0 and not pairing.adjacent_at_start:
            assert anchor.stop + len(positive) > tokens


def test_subsumed_lengths_reach_from_the_least_to_the_anchors() -> None:
    pairing = Spans(
        anchors=1, positives=50, min_length=2, max_length=8, positive_beta=(1, 0.01), strategy="subsuming"
    )
    for seed in range(20):
        [(anchor, positives)] = pairing.draw_spans(16, generator(seed))
        assert max(len(positive) for positive in positives) == len(anchor)


def test_adjacent_positives_lie_on_both_sides_alike() -> None:
    pairing, rng, draws = Spans(anchors=1, positives=1, strategy="adjacent"), generator(5), 2000
    drawn = [pairing.draw_spans(20 * 512, rng) for _ in range(draws)]
    # Both sides have room unless the anchor lies in the first or the last of 20 blocks.
    inner = [(a, p) for [(a, [p])] in drawn if a.start >= 512 and a.stop <= 19 * 512]
    left = sum(p.stop == a.start for a, p in inner)
    assert abs(left - len(inner) / 2) < SIGMAS * math.sqrt(len(inner)) / 2


def test_a_neighbor_fills_the_wider_side_where_the_least_length_does_not_fit() -> None:
    pairing = Spans(anchors=1, positives=4, min_length=8, max_length=8, strategy="adjacent", start="uniform")
    anchors = set()
    for seed in range(100):
        [(anchor, positives)] = pairing.draw_spans(16, generator(seed))
        anchors.add(anchor)
        assert {len(positive) for positive in positives} == {max(anchor.start, 16 - anchor.stop)}
    assert len(anchors) == 9


def test_labels_and_positions_follow_the_tokens() -> None:
    places = tuple(range(2048))
    text = replace(document(2048), positions=places, labels=places)
    for example in Spans()({"text": text}, generator(0)):
        for span in (example.anchor, *example.positives):
            assert isinstance(span, Tokens)
            assert span.positions == span.labels == span.words


def encoded(examples: int, positives: int, vectors: Tensor) -> Encoded:
    """Rows slot by slot, every text another one."""
    slots = (Slot("anchor", 0), *(Slot("positive", i) for i in range(positives)))
    return Encoded(vectors, slots, text_ids=torch.arange(examples * len(slots)))


def test_d13_and_s7_positives_stay_with_their_anchor_slot_by_slot(vectors: dict[str, Any]) -> None:
    case = vectors["declutr_positive_layout"]
    pairing = Spans(anchors=case["A"], positives=case["P"], strategy="subsuming")
    documents = [document(2048, first=10_000 * d) for d in range(case["N_docs"])]
    examples = [e for d, text in enumerate(documents) for e in pairing({"text": text}, generator(d))]
    order = [f"doc{d}/anchor{a}" for d in range(case["N_docs"]) for a in range(case["A"])]
    assert order == case["anchor_order"]
    assert len(examples) == len(order)
    # The authors number the positives example by example; ours stand slot by slot.
    number = {id(text): i for i, text in enumerate(text for e in examples for text in e.positives)}
    rows = [text for slot in zip(*map(example_slots, examples), strict=True) for _, text in slot]
    ours = torch.tensor([[float(number.get(id(text), -1))] for text in rows])
    groups = encoded(len(examples), positives=case["P"], vectors=ours).role("positive")
    assert groups.squeeze(2).tolist() == case["mean_groups"]
    for d, example in zip((0, 0, 1, 1), examples, strict=True):
        anchor = place_of(example.anchor, first=10_000 * d)
        for positive in example.positives:
            place = place_of(positive, first=10_000 * d)
            assert anchor.start <= place.start < place.stop <= anchor.stop


def test_d14_a_text_meets_62_negatives_the_other_anchor_of_its_document_among_them() -> None:
    n, temperature = 32, 0.05
    objective = Contrastive(loss=NTXent(temperature=temperature))
    assert objective.describe_negatives(batch_size=n, positives=2, negatives=0).startswith("62 per anchor")
    # Orthogonal vectors have logits of 0, but both anchors of the first document meet one of 1 / 0.05.
    vectors = torch.eye(2 * n, dtype=torch.float64)
    vectors[1] = vectors[0]
    terms = objective(encoded(n, positives=1, vectors=vectors))
    assert terms.count == 2 * n
    expected = (2 * n - 2) * math.log(63) + 2 * math.log(62 + math.exp(1 / temperature))
    assert float(terms.total) == pytest.approx(expected, abs=1e-9)
