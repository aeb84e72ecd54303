"""Layouts of rows for the network, groups of rows that are encoded together, and attention of packed rows.

=========  ===========================================================================================
padded     one block, in which every row is as long as the longest
bucketed   blocks of a few rows of similar length, each padded to its longest row
packed     one row of all tokens, on a CPU with a little fill, attention is limited to each text
=========  ===========================================================================================

A layout changes neither the texts of a batch nor the vectors of a text. On a CPU attention of packed rows is
computed for blocks of rows of similar length, and of long rows for runs of rows of equal length. On a GPU one
kernel of torch computes it for rows of any lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import groupby
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_layers import GradientCheckpointingLayer

from contrastive_text.core.batch import move_to_device, select_tokens
from contrastive_text.core.distributed import max_over_ranks
from contrastive_text.core.errors import InvalidTypeError, InvalidValueError
from contrastive_text.encoders.block_attention import Blocks, attend_in_blocks, band, uses_blocks

FixedLayout: TypeAlias = Literal["packed", "bucketed", "padded"]
Layout: TypeAlias = Literal["auto", "packed", "bucketed", "padded"]

_BUCKET = 16
"""Number of rows of a bucket, which are padded to one length.

On a CPU it is 2 to 3 times as fast as one padded block of 128 texts.
"""
ATTENTION = "contrastive_text"
"""Name under which ``attention`` is registered with Transformers."""

NO_MASK = (1, 1, 1, 1)
"""Shape of a mask that Transformers passes unchanged to every layer. Packed rows don't read it."""

_KNOWN = ("is_causal", "sliding_window", "position_ids", "encoder_hidden_states")
"""Options of a Transformers attention layer that ``attention`` reads, or already applied to queries and keys."""

_HEAD_MULTIPLE = 8
"""Divisor of the head sizes that the packed attention kernels accept."""

# Functions that ``torch.nn.attention.varlen`` and nested tensors call. Only these accept dropout.
_flash = torch.ops.aten._flash_attention_forward
_efficient = torch.ops.aten._efficient_attention_forward

_packing: ContextVar[Packing | None] = ContextVar("packing", default=None)
"""Packing of the rows in the running forward pass, or None for padded rows."""


def token_mask(lengths: Tensor) -> Tensor:
    """Returns the mask of right-padded rows, True on tokens and False on padding, (S,) -> (S, L), same device.

    Example:
        >>> token_mask(torch.tensor([1, 3])).int()
        tensor([[1, 0, 0],
                [1, 1, 1]], dtype=torch.int32)
    """
    return torch.arange(int(lengths.max()), device=lengths.device) < lengths.unsqueeze(1)


def pad(values: Tensor, mask: Tensor, fill: int = 0) -> Tensor:
    """Pads concatenated rows to rows of equal length, (T, ...) and (S, L) -> (S, L, ...).

    For values on a GPU the mask should be on the host, as ``token_mask`` returns it: the host would wait for any
    other mask.

    Example:
        >>> pad(torch.tensor([7, 8, 9]), token_mask(torch.tensor([1, 2])))
        tensor([[7, 0],
                [8, 9]])
    """
    positions = move_to_device(mask.flatten().nonzero().flatten(), values.device)
    empty = values.new_full((mask.numel(), *values.shape[1:]), fill)
    return empty.index_copy(0, positions, values).view(*mask.shape, *values.shape[1:])


def natural_positions(lengths: Tensor) -> Tensor:
    """Returns the position of every token in its row, (S,) -> (T,).

    Example:
        >>> natural_positions(torch.tensor([1, 3])).tolist()
        [0, 0, 1, 2]
    """
    ends = lengths.cumsum(0)
    total = int(ends[-1]) if len(ends) else 0
    return torch.arange(total, device=lengths.device) - torch.repeat_interleave(ends - lengths, lengths)


