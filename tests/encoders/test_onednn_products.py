"""Linear layers by oneDNN: values and gradients of torch, and who computes which layer."""

from __future__ import annotations

from threading import Thread

import pytest
import torch
from architectures import NAMES, ROWS, encoder_of, ragged
from torch import nn
from torch.backends import mkldnn

from contrastive_text.encoders import onednn_products as room
from contrastive_text.encoders.onednn_products import onednn_products
from contrastive_text.encoders.prepacked import prepacked


@pytest.fixture(autouse=True)
def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses oneDNN on this processor too, whatever it is, and for few rows."""
    monkeypatch.setattr(room, "has_fast_layers", mkldnn.is_available)
    monkeypatch.setattr("contrastive_text.encoders.prepacked.has_fast_packed_layers", mkldnn.is_available)
    monkeypatch.setattr(room, "_ROWS", 1)


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """Lists the sizes of the values that oneDNN has multiplied."""
    sizes: list[torch.Size] = []
    product = room._product

    def counted(values: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        sizes.append(values.shape)
        return product(values, *rest)

    monkeypatch.setattr(room, "_product", counted)
    return sizes


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "bert" else pytest.mark.slow) for name in NAMES]
)
def test_every_architecture_has_the_values_and_the_gradient_of_torch(
    name: str, products: list[torch.Size], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, batch = encoder_of(name).float(), ragged(*ROWS)

    def values_and_gradients() -> list[torch.Tensor]:
        encoder.zero_grad()
        vectors = encoder.token_vectors(batch)
        vectors.square().mean().backward()
        return [vectors.detach(), *(weight.grad for weight in encoder.parameters() if weight.grad is not None)]

    found, count = values_and_gradients(), len(products)
    monkeypatch.setattr(room, "has_fast_layers", lambda: False)
    expected = values_and_gradients()
    assert len(products) == count > 0
    for ours, theirs in zip(found, expected, strict=True):
        # float32, summed in another order
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4 * float(theirs.abs().max()) + 1e-7)


@pytest.mark.parametrize("has_bias", [False, True])
def test_a_layer_has_only_the_gradients_that_are_asked_for(has_bias: bool, products: list[torch.Size]) -> None:
    layer, values = nn.Linear(4, 3, bias=has_bias), torch.randn(2, 5, 4, requires_grad=True)
    asked = [values, *layer.parameters()]
    with onednn_products(layer, values):
        output = layer(values)
    found = torch.autograd.grad(output.square().sum(), asked)
    assert products == [(2, 5, 4), (2, 5, 3), (3, 10)]
    for ours, theirs in zip(found, torch.autograd.grad(layer(values).square().sum(), asked), strict=True):
        torch.testing.assert_close(ours, theirs)
    del products[:]
    layer.requires_grad_(False)
    with onednn_products(layer, values):
        layer(values).sum().backward()
    assert products == [(2, 5, 4), (2, 5, 3)]


def test_a_second_derivative_is_refused() -> None:
    layer, values = nn.Linear(4, 3), torch.randn(5, 4, requires_grad=True)
    with onednn_products(layer, values):
        output = layer(values)
    (gradient,) = torch.autograd.grad(output.square().sum(), values, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_layers_that_are_left_to_torch(products: list[torch.Size], monkeypatch: pytest.MonkeyPatch) -> None:
    layer, values = nn.Linear(4, 3), torch.randn(5, 4)

    def call(layer: nn.Module, values: torch.Tensor) -> None:
        with onednn_products(layer, values):
            layer(values)

    call(layer, values)
    assert len(products) == 1
    call(nn.Linear(4, 3).double(), values.double())
    call(nn.Linear(4, 3).bfloat16(), values.bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        call(layer, values)
    with torch.no_grad(), prepacked(layer, tokens=4096):
        call(layer, values)
    with onednn_products(layer, values):
        thread = Thread(target=layer, args=(values,))
        thread.start()
        thread.join()
    call(nn.Linear(4, 3), torch.randn(0, 4))
    monkeypatch.setattr(room, "_ROWS", 6)
    call(layer, values)
    assert len(products) == 1
    monkeypatch.setattr(room, "_ROWS", 5)
    call(layer, values)
    assert len(products) == 2
