"""Causal models as encoders: equal to plain Transformers row by row; attention is tried out, not believed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from architectures import CONFIGS, DECODER, ROWS, SIZE, ragged
from covering import rest_slow
from torch import Tensor
from transformers import AutoConfig, AutoModel, PreTrainedModel

from contrastive_text.encoders import TransformerEncoder
from contrastive_text.encoders.networks import Attention
from contrastive_text.encoders.packing import Layout

CPU = torch.device("cpu")
WINDOW = 3  # shorter than most of the rows
CAUSAL: dict[str, dict[str, Any]] = {
    "qwen2": CONFIGS["qwen2"],
    "llama": CONFIGS["llama"],
    "mistral": {"model_type": "mistral", **SIZE, **DECODER, "sliding_window": None},
    "mistral, windows": {"model_type": "mistral", **SIZE, **DECODER, "sliding_window": WINDOW},
    "gemma": {"model_type": "gemma", **SIZE, **DECODER, "head_dim": 8},
}
SOFTCAP = {"model_type": "gemma2", **SIZE, **DECODER, "head_dim": 8, "sliding_window": WINDOW}
DEFAULT = ("gemma", "bidirectional", "packed")
PLAIN = [
    pytest.param(name, attention, layout, marks=[] if (name, attention, layout) == DEFAULT else pytest.mark.slow)
    for name in CAUSAL
    for attention, layout in (("causal", "packed"), ("causal", "padded"), ("bidirectional", "packed"))
    if (name, attention) != ("mistral, windows", "bidirectional")
] + [pytest.param("mistral, windows", "bidirectional", "padded", marks=pytest.mark.slow)]


def encoder_of(config: dict[str, Any], **options: Any) -> TransformerEncoder:
    """A tiny network whose weights are large enough for a token to weigh in another's vector."""
    torch.manual_seed(0)
    return TransformerEncoder(config={**config, "initializer_range": 0.3}, dropout=0.0, **options)


def row_by_row(
    config: dict[str, Any], weights: dict[str, Tensor], seen: Tensor
) -> tuple[PreTrainedModel, Tensor]:
    """The vectors that Transformers' own model has of each row alone, under a mask written by hand, (T, D)."""
    # Eager attention has its softmax in float32, whatever the weights.
    plain = AutoModel.from_config(AutoConfig.for_model(**config, attn_implementation="sdpa"))
    plain = plain.to(next(iter(weights.values())).dtype)
    plain.load_state_dict(weights)
    hidden = torch.finfo(plain.dtype).min
    rows = []
    for row in ROWS:
        mask = torch.zeros(len(row), len(row), dtype=plain.dtype).masked_fill(
            ~seen[: len(row), : len(row)], hidden
        )
        rows.append(plain(input_ids=torch.tensor([row]), attention_mask=mask[None, None]).last_hidden_state[0])
    return plain, torch.cat(rows)


def seen_of(config: dict[str, Any], attention: Attention) -> Tensor:
    """Returns the attention mask of the papers: True where a row's token attends to a column's, (40, 40)."""
    places = torch.arange(40)
    before = places[:, None] - places
    window = config.get("sliding_window")
    # Transformers counts a bidirectional window without the token itself, a causal one with it.
    if attention == "bidirectional":
        return before.abs() <= (window or 40)
    return (before >= 0) & (before < (window or 40))


@pytest.mark.parametrize(("name", "attention", "layout"), PLAIN)
def test_vectors_and_gradients_are_those_of_plain_transformers_row_by_row(
    name: str, attention: Attention, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tensor, "float", Tensor.double)  # Gemma's norm is in float32 whatever the weights
    config, batch = CAUSAL[name], ragged(*ROWS)
    encoder = encoder_of(config, attention=attention, layout=layout)
    assert encoder.layout_on(CPU)[0] == layout
    assert encoder.is_causal() == (attention == "causal")
    # float32: rounding of two orders of summation; float64: below it a fault would show.
    for dtype, vectors_within, gradients_within in ((torch.float32, 1e-5, None), (torch.float64, 1e-12, 1e-10)):
        encoder = encoder.to(dtype)
        weights = {key: weight.detach().clone() for key, weight in encoder.model.state_dict().items()}
        plain, expected = row_by_row(config, weights, seen_of(config, attention))
        reached = encoder.token_vectors(batch)
        torch.testing.assert_close(reached, expected, rtol=0, atol=vectors_within)
        if gradients_within is None:
            continue
        noise = torch.randn(expected.shape, generator=torch.Generator().manual_seed(0), dtype=dtype)
        found, wanted = (
            torch.autograd.grad((vectors * noise).sum(), list(model.parameters()))
            for model, vectors in ((encoder.model, reached), (plain, expected))
        )
        scale = max(float(gradient.abs().max()) for gradient in wanted)
        torch.testing.assert_close(found, wanted, rtol=0, atol=gradients_within * scale)


def test_a_causal_model_that_is_asked_to_be_causal_keeps_its_configuration() -> None:
    assert "is_causal" not in vars(encoder_of(CAUSAL["llama"], attention="causal").model.config)


# Computed, not believed


@pytest.mark.slow
def test_a_bidirectional_window_that_packed_rows_count_otherwise_is_padded_with_the_reason() -> None:
    encoder = encoder_of(CAUSAL["mistral, windows"], attention="bidirectional")
    assert encoder.layout_on(CPU)[1].endswith("not packed, for mistral gives other values with packed rows")
    with pytest.raises(
        ValueError, match=r"encoder.layout: expected .* mistral gives other values .*, got packed"
    ):
        encoder_of(CAUSAL["mistral, windows"], attention="bidirectional", layout="packed")


@torch.no_grad()
@pytest.mark.parametrize("spread", rest_slow([0.02, 1.0]))
def test_scores_that_are_capped_softly_are_not_packed_even_where_the_cap_changes_nothing(spread: float) -> None:
    config = {**SOFTCAP, "initializer_range": spread}
    torch.manual_seed(0)
    encoder = TransformerEncoder(config=config).eval()
    _, why = encoder.layout_on(CPU)
    assert why.endswith("for gemma2 can't be called with packed rows (attention: expected options that packed "
                        "rows take, got softcap)")  # fmt: skip
    # Transformers' eager attention has its softmax in float32; float64 gives NaN there with padding.
    plain = AutoModel.from_config(AutoConfig.for_model(**config)).eval()
    plain.load_state_dict(encoder.model.state_dict())
    expected = [plain(input_ids=torch.tensor([row])).last_hidden_state[0] for row in ROWS]
    torch.testing.assert_close(encoder.token_vectors(ragged(*ROWS)), torch.cat(expected), rtol=0, atol=1e-5)
