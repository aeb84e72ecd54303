"""Attention of packed rows on a CPU: a few blocks of rows of similar length.

A block is padded to its longest row. A batch of 128 sentences has some 20 runs of rows of equal length, and 6
blocks. Two costs exceed those of the products, which are small: torch's softmax of short rows, and autograd's
bookkeeping of many operations. Blocks have few and long softmaxes, and their backward pass is written out.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from contrastive_text.core.machine import has_amx
from contrastive_text.core.random import dropout_factors

_LONGEST = 128
"""Longest row for which blocks are used without dropout.

Torch's kernel, which is used for longer rows, takes two to three times as long for short rows. It keeps no
scores, whose memory grows with the square of the length.
"""
_LONGEST_BFLOAT16 = 512
"""The same in bfloat16 outside training, where no scores are kept, on a processor without AMX.

There torch's kernel takes 1.6 to 1.9 times as long for rows of 129 to 512 tokens. With AMX it is faster: long
texts are encoded 1.3 times as fast. In training it is always used, as the passes of a step in chunks, with and
without gradients, have one kernel.
"""
_FEW = 64
"""Number of tokens in all up to which blocks take longer outside training than torch's kernel."""
_SIMILAR = 0.7
"""Least length of a row of a block, as a share of the block's longest row."""

_MIN_KEYS = 16
"""Least number of keys of a block. For fewer float32 values torch's softmax takes ten times as long."""

_VECTOR = 32
"""Number of bfloat16 values of a processor's vector."""

_SCORES = 2**18
"""Largest number of scores of a block of several rows, so that they stay in the processor's cache."""


class Block(NamedTuple):
    """Rows of similar length, each once for every head.

    Args:
        rows: Number of rows times heads.
        queries: Number of queries of a row, with padding.
        keys: Number of keys of a row, with padding.
        query_places: Places of the block's queries among those of all blocks.
        key_places: Places of the block's keys.
        bias: Bias of the scores, (rows, 1 or queries, keys): 0, or the lowest number where a query must not
            attend. None if all queries attend to all keys.
    """

    rows: int
    queries: int
    keys: int
    query_places: slice
    key_places: slice
    bias: Tensor | None

    def of_queries(self, states: Tensor) -> Tensor:
        """Returns the block's part of what all queries have, (rows, queries, head size)."""
        return states[self.query_places].view(self.rows, self.queries, -1)

    def of_keys(self, states: Tensor) -> Tensor:
        """Returns the block's part of what all keys have, (rows, keys, head size)."""
        return states[self.key_places].view(self.rows, self.keys, -1)


class Side(NamedTuple):
    """Queries or keys in the order of the blocks.

    Args:
        numbers: Number of the token times heads, plus the head, for each place of the blocks; 0 for padding.
        places: For each head of each token its place in the blocks.
    """

    numbers: Tensor
    places: Tensor

    def take(self, states: Tensor) -> Tensor:
        """Orders states by blocks, (T, heads, head size) -> (places, head size)."""
        return states.reshape(-1, states.shape[2]).index_select(0, self.numbers)

    def give_back(self, states: Tensor, heads: int) -> Tensor:
        """Orders states by tokens, (places, head size) -> (T, heads, head size)."""
        return states.index_select(0, self.places).view(-1, heads, states.shape[1])


class Blocks(NamedTuple):
    """Blocks of packed rows, with the order of queries and keys."""

    blocks: list[Block]
    queries: Side
    keys: Side


def uses_blocks(longest: int, states: Tensor, dropout: float, training: bool) -> bool:
    """Returns whether the attention of rows is computed in blocks.

    Args:
        longest: Length of the longest row.
        states: The queries, (1, heads, T, head size).
        dropout: Probability that an attention weight is dropped; torch's kernel has no dropout on a CPU.
        training: Whether the layer is in training.

    Example:
        >>> states = torch.ones(1, 2, 300, 4)
        >>> uses_blocks(200, states, dropout=0.1, training=True)
        True
        >>> uses_blocks(200, states, dropout=0.0, training=False)
        False
    """
    if dropout:
        return True
    if training or torch.is_grad_enabled():
        return longest <= _LONGEST
    is_slow = states.dtype == torch.bfloat16 and not has_amx()
    return states.shape[2] > _FEW and longest <= (_LONGEST_BFLOAT16 if is_slow else _LONGEST)


