"""Reading of data files: one table of small files, the rows that they give, and the line about each file."""

from __future__ import annotations

import csv
import json
import tracemalloc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from conftest import DATA, needs_data
from covering import rest_slow
from data_files import FORMATS, PAIR, SCORED, TEXT, write, write_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from contrastive_text.core.targets import NLI, Classes, Scores
from contrastive_text.data import Table, read_pairs, read_rows
from contrastive_text.data.files.formats import ALIASES, FileForm, plan_columns
from contrastive_text.data.files.tables import _BRACKETS

INFERENCE, YES_NO = Classes(NLI), Classes.of(2, "classes")
LABELED = ("text", "target")
any_text = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1).filter(str.strip)


class Case(NamedTuple):
    """A file, what is read of it, the cells of its rows, and a part of what is said of it."""

    name: str
    content: str
    reads: Sequence[str]
    rows: Sequence[Sequence[object]]
    said: str = ""
    options: Mapping[str, Any] = {}


def lines(*rows: object) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def labeled(*labels: str) -> str:
    return "label\tpremise\thypothesis\n" + "".join(f"{label}\ta{i}\tb{i}\n" for i, label in enumerate(labels))


def numbers(*targets: float) -> list[tuple[object, ...]]:
    """Returns the rows of ``labeled`` with these targets; None for a row that is left out."""
    return [(f"a{i}", f"b{i}", target) for i, target in enumerate(targets) if target is not None]


ALL_NLI = (
    "split\tdataset\tfilename\tsentence1\tsentence2\tlabel\ntrain\tAllNLI\tsnli.txt\ta\tb\tneutral\n"
    "train\tAllNLI\tmnli.txt\tc\td\tentailment\ndev\tAllNLI\tsnli.txt\te\tf\tcontradiction\n"
    "test\tAllNLI\tsnli.txt\tg\th\tcontradiction\n"
)
AB, CD, EF, GH = ("a", "b", 1.0), ("c", "d", 0.0), ("e", "f", 2.0), ("g", "h", 2.0)
NEG3 = "-> negative, negative_2, negative_3"
OTHER = "dataset, filename ignored"
TARGETS = {"target": INFERENCE}
BOOLEANS = (False, True, 0, 1, 0.0, 1.0, "0", "1", "false", "True")
POSITIVES = {"query": "q1", "pos": ["p1", "p2"], "neg": ["n1", "n2", "n3"], "query_id": 7}
NO_NEGATIVE = {"query": "a", "pos": ["p"], "neg": []}
MAPPING = {"1": "neutral", "2.0": "contradiction", " 3": "entailment", "skip": "-", "": "-1"}
GONE = "1 row without a gold label left out"

