"""Parts of a batch that the backward pass computes anew: the same masks, draws and precision."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from covering import rest_slow
from passes import PROMISE, TRIPLE, Along, all_gradients, masked, module_of, texts
from torch import Tensor, nn

from contrastive_text.core.batch import Batch
from contrastive_text.core.random import RowRandom
from contrastive_text.encoders.packing import Layout
from contrastive_text.heads import Head, MLPHead
from contrastive_text.objectives import Contrastive, MaskedLM, Objective
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.views import (
    Adversarial,
    EmbeddingView,
    FeatureCutoff,
    FixedDropout,
    GaussianNoise,
    MaskTokens,
    SpanCutoff,
    TokenCutoff,
    View,
)


def chunked(
    views: dict[str, list[View]], dropout: float = 0.3, layout: Layout = "packed", **parts: Any
) -> ContrastiveModule:
    """A module whose batches of 24 examples go through the network in five parts or more."""
    return module_of(views, dropout=dropout, layout=layout, chunk_tokens=60, **parts)


def kept(encode: Callable[[], object], **options: bool) -> object:  # noqa: ARG001  # checkpoint's
    """In the place of ``checkpoint``: activations stay where they are."""
    return encode()


class DrawsFromTorch(EmbeddingView):
    """Ignores the generator that it is handed: torch's has to draw the same anew."""

    def __call__(self, embeddings: Tensor, mask: Tensor, rng: RowRandom) -> Tensor:  # noqa: ARG002  # the base's signature
        return embeddings + torch.randn_like(embeddings)


CHUNKED_VIEWS: dict[str, dict[str, list[View]]] = {
    "no views": {"original": [MaskTokens()]},
    "embeddings": {
        "anchor": [TokenCutoff(rate=0.4), GaussianNoise(0.1), DrawsFromTorch()], "original": [MaskTokens()],
    },
    "a gradient": {"positive": [SpanCutoff(), Along(objective="c")], "original": [MaskTokens()]},
    "a gradient, same masks": {"original": [MaskTokens(), Adversarial(objective="mlm", same_dropout=True)]},
    "fixed masks": {"positive": [FixedDropout()], "original": [MaskTokens()]},
}  # fmt: skip


@pytest.mark.parametrize(
    ("views", "layout"), rest_slow(zip(CHUNKED_VIEWS, itertools.cycle(["packed", "bucketed", "padded"])), quick=3)
)
def test_parts_are_computed_anew_with_the_same_masks_and_draws(
    views: str, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = masked(texts(24, slots=TRIPLE, equal=True))
    objectives: dict[str, Objective] = {"c": Contrastive(), "mlm": MaskedLM(block=5)}
    module = chunked(CHUNKED_VIEWS[views], layout=layout, objectives=objectives)
    assert len(module.embedder.groups(batch)) >= 5
    calls: list[int] = []
    module.encoder.model.register_forward_pre_hook(
        lambda model, args, inputs: calls.append(1) if "input_ids" in inputs else None,  # noqa: ARG005  # torch's signature
        with_kwargs=True,
    )
    anew = all_gradients(module, batch, names=("c", "mlm"))
    twice = len(calls)
    monkeypatch.setattr("contrastive_text.training.forward_pass.checkpoint", kept)
    expected = all_gradients(module, batch, names=("c", "mlm"))
    once = len(calls) - twice
    # The last part of each pass is kept: the backward pass begins with it.
    assert twice == 2 * once - (2 if "a gradient" in views else 1)
    assert anew.keys() == expected.keys()
    # Bit for bit: the same operations on the same numbers.
    assert all(torch.equal(anew[name], value) for name, value in expected.items())
    other = all_gradients(module, batch.replace(seed=1), names=("c", "mlm"))
    assert any(not torch.equal(other[name], value) for name, value in expected.items())


def test_a_second_batch_before_the_backward_pass_of_the_first_changes_no_view_of_it() -> None:
    # A hook that holds the views of the last call alters the first batch by the second's, silently.
    module = chunked({"anchor": [FeatureCutoff(rate=0.5)], "positive": [Along()]})
    batches = [texts(24), texts(23).replace(seed=5)]

    def loss(batch: Batch) -> Tensor:
        return module.objective_value(module.encode(batch), "contrastive")[0]

    each = [torch.autograd.grad(loss(batch), list(module.parameters())) for batch in batches]
    first, second = (loss(batch) for batch in batches)
    together = torch.autograd.grad(first + second, list(module.parameters()))
    for reached, one, other in zip(together, *each, strict=True):
        torch.testing.assert_close(reached, one + other, rtol=0, atol=1e-12)


class Normalised(Head):
    """Batch normalisation, whose statistics are those of what it is given."""

    def __init__(self) -> None:
        super().__init__(train_only=False)

    def layers(self, features: int) -> nn.Sequential:
        return nn.Sequential(nn.BatchNorm1d(features))


def test_a_head_that_is_kept_sees_the_whole_batch_and_sees_it_once() -> None:
    # Within the parts its statistics would be a part's, and be updated twice.
    whole, parts = (module_of({}, layout="packed", chunk_tokens=bound, head=Normalised()) for bound in (None, 60))
    expected, reached = (all_gradients(module, texts(24), names=("contrastive",)) for module in (whole, parts))
    scale = max(float(value.abs().max()) for value in expected.values())
    for name, value in expected.items():
        torch.testing.assert_close(reached[name], value, rtol=0, atol=PROMISE * scale, msg=name)
    for module in (whole, parts):
        assert int(module.state_dict()["head.network.0.num_batches_tracked"]) == 1


def test_parts_are_computed_anew_in_the_precision_of_the_forward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = texts(24)
    module = chunked({}).float()

    def gradient() -> dict[str, Tensor]:
        module.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = module.objective_value(module.encode(batch), "contrastive")[0]
        loss.backward()  # outside, as Lightning does
        return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}

    anew = gradient()
    monkeypatch.setattr("contrastive_text.training.forward_pass.checkpoint", kept)
    expected = gradient()
    assert all(torch.equal(anew[name], value) for name, value in expected.items())
    assert anew.keys() == expected.keys()


def test_parts_that_train_nothing_go_before_a_head_that_learns() -> None:
    module = chunked({}, dropout=0.0, head=MLPHead(train_only=False))
    module.encoder.requires_grad_(False)
    gradients = all_gradients(module, texts(24), names=("contrastive",))
    assert gradients
    assert all(name.startswith("head.") for name in gradients)
    plain = module_of({}, layout="packed", head=MLPHead(train_only=False))
    plain.load_state_dict(module.state_dict())
    expected = all_gradients(plain, texts(24), names=("contrastive",))
    for name, value in gradients.items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-12)


@torch.no_grad()
def test_without_a_gradient_nothing_is_computed_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("contrastive_text.training.forward_pass.checkpoint", None)  # no call of it would do
    parts, whole = chunked({}, dropout=0.0), module_of({}, layout="packed")
    for read in (lambda module: module.encode(texts(24)).embeddings, lambda module: module(texts(24))):
        torch.testing.assert_close(read(parts), read(whole), rtol=0, atol=1e-12)
