"""Views of tokens: deletion, cropping, reordering, repetition, shuffled positions and masking."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations, groupby, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from architectures import PAIR, encoder_of, ragged
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from contrastive_text.core.random import draw_spans, generator
from contrastive_text.core.types import NO_LABEL, NO_WORD, Tokens, Vocabulary
from contrastive_text.data import Collator, KeyedRow, TextTokenizer, learn_vocabulary
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.pairings import SameText
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.views import RepeatTokens, ShufflePositions, ViewPlan
from contrastive_text.views.base import TokenView
from contrastive_text.views.masking import MaskTokens
from contrastive_text.views.tokens import (
    CropTokens,
    DeleteOneWord,
    DeleteSpans,
    DeleteTokens,
    ReorderSpans,
    delete_tokens,
    draw_even_spans,
    exchange_spans,
)

DEL = 9
VOCABULARY = Vocabulary(size=1000, prefix=1, suffix=1, special_ids=frozenset({DEL}), added={"[DEL]": DEL})
SEEDS = st.integers(0, 2**31)
RATES = st.floats(0, 1)


def text(n: int) -> Tokens:
    """Tokens 100, 101, ...: every token tells its place, and is a word."""
    return Tokens(ids=tuple(range(100, 100 + n)), words=tuple(range(n)))


def built(view: TokenView) -> TokenView:
    view.build(VOCABULARY)
    return view


@st.composite
def worded(draw: st.DrawFn) -> Tokens:
    """Tokens whose words have one to three pieces."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=10))
    words = tuple(word for word, size in enumerate(sizes) for _ in range(size))
    return Tokens(ids=tuple(range(100, 100 + len(words))), words=words)


@pytest.mark.parametrize("name", ["example_word", "all_deleted", "example_span", "adjacent_spans_merge"])
def test_c1_and_c2_runs_of_deleted_tokens_and_spans_become_one_mark(name: str, vectors: dict[str, Any]) -> None:
    case = vectors["clear_deletion"][name]
    deleted = case.get("deleted") or [i for span in case["deleted_spans"] for i in range(*span)]
    ids = delete_tokens(text(len(case["tokens"])), deleted, mark=DEL).ids
    assert ["[DEL]" if i == DEL else case["tokens"][i - 100] for i in ids] == case["out"]


@given(
    ids=st.lists(st.sampled_from([100, 101, DEL]), min_size=1, max_size=10),
    drawn=st.lists(st.booleans(), min_size=10, max_size=10),
)
def test_a_mark_takes_word_and_position_of_the_first_token_of_its_run_and_has_no_label(
    ids: list[int], drawn: list[bool]
) -> None:
    n = len(ids)
    labels = tuple(NO_LABEL if i == DEL else i + 50 for i in ids)
    tokens = Tokens(ids=tuple(ids), words=tuple(range(n)), positions=tuple(range(n, 0, -1)), labels=labels)
    gone = drawn[:n]
    left = delete_tokens(tokens, [i for i in range(n) if gone[i]], mark=DEL)
    if not any(gone):
        assert left == tokens
        return
    expected = []
    for marked, run in groupby(range(n), key=lambda i: gone[i] or ids[i] == DEL):
        whole = list(run)
        expected += [(DEL, whole[0], n - whole[0], NO_LABEL)] if marked else []
        expected += [] if marked else [(ids[i], i, n - i, ids[i] + 50) for i in whole]
    assert left.positions is not None
    assert left.labels is not None
    assert list(zip(left.ids, left.words, left.positions, left.labels, strict=True)) == expected


