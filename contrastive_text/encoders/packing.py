"""Packed rows: one row of all tokens, in which attention runs within each text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import groupby
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from contrastive_text.core.errors import InvalidTypeError
from contrastive_text.encoders.dropout import drop
from contrastive_text.encoders.ragged_attention import ragged_attention

ATTENTION = "contrastive_text"
"""Name under which Transformers finds ``attention``."""

NO_MASK = (1, 1, 1, 1)
"""Shape of a mask that Transformers hands on to every layer as it is, and that packed rows don't read."""

_KNOWN = ("is_causal", "sliding_window", "position_ids", "encoder_hidden_states")
"""Options of an attention layer that are read, or that are in its queries and keys already."""

_packing: ContextVar[Packing | None] = ContextVar("packing", default=None)
"""What is packed in the pass that is running."""


class Packing(NamedTuple):
    """Where rows begin in one row of all tokens.

    Args:
        runs: Number of rows and their length, for each stretch of neighbours of equal length.
        lengths: Tokens of each row, (S,), on the host.
    """

    runs: tuple[tuple[int, int], ...]
    lengths: Tensor

    @classmethod
    def of(cls, lengths: Tensor) -> Packing:
        """Returns the packing of rows of these lengths, in their order.

        Example:
            >>> Packing.of(torch.tensor([3, 3, 1])).runs
            ((2, 3), (1, 1))
        """
        runs = tuple((len(list(rows)), length) for length, rows in groupby(lengths.tolist()) if length)
        return cls(runs, lengths)

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        return max((length for _, length in self.runs), default=0)

    def of_keys(self, query: Tensor, key: Tensor) -> Packing:
        """Returns the packing of keys: that of the queries, or, where there are fewer, one key for each row."""
        if key.shape[2] == query.shape[2]:
            return self
        return Packing(tuple((rows, 1) for rows, _ in self.runs), torch.ones_like(self.lengths))

    def split(self, vectors: Tensor, dim: int = 0) -> list[Tensor]:
        """Returns each run's tokens, row by row: (..., T, ...) -> (..., rows, length, ...) per run."""
        parts = torch.split(vectors, [rows * length for rows, length in self.runs], dim)
        return [torch.unflatten(part, dim, run) for part, run in zip(parts, self.runs, strict=True)]


@contextmanager
def packed(packing: Packing | None) -> Iterator[None]:
    """Makes ``attention`` take what passes through a network for packed rows; for padded ones with None."""
    token = _packing.set(packing)
    try:
        yield
    finally:
        _packing.reset(token)


def in_packing_of_now(layer: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Returns a function that takes rows as they are packed now, whenever it is called."""
    packing = _packing.get()

    def run(*inputs: Tensor) -> Tensor:
        with packed(packing):
            return layer(*inputs)

    return run


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,  # Any: what else an architecture hands to its attention
) -> tuple[Tensor, None]:
    """Transformers' attention by torch's kernels, or, within ``packed``, ``packed_attention``.

    Args:
        module: The attention layer.
        query: (S, heads, L, head size).
        key: (S, key heads, L, head size).
        value: (S, key heads, L, head size).
        attention_mask: From ``attention_mask``.
        dropout: Probability that an attention weight is dropped.
        scaling: Factor of the products; None for ``1 / sqrt(head size)``.
        options: ``is_causal`` overrides the layer's own, and ``sliding_window`` is read; of others see Raises.

    Raises:
        TypeError: For packed rows: an option that would change the values, such as Gemma 2's ``softcap``.

    Returns:
        (S, L, heads, head size), and no weights.
    """
    packing = _packing.get()
    if packing is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
    # A number or tensor that isn't known changes the scores; flags ask for outputs beside them.
    for name, value_of in options.items():
        if name not in _KNOWN and isinstance(value_of, Tensor | float | int) and not isinstance(value_of, bool):
            raise InvalidTypeError(f"attention: expected options that packed rows take, got {name}")
    given, window = options.get("is_causal"), options.get("sliding_window")
    causal = bool(vars(module).get("is_causal", False) if given is None else given)
    return packed_attention(query, key, value, packing, dropout, scaling, causal, window), None


def attention_mask(*args: Any, **options: Any) -> Tensor | None:  # Any: Transformers' arguments, handed on
    """Returns the mask of torch's kernels; none for packed rows, which see no padding.

    Transformers leaves a mask out that hides nothing, for which it reads it: not on a GPU.
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
) -> Tensor:
    """Attention of packed rows, each among its own tokens.

    On a CPU runs of equal length are dense, so that no mask is needed; elsewhere see ``ragged_attention``.

    Args:
        query: (1, heads, T, head size).
        key: (1, key heads, T, head size); of cross-attention (1, key heads, S, head size), one vector a row.
        value: As ``key``.
        packing: Where rows begin.
        dropout: Probability that an attention weight is dropped.
        scaling: Factor of the products; None for ``1 / sqrt(head size)``.
        causal: Whether a token sees no later one.
        sliding_window: A token sees those nearer than this; None for all.

    Returns:
        (1, T, heads, head size).
    """
    if key.shape[1] != query.shape[1]:
        repeats = query.shape[1] // key.shape[1]
        key, value = (states.repeat_interleave(repeats, dim=1) for states in (key, value))
    if query.device.type != "cpu":
        return ragged_attention(query, key, value, packing, dropout, scaling, causal, sliding_window)
    attend = _attend_dropping if dropout else F.scaled_dot_product_attention
    outputs = []
    of_keys = packing.of_keys(query, key)
    each = ((query, packing), (key, of_keys), (value, of_keys))
    for q, k, v in zip(*(rows.split(states[0], dim=1) for states, rows in each), strict=True):
        rows, length = q.shape[1:3]
        windowed = sliding_window is not None and length > sliding_window
        output = attend(
            q.transpose(0, 1),
            k.transpose(0, 1),
            v.transpose(0, 1),
            attn_mask=band(length, sliding_window or length, causal, query.device) if windowed else None,
            dropout_p=dropout,
            is_causal=causal and not windowed,
            scale=scaling,
        )
        outputs.append(output.transpose(1, 2).reshape(rows * length, *output.shape[1::2]))
    return torch.cat(outputs).unsqueeze(0)


def _attend_dropping(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> Tensor:
    """As torch's function, which on a CPU has no kernel with dropout: its parts, in fewer steps than torch."""
    seen = band(query.shape[2], query.shape[2], causal=True, device=query.device) if is_causal else attn_mask
    factor = query.shape[3] ** -0.5 if scale is None else scale
    q, k, v = (states.flatten(0, 1) for states in (query, key, value))
    scores = torch.baddbmm(q.new_empty(1, 1, 1), q, k.transpose(1, 2), beta=0, alpha=factor)
    if seen is not None:
        scores = scores.masked_fill(~seen, -torch.inf)
    return torch.bmm(drop(scores.softmax(dim=-1), dropout_p), v).view_as(query)


def band(length: int, window: int, causal: bool, device: torch.device) -> Tensor:
    """Returns True where a token sees another: nearer than the window, and not later if causal, (L, L).

    Example:
        >>> band(3, window=2, causal=True, device=torch.device("cpu")).int().tolist()
        [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """
    places = torch.arange(length, device=device)
    distance = places.unsqueeze(1) - places
    return (distance.abs() < window) & (distance >= 0) if causal else distance.abs() < window


AttentionInterface.register(ATTENTION, attention)
AttentionMaskInterface.register(ATTENTION, attention_mask)
