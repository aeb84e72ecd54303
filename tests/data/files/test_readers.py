"""Readers: files that are joined to a table, what can be asked of them, and every published row count."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from conftest import DATA, needs_data
from covering import rest_slow
from data_files import PAIR, SCORED, refuses, texts, write

from contrastive_text.core.targets import NLI, Classes
from contrastive_text.data.files.formats import FileForm
from contrastive_text.data.files.readers import read_rows


def test_a_table_has_a_length_items_and_its_sources(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "one\ntwo\n")
    table = read_rows(str(path), ["text"])
    assert (len(table), table[1], list(table)) == (2, {"text": "two"}, list(table.rows))
    assert table.source == (str(path),)


def test_several_files_are_joined_in_order(tmp_path: Path) -> None:
    first = write(tmp_path / "b.tsv", "query\tanswer\n1\t2\n")
    second = write(tmp_path / "a.jsonl", '{"sentence1": "3", "sentence2": "4"}')
    table = read_rows([first, str(second)], PAIR)
    assert table.rows == ({"anchor": "1", "positive": "2"}, {"anchor": "3", "positive": "4"})
    assert table.source == (str(first), str(second))
    assert [line.split(":")[0] for line in table.understood.split("\n")] == ["b.tsv", "a.jsonl"]


def test_a_folder_joins_with_files(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    write(tmp_path / "more" / "a.txt", "a document\nof two lines")
    lines = write(tmp_path / "lines.txt", "one\ntwo\n")
    table = read_rows([lines, tmp_path / "more"], ["text"])
    assert texts(table) == ["one", "two", "a document\nof two lines"]


def test_files_with_and_without_hard_negatives_are_joined(tmp_path: Path) -> None:
    first = write(tmp_path / "a.csv", "anchor,positive\n1,2\n")
    second = write(tmp_path / "b.csv", "anchor,positive,neg\n3,4,5\n")
    table = read_rows([first, second], PAIR)
    assert [list(row.values()) for row in table] == [["1", "2", ""], ["3", "4", "5"]]
    assert {tuple(row) for row in table} == {("anchor", "positive", "negative")}


@pytest.mark.parametrize(
    "reads", [[], ["target"], ["anchor"], ["positive"], ["text", "anchor"], ["text", "negative"]]
)
def test_reads_are_single_texts_or_pairs(reads: list[str]) -> None:
    with refuses("reads: expected text, or anchor and positive, got"):
        read_rows("a.txt", reads)


def test_unknown_library_columns_are_refused() -> None:
    with refuses("reads: expected text, anchor, positive, negative, target, subset, got 'sentence'"):
        read_rows("a.txt", ["sentence"])
    with refuses("columns: expected text, ", "got 'negative_2'", "a list under negative"):
        read_rows("a.txt", PAIR, {"negative_2": "x"})


@pytest.mark.parametrize(("name", "sources"), [("anchor", ["x", "y"]), ("target", ["x", "y"]), ("text", [])])
def test_a_column_that_holds_one_value_has_one_source(name: str, sources: list[str]) -> None:
    with refuses(f"columns.{name}: expected one column, got {len(sources)}"):
        read_rows("a.txt", PAIR, {name: sources})


def test_no_files_are_refused() -> None:
    with refuses("paths: expected at least one file, got none"):
        read_rows([], ["text"])


def test_snli_without_genres_joins_multinli_with_them(tmp_path: Path) -> None:
    snli = write(tmp_path / "snli.tsv", "premise\thypothesis\tlabel\na\tb\t0\n")
    multinli = write(tmp_path / "multinli.tsv", "genre\tpremise\thypothesis\tlabel\nfiction\tc\td\t2\n")
    table = read_rows([snli, multinli], SCORED, target=Classes(NLI))
    assert [list(row) for row in table] == [["anchor", "positive", "target"]] * 2
    assert table.understood.split("\n")[2:] == [
        "subset left out: not every file has one",
        "no row of class neutral",
    ]
    with refuses("expected a column for subset"):
        read_rows([snli, multinli], (*SCORED, "subset"), target=Classes(NLI))


REAL_FILES: tuple[tuple[str, Sequence[str], int], ...] = (
    ("sts/stsb.dev.tsv", SCORED, 1_500),
    ("paraphrase/mrpc.dev.tsv", SCORED, 500),
    ("nli/snli_triplets.dev.tsv", PAIR, 2_954),
    ("documents/sotu.jsonl.gz", ["text"], 98),
    ("classification/cr.tsv", ["text", "target"], 3_771),
    ("cs224n/sst.dev.tsv", ["text", "target"], 1_101),
    ("sts/sts12.train.tsv", SCORED, 2_234),
    ("sts/sts12.test.tsv", SCORED, 3_108),
    ("sts/sts14.test.tsv", SCORED, 3_750),
    ("sts/sts15.test.tsv", SCORED, 3_000),
    ("sts/stsb.train.tsv", SCORED, 5_749),
    ("sts/stsb.test.tsv", SCORED, 1_379),
    ("sts/sick.train.tsv", SCORED, 4_500),
    ("sts/sick.dev.tsv", SCORED, 500),
    ("sts/sick.test.tsv", SCORED, 4_927),
    ("paraphrase/mrpc.train.tsv", SCORED, 3_576),
    ("paraphrase/quora.train.tsv", SCORED, 16_119),
    ("paraphrase/quora.dev.tsv", SCORED, 2_019),
    ("paraphrase/quora.test.tsv", SCORED, 2_074),
    ("nli/snli_sample.train.tsv", PAIR, 18_000),
    ("nli/snli_sample.dev.tsv", PAIR, 2_000),
    ("nli/snli.dev.tsv", PAIR, 9_842),
    ("nli/rte.dev.tsv", PAIR, 1_767),
    ("nli/rte.test.tsv", PAIR, 2_400),
    ("nli/snli_triplets.dev.tsv", ["text"], 3 * 2_954),
    ("unlabeled/wiki1m_head.tsv.gz", ["text"], 11_914),
    ("unlabeled/wikitext2_sentences.tsv.gz", ["text"], 72_974),
    ("documents/wikitext2.train.jsonl.gz", ["text"], 600),
    ("documents/brown.jsonl.gz", ["text"], 250),
    ("documents/gutenberg.jsonl.gz", ["text"], 154),
    ("classification/mr.tsv", ["text", "target"], 10_662),
    ("classification/trec.train.tsv", ["text"], 5_452),
    ("classification/trec.test.tsv", ["text"], 500),
    ("classification/sst2.train.tsv.gz", ["text", "target"], 67_349),
    ("classification/sst5.test.tsv", ["text", "target"], 2_210),
    ("cs224n/sts.test.tsv", SCORED, 1_725),
)
"""File, what is read of it, and its published number of rows; first one of each layout."""


@pytest.mark.slow
@needs_data
@pytest.mark.parametrize(("name", "reads", "count"), rest_slow(REAL_FILES, quick=6))
def test_every_real_file_has_its_published_number_of_rows(name: str, reads: Sequence[str], count: int) -> None:
    table = read_rows(DATA / name, reads, form=FileForm(pair_labels="all"))
    assert len(table) == count
    assert "left out" not in table.understood
    assert set(reads) <= set(table[0])
    assert ("negative" in table[0]) == ("triplets" in name and "anchor" in reads)


@needs_data
def test_real_scores_and_subsets_are_read() -> None:
    table = read_rows(DATA / "sts/sts15.test.tsv", SCORED)
    assert all(isinstance(row["target"], float) and 0 <= row["target"] <= 5 for row in table)
    assert {row["subset"] for row in table} == {
        "answers-forums",
        "answers-students",
        "belief",
        "headlines",
        "images",
    }
