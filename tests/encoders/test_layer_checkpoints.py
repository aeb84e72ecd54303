"""Layers computed anew in the backward pass: the bits of the gradient in every step, and what is refused."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import tiny
import torch
from architectures import CONFIGS, ROWS, encoder_of, ragged
from covering import rest_slow
from decoders import save_decoder
from executions import batch_of
from objective_cases import CASES
from torch import Tensor, nn

from contrastive_text.encoders import LoRA, TransformerEncoder, packing
from contrastive_text.encoders.packing import Layout
from contrastive_text.objectives import Contrastive, DenoisingDecoder, Objective
from contrastive_text.poolers import LastTwoPooler
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.views import Adversarial, TokenCutoff

NETWORKS = (
    "BERT with dropout", "LoRA in Llama", "BERT and a decoder", "Llama", "Llama, bidirectional",
    "LoRA in BERT, bfloat16",
)  # fmt: skip
LORA = {"rank": 4, "alpha": 8.0, "dropout": 0.1}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A random BERT and a random Llama."""
    place = tmp_path_factory.mktemp("models")
    return {"bert": tiny.save_masked_lm(place / "bert"), "llama": save_decoder(place / "llama", "llama")}


def step(
    encoder: TransformerEncoder, chunk_tokens: int | None, objectives: dict[str, Objective], dtype: torch.dtype
) -> tuple[dict[str, Tensor], int]:
    """Returns the gradient of a step with views of two levels, and how many calls of layers were checkpointed."""
    module = ContrastiveModule(
        encoder,
        LastTwoPooler(),
        objectives=dict(objectives),
        views={"anchor": [TokenCutoff(rate=0.3)], "positive": [Adversarial(norm=0.5, objective="c")]},
        chunk_tokens=chunk_tokens,
    )
    module.to(dtype)
    case = CASES["denoising decoder, InfoNCE" if "d" in objectives else "InfoNCE"]
    batch = batch_of(case, "no views", step=0)
    with mock.patch.object(packing, "checkpoint", wraps=packing.checkpoint) as calls:
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.float32):
            loss = module.training_step(batch, 0)
        loss.backward()  # out of autocast, as Lightning has it
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}, calls.call_count


@pytest.mark.parametrize(
    ("network", "layout", "chunk_tokens"),
    rest_slow(
        [
            (network, layout, chunk_tokens)
            for layout, chunk_tokens in (("packed", 40), ("padded", None))
            for network in NETWORKS
        ]
    ),
)
def test_a_step_has_the_bits_of_the_gradient_of_layers_that_are_kept(
    network: str, layout: Layout, chunk_tokens: int | None, folders: dict[str, str]
) -> None:
    options: dict[str, Any] = {"layout": layout, "dropout": 0.1 if "BERT" in network else None}
    options["attention"] = "bidirectional" if "bidirectional" in network else None
    options["adapters"] = LoRA(**LORA) if "LoRA" in network else None
    objectives: dict[str, Objective] = {"c": Contrastive()}
    if "decoder" in network:
        objectives["d"] = DenoisingDecoder(tied=False)
    found = []
    for anew in (False, True):
        torch.manual_seed(0)
        folder = folders["bert" if "BERT" in network else "llama"]
        encoder = TransformerEncoder(folder, gradient_checkpointing=anew, **options)
        for name, weight in encoder.named_parameters():
            if "lora_B" in name:
                nn.init.normal_(weight, std=0.1)
        dtype = torch.float32 if "bfloat16" in network else torch.float64
        found.append(step(encoder, chunk_tokens, objectives, dtype))
    (expected, no_calls), (reached, calls) = found
    # Two layers, in the pass that finds a gradient and in the other; a decoder's in one.
    assert no_calls == 0 and calls >= (6 if "decoder" in network else 4)
    assert expected.keys() == reached.keys()
    assert max(float(gradient.abs().max()) for gradient in expected.values()) > 1e-3
    assert all(torch.equal(gradient, reached[name]) for name, gradient in expected.items())


@pytest.mark.parametrize("name", rest_slow([*CONFIGS], quick=0))
def test_architectures_have_the_bits_of_layers_that_are_kept_or_are_refused(name: str) -> None:
    if name in ("albert", "mpnet"):
        with pytest.raises(ValueError, match=rf"gradient_checkpointing: expected an architecture .*, got {name}"):
            encoder_of(name, gradient_checkpointing=True)
        return
    gradients = []
    for anew in (False, True):
        encoder = encoder_of(name, gradient_checkpointing=anew).train()
        torch.manual_seed(1)
        vectors = encoder.token_vectors(ragged(*ROWS))
        (vectors * torch.linspace(-1, 1, vectors.numel(), dtype=vectors.dtype).view_as(vectors)).sum().backward()
        gradients.append([weight.grad for weight in encoder.parameters() if weight.grad is not None])
    assert len(gradients[0]) == len(gradients[1])
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


def test_no_pass_makes_a_cache_of_keys_and_values() -> None:
    encoder, kept = encoder_of("llama"), []
    encoder.model.register_forward_hook(lambda _module, _inputs, output: kept.append(output.past_key_values))
    encoder(ragged(*ROWS))
    assert kept == [None]


def test_a_copy_does_as_its_model_and_evaluation_computes_nothing_anew() -> None:
    copy = encoder_of("bert", gradient_checkpointing=True).clone()
    with mock.patch.object(packing, "checkpoint", wraps=packing.checkpoint) as calls:
        copy(ragged(*ROWS))
        assert calls.call_count == 0
        copy.train()(ragged(*ROWS))
        assert calls.call_count == 2