def split_rows(lengths: Tensor, layout: FixedLayout, chunk_tokens: int | None) -> list[Tensor]:
    """Splits rows into groups that go through the network together, long rows first.

    Args:
        lengths: Number of tokens of each row, (S,).
        layout: With ``bucketed`` a group is a bucket. Other layouts have one group if ``chunk_tokens`` is None.
        chunk_tokens: Largest number of tokens of a group, including padding if the layout pads. A longer row is a
            group alone. None for no bound.

    Example:
        >>> lengths = torch.tensor([2, 5, 3, 5])
        >>> [rows.tolist() for rows in split_rows(lengths, "packed", chunk_tokens=8)]
        [[1], [3, 2], [0]]
    """
    order = lengths.argsort(descending=True, stable=True)
    max_rows = _BUCKET if layout == "bucketed" else len(lengths)
    if chunk_tokens is None:
        return list(torch.split(order, max(max_rows, 1)))
    counts, rows, tokens, longest = [0], 0, 0, 0
    for length in lengths[order].tolist():
        next_tokens = tokens + length if layout == "packed" else (rows + 1) * max(longest, length)
        if rows and (next_tokens > chunk_tokens or rows == max_rows):
            counts.append(0)
            rows, longest, next_tokens = 0, 0, length
        rows, tokens, longest = rows + 1, next_tokens, max(longest, length)
        counts[-1] = rows
    return list(torch.split(order, counts))


def equalize_groups(parts: list[Tensor], device: torch.device) -> list[Tensor]:
    """Regroups rows so that every rank has the same number of groups.

    It is the largest number of groups that a rank needs: other ranks halve their largest groups. If a rank has
    fewer rows than that, all ranks have as many groups as this rank has rows, and join their smallest groups.

    Ranks exchange their numbers before they encode, which makes the host wait for a GPU. It is needed only if
    ranks hold parts of the weights, and their numbers of groups may differ: with a bound on tokens, or with
    buckets.

    Args:
        parts: Groups of rows that go through the network together, long rows first.
        device: Device on which the ranks communicate.

    Example:
        >>> [part.tolist() for part in equalize_groups([torch.tensor([2, 0, 1])], torch.device("cpu"))]
        [[2, 0, 1]]
    """
    rows = sum(map(len, parts))
    largest_count, fewest = max_over_ranks([len(parts), -rows], device)
    count, groups = min(largest_count, -fewest), list(parts)
    while len(groups) < count:
        largest = max(range(len(groups)), key=lambda number: len(groups[number]))
        groups[largest : largest + 1] = groups[largest].tensor_split(2)
    while len(groups) > count:
        groups[-2:] = [torch.cat(groups[-2:])]
    return groups


