"""Options of encoders that are refused: each error names the option and the value."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
from architectures import CONFIGS, encoder_of

from contrastive_text.core.batch import Batch, Hidden
from contrastive_text.encoders import Encoder, LoRA, TransformerEncoder
from contrastive_text.objectives.token_prediction import TextDecoder


class Bare(Encoder):
    """An encoder of a user's own without any further feature."""

    def forward(self, batch: Batch, alter: Any = None, layers: tuple[int, ...] = (-1,)) -> Hidden:
        raise NotImplementedError


def made(name: str, **options: Any) -> Callable[[str], object]:
    """Returns a call that builds an encoder of an architecture; the text is the folder of a masked BERT."""
    return lambda _: encoder_of(name, **options)


def given(**options: Any) -> Callable[[str], object]:
    """Returns a call that builds an encoder with these arguments alone."""
    return lambda _: TransformerEncoder(**options)


def loaded(**options: Any) -> Callable[[str], object]:
    """Returns a call that loads the folder with adapters."""
    return lambda masked: TransformerEncoder(**{"model_name_or_path": masked, "adapters": LoRA(), **options})


BERT = CONFIGS["bert"]
REFUSALS: list[tuple[Callable[[str], object], str]] = [
    (made("bert", max_length=2), r"encoder\.max_length: .* got 2"),
    (made("roberta", max_length=41), r"encoder\.max_length: expected 3 to 40 .* got 41"),
    (made("bert", dropout=-0.1), r"encoder\.dropout: .* got -0\.1"),
    (made("bert", dropout=1.0), r"encoder\.dropout: .* got 1\.0"),
    (made("bert", layout="dense"), r"encoder\.layout: .*packed.* got 'dense'"),
    (made("mpnet", layout="packed"), r"encoder\.layout: .* mpnet takes no other .*, got packed"),
    (made("deberta-v2", layout="packed"), r"encoder\.layout: .* deberta-v2 takes no other .*, got packed"),
    (made("bert", attention="causal"), "can be causal, got bert"),
    (made("bert", attention="full"), r"encoder\.attention: .* got 'full'"),
    (made("albert", gradient_checkpointing=True), "gradient_checkpointing: .* got albert"),
    (made("bert", gradient_checkpointing=True, compiled=True), "gradient_checkpointing: .*compiled.* got true"),
    (given(), "model_name_or_path .* config .* got neither"),
    (given(model_name_or_path="a-model", config=BERT), "model_name_or_path .* config .* got both"),
    (given(model_name_or_path="no/such"), r"encoder\.model_name_or_path: .* 'no/such'; there is no such"),
    (given(config=BERT, tokenizer_name_or_path="no/such"), r"encoder\.tokenizer_name_or_path: .* 'no/such'"),
    (given(config={"vocab_size": 5}), r"encoder\.config: expected model_type .* got .*vocab_size"),
    (given(config={"model_type": "robberta"}), r"config\.model_type: .* got 'robberta'; did you mean roberta"),
    (loaded(config=tiny.CONFIG, model_name_or_path=None), r"encoder\.adapters: .* got a config"),
    (loaded(adapters=None, weights_dtype="bfloat16"), r"weights_dtype: expected float32 .* got bfloat16"),
    (loaded(adapters=None, weights_dtype="nf4"), r"weights_dtype: expected float32 .* got nf4"),
    (loaded(weights_dtype="int8"), r"encoder\.weights_dtype: .* got 'int8'"),
    (loaded(adapters=LoRA(targets=["query", "valu"])), r"LoRA\.targets: expected .*query.*, got 'valu'"),
    (lambda _: LoRA(rank=0), r"LoRA\.rank: .* got 0"),
    (lambda _: LoRA(alpha=0.0), r"LoRA\.alpha: .* got 0\.0"),
    (lambda _: LoRA(dropout=1.0), r"LoRA\.dropout: .* got 1\.0"),
    (lambda _: LoRA(targets=[]), r"LoRA\.targets: .* got \[\]"),
    (lambda masked: TransformerEncoder(config=BERT, tokenizer_name_or_path=masked), "vocab_size: .* got 60"),
    (lambda _: encoder_of("qwen2").build_token_head(), "MaskedLM: .* got qwen2"),
    (lambda _: Bare().build_token_head(), "Bare: expected a network with a masked"),
    (lambda _: Bare().add_tokens(("[DEL]",)), r"Bare: expected views without new tokens, got \[DEL\]"),
    (lambda _: TextDecoder(encoder_of("distilbert"), tied=True), "cross-attention .*, got distilbert"),
    (lambda _: TextDecoder(Bare(), tied=True), "cross-attention .*, got Bare"),
]


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny.save_masked_lm(tmp_path_factory.mktemp("masked"))


@pytest.mark.parametrize(("call", "words"), REFUSALS, ids=[words for _, words in REFUSALS])
def test_an_option_that_cannot_be_is_refused_with_its_value(
    call: Callable[[str], object], words: str, masked: str
) -> None:
    with pytest.raises(ValueError, match=words):
        call(masked)


def test_a_folder_without_a_model_is_refused_with_what_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no model")
    with pytest.raises(ValueError, match=r"expected a whole model folder, got .* with notes.txt;"):
        TransformerEncoder(str(tmp_path))
