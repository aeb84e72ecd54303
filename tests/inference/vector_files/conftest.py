"""The texts whose vectors are written."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
from vectors_on_disk import MANY

from contrastive_text.data.files.readers import TextStream


@pytest.fixture
def texts(tmp_path: Path) -> TextStream:
    return TextStream(tiny.write_texts(tmp_path / "texts.txt", MANY))
