"""Linear layers on a CPU without gradients, computed from copies of their weights in oneDNN's order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.activations import GELUActivation

from contrastive_text.core.machine import has_fast_packed_layers
from contrastive_text.encoders.onednn_products import OneDnnMode, takes_onednn

_GELU_BLOCK = {"dense", "intermediate_act_fn"}
"""Submodules of the first half of a feed-forward block in BERT and its relatives, which run in this order."""

_TOKENS = 2048
"""Number of tokens from which weights are packed. That takes a tenth of the time it saves."""

_copies: WeakValueDictionary[tuple[int, int, int], Tensor] = WeakValueDictionary()
"""Packed weights in use, by identity, address and version of the weight. Simultaneous calls share them."""

_packing = Lock()


def prepacked(model: nn.Module, tokens: int) -> AbstractContextManager[object]:
    """Makes linear layers compute from copies of their weights in oneDNN's order, only in this thread.

    No module is changed: the products of this thread look up the copy of their weight. A GELU right after such a
    layer is computed together with the product. Values equal those of the layers up to rounding.

    The copies take as much memory as the weights. Making them takes as long as encoding about 300 tokens. They
    exist as long as a context uses them, so that no change of a weight is missed, and a thread holds at most one
    copy. Layers keep their own weights for fewer than 2,048 tokens, on a GPU, if they aren't plain layers in
    float32 or bfloat16, in a compiled network, under autocast, and on a processor without AVX2 or AVX-512.

    Args:
        model: A network. Its passes in the context have no gradient.
        tokens: Number of tokens that the network reads in the context.
    """
    is_faster = tokens >= _TOKENS and has_fast_packed_layers() and takes_onednn(model)
    is_on_cpu = is_faster and all(weight.device.type == "cpu" for weight in model.parameters())
    return _Prepacked(list(model.modules())) if is_on_cpu else nullcontext()


class _Prepacked(OneDnnMode):
    """Mode that computes products from packed copies of weights."""

    def __init__(self, parts: Sequence[nn.Module]) -> None:
        super().__init__()
        # Keeps the weights alive: the id of an object is unique only while the object exists.
        self._weights = [part.weight for part in parts if isinstance(part, nn.Linear) and _is_plain(part)]
        with _packing:
            self._packed = {id(weight): _packed(weight) for weight in self._weights}
        self._activated = {id(dense.weight) for part in parts if (dense := _dense_before_gelu(part)) is not None}
        self._gelu_of: Tensor | None = None

    def __torch_function__(
        self,
        func: Callable[..., Any],  # Any: any function of torch
        types: Sequence[type],  # torch's signature
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Calls a function of torch, or oneDNN's function in its place if the weight is packed."""
        if func is F.linear and not kwargs and id(args[1]) in self._packed:
            return self._product(*args)
        if func is F.gelu and args[0] is self._gelu_of:
            self._gelu_of = None
            return args[0]
        return func(*args, **(kwargs or {}))

    def _product(self, values: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        activation = "gelu" if id(weight) in self._activated else "none"
        product: Tensor = torch.ops.mkldnn._linear_pointwise(
            values, self._packed[id(weight)], bias, activation, [], "none"
        )
        if activation == "gelu":
            self._gelu_of = product
        return product


def _is_plain(part: nn.Module) -> bool:
    if type(part) is not nn.Linear or "forward" in vars(part):
        return False
    weight = part.weight
    if weight.dtype == torch.bfloat16:
        return type(weight) is nn.Parameter and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return type(weight) is nn.Parameter and weight.dtype == torch.float32


def _dense_before_gelu(part: nn.Module) -> nn.Linear | None:
    """Returns the linear layer of a block whose output is passed to a GELU; None for any other module."""
    children = dict(part.named_children())
    if children.keys() != _GELU_BLOCK or not _is_plain(children["dense"]):
        return None
    gelu = children["intermediate_act_fn"]
    is_gelu = type(gelu) is GELUActivation and gelu.act is F.gelu and not gelu._forward_hooks
    dense = children["dense"]
    assert isinstance(dense, nn.Linear)
    return dense if is_gelu else None


def _packed(weight: Tensor) -> Tensor:
    """Returns a weight in oneDNN's order: a copy in use by another context, or a new copy."""
    key = (id(weight), weight.data_ptr(), 0 if weight.is_inference() else weight._version)
    copy = _copies.get(key)
    if copy is None:
        copy = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None)
        _copies[key] = copy
    return copy