COLUMNS = [
    Case("1.csv", "negative_10,anchor,negative_1,positive,negative_2\nthird,a,first,p,second\n", PAIR,
         [("a", "p", "first", "second", "third")], f"negative_1, negative_2, negative_10 {NEG3}"),
    Case("3.csv", "negative3,anchor,Negative 1,positive,negative-2\nthird,a,first,p,second\n", PAIR,
         [("a", "p", "first", "second", "third")], f"Negative 1, negative-2, negative3 {NEG3}"),
    Case("text goes first.csv", "query,text\nq,t\n", TEXT, [("t",)], "query ignored"),
    Case("user goes first.csv", "premise,hypothesis,label,gold,x,y\na,b,word,3,n,m\n", SCORED,
         [("b", "a", "m", "n", 3.0)], "y, x -> negative, negative_2", {"columns": {
             "anchor": "hypothesis", "positive": "premise", "target": "gold", "negative": ["y", "x"]}}),
    Case("texts.csv", "x,y,z\na,b,c\n", TEXT, [("b",), ("a",)], options={"columns": {"text": ["y", "x"]}}),
    Case("positives.csv", "x,y,z\na,b,c\n", PAIR, [("a", "b"), ("a", "c")],
         options={"columns": {"anchor": "x", "positive": ["y", "z"]}}),
    Case("many.jsonl", lines({"text": "a", **{f"key {i}": 0 for i in range(30)}}), TEXT, [("a",)],
         "key 22, key 23, 6 more ignored"),
    Case("two targets.csv", "text,score,label\none,1,2\n", TEXT, [("one",)], "score, label ignored"),
    Case("scores.tsv", "score\tpremise\thypothesis\n3.5\ta\tb\n", PAIR, [("a", "b")],
         "premise -> anchor, hypothesis -> positive; score ignored; 1 row"),
    Case("pairs as texts.tsv", "score\tsentence2\tsentence1\n1\tb\ta\n2\t \tc\n", TEXT, [("b",), ("a",), ("c",)],
         "-> text (2 rows a line); score ignored; 3 rows; 1 row with an empty text left out"),
    Case("lists.jsonl", lines(POSITIVES, {"query": "q2", "pos": ["p3"], "neg": ["n4"]}), PAIR,
         [("q1", "p1", "n1", "n2", "n3"), ("q1", "p2", "n1", "n2", "n3"), ("q2", "p3", "n4", "", "")],
         f"pos -> positive (1 to 2 rows a line), neg {NEG3} (1 to 3 a line); query_id ignored; 3 rows"),
    Case("no negative.jsonl", lines(NO_NEGATIVE, {**NO_NEGATIVE, "neg": ["n"]}), PAIR,
         [("a", "p", ""), ("a", "p", "n")], "neg -> negative (0 to 1 a line); 2 rows"),
    Case("none.jsonl", lines(NO_NEGATIVE), PAIR, [("a", "p")], "neg -> no hard negatives"),
]  # fmt: skip
SPLITS = [
    Case("train.tsv.gz", ALL_NLI, SCORED, [AB, CD],
         f"split: train (2); dev (1), test (1) left out; {OTHER}; 2 rows", {**TARGETS, "split": "train"}),
    Case("test.tsv", ALL_NLI, SCORED, [GH], "split: test (1); train (2), dev (1)", {**TARGETS, "split": "test"}),
    Case("all.tsv", ALL_NLI, SCORED, [AB, CD, EF, GH], "split: all of train (2), dev (1), test (1)",
         {**TARGETS, "split": "all"}),
    *(Case(f"{one}{two}.tsv", f"split\ttext\n{one}\ta\n{two}\ta\n", TEXT, [("a",)] * 2, "split ignored",
           {"split": "train"}) for one, two in ("xy", "01", ["train"] * 2)),
    Case("read.tsv", "split\tx\ntrain\t1\ntest\t2\n", TEXT, [("train",), ("test",)],
         options={"columns": {"text": "split"}}),
    Case("other.csv", "text,split\na,x\nb,y\n", TEXT, [("a",), ("b",)], "text -> text; split ignored; 2 rows"),
]  # fmt: skip
LINES = [
    *(Case(name, 'one\t"1"\r\n\n  two\nthree', TEXT, [('one\t"1"',), ("  two",), ("three",)],
           f"{name}: text -> text; 3 rows; 1 blank line left out") for name in ("a.txt", "a.txt.gz", "a.TXT")),
    Case("unseen.txt", "one\n\u200b\n\n\ufeff\u2060\n", TEXT, [("one",)],
         "1 row; 1 blank line left out; 2 rows with an empty text left out"),
    Case("unseen.tsv", "text\n\u200b\none\n \n", TEXT, [("one",)],
         "1 blank line left out; 1 row with an empty text left out"),
    Case("unseen.jsonl", '{"text": "\\u200b"}\n{"text": ["one", "\\u2060"]}\n{"text": []}\n', TEXT, [("one",)],
         "text -> text (1 to 2 rows a line); 1 row; 3 rows with an empty text left out"),
    Case("keys.jsonl", '{"n": 1}\n{"text": "one", "m": {}}\n{"text": null}\n', TEXT, [("one",)],
         "text -> text; n, m ignored; 1 row; 2 rows with an empty text left out"),
    Case("blank.csv", "text,n\n\none,1\n\n", TEXT, [("one",)], "n ignored; 1 row; 2 blank lines left out"),
    Case("arrays.jsonl", '["a", "b"]\n\n["c", "d"]\n', PAIR, [("a", "b"), ("c", "d")],
         "2 rows; 1 blank line left out"),
    Case("returns.csv", "text\rone\rtwo\r", TEXT, [("one",), ("two",)], "2 rows"),
    Case("quoted.csv", 'id,text\n1,"one\ntwo"\n', TEXT, [("one\ntwo",)], "id ignored; 1 row"),
    Case("deep.jsonl", lines({"text": "[" * 200 + '\\" {', "m": [[["deep"]]]}), TEXT, [("[" * 200 + '\\" {',)]),
    Case("empty.tsv", "anchor\tpositive\tneg\na\tp\tn\n\tp\tn\na\t \tn\na\tp\t\n\n\t\t\na\tp\tm\n\n", PAIR,
         [("a", "p", "n"), ("a", "p", ""), ("a", "p", "m")],
         "3 rows; 3 blank lines left out; 2 rows with an empty text left out"),
]  # fmt: skip
LABELS = [
    Case("names.tsv", labeled(*NLI[1:], "entailment"), SCORED, numbers(1, 2, 0),
         "label -> target: entailment (1), neutral (1), contradiction (1); 3 rows", TARGETS),
    Case("numbers.tsv", labeled("1", "0", "2.0", "0"), SCORED, numbers(1, 0, 2, 0),
         "label -> target: 0 = entailment (2), 1 = neutral (1), 2 = contradiction (1); 4 rows", TARGETS),
    # Every row of the two-class task but entailment may be either of two classes: the user says which.
    Case("rte as nli.tsv", labeled("not_entailment", "entailment"), SCORED, numbers(None, 0),
         options={**TARGETS, "labels": {"not_entailment": "-"}}),
    Case("booleans.jsonl", lines(*({"text": "a", "label": cell} for cell in BOOLEANS)), LABELED,
         [("a", 0.0), ("a", 1.0)] * 5, options={"target": YES_NO}),
    Case("mapped.tsv", labeled("1", "3.0", "2", "skip", "", "1"), SCORED, numbers(1, 0, 2, None, None, 1),
         "3 = entailment (1), 1 = neutral (2), 2 = contradiction (1); 4 rows; 2 rows without a gold label left",
         {**TARGETS, "labels": MAPPING}),
    Case("mapped.jsonl", lines(*({"text": "a", "label": cell} for cell in (True, False, None))), LABELED,
         [("a", 1.0), ("a", 0.0)],
         options={"target": Classes(("no", "yes")), "labels": {"true": "yes", "false": "no", "": "-"}}),
    Case("missing.tsv", labeled("0", "", "2"), SCORED, numbers(0, None, 2), f"2 rows; {GONE}",
         {**TARGETS, "labels": {"": "-"}}),
    Case("scaled.tsv", "score\tsentence1\tsentence2\n4.5\ta\tb\n0\tc\td\n5.0\te\tf\n", SCORED,
         [("a", "b", 0.9), ("c", "d", 0.0), ("e", "f", 1.0)], "score -> target: 0 to 5 (3); 3 rows",
         {"target": Scores()}),
    Case("any number.tsv", labeled("7", "-1"), SCORED, numbers(7, -1), "label -> target; 2 rows"),
    Case("twice.tsv", "label\tpremise\thypothesis\n" + "0\tsame\tsame\n" * 3, SCORED, [("same", "same", 0.0)] * 3,
         options=TARGETS),
    Case("trec.tsv", "label\tfine_label\ttext\nHUM\tHUM:ind\tWho ?\nLOC\tLOC:city\tWhere ?\n", LABELED,
         [("Who ?", 1.0), ("Where ?", 0.0)], options={"target": Classes(("LOC", "HUM"))}),
    Case("one class.tsv", labeled("0", "0"), SCORED, numbers(0, 0), "\nno row of the classes neutral", TARGETS),
    Case("empty text.tsv", "label\tpremise\thypothesis\n0\ta\tb\nwrong\t\tb\n", SCORED, [("a", "b", 0.0)],
         "1 row; 1 row with an empty text left out", TARGETS),
    Case("others.tsv", labeled("n", "e"), SCORED, numbers(1, 0),
         "\nno row of label c\nno row of class contradiction", {**TARGETS, "every_label": False,
         "labels": {"n": "neutral", "e": "entailment", "c": "contradiction"}}),
]  # fmt: skip
CASES = [*COLUMNS, *SPLITS, *LINES, *LABELS]


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_file_gives_its_rows_and_says_how_it_was_understood(tmp_path: Path, case: Case) -> None:
    table = read_rows(write(tmp_path / case.name, case.content), case.reads, **case.options)
    assert cells(table) == list(case.rows)
    assert case.said in table.description
    assert table.description.startswith(f"{case.name}: ")
    assert {*case.reads} <= {*table[0]}


