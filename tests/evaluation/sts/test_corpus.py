"""ConSERT's training texts out of SentEval's folder: which lines count, and what is said to be missing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import sts_files

from contrastive_text.cli import run
from contrastive_text.evaluation.sts.corpus import PUBLISHED, consert_corpus
from contrastive_text.evaluation.sts.data import STS_TASKS


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
    assert "--data: expected the texts of one data set or more, got none; STS12: expected sts12.test.tsv" in said
    assert "texts.tsv: expected a name that ends in .txt" in said
    assert not list(tmp_path.iterdir())
