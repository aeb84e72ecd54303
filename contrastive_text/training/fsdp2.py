"""Weights split over ranks by FSDP2: the strategy ``fsdp2``, and the hooks of a module with split weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Self

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from pytorch_lightning.core.optimizer import LightningOptimizer
from pytorch_lightning.strategies import ModelParallelStrategy, StrategyRegistry
from pytorch_lightning.strategies.strategy import Strategy
from torch import Tensor, nn
from torch.distributed.constants import default_pg_timeout
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from transformers import PreTrainedModel

from contrastive_text.core.distributed import (
    is_distributed,
    own_part,
    split_as,
    sum_over_ranks,
    whole,
    world_size,
)
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.encoders import Encoder

STEPS = ("on_fit_start", "training_step", "validation_step", "test_step", "predict_step")
"""Methods of a module during which what belongs to no block is whole: the steps, and the checks before them."""


def split_weights(module: nn.Module, mesh: DeviceMesh) -> list[nn.Parameter]:
    """Splits the weights of a module over ranks in place, as the first rank has them.

    The blocks of its networks are whole one at a time, while they run forward and backward. All the rest, such as
    token tables, heads and weights that two networks have in common, is whole during a step: a table and the
    decoder that is tied to it stay one. Of a number, such as a learned temperature, each rank has all.

    Zhao et al. 2023, https://arxiv.org/abs/2304.11277; the code is torch's ``fully_shard``.

    Args:
        module: Whose weights are all there.
        mesh: The ranks, in one dimension.

    Returns:
        The weights that are not split, whose gradients ``average_gradients`` has to reduce.
    """
    if is_distributed():
        for value in (*module.parameters(), *module.buffers()):
            dist.broadcast(value.detach(), src=0)
    numbers = [weight for weight in module.parameters() if weight.ndim == 0]
    for block in own_blocks(module):
        fully_shard(block, mesh=mesh)
    root = fully_shard(module, mesh=mesh, reshard_after_forward=True, ignored_params={*numbers})
    assert isinstance(root, FSDPModule)
    # The pass that finds a gradient for a view ends inside a step, which goes on with these weights.
    root.set_reshard_after_backward(False, recurse=False)
    for name in STEPS:
        register_fsdp_forward_method(module, name)
    for part in module.modules():
        if isinstance(part, Encoder):
            part.in_lockstep = True
    return numbers


def own_blocks(module: nn.Module) -> list[nn.Module]:
    """Returns the blocks of a module's Transformers networks whose weights nothing else in it has."""
    everywhere = _held(module.modules())
    found: list[nn.Module] = []
    seen: set[nn.Module] = set()
    for model in module.modules():
        for block in _blocks(model) if isinstance(model, PreTrainedModel) else ():
            inside = _held(block.modules())
            if block in seen or not inside or any(everywhere[weight] > count for weight, count in inside.items()):
                continue
            found.append(block)
            seen.update(block.modules())
    return found


def _held(parts: Iterable[nn.Module]) -> Counter[nn.Parameter]:
    """Counts by how many modules each weight is held."""
    return Counter(weight for part in parts for weight in part.parameters(recurse=False))


def _blocks(part: nn.Module) -> Iterator[nn.Module]:
    for child in part.children():
        if isinstance(part, nn.ModuleList) and not isinstance(child, nn.ModuleList):
            yield child
        else:
            yield from _blocks(child)


@torch.no_grad()
def average_gradients(weights: Iterable[nn.Parameter]) -> None:
    """Gives every rank the mean of the ranks' gradients of each weight for which any rank has one.

    Gradients of split weights are left unchanged: each backward pass reduces them.
    """
    trained = [weight for weight in weights if weight.requires_grad and not isinstance(weight.grad, DTensor)]
    if not trained or world_size() == 1:
        return
    given = torch.tensor([float(weight.grad is not None) for weight in trained], device=trained[0].device)
    for weight, count in zip(trained, sum_over_ranks(given).tolist(), strict=True):
        if count:
            own = torch.zeros_like(weight) if weight.grad is None else weight.grad
            weight.grad = sum_over_ranks(own) / world_size()


