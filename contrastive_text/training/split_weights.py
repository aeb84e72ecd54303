"""Weights split over ranks by FSDP2: each has a part of every matrix, and a block is whole while it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from transformers import PreTrainedModel

from contrastive_text.core.distributed import is_distributed, own_part, sum_over_ranks, world_size
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
    """Gives every rank the mean of the ranks' gradients of single numbers, where any rank has one."""
    trained = [weight for weight in weights if weight.requires_grad]
    if not trained or world_size() == 1:
        return
    gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in trained]
    given = [torch.full_like(each, float(each.grad is not None)) for each in trained]
    sums, counts = sum_over_ranks(torch.stack([*gradients, *given])).chunk(2)
    for weight, gradient, count in zip(trained, sums, counts, strict=True):
        weight.grad = gradient / world_size() if count else None


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
