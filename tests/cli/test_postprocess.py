"""``contrastive-text postprocess``: what it prints, and the model that it saves."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import tiny

from contrastive_text import SentenceEncoder
from contrastive_text.cli import run
from contrastive_text.data import read_pairs
from contrastive_text.evaluation import evaluate_pairs
from contrastive_text.poolers import MeanPooler

Answer = Callable[[Sequence[str]], str]


@pytest.fixture
def model(here: Path, files: dict[str, str]) -> str:
    loaded = SentenceEncoder.from_pretrained(files["bert"], pooler=MeanPooler(), device="cpu")
    loaded.save_pretrained(here / "model")
    return "model"


def test_whitening_is_fitted_printed_and_saved(
    model: str, files: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["postprocess", model, files["texts"], "white", "--whiten", "--pairs", files["pairs"]]) == 0
    said = capsys.readouterr().out
    assert re.search(r"whitened: 16 -> 1[56] features, fitted on 40 different texts", said)
    before, after = re.findall(r"mean cosine .*: (-?\d\.\d{4}) before, (-?\d\.\d{4}) after", said)[0]
    assert float(before) > 0.3 > abs(float(after))
    scores = re.findall(r"Spearman x 100 on .*: (-?\d+\.\d\d) before, (-?\d+\.\d\d) after", said)[0]
    for name, score in zip((model, "white"), scores, strict=True):
        loaded = SentenceEncoder.from_pretrained(name, device="cpu")
        assert f"{evaluate_pairs(loaded, read_pairs(files['pairs']))[0].spearman:.2f}" == score
    assert scores[0] != scores[1]


def test_components_are_removed(model: str, files: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["postprocess", model, files["texts"], "out", "--remove_components", "2"]) == 0
    assert "removed the mean and 2 top components: 16 -> 16 features" in capsys.readouterr().out
    vectors = np.asarray(SentenceEncoder.from_pretrained("out", device="cpu").encode(tiny.TEXTS))
    assert np.abs(vectors.mean(axis=0)).max() < 1e-5  # float32
    assert np.linalg.matrix_rank(vectors, tol=1e-3) <= 14


def test_features_are_chosen(model: str, files: dict[str, str]) -> None:
    assert run(["postprocess", model, files["texts"], "small", "--whiten", "--features", "5"]) == 0
    assert SentenceEncoder.from_pretrained("small", device="cpu").encode("a text").shape == (5,)
