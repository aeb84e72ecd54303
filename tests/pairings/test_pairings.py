"""Examples that pairings make of rows, among them the triples of natural language inference."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import parts
import pytest
from conftest import DATA, needs_data
from hypothesis import given
from hypothesis import strategies as st

from contrastive_text.core.random import generator
from contrastive_text.core.targets import NLI
from contrastive_text.core.types import Example, Row
from contrastive_text.data import read_rows
from contrastive_text.pairings import Given, Neighbors, NLITriples, Pairing, Spans

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("further", "expected"),
    [
        ({}, Example("a", ("b",))),
        ({"target": 3}, Example("a", ("b",))),  # the collator takes it along
        ({"negative": "c"}, Example("a", ("b",), ("c",))),
        ({"negative_1": "c", "negative_2": "d"}, Example("a", ("b",), ("c", "d"))),
    ],
)
def test_given_takes_the_columns_in_their_roles(further: Row, expected: Example) -> None:
    row: Row = {"anchor": "a", "positive": "b", **further}
    assert Given()(row, RNG) == [expected]
    assert Given(views_per_text=2)(row, RNG) == [replace(expected, views_per_text=2)]


def test_neighbors_never_follow_each_other_over_the_end_of_a_file() -> None:
    files: list[list[Row]] = [
        [{"text": "a"}, {"text": "b"}, {"text": "c"}],
        [{"text": "d"}],
        [],
        [{"text": "e"}] * 2,
    ]
    rows, said = Neighbors().arrange(files)
    assert [(row["text"], row["next"]) for row in rows] == [("a", "b"), ("b", "c"), ("e", "e")]
    assert said == "3 texts with their successor"
    assert Neighbors()(rows[0], RNG) == [Example("a", ("b",))]


def test_neighbors_within_reach_are_all_drawn_and_fewer_at_the_end_of_a_file() -> None:
    pairing = Neighbors(reach=3)
    rows, said = pairing.arrange([[{"text": text} for text in "abcde"], [{"text": "f"}]])
    assert [list(row.values()) for row in rows] == [list("abcd"), list("bcde"), list("cde"), list("de")]
    assert said == "4 texts with their successors"
    for row in rows:
        drawn = [pairing(row, np.random.default_rng(seed))[0] for seed in range(60)]
        assert {each.anchor for each in drawn} == {row["text"]}
        assert sorted({positive for each in drawn for positive in each.positives}) == list(row.values())[1:]


def test_given_draws_hard_negatives_of_those_that_a_row_has() -> None:
    row = {"anchor": "a", "positive": "p", "negative": "n", "negative_2": "m", "negative_3": ""}
    drawn = {Given(negatives=1)(row, np.random.default_rng(seed))[0].negatives for seed in range(20)}
    assert drawn == {("n",), ("m",)}
    few = {**row, "negative_2": ""}
    assert Given(negatives=2)(few, np.random.default_rng(0))[0].negatives == ("n", "")
    assert Given(negatives=0)(row, np.random.default_rng(0))[0].negatives == ()
    assert Given(negatives=5)(row, np.random.default_rng(0))[0].negatives == ("n", "m", "")


def row(premise: str, label: str, hypothesis: str) -> Row:
    names = {"e": "entailment", "n": "neutral", "c": "contradiction"}
    return {"anchor": premise, "positive": hypothesis, "target": float(NLI.index(names[label]))}


def triple(premise: str, entailed: str, contradicting: str) -> Row:
    return {"anchor": premise, "positive": entailed, "negative": contradicting}


def test_a_premise_with_both_gives_a_triple() -> None:
    rows = [row("p", "n", "perhaps"), row("p", "c", "no"), row("p", "e", "yes")]
    made, said = NLITriples().arrange([rows])
    assert made == [triple("p", "yes", "no")]
    assert said == "1 triples of 1 premises; left out: neutral rows 1"
    assert NLITriples()(made[0], np.random.default_rng(0)) == [Example("p", ("yes",), ("no",))]


def test_the_nth_entailed_hypothesis_goes_with_the_nth_contradicting_one_in_the_order_of_the_files() -> None:
    first = [row("p", "e", "yes 1"), row("q", "c", "no"), row("p", "c", "no 1"), row("p", "e", "yes 2")]
    second = [row("q", "e", "yes"), row("p", "c", "no 2"), row("p", "e", "yes 3")]
    made, said = NLITriples().arrange([first, second])
    assert made == [triple("p", "yes 1", "no 1"), triple("p", "yes 2", "no 2"), triple("q", "yes", "no")]
    assert said == "3 triples of 2 premises; left out: hypotheses without a partner 1"
    made, said = NLITriples(per_premise=1).arrange([first, second])
    assert made == [triple("p", "yes 1", "no 1"), triple("q", "yes", "no")]
    assert said == "2 triples of 2 premises; left out: hypotheses without a partner 3"


def test_every_reason_to_leave_something_out_is_counted() -> None:
    # Texts are compared as they are: P is another premise than p.
    table = "p e yes, p e yes, p c no, p e p, p c both, p e both, p n maybe, y e yes, n c no, x n maybe, P c not"
    made, said = NLITriples().arrange([[row(*each.split()) for each in table.split(", ")]])
    assert made == [triple("p", "yes", "no")]
    assert said == (
        "1 triples of 1 premises; left out: premises without an entailed hypothesis 2, premises without a "
        "contradicting hypothesis 1, premises without an entailed and a contradicting hypothesis 1, neutral rows "
        "2, repeated rows 1, rows whose hypothesis is the premise 1, rows of a hypothesis with two labels 2"
    )


SETS = [
    row("p", "e", "yes 1"), row("p", "e", "yes 2"), row("p", "c", "no"), row("p", "n", "perhaps"),
    row("q", "e", "sure"), row("q", "c", "never"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "expected", "said"),
    [
        ({"negatives": ()}, [("p", "yes 1"), ("p", "yes 2"), ("q", "sure")], "3 pairs of 2 premises"),
        ({"negatives": ("neutral",)}, [("p", "yes 1", "perhaps")], "1 triples of 1 premises"),
        (
            {"negatives": ("contradiction", "neutral")},
            [("p", "yes 1", "no", "perhaps")],
            "1 triples of 1 premises; left out: premises without a neutral hypothesis 1, hypotheses without a "
            "partner 1",
        ),
        ({"positive": "neutral", "negatives": ()}, [("p", "perhaps")], "1 pairs of 1 premises"),
    ],
)
def test_the_paper_s_other_sets_are_those_of_other_labels(
    options: dict[str, Any], expected: list[tuple[str, ...]], said: str
) -> None:
    rows, description = NLITriples(**options).arrange([SETS])
    assert [tuple(each.values()) for each in rows] == expected
    assert description == said or description.startswith(f"{said}; left out")
    (example,) = NLITriples(**options)(rows[0], np.random.default_rng(0))
    assert (example.anchor, *example.positives, *example.negatives) == expected[0]


def test_a_random_negative_is_of_another_premise_and_the_same_every_time() -> None:
    pairing = NLITriples(negatives=("random",))
    rows, _ = pairing.arrange([SETS])
    assert [(each["anchor"], each["positive"]) for each in rows] == [
        ("p", "yes 1"),
        ("p", "yes 2"),
        ("q", "sure"),
    ]
    assert all(each["negative"] in ("sure", "never") for each in rows[:2])
    assert rows[2]["negative"] in ("yes 1", "yes 2", "no", "perhaps")
    assert pairing.arrange([SETS[:2], SETS[2:]]) == pairing.arrange([SETS])


rows_of_nli = st.lists(
    st.builds(row, st.sampled_from("pq"), st.sampled_from("enc"), st.sampled_from("abcp")), max_size=12
)


@given(rows=rows_of_nli, cut=st.integers(0, 12), limit=st.sampled_from([None, 1, 2]))
def test_no_hypothesis_is_used_twice_and_every_triple_is_in_the_files(
    rows: list[Row], cut: int, limit: int | None
) -> None:
    rows = [row("sure", "e", "yes"), row("sure", "c", "no"), *rows]
    made, said = NLITriples(limit).arrange([rows[:cut], rows[cut:]])
    assert (made, said) == NLITriples(limit).arrange([rows])
    labeled = {(each["anchor"], each["positive"], each["target"]) for each in rows}
    for each in made:
        assert (each["anchor"], each["positive"], 0.0) in labeled
        assert (each["anchor"], each["negative"], 2.0) in labeled
    used = list(
        itertools.chain.from_iterable(((t["anchor"], t["positive"]), (t["anchor"], t["negative"])) for t in made)
    )
    assert len(set(used)) == len(used)
    per_premise = [sum(each["anchor"] == premise for each in made) for premise in ("p", "q", "sure")]
    assert max(per_premise) <= (limit or 3)


@pytest.mark.slow
@needs_data
def test_the_triples_of_snli_dev_are_the_given_ones_but_for_four_that_repeat_a_text() -> None:
    pairing = NLITriples()
    table = read_rows(DATA / "nli" / "snli.dev.tsv", reads=pairing.reads, target=pairing.target)
    ours = [tuple(each.values()) for each in pairing.arrange(table.documents)[0]]
    theirs = read_rows(DATA / "nli" / "snli_triplets.dev.tsv", reads=("anchor", "positive"))
    missing = [each for each in theirs if tuple(each.values()) not in set(ours)]
    assert len(theirs) == 2_954 and len(ours) == 2_950
    assert ours == [tuple(each.values()) for each in theirs if each not in missing]
    # Three of the four have the premise for positive; the fourth's hypothesis stands twice under its premise.
    assert sum(each["anchor"] == each["positive"] for each in missing) == 3


OTHER = "sideways"


@pytest.mark.parametrize(
    ("pairing", "arguments", "words"),
    [
        (Given, {"views_per_text": 0}, ["Given.views_per_text", "1 or more", "got 0"]),
        (Given, {"negatives": -1}, ["Given.negatives", "0 or more", "got -1"]),
        (Neighbors, {"reach": 0}, ["Neighbors.reach", "1 or more", "got 0"]),
        (NLITriples, {"per_premise": 0}, ["NLITriples.per_premise", "1 or more", "got 0"]),
        (NLITriples, {"positive": "random"}, ["NLITriples.positive", "entailment", "'random'"]),
        (NLITriples, {"negatives": ("none",)}, ["NLITriples.negatives[0]", "random", "'none'"]),
        (NLITriples, {"negatives": ("entailment",)}, ["NLITriples.negatives", "different", "['entailment']"]),
        (NLITriples, {"negatives": ("neutral", "neutral")}, ["NLITriples.negatives", "different labels"]),
        (Spans, {"anchors": 0}, ["Spans.anchors", "1 or more", "got 0"]),
        (Spans, {"positives": -1}, ["Spans.positives", "0 or more", "got -1"]),
        (Spans, {"min_length": 0}, ["Spans.min_length", "1 or more", "got 0"]),
        (Spans, {"max_length": 31}, ["Spans.max_length", "32 or more", "got 31"]),
        (Spans, {"min_document_tokens": 2047}, ["Spans.min_document_tokens", "2,048 or more", "got 2,047"]),
        *((Spans, {"anchor_beta": beta}, ["Spans.anchor_beta", "two positive numbers", f"{beta}"])
          for beta in ((0, 2), (2,), (2, math.nan), (math.inf, 2))),
        (Spans, {"positive_beta": (2,)}, ["Spans.positive_beta", "two positive numbers"]),
        *((Spans, {name: OTHER}, [f"Spans.{name}", "'sideways'"])
          for name in ("strategy", "start", "too_short", "too_long")),
    ],
)  # fmt: skip
def test_arguments_out_of_range_are_refused(
    pairing: Callable[..., Pairing], arguments: dict[str, Any], words: list[str]
) -> None:
    parts.check_refused(lambda: pairing(**arguments), ValueError, words)


CALLS: list[parts.Refused] = [
    (lambda: Spans()({"text": "a document"}, generator(0)), TypeError, ["Spans: expected Tokens, got str"]),
    (lambda: Neighbors().arrange([[{"text": "a"}], [{"text": "b"}]]), ValueError,
     ["data.train: expected a document of two or more texts, got documents of one text"]),
    (lambda: NLITriples().arrange([[row("p", "e", "yes")], []]), ValueError,
     ["data.train: expected a premise with an entailed and a contradicting hypothesis, got no such",
      "premises without a contradicting hypothesis 1"]),
    (lambda: NLITriples(negatives=("random",)).arrange([SETS[:4]]), ValueError,
     ["expected hypotheses of several premises for a random negative"]),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "words"), CALLS)
def test_data_without_examples_are_refused(
    call: Callable[[], object], error: type[Exception], words: list[str]
) -> None:
    parts.check_refused(call, error, words)
