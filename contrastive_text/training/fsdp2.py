"""Lightning strategy ``fsdp2``, which splits weights over ranks, and the base class of modules that it splits."""

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
    full_tensor,
    is_distributed,
    local_tensor,
    shard_like,
    sum_over_ranks,
    world_size,
)
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.encoders import Encoder

STEPS = ("on_fit_start", "training_step", "validation_step", "test_step", "predict_step")
"""Methods of a module that gather split weights outside of blocks: the steps, and the checks before them."""


def split_weights(module: nn.Module, mesh: DeviceMesh) -> list[nn.Parameter]:
    """Splits the weights of a module over ranks in place, starting from the weights of the first rank.

    The blocks of its networks are gathered one at a time, for their forward and backward passes. All other
    weights are gathered during the whole step: token tables, heads and weights that two networks share. A table
    therefore stays tied to its decoder. Scalars, such as a learned temperature, are not split.

    Zhao et al. 2023, https://arxiv.org/abs/2304.11277; implemented with torch's ``fully_shard``.

    Args:
        module: Module with whole weights.
        mesh: Device mesh of the ranks, with one dimension.

    Returns:
        The weights that are not split. ``average_gradients`` must reduce their gradients.
    """
    if is_distributed():
        for value in (*module.parameters(), *module.buffers()):
            dist.broadcast(value.detach(), src=0)
    scalars = [weight for weight in module.parameters() if weight.ndim == 0]
    for block in unshared_blocks(module):
        fully_shard(block, mesh=mesh)
    root = fully_shard(module, mesh=mesh, reshard_after_forward=True, ignored_params={*scalars})
    assert isinstance(root, FSDPModule)
    # The first pass of a gradient view has its own backward pass. The rest of the step still needs the weights.
    root.set_reshard_after_backward(False, recurse=False)
    for name in STEPS:
        register_fsdp_forward_method(module, name)
    for part in module.modules():
        if isinstance(part, Encoder):
            part.equalize_groups = True
    return scalars


def unshared_blocks(module: nn.Module) -> list[nn.Module]:
    """Returns the blocks of a module's Transformers networks that share no weights with other modules."""
    all_counts = _count_weights(module.modules())
    blocks: list[nn.Module] = []
    inner_modules: set[nn.Module] = set()
    for model in module.modules():
        for block in _blocks(model) if isinstance(model, PreTrainedModel) else ():
            block_counts = _count_weights(block.modules())
            if (
                block in inner_modules
                or not block_counts
                or any(all_counts[weight] > count for weight, count in block_counts.items())
            ):
                continue
            blocks.append(block)
            inner_modules.update(block.modules())
    return blocks


def _count_weights(parts: Iterable[nn.Module]) -> Counter[nn.Parameter]:
    """Counts for each weight the modules that share it."""
    return Counter(weight for part in parts for weight in part.parameters(recurse=False))


def _blocks(part: nn.Module) -> Iterator[nn.Module]:
    for child in part.children():
        if isinstance(part, nn.ModuleList) and not isinstance(child, nn.ModuleList):
            yield child
        else:
            yield from _blocks(child)


@torch.no_grad()
def average_gradients(weights: Iterable[nn.Parameter]) -> None:
    """Averages the gradients of weights over ranks, if any rank has a gradient of the weight.

    Gradients of split weights are unchanged: each backward pass already reduces them.
    """
    trained = [weight for weight in weights if weight.requires_grad and not isinstance(weight.grad, DTensor)]
    if not trained or world_size() == 1:
        return
    has_gradient = torch.tensor([float(weight.grad is not None) for weight in trained], device=trained[0].device)
    for weight, count in zip(trained, sum_over_ranks(has_gradient).tolist(), strict=True):
        if count:
            gradient = torch.zeros_like(weight) if weight.grad is None else weight.grad
            weight.grad = sum_over_ranks(gradient) / world_size()


@torch.no_grad()
def clip_gradients(weights: Iterable[nn.Parameter], most: float, algorithm: str | None) -> None:
    """Clips the total norm of split gradients, or each entry, with the same result as torch on whole weights.

    Args:
        weights: Split weights and whole weights.
        most: Largest norm, or largest absolute value of an entry.
        algorithm: ``norm`` or ``value``; None for ``norm``.
    """
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    parts = [local_tensor(gradient) for gradient in gradients]
    if algorithm == "value":
        for part in parts:
            part.clamp_(-most, most)
        return
    split_parts = [part for part, gradient in zip(parts, gradients, strict=True) if part is not gradient]
    whole_parts = [part for part, gradient in zip(parts, gradients, strict=True) if part is gradient]
    total = (sum_over_ranks(_squares(split_parts, parts[0])) + _squares(whole_parts, parts[0])).sqrt()
    share = (most / (total + 1e-6)).clamp(max=1.0)  # the formula of torch.nn.utils.clip_grad_norm_
    for part in parts:
        part.mul_(share.to(part))


def _squares(tensors: Iterable[Tensor], like: Tensor) -> Tensor:
    """Returns the sum of the squares of all entries of tensors, a scalar."""
    return sum(
        (tensor.square().sum() for tensor in tensors), start=torch.zeros((), dtype=like.dtype, device=like.device)
    )


