"""What hostile cases share: the width of their terminal."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hostile.judging import WIDTH


@pytest.fixture(scope="package", autouse=True)
def width() -> Iterator[None]:
    """Sets it once: of several hundred cases none sets a variable while a library's thread may read one."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("COLUMNS", WIDTH)
        yield