def rows_in_blocks(
    lengths: Tensor, key_lengths: Tensor, heads: int, causal: bool, window: int | None, dtype: torch.dtype
) -> Blocks:
    """Computes the blocks of packed rows.

    Args:
        lengths: Number of queries of each row, (S,).
        key_lengths: Number of keys of each row, (S,).
        heads: Number of heads.
        causal: Whether tokens attend only to earlier tokens and themselves.
        window: Distance below which tokens attend to each other; None for all tokens.
        dtype: Type of the scores.

    Example:
        >>> lengths = torch.tensor([2, 20, 18])
        >>> found = rows_in_blocks(lengths, lengths, heads=1, causal=False, window=None, dtype=torch.float32)
        >>> [(block.rows, block.queries, block.keys) for block in found.blocks]
        [(2, 20, 20), (1, 2, 16)]
    """
    order = lengths.argsort(descending=True, stable=True)
    ordered, firsts = lengths[order].tolist(), [0]
    for number, length in enumerate(ordered):
        count, longest = number - firsts[-1], ordered[firsts[-1]]
        if count and (length < _SIMILAR * longest or (count + 1) * heads * longest**2 > _SCORES):
            firsts.append(number)
    blocks: list[Block] = []
    sides: tuple[list[Tensor], list[Tensor]] = ([], [])  # each (rows, heads, longest): numbers, -1 for padding
    for rows in order.tensor_split(firsts[1:]):
        if not int(lengths[rows[0]]):
            continue
        begins = [sum(part.numel() for part in side) for side in sides]
        for side, each, least in zip(sides, (lengths, key_lengths), (1, _MIN_KEYS), strict=True):
            places = torch.arange(max(int(each[rows].max()), least))
            tokens = (each.cumsum(0) - each)[rows].unsqueeze(1) + places
            numbers = tokens.unsqueeze(1) * heads + torch.arange(heads).unsqueeze(1)
            side.append(numbers.masked_fill((places >= each[rows].unsqueeze(1)).unsqueeze(1), -1))
        (queries, keys), is_visible = (side[-1].shape[2] for side in sides), (sides[1][-1] >= 0).unsqueeze(2)
        if causal or window is not None:
            is_visible = is_visible & band(keys, window or keys, causal, lengths.device)[:queries]
        # Not -inf: the weights of padding that sees no key would be NaN.
        hidden = torch.zeros(is_visible.shape, dtype=dtype).masked_fill(~is_visible, torch.finfo(dtype).min)
        bias = None if is_visible.all() else hidden.flatten(0, 1)
        ends = [begin + side[-1].numel() for begin, side in zip(begins, sides, strict=True)]
        of_queries, of_keys = map(slice, begins, ends)
        blocks.append(Block(len(rows) * heads, queries, keys, of_queries, of_keys, bias))
    return Blocks(blocks, *(_side(torch.cat([part.flatten() for part in side])) for side in sides))


def band(length: int, window: int, causal: bool, device: torch.device) -> Tensor:
    """Returns True where a token attends to another: nearer than the window, and not later if causal, (L, L).

    Example:
        >>> band(3, window=2, causal=True, device=torch.device("cpu")).int().tolist()
        [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """
    positions = torch.arange(length, device=device)
    distance = positions.unsqueeze(1) - positions
    return (distance.abs() < window) & (distance >= 0) if causal else distance.abs() < window


def _side(numbers: Tensor) -> Side:
    is_token = numbers >= 0
    places = torch.empty(int(is_token.sum()), dtype=torch.long)
    places[numbers[is_token]] = is_token.nonzero().flatten()
    return Side(numbers.clamp_min(0), places)


