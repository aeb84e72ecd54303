"""Refusals of data files: one table of files, what is read of them, and the words of the error."""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from data_files import FORMATS, PAIR, SCORED, TEXT, refuses, write, write_rows

from contrastive_text.core.storage.text_files import SizeLimits
from contrastive_text.core.targets import NLI, Classes, Scores
from contrastive_text.data import read_pairs, read_rows
from contrastive_text.data.files.formats import FileForm, options_of
from contrastive_text.data.tasks import RUN_OPTIONS

LABELED = ("text", "target")
YES_NO = Classes.of(2, "classes")
TARGETS: Mapping[str, Any] = {"target": Classes(NLI)}
RUN: Mapping[str, Any] = {"form": FileForm(options=options_of(*RUN_OPTIONS, prefix="--data.task."))}
ALL_NLI = "split\tsentence1\tsentence2\tlabel\ntrain\ta\tb\t0\ntrain\tc\td\t1\ndev\te\tf\t2\n"
OTHERWISE = "expected lines that end in newlines"
SCORES = "score\tsentence1\tsentence2\n"
LABELS = "label\tpremise\thypothesis\n"
CLASSES = "expected one of the classes entailment, neutral, contradiction, got"


class Refusal(NamedTuple):
    """A file, what is read of it, and words of the error in their order; the first ones are the file and line."""

    name: str
    content: str | bytes
    reads: Sequence[str]
    words: Sequence[str]
    options: Mapping[str, Any] = {}
    read: Callable[..., object] = read_rows


def scored(value: str) -> str:
    return (
        f'{{"anchor": "a", "positive": "b", "label": 0}}\n{{"anchor": "a", "positive": "b", "label": {value}}}\n'
    )