def fill_count(tokens: int) -> int:
    """Returns how many tokens of fill, at most 6 %, follow the packed rows on a CPU.

    OneDNN makes and keeps kernels for each number of tokens. With fill there are only 16 numbers of tokens
    between a power of 2 and the next: after 150 steps of 128 short texts, a process had 1,440 MiB in place of
    2,810.

    Example:
        >>> [(tokens, fill_count(tokens)) for tokens in (0, 17, 65, 2000)]
        [(0, 0), (17, 0), (65, 3), (2000, 48)]
    """
    return -tokens % max((1 << tokens.bit_length()) // 32, 1)


class Packing(NamedTuple):
    """Lengths of the texts that are concatenated to one row of all tokens.

    Args:
        runs: (number of rows, their length) for each run of adjacent rows of equal length.
        lengths: Number of tokens of each row, (S,), on the host.
        blocks: Blocks of the rows by their settings, which all layers of a pass use.
    """

    runs: tuple[tuple[int, int], ...]
    lengths: Tensor
    blocks: dict[tuple[object, ...], Blocks]

    @classmethod
    def of(cls, lengths: Tensor) -> Packing:
        """Computes the packing of rows of given lengths, which keep their order.

        Example:
            >>> Packing.of(torch.tensor([3, 3, 1])).runs
            ((2, 3), (1, 1))
        """
        runs = tuple((len(list(rows)), length) for length, rows in groupby(lengths.tolist()) if length)
        return cls(runs, lengths, {})

    @property
    def longest(self) -> int:
        """Number of tokens of the longest packed row."""
        return max((length for _, length in self.runs), default=0)

    def of_keys(self, query: Tensor, key: Tensor) -> Packing:
        """Returns the packing of keys: one key per row in cross-attention, else the packing of the queries."""
        if key.shape[2] == query.shape[2]:
            return self
        return Packing(tuple((rows, 1) for rows, _ in self.runs), torch.ones_like(self.lengths), {})

    def split(self, vectors: Tensor, dim: int = 0) -> list[Tensor]:
        """Splits packed vectors into runs of rows of equal length: (..., T, ...) -> (..., rows, length, ...)."""
        parts = torch.split(vectors, [rows * length for rows, length in self.runs], dim)
        return [torch.unflatten(part, dim, run) for part, run in zip(parts, self.runs, strict=True)]


@contextmanager
def packed_input(packing: Packing | None) -> Iterator[None]:
    """Declares inside the block that the network's input is packed rows; None for padded rows."""
    token = _packing.set(packing)
    try:
        yield
    finally:
        _packing.reset(token)


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,  # Any: further arguments of an architecture's attention
) -> tuple[Tensor, None]:
    """Attention function for Transformers: torch's kernels or, inside ``packed_input``, ``packed_attention``.

    Args:
        module: The attention layer.
        query: (S, heads, L, head size).
        key: (S, key heads, L, head size).
        value: (S, key heads, L, head size).
        attention_mask: From ``attention_mask``.
        dropout: Probability that an attention weight is dropped.
        scaling: Factor of the products; None for ``1 / sqrt(head size)``.
        options: ``is_causal`` overrides the layer's own value; ``sliding_window`` is used.

    Returns:
        (S, L, heads, head size), and None in place of attention weights.

    Raises:
        TypeError: For packed rows, an option that would change the values, such as Gemma 2's ``softcap``.
    """
    packing = _packing.get()
    if packing is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
    # An unknown number or tensor may change the scores. Flags only request further outputs.
    for name, option in options.items():
        if name not in _KNOWN and isinstance(option, Tensor | float | int) and not isinstance(option, bool):
            raise InvalidTypeError(f"attention: expected options that packed rows take, got {name}")
    option_causal, window = options.get("is_causal"), options.get("sliding_window")
    is_causal = bool(vars(module).get("is_causal", False) if option_causal is None else option_causal)
    attended = packed_attention(query, key, value, packing, dropout, scaling, is_causal, window, module.training)
    return attended, None


def attention_mask(*args: Any, **options: Any) -> Tensor | None:  # Any: Transformers' arguments, passed on
    """Returns the mask of torch's kernels; None for packed rows, which have no padding.

    Transformers reads a mask to omit it if there is no padding. For a mask on a GPU the host would have to wait.
    """
    if _packing.get() is not None:
        return None
    if torch.device(options.get("device", "cpu")).type != "cpu" and options.get("attention_mask") is not None:
        options |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    return sdpa_mask(*args, **options)


