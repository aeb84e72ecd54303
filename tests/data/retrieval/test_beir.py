"""BEIR's layout: titles, ids, judgments, and all that is wrong with them."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
from retrieval_files import JUDGED, QUERIES, write_beir

from contrastive_text.data import RetrievalSet, read_beir


def test_a_folder_is_read_as_its_own_code_reads_it(tmp_path: Path) -> None:
    data = read_beir(write_beir(tmp_path), "test")
    assert data.queries == ("what sings?", "which animals run?")
    # The order of ids as texts: d1, d10, d2, d3.
    assert data.documents == (
        "cats a cat sleeps on the chair",
        "birds a bird sings in the tree",
        "two dogs run over the field",
        "rain falls on the town",
    )
    assert data.relevance == ({1: 2.0, 3: 0.0}, {2: 1.0, 1: 1.0})
    assert data.own_documents == (-1, -1)
    assert data.description == (
        f"{tmp_path}, test: 2 queries, 4 documents, 3 relevant; 1 query without a relevant document left out"
    )


def test_files_may_be_packed_and_ids_numbers(tmp_path: Path) -> None:
    write_beir(tmp_path)
    corpus = tmp_path / "corpus.jsonl"
    with gzip.open(f"{corpus}.gz", "wt") as file:
        file.write('{"_id": 7, "text": "seven"}\n{"_id": "8", "text": "eight", "title": null}\n')
    corpus.unlink()
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\nq1\t7\nq1\t7\n")  # no grade: relevant
    data = read_beir(tmp_path, "test")
    assert (data.documents, data.relevance) == (("seven", "eight"), ({0: 1.0},))


def test_a_query_in_the_corpus_never_finds_itself(tmp_path: Path) -> None:
    documents = {name: ("", text) for name, text in QUERIES.items()} | {"d": ("", "other")}
    judged = [("q1", "d", 1), ("q2", "q1", 1), ("q3", "q3", 1)]
    queries = QUERIES | {"d": "not the document of this id"}
    data = read_beir(write_beir(tmp_path, documents, queries, [*judged, ("d", "q1", 1)]), "test")
    assert data.own_documents == (1, 2, -1, -1)  # q3 is judged to answer itself; d's text is another
    assert "2 queries in the corpus, which never find themselves" in data.description


Write = Callable[[Path], object]


def replaced(name: str, text: str) -> Write:
    return lambda folder: (folder / name).write_text(text)


QRELS = "qrels/test.tsv"
ONE = '{"_id": "a", "text": "x"}\n'
HEADER = "query-id\tcorpus-id\tscore\n"


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (lambda folder: (folder / "corpus.jsonl").unlink(), r"expected corpus\.jsonl, as BEIR's layout has it"),
        (lambda folder: (folder / QRELS).rename(folder / "qrels/dev.tsv"), "got only judgments of dev"),
        (
            replaced("corpus.jsonl", ""),
            "corpus.jsonl: expected a text with its id on each line, got an empty file",
        ),
        (replaced("corpus.jsonl", f"{ONE}{ONE}"), "corpus.jsonl:2: .*every id once, got a twice"),
        (
            replaced("corpus.jsonl", '{"id": "a", "text": "x"}\n'),
            "columns _id, text .* got id, text, without _id",
        ),
        (replaced("corpus.jsonl", ONE + '{"text": "y"}\n'), r"corpus.jsonl:2: .*an id in _id"),
        (replaced("corpus.jsonl", '{"_id": "a", "text": ["x"]}\n'), "corpus.jsonl:1: expected a text"),
        (replaced("queries.jsonl", '{"_id": "q1", "text": " "}\n'), "every query, got a blank one for q1"),
        (replaced(QRELS, "q1\td1\t1\nq2\td2\t1\n"), r"test.tsv: expected the columns query-id.* got q1, d1, 1"),
        (
            replaced(QRELS, f"{HEADER}q1\td1\t1\nq9\td1\t1\n"),
            "test.tsv:3: .*id of a query, got q9, which doesn't exist",
        ),
        (replaced(QRELS, f"{HEADER}q1\td9\t1\n"), "test.tsv:2: .*id of a document, got d9"),
        (replaced(QRELS, f"{HEADER}q1\td1\tyes\n"), "test.tsv:2: expected a number as score"),
        (replaced(QRELS, f"{HEADER}q1\td1\t1\nq1\td1\t2\n"), "test.tsv:3: .*got 1 and 2 for d1 and the query q1"),
        (replaced(QRELS, f"{HEADER}q1\td1\t0\n"), "a document whose grade is above 0, got 3 queries without one"),
        (replaced(QRELS, ""), "got 3 queries without one"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, write: Write, said: str) -> None:
    write(write_beir(tmp_path) and tmp_path)
    with pytest.raises((ValueError, FileNotFoundError), match=said):
        read_beir(tmp_path, "test")


def test_a_bounded_corpus_keeps_what_is_judged(tmp_path: Path) -> None:
    documents = {f"d{number:03}": ("", f"text {number}") for number in range(50)}
    judged = [(query, document.replace("d", "d00", 1) if len(document) == 2 else "d010", grade)
              for query, document, grade in JUDGED]  # fmt: skip
    data = read_beir(write_beir(tmp_path, documents, judged=judged), "test")
    small = data.limit_documents(12, seed=1)
    assert isinstance(small, RetrievalSet)
    assert len(small.documents) == 12 and small.documents == tuple(
        sorted(small.documents, key=lambda t: int(t[5:]))
    )
    texts = [{small.documents[number]: grade for number, grade in each.items()} for each in small.relevance]
    assert texts == [{data.documents[number]: grade for number, grade in each.items()} for each in data.relevance]
    assert "; 12 documents of them ranked: 3 judged and 9 drawn" in small.description
    assert small == data.limit_documents(12, seed=1) and small != data.limit_documents(12, seed=2)
    assert len(data.limit_documents(1).documents) == 3 and data.limit_documents(50) is data
    with pytest.raises(ValueError, match="expected 1 or more, got 0"):
        data.limit_documents(0)