@torch.no_grad()
def clip_gradients(weights: Iterable[nn.Parameter], most: float, algorithm: str | None) -> None:
    """Bounds the norm of all gradients together, or each of their entries, as torch does where none is split.

    Args:
        weights: Split ones, and some of which each rank has all.
        most: The bound.
        algorithm: ``norm`` or ``value``; None for ``norm``.
    """
    given = [weight.grad for weight in weights if weight.grad is not None]
    parts = [own_part(gradient) for gradient in given]
    if algorithm == "value":
        for part in parts:
            part.clamp_(-most, most)
        return
    split = [part for part, gradient in zip(parts, given, strict=True) if part is not gradient]
    alone = [part for part, gradient in zip(parts, given, strict=True) if part is gradient]
    total = (sum_over_ranks(_squares(split, parts[0])) + _squares(alone, parts[0])).sqrt()
    share = (most / (total + 1e-6)).clamp(max=1.0)  # torch's, of nn.utils.clip_grad_norm_
    for part in parts:
        part.mul_(share.to(part))


def _squares(tensors: Iterable[Tensor], like: Tensor) -> Tensor:
    """Returns the sum of all squares, a scalar."""
    return sum(
        (each.square().sum() for each in tensors), start=torch.zeros((), dtype=like.dtype, device=like.device)
    )


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
        """Makes the optimizers; torch's fused kernels take no weights of which only some are split."""
        super().setup_optimizers(trainer)
        for group in (group for optimizer in self.optimizers for group in optimizer.param_groups):
            if len({isinstance(weight, DTensor) for weight in group["params"]}) > 1:
                group.update(dict.fromkeys(_kernels(group), False))

    @property
    def lightning_restore_optimizer(self) -> bool:
        """Lightning gives optimizers their states back, as with strategies that split nothing."""
        return True

    def lightning_module_state_dict(self) -> dict[str, Any]:  # Any: as Lightning's
        """Returns the whole weights on the first rank, and nothing on others."""
        assert self.lightning_module is not None
        return self._gathered(self.lightning_module.state_dict())

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:  # Any: as Lightning's
        """Returns the whole state of an optimizer on the first rank, and its settings alone on others."""
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
        """Gives optimizers their part of the states."""
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


class SplitModule(pl.LightningModule):
    """Base class of the module: splits its weights where the trainer's strategy is ``fsdp2``."""

    _numbers: list[nn.Parameter]
    """Weights that are not split though all others are."""

    @property
    def is_split(self) -> bool:
        """Whether its weights are split over ranks."""
        return isinstance(self, FSDPModule)

    @classmethod
    def unsplit_class(cls) -> type[Self]:
        """Returns the class that it had before its weights were split."""
        found: type[Self] = next(each for each in cls.__mro__ if not issubclass(each, FSDPModule))  # type: ignore[assignment]  # its base
        return found

    def configure_model(self) -> None:
        """Splits the weights, once."""
        strategy = None if self._trainer is None else self._trainer.strategy
        if isinstance(strategy, FSDP2Strategy) and not self.is_split:
            self._numbers = split_weights(self, strategy.device_mesh["data_parallel"])

    def on_after_backward(self) -> None:
        """Reduces what FSDP2 doesn't, and lets go of the weights that were whole during the step."""
        if isinstance(self, FSDPModule):
            average_gradients(self._numbers)
            self.reshard()

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clips gradients as Lightning does, of split weights too."""
        if self.is_split:
            if gradient_clip_val:
                weights = (weight for group in optimizer.param_groups for weight in group["params"])
                clip_gradients(weights, gradient_clip_val, gradient_clip_algorithm)
            return
        self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def on_predict_start(self) -> None:
        """Refuses predictions with split weights, for ranks may have different numbers of batches.

        Raises:
            ValueError: Weights that are split.
        """
        if self.is_split:
            raise InvalidValueError(
                "trainer.strategy: expected one that splits no weights for a prediction, got fsdp2; use the "
                "exported model, with contrastive-text embed"
            )
