"""An index of 40 texts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import tiny

from contrastive_text.inference.index import Index
from contrastive_text.inference.sentence_encoder import SentenceEncoder


@pytest.fixture(scope="module")
def sound(model: SentenceEncoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound") / "index"
    Index.create(folder, model).add(list(tiny.TEXTS))
    return folder


@pytest.fixture
def index(model: SentenceEncoder, sound: Path, tmp_path: Path) -> Index:
    """An index of 40 texts in a folder of its own."""
    shutil.copytree(sound, tmp_path / "index")
    return Index.open(tmp_path / "index", model)