def test_c3_and_c4_del_word_deletes_seven_of_ten_and_keeps_the_order(vectors: dict[str, Any]) -> None:
    case = vectors["clear_deletion"]["n10_k7"]
    view = built(DeleteTokens(0.7, mark="[DEL]"))
    drawn = [view(text(10), generator(seed)).ids for seed in range(200)]
    kept = [[i for i in ids if i != DEL] for ids in drawn]
    assert {len(ids) for ids in kept} == {3}
    assert all(ids == sorted(ids) for ids in kept)
    assert {len(ids) for ids in drawn} == set(range(case["length_min"], case["length_max"] + 1))
    # All choices of seven, each once: the means are exact, of k (n - k + 1) / n runs.
    views = [delete_tokens(text(10), gone, mark=DEL) for gone in combinations(range(10), 7)]
    assert np.mean([len(view) for view in views]) == pytest.approx(case["expected_length"], abs=1e-12)
    assert np.mean([view.ids.count(DEL) for view in views]) == pytest.approx(7 * 4 / 10, abs=1e-12)


def test_c5_del_span_deletes_five_spans_that_do_not_overlap(vectors: dict[str, Any]) -> None:
    view, plain = built(DeleteSpans()), DeleteSpans(mark=None)
    for n, case in ((100, "n100"), (20, "n20")):
        counts = vectors["clear_span_deletion_counts"][case]
        lengths = [len(view(text(n), generator(seed))) for seed in range(300)]
        assert counts["length_min"] <= min(lengths) <= max(lengths) == counts["length_max"]
        removed = {n - len(plain(text(n), generator(seed))) for seed in range(50)}
        assert removed == {5 * counts["span_len"]}
    assert vectors["clear_span_deletion_counts"]["n100"]["tokens_deleted_if_disjoint"] == 5 * 5


@given(units=st.integers(1, 40), spans=st.integers(0, 6), share=st.floats(0, 1, exclude_min=True), seed=SEEDS)
def test_spans_are_whole_and_overlap_only_where_there_is_no_room(
    units: int, spans: int, share: float, seed: int
) -> None:
    length = max(1, int(share * units))
    starts = draw_spans(units, spans, length=length, rng=generator(seed))
    assert len(starts) == spans
    assert starts == sorted(starts)
    assert all(0 <= start <= units - length for start in starts)
    if spans * length <= units:
        assert all(after - before >= length for before, after in pairwise(starts))


@pytest.mark.parametrize(
    ("n", "deleted", "moved"),
    [(1, 0, 0), (2, 1, 2), (3, 1, 2), (5, 1, 2), (10, 2, 5), (20, 5, 10), (39, 10, 20), (59, 15, 30)],
)
def test_shares_are_rounded_over_all_spans_and_never_take_a_whole_text(n: int, deleted: int, moved: int) -> None:
    for seed in range(10):
        left = DeleteSpans(mark=None)(text(n), generator(seed)).ids
        marked = built(DeleteSpans())(text(n), generator(seed)).ids
        assert [i for i in marked if i != DEL] == list(left)
        assert len(left) == n - deleted
        ids = ReorderSpans()(text(n), generator(seed)).ids
        assert sorted(ids) == list(text(n).ids)
        drawn = draw_even_spans(n, moved, most=10, rng=generator(seed))
        assert sum(map(len, drawn)) == moved
        assert max(map(len, drawn), default=0) <= min(map(len, drawn), default=0) + 1
        if 0 < moved < 5 or moved % 10 == 0:  # equal spans, so that all else stays in its place
            assert sum(i != place + 100 for place, i in enumerate(ids)) == moved
    for rate, count in ((1.0, min(n, 1)), (0.7, max(n - round(0.7 * n), 1))):
        kept = built(DeleteTokens(rate, mark="[DEL]"))(text(n), generator(0)).ids
        assert sum(i != DEL for i in kept) == count


def test_c6_the_exchange_of_the_papers_figure(vectors: dict[str, Any]) -> None:
    case = vectors["clear_reorder"]["example"]
    a, b = (range(*span) for span in case["spans"])
    once = exchange_spans(range(6), [(a, b)])
    assert [case["tokens"][i] for i in once] == case["out"]
    # (t1 t2) now stands at 2 and 3, (t4) at 0: the same pair again restores the text.
    again = exchange_spans([0, 1, 2, 4, 5], [(range(1), range(2, 3))])
    assert [once[i] for i in again] == list(range(5))