def packed_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    packing: Packing,
    dropout: float = 0.0,
    scaling: float | None = None,
    causal: bool = False,
    sliding_window: int | None = None,
    training: bool = True,
) -> Tensor:
    """Returns the attention of packed rows, limited to the tokens of each row.

    On a CPU ``attend_in_blocks`` computes short rows, and all rows with dropout. Torch's kernel computes long
    rows, in runs of rows of equal length, which need no mask; ``uses_blocks`` decides. For a GPU see
    ``ragged_attention``.

    Args:
        query: (1, heads, T, head size).
        key: (1, key heads, T, head size); in cross-attention (1, key heads, S, head size), one vector per row.
        value: As ``key``.
        packing: Bounds of the rows.
        dropout: Probability that an attention weight is dropped.
        scaling: Factor of the products; None for ``1 / sqrt(head size)``.
        causal: Whether tokens attend only to earlier tokens and themselves.
        sliding_window: Distance below which tokens attend to each other; None for all tokens.
        training: Whether the layer is in training.

    Returns:
        (1, T, heads, head size).
    """
    if key.shape[1] != query.shape[1]:
        repeats = query.shape[1] // key.shape[1]
        key, value = (states.repeat_interleave(repeats, dim=1) for states in (key, value))
    if query.device.type != "cpu":
        return ragged_attention(query, key, value, packing, dropout, scaling, causal, sliding_window)
    key_packing = packing.of_keys(query, key)
    if uses_blocks(packing.longest, query, dropout, training):
        lengths = (packing.lengths, key_packing.lengths)
        return attend_in_blocks(
            query, key, value, lengths, packing.blocks, dropout, scaling, causal, sliding_window
        )
    outputs = []
    states_and_packings = ((query, packing), (key, key_packing), (value, key_packing))
    for q, k, v in zip(*(rows.split(states[0], dim=1) for states, rows in states_and_packings), strict=True):
        rows, length = q.shape[1:3]
        has_window = sliding_window is not None and length > sliding_window
        output = F.scaled_dot_product_attention(
            q.transpose(0, 1),
            k.transpose(0, 1),
            v.transpose(0, 1),
            attn_mask=band(length, sliding_window or length, causal, query.device) if has_window else None,
            is_causal=causal and not has_window,
            scale=scaling,
        )
        outputs.append(output.transpose(1, 2).reshape(rows * length, *output.shape[1::2]))
    return torch.cat(outputs).unsqueeze(0)


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
    """Returns the attention of packed rows on a GPU, in one kernel call, without making the host wait.

    Half precision uses FlashAttention 2 (Dao 2023, https://arxiv.org/abs/2307.08691) on NVIDIA's Ampere or newer.
    Float32, and half precision on older GPUs, use the memory-efficient kernel (Rabe and Staats 2021,
    https://arxiv.org/abs/2112.05682). Float64, a window in float32 and other devices use padded rows. On
    an NVIDIA H200 the gradient in float32 and float64 is that of padded rows, up to rounding. Half precision and
    other GPUs have not been tried.

    Args:
        query: (1, heads, T, head size).
        key: (1, heads, T, head size), or one vector per row, (1, heads, S, head size).
        value: As ``key``.
        packing: Bounds of the rows.
        dropout: Probability that an attention weight is dropped.
        scaling: Factor of the products; None for ``1 / sqrt(head size)``.
        causal: Whether tokens attend only to earlier tokens and themselves.
        sliding_window: Distance below which tokens attend to each other; None for all tokens.

    Returns:
        (1, T, heads, head size).
    """
    window = None if sliding_window is None or packing.longest <= sliding_window else sliding_window
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    kernel = _kernel(query, window)
    packings = (packing, packing.of_keys(query, key))
    states = [rows[0].transpose(0, 1) for rows in (query, key, value)]
    if kernel is None:
        return _padded_attention(states, packings, dropout, scale, causal, window).unsqueeze(0)
    width = query.shape[3]
    q, k, v = (F.pad(rows, (0, -width % _HEAD_MULTIPLE)) for rows in states)
    starts = [move_to_device(F.pad(bounds.lengths.cumsum(0), (1, 0)).int(), query.device) for bounds in packings]
    ends = (*starts, *(bounds.longest for bounds in packings))
    if kernel == "flash":
        reach = -1 if window is None else window - 1  # the kernel counts without the token itself
        window_options = {"window_size_left": reach, "window_size_right": 0 if causal else reach}
        output = _flash(
            q, k, v, *ends, dropout, causal, False, scale=scale, **(window_options if window else {})
        )[0]
    else:
        q, k, v = (rows.unsqueeze(0) for rows in (q, k, v))
        needs_gradient = torch.is_grad_enabled() and any(rows.requires_grad for rows in (q, k, v))
        output = _efficient(q, k, v, None, *ends, dropout, int(causal), needs_gradient, scale=scale)[0].squeeze(0)
    result: Tensor = output[..., :width].unsqueeze(0)
    return result