def cells(table: Table) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in table]


def test_every_alias_is_known_in_any_case_and_stands_for_one_column() -> None:
    for name, aliases in ALIASES.items():
        reads = {"text": TEXT, "target": SCORED, "scores": (*PAIR, "scores")}.get(name, PAIR)
        for alias in (form for each in aliases for form in (each, each.upper().replace("_", " "))):
            header = [*(column for column in reads if column != name), alias]
            assert plan_columns("a.tsv", header, reads, {}, FileForm())[name] == [alias]
    every = [alias.replace("_", "") for names in ALIASES.values() for alias in names]
    every.remove("scores")  # teacher scores if an objective reads them, else a target
    assert len({*every}) == len(every)


@pytest.mark.parametrize("suffix", [".txt", *FORMATS])
def test_lines_end_in_newlines_alone_or_as_windows_has_them_after_a_byte_order_mark(
    tmp_path: Path, suffix: str
) -> None:
    text = "a\u2028b\x85c\x0bd\x0ce\x1cf"
    line = json.dumps({"text": text}, ensure_ascii=False) if suffix == ".jsonl" else text
    head = "" if suffix in (".txt", ".jsonl") else "text\r\n"
    path = write(tmp_path / f"a{suffix}", f"\ufeff{head}{line}\r\n{line}\n")
    assert cells(read_rows(path, TEXT)) == [(text,)] * 2


