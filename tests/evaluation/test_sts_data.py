"""Data sets of STS: two layouts, the hub, what is missing, and ConSERT's training texts."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import pytest
import sts_files
from parts import check_refused

from contrastive_text.cli import run
from contrastive_text.data.files import rows
from contrastive_text.data.files.formats import Content
from contrastive_text.evaluation.sts_data import (
    PUBLISHED,
    STS_TASKS,
    STSPairs,
    consert_corpus,
    find_pairs,
    find_sts,
)


def found(folder: str | Path) -> dict[str, STSPairs]:
    """The tasks of a folder that has all of them."""
    pairs = {task: each for task, each in find_sts(folder).items() if isinstance(each, STSPairs)}
    assert tuple(pairs) == STS_TASKS
    return pairs


def content(pairs: STSPairs) -> tuple[list[str], list[str], list[float], list[str]]:
    return pairs.first, pairs.second, pairs.gold.tolist(), pairs.subsets


# Layouts


def test_plain_tables_and_senteval_s_files_give_the_same_pairs(tmp_path: Path) -> None:
    tables, theirs = (
        found(sts_files.write_tables(tmp_path / "a")),
        found(sts_files.write_senteval(tmp_path / "b")),
    )
    for task, pairs in tables.items():
        assert content(pairs) == content(theirs[task])
        expected = sts_files.year_pairs(task) if task in sts_files.YEARS else {}
        scored = [pair for each in expected.values() for pair in each[:-1]]
        assert not expected or list(zip(pairs.first, pairs.second, strict=True)) == [pair[1:] for pair in scored]
    for task in ("STS-B", "SICK-R"):
        for split, count in sts_files.SPLITS.items():
            one, other = (find_pairs(task, tmp_path / name, split) for name in "ab")
            assert isinstance(one, STSPairs) and isinstance(other, STSPairs)
            assert content(one) == content(other)
            assert len(one) == count


@pytest.mark.parametrize("below", ["", "downstream", "data/downstream"])
def test_senteval_s_folder_may_be_given_at_three_heights(tmp_path: Path, below: str) -> None:
    sts_files.write_senteval(tmp_path / below)
    assert found(tmp_path)["STS15"].description.startswith(str(tmp_path / below / "STS" / "STS15-en-test"))


def test_plain_tables_may_lie_in_sts_and_come_first(tmp_path: Path) -> None:
    sts_files.write_senteval(tmp_path)
    sts_files.write_tables(tmp_path / "sts")
    assert all(".test.tsv: " in pairs.description for pairs in found(tmp_path).values())


def test_a_text_of_senteval_s_is_its_tokens_joined_by_blanks(tmp_path: Path) -> None:
    sts_files.write_senteval(tmp_path)
    place = tmp_path / "STS" / "STS13-en-test"
    lines = (place / "STS.input.FNWN.txt").read_text().splitlines()
    (place / "STS.input.FNWN.txt").write_bytes("\r\n".join(["  a  bird \ta\u2028dog", *lines[1:], ""]).encode())
    pairs = found(tmp_path)["STS13"]
    assert (pairs.first[0], pairs.second[0]) == ("a bird", "a dog")
    assert len(pairs) == 15  # U+2028 ends no line


# What is left out or missing is said


def test_pairs_without_a_score_are_left_out_and_counted(tmp_path: Path) -> None:
    for pairs in (
        found(sts_files.write_tables(tmp_path / "a"))["STS14"],
        found(sts_files.write_senteval(tmp_path / "b"))["STS14"],
    ):
        assert "no one scored" not in pairs.second
        assert "30 rows; 6 rows without a gold label left out" in pairs.description


def test_another_number_of_pairs_than_published_is_said(tmp_path: Path) -> None:
    pairs = found(sts_files.write_tables(tmp_path))
    published = {task: each.description.rsplit("; ", 1)[1].split()[0] for task, each in pairs.items()}
    assert published == {
        "STS12": "3,108", "STS13": "1,500", "STS14": "3,750", "STS15": "3,000", "STS16": "1,186",
        "STS-B": "1,379", "SICK-R": "4,927",
    }  # fmt: skip
    rows = sts_files.some_pairs(1186)
    sts_files.write_rows(
        tmp_path / "sts16.test.tsv", ("score", "sentence1", "sentence2", "subset"), [(*row, "x") for row in rows]
    )
    assert found(tmp_path)["STS16"].description.endswith("1,186 rows")


def test_an_empty_folder_has_a_message_for_each_task(tmp_path: Path) -> None:
    missing = find_sts(tmp_path)
    assert tuple(missing) == STS_TASKS
    for task, message in missing.items():
        assert isinstance(message, str)
        assert f"{task.replace('-', '').replace('SICKR', 'sick').lower()}.test.tsv" in message
        assert str(tmp_path) in message and "get_transfer_data.bash" in message and "mteb/" in message


def test_a_year_with_a_file_missing_has_no_score_over_the_others(tmp_path: Path) -> None:
    (sts_files.write_senteval(tmp_path) / "STS" / "STS12-en-test" / "STS.input.MSRvid.txt").unlink()
    message = find_sts(tmp_path)["STS12"]
    assert isinstance(message, str)
    assert f" or SentEval's STS/STS12-en-test/STS.input.MSRvid.txt in {tmp_path} or a folder in it" in message


# Damaged files


SCORES, TEXTS = (f"STS/STS13-en-test/STS.{kind}.OnWN.txt" for kind in ("gs", "input"))
HEADER = "score\tsentence1\tsentence2\n"


@pytest.mark.parametrize(
    ("file", "line", "said"),
    [
        (SCORES, "six", r"STS\.gs\.OnWN\.txt:1: expected a score from 0 to 5, got 'six'"),
        (SCORES, "6", r"STS\.gs\.OnWN\.txt:1: expected a score from 0 to 5, got '6'"),
        (TEXTS, "one", r"STS\.gs\.OnWN\.txt:1: expected two texts and a score"),
        (SCORES, "1\n2", r"a score for each line of .*STS\.input\.OnWN\.txt, got 7 scores and 6 pairs"),
        ("STS/STSBenchmark/sts-test.csv", "a\tb\tc", r"sts-test\.csv:1: expected two texts and a score"),
        ("SICK/SICK_test_annotated.txt", "id\n1\ta\tb\tnone\tX", r"annotated\.txt:2: expected a score"),
        ("sts13.test.tsv", f"{HEADER}six\ta\tb", r"sts13\.test\.tsv:2: expected a score"),
        ("sts13.test.tsv", f"{HEADER}\ta\tb", "and a gold label, got 1 row without a gold label"),
        ("sts13.test.tsv", "", r"sts13\.test\.tsv: expected at least one row"),
    ],
)
def test_a_damaged_file_is_refused_with_its_line(tmp_path: Path, file: str, line: str, said: str) -> None:
    path = sts_files.write_senteval(tmp_path) / file
    _, *others = path.read_text().split("\n") if path.is_file() else ("",)
    path.write_text("\n".join([line, *others]))
    with pytest.raises(ValueError, match=said):
        find_sts(tmp_path)


def test_two_tables_no_score_and_no_folder_are_refused(tmp_path: Path) -> None:
    table = sts_files.write_tables(tmp_path / "two") / "sts16.test.tsv"
    (tmp_path / "two" / "sts16.test.tsv.gz").write_bytes(gzip.compress(table.read_bytes()))
    path = sts_files.write_senteval(tmp_path / "empty") / "STS" / "STSBenchmark" / "sts-test.csv"
    path.write_text("a\tb\tc\td\t\tone\tother\n")
    for folder, error, words in (
        ("two", ValueError, ["STS16", "one copy of the data", "sts16.test.tsv.gz too"]),
        ("empty", ValueError, ["STSBenchmark", "pairs with a gold score, got no score"]),
        ("nowhere", FileNotFoundError, ["nowhere", "a folder of data sets"]),
    ):
        check_refused(lambda folder=folder: find_sts(tmp_path / folder), error, words)


# The hub


def test_the_hub_s_copies_are_read_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def stub(path: str) -> Content:
        asked.append(path)
        records = [(1, [0.5, "a bird", "a dog", "x"]), (2, [4.0, "a cat", "a pet", "y"])]
        return Content(["score", "sentence1", "sentence2", "label"], lambda: records)

    monkeypatch.setattr(rows, "hub_content", stub)
    pairs = found("hub")
    assert asked == [
        f"hub:mteb/{name}:test"
        for name in (*(f"sts{year}-sts" for year in range(12, 17)), "stsbenchmark-sts", "sickr-sts")
    ]
    assert content(pairs["STS15"]) == (["a bird", "a cat"], ["a dog", "a pet"], [0.5, 4.0], ["", ""])
    assert pairs["STS-B"].subsets == ["STS-B"] * 2
    find_pairs("SICK-R", "hub:someone", "dev")
    assert asked[-1] == "hub:someone/sickr-sts:validation"


def test_what_the_hub_does_not_give_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def stub(path: str) -> Content:
        raise ValueError(f"{path}: expected a data set that can be loaded, got none")

    monkeypatch.setattr(rows, "hub_content", stub)
    assert all(
        isinstance(each, str) and "that can be loaded" in each and "give a folder" in each
        for each in find_sts("hub").values()
    )


def test_every_line_of_every_split_counts_scored_or_not(tmp_path: Path) -> None:
    theirs = consert_corpus(sts_files.write_senteval(tmp_path / "a"))
    tables = consert_corpus(sts_files.write_tables(tmp_path / "b"))
    assert theirs == tables and tuple(theirs) == tuple(PUBLISHED) == STS_TASKS
    for task, part in theirs.items():
        years = sts_files.year_pairs(task).values() if task in sts_files.YEARS else ()
        expected = [text for pairs in years for pair in pairs for text in pair[1:]]
        assert not part.missing
        assert part.texts == expected if expected else len(part.texts) == 2 * sum(sts_files.SPLITS.values())
    assert theirs["STS16"].texts.count("no one scored") == len(sts_files.YEARS["STS16"])  # duplicates stay
    assert sum(PUBLISHED.values()) == 89_192  # the paper


def test_the_command_writes_a_text_a_line_and_names_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = sts_files.write_senteval(tmp_path / "data" / "downstream")
    line = folder / "STS" / "STS12-en-test" / "STS.input.MSRpar.txt"
    line.write_text(line.read_text().replace("\t", "\u2028 \t", 1))
    shutil.rmtree(folder / "STS" / "STS13-en-test")
    (folder / "SICK" / "SICK_trial.txt").unlink()
    words = ["corpus", "consert", "--data", str(tmp_path), "--output", str(tmp_path / "texts.txt")]
    assert run(words) == 0
    said = capsys.readouterr().out
    texts = (tmp_path / "texts.txt").read_text().splitlines()  # at U+2028 too
    assert texts == [text for part in consert_corpus(tmp_path).values() for text in part.texts]
    assert f"{len(texts):,} texts" in said and "89,192" in said
    assert [line.split(": ")[1] for line in said.splitlines() if line.startswith("missing")] == [
        "STS13",
        "SICK-R",
    ]
    assert "SICK_trial.txt" in said and "get_transfer_data.bash" in said


def test_an_empty_folder_and_an_output_that_is_no_text_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["corpus", "consert", "--data", str(tmp_path), "--output"]
    assert run([*words, str(tmp_path / "texts.txt")]) == 2
    assert run([*words, str(tmp_path / "texts.tsv")]) == 2
    said = capsys.readouterr().err
    assert (
        "--data: expected the texts of one data set or more, got no text; STS12: expected sts12.test.tsv" in said
    )
    assert "texts.tsv: expected a name that ends in .txt" in said
    assert not list(tmp_path.iterdir())