@settings(max_examples=50)
@given(
    cuts=st.sets(st.integers(0, 30), min_size=8, max_size=8).map(sorted),
    pairing=st.sampled_from([(0, 1, 2, 3), (0, 2, 3, 1), (3, 0, 1, 2)]),
)
def test_c6_an_exchange_keeps_every_token_and_all_that_stands_between(
    cuts: list[int], pairing: tuple[int, ...]
) -> None:
    spans = [range(cuts[i], cuts[i + 1]) for i in range(0, 8, 2)]
    partner = {pairing[0]: pairing[1], pairing[1]: pairing[0], pairing[2]: pairing[3], pairing[3]: pairing[2]}
    pairs = [(spans[pairing[0]], spans[pairing[1]]), (spans[pairing[2]], spans[pairing[3]])]
    between = [range(i, k) for i, k in zip([0, *cuts[1::2]], [*cuts[::2], 30], strict=True)]
    expected = [*between[0]]
    for i in range(4):
        expected += [*spans[partner[i]], *between[i + 1]]
    assert exchange_spans(range(31), pairs) == expected
    words = exchange_spans([*range(0, 61, 2)], pairs)  # of two tokens each
    assert words == [token for word in expected for token in (2 * word, 2 * word + 1)]


def test_marks_that_a_reordering_brings_together_are_merged() -> None:
    marked = built(DeleteTokens(0.5, mark="[DEL]"))(text(40), generator(0))
    merged, left = built(ReorderSpans()), ReorderSpans(mark=None)
    fewer = 0
    for seed in range(50):
        runs = [
            i for i, run in groupby(left(marked, generator(seed)).ids) for _ in (range(1) if i == DEL else run)
        ]
        assert list(merged(marked, generator(seed)).ids) == runs
        fewer += len(runs) < len(marked)
    assert fewer > 25


def repeated_token(rng: np.random.Generator) -> int:
    """The token that is there twice; 0 for none."""
    return next((i for i, n in Counter(built(RepeatTokens(1.0, most=2))(text(5), rng).ids).items() if n > 1), 0)


# Draws -> their results, each as often as it is likely.
LIKELY: dict[str, tuple[Callable[[np.random.Generator], Any], Sequence[Any]]] = {
    "spans without overlap": (lambda rng: tuple(draw_spans(5, 2, length=2, rng=rng)), [(0, 2), (0, 3), (1, 3)]),
    "which span is the shorter one": (
        lambda rng: tuple(map(len, draw_even_spans(9, covered=5, most=3, rng=rng))),
        [(1, 2, 2), (2, 1, 2), (2, 2, 1)],
    ),
    "which spans change places": (
        lambda rng: ReorderSpans(pairs=2, rate=0.25)(text(4), rng).ids,
        [(101, 100, 103, 102), (102, 103, 100, 101), (103, 102, 101, 100)],
    ),
    "crops": (lambda rng: CropTokens(0.3)(text(10), rng).ids[0], range(100, 104)),
    "deleted tokens": (lambda rng: DeleteTokens(0.8)(text(5), rng).ids, [(i,) for i in text(5).ids]),
    # One or none.
    "repeated tokens": (repeated_token, [*text(5).ids, *5 * [0]]),
}


@pytest.mark.parametrize(("draw", "results"), LIKELY.values(), ids=LIKELY)
def test_all_results_are_equally_likely(
    draw: Callable[[np.random.Generator], Any], results: Sequence[Any]
) -> None:
    rng, draws = generator(0), 3000
    found, expected = Counter(draw(rng) for _ in range(draws)), Counter(results)
    assert found.keys() == expected.keys()
    for result, times in expected.items():
        share = times / len(results)
        assert abs(found[result] - draws * share) < 5 * (draws * share * (1 - share)) ** 0.5


