"""Labelled files: how labels are understood, the layouts of NLI data, and every hostile label."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from conftest import DATA, needs_data
from data_files import SCORED, refuses, write

from contrastive_text.core.targets import NLI, Classes, Scores, Target
from contrastive_text.data import Table, read_pairs, read_rows

INFERENCE = Classes(NLI)
YES_NO = Classes.of(2, "classes")


def pairs(path: Path, labels: Sequence[str]) -> Path:
    lines = [f"{label}\ta {number}\tb {number}\n" for number, label in enumerate(labels)]
    return write(path, "label\tpremise\thypothesis\n" + "".join(lines))


def read(
    path: Path | Sequence[Path],
    target: Target | None = INFERENCE,
    labels: Mapping[str, str] | None = None,
    reads: Sequence[str] = SCORED,
) -> Table:
    return read_rows(path, reads=reads, target=target, labels=labels)


def targets(table: Table) -> list[object]:
    return [row["target"] for row in table]


# What is understood


def test_labels_by_name_and_by_number_are_the_same_and_told(tmp_path: Path) -> None:
    names = read(pairs(tmp_path / "names.tsv", ["neutral", "entailment", "contradiction", "entailment"]))
    numbers = read(pairs(tmp_path / "numbers.tsv", ["1", "0", "2.0", "0"]))
    assert names.rows == numbers.rows
    assert targets(names) == [1.0, 0.0, 2.0, 0.0]
    assert names.understood == (
        "names.tsv: premise -> anchor, hypothesis -> positive, label -> target: entailment (2), neutral (1), "
        "contradiction (1); 4 rows"
    )
    assert numbers.understood == (
        "numbers.tsv: premise -> anchor, hypothesis -> positive, label -> target: 0 = entailment (2), "
        "1 = neutral (1), 2 = contradiction (1); 4 rows"
    )


def test_the_order_of_the_classes_is_the_objectives(tmp_path: Path) -> None:
    path = pairs(tmp_path / "a.tsv", ["0", "1", "2"])
    assert targets(read(path, Classes(("contradiction", "entailment", "neutral")))) == [1.0, 2.0, 0.0]


def test_rte_is_read_by_its_two_names(tmp_path: Path) -> None:
    path = pairs(tmp_path / "a.tsv", ["not_entailment", "entailment"])
    assert targets(read(path, Classes(("entailment", "not_entailment")))) == [1.0, 0.0]
    with refuses("a.tsv:2: expected one of the classes entailment, neutral, contradiction, got 'not_entailment'"):
        read(path)
    # Every row of the two-class task but entailment may be either of two classes: the user says which.
    assert targets(read(path, labels={"not_entailment": "-"})) == [0.0]


def test_questions_are_duplicates_by_0_and_1_or_by_boolean(tmp_path: Path) -> None:
    rows = [("0", 0.0), ("1", 1.0)]
    path = write(tmp_path / "a.csv", "question1,question2,label\n" + "".join(f"a,b,{cell}\n" for cell, _ in rows))
    assert targets(read(path, YES_NO)) == [0.0, 1.0]
    cells = [False, True, 0, 1, 0.0, 1.0, "0", "1", "false", "True"]
    lines = [json.dumps({"anchor": "a", "positive": "b", "label": cell}) for cell in cells]
    assert targets(read(write(tmp_path / "a.jsonl", "\n".join(lines)), YES_NO)) == [0.0, 1.0] * 5


def test_a_mapping_goes_before_the_classes_and_is_told(tmp_path: Path) -> None:
    path = pairs(tmp_path / "a.tsv", ["1", "3.0", "2", "skip", "", "1"])
    labels = {"1": "neutral", "2.0": "contradiction", " 3": "entailment", "skip": "-", "": "-1"}
    table = read(path, labels=labels)
    assert targets(table) == [1.0, 0.0, 2.0, 1.0]
    assert table.understood == (
        "a.tsv: premise -> anchor, hypothesis -> positive, label -> target: 3 = entailment (1), 1 = neutral (2), "
        "2 = contradiction (1); 4 rows; 2 rows without a gold label left out"
    )


def test_a_mapping_takes_booleans_and_null(tmp_path: Path) -> None:
    lines = [json.dumps({"text": "a", "label": cell}) for cell in (True, False, None)]
    path = write(tmp_path / "a.jsonl", "\n".join(lines))
    labels = {"true": "yes", "false": "no", "": "-"}
    assert targets(read(path, Classes(("no", "yes")), labels, ("text", "target"))) == [1.0, 0.0]


def test_a_mapping_may_be_for_one_of_several_files(tmp_path: Path) -> None:
    files = [pairs(tmp_path / "a.tsv", ["0", "2"]), pairs(tmp_path / "b.tsv", ["e", "neutral"])]
    table = read(files, labels={"e": "entailment"})
    assert targets(table) == [0.0, 2.0, 0.0, 1.0]
    assert list(table.documents) == [table.rows[:2], table.rows[2:]]
    assert "no row" not in table.understood


def test_scores_come_scaled_and_their_range_is_told(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "score\tsentence1\tsentence2\n4.5\ta\tb\n0\tc\td\n5.0\te\tf\n4.5\tg\th\n")
    table = read(path, Scores())
    assert targets(table) == [0.9, 0.0, 1.0, 0.9]
    assert "score -> target: 0 to 5 (4); 4 rows" in table.understood


def test_without_a_target_a_label_is_any_number(tmp_path: Path) -> None:
    path = pairs(tmp_path / "a.tsv", ["7", "-1"])
    table = read(path, target=None)
    assert targets(table) == [7.0, -1.0]
    assert "label -> target; 2 rows" in table.understood


def test_a_target_does_nothing_where_no_label_is_read(tmp_path: Path) -> None:
    table = read(pairs(tmp_path / "a.tsv", ["whatever"]), reads=("anchor", "positive"))
    assert table.rows == ({"anchor": "a 0", "positive": "b 0"},)


def test_rows_that_are_listed_twice_stay(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "label\tpremise\thypothesis\n" + "0\tsame\tsame\n" * 3)
    assert len(read(path)) == 3


@pytest.mark.parametrize("name", ["trec", "sst"])
def test_the_label_column_wins_over_finer_ones_and_ids(tmp_path: Path, name: str) -> None:
    files = {
        "trec": "label\tfine_label\ttext\nHUM\tHUM:ind\tWho ?\nLOC\tLOC:city\tWhere ?\n",
        "sst": "id\tlabel\ttext\n17\tHUM\tWho ?\n3\tLOC\tWhere ?\n",
    }
    table = read(write(tmp_path / "a.tsv", files[name]), Classes(("LOC", "HUM")), reads=("text", "target"))
    assert table.rows == ({"text": "Who ?", "target": 1.0}, {"text": "Where ?", "target": 0.0})


# Hostile labels


def test_an_empty_file_of_a_task_is_refused(tmp_path: Path) -> None:
    for data in ("", "label\tpremise\thypothesis\n"):
        with refuses("a.tsv: expected at least one row with text, got an empty file"):
            read(write(tmp_path / "a.tsv", data))


def test_a_missing_label_is_named_with_its_line_and_may_be_left_out(tmp_path: Path) -> None:
    path = pairs(tmp_path / "a.tsv", ["0", "", "2"])
    with refuses(
        "a.tsv:3: expected one of the classes", "got an empty label; mend the row, or leave such rows out"
    ):
        read(path)
    table = read(path, labels={"": "-"})
    assert targets(table) == [0.0, 2.0]
    assert "2 rows; 1 row without a gold label left out" in table.understood


@pytest.mark.parametrize("value", ["null", '""', '" "'])
def test_a_json_label_that_is_missing_is_named(tmp_path: Path, value: str) -> None:
    line = '{"anchor": "a", "positive": "b"'
    path = write(tmp_path / "a.jsonl", f'{line}, "label": 0}}\n{line}, "label": {value}}}\n')
    with refuses("a.jsonl:2: expected one of the classes", "got an empty label"):
        read(path)
    with refuses("a.jsonl:2: expected a score from 0 to 5, got an empty score"):
        read(path, Scores())


@pytest.mark.parametrize(("value", "got"), [("[0]", "[0]"), ('{"is": "0"}', '{"is": "0"}')])
def test_a_json_label_that_is_no_label_is_named(tmp_path: Path, value: str, got: str) -> None:
    path = write(tmp_path / "a.jsonl", f'{{"text": "a", "label": {value}}}')
    with refuses(f"a.jsonl:1: expected a label in label, got {got}; write it as a text or a number"):
        read(path, reads=("text", "target"))


def test_an_unknown_class_is_named_with_its_line(tmp_path: Path) -> None:
    with refuses(
        "a.tsv:4: expected one of the classes entailment, neutral, contradiction, got 'nuetral'; did you mean"
    ):
        read(pairs(tmp_path / "a.tsv", ["neutral", "0", "nuetral"]))
    with refuses("a.tsv:2: expected one of the classes 0, 1, got '2'; map it with labels, or add it to classes"):
        read(pairs(tmp_path / "a.tsv", ["2"]), YES_NO)


@pytest.mark.parametrize("cell", ["5.1", "-0.5", "nan", "inf", "high", ""])
def test_a_score_out_of_range_is_named_with_its_line(tmp_path: Path, cell: str) -> None:
    path = write(tmp_path / "a.tsv", f"score\tsentence1\tsentence2\n3\ta\tb\n{cell}\tc\td\n")
    with refuses("a.tsv:3: expected a score from 0 to 5, got", "set the objective's low and high"):
        read(path, Scores())


def test_a_class_without_a_row_is_told_over_all_files(tmp_path: Path) -> None:
    one, two = pairs(tmp_path / "a.tsv", ["0", "0"]), pairs(tmp_path / "b.tsv", ["neutral", "-"])
    assert read(one).understood.split("\n")[1:] == ["no row of the classes neutral, contradiction"]
    assert read([one, two]).understood.split("\n")[2:] == ["no row of class contradiction"]


@pytest.mark.parametrize("missing", ["-", "-1", "-1.0"])
def test_a_file_without_any_gold_label_is_refused(tmp_path: Path, missing: str) -> None:
    with refuses(
        "a.tsv: expected at least one row with text and a gold label, got 2 rows without a gold label left out; "
        "name a file that has labels"
    ):
        read(pairs(tmp_path / "a.tsv", [missing] * 2))


def test_an_empty_text_goes_before_its_label(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "label\tpremise\thypothesis\n0\ta\tb\nwrong\t\tb\n")
    assert "1 row; 1 row with an empty text left out" in read(path).understood
    single = write(tmp_path / "b.tsv", "label\ttext\n0\ta\nwrong\t \n")
    assert "1 row; 1 row with an empty text left out" in read(single, reads=("text", "target")).understood


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (
            {"entailmnt": "entailment"},
            "labels.entailmnt: expected a label of the files, got entailment, neutral; did",
        ),
        (
            {"9": "entailment"},
            "labels.9: expected a label of the files, got entailment, neutral; name one of those",
        ),
        (
            {"neutral": "maybe"},
            "labels.neutral: expected one of the classes entailment, neutral, contradiction, got",
        ),
        (
            {"1": "neutral", "1.0": "entailment"},
            "labels: expected every label once, got 1, 1.0; 1 and 1.0 are one",
        ),
    ],
)
def test_a_wrong_mapping_is_refused(tmp_path: Path, labels: dict[str, str], message: str) -> None:
    with refuses(message):
        read(pairs(tmp_path / "a.tsv", ["neutral", "entailment"]), labels=labels)


def test_a_mapping_that_other_files_need_too_may_have_labels_without_a_row(tmp_path: Path) -> None:
    path = pairs(tmp_path / "a.tsv", ["n", "e"])
    labels = {"n": "neutral", "e": "entailment", "c": "contradiction"}
    with refuses("labels.c: expected a label of the files, got e, n; name one of those"):
        read(path, labels=labels)
    table = read_rows(path, SCORED, target=INFERENCE, labels=labels, every_label=False)
    assert table.understood.split("\n")[1:] == ["no row of label c", "no row of class contradiction"]


def test_a_mapping_without_an_objective_is_refused(tmp_path: Path) -> None:
    path = pairs(tmp_path / "a.tsv", ["0"])
    for target, reads in ((None, SCORED), (INFERENCE, ("anchor", "positive"))):
        with refuses(
            "labels: expected an objective that learns a target, got {'0': 'neutral'}; leave labels out, add one"
        ):
            read(path, target=target, labels={"0": "neutral"}, reads=reads)


@pytest.mark.slow
@needs_data
def test_every_real_labelled_file_is_read_whole() -> None:
    for name, target, rows, said in (
        ("nli/snli_sample.train.tsv", INFERENCE, 18_000, "entailment ("),
        ("nli/rte.dev.tsv", Classes(("entailment", "not_entailment")), 1_767, "not_entailment ("),
        ("paraphrase/quora.dev.tsv", YES_NO, 2_019, "0 ("),
        ("paraphrase/mrpc.dev.tsv", YES_NO, 500, "0 ("),
        ("cs224n/sts.dev.tsv", Scores(), 863, "target: 0 to 5 (863)"),
        ("sts/sick.train.tsv", Scores(low=1), 4_500, "target: 1 to 5 (4,500)"),
    ):
        table = read(DATA / name, target)
        assert len(table) == rows, name
        assert said in table.understood, name
        assert "left out" not in table.understood and "no row" not in table.understood, name


@needs_data
def test_every_real_file_of_labelled_texts_is_read_whole() -> None:
    for name, classes, rows in (
        ("classification/trec.train.tsv", ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM"), 5_452),
        ("cs224n/sst.train.tsv", ("0", "1", "2", "3", "4"), 8_544),
    ):
        table = read(DATA / name, Classes(classes), reads=("text", "target"))
        assert len(table) == rows, name
        assert {row["target"] for row in table} == set(range(len(classes))), name


@pytest.mark.parametrize("cell", ["1_000", "\u0661", "true", "0x10", "1 2", "nan", "inf"])
def test_a_score_is_a_number_as_people_write_it(tmp_path: Path, cell: object) -> None:
    path = tmp_path / "pairs.jsonl"
    row = {"anchor": "a", "positive": "b", "score": 1}
    path.write_text(json.dumps(row) + "\n" + json.dumps({**row, "score": cell}) + "\n")
    with pytest.raises(ValueError, match=r"pairs\.jsonl:2: expected a number in score"):
        read_pairs(path)
    path.write_text("\n".join(json.dumps({**row, "score": each}) for each in (1, "+2.5", " .5", "3.", "1e-3")))
    assert [row["target"] for row in read_pairs(path)] == [1.0, 2.5, 0.5, 3.0, 1e-3]
