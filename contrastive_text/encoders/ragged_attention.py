"""Attention of packed rows on a GPU: one launch of a kernel of torch for rows of any lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from contrastive_text.core.host import sent, unpadded
from contrastive_text.encoders.layouts import pad, token_mask

if TYPE_CHECKING:
    from contrastive_text.encoders.packing import Packing

_WIDTH = 8
"""Whose multiples the kernels take as head sizes."""

# What ``torch.nn.attention.varlen`` and nested tensors call; only here dropout may be asked for.
_flash = torch.ops.aten._flash_attention_forward
_efficient = torch.ops.aten._efficient_attention_forward


def ragged_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    packing: Packing,
    dropout: float = 0.0,
    scaling: float | None = None,
    causal: bool = False,
    sliding_window: int | None = None,
) -> Tensor:
    """Returns the attention of packed rows, each among its own tokens, without reading anything back.

    Half precision takes FlashAttention 2 (Dao 2023, https://arxiv.org/abs/2307.08691), which older GPUs than
    NVIDIA's Ampere lack; float32, and half precision there, the memory-efficient kernel (Rabe and Staats 2021,
    https://arxiv.org/abs/2112.05682). What neither takes is padded: float64, a window in float32, other devices.
    Shapes and arguments are checked on a CPU; none of it has been run on a GPU so far.

    Args:
        query: (1, heads, T, head size).
        key: (1, heads, T, head size), or one vector a row, (1, heads, S, head size).
        value: As ``key``.
        packing: Where rows begin.
        dropout: Probability that an attention weight is dropped.
        scaling: Factor of the products; None for ``1 / sqrt(head size)``.
        causal: Whether a token sees no later one.
        sliding_window: A token sees those nearer than this; None for all.

    Returns:
        (1, T, heads, head size).
    """
    window = None if sliding_window is None or packing.longest <= sliding_window else sliding_window
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    kernel = _kernel(query, window)
    packings = (packing, packing.of_keys(query, key))
    states = [rows[0].transpose(0, 1) for rows in (query, key, value)]
    if kernel is None:
        return _padded(states, packings, dropout, scale, causal, window).unsqueeze(0)
    width = query.shape[3]
    q, k, v = (F.pad(rows, (0, -width % _WIDTH)) for rows in states)
    starts = [sent(F.pad(each.lengths.cumsum(0), (1, 0)).int(), query.device) for each in packings]
    ends = (*starts, *(each.longest for each in packings))
    if kernel == "flash":
        near = -1 if window is None else window - 1  # counted without the token itself
        sides = {"window_size_left": near, "window_size_right": 0 if causal else near}
        output = _flash(q, k, v, *ends, dropout, causal, False, scale=scale, **(sides if window else {}))[0]
    else:
        q, k, v = (rows.unsqueeze(0) for rows in (q, k, v))
        needed = torch.is_grad_enabled() and any(rows.requires_grad for rows in (q, k, v))
        output = _efficient(q, k, v, None, *ends, dropout, int(causal), needed, scale=scale)[0].squeeze(0)
    attended: Tensor = output[..., :width].unsqueeze(0)
    return attended


def _kernel(query: Tensor, window: int | None) -> str | None:
    """Returns which kernel takes rows of this type on their device; None for neither."""
    if query.device.type != "cuda" or torch.version.hip is not None:
        return None
    if query.dtype in (torch.float16, torch.bfloat16) and _has_flash(query.device):
        return "flash"
    return "efficient" if query.dtype != torch.float64 and window is None else None


def _has_flash(device: torch.device) -> bool:
    ampere = torch.cuda.get_device_capability(device) >= (8, 0)
    return ampere and torch.backends.cuda.is_flash_attention_available()


def _padded(
    states: list[Tensor],
    packings: tuple[Packing, Packing],
    dropout: float,
    scale: float,
    causal: bool,
    window: int | None,
) -> Tensor:
    """Returns the attention of rows that are padded for it, (T, heads, head size)."""
    masks = [token_mask(each.lengths) for each in packings]
    q, k, v = (
        pad(rows, mask).transpose(1, 2) for rows, mask in zip(states, (*masks[:1], *masks[1:] * 2), strict=True)
    )
    places, others = (torch.arange(mask.shape[1]) for mask in masks)
    distance = places.unsqueeze(1) - others
    seen = (distance >= 0) | (not causal)
    if window is not None:
        seen &= distance.abs() < window
    allowed = sent(masks[1][:, None, None] & seen, q.device)
    output = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, dropout_p=dropout, scale=scale)
    return unpadded(output.transpose(1, 2), masks[0])