def _kernel(query: Tensor, window: int | None) -> str | None:
    """Returns the kernel for packed attention of this type on a device; None if no kernel supports it."""
    if query.device.type != "cuda" or torch.version.hip is not None:
        return None
    is_ampere = torch.cuda.get_device_capability(query.device) >= (8, 0)
    has_flash = is_ampere and torch.backends.cuda.is_flash_attention_available()
    if query.dtype in (torch.float16, torch.bfloat16) and has_flash:
        return "flash"
    return "efficient" if query.dtype != torch.float64 and window is None else None


def _padded_attention(
    states: list[Tensor],
    packings: tuple[Packing, Packing],
    dropout: float,
    scale: float,
    causal: bool,
    window: int | None,
) -> Tensor:
    """Returns the attention of packed rows that are padded for the computation, (T, heads, head size)."""
    masks = [token_mask(packing.lengths) for packing in packings]
    q, k, v = (
        pad(rows, mask).transpose(1, 2) for rows, mask in zip(states, (*masks[:1], *masks[1:] * 2), strict=True)
    )
    query_positions, key_positions = (torch.arange(mask.shape[1]) for mask in masks)
    distance = query_positions.unsqueeze(1) - key_positions
    is_visible = (distance >= 0) | (not causal)
    if window is not None:
        is_visible &= distance.abs() < window
    allowed = move_to_device(masks[1][:, None, None] & is_visible, q.device)
    output = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, dropout_p=dropout, scale=scale)
    return select_tokens(output.transpose(1, 2), masks[0])


def checkpoint_layers(model: PreTrainedModel) -> None:
    """Makes each layer of a network store only its input in training. The gradient has the same bits.

    Chen et al. 2016, https://arxiv.org/abs/1604.06174. The layers are those that
    ``gradient_checkpointing_enable`` of Transformers finds. The function differs from that of Transformers, whose
    second pass would lose the packing. It would also make embeddings require a gradient, which frozen embeddings
    under adapters don't need here.

    Raises:
        ValueError: Transformers can't recompute the layers of the architecture.
    """
    layers = [part for part in model.modules() if isinstance(part, GradientCheckpointingLayer)]
    if not layers:
        raise InvalidValueError(
            "encoder.gradient_checkpointing: expected an architecture whose layers Transformers can recompute "
            f"(BERT, ModernBERT, Llama, Qwen, ...), got {model.config.model_type}; remove "
            "it, and set model.chunk_tokens"
        )
    for layer in layers:
        layer.gradient_checkpointing = True
        vars(layer)["_gradient_checkpointing_func"] = _recomputed


def _recomputed(layer: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Calls a layer of a network with gradient checkpointing.

    The backward pass repeats the call with the same dropout masks and the same packing.
    """
    packing = _packing.get()

    def run(*inputs: Tensor) -> Tensor:
        with packed_input(packing):
            return layer(*inputs)

    output: Tensor = checkpoint(run, *inputs, use_reentrant=False)
    return output


def checkpointed_by_others(model: nn.Module) -> bool:
    """Returns whether a function that doesn't support packed rows recomputes layers of a network."""
    functions = (vars(layer).get("_gradient_checkpointing_func") for layer in _checkpointed(model))
    return any(function is not _recomputed for function in functions)


@contextmanager
def store_last_layer(model: nn.Module) -> Iterator[None]:
    """Makes the last layer store its activations, as each layer does in turn during the backward pass."""
    last_layers = _checkpointed(model)[-1:]
    for layer in last_layers:
        vars(layer)["gradient_checkpointing"] = False
    try:
        yield
    finally:
        for layer in last_layers:
            vars(layer)["gradient_checkpointing"] = True


def _checkpointed(model: nn.Module) -> list[nn.Module]:
    return [part for part in model.modules() if vars(part).get("gradient_checkpointing")]


AttentionInterface.register(ATTENTION, attention)
AttentionMaskInterface.register(ATTENTION, attention_mask)
