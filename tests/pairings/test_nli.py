"""Triples from natural language inference."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from conftest import DATA, needs_data
from hypothesis import given
from hypothesis import strategies as st

from contrastive_text.core.targets import NLI
from contrastive_text.core.types import Example, Row
from contrastive_text.data import read_rows
from contrastive_text.pairings import NLITriples


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


def test_nothing_left_out_is_not_mentioned() -> None:
    assert NLITriples().arrange([[row("p", "c", "no"), row("p", "e", "yes")]])[1] == "1 triples of 1 premises"


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
    rows = [
        row("p", "e", "yes"),
        row("p", "e", "yes"),
        row("p", "c", "no"),
        row("p", "e", "p"),
        row("p", "c", "both"),
        row("p", "e", "both"),
        row("p", "n", "perhaps"),
        row("only yes", "e", "yes"),
        row("only no", "c", "no"),
        row("neither", "n", "perhaps"),
        row("P", "c", "another premise: texts are compared as they are"),
    ]
    made, said = NLITriples().arrange([rows])
    assert made == [triple("p", "yes", "no")]
    assert said == (
        "1 triples of 1 premises; left out: premises without an entailed hypothesis 2, premises without a "
        "contradicting hypothesis 1, premises without an entailed and a contradicting hypothesis 1, neutral rows "
        "2, repeated rows 1, rows whose hypothesis is the premise 1, rows of a hypothesis with two labels 2"
    )


def test_files_without_a_triple_are_refused_with_the_reasons() -> None:
    with pytest.raises(
        ValueError,
        match=r"data\.train: expected a premise with an entailed and a contradicting hypothesis, got none "
        r"\(premises without a contradicting hypothesis 1\); NLITriples needs them",
    ):
        NLITriples().arrange([[row("p", "e", "yes")], []])


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
    rows, understood = NLITriples(**options).arrange([SETS])
    assert [tuple(each.values()) for each in rows] == expected
    assert understood.startswith(said)
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
    with pytest.raises(ValueError, match="expected hypotheses of several premises for a random negative"):
        pairing.arrange([SETS[:4]])


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
    labelled = {(each["anchor"], each["positive"], each["target"]) for each in rows}
    for each in made:
        assert (each["anchor"], each["positive"], 0.0) in labelled
        assert (each["anchor"], each["negative"], 2.0) in labelled
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
    made, said = pairing.arrange(table.documents)
    theirs = read_rows(DATA / "nli" / "snli_triplets.dev.tsv", reads=("anchor", "positive"))
    ours = [tuple(each.values()) for each in made]
    missing = [each for each in theirs if tuple(each.values()) not in set(ours)]
    assert len(theirs) == 2_954 and len(ours) == 2_950
    assert ours == [tuple(each.values()) for each in theirs if each not in missing]
    # Three of the four have the premise for positive; the fourth's hypothesis stands twice under its premise.
    assert sum(each["anchor"] == each["positive"] for each in missing) == 3
    assert said.startswith(
        "2,950 triples of 2,940 premises; left out: premises without an entailed hypothesis 233,"
    )
    assert (
        "label -> target: entailment (3,329), neutral (3,235), contradiction (3,278); id ignored"
        in table.understood
    )