@given(tokens=worded(), seed=SEEDS)
def test_reordering_by_words_keeps_words_whole(tokens: Tokens, seed: int) -> None:
    view = ReorderSpans(pairs=2, rate=0.2, unit="word")(tokens, generator(seed))
    assert sorted(view.ids) == list(tokens.ids)
    runs = [[view.ids[i] for i in run] for _, run in groupby(range(len(view)), key=lambda i: view.words[i])]
    whole = [
        [tokens.ids[i] for i in run] for _, run in groupby(range(len(tokens)), key=lambda i: tokens.words[i])
    ]
    assert sorted(runs) == whole


@given(tokens=worded(), rate=RATES, exact=st.booleans(), seed=SEEDS)
def test_deleting_words_takes_all_tokens_of_a_word_or_none(
    tokens: Tokens, rate: float, exact: bool, seed: int
) -> None:
    view = DeleteTokens(rate, exact=exact, unit="word")(tokens, generator(seed))
    before, after = Counter(tokens.words), Counter(view.words)
    assert all(after[word] == before[word] for word in after)
    assert len(after) >= 1
    if exact:
        assert len(after) == max(len(before) - round(rate * len(before)), 1)


def test_tokens_that_go_independently_go_at_the_rate_in_varying_number() -> None:
    rng = np.random.default_rng(0)
    gone = [25 - len(DeleteTokens(0.3, exact=False)(text(25), rng)) for _ in range(400)]
    # 3,000 of 10,000, standard deviation 46; four of them. A text's count has variance 25 * .3 * .7 = 5.25,
    # and the sample's variance over 400 texts a standard deviation of about 5.25 * sqrt(2 / 400) = 0.37.
    assert abs(sum(gone) - 3000) < 4 * 46
    assert abs(np.var(gone) - 5.25) < 4 * 0.37


@given(tokens=worded(), seed=SEEDS)
def test_delete_one_word_takes_one_word_unless_it_is_the_only_one(tokens: Tokens, seed: int) -> None:
    view = DeleteOneWord()(tokens, generator(seed))
    words = set(tokens.words)
    assert len(set(view.words)) == max(len(words) - 1, 1)
    assert view == tokens.take([i for i, word in enumerate(tokens.words) if word in view.words])


@given(n=st.integers(1, 30), rate=RATES, seed=SEEDS)
def test_a_crop_is_one_stretch_of_the_rest_of_the_tokens(n: int, rate: float, seed: int) -> None:
    ids = CropTokens(rate)(text(n), generator(seed)).ids
    assert len(ids) == max(n - round(rate * n), 1)
    assert list(ids) == list(range(ids[0], ids[0] + len(ids)))


DRAWS = 300


def repeated(view: RepeatTokens, n: int) -> list[int]:
    """Returns the number of repeated tokens in each of several draws."""
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


@pytest.mark.parametrize(("spare", "longest"), [(0, 8), (3, 11), (None, 14)])
def test_a_cut_text_gets_longer_as_far_as_the_network_takes_it(spare: int | None, longest: int) -> None:
    letters = "a b c d e f g h i j"
    tokenizer = TextTokenizer(learn_vocabulary([letters], vocabulary_size=60), 8, spare)
    plan = ViewPlan({"positive": [RepeatTokens(1.0)]})
    plan.build(tokenizer.vocabulary())
    rows = [KeyedRow(epoch=0, number=i, row={"text": letters}) for i in range(DRAWS)]
    anchors, positives = Collator(tokenizer, SameText(), plan, seed=0)(rows).lengths.split(DRAWS)
    # Of the 6 tokens that are left of the text all may be repeated; it is cut before that, and not after it.
    assert {*anchors.tolist()} == {8}
    assert {*positives.tolist()} == {*range(8, longest + 1)}


def test_the_room_beyond_the_limit_of_training_is_that_of_the_network(bert: str) -> None:
    module = ContrastiveModule(TransformerEncoder(bert, max_length=16))
    limit = module.encoder.limit
    assert limit is not None
    for max_length, spare in ((16, limit - 16), (None, 0)):
        module.encoder.max_length = max_length
        tokenizer = module.text_tokenizer()
        assert tokenizer is not None
        assert (tokenizer.max_length, tokenizer.spare) == (max_length or limit, spare)


