"""Weights in another order: the values of the layers, for as long as they are asked for and no longer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tiny
import torch
from architectures import NAMES, ROWS, encoder_of, ragged
from torch import nn
from torch.backends import mkldnn
from transformers import AutoModelForSequenceClassification

from contrastive_text import Reranker, SentenceEncoder
from contrastive_text.core import machine
from contrastive_text.encoders import prepacked as room
from contrastive_text.encoders.prepacked import prepacked

MANY = room._TOKENS
"""Number of tokens from which weights are packed."""


@pytest.fixture(autouse=True)
def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packs on this processor too, whatever it is."""
    monkeypatch.setattr(room, "has_fast_packed_layers", mkldnn.is_available)


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Lists the weights that packed copies were multiplied in place of."""
    weights: list[torch.Tensor] = []
    product = room._Prepacked._product

    def counted(mode: room._Prepacked, *inputs: torch.Tensor) -> torch.Tensor:
        weights.append(inputs[1])
        return product(mode, *inputs)

    monkeypatch.setattr(room._Prepacked, "_product", counted)
    return weights


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "bert" else pytest.mark.slow) for name in NAMES]
)
@torch.no_grad()
def test_every_architecture_has_the_values_that_it_has_by_itself(name: str, products: list[torch.Tensor]) -> None:
    encoder, batch = encoder_of(name).float(), ragged(*ROWS)
    plain = encoder.token_vectors(batch)
    with prepacked(encoder, MANY):
        vectors = encoder.token_vectors(batch)
    count = len(products)
    assert count > 0
    torch.testing.assert_close(vectors, plain, rtol=1e-4, atol=1e-5)  # float32, summed in another order
    assert torch.equal(encoder.token_vectors(batch), plain)
    assert len(products) == count


@torch.no_grad()
def test_a_changed_weight_is_never_missed() -> None:
    layer, values = nn.Sequential(nn.Linear(4, 3)), torch.randn(5, 4)
    for _ in range(2):
        layer[0].weight.data.add_(1.0)  # unseen by torch's own count of changes
        with prepacked(layer, MANY):
            found = layer(values)
        torch.testing.assert_close(found, layer(values))


@torch.no_grad()
def test_only_plain_layers_are_packed(products: list[torch.Tensor]) -> None:
    class Doubled(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(input)

    wide = nn.Linear(4, 3).double()
    hooked = nn.Linear(4, 3)
    hooked.forward = lambda values: 3 * values  # type: ignore[method-assign]
    with prepacked(nn.ModuleList([Doubled(4, 3), wide]), MANY):
        assert wide(torch.ones(1, 4).double()).dtype == torch.float64
    with prepacked(nn.ModuleList([hooked]), MANY):
        assert hooked(torch.ones(1)).item() == 3.0
    assert not products


def test_a_layer_is_itself_again_after_an_error(products: list[torch.Tensor]) -> None:
    layer = nn.Sequential(nn.Linear(4, 3))
    with pytest.raises(RuntimeError), torch.no_grad(), prepacked(layer, MANY):
        layer(torch.randn(5, 7))
    assert len(products) == 1
    layer(torch.randn(5, 4))
    assert len(products) == 1


@torch.no_grad()
def test_another_thread_computes_with_the_weights_and_contexts_share_copies_while_they_last(
    products: list[torch.Tensor],
) -> None:
    layer, values = nn.Sequential(nn.Linear(4, 3)), torch.randn(5, 4)
    with ThreadPoolExecutor(1) as thread:
        with prepacked(layer, MANY):
            thread.submit(layer, values).result()
            assert not products
            (copy,) = room._copies.values()
            with prepacked(layer, MANY):
                assert [*room._copies.values()] == [copy]
        del copy
        assert not room._copies


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)])
def test_encode_packs_for_many_tokens_and_gives_the_same_vectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, products: list[torch.Tensor]
) -> None:
    model = SentenceEncoder.from_pretrained(tiny.save_bert(tmp_path / "bert"), pooler="MeanPooler", dtype=dtype)
    texts = list(tiny.TEXTS)
    plain = model.encode(texts, convert_to_tensor=True, normalize_embeddings=True)
    assert not products
    monkeypatch.setattr(room, "_TOKENS", 1)
    found = model.encode(texts, convert_to_tensor=True, normalize_embeddings=True)
    assert products or dtype == torch.bfloat16  # which not every processor packs
    cosines = torch.linalg.vecdot(torch.as_tensor(found), torch.as_tensor(plain))
    assert cosines.min() > (1 - 1e-6 if dtype == torch.float32 else 1 - 1e-3)  # bfloat16 has 8 bits


def test_a_reranker_packs_for_many_tokens_and_gives_the_same_logits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, products: list[torch.Tensor]
) -> None:
    network = AutoModelForSequenceClassification.from_pretrained(tiny.save_bert(tmp_path / "bert"), num_labels=1)
    network.save_pretrained(tmp_path / "bert")
    reranker = Reranker.from_pretrained(tmp_path / "bert", device="cpu")
    pairs = [(text, tiny.TEXTS[0]) for text in tiny.TEXTS]
    plain = reranker.logits(pairs)
    assert not products
    monkeypatch.setattr(room, "_TOKENS", 1)
    found = reranker.logits(pairs)
    assert products
    torch.testing.assert_close(found, plain, rtol=1e-4, atol=1e-5)  # float32, summed in another order


@pytest.mark.parametrize(
    ("processor", "capability", "packs", "trains"),
    [
        ("x86_64 AMD EPYC 9V74", "AVX512", True, True),
        ("x86_64 AMD EPYC 7763", "AVX2", True, False),
        ("x86_64 AMD EPYC 7763", "DEFAULT", False, False),
        ("x86_64 Intel(R) Xeon(R) Processor", "AVX512", True, False),
    ],
)
def test_onednn_is_used_where_it_is_faster(
    monkeypatch: pytest.MonkeyPatch, processor: str, capability: str, packs: bool, trains: bool
) -> None:
    monkeypatch.setattr(machine, "_processor", lambda: processor)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert machine.has_fast_packed_layers() == (packs and machine.has_onednn())
    assert machine.has_fast_layers() == (trains and machine.has_onednn())
