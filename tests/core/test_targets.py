"""Targets: what the cells of a label's column stand for."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from contrastive_text.core.targets import NLI, UNLABELED, Classes, Scores, normalize_label

CONTRADICTION_FIRST = ("contradiction", "entailment", "neutral")
NAMES = st.lists(
    st.text("abcdeXYZ_-", min_size=1, max_size=6).filter(lambda name: name not in UNLABELED),
    min_size=2,
    max_size=6,
    unique_by=str.casefold,
)


@given(names=NAMES, data=st.data())
def test_a_class_is_read_by_its_name_in_any_case_and_by_its_place(names: list[str], data: st.DataObject) -> None:
    classes = Classes(tuple(names))
    place = data.draw(st.integers(0, len(names) - 1))
    for label in (names[place], f" {names[place]}\t", names[place].swapcase(), str(place), f"{place}.0"):
        assert classes.parse(label) == place


@given(names=NAMES, label=st.text("abXé-0 1.\t", max_size=8))
def test_whatever_is_no_label_is_refused(names: list[str], label: str) -> None:
    classes = Classes(tuple(names))
    assume(label.strip().casefold() not in {name.casefold() for name in names} | set(UNLABELED))
    assume(not label.strip().lstrip("+-0").split(".")[0].isdecimal() and "0" not in label)
    with pytest.raises(ValueError, match=r"^expected one of the classes .*, got "):
        classes.parse(label)


@pytest.mark.parametrize("names", [NLI, CONTRADICTION_FIRST, ("Neutral", "Contradiction", "Entailment")])
def test_numbers_of_nli_have_the_meaning_of_the_hub_whatever_the_order_of_the_classes(
    names: tuple[str, ...],
) -> None:
    classes = Classes(names)
    for number, name in enumerate(NLI):
        assert classes.parse(str(number)) == classes.parse(name) == [n.lower() for n in names].index(name)


@pytest.mark.parametrize("names", [("entailment", "not_entailment"), ("not_entailment", "entailment")])
def test_rte_is_read_by_name_and_0_is_entailment(names: tuple[str, ...]) -> None:
    assert Classes(names).parse("0") == Classes(names).parse("entailment") == names.index("entailment")
    assert Classes(names).parse("1") == Classes(names).parse("not_entailment") == names.index("not_entailment")


@pytest.mark.parametrize(
    ("label", "number"), [("0", 0), ("1", 1), ("1.0", 1), ("01", 1), ("true", 1), ("False", 0), (" 1 ", 1)]
)
def test_two_classes_by_number_are_also_false_and_true(label: str, number: int) -> None:
    assert Classes.of(2, "classes").parse(label) == number
    assert Classes(("1", "0")).parse(label) == 1 - number


def test_a_name_goes_before_its_place_its_case_and_a_missing_label() -> None:
    stars = Classes(("1", "2", "3", "4", "5"))
    assert [stars.parse(label) for label in ("1", "5", "2.0")] == [0, 4, 1]
    with pytest.raises(ValueError, match="expected one of the classes 1, 2, 3, 4, 5, got '0'"):
        stars.parse("0")
    assert Classes(("-1", "1")).parse("-1.0") == 0  # a name goes before a missing label
    assert Classes(("1.0", "2.0")).parse("2") == 1
    assert [Classes(("us", "US")).parse(label) for label in ("us", "US", "0", "1")] == [0, 1, 0, 1]
    with pytest.raises(ValueError, match="got 'true'; map it with labels, or add it to classes"):
        Classes(("0", "1", "2")).parse("true")
    assert (Scores(low=-1, high=1).parse("-1"), Scores(low=0, high=1).parse("-1")) == (0.0, None)


@pytest.mark.parametrize("label", [*UNLABELED, " - ", "-1.0"])
def test_a_label_that_says_there_is_none_has_no_number(label: str) -> None:
    for target in (Classes(NLI), Classes.of(2, "classes"), Scores()):
        assert target.parse(label) is None


@pytest.mark.parametrize(
    ("label", "end"),
    [
        ("entailmnt", "got 'entailmnt'; did you mean entailment?"),
        ("3", "got '3'; map it with labels, or add it to classes"),
        ("1.5", "got '1.5'; map it with labels, or add it to classes"),
        ("1_0", "got '1_0'; map it with labels, or add it to classes"),
        ("nan", "got 'nan'; map it with labels, or add it to classes"),
        ("", "got an empty label; correct the row, or skip such rows with `labels: {'': '-'}`"),
        ("  ", "got an empty label; correct the row, or skip such rows with `labels: {'': '-'}`"),
    ],
)
def test_an_unknown_class_says_what_to_do(label: str, end: str) -> None:
    with pytest.raises(ValueError) as refused:
        Classes(NLI).parse(label)
    assert str(refused.value) == f"expected one of the classes entailment, neutral, contradiction, {end}"


@pytest.mark.parametrize("classes", [1, 0, ["a"], ["a", "a"], ["1", "1.0"], []])
def test_fewer_than_two_classes_or_one_twice_are_refused(classes: int | list[str]) -> None:
    with pytest.raises(ValueError, match=r"model\.classes: expected two classes or more of different names, got"):
        Classes.of(classes, "model.classes")


def test_the_labels_of_a_file_are_told_by_class_and_the_classes_without_a_row_are_named() -> None:
    classes = Classes(CONTRADICTION_FIRST)
    numbers = {"0": 1.0, "entailment": 1.0, "2": 0.0}
    said = classes.describe_labels(numbers, {"0": 1200, "entailment": 2, "2": 3, "-": 7})
    assert said == "2 = contradiction (3), 0 = entailment (1,200), entailment (2)"
    assert classes.missing_classes({1.0, 0.0}) == ["neutral"]
    assert classes.missing_classes({0.0, 1.0, 2.0}) == []


def test_predictions_are_written_as_names_and_scores() -> None:
    assert Classes(NLI).format(torch.tensor([[0.1, 3.0, 1.0], [2.0, 1.0, 0.0]])) == ["neutral", "entailment"]
    assert Scores(low=1, high=5).format(torch.tensor([0.0, 0.5, 1.0])) == ["1.0000", "3.0000", "5.0000"]


@given(low=st.floats(-100, 100, allow_nan=False), width=st.floats(0.01, 100), share=st.floats(0, 1))
def test_a_score_is_its_share_of_the_way_and_comes_back(low: float, width: float, share: float) -> None:
    scores = Scores(low=low, high=low + width)
    cell = min(low + share * width, scores.high)
    read = scores.parse(repr(cell))
    assert read is not None and 0 <= read <= 1
    (written,) = scores.format(torch.tensor([read], dtype=torch.float64))
    assert math.isclose(float(written), cell, abs_tol=1e-4)  # four decimals are written


@pytest.mark.parametrize(
    ("cell", "got"),
    [
        *((cell, repr(cell)) for cell in ("5.01", "-0.1", "nan", "inf", "high", "4,5")),
        *((cell, "an empty score") for cell in ("", " ")),
    ],
)
def test_a_score_out_of_range_or_none_at_all_is_refused(cell: str, got: str) -> None:
    with pytest.raises(ValueError) as refused:
        Scores().parse(cell)
    assert str(refused.value) == (
        f"expected a score from 0 to 5, got {got}; correct the row, or set the objective's low and high"
    )


@pytest.mark.parametrize(("low", "high"), [(5, 0), (1, 1), (0, math.inf), (math.nan, 1), (-math.inf, 0)])
def test_bounds_out_of_order_are_refused(low: float, high: float) -> None:
    with pytest.raises(ValueError, match="Scores: expected finite bounds low < high"):
        Scores(low=low, high=high)


def test_scores_are_told_by_their_range_and_lack_nothing() -> None:
    assert (
        Scores().describe_labels({"4.5": 0.9, "0": 0.0, "1": 0.2}, {"4.5": 1, "0": 1, "1": 998})
        == "0 to 4.5 (1,000)"
    )
    assert Scores().missing_classes(set()) == []


@pytest.mark.parametrize(
    ("cell", "label"),
    [
        (1, "1"),
        (1.0, "1"),
        ("1.0", "1"),
        (" -1. ", "-1"),
        (True, "true"),
        ("True", "True"),
        (0.5, "0.5"),
        ("", ""),
    ],
)
def test_a_label_is_plain_however_it_is_written(cell: str | float, label: str) -> None:
    assert normalize_label(cell) == label