@pytest.mark.parametrize("specials", [True, False])
@pytest.mark.parametrize("earlier", [None, (3, 1, 0, 2, 4)])
def test_k6_shuffling_permutes_positions_alone_and_on_request_leaves_those_of_specials(
    earlier: tuple[int, ...] | None, specials: bool
) -> None:
    tokens = Tokens((50, 51, 52, 53, 54), (NO_WORD, 0, 1, 2, NO_WORD), positions=earlier, labels=(NO_LABEL,) * 5)
    seen = set()
    for seed in range(30):
        view = ShufflePositions(specials)(tokens, generator(seed))
        assert replace(view, positions=earlier) == tokens
        assert view.positions is not None and sorted(view.positions) == [*range(5)]
        seen.add((view.positions[0], view.positions[-1]))
    assert (seen == {((earlier or range(5))[0], 4)}) == (not specials)


def test_k5_a_token_keeps_its_place_once_in_n_the_first_too() -> None:
    tokens, rng = Tokens(ids=(0,) * 5, words=(-1, 0, 1, 2, -1)), np.random.default_rng(0)
    drawn = np.array([ShufflePositions()(tokens, rng).positions for _ in range(4000)])
    kept = (drawn == np.arange(5)).sum(axis=0)
    # Each place with probability 1/5: 800 of 4,000, standard deviation 25; five of them.
    assert (abs(kept - 800) < 5 * 25).all()


@pytest.mark.parametrize(("name", "first"), [("bert", 0), ("roberta", 2)])
@torch.no_grad()
def test_k5_the_network_gets_a_permutation_behind_its_padding_row_and_padding_its_own(
    name: str, first: int, vectors: dict[str, Any]
) -> None:
    vector = vectors["position_shuffle"]
    n, longest = vector["input_real_tokens"], vector["padded_to"]
    assert {"bert": 0, "roberta": vector["roberta_correct_positions_start"]}[name] == first
    texts = [Tokens(tuple(range(5, 5 + size)), tuple(range(size))) for size in (n, longest)]
    views = [ShufflePositions()(each, generator(7)) for each in texts]
    batch = ragged(*(view.ids for view in views), slots=PAIR[:1])
    batch = batch.replace(positions=torch.tensor([place for view in views for place in view.positions or ()]))
    encoder, seen = encoder_of(name, layout="padded"), dict[str, Tensor]()
    with encoder.model.register_forward_pre_hook(lambda _, __, options: seen.update(options), with_kwargs=True):
        encoder(batch)
    short, whole = seen["position_ids"].tolist()
    assert short[:n] != sorted(short[:n]) == [*range(first, first + n)]
    assert short[n:] == [*range(first + n, first + longest)]
    assert sorted(whole) == [*range(first, first + longest)]
    assert [tuple(row[: len(view)]) for row, view in zip(seen["input_ids"].tolist(), views, strict=True)] == [
        view.ids for view in views
    ]


MASK, MARK = 3, 4
NEVER = frozenset({0, 1, 2, MASK, MARK})
MASKED = Vocabulary(size=1000, mask_id=MASK, special_ids=NEVER, added={"[DEL]": MARK})


def masking(view: MaskTokens) -> MaskTokens:
    view.build(MASKED)
    return view


@st.composite
def token_lists(draw: st.DrawFn) -> Tokens:
    """Ordinary tokens and marks, in words of one to three pieces, some with labels of an earlier masking."""
    sizes = draw(st.lists(st.integers(1, 3), max_size=6))
    words = tuple(word for word, size in enumerate(sizes) for _ in range(size))
    some_ids = st.sampled_from([100, 101, 102, MARK, MASK])
    some_labels = st.sampled_from([NO_LABEL, 200, 201])
    n = len(words)
    return Tokens(
        ids=tuple(draw(st.lists(some_ids, min_size=n, max_size=n))),
        words=words,
        labels=draw(st.none() | st.lists(some_labels, min_size=n, max_size=n).map(tuple)),
    )


