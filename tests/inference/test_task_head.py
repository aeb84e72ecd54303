"""The files of a trained head: read as they were written, and refused if damaged or foreign."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from foreign_code import IMPORTED
from safetensors.torch import save_file
from torch import nn

from contrastive_text.heads import BilinearScorer, ConcatenationScorer, Head, MLPHead, ProjectorHead
from contrastive_text.inference.head_files import HEAD, HeadSettings, TaskHead

WEIGHTS = HEAD.replace("json", "safetensors")
NLI = HeadSettings("classifier", "vectors", ("contradiction", "entailment", "neutral"))


def built(settings: HeadSettings, head: Head | None = None, **parts: Any) -> TaskHead:
    """A head over 6 features, whose parts have their layers."""
    if head is not None:
        head.build(6)
    if "scorer" in parts:
        parts["scorer"].build(6, len(settings.classes))
    return TaskHead(settings, head, **parts).eval()


HEADS: dict[str, Callable[[], TaskHead]] = {
    "concatenation": lambda: built(NLI, scorer=ConcatenationScorer(max_squared=True)),
    "bilinear": lambda: built(NLI, MLPHead(hidden_features=3, dropout=0.3), scorer=BilinearScorer()),
    "cosine": lambda: built(HeadSettings("regressor", "vectors", low=1, high=5, prompts=("q: ", "d: "))),
    "batch norm": lambda: built(HeadSettings("regressor", "vectors"), ProjectorHead(widths=[4, 2])),
    "linear": lambda: built(HeadSettings("classifier", "text", ("no", "yes")), linear=nn.Linear(6, 2)),
    "log-odds": lambda: built(HeadSettings("reranker", "pair", ("no", "yes")), MLPHead(out_features=2)),
}


@pytest.mark.parametrize("name", HEADS)
def test_a_head_is_read_as_it_was_written(name: str, tmp_path: Path) -> None:
    head, vectors = HEADS[name](), torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(0))
    head.write(tmp_path)
    again = TaskHead.read(tmp_path, features=6)
    assert again.settings == head.settings and not again.training
    inputs = vectors if head.settings.reads == "vectors" else vectors[:1]
    with torch.no_grad():
        assert torch.equal(again(*inputs), head(*inputs))
        assert again(*inputs).shape == (5, head.settings.outputs)


def test_the_log_odds_of_two_classes_have_the_probability_of_the_second() -> None:
    head = built(HeadSettings("reranker", "pair", ("no", "yes")), linear=nn.Linear(6, 2))
    vectors = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        shares = head.linear(vectors).softmax(dim=1)[:, 1:]  # type: ignore[misc]  # it has one
        assert torch.allclose(head.settings.activation(head(vectors)), shares)


DAMAGED: list[tuple[dict[str, object], str]] = [
    ({"kind": "parser"}, "kind: expected one of classifier, reranker or regressor, got 'parser'"),
    ({"reads": "images"}, "reads: expected one of text, pair, vectors or any, got 'images'"),
    ({"classes": ["a", "a"]}, "classes: expected two or more different classes"),
    ({"prompts": [""]}, "prompts: expected two prompts"),
    ({"low": "x"}, "low: expected a finite number, got the text 'x'"),
    ({"classes": ["a", "b"]}, "expected the weights of the head for 6 features"),
    ({"scorer": {"class_path": "subprocess.Popen", "init_args": {"args": "touch RUN"}}}, "subprocess.Popen"),
    ({"scorer": {"class_path": "evil_heads.Scorer"}}, "evil_heads"),
    ({"scorer": {"class_path": "contrastive_text.heads.MLPHead"}}, "expected a subclass of Scorer"),
    (
        {"head": {"class_path": "contrastive_text.heads.MLPHead", "init_args": {"x": 1}}},
        "init_args: expected the arguments of MLPHead",
    ),
    (
        {"head": {"class_path": "contrastive_text.heads.MLPHead", "init_args": {"out_features": 10**9}}},
        "expected the weights of the head for 6 features",
    ),
]


@pytest.mark.parametrize(("change", "message"), DAMAGED)
def test_a_damaged_or_foreign_head_is_refused(change: dict[str, object], message: str, tmp_path: Path) -> None:
    HEADS["concatenation"]().write(tmp_path)
    settings = json.loads((tmp_path / HEAD).read_text(encoding="utf-8"))
    (tmp_path / HEAD).write_text(json.dumps({**settings, **change}), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        TaskHead.read(tmp_path, features=6)
    assert not {name for name in IMPORTED if name.partition(".")[0] == "evil_heads"}


def test_weights_of_another_head_or_no_weights_are_refused(tmp_path: Path) -> None:
    HEADS["linear"]().write(tmp_path)
    save_file({"linear.weight": torch.zeros(2, 6)}, tmp_path / WEIGHTS)
    with pytest.raises(ValueError, match="expected the weights of the head for 6 features"):
        TaskHead.read(tmp_path, features=6)
    (tmp_path / WEIGHTS).write_bytes(b"damaged")
    with pytest.raises(ValueError, match="expected whole weights"):
        TaskHead.read(tmp_path, features=6)
