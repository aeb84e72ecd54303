"""Files and arguments that nobody should give: each is answered, counted or understood, never a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
from hostile.case import Case
from hostile.cases import CASES
from hostile.judging import judge
from hostile.sound import Sound


@pytest.fixture(scope="session")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Sound:
    """A model, texts, a run, ... with nothing wrong."""
    return Sound(tmp_path_factory.mktemp("sound"))


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name, marks=[pytest.mark.slow] if case.slow else []) for case in CASES],
)
def test_a_hostile_case_has_its_outcome(case: Case, tmp_path: Path, sound: Sound) -> None:
    wrong = judge(case, tmp_path, sound)
    assert not wrong, "\n".join(wrong)


def test_every_case_has_a_name_of_its_own() -> None:
    names = [case.name for case in CASES]
    assert len(names) == len({*names})
