"""Fixtures for tests of recipes."""

from __future__ import annotations

import pytest
import tiny


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of a random BERT that takes rows as long as any recipe's."""
    return tiny.save_bert(tmp_path_factory.mktemp("bert"), max_position_embeddings=512)
