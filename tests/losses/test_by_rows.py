"""Losses some rows at a time: the same values and gradients, memory of a part, and when it is done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from contrastive_text.losses import DCL, DCLW, DebiasedNTXent, InfoNCE, Loss, SigLIP, by_rows
from contrastive_text.losses.triples import Triples

EXACT = 1e-10
LOSSES: dict[str, Callable[..., Loss]] = {
    "four directions": lambda **options: InfoNCE(
        0.2,
        directions=["query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc"],
        hard_negative_log_weight=0.7,
        **options,
    ),
    "without queries": lambda **options: InfoNCE(0.2, directions=["query_to_doc", "doc_to_doc"], **options),
    "hardness, two-sided": lambda **options: InfoNCE(
        0.2, "two_sided", in_batch_hardness=3.0, hard_negative_hardness=2.0, **options
    ),
    "DCL": lambda **options: DCL(0.2, **options),
    "DCL of dot products": lambda **options: DCL(0.8, similarity="dot", **options),
    "DCLW of one side": lambda **options: DCLW(0.2, same_side=False, reduction="two_sided", **options),
    "DCLW": lambda **options: DCLW(0.2, **options),
    "debiased": lambda **options: DebiasedNTXent(0.2, **options),
    "SigLIP": lambda **options: SigLIP(0.2, -3.0, **options),
}


def examples(n: int, ids: int | None) -> Triples:
    noise = torch.Generator().manual_seed(3)
    a, p, h = torch.randn(3, n, 4, generator=noise, dtype=torch.float64)
    every = Triples.distinct(a, p, h)
    if ids is None:
        return every
    drawn = torch.randint(ids, (n, 3), generator=noise)
    return replace(every, anchor_ids=drawn[:, 0], positive_ids=drawn[:, 1], negative_ids=drawn[:, 2:])


def made(loss: str, streamed: bool) -> Loss:
    """A loss in float64, its temperature trained."""
    learn = {} if loss == "SigLIP" else {"learn_temperature": True}
    return LOSSES[loss](streamed=streamed, **learn).double()


def values_and_gradients(loss: Loss, every: Triples, start: int, stop: int | None) -> list[Tensor]:
    """Terms of some local examples, and the gradients of their sum, weighed row by row."""
    leaves = every.map(lambda each: each.clone().requires_grad_(each.is_floating_point()))
    local = leaves if (start, stop) == (0, None) else leaves.map(lambda each: each[start:stop])
    terms = loss.compare(loss.comparisons(local, leaves, offset=start))
    (terms * torch.arange(1.0, len(terms) + 1)).sum().backward()
    assert leaves.negative is not None
    learned = [leaves.anchor, leaves.positive, leaves.negative, *loss.parameters()]
    return [terms.detach(), *(torch.zeros_like(each) if each.grad is None else each.grad for each in learned)]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("start", "stop", "ids"), [(0, None, 5), (2, 5, None), (3, 3, None), (0, None, 1)])
def test_some_rows_at_a_time_are_all_at_once(
    loss: str, start: int, stop: int | None, ids: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(by_rows, "_ENTRIES", 40)  # one to three rows of seven to 21 columns
    every = examples(7, ids)
    found = [values_and_gradients(made(loss, streamed), every, start, stop) for streamed in (True, False)]
    for reached, expected in zip(*found, strict=True):
        torch.testing.assert_close(reached, expected, rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize("loss", LOSSES)
def test_nothing_of_the_size_of_the_matrix_is_kept_for_the_gradient(
    loss: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(by_rows, "_ENTRIES", 600)
    every = examples(40, None)
    leaves = every.map(lambda each: each.requires_grad_(each.is_floating_point()))
    largest = {}
    for streamed in (True, False):
        sizes = [0]

        def note(saved: Tensor, sizes: list[int] = sizes) -> Tensor:
            sizes.append(saved.numel())
            return saved

        one = made(loss, streamed)
        with torch.autograd.graph.saved_tensors_hooks(note, lambda saved: saved):
            one.compare(one.comparisons(leaves, leaves)).sum().backward()
        largest[streamed] = max(sizes)
    assert largest[True] < 1000  # columns of four features, or a part
    assert largest[False] >= 40 * 40


@pytest.mark.parametrize(("streamed", "parts"), [(True, 4), (False, 0), (None, 0)])
def test_streamed_does_what_it_says(streamed: bool | None, parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[Any] = []
    checkpoint = by_rows.checkpoint

    def note(*arguments: Any, **options: Any) -> Any:  # Any: torch's
        used.append(arguments)
        return checkpoint(*arguments, **options)

    monkeypatch.setattr(by_rows, "checkpoint", note)
    monkeypatch.setattr(by_rows, "_ENTRIES", 16)
    loss, rows = DCL(streamed=streamed), torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    loss(rows, rows.flip(1))
    assert len(used) == parts
    if streamed is None:
        monkeypatch.setattr(by_rows, "STREAMED_ABOVE", 63)
        loss(rows, rows.flip(1))
        assert len(used) == 4


def test_half_precision_under_autocast_is_compared_in_float32() -> None:
    noise = torch.Generator().manual_seed(9)
    halves = [torch.randn(5, 16, generator=noise).to(torch.bfloat16) for _ in range(3)]
    for make in LOSSES.values():
        loss = make(streamed=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = loss(*halves)
        assert inside.dtype == torch.float32
        assert torch.equal(inside, loss(*(half.float() for half in halves)))
