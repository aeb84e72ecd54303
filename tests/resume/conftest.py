"""A tiny encoder, three tasks, and one run that nobody stops."""

from __future__ import annotations

from pathlib import Path

import pytest
import several
from resume.runs import run
from torch import Tensor

from contrastive_text.data import TextTask


@pytest.fixture(scope="session")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TextTask]:
    return several.write_tasks(tmp_path_factory.mktemp("tasks"))


@pytest.fixture(scope="session")
def whole(
    bert: str, tasks: dict[str, TextTask], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Tensor]]:
    """Eight steps in epochs of three: the folder of the checkpoints, and the last weights."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, run(folder, bert, tasks, steps=8)
