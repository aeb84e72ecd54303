"""Precisions of Lightning's trainer: which are taken, and what none of them may round."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import tiny
import torch
from covering import rest_slow
from torch import Tensor

from contrastive_text.core.batch import Encoded
from contrastive_text.core.similarity import at_least_float32
from contrastive_text.core.types import Slot
from contrastive_text.losses import CoSENT, CosineMSE, InfoNCE, NTXent, SupCon
from contrastive_text.objectives import (
    Contrastive,
    Duplicates,
    Objective,
    PairRegression,
    SameClass,
    TextClassification,
)

CLASSES = 3000
TRAINED = range(0, CLASSES, 10)
"""Among them 2,570 to 2,590, which are one number in bfloat16."""

ROWS = 301
"""In bfloat16 as many as 300."""


class Watch(pl.Callback):
    """Writes down what objectives and metrics are given."""

    def __init__(self) -> None:
        self.targets: list[float] = []
        self.scores: list[float] = []
        self.losses: list[Tensor] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002  # the base's signature
        self.targets += batch.target.tolist() if batch.target is not None else []
        self.losses.append(outputs["loss"])

    def on_validation_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *rest: Any) -> None:  # noqa: ARG002  # the base's signature
        self.scores += outputs["target"].tolist()


@pytest.mark.parametrize("precision", rest_slow(["bf16-true", "bf16-mixed"]))
def test_no_precision_rounds_classes_or_scores(bert: str, tmp_path: Path, precision: str) -> None:
    rows = [f"{tiny.TEXTS[i % 40]}\t{label}" for i, label in enumerate(TRAINED)]
    labeled = tiny.write_texts(tmp_path / "labeled.tsv", ("text\tlabel", *rows))
    gold = [3.17, 3.18, 0.1, 4.999]  # 3.17 and 3.18 are one number in bfloat16
    pairs = [f"{tiny.TEXTS[i]}\t{tiny.TEXTS[i + 1]}\t{score}" for i, score in enumerate(gold)]
    scored = tiny.write_texts(tmp_path / "scored.tsv", ("sentence1\tsentence2\tscore", *pairs))
    watch = Watch()
    module = tiny.module(bert, objectives={"topic": TextClassification(CLASSES)})
    trainer = tiny.trainer(tmp_path, max_epochs=1, max_steps=-1, precision=precision, callbacks=[watch])
    trainer.fit(module, datamodule=tiny.data(labeled, validation=scored, batch_size=100))
    assert sorted(watch.targets) == list(TRAINED)
    assert watch.scores == gold  # to the last digit of float64


class Counted(Objective):
    """The contrastive loss; keeps the mean that it should have."""

    def forward(self, encoded: Encoded) -> Any:
        terms = Contrastive().forward(encoded)
        self.mean = float(terms.total.detach().double() / terms.count)
        return terms


@pytest.mark.parametrize("precision", rest_slow(["bf16-mixed", "bf16-true"]))
def test_the_number_of_rows_is_not_rounded_nor_is_the_logged_loss(
    bert: str, tmp_path: Path, precision: str
) -> None:
    texts = tiny.write_texts(tmp_path / "texts.txt", tuple(f"{tiny.TEXTS[i % 40]} {i}" for i in range(ROWS)))
    objective, watch = Counted(), Watch()
    module = tiny.module(bert, objectives={"c": objective})
    trainer = tiny.trainer(tmp_path, max_steps=1, precision=precision, callbacks=[watch])
    trainer.fit(module, datamodule=tiny.data(texts, batch_size=ROWS))
    # One rounding of float32 in the division; another count is off by 3e-3.
    assert float(watch.losses[0]) == pytest.approx(objective.mean, rel=1e-6)
    assert float(trainer.callback_metrics["train/loss"]) == float(watch.losses[0])


def test_float16_weights_are_refused_before_the_first_step(bert: str, tmp_path: Path) -> None:
    watch = Watch()
    data = tiny.data(tiny.write_texts(tmp_path / "texts.txt"))
    with pytest.raises(ValueError, match=r"trainer\.precision: expected .*16-mixed.*, got 16-true"):
        tiny.trainer(tmp_path, precision="16-true", callbacks=[watch]).fit(tiny.module(bert), datamodule=data)
    assert watch.losses == []


OBJECTIVES: dict[str, Callable[[], Objective]] = {
    "InfoNCE": lambda: Contrastive(InfoNCE()),
    "NTXent": lambda: Contrastive(NTXent()),
    "SupCon": lambda: Contrastive(SupCon(), columns=[Duplicates(), SameClass(2)]),
    "CosineMSE": lambda: PairRegression(CosineMSE()),
    "CoSENT": lambda: PairRegression(CoSENT()),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", OBJECTIVES)
def test_vectors_of_zeros_have_a_finite_gradient_in_every_precision(name: str, dtype: torch.dtype) -> None:
    vectors = torch.randn(8, 6, generator=torch.Generator().manual_seed(0)).to(dtype)
    vectors[2] = 0.0
    vectors[5] = torch.finfo(dtype).tiny / 64 if dtype == torch.float16 else 0.0  # too short for a direction
    vectors.requires_grad_()
    slots = (Slot("anchor", 0), Slot("positive", 0))
    target = torch.tensor([0.0, 1.0, 0.0, 1.0])
    encoded = Encoded(vectors, slots, text_ids=torch.arange(8), target=target)
    terms = OBJECTIVES[name]()(encoded)
    (terms.total / terms.count).backward()
    assert vectors.grad is not None
    assert bool(vectors.grad.isfinite().all())
    long = vectors.grad[[0, 1, 3, 4, 6, 7]]
    assert bool((long != 0).any())


def test_an_infinite_gradient_of_a_vector_with_a_direction_stays_infinite() -> None:
    vectors = torch.tensor([[1.0, 2.0], [0.0, 0.0]], dtype=torch.float16, requires_grad=True)
    (at_least_float32(vectors).sum() * 1e6).backward()
    assert vectors.grad is not None
    # From infinity 16-mixed learns that its factor of the loss is too large.
    assert vectors.grad.tolist() == [[torch.inf, torch.inf], [0.0, 0.0]]
