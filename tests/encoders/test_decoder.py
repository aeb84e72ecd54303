"""A decoder made of an encoder: the values of Transformers' own, row by row, with shared weights."""

from __future__ import annotations

import pytest
import torch
from architectures import ROWS, encoder_of, ragged
from covering import rest_slow
from transformers import AutoModelForCausalLM

from contrastive_text.encoders import TransformerEncoder
from contrastive_text.encoders.packing import Layout
from contrastive_text.objectives.token_prediction import TextDecoder

BATCH = ragged(*ROWS)


def decoder_of(name: str, tied: bool = True, layout: Layout = "auto") -> tuple[TransformerEncoder, TextDecoder]:
    encoder = encoder_of(name, layout=layout)
    return encoder, TextDecoder(encoder, tied).double().eval()


@pytest.mark.parametrize(
    ("name", "layout"), rest_slow([("bert", "packed"), ("roberta", "padded"), ("electra", "packed")], quick=2)
)
def test_scores_are_those_of_the_architectures_own_causal_model_row_by_row(name: str, layout: Layout) -> None:
    _, decoder = decoder_of(name, layout=layout)
    plain = AutoModelForCausalLM.from_config(decoder.network.model.config).double().eval()
    plain.base_model.load_state_dict(decoder.network.model.state_dict())
    for key, part in decoder.token_head.layers.items():
        plain.get_submodule(key).load_state_dict(part.state_dict())
    vectors = torch.randn(len(ROWS), 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = decoder.token_logits(decoder(BATCH, vectors))
    expected = [
        plain(torch.tensor([row]), encoder_hidden_states=vector[None, None]).logits[0]
        for row, vector in zip(ROWS, vectors, strict=True)
    ]
    torch.testing.assert_close(found, torch.cat(expected), rtol=1e-10, atol=1e-10)


def test_a_tied_decoder_has_the_encoders_weights_but_for_cross_attention_and_head_and_another_copies() -> None:
    encoder, decoder = decoder_of("bert")
    shared = {id(weight) for weight in encoder.parameters()}
    own = {name for name, weight in decoder.named_parameters() if id(weight) not in shared}
    assert all("crossattention" in name or name.startswith("token_head.") for name in own), own
    assert len(own) == 2 * 10 + 5  # of two layers; the head's table is that of the encoder
    assert len(list(encoder.parameters())) + len(own) == len({*decoder.parameters(), *encoder.parameters()})
    _, loose = decoder_of("bert", tied=False)
    assert not {id(weight) for weight in loose.parameters()} & shared
    copied = loose.network.model.state_dict()
    assert all(torch.equal(copied[name], weight) for name, weight in encoder.model.state_dict().items())


def test_cross_attention_of_packed_rows_drops_the_one_vector_as_that_of_padded_rows_does() -> None:
    # Over one vector a weight is 1 or, dropped, 0: never a share of it, as if tokens were looked at.
    _, decoder = decoder_of("bert", layout="packed")
    layers = decoder.network.model.encoder.layer
    seen: list[torch.Tensor] = []
    layers[0].crossattention.self.register_forward_hook(lambda *call: seen.append(call[2][0]))
    layers[0].crossattention.self.train()
    layers[0].crossattention.self.dropout.p = 0.5
    values = torch.randn(len(ROWS), 16, dtype=torch.float64)
    decoder(BATCH, values)
    whole = (
        layers[0].crossattention.self.value(values).repeat_interleave(BATCH.lengths, dim=0).unflatten(1, (2, 8))
    )
    shares = (seen[0][0].unflatten(1, (2, 8)) / whole).mean(dim=2)
    assert {round(share, 6) for share in shares.flatten().tolist()} == {0.0, 2.0}
