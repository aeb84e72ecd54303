"""A checkpoint from inside a window of accumulated batches has the gradient so far."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from torch import Tensor
from torch.distributed.tensor import DTensor

from contrastive_text.core.distributed import split_as, sum_over_ranks, whole, world_size
from contrastive_text.core.errors import InvalidValueError

_KEY = "accumulated"


class KeepGradients(Callback):
    """Puts the gradient of an unfinished optimiser step into each checkpoint, and takes it back.

    With ``accumulate_grad_batches`` above 1 a validation, and with it a checkpoint, may come between the batches
    of a step: the weights are those of the step before, and the gradient so far is part of the run's state. Ranks
    hold parts of it; where there are several it is averaged, and each goes on with the mean, as a resumed run
    does. So a checkpoint has it once, and another number of ranks can take it up.

    Differs: Lightning forgets it.
    """

    def __init__(self) -> None:
        self._inside = False
        self._saved: dict[str, Any] | None = None  # Any: a number and tensors

    def on_after_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002  # Lightning's signature
        """Notes that a step has begun."""
        self._inside = True

    def on_before_optimizer_step(
        self,
        trainer: pl.Trainer,  # noqa: ARG002  # Lightning's signature
        pl_module: pl.LightningModule,  # noqa: ARG002  # Lightning's signature
        optimizer: torch.optim.Optimizer,  # noqa: ARG002  # Lightning's signature
    ) -> None:
        """Notes that it is taken."""
        self._inside = False

    def on_save_checkpoint(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        checkpoint: dict[str, Any],  # Any: what Lightning puts into it
    ) -> None:
        """Puts the gradient of an unfinished step into the checkpoint."""
        if self._inside:
            window = trainer.accumulate_grad_batches
            checkpoint[_KEY] = {"batches": window, "gradients": _average_gradients(pl_module)}

    def on_load_checkpoint(
        self,
        trainer: pl.Trainer,  # noqa: ARG002  # Lightning's signature
        pl_module: pl.LightningModule,  # noqa: ARG002  # Lightning's signature
        checkpoint: dict[str, Any],  # Any: what Lightning put into it
    ) -> None:
        """Takes it out, until the weights are where they will be trained."""
        self._saved = checkpoint.get(_KEY)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Returns the parameters their gradients back.

        Raises:
            ValueError: The checkpoint is from inside a step of another number of batches.
        """
        self._inside, saved, self._saved = self._saved is not None, self._saved, None
        if saved is None:
            return
        if saved["batches"] != trainer.accumulate_grad_batches:
            raise InvalidValueError(
                f"trainer.accumulate_grad_batches: expected {saved['batches']}, for the checkpoint is from "
                f"inside a step of so many, got {trainer.accumulate_grad_batches}; resume with {saved['batches']}"
            )
        for name, parameter in pl_module.named_parameters():
            if name in saved["gradients"]:
                parameter.grad = split_as(
                    saved["gradients"][name].to(parameter.device, parameter.dtype), parameter
                )


@torch.no_grad()
def _average_gradients(module: pl.LightningModule) -> dict[str, Tensor]:
    """Returns every rank the mean of the ranks' gradients, and returns them by parameter."""
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if world_size() > 1:
        here = torch.tensor([float(p.grad is not None) for p in trained.values()], device=module.device)
        anywhere = sum_over_ranks(here).bool().tolist()
        for parameter in (p for p, some in zip(trained.values(), anywhere, strict=True) if some):
            own = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            # Of split weights it is reduced with every backward pass.
            parameter.grad = own if isinstance(own, DTensor) else sum_over_ranks(own) / world_size()
    return {name: whole(p.grad) for name, p in trained.items() if p.grad is not None}
