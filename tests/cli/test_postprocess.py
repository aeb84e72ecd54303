"""``contrastive-text postprocess``: what it prints, and the model that it saves."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import tiny
from shells import Shell

from contrastive_text import SentenceEncoder
from contrastive_text.data import read_pairs
from contrastive_text.evaluation import evaluate_pairs
from contrastive_text.poolers import MeanPooler


@pytest.fixture(autouse=True)
def model(here: Path, files: dict[str, str]) -> None:
    """A model in the folder of its name."""
    loaded = SentenceEncoder.from_pretrained(files["bert"], pooler=MeanPooler(), device="cpu")
    loaded.save_pretrained(here / "model")


def test_whitening_is_fitted_printed_and_saved(shell: Shell, files: dict[str, str]) -> None:
    said = shell("postprocess model TEXTS white --whiten --pairs PAIRS").out
    assert re.search(r"whitened: 16 -> 1[56] features, fitted on 40 different texts", said)
    before, after = re.findall(r"mean cosine .*: (-?\d\.\d{4}) before, (-?\d\.\d{4}) after", said)[0]
    assert float(before) > 0.3 > abs(float(after))
    scores = re.findall(r"Spearman x 100 on .*: (-?\d+\.\d\d) before, (-?\d+\.\d\d) after", said)[0]
    for name, score in zip(("model", "white"), scores, strict=True):
        loaded = SentenceEncoder.from_pretrained(name, device="cpu")
        assert f"{evaluate_pairs(loaded, read_pairs(files['pairs']))[0].spearman:.2f}" == score
    assert scores[0] != scores[1]


def test_components_are_removed(shell: Shell) -> None:
    said = shell("postprocess model TEXTS out --remove_components 2").out
    assert "removed the mean and 2 top components: 16 -> 16 features" in said
    vectors = np.asarray(SentenceEncoder.from_pretrained("out", device="cpu").encode(tiny.TEXTS))
    assert np.abs(vectors.mean(axis=0)).max() < 1e-5  # float32
    assert np.linalg.matrix_rank(vectors, tol=1e-3) <= 14


def test_features_are_chosen(shell: Shell) -> None:
    shell("postprocess model TEXTS small --whiten --features 5")
    assert SentenceEncoder.from_pretrained("small", device="cpu").encode("a text").shape == (5,)