GZIPPED = gzip.compress(b"one\n" * 100, mtime=0)  # the same in every worker, as ids of tests must be
COLUMNS = [
    *(Refusal(f"nearest{suffix}", suffix, TEXT, ["expected a column for text (text, texts,", 'got headline, ""',
              "give columns text=NAME or column NAME"]) for suffix in FORMATS),
    *(Refusal(f"pairs{suffix}", suffix, PAIR, ["column for anchor (anchor, sentence1,", "a column for positive (",
              "give columns anchor=NAME positive=NAME"]) for suffix in FORMATS),
    Refusal("a.tsv", "satz\nA second.\n", TEXT, ["got satz;", "call the file .txt"]),
    Refusal("a.tsv", "sentence1\tsentence2\na\tb\n", SCORED, ["a column for target (target, score,",
            "got sentence1, sentence2", "give columns target=NAME"]),
    Refusal("a.csv", "anchor,query,positive\na,b,c\n", PAIR, ["one column for anchor, got anchor and query;",
            "give columns anchor="]),
    Refusal("a.jsonl", '{"text": "one"}\n{"sentence": "two"}\n', TEXT, ["for text, got text and sentence"]),
    Refusal("a.csv", "id,headline\n1,one\n", TEXT, ["the column headlines for columns.text, got id, headline",
            "did you mean headline?"], {"columns": {"text": "headlines"}}),
    Refusal("a.csv", "id,headline\n1,one\n", TEXT, ["the column zzz for columns.text", "name one of those"],
            {"columns": {"text": "zzz"}}),
    Refusal("a.csv", "genre\n1\n", (*PAIR, "subset"), ["expected a column for anchor"]),
    Refusal("a.csv", "prem,hyp,label,score\na,b,1,2\n", (*PAIR, "target"), ["the column premise for "
            "columns.anchor, and one column for target instead of label and score, and a column for positive (",
            "did you mean prem?", "give columns anchor=prem target=label positive=NAME"],
            {"columns": {"anchor": "premise"}}),
    Refusal("a.csv", "sentence1,sentence2,label\na,b,1\n", ("text", "target"),
            ["a column for text in addition to the target",
             "give --data.task.pairing Given for pairs or --data.task.columns text=sentence1"], RUN),
    Refusal("a.csv", "1,What is a cat?,It is an animal.\n", PAIR,
            ["a column for anchor", "first line is a row: give --data.task.header anchor,positive,field3"], RUN),
    Refusal("a.csv", "frage;antwort\na;b\n", PAIR, ["by semicolons, give --data.task.separator ';'"], RUN),
    Refusal("a.tsv", "text\ttext\n1\t2\n", TEXT, ["a.tsv:1: expected every name once, got text twice"]),
    Refusal("a.txt", "one\n", PAIR, ["a.txt: expected anchor, positive, got a .txt file", "one text a", ".tsv"]),
    Refusal("a.tsv", ALL_NLI, SCORED, ["rows of one split, got train (2), dev (1); give split train"], TARGETS),
    Refusal("a.tsv", ALL_NLI, SCORED, ["split test, got train (2), dev (1)"], {**TARGETS, "split": "test"}),
]  # fmt: skip
LINES = [
    *(Refusal(name, "one", TEXT, [".txt, .tsv, .csv, .jsonl", ".gz", f"got {suffix!r}"])
      for name, suffix in (("a.arrow.gz", ".arrow.gz"), ("a.xml.gz", ".xml"), ("a", ""))),
    *(Refusal(name, "", TEXT, [name, "expected at least one row with text, got an empty file"])
      for name in ("a.txt", "a.csv", "a.jsonl")),
    Refusal("a.tsv", LABELS, SCORED, ["at least one row with text, got an empty file"], TARGETS),
    Refusal("a.tsv", "text\tn\n \t1\n\n\t2\n", TEXT, ["one row", "1 blank line left out, 2 rows with an empty"]),
    Refusal("a.jsonl", '{"text": "one"}\n\n{\'text\': 1}\n', TEXT, ["a.jsonl:3: expected a JSON", "one"]),
    Refusal("a.jsonl", '{"text": "\\ud83d"}\n', TEXT, ["a.jsonl:1: ", "'utf-8' codec can't encode"]),
    Refusal("a.jsonl", '{"text": "one"}\n["one"]\n', TEXT, ['a.jsonl:2: expected a JSON object, got ["one"]']),
    *(Refusal(f"a{suffix}", f"id{tab}text\n1{tab}one\n\n2{tab}two{tab}three\n", TEXT,
              [f"a{suffix}:4: expected 2 fields (id, text), got 3"])
      for suffix, tab in ((".tsv", "\t"), (".csv", ","))),
    Refusal("a.csv", 'id,text\n1,"one\ntwo"\nthree\n', TEXT, ["a.csv:4: expected 2 fields", "got 1"]),
    *(Refusal("a.csv", f"text\none\n{record}", TEXT, ["a.csv:3: expected CSV, got a broken record", ".tsv"])
      for record in ('"never closed\nthree\n', '"one" two\n')),
    Refusal("a.txt", "gold_label\tsentence1\tsentence2\tlabel1\nneutral\ta\tb\nneutral\ta\n", TEXT,
            ["a.txt:3: expected 4 fields", "got 2"]),
    *(Refusal("a.txt", f"one\rtwo\rthree{end}", TEXT, [f"a.txt:1: {OTHERWISE}, got a carriage return alone"])
      for end in ("", "\n")),
    Refusal("a.tsv", "text\tn\none\t1\rtwo\t2\n", TEXT, [f"a.tsv:2: {OTHERWISE}"]),
    Refusal("a.jsonl", '{"text": "1"}\n{"text": "2"}\r{"text": "3"}\n', TEXT, [f"a.jsonl:2: {OTHERWISE}"]),
    Refusal("a.jsonl", '{"text": "1"}\n{"text": "2", "text": "3"}\n', TEXT, ["a.jsonl:2: ", "text twice"]),
    Refusal("a.jsonl", '{"text": "a\\u0000b"}\n', TEXT, ["a.jsonl:1: expected texts in text, got", "U+0000"]),
    *(Refusal("a.jsonl", '{"text": ' + "[" * depth + "]" * closed + "}\n", TEXT,
              ["a.jsonl:1: expected at most 100 lists and objects", f"got {depth + 1:,}"])
      for depth, closed in ((101, 101), (100_000, 0))),
    Refusal("a.jsonl", '{"text": "a", "m": [[1]]}\n', TEXT, ["a.jsonl:1: expected at most 2 lists and objects"],
            {"bounds": SizeLimits(depth=2)}),
    Refusal("a.jsonl", '{"text": "a", "m": [[1]]}\n', TEXT, ["a.jsonl:1: expected a line of at most 9 bytes"],
            {"bounds": SizeLimits(line=9)}),
    Refusal("a.jsonl", '{"anchor": 5, "positive": "p"}', PAIR, ["a.jsonl:1: expected a text in anchor, got 5"]),
    Refusal("a.jsonl", '{"anchor": "a", "positive": ["p", 1]}', PAIR, ["a text or a list of texts in positive"]),
]  # fmt: skip
CELLS = [
    *(Refusal("a.tsv", f"{SCORES}5\ta\tb\n{cell}\tc\td\n", SCORED, ["a.tsv:3: expected a", f"got {cell!r}"])
      for cell in ("entailment", "", "nan")),
    *(Refusal("a.jsonl", f'{{"text": "a", "label": {value}}}', LABELED, ["a.jsonl:1: expected a number in"])
      for value in ("null", "[1]", "1" + "0" * 400)),
    *(Refusal("a.jsonl", scored(json.dumps(cell)), SCORED, ["a.jsonl:2: expected a number"], read=read_pairs)
      for cell in ("1_000", "\u0661", "true", "0x10", "1 2", "nan", "inf")),
    Refusal("a.tsv", f"{SCORES}-1\ta\tb\n-1\tc\td\n", SCORED, ["and a gold label, got 2"], read=read_pairs),
    *(Refusal("a.tsv", f"{LABELS}{missing}\ta\tb\n{missing}\ta\tb\n", SCORED,
              ["text and a gold label, got 2 rows without a gold label left out; name a file that has labels"],
              TARGETS) for missing in ("-", "-1", "-1.0")),
    Refusal("a.tsv", f"{LABELS}0\ta\tb\n\tc\td\n", SCORED, ["a.tsv:3: expected one of the classes",
            "got an empty label; correct the row, or skip such rows"], TARGETS),
    *(Refusal("a.jsonl", scored(value), SCORED, ["a.jsonl:2: expected one", "got an empty label"], TARGETS)
      for value in ("null", '""', '" "')),
    *(Refusal("a.jsonl", f'{{"text": "a", "label": {value}}}', LABELED,
              [f"a.jsonl:1: expected a label in label, got {value}; write it as a text or a number"], TARGETS)
      for value in ("[0]", '{"is": "0"}')),
    Refusal("a.tsv", f"{LABELS}neutral\ta\tb\n0\ta\tb\nnuetral\ta\tb\n", SCORED,
            [f"a.tsv:4: {CLASSES} 'nuetral'; did you mean"], TARGETS),
    Refusal("a.tsv", f"{LABELS}2\ta\tb\n", SCORED, ["a.tsv:2: expected one of the classes 0, 1, got '2'; map it"],
            {"target": YES_NO}),
    *(Refusal("a.tsv", f"{SCORES}3\ta\tb\n{cell}\tc\td\n", SCORED, ["a.tsv:3: expected a score from 0 to 5",
              "set the objective's low and high"], {"target": Scores()})
      for cell in ("5.1", "-0.5", "nan", "inf", "high", "")),
    *(Refusal("a.tsv", f"{LABELS}neutral\ta\tb\nentailment\ta\tb\n", SCORED, words, {**TARGETS, "labels": labels})
      for labels, words in (
          ({"entailmnt": "entailment"}, ["labels.entailmnt: expected a label of the files, got entailment"]),
          ({"9": "entailment"}, ["labels.9: expected a label of the files", "name one of those"]),
          ({"neutral": "maybe"}, [f"labels.neutral: {CLASSES}"]),
          ({"1": "neutral", "1.0": "entailment"}, ["labels: expected every label once, got 1, 1.0; 1 and"]))),
    *(Refusal("a.tsv", f"{LABELS}0\ta\tb\n", reads, ["labels: expected an objective that learns a", "got {'0': "],
              {"target": target, "labels": {"0": "neutral"}})
      for target, reads in ((None, SCORED), (Classes(NLI), PAIR))),
]  # fmt: skip
ASKED = [
    *(Refusal("a.txt", "one", reads, ["reads: expected text, or anchor and positive, got"])
      for reads in ([], ["target"], ["anchor"], ["positive"], ["text", "anchor"], ["text", "negative"])),
    Refusal("a.txt", "one", ["sentence"], ["reads: expected text, anchor, positive, negative", "got 'sentence'"]),
    Refusal("a.txt", "one", PAIR, ["columns: expected text, ", "got 'negative_2'", "a list under negative"],
            {"columns": {"negative_2": "x"}}),
    *(Refusal("a.txt", "one", PAIR, [f"columns.{name}: expected one column, got {len(sources)}"],
              {"columns": {name: sources}})
      for name, sources in (("anchor", ["x", "y"]), ("target", ["x", "y"]), ("text", []))),
]  # fmt: skip
REFUSALS = [*COLUMNS, *LINES, *CELLS, *ASKED]


