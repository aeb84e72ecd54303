"""A model and the texts whose vectors are written."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
from vectors_on_disk import MANY

from contrastive_text.data.files.readers import TextStream
from contrastive_text.inference.sentence_encoder import SentenceEncoder


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> SentenceEncoder:
    folder = tiny.save_bert(tmp_path_factory.mktemp("bert"))
    with pytest.warns(UserWarning, match="names no pooler"):
        return SentenceEncoder.from_pretrained(folder)


@pytest.fixture
def texts(tmp_path: Path) -> TextStream:
    return TextStream(tiny.write_texts(tmp_path / "texts.txt", MANY))
