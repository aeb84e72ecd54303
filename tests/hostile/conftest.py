"""Fixtures of hostile cases: the width of their terminal, and the sound files that they change."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hostile.judging import WIDTH
from hostile.sound import Sound


@pytest.fixture(scope="package", autouse=True)
def width() -> Iterator[None]:
    """Sets the width once: no case sets a variable while a library's thread may read one."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("COLUMNS", WIDTH)
        yield


@pytest.fixture(scope="session")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Sound:
    """A model, texts, a run, ... with nothing wrong; each is made when a case first asks for it."""
    return Sound(tmp_path_factory.mktemp("sound"))