def test_s12_the_shares_of_bert_of_ten_thousand_tokens(vectors: dict[str, Any]) -> None:
    case = vectors["mlm_masking"]
    view, rng = masking(MaskTokens()), np.random.default_rng(0)
    tokens = Tokens(ids=tuple(int(i) for i in rng.integers(5, 1000, size=10_000)), words=tuple(range(10_000)))
    masked = view(tokens, rng)
    assert masked.labels is not None
    chosen = [(now, label) for now, label in zip(masked.ids, masked.labels, strict=True) if label != NO_LABEL]
    expected = case["expected_per_10000_eligible"]
    # The vector gives two standard deviations; four are allowed.
    assert abs(len(chosen) - expected["selected"]) < 2 * case["two_sigma_selected"]
    counts = {"mask": sum(now == MASK for now, _ in chosen), "keep": sum(now == label for now, label in chosen)}
    counts["random"] = len(chosen) - sum(counts.values())
    for name, share in case["shares"].items():
        # Of the chosen ones, so binomial given their number. One random token in 995 is the old one: 0.15.
        sigma = (len(chosen) * share * (1 - share)) ** 0.5
        assert abs(counts[name] - share * len(chosen)) < 4 * sigma


@given(tokens=token_lists(), rate=st.sampled_from([0.0, 0.4, 1.0]), whole_word=st.booleans(), seed=SEEDS)
def test_labels_are_the_old_ids_at_changed_places_and_special_tokens_are_left_alone(
    tokens: Tokens, rate: float, whole_word: bool, seed: int
) -> None:
    view = masking(MaskTokens(rate, whole_word=whole_word))
    masked = view(tokens, generator(seed))
    assert view(tokens, generator(seed)) == masked
    assert (masked.words, masked.positions) == (tokens.words, tokens.positions)
    earlier = tokens.labels or (NO_LABEL,) * len(tokens)
    assert masked.labels is not None
    for before, now, old, label in zip(tokens.ids, masked.ids, earlier, masked.labels, strict=True):
        assert label in (old, before)
        # An earlier label stays, because an id that was put in is no original.
        assert old in (NO_LABEL, label)
        if before in NEVER:
            assert (now, label) == (before, old)
        elif rate == 1.0:
            assert label != NO_LABEL
        if now != before:
            assert label != NO_LABEL
            assert now == MASK or now not in NEVER


def test_random_tokens_are_drawn_from_the_whole_vocabulary_without_special_ones() -> None:
    small = Vocabulary(size=8, mask_id=MASK, special_ids=NEVER)
    view = MaskTokens(rate=1.0, mask=0.0, random=1.0)
    view.build(small)
    drawn = view(Tokens(ids=(5,) * 3000, words=tuple(range(3000))), generator(0)).ids
    # Three ordinary tokens, 1,000 each, standard deviation 26; five of them.
    assert set(drawn) == {5, 6, 7}
    assert all(abs(drawn.count(i) - 1000) < 5 * 26 for i in (5, 6, 7))


def test_whole_words_are_chosen_at_the_rate_with_all_their_ordinary_tokens() -> None:
    n = 6000
    ids = tuple(MARK if i % 5 == 4 else 100 + i % 7 for i in range(n))
    tokens = Tokens(ids=ids, words=tuple(i // 3 for i in range(n)))
    masked = masking(MaskTokens(rate=0.3, whole_word=True))(tokens, generator(0))
    assert masked.labels is not None
    words = [
        {masked.labels[i] != NO_LABEL for i in places if ids[i] != MARK}
        for _, places in groupby(range(n), key=lambda i: tokens.words[i])
    ]
    assert all(len(word) == 1 for word in words)
    # 600 of 2,000 words, standard deviation 20.5; four of them.
    assert abs(sum(True in word for word in words) - 600) < 4 * 20.5