class FSDP2Strategy(ModelParallelStrategy):
    """Strategy that splits the weights of a ``ContrastiveModule``, their gradients and moments over all ranks.

    Use ``Trainer(strategy="fsdp2")``, or ``--trainer.strategy fsdp2``. As with DDP, the gradient equals that of
    one process. Checkpoints have the same format as with DDP or one process: the first rank writes one file of
    whole weights. Any number of ranks can resume from it, with or without split weights.

    Zhao et al. 2023, https://arxiv.org/abs/2304.11277; implemented with torch's ``fully_shard``.

    Differs: by default Lightning's ``ModelParallelStrategy`` splits weights over machines only. It writes one
    file per rank, and reads checkpoints without its checkpoint plugin.

    Args:
        process_group_backend: Name of a torch backend; None for the default of the device.
        timeout: How long ranks wait for each other; None for torch's default of half an hour.

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
        """Sets up a device mesh with all ranks in the data-parallel dimension."""
        self._data_parallel_size, self._tensor_parallel_size = self.num_nodes * self.num_processes, 1
        super().setup_environment()

    def setup_optimizers(self, trainer: pl.Trainer) -> None:
        """Creates the optimizers of a module with split weights.

        Disables torch's fused kernels for groups with both split and whole weights.
        """
        super().setup_optimizers(trainer)
        for group in (group for optimizer in self.optimizers for group in optimizer.param_groups):
            if len({isinstance(weight, DTensor) for weight in group["params"]}) > 1:
                group.update(dict.fromkeys(_kernels(group), False))

    @property
    def lightning_restore_optimizer(self) -> bool:
        """Always True: Lightning restores the optimizer states, as with strategies that don't split weights."""
        return True

    def lightning_module_state_dict(self) -> dict[str, Any]:  # Any: as Lightning's
        """Returns the whole weights on the first rank, and an empty dictionary on other ranks."""
        assert self.lightning_module is not None
        return self._gather_state(self.lightning_module.state_dict())

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:  # Any: as Lightning's
        """Returns the whole state of an optimizer on the first rank, and only its settings on other ranks."""
        inner = optimizer.optimizer if isinstance(optimizer, LightningOptimizer) else optimizer
        state = inner.state_dict()
        for group in state["param_groups"]:  # restores the kernels that setup_optimizers disabled
            group.update({name: inner.defaults[name] for name in _kernels(group)})
        return {
            **state,
            "state": {number: self._gather_state(values) for number, values in state["state"].items()},
        }

    def _gather_state(self, state: Mapping[str, Any]) -> dict[str, Any]:  # Any: tensors and plain values
        gathered = {}
        for name, value in state.items():
            full = full_tensor(value.detach()) if isinstance(value, Tensor) else value
            if self.global_rank == 0:
                gathered[name] = full.cpu() if isinstance(full, Tensor) else full
        return gathered

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Reads a checkpoint on every rank with the checkpoint plugin; see ``Strategy.load_checkpoint``."""
        return Strategy.load_checkpoint(self, checkpoint_path, weights_only)

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Loads this rank's shard of the weights into the module."""
        Strategy.load_model_state_dict(self, checkpoint, strict)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Loads this rank's shard of the optimizer states."""
        states = []
        for optimizer, saved_state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            weights = [weight for group in optimizer.param_groups for weight in group["params"]]
            own_values = {
                number: {
                    name: shard_like(value, weights[number]) if isinstance(value, Tensor) else value
                    for name, value in values.items()
                }
                for number, values in saved_state["state"].items()
            }
            states.append({**saved_state, "state": own_values})
        Strategy.load_optimizer_state_dict(self, {"optimizer_states": states})


def _kernels(group: Mapping[str, Any]) -> list[str]:  # Any: settings of torch's
    """Returns the names of a parameter group's settings that select the kernel of the optimizer step."""
    return [name for name in ("fused", "foreach") if name in group]


StrategyRegistry.register("fsdp2", FSDP2Strategy, description="weights split over all ranks")


class SplitModule(pl.LightningModule):
    """Base class of ``ContrastiveModule`` that splits its weights if the trainer's strategy is ``fsdp2``."""

    _scalars: list[nn.Parameter]
    """Names of the scalar weights, which ``fsdp2`` doesn't split."""

    @property
    def is_split(self) -> bool:
        """True if the module's weights are split over ranks."""
        return isinstance(self, FSDPModule)

    @classmethod
    def class_before_split(cls) -> type[Self]:
        """Returns the module's class before its weights were split."""
        base: type[Self] = next(parent for parent in cls.__mro__ if not issubclass(parent, FSDPModule))  # type: ignore[assignment]  # its base
        return base

    def configure_model(self) -> None:
        """Splits the weights if the strategy is ``fsdp2`` and they are not split yet."""
        strategy = None if self._trainer is None else self._trainer.strategy
        if isinstance(strategy, FSDP2Strategy) and not self.is_split:
            self._scalars = split_weights(self, strategy.device_mesh["data_parallel"])

    def on_after_backward(self) -> None:
        """Averages the gradients of whole weights, and splits the weights that were gathered for the step."""
        if isinstance(self, FSDPModule):
            average_gradients(self._scalars)
            self.reshard()

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clips gradients like Lightning, including gradients of split weights."""
        if self.is_split:
            if gradient_clip_val:
                weights = (weight for group in optimizer.param_groups for weight in group["params"])
                clip_gradients(weights, gradient_clip_val, gradient_clip_algorithm)
            return
        self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def on_predict_start(self) -> None:
        """Refuses predictions with split weights, because ranks may have different numbers of batches.

        Raises:
            ValueError: The weights are split.
        """
        if self.is_split:
            raise InvalidValueError(
                "trainer.strategy: expected a strategy with whole weights for a prediction, got fsdp2; use the "
                "exported model, with contrastive-text embed"
            )
