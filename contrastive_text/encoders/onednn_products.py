"""Linear layers on a CPU in float32, whose products and gradients oneDNN computes.

Torch leaves these products to MKL, which doesn't use AVX-512 on processors of AMD. OneDNN takes half the time
there, although it reorders the weights at each call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

from contrastive_text.core.machine import has_fast_layers

_ROWS = 128
"""Least number of tokens, and of rows of a layer's values.

For fewer it takes too long to reorder the weights, and to call a function of Python for every function of torch.
"""

_this_thread = threading.local()


class OneDnnMode(TorchFunctionMode):
    """Torch function mode that gives linear layers of its own thread to oneDNN. A thread has one at a time."""

    def __enter__(self) -> Self:
        _this_thread.has_mode = True
        mode: Self = super().__enter__()  # type: ignore[no-untyped-call]  # torch's
        return mode

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]  # torch's
        _this_thread.has_mode = False


def takes_onednn(model: nn.Module) -> bool:
    """Returns whether oneDNN can compute the layers of a network: not under autocast, nor if it is compiled."""
    is_compiled = any(part._compiled_call_impl is not None for part in model.modules())
    return not is_compiled and not torch.is_autocast_enabled("cpu")


def onednn_products(model: nn.Module, values: Tensor) -> AbstractContextManager[object]:
    """Makes linear layers in float32 compute by oneDNN inside the block.

    Values and gradients equal those of torch up to rounding; there is no second derivative. Inputs of less than
    128 tokens, and layers with less than 128 rows of values, are left to torch. So are all layers in a compiled
    network, under autocast, and on a processor without ``has_fast_layers``. Inside ``prepacked`` nothing changes.

    Args:
        model: A network.
        values: Input of the network, such as its token ids.

    Example:
        >>> layer, values = nn.Linear(3, 2), torch.randn(300, 3)
        >>> with onednn_products(layer, values):
        ...     output = layer(values)
        >>> torch.allclose(output, layer(values), atol=1e-5)
        True
    """
    has_mode = getattr(_this_thread, "has_mode", False)
    is_large = values.device.type == "cpu" and values.numel() >= _ROWS
    is_faster = is_large and not has_mode and has_fast_layers() and takes_onednn(model)
    return _Products() if is_faster else nullcontext()


class _Products(OneDnnMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],  # Any: any function of torch
        types: Sequence[type],  # torch's signature
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Calls a function of torch, or ``_Linear`` in its place."""
        if func is F.linear and not kwargs and _is_plain(*args):
            return _Linear.apply(*args, *[None] * (3 - len(args)))  # type: ignore[no-untyped-call]  # torch's
        return func(*args, **(kwargs or {}))


def _is_plain(values: Tensor, *weight_and_bias: Tensor | None) -> bool:
    return values.numel() >= _ROWS * values.shape[-1] > 0 and all(
        each is None
        or (type(each) in (Tensor, nn.Parameter) and each.dtype == torch.float32 and each.device.type == "cpu")
        for each in (values, *weight_and_bias)
    )


class _Linear(torch.autograd.Function):
    """Linear layer, (..., D) -> (..., E)."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # Any: torch's context
        """Computes the layer."""
        ctx.save_for_backward(values, weight)
        return _product(values, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # Any: torch's context
        """Computes the gradients that are needed."""
        values, weight = ctx.saved_tensors
        needs_values, needs_weight, needs_bias = ctx.needs_input_grad
        rows = gradient.flatten(0, -2)
        return (
            _product(gradient, weight.t()) if needs_values else None,
            _product(rows.t(), values.flatten(0, -2).t()) if needs_weight else None,
            rows.sum(dim=0) if needs_bias else None,
        )


def _product(values: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Returns the values times the transposed weight, plus the bias."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(values, weight, bias, "none", [], "none")
    return product
