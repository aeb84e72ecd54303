"""Times what a training step can't do without: matrix products of its own shapes, optimizer, casts, dropout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.nn.functional as F
from inputs import Shape
from machines import median_seconds
from torch import Tensor

from contrastive_text.core.machine import has_onednn
from contrastive_text.core.random import dropout


def product_speed(shape: Shape, tokens: int, dtype: torch.dtype, device: str) -> float:
    """Measures the products of the linear layers of one block in a training step, in FLOP/s.

    A layer has three: forward, and the gradients of its input and of its weight. In float32 on a CPU each
    takes the faster of torch's product and oneDNN's.

    Args:
        shape: Sizes of a block.
        tokens: Number of tokens of a step.
        dtype: Type of the products.
        device: ``cpu`` or ``cuda``.
    """
    seconds, flops = 0.0, 0
    sides = ((shape.features, shape.features), (shape.features, shape.inner), (shape.inner, shape.features))
    for (width, output), count in zip(sides, (4, 1, 1), strict=True):  # queries, keys, values, output: four equal
        made = partial(torch.randn, device=device, dtype=dtype)
        values, weight, bias, gradient = (
            made(tokens, width),
            made(output, width),
            made(output),
            made(tokens, output),
        )
        products = (
            (values, weight, bias),
            (gradient, weight.t(), None),
            (gradient.t(), values.t(), None),
        )
        seconds += count * sum(_fastest(*product, device) for product in products)
        flops += count * len(products) * 2 * tokens * width * output
    return flops / seconds


def _fastest(values: Tensor, weight: Tensor, bias: Tensor | None, device: str) -> float:
    works: list[Callable[[], object]] = [partial(F.linear, values, weight, bias)]
    if device == "cpu" and values.dtype == torch.float32 and has_onednn():
        onednn = torch.ops.mkldnn._linear_pointwise
        works.append(partial(onednn, values, weight, bias, "none", [], "none"))
    return min(median_seconds(work, device) for work in works)


def beside_products(
    shape: Shape, tokens: int, weights: int, dtype: torch.dtype, device: str
) -> Mapping[str, float]:
    """Measures what a training step does beside its products, in seconds.

    Args:
        shape: Sizes of a block.
        tokens: Number of tokens of a step.
        weights: Number of weights that are trained.
        dtype: Type of the products.
        device: ``cpu`` or ``cuda``.

    Returns:
        AdamW's update; the casts of the blocks' weights and gradients to and from half precision; and dropout
        after the embeddings and twice in each block.
    """
    parameter = torch.zeros(weights, device=device, requires_grad=True)
    parameter.grad = torch.zeros_like(parameter)
    update = torch.optim.AdamW([parameter], fused=True).step
    layers, width, inner = shape
    of_blocks = torch.zeros(layers * (4 * width**2 + 2 * width * inner), device=device)
    halves = of_blocks.to(dtype)
    casts = (partial(of_blocks.to, dtype), partial(halves.to, torch.float32))
    rows = torch.ones(tokens, width, device=device, dtype=dtype)
    return {
        "optimizer": median_seconds(update, device),
        "casts": 0.0 if dtype == torch.float32 else sum(median_seconds(cast, device) for cast in casts),
        "dropout": (2 * layers + 1) * median_seconds(partial(dropout, rows, 0.1), device),
    }
