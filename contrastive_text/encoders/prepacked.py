"""Linear layers of a pass without gradients on a CPU, with their weights in the order that its products read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.activations import GELUActivation

from contrastive_text.core.onednn import has_fast_layers

_NEXT_TO_ACTIVATION = {"dense", "intermediate_act_fn"}
"""Parts of the first half of a feed-forward block, which runs one after the other, in BERT and its kin."""


@contextmanager
def prepacked(model: nn.Module) -> Iterator[None]:
    """Lets linear layers compute from copies of their weights in oneDNN's order.

    A GELU right after such a layer is computed with the product. Values are those of the layers but for rounding.
    The copies take as much memory as the weights. They are made here, and not kept, so that no change of a weight
    is missed; that takes the time of some 300 tokens. Layers that aren't plain ones of float32 or bfloat16, of a
    compiled network or under autocast stay as they are, and all do on a processor without AVX-512.

    Args:
        model: A network on the CPU; within, it gives no gradient.
    """
    parts = list(model.modules()) if has_fast_layers() and not torch.is_autocast_enabled("cpu") else []
    if any(part._compiled_call_impl is not None for part in parts):
        parts = []
    activations = dict(pair for part in parts if (pair := _gelu_after(part)) is not None)
    changed: list[nn.Module] = []
    try:
        for part in parts:
            if not _is_plain(part):
                continue
            assert isinstance(part, nn.Linear)
            activation = activations.get(part)
            vars(part)["forward"] = _packed(part, "none" if activation is None else "gelu")
            changed.append(part)
            if activation is not None:
                vars(activation)["forward"] = _unchanged
                changed.append(activation)
        yield
    finally:
        for part in changed:
            vars(part).pop("forward", None)


def _is_plain(part: nn.Module) -> bool:
    if type(part) is not nn.Linear or "forward" in vars(part):
        return False
    weight = part.weight
    if weight.dtype == torch.bfloat16:
        return type(weight) is nn.Parameter and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return type(weight) is nn.Parameter and weight.dtype == torch.float32


def _gelu_after(part: nn.Module) -> tuple[nn.Module, nn.Module] | None:
    """Returns a layer and the GELU that comes right after it, where a part is these two."""
    names = dict(part.named_children())
    if names.keys() != _NEXT_TO_ACTIVATION or not _is_plain(names["dense"]):
        return None
    gelu = names["intermediate_act_fn"]
    is_one = type(gelu) is GELUActivation and gelu.act is F.gelu and not gelu._forward_hooks
    return (names["dense"], gelu) if is_one else None


def _packed(layer: nn.Linear, activation: str) -> Callable[[Tensor], Tensor]:
    """Returns the layer's function, with an activation after it."""
    weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), None)
    bias = None if layer.bias is None else layer.bias.detach()

    def forward(values: Tensor) -> Tensor:
        found: Tensor = torch.ops.mkldnn._linear_pointwise(values, weight, bias, activation, [], "none")
        return found

    return forward


def _unchanged(values: Tensor) -> Tensor:
    return values