def test_a_quoted_csv_text_may_have_newlines_and_be_long(tmp_path: Path) -> None:
    limit = csv.field_size_limit()
    text = 'first\nsecond, "quoted"\n' + "long " * 40_000
    assert cells(read_rows(write_rows(tmp_path / "a.csv", [{"text": text}]), TEXT)) == [(text,)]
    assert csv.field_size_limit() == limit


@pytest.mark.parametrize("suffix", FORMATS)
@settings(deadline=None, max_examples=20)  # the time is the disk's
@given(pairs=st.lists(st.tuples(any_text, any_text), min_size=1, max_size=8))
def test_texts_come_back_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, pairs: list[tuple[str, str]]
) -> None:
    path = tmp_path_factory.mktemp("round") / f"a{suffix}"
    rows = tuple({"anchor": anchor, "positive": positive} for anchor, positive in pairs)
    assert read_rows(write_rows(path, rows), PAIR).rows == rows


def test_objects_of_differing_keys_take_memory_in_proportion_to_their_number(tmp_path: Path) -> None:
    peaks = []
    for count in (500, 1000):
        rows = [{"text": f"text {i}", f"key {i}": i} for i in range(count)]
        path = write_rows(tmp_path / f"{count}.jsonl", rows)
        tracemalloc.start()
        assert len(read_rows(path, TEXT)) == count
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # A list with a cell for each key of each object, 8 bytes each, made it 3.6 times as much.
    assert peaks[1] < 2.5 * peaks[0]


def test_a_string_that_is_never_closed_is_passed_once() -> None:
    line = "{" * 2 + '"' + '\\"' * 20_000
    steps = [match.end() - match.start() for match in _BRACKETS.finditer(line)]
    assert steps == [1, 1, len(line) - 2]  # one string to the end; begun anew at each quote it took squared time


