"""Columns: the names that are known, which of them fills what, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from data_files import FORMATS, PAIR, SCORED, refuses, texts, write, write_rows

from contrastive_text.data.files.columns import ALIASES, plan_columns
from contrastive_text.data.files.formats import FileForm
from contrastive_text.data.files.readers import read_rows


def test_every_alias_is_known_in_any_case() -> None:
    for name, aliases in ALIASES.items():
        reads = {"text": ["text"], "target": SCORED}.get(name, PAIR)
        for alias in (form for each in aliases for form in (each, each.upper().replace("_", " "))):
            header = [*(column for column in reads if column != name), alias]
            assert plan_columns("a.tsv", header, reads, {}, FileForm())[name] == [alias]


def test_no_alias_stands_for_two_columns() -> None:
    aliases = [alias.replace("_", "") for names in ALIASES.values() for alias in names]
    assert len(set(aliases)) == len(aliases)


@pytest.mark.parametrize(
    "header",
    [
        "negative_1,negative_2,negative_10",
        "negative,negative_2,negative_3",
        "hard_neg_1,hard_neg_2,hard_neg_3",
        "Negative 1,negative-2,negative3",
    ],
)
def test_numbered_negatives_come_in_their_order(tmp_path: Path, header: str) -> None:
    one, two, three = header.split(",")
    path = write(tmp_path / "a.csv", f"{three},anchor,{one},positive,{two}\nthird,a,first,p,second\n")
    table = read_rows(path, PAIR)
    assert list(table[0].items()) == [
        ("anchor", "a"),
        ("positive", "p"),
        ("negative", "first"),
        ("negative_2", "second"),
        ("negative_3", "third"),
    ]
    assert f"{one}, {two}, {three} -> negative, negative_2, negative_3" in table.understood


def test_simcse_triples_are_read(tmp_path: Path) -> None:
    table = read_rows(write(tmp_path / "a.csv", "sent0,sent1,hard_neg\na,p,n\n"), PAIR)
    assert table.rows == ({"anchor": "a", "positive": "p", "negative": "n"},)


def test_a_text_column_goes_before_pair_columns_for_single_texts(tmp_path: Path) -> None:
    table = read_rows(write(tmp_path / "a.csv", "query,text\nq,t\n"), ["text"])
    assert texts(table) == ["t"]
    assert "query ignored" in table.understood


def test_columns_go_before_aliases(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "premise,hypothesis,label,gold,x,y\na,b,word,3,n,m\n")
    columns = {"anchor": "hypothesis", "positive": "premise", "target": "gold", "negative": ["y", "x"]}
    assert read_rows(path, SCORED, columns).rows == (
        {"anchor": "b", "positive": "a", "negative": "m", "negative_2": "n", "target": 3.0},
    )


def test_several_columns_for_text_or_positive_give_several_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "x,y,z\na,b,c\n")
    assert texts(read_rows(path, ["text"], {"text": ["y", "x"]})) == ["b", "a"]
    assert read_rows(path, PAIR, {"anchor": "x", "positive": ["y", "z"]}).rows == (
        {"anchor": "a", "positive": "b"},
        {"anchor": "a", "positive": "c"},
    )


def test_of_many_ignored_columns_some_are_named_and_the_rest_counted(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "texts.jsonl", [{"text": "a", **{f"key {i}": 0 for i in range(30)}}])
    understood = read_rows(path, reads=["text"]).understood
    assert "key 22, key 23, 6 more ignored" in understood
    assert "key 24" not in understood


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_file_without_a_known_column_says_how_to_name_one(tmp_path: Path, suffix: str) -> None:
    path = write_rows(tmp_path / f"a{suffix}", [{"headline": "one", "": "2"}])
    with refuses(
        f"a{suffix}: expected a column for text (text, texts, sentence,",
        'got headline, ""',
        "give columns text=NAME or column NAME",
    ):
        read_rows(path, ["text"])
    with refuses(
        "a column for anchor (anchor, sentence1,", "and a column for positive (positive, ",
        "give columns anchor=NAME positive=NAME",
    ):  # fmt: skip
        read_rows(path, PAIR[:2])


def test_a_single_column_without_a_name_is_told_of_txt(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "satz\nA second.\n")
    with refuses("got satz;", "call the file .txt"):
        read_rows(path, ["text"])


def test_a_missing_target_is_refused_where_it_is_asked_for(tmp_path: Path) -> None:
    with refuses(
        "expected a column for target (target, score,", "got sentence1, sentence2", "give columns target=NAME"
    ):
        read_rows(write(tmp_path / "a.tsv", "sentence1\tsentence2\na\tb\n"), SCORED)


@pytest.mark.parametrize(
    ("header", "name", "rivals"),
    [
        ("anchor,query,positive", "anchor", "anchor and query"),
        ("anchor,positive,sentence2", "positive", "positive and sentence2"),
        ("anchor,positive,neg,hard_negative", "negative", "neg and hard_negative"),
    ],
)
def test_two_columns_for_one_are_refused_by_name(tmp_path: Path, header: str, name: str, rivals: str) -> None:
    path = write(tmp_path / "a.csv", f"{header}\n{header}\n")
    with refuses(f"expected one column for {name}, got {rivals};", f"give columns {name}="):
        read_rows(path, PAIR)
    chosen = rivals.split()[-1]
    assert read_rows(path, PAIR, {name: chosen})[0][name] == chosen


def test_two_targets_do_not_matter_where_none_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text,score,label\none,1,2\n")
    assert "score, label ignored" in read_rows(path, ["text"]).understood


def test_a_named_column_that_is_not_there_is_refused_with_the_nearest(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "id,headline\n1,one\n")
    with refuses("expected the column headlines for columns.text, got id, headline; did you mean headline?"):
        read_rows(path, ["text"], {"text": "headlines"})
    with refuses("expected the column zzz for columns.text", "name one of those"):
        read_rows(path, ["text"], {"text": "zzz"})
