"""Options of encoders that are refused: each error names the option and the value."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from architectures import CONFIGS, encoder_of

from contrastive_text.core.batch import Batch
from contrastive_text.core.types import Hidden
from contrastive_text.encoders import Encoder, LoRA, TransformerEncoder
from contrastive_text.encoders.loading import build_model, load_architecture
from contrastive_text.objectives.denoising import TextDecoder


class Bare(Encoder):
    """An encoder of a user's own without any further feature."""

    def forward(self, batch: Batch, alter: Any = None, layers: tuple[int, ...] = (-1,)) -> Hidden:
        raise NotImplementedError


def bert(**options: Any) -> TransformerEncoder:
    return encoder_of("bert", **options)


def adapted(masked: str, **options: Any) -> TransformerEncoder:
    return TransformerEncoder(**{"model_name_or_path": masked, "adapters": LoRA(), **options})


REFUSALS: dict[str, tuple[Callable[[], object], str]] = {
    "a row shorter than three tokens": (lambda: bert(max_length=2), r"encoder\.max_length: .* got 2"),
    "a row above the limit": (
        lambda: encoder_of("roberta", max_length=41),
        r"encoder\.max_length: expected 3 to 40 .* got 41",
    ),
    "neither name nor config": (TransformerEncoder, "model_name_or_path .* config .* got neither"),
    "name and config": (
        lambda: TransformerEncoder("a-model", config=CONFIGS["bert"]),
        "model_name_or_path .* config .* got both",
    ),
    "a negative dropout": (lambda: bert(dropout=-0.1), r"encoder\.dropout: .* got -0\.1"),
    "a dropout of one": (lambda: bert(dropout=1.0), r"encoder\.dropout: .* got 1\.0"),
    "a missing folder": (
        lambda: TransformerEncoder("no/such"),
        r"encoder\.model_name_or_path: .* 'no/such'; there is no such",
    ),
    "a missing tokenizer": (
        lambda: TransformerEncoder(config=CONFIGS["bert"], tokenizer_name_or_path="no/such"),
        r"encoder\.tokenizer_name_or_path: .* 'no/such'",
    ),
    "a config without a type": (
        lambda: TransformerEncoder(config={"vocab_size": 5}),
        r"encoder\.config: expected model_type .* got .*vocab_size",
    ),
    "a config of an unknown type": (
        lambda: TransformerEncoder(config={"model_type": "robberta"}),
        r"encoder\.config\.model_type: .*nearest: .*roberta.*, got 'robberta'",
    ),
    "an unknown layout": (lambda: bert(layout="dense"), r"encoder\.layout: .*packed.* got 'dense'"),
    "packed rows of MPNet": (
        lambda: encoder_of("mpnet", layout="packed"),
        r"encoder\.layout: .* mpnet takes no other .*, got packed",
    ),
    "packed rows of DeBERTa": (
        lambda: encoder_of("deberta-v2", layout="packed"),
        r"encoder\.layout: .* deberta-v2 takes no other .*, got packed",
    ),
    "a causal BERT": (lambda: bert(attention="causal"), "can be causal, got bert"),
    "an unknown attention": (lambda: bert(attention="full"), r"encoder\.attention: .* got 'full'"),
    "checkpoints of layers without them": (
        lambda: encoder_of("albert", gradient_checkpointing=True),
        "gradient_checkpointing: .* got albert",
    ),
    "checkpoints of compiled layers": (
        lambda: bert(gradient_checkpointing=True, compiled=True),
        "gradient_checkpointing: expected false for a compiled network, .* got true",
    ),
    "a token head of Qwen": (lambda: encoder_of("qwen2").build_token_head(), "MaskedLM: .* got qwen2"),
    "a token head of Llama": (lambda: encoder_of("llama").build_token_head(), "MaskedLM: .* got llama"),
    "a token head of one's own encoder": (Bare().build_token_head, "Bare: expected a network with a masked"),
    "new tokens of one's own encoder": (
        lambda: Bare().add_tokens(("[DEL]",)),
        r"Bare: expected views without new tokens, got \[DEL\]",
    ),
    "a decoder of DistilBERT": (
        lambda: TextDecoder(encoder_of("distilbert"), tied=True),
        "decoder with cross-attention .*, got distilbert",
    ),
    "a decoder of one's own encoder": (
        lambda: TextDecoder(Bare(), tied=True),
        "decoder with cross-attention .*, got Bare",
    ),
    "no rank": (lambda: LoRA(rank=0), r"LoRA\.rank: .* got 0"),
    "no strength": (lambda: LoRA(alpha=0.0), r"LoRA\.alpha: .* got 0\.0"),
    "a dropout of one for adapters": (lambda: LoRA(dropout=1.0), r"LoRA\.dropout: .* got 1\.0"),
    "no targets": (lambda: LoRA(targets=[]), r"LoRA\.targets: .* got \[\]"),
    "an architecture that can't be built": (
        lambda: build_model(load_architecture(None, {**CONFIGS["bert"], "num_attention_heads": 3}, None)),
        r"encoder\.config: expected an architecture that Transformers can make",
    ),
}
OF_A_FOLDER: dict[str, tuple[Callable[[str], object], str]] = {
    "adapters over random weights": (
        lambda masked: adapted(masked, config=tiny.CONFIG, model_name_or_path=None),
        r"encoder\.adapters: expected a pretrained model .* got a config",
    ),
    "trained weights of bfloat16": (
        lambda masked: adapted(masked, adapters=None, weights_dtype="bfloat16"),
        r"encoder\.weights_dtype: expected float32 .* got bfloat16",
    ),
    "trained weights of four bits": (
        lambda masked: adapted(masked, adapters=None, weights_dtype="nf4"),
        r"encoder\.weights_dtype: expected float32 .* got nf4",
    ),
    "an unknown type of weights": (
        lambda masked: adapted(masked, weights_dtype="int8"),
        r"encoder\.weights_dtype: .* got 'int8'",
    ),
    "a target that no layer has": (
        lambda masked: adapted(masked, adapters=LoRA(targets=["query", "valu"])),
        r"LoRA\.targets: expected .*query.*, got 'valu'",
    ),
    "a vocabulary larger than the table": (
        lambda masked: TransformerEncoder(config=CONFIGS["bert"], tokenizer_name_or_path=masked),
        r"encoder\.config\.vocab_size: expected the tokenizer's .* got 60",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_an_option_that_cannot_be_is_refused_with_its_value(name: str) -> None:
    call, words = REFUSALS[name]
    with pytest.raises(ValueError, match=words):
        call()


@pytest.mark.parametrize("name", OF_A_FOLDER)
def test_an_option_that_does_not_fit_the_folder_is_refused_with_its_value(name: str, masked: str) -> None:
    call, words = OF_A_FOLDER[name]
    with pytest.raises(ValueError, match=words):
        call(masked)


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny.save_masked_lm(tmp_path_factory.mktemp("masked"))


def test_a_folder_without_a_model_is_refused_with_what_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no model")
    with pytest.raises(ValueError, match=r"expected a whole model folder, got .* with notes.txt;"):
        TransformerEncoder(str(tmp_path))


def test_scores_before_the_head_is_made_are_refused() -> None:
    with pytest.raises(RuntimeError, match=r"expected build_token_head\(\) before the first call"):
        bert().token_logits(torch.ones(1, 16))