@pytest.mark.parametrize("case", REFUSALS, ids=lambda case: f"{case.name}: {case.words[0][:40]}")
def test_a_file_is_refused_with_its_place_and_the_remedy(tmp_path: Path, case: Refusal) -> None:
    path, limit = tmp_path / case.name, csv.field_size_limit()
    if case.content in FORMATS:
        write_rows(path, [{"headline": "one", "": "2"}])
    else:
        write(path, case.content)
    with refuses(*case.words):
        case.read(path, **({"reads": case.reads} if case.read is read_rows else {}), **case.options)
    assert csv.field_size_limit() == limit


def test_no_files_are_refused() -> None:
    with refuses("paths: expected at least one file, got no file"):
        read_rows([], TEXT)


@pytest.mark.parametrize("packed", [b"one\n", GZIPPED[:-9], GZIPPED[:12] + b"\xff\xff\xff" + GZIPPED[15:]])
def test_a_broken_gzip_is_refused(tmp_path: Path, packed: bytes) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(packed)
    with refuses("a.txt.gz: expected a whole gzip file, got a broken one", "download it again"):
        read_rows(path, TEXT)


@pytest.mark.parametrize(
    ("name", "todo"),
    [
        ("stsb.dev.tv", "did you mean stsb.dev.tsv?"),
        ("qqqqqqqq.txt", "look into {folder}"),
        ("nowhere/a.txt", "look into {folder}/nowhere"),
    ],
)
def test_a_missing_file_names_its_neighbors_or_where_it_looked(tmp_path: Path, name: str, todo: str) -> None:
    write(tmp_path / "stsb.dev.tsv", "")
    with pytest.raises(
        FileNotFoundError, match=f"{name}: expected a file.*" + re.escape(todo.format(folder=tmp_path))
    ):
        read_rows(tmp_path / name, TEXT)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"separator": "::"}, "separator: expected one character, or tab, got '::'"),
        ({"header": "anchor,,score"}, "header: expected a different name for each column, got 'anchor,,score'"),
        ({"pair_labels": "1"}, "pair_labels: expected one of positives, hard or all, got '1'"),
    ],
)
def test_settings_without_a_meaning_are_refused(options: dict[str, Any], message: str) -> None:
    with refuses(message):
        FileForm(**options)
