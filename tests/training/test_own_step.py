"""A subclass that adds a loss and a figure to the step, and copies nothing of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import several
import tiny
import torch
from torch import Tensor

from contrastive_text.core.batch import Batch, StepBatch
from contrastive_text.data import Fusion
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.training import Combine, ConstantSchedule, LogGradients, PCGrad, Uncertainty
from contrastive_text.training.module import ContrastiveModule


class Decayed(ContrastiveModule):
    """Adds a multiple of the encoder's squared length to the losses, and logs the length."""

    def __init__(self, *args: Any, strength: float = 0.5, **options: Any) -> None:
        super().__init__(*args, **options)
        self.strength = strength
        self.save_hyperparameters({"strength": strength})

    def step_losses(self, batch: Batch | StepBatch) -> dict[str, Tensor]:
        losses = super().step_losses(batch)
        squares = torch.stack([weight.square().sum() for weight in self.encoder.parameters()]).sum()
        self.figures["length"] = squares.detach().sqrt()
        return {**losses, "decay": self.strength * squares}


def gradients(module: ContrastiveModule, loss: Tensor) -> dict[str, Tensor]:
    """Returns the gradient of each weight of the encoder that the loss reaches."""
    named = dict(module.encoder.named_parameters())
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {name: each for name, each in zip(named, found, strict=True) if each is not None}


@pytest.mark.parametrize("combine", [None, PCGrad()], ids=["sum", "pcgrad"])
def test_a_step_takes_off_the_sum_of_the_gradients(
    bert: str, texts: str, tmp_path: Path, combine: Combine | None
) -> None:
    parts = {"optimizer": tiny.SGD(), "schedule": ConstantSchedule()}
    own = Decayed(TransformerEncoder(bert, dropout=0), combine=combine, **parts).double()
    before = {name: weight.detach().clone() for name, weight in own.encoder.named_parameters()}
    data = tiny.data(texts)
    trainer = tiny.trainer(tmp_path, max_steps=1, precision="64-true", callbacks=[LogGradients(every=1)])
    trainer.fit(own, datamodule=data)
    plain = tiny.module(bert, dropout=0).double()
    of_contrastive = gradients(plain, plain.step_losses(next(iter(data.train_dataloader())))["contrastive"])
    of_decay = {name: 2 * 0.5 * weight for name, weight in before.items()}  # of strength * |w|^2
    agreement = sum(float((of_decay[name] * gradient).sum()) for name, gradient in of_contrastive.items())
    assert agreement < 0  # so that PCGrad takes something off
    squares = [
        sum(float(each[name].square().sum()) for name in of_contrastive) for each in (of_contrastive, of_decay)
    ]
    off = [0.0, 0.0] if combine is None else [agreement / square for square in squares]
    for name, weight in own.encoder.named_parameters():
        a, b = of_contrastive.get(name), of_decay[name]
        taken = b if a is None else (1 - off[1]) * b + (1 - off[0]) * a
        torch.testing.assert_close(weight, before[name] - taken, rtol=1e-10, atol=1e-12)
    logged = trainer.callback_metrics
    length = torch.cat([weight.flatten() for weight in before.values()]).norm()
    assert float(logged["train/length"]) == pytest.approx(float(length))
    assert float(logged["train/gradient/norm/decay"]) == pytest.approx(float(length))
    assert float(logged["train/loss"]) == pytest.approx(
        float(logged["train/contrastive"]) + 0.5 * float(length) ** 2
    )


def test_each_step_of_several_tasks_has_the_loss_once_and_a_combiner_that_learns_weights_is_told_of_it(
    bert: str, tmp_path: Path
) -> None:
    tasks = several.write_tasks(tmp_path / "tasks")
    own = Decayed(TransformerEncoder(bert), objectives=several.objectives(), combine=Uncertainty())
    own.combine.build([*own.objectives, "decay"])
    plain = ContrastiveModule(TransformerEncoder(bert), objectives=several.objectives())
    data = several.data(tasks, Fusion([["sentiment", "paraphrase", "similarity"], ["contrastive"]]))
    data.set_module(own)
    data.setup("fit")
    for step in data.train_dataloader():
        losses = own.step_losses(step)
        assert list(losses) == [*plain.step_losses(step), "decay"]
        own.combine(losses, [], key=0)
    assert own.combine.logs().keys() >= {"weight/contrastive", "weight/decay"}


def test_an_argument_of_the_subclass_survives_the_checkpoint(bert: str, texts: str, tmp_path: Path) -> None:
    trainer = tiny.trainer(tmp_path, max_steps=1)
    trainer.fit(Decayed(TransformerEncoder(bert), strength=0.25), datamodule=tiny.data(texts))
    trainer.save_checkpoint(tmp_path / "own.ckpt")
    assert Decayed.load_from_checkpoint(tmp_path / "own.ckpt").strength == 0.25