def attend_in_blocks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: tuple[Tensor, Tensor],
    known: dict[tuple[object, ...], Blocks],
    dropout: float,
    scaling: float | None,
    causal: bool,
    window: int | None,
) -> Tensor:
    """Returns the attention of packed rows on a CPU, limited to the tokens of each row.

    The arguments are those of ``packing.packed_attention``, where keys have as many heads as queries, except:

    Args:
        lengths: Number of queries and number of keys of each row, (S,) each.
        known: Blocks of the same rows by their setting; new blocks are added.
    """
    states = [each[0].transpose(0, 1) for each in (query, key, value)]
    if torch.is_autocast_enabled("cpu"):
        states = [each.to(torch.get_autocast_dtype("cpu")) for each in states]
    heads, dtype = query.shape[1], states[0].dtype
    setting = (heads, causal, window, dtype, key.shape[2] == query.shape[2])
    if setting not in known:
        known[setting] = rows_in_blocks(*lengths, heads, causal, window, dtype)
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    output: Tensor = _BlockAttention.apply(*states, known[setting], dropout, scale)  # type: ignore[no-untyped-call]  # torch's
    return output.unsqueeze(0)


class _BlockAttention(torch.autograd.Function):
    """Attention with dropout; queries, keys and values, (T, heads, head size) -> (T, heads, head size).

    It has no second derivative.
    """

    @staticmethod
    def forward(
        ctx: Any,  # Any: torch's context
        query: Tensor,
        key: Tensor,
        value: Tensor,
        blocks: Blocks,
        dropout: float,
        scale: float,
    ) -> Tensor:
        """Computes the attention block by block."""
        q, k, v = blocks.queries.take(query), blocks.keys.take(key), blocks.keys.take(value)
        output, kept, nothing = torch.empty_like(q), [], q.new_empty(1, 1, 1)
        for block in blocks.blocks:
            bias, beta = (nothing, 0) if block.bias is None else (block.bias, 1)
            keys = block.of_keys(k).transpose(1, 2)
            scores = torch.baddbmm(bias, block.of_queries(q), keys, beta=beta, alpha=scale)
            weights = scores.softmax(dim=-1, dtype=_softmax_type(scores)).to(q.dtype)
            factors = None
            if dropout:
                factors = dropout_factors(weights.numel(), dropout, q.dtype).view_as(weights)
            torch.bmm(_product(weights, factors), block.of_keys(v), out=block.of_queries(output))
            if any(ctx.needs_input_grad):
                kept += [weights, factors]
        ctx.save_for_backward(q, k, v, *kept)
        ctx.blocks, ctx.scale = blocks, scale
        return blocks.queries.give_back(output, query.shape[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # Any: torch's context
        """Computes the gradients of queries, keys and values."""
        q, k, v, *kept = ctx.saved_tensors
        blocks, heads = ctx.blocks, gradient.shape[1]
        of_output = torch.zeros_like(q)
        of_output.index_copy_(0, blocks.queries.places, gradient.reshape(-1, gradient.shape[2]))
        of_q, of_k, of_v = (torch.empty_like(states) for states in (q, k, v))
        for block, weights, factors in zip(blocks.blocks, kept[::2], kept[1::2], strict=True):
            own = block.of_queries(of_output)
            torch.bmm(_product(weights, factors).transpose(1, 2), own, out=block.of_keys(of_v))
            of_weights = _product(torch.bmm(own, block.of_keys(v).transpose(1, 2)), factors)
            wide = (of_weights.to(_softmax_type(weights)), weights.to(_softmax_type(weights)))
            of_scores = torch._softmax_backward_data(*wide, -1, wide[0].dtype).mul_(ctx.scale).to(q.dtype)
            torch.bmm(of_scores, block.of_keys(k), out=block.of_queries(of_q))
            torch.bmm(of_scores.transpose(1, 2), block.of_queries(q), out=block.of_keys(of_k))
        of_query = blocks.queries.give_back(of_q, heads)
        return of_query, blocks.keys.give_back(of_k, heads), blocks.keys.give_back(of_v, heads), None, None, None


def _product(values: Tensor, factors: Tensor | None) -> Tensor:
    """Returns the product of values and factors of dropout; the values without dropout."""
    return values if factors is None else values * factors


def _softmax_type(scores: Tensor) -> torch.dtype:
    """Returns the type in which a softmax is fastest, and which values of a narrow type are converted to.

    In both types the softmax is computed in float32. Torch's softmax in bfloat16 takes up to six times as long
    for rows that are no multiple of a vector of the processor.
    """
    is_multiple = scores.shape[-1] % _VECTOR == 0
    return scores.dtype if is_multiple else torch.promote_types(scores.dtype, torch.float32)
