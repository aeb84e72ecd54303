"""Packed rows: attention runs within each of them, whichever kernel computes it."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from contrastive_text.core.machine import has_amx
from contrastive_text.encoders import block_attention
from contrastive_text.encoders import packing as kernels
from contrastive_text.encoders.packing import Packing, natural_positions, packed_attention

CPU = torch.device("cpu")


def dense_attention(
    query: Tensor, key: Tensor, value: Tensor, lengths: Sequence[int], causal: bool, window: int | None
) -> Tensor:
    """Attention of packed rows by one mask over all tokens, (1, heads, T, d) -> (1, T, heads, d)."""
    rows = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    places = natural_positions(torch.tensor(lengths))
    distance = places.unsqueeze(1) - places
    seen = rows.unsqueeze(1) == rows
    seen &= (distance >= 0) | (not causal)
    seen &= distance.abs() < (window or len(rows) + 1)
    repeats = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)
    logits = (query @ key.transpose(2, 3) * 0.5).masked_fill(~seen, -torch.inf)
    return (logits.softmax(dim=-1) @ value).transpose(1, 2)


def kernel_reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    starts: Sequence[Tensor],
    longest: Sequence[int],
    causal: bool,
    scale: float,
    window: tuple[int, int] = (-1, -1),
) -> Tensor:
    """Attention of ragged rows as torch's kernels are documented: (T, heads, d), bounds of a window included."""
    lengths = [(each[1:] - each[:-1]).tolist() for each in starts]
    assert all(each.dtype == torch.int32 for each in starts)
    assert [max(each) for each in lengths] == list(longest)
    assert query.shape[2] % 8 == 0
    outputs = []
    for row in range(len(lengths[0])):
        q, k, v = (
            states[int(first[row]) : int(first[row + 1])]
            for states, first in ((query, starts[0]), (key, starts[1]), (value, starts[1]))
        )
        left, right = (len(q) + len(k) if side < 0 else side for side in window)
        ahead = torch.arange(len(k)) - torch.arange(len(q)).unsqueeze(1)  # of the key before the query
        seen = (ahead <= right) & (-ahead <= left) & ((ahead <= 0) | (not causal))
        logits = torch.einsum("qhd,khd->hqk", q, k) * scale
        outputs.append(torch.einsum("hqk,khd->qhd", logits.masked_fill(~seen, -torch.inf).softmax(dim=-1), v))
    return torch.cat(outputs)


def flash_reference(
    q: Tensor, k: Tensor, v: Tensor, cum_seq_q: Tensor, cum_seq_k: Tensor, max_q: int, max_k: int,
    dropout_p: float, is_causal: bool, return_debug_mask: bool, *, scale: float,
    window_size_left: int = -1, window_size_right: int = -1,
) -> tuple[Tensor]:  # fmt: skip
    """In the place of ``aten::_flash_attention_forward``."""
    assert (dropout_p, return_debug_mask) == (0.0, False)
    starts, longest = (cum_seq_q, cum_seq_k), (max_q, max_k)
    window = (window_size_left, window_size_right)
    return (kernel_reference(q, k, v, starts, longest, is_causal, scale, window),)


def efficient_reference(
    query: Tensor, key: Tensor, value: Tensor, bias: None, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
    max_seqlen_q: int, max_seqlen_k: int, dropout_p: float, custom_mask_type: int, compute_log_sumexp: bool,
    *, scale: float,
) -> tuple[Tensor]:  # fmt: skip
    """In the place of ``aten::_efficient_attention_forward``."""
    assert (bias, dropout_p, compute_log_sumexp) == (None, 0.0, False)
    starts, longest = (cu_seqlens_q, cu_seqlens_k), (max_seqlen_q, max_seqlen_k)
    causal = {0: False, 1: True}[custom_mask_type]
    found = kernel_reference(query[0], key[0], value[0], starts, longest, causal, scale)
    return (found.unsqueeze(0),)


