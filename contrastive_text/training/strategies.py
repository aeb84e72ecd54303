"""FSDP2 as a strategy of Lightning's: weights, gradients and moments split over all ranks."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.core.optimizer import LightningOptimizer
from pytorch_lightning.strategies import ModelParallelStrategy, StrategyRegistry
from pytorch_lightning.strategies.strategy import Strategy
from torch import Tensor
from torch.distributed.constants import default_pg_timeout
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from contrastive_text.core.distributed import split_as, whole


class FSDP2Strategy(ModelParallelStrategy):
    """Splits the weights of a ``ContrastiveModule`` over all ranks, and with them gradients and moments.

    ``Trainer(strategy="fsdp2")``, or ``--trainer.strategy fsdp2``. The gradient is that of one process, as with
    DDP. Checkpoints are those of DDP and of one process: one file of whole weights, written by the first rank,
    from which any number of ranks goes on, with weights split or not.

    Zhao et al. 2023, https://arxiv.org/abs/2304.11277; the code is torch's ``fully_shard``.

    Differs: Lightning's ``ModelParallelStrategy`` splits over the machines alone unless it is told otherwise,
    writes a file a rank, and reads checkpoints past its plugins.

    Args:
        process_group_backend: As torch names it; None for the device's usual one.
        timeout: How long ranks wait for one another; None for torch's half an hour.

    Example:
        >>> pl.Trainer(strategy="fsdp2", accelerator="cpu", logger=False, enable_checkpointing=False).precision
        '32-true'
    """

    def __init__(self, process_group_backend: str | None = None, timeout: timedelta | None = None) -> None:
        super().__init__(
            save_distributed_checkpoint=False,
            process_group_backend=process_group_backend,
            timeout=timeout or default_pg_timeout,
        )

    def setup_environment(self) -> None:
        """Makes all ranks one dimension of data."""
        self._data_parallel_size, self._tensor_parallel_size = self.num_nodes * self.num_processes, 1
        super().setup_environment()

    def setup_optimizers(self, trainer: pl.Trainer) -> None:
        """Makes the optimisers; torch's fused kernels take no weights of which only some are split."""
        super().setup_optimizers(trainer)
        for group in (group for optimizer in self.optimizers for group in optimizer.param_groups):
            if len({isinstance(weight, DTensor) for weight in group["params"]}) > 1:
                group.update(dict.fromkeys(_kernels(group), False))

    @property
    def lightning_restore_optimizer(self) -> bool:
        """Lightning gives optimisers their states back, as with strategies that split nothing."""
        return True

    def lightning_module_state_dict(self) -> dict[str, Any]:  # Any: as Lightning's
        """Returns the whole weights on the first rank, and nothing on others."""
        assert self.lightning_module is not None
        return self._gathered(self.lightning_module.state_dict())

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:  # Any: as Lightning's
        """Returns the whole state of an optimiser on the first rank, and its settings alone on others."""
        inner = optimizer.optimizer if isinstance(optimizer, LightningOptimizer) else optimizer
        state = inner.state_dict()
        for group in state["param_groups"]:  # what setup_optimizers has changed
            group.update({name: inner.defaults[name] for name in _kernels(group)})
        return {**state, "state": {number: self._gathered(each) for number, each in state["state"].items()}}

    def _gathered(self, state: Mapping[str, Any]) -> dict[str, Any]:  # Any: tensors, and what lies beside them
        gathered = {}
        for name, value in state.items():
            full = whole(value.detach()) if isinstance(value, Tensor) else value
            if self.global_rank == 0:
                gathered[name] = full.cpu() if isinstance(full, Tensor) else full
        return gathered

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Reads a checkpoint on every rank, by the trainer's own plugin; see ``Strategy.load_checkpoint``."""
        return Strategy.load_checkpoint(self, checkpoint_path, weights_only)

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Gives the module its part of the weights."""
        Strategy.load_model_state_dict(self, checkpoint, strict)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Gives optimisers their part of the states."""
        states = []
        for optimizer, given in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            weights = [weight for group in optimizer.param_groups for weight in group["params"]]
            own = {
                number: {
                    name: split_as(value, weights[number]) if isinstance(value, Tensor) else value
                    for name, value in each.items()
                }
                for number, each in given["state"].items()
            }
            states.append({**given, "state": own})
        Strategy.load_optimizer_state_dict(self, {"optimizer_states": states})


def _kernels(group: Mapping[str, Any]) -> list[str]:  # Any: settings of torch's
    """Returns the settings of a group that choose how its step is computed."""
    return [name for name in ("fused", "foreach") if name in group]


StrategyRegistry.register("fsdp2", FSDP2Strategy, description="weights split over all ranks")