@pytest.mark.parametrize("genre", [{}, {"genre": "fiction"}])
def test_the_releases_of_snli_and_multinli_are_read_from_both_of_their_files(
    tmp_path: Path, genre: dict[str, str]
) -> None:
    parses = {"sentence1_binary_parse": "( a . )", "sentence2_binary_parse": "( b . )"}
    texts = {"sentence1": "a .", "sentence2": "b .", "pairID": "1", **genre}
    rows = [{"gold_label": label, **parses, **texts} for label in ("neutral", "-", "entailment", "contradiction")]
    header = "\t".join([*rows[0], *(f"label{number}" for number in range(1, 6))])
    # The last annotators' labels are missing, as blanks or with their tabs.
    written = [
        "\t".join(row.values()) + "\tneutral" + "\t" * tabs for row, tabs in zip(rows, (4, 0, 2, 0), strict=True)
    ]
    objects = lines(*({"annotator_labels": [row["gold_label"]], **row} for row in rows))
    for path in (
        write(tmp_path / "train.jsonl", objects),
        write(tmp_path / "train.txt", "\n".join([header, *written]) + "\n"),
        write(tmp_path / "train.txt.gz", "\r\n".join([header, *written]) + "\r\n"),
    ):
        table = read_rows(path, SCORED, target=INFERENCE)
        assert cells(table) == [("a .", "b .", number, *genre.values()) for number in (1.0, 0.0, 2.0)]
        assert "gold_label -> target: entailment (1), neutral (1), contradiction (1)" in table.description
        assert table.description.endswith(f"3 rows; {GONE}")
        assert len(read_rows(path, TEXT)) == 8


def test_several_files_and_folders_are_joined_in_order(tmp_path: Path) -> None:
    first = write(tmp_path / "b.tsv", "query\tanswer\n1\t2\n")
    second = write(tmp_path / "a.jsonl", '{"sentence1": "3", "sentence2": "4", "neg": "5"}')
    table = read_rows([first, str(second)], PAIR)
    assert cells(table) == [("1", "2", ""), ("3", "4", "5")]
    assert {tuple(row) for row in table} == {(*PAIR, "negative")}
    assert table.source == (str(first), str(second))
    assert [line.split(":")[0] for line in table.description.split("\n")] == ["b.tsv", "a.jsonl"]
    (tmp_path / "more").mkdir()
    write(tmp_path / "more" / "a.txt", "a document\nof two lines")
    texts = read_rows([write(tmp_path / "lines.txt", "one\ntwo\n"), tmp_path / "more"], TEXT)
    assert cells(texts) == [("one",), ("two",), ("a document\nof two lines",)]
    assert (len(texts), texts[1], list(texts)) == (3, {"text": "two"}, list(texts.rows))


def test_files_that_differ_in_subsets_or_labels_are_joined(tmp_path: Path) -> None:
    snli = write(tmp_path / "snli.tsv", "premise\thypothesis\tlabel\na\tb\t0\n")
    genres = write(tmp_path / "multinli.tsv", "genre\tpremise\thypothesis\tlabel\nfiction\tc\td\t2\n")
    table = read_rows([snli, genres], SCORED, target=INFERENCE)
    assert [list(row) for row in table] == [[*SCORED]] * 2
    missing = ["subset left out: not every file has one", "no row of class neutral"]
    assert table.description.split("\n")[2:] == missing
    files = [write(tmp_path / "a.tsv", labeled("0", "2")), write(tmp_path / "b.tsv", labeled("e", "neutral"))]
    table = read_rows(files, SCORED, target=INFERENCE, labels={"e": "entailment"})
    assert [row["target"] for row in table] == [0.0, 2.0, 0.0, 1.0]
    assert list(table.documents) == [table.rows[:2], table.rows[2:]]
    assert "no row" not in table.description