def states(tokens: int, key_heads: int, width: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    noise = torch.Generator().manual_seed(tokens)
    return tuple(  # type: ignore[return-value]  # three of them
        torch.randn(1, heads, tokens, width, generator=noise, dtype=torch.float64)
        for heads in (4, key_heads, key_heads)
    )


@pytest.mark.parametrize("key_heads", [4, 2, 1])
@pytest.mark.parametrize(
    ("by", "window"),
    [
        (by, window)
        for by in ("runs", "blocks", "flash", "efficient", None)
        for window in (None, 1, 3, 50)
        if by != "efficient" or window not in (1, 3)  # it has no windows, but of all tokens
    ],
)
@pytest.mark.parametrize("causal", [False, True])
def test_packed_attention_is_attention_within_rows(
    by: str | None, causal: bool, window: int | None, key_heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = (7, 7, 4, 1, 1, 1, 9)
    query, key, value = states(sum(lengths), key_heads, width=12)
    packing = Packing.of(torch.tensor(lengths))
    expected = dense_attention(query, key, value, lengths, causal, window)
    if by not in ("runs", "blocks"):
        monkeypatch.setattr(kernels, "_flash", flash_reference)
        monkeypatch.setattr(kernels, "_efficient", efficient_reference)
        monkeypatch.setattr(kernels, "_kernel", lambda *_: by)
        key, value = (each.repeat_interleave(4 // key_heads, dim=1) for each in (key, value))
    if by == "runs":
        monkeypatch.setattr(block_attention, "_LONGEST", 0)
    attend = packed_attention if by in ("runs", "blocks") else kernels.ragged_attention
    reached = attend(query, key, value, packing, 0.0, 0.5, causal, window)
    # float64: sums in another order
    torch.testing.assert_close(reached, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("one_key", [False, True])
@pytest.mark.parametrize(("causal", "window"), [(False, None), (True, None), (False, 3)])
def test_blocks_have_the_gradient_of_attention_with_and_without_dropout(
    causal: bool, window: int | None, one_key: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = torch.tensor([3, 20, 19, 1, 3])
    query, key, value = states(int(lengths.sum()), 2, width=4)
    query = query[:, :2]
    if one_key:
        _, key, value = states(len(lengths), 2, width=4)
    parts = [each.requires_grad_() for each in (query, key, value)]

    def attend(*parts: Tensor, dropout: float) -> Tensor:
        torch.manual_seed(0)
        options = (0.5, causal and not one_key, None if one_key else window)
        return packed_attention(*parts, Packing.of(lengths), dropout, *options)

    for dropout in (0.0, 0.4):
        torch.autograd.gradcheck(lambda *parts, p=dropout: attend(*parts, dropout=p), parts, fast_mode=True)
    in_blocks = attend(*parts, dropout=0.0)
    monkeypatch.setattr(block_attention, "_LONGEST", 0)
    # float64: sums in another order
    torch.testing.assert_close(attend(*parts, dropout=0.0), in_blocks, rtol=0, atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("amx", [False, True])
def test_long_rows_in_bfloat16_are_in_blocks_outside_training_without_amx(
    amx: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if torch.cpu.get_capabilities().get("amx_bf16") and not has_amx():  # a fault of torch 2.13
        pytest.skip("with AMX torch's kernel fails if ATEN_CPU_CAPABILITY is below avx512")
    monkeypatch.setattr(block_attention, "has_amx", lambda: amx)
    lengths = torch.tensor([130, 160, 40])
    parts = [each.to(torch.bfloat16) for each in states(int(lengths.sum()), 4)]
    exact = packed_attention(*(each.double() for each in parts), Packing.of(lengths))
    in_training = packed_attention(*parts, Packing.of(lengths), training=True)
    calls: list[torch.dtype] = []

    def in_blocks(query: Tensor, *rest: Any) -> Tensor:
        calls.append(query.dtype)
        return block_attention.attend_in_blocks(query, *rest)

    monkeypatch.setattr(kernels, "attend_in_blocks", in_blocks)
    packed_attention(*parts, Packing.of(lengths), training=True)
    assert calls == []
    outside = packed_attention(*parts, Packing.of(lengths), training=False)
    assert calls == [torch.bfloat16] * (not amx)
    # bfloat16 has 8 bits: a score of up to 8 is rounded by up to 2**-6, and its weight by as much of itself.
    for attended in (in_training, outside):
        torch.testing.assert_close(attended.double(), exact, rtol=0, atol=2**-5)


def test_blocks_drop_weights_and_scale_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    parts, packing = states(6, 4), Packing.of(torch.tensor([4, 2]))
    monkeypatch.setattr(
        block_attention, "dropout_factors", lambda count, p, dtype: torch.full((count,), 1 / (1 - p), dtype=dtype)
    )
    kept = packed_attention(*parts, packing, dropout=0.2)
    torch.testing.assert_close(kept, packed_attention(*parts, packing) / 0.8, rtol=0, atol=1e-12)


@given(lengths=st.lists(st.integers(0, 40), min_size=1, max_size=30).filter(any))
def test_blocks_hold_each_token_once_and_little_padding(lengths: list[int]) -> None:
    heads, tensor = 3, torch.tensor(lengths)
    found = block_attention.rows_in_blocks(tensor, tensor, heads, False, None, torch.float32)
    values = torch.randn(sum(lengths), heads, 2)
    for side in (found.queries, found.keys):
        assert torch.equal(side.give_back(side.take(values), heads), values)
        assert len(set(side.places.tolist())) == sum(lengths) * heads
    places = sum(block.rows * block.queries for block in found.blocks)
    assert places <= sum(lengths) * heads / 0.7


@pytest.mark.parametrize("kernel", ["flash", "efficient", None])
def test_every_kernel_takes_one_key_a_row(kernel: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_flash", flash_reference)
    monkeypatch.setattr(kernels, "_efficient", efficient_reference)
    monkeypatch.setattr(kernels, "_kernel", lambda *_: kernel)
    query, _, _ = states(6, 4)
    _, key, value = states(3, 4)
    packing = Packing.of(torch.tensor([3, 2, 1]))
    reached = kernels.ragged_attention(query, key, value, packing)
    torch.testing.assert_close(reached, packed_attention(query, key, value, packing), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("kernel", "dtype"), [("flash", torch.bfloat16), ("efficient", torch.float32)])
@pytest.mark.parametrize("causal", [False, True])
def test_kernels_of_torch_take_the_arguments_and_have_a_gradient(
    kernel: str, dtype: torch.dtype, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "_kernel", lambda *_: kernel)
    window = 2 if kernel == "flash" else None
    parts = [each.to("meta", dtype).requires_grad_() for each in states(6, 4, width=12)]
    reached = kernels.ragged_attention(*parts, Packing.of(torch.tensor([3, 2, 1])), 0.1, None, causal, window)
    assert (reached.shape, reached.dtype) == ((1, 6, 4, 12), dtype)
    assert reached.requires_grad
    if kernel == "flash":  # the other's backward pass can't be run without values
        for gradient, part in zip(torch.autograd.grad(reached.sum(), parts), parts, strict=True):
            assert gradient.shape == part.shape


@pytest.mark.parametrize(
    ("dtype", "window", "capability", "expected"),
    [
        (torch.bfloat16, None, (8, 0), "flash"),
        (torch.float16, 3, (9, 0), "flash"),
        (torch.float16, None, (7, 5), "efficient"),
        (torch.float16, 3, (7, 5), None),
        (torch.float32, None, (9, 0), "efficient"),
        (torch.float32, 3, (9, 0), None),
        (torch.float64, None, (9, 0), None),
    ],
)
def test_a_gpu_takes_packed_rows_of_every_precision_in_one_launch(
    dtype: torch.dtype,
    window: int | None,
    capability: tuple[int, int],
    expected: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
    on_gpu = SimpleNamespace(dtype=dtype, device=torch.device("cuda", 0))
    assert kernels._kernel(on_gpu, window) == expected  # type: ignore[arg-type]  # a tensor, as far as it is read
    assert kernels._kernel(torch.zeros(1, dtype=dtype), window) is None


def test_dropout_of_attention_reaches_packed_rows() -> None:
    query, key, value = states(5, 4)
    packing = Packing.of(torch.tensor([3, 2]))
    torch.manual_seed(0)
    dropped = packed_attention(query, key, value, packing, dropout=0.5)
    assert float((dropped - packed_attention(query, key, value, packing)).abs().max()) > 0.1
    torch.manual_seed(0)
    assert torch.equal(packed_attention(query, key, value, packing, dropout=0.5), dropped)


@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=20))
def test_a_packing_has_the_runs_of_equal_neighbors(lengths: list[int]) -> None:
    packing = Packing.of(torch.tensor(lengths))
    assert [length for rows, length in packing.runs for _ in range(rows)] == lengths
    assert all(a[1] != b[1] for a, b in zip(packing.runs, packing.runs[1:], strict=False))
    tokens = torch.arange(sum(lengths))
    runs = packing.split(tokens)
    assert [tuple(run.shape) for run in runs] == list(packing.runs)
    assert torch.equal(torch.cat([run.flatten() for run in runs]), tokens)
    across = packing.split(tokens.expand(2, -1), dim=1)
    assert [tuple(run.shape) for run in across] == [(2, *run) for run in packing.runs]
