"""Packed rows: attention runs within each of them, whichever kernel computes it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from architectures import encoder_of
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from contrastive_text.encoders.layouts import natural_positions
from contrastive_text.encoders.packing import Packing, _flash, attention, band, packed, packed_attention

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


def flash_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size: tuple[int, int],
) -> Tensor:
    """``flash_attn_varlen_func`` as it is documented: (T, heads, d), both bounds of the window included."""
    assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32
    lengths = (cu_seqlens_q[1:] - cu_seqlens_q[:-1]).tolist()
    assert torch.equal(cu_seqlens_q, cu_seqlens_k)
    assert max_seqlen_q == max_seqlen_k == max(lengths)
    assert dropout_p == 0.0
    outputs = []
    for i, length in enumerate(lengths):
        part = slice(int(cu_seqlens_q[i]), int(cu_seqlens_q[i + 1]))
        left, right = (length if side < 0 else side for side in window_size)
        places = torch.arange(length)
        ahead = places - places.unsqueeze(1)  # of the key before the query
        seen = (ahead <= right) & (-ahead <= left) & ((ahead <= 0) | (not causal))
        logits = torch.einsum("qhd,khd->hqk", q[part], k[part]) * (softmax_scale or q.shape[-1] ** -0.5)
        weights = logits.masked_fill(~seen, -torch.inf).softmax(dim=-1)
        outputs.append(torch.einsum("hqk,khd->qhd", weights, v[part]))
    return torch.cat(outputs)


def states(tokens: int, key_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    noise = torch.Generator().manual_seed(tokens)
    return tuple(  # type: ignore[return-value]  # three of them
        torch.randn(1, heads, tokens, 8, generator=noise, dtype=torch.float64)
        for heads in (4, key_heads, key_heads)
    )


@pytest.mark.parametrize("key_heads", [4, 2, 1])
@pytest.mark.parametrize("window", [None, 1, 3, 50])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("by", ["runs", "flash"])
def test_packed_attention_is_attention_within_rows(
    by: str, causal: bool, window: int | None, key_heads: int
) -> None:
    lengths = (7, 7, 4, 1, 1, 1, 9)
    query, key, value = states(sum(lengths), key_heads)
    packing = Packing.of(torch.tensor(lengths))
    expected = dense_attention(query, key, value, lengths, causal, window)
    if by == "runs":
        reached = packed_attention(query, key, value, packing, 0.0, 0.5, causal, window)
    else:
        repeats = 4 // key_heads
        key, value = (each.repeat_interleave(repeats, dim=1) for each in (key, value))
        reached = _flash(flash_reference, query, key, value, packing, 0.0, 0.5, causal, window)
    # float64: sums in another order
    torch.testing.assert_close(reached, expected, rtol=0, atol=1e-12)


def test_half_precision_on_a_gpu_goes_through_flash_attention_and_nothing_else_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[tuple[int, ...]] = []

    class OnGPU(Tensor):
        """Says that it is on a GPU."""

        @property
        def is_cuda(self) -> bool:  # type: ignore[override]  # a constant here
            return True

    def flash(q: Tensor, *args: object, **options: object) -> Tensor:  # noqa: ARG001  # FlashAttention's
        calls.append(tuple(q.shape))
        return q

    monkeypatch.setattr("contrastive_text.encoders.packing.flash_attention", lambda: flash)
    packing = Packing.of(torch.tensor([3, 2]))
    for dtype, on_gpu in (
        (torch.bfloat16, True),
        (torch.float16, True),
        (torch.float32, True),
        (torch.bfloat16, False),
    ):
        query, key, value = (state.to(dtype) for state in states(5, 4))
        query = query.as_subclass(OnGPU) if on_gpu else query
        packed_attention(query, key, value, packing)
    assert calls == [(5, 4, 8), (5, 4, 8)]


def test_dropout_of_attention_reaches_packed_rows() -> None:
    query, key, value = states(5, 4)
    packing = Packing.of(torch.tensor([3, 2]))
    torch.manual_seed(0)
    dropped = packed_attention(query, key, value, packing, dropout=0.5)
    assert float((dropped - packed_attention(query, key, value, packing)).abs().max()) > 0.1
    torch.manual_seed(0)
    assert torch.equal(packed_attention(query, key, value, packing, dropout=0.5), dropped)


@pytest.mark.parametrize("length", [1, 4, 9])
def test_a_band_is_what_transformers_masks(length: int) -> None:
    seen = band(length, window=3, causal=True, device=CPU)
    for i in range(length):
        for j in range(length):
            assert bool(seen[i, j]) == (0 <= i - j < 3)
    assert torch.equal(band(length, window=3, causal=False, device=CPU), seen | seen.T)


def test_packing_is_seen_only_within_its_block() -> None:
    layer = encoder_of("bert").model.encoder.layer[0].attention.self
    query, key, value = states(5, 4)
    packing = Packing.of(torch.tensor([3, 2]))
    whole, _ = attention(layer, query, key, value, None)
    with packed(packing):
        rows, _ = attention(layer, query, key, value, None)
    assert torch.equal(attention(layer, query, key, value, None)[0], whole)
    assert float((rows - whole).abs().max()) > 1e-3
    torch.testing.assert_close(rows, packed_attention(query, key, value, packing), rtol=0, atol=0)


@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=20))
def test_a_packing_has_the_runs_of_equal_neighbours(lengths: list[int]) -> None:
    packing = Packing.of(torch.tensor(lengths))
    assert [length for rows, length in packing.runs for _ in range(rows)] == lengths
    assert all(a[1] != b[1] for a, b in zip(packing.runs, packing.runs[1:], strict=False))
    tokens = torch.arange(sum(lengths))
    runs = packing.split(tokens)
    assert [tuple(run.shape) for run in runs] == list(packing.runs)
    assert torch.equal(torch.cat([run.flatten() for run in runs]), tokens)
    across = packing.split(tokens.expand(2, -1), dim=1)
    assert [tuple(run.shape) for run in across] == [(2, *run) for run in packing.runs]