@pytest.mark.parametrize(
    ("scores", "kept"),
    [
        (["-1", "5", "0.0", "-1.0"], [5.0, 0.0]),  # GLUE's for none
        (["-1", "0.5", "-0.2", "1"], [-1.0, 0.5, -0.2, 1.0]),  # a score like others
        (["3", "4"], [3.0, 4.0]),
        (["3", "", " - ", " "], [3.0]),
        (["1", "+2.5", " .5", "3.", "1e-3"], [1.0, 2.5, 0.5, 3.0, 1e-3]),
    ],
)
def test_a_gold_score_that_is_empty_or_minus_one_where_none_is_below_0_is_none(
    tmp_path: Path, scores: list[str], kept: list[float]
) -> None:
    rows = "".join(f"a {i}\tb\t{score}\n" for i, score in enumerate(scores))
    table = read_pairs(write(tmp_path / "a.tsv", f"sentence1\tsentence2\tscore\n{rows}"))
    assert [row["target"] for row in table] == kept
    left_out = len(scores) - len(kept)
    count = f"{len(kept)} row{'s' if len(kept) > 1 else ''}"
    said = f"{count}; {left_out} rows without a gold label left out" if left_out else count
    assert table.description.endswith(said)


def test_one_split_of_scored_pairs_is_read(tmp_path: Path) -> None:
    scored = write(tmp_path / "sts.tsv", "split\tscore\tsentence1\tsentence2\ntrain\t1\ta\tb\ndev\t2\tc\td\n")
    assert cells(read_pairs(scored, split="dev")) == [("c", "d", 2.0)]


REAL_FILES: tuple[tuple[str, Sequence[str], int], ...] = (
    ("sts/stsb.dev.tsv", SCORED, 1_500),
    ("paraphrase/mrpc.dev.tsv", SCORED, 500),
    ("nli/snli_triplets.dev.tsv", PAIR, 2_954),
    ("documents/sotu.jsonl.gz", TEXT, 98),
    ("classification/cr.tsv", LABELED, 3_771),
    ("cs224n/sst.dev.tsv", LABELED, 1_101),
    ("sts/sts12.test.tsv", SCORED, 3_108),
    ("nli/snli.dev.tsv", PAIR, 9_842),
    ("nli/snli_triplets.dev.tsv", TEXT, 3 * 2_954),
    ("unlabeled/wiki1m_head.tsv.gz", TEXT, 11_914),
    ("classification/trec.test.tsv", TEXT, 500),
)
"""File, what is read of it, and its published number of rows; first one of each layout."""


@pytest.mark.slow
@needs_data
@pytest.mark.parametrize(("name", "reads", "count"), rest_slow(REAL_FILES, quick=6))
def test_every_real_file_has_its_published_number_of_rows(name: str, reads: Sequence[str], count: int) -> None:
    table = read_rows(DATA / name, reads, form=FileForm(pair_labels="all"))
    assert len(table) == count
    assert "left out" not in table.description
    assert {*reads} <= {*table[0]}
    assert ("negative" in table[0]) == ("triplets" in name and "anchor" in reads)


REAL_LABELS = (
    ("classification/trec.train.tsv", Classes(("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")), 5_452, "ABBR ("),
    ("cs224n/sst.train.tsv", Classes(("0", "1", "2", "3", "4")), 8_544, "0 ("),
    ("nli/snli_sample.train.tsv", INFERENCE, 18_000, "entailment ("),
    ("nli/rte.dev.tsv", Classes(("entailment", "not_entailment")), 1_767, "not_entailment ("),
    ("paraphrase/quora.dev.tsv", YES_NO, 2_019, "0 ("),
    ("paraphrase/mrpc.dev.tsv", YES_NO, 500, "0 ("),
    ("cs224n/sts.dev.tsv", Scores(), 863, "target: 0 to 5 (863)"),
    ("sts/sick.train.tsv", Scores(low=1), 4_500, "target: 1 to 5 (4,500)"),
)


@needs_data
@pytest.mark.parametrize(("name", "target", "count", "said"), rest_slow(REAL_LABELS, quick=2))
def test_every_real_labeled_file_is_read_whole(name: str, target: Any, count: int, said: str) -> None:
    reads = LABELED if name.startswith(("class", "cs224n/sst")) else SCORED
    table = read_rows(DATA / name, reads, target=target)
    assert len(table) == count
    assert said in table.description
    assert "left out" not in table.description
    assert "no row" not in table.description
