"""A model in use, and the folder it is saved in."""

from __future__ import annotations

import pytest

from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.poolers import MeanPooler


@pytest.fixture(scope="module")
def model(bert: str) -> SentenceEncoder:
    return SentenceEncoder.from_pretrained(bert, device="cpu", pooler=MeanPooler())


@pytest.fixture(scope="module")
def folder(model: SentenceEncoder, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model") / "model"
    model.save_pretrained(folder)
    return str(folder)
