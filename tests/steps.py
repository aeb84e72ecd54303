"""Steps of a module in training: its batches, what happens in a run, its weights before and after."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
import tiny
import torch
from torch import Tensor, nn

from contrastive_text.core.batch import Batch, Hidden
from contrastive_text.poolers import Pooler
from contrastive_text.training.module import ContrastiveModule


class LastToken(Pooler):
    """The vector of the last token."""

    def forward(self, hidden: Hidden) -> Tensor:
        return hidden.layers[-1][torch.arange(len(hidden.mask)), hidden.mask.sum(dim=1) - 1]


class Watch(pl.Callback):
    """Writes down what happens in a run."""

    def __init__(self) -> None:
        self.losses: list[Tensor] = []
        self.rates: list[float] = []

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002  # the base's signature
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002  # the base's signature
        self.losses.append(outputs["loss"])


def batches(module: ContrastiveModule, train: str, **options: Any) -> list[Batch]:
    """The batches of the first epoch."""
    data = tiny.data(train, **options)
    data.set_module(module)
    data.setup("fit")
    return list(data.train_dataloader())


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in module.named_parameters()}
