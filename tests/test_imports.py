"""Tests that importing a package of the library loads only modules of lower layers, in one fresh interpreter."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

STATEMENTS = {
    "package": "import contrastive_text",
    "torch": "import torch",
    "views": "from contrastive_text.views import contextual, synonyms, text",
    "texts to vectors": "from contrastive_text import SentenceEncoder",
}
TRAINERS = {"pytorch_lightning", "lightning", "sentence_transformers", "matplotlib"}


@pytest.fixture(scope="module")
def loaded() -> dict[str, set[str]]:
    """Part -> the modules that are loaded after its statement."""
    lines = ["import gc, json, sys", "gc.disable()", "found = {}"]  # a fifth of the time
    for name, statement in STATEMENTS.items():
        lines += [statement, f"found[{name!r}] = [*sys.modules]"]
    code = "\n".join([*lines, "print(json.dumps(found))"])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return {name: set(modules) for name, modules in json.loads(done.stdout).items()}


def test_the_package_loads_no_trainer_no_peer_and_no_plots(loaded: dict[str, set[str]]) -> None:
    assert "contrastive_text" in loaded["package"]
    assert not loaded["package"] & {*TRAINERS, "torch", "transformers"}


def test_the_views_load_no_library_that_a_view_may_not_need(loaded: dict[str, set[str]]) -> None:
    views = loaded["views"] - loaded["torch"]
    assert "contrastive_text.views.synonyms" in views
    assert not views & {"nltk", "transformers", "nlpaug", "pandas"}


def test_the_way_from_text_to_vectors_loads_neither_lightning_nor_objectives(loaded: dict[str, set[str]]) -> None:
    vectors = loaded["texts to vectors"]
    assert "contrastive_text.inference.sentence_encoder" in vectors
    assert not vectors & {*TRAINERS, "contrastive_text.objectives", "contrastive_text.training.module"}
