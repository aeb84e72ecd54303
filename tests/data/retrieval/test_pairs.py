"""A corpus made of pairs, and further texts in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from contrastive_text.data import read_pair_corpus


def test_anchors_look_for_their_positives_among_those_of_all(tmp_path: Path) -> None:
    pairs, more = tmp_path / "pairs.jsonl", tmp_path / "more.txt"
    pairs.write_text(
        '{"query": "a", "pos": ["b", "c"]}\n{"query": "b", "pos": ["a"]}\n{"query": "a", "pos": ["d"]}\n'
    )
    more.write_text("c\nx\ny\nx\n")
    data = read_pair_corpus(pairs, str(more))
    assert data.queries == ("a", "b")
    assert data.documents == ("b", "c", "a", "d", "x", "y")
    assert data.relevance == ({0: 1.0, 1: 1.0, 3: 1.0}, {2: 1.0})
    assert data.own_documents == (2, 0)
    assert "2 queries, 6 documents, 4 relevant; 2 queries in the corpus" in data.description
    assert "pairs.jsonl: " in data.description and "more.txt: " in data.description
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_pair_corpus(pairs, str(tmp_path / "nowhere.txt"))


def test_further_texts_have_a_column_of_their_own(tmp_path: Path) -> None:
    pairs, more = tmp_path / "pairs.tsv", tmp_path / "more.csv"
    pairs.write_text("asked\tpositive\na\tb\n")
    more.write_text("id,body_text\n1,c\n")
    data = read_pair_corpus(pairs, str(more), {"anchor": "asked", "text": "body_text"})
    assert (data.queries, data.documents) == (("a",), ("b", "c"))
    with pytest.raises(ValueError, match=r"more.csv: expected a column for text .*; give columns text=NAME"):
        read_pair_corpus(pairs, str(more), {"anchor": "asked"})
