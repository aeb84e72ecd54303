"""Suites: what they say of missing data before a text is encoded is what they score."""

from __future__ import annotations

from pathlib import Path
from typing import Never

import pytest

from contrastive_text.evaluation.suites import SUITES, SuiteProtocol, missing_data, read_suites


def encode(texts: object) -> Never:
    raise AssertionError(texts)


@pytest.mark.parametrize("name", SUITES)
def test_a_suite_names_the_tasks_that_it_scores(name: str, tmp_path: Path) -> None:
    tasks = SUITES[name].find(tmp_path, SuiteProtocol())
    missing = missing_data(tasks)
    scored = SUITES[name].score(encode, tasks, SuiteProtocol())  # type: ignore[arg-type]  # it must not be called
    assert [*missing] == [score.task for score in scored]
    assert all(missing.values())
    assert set(SUITES[name].averaged or ()) <= missing.keys()


def test_what_is_there_is_not_missing(tmp_path: Path) -> None:
    (tmp_path / "stsb.test.tsv").write_text("sentence1\tsentence2\tscore\na\tb\t1\nc\td\t2\n")
    data = read_suites(tmp_path, ["sts"])
    missing = missing_data(data["sts"])
    assert [task for task, said in missing.items() if not said] == ["STS-B"]
    assert "sick" in missing["SICK-R"].lower()
