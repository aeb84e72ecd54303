"""A pooler over tokens that have seen little is warned of."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import torch
from architectures import CONFIGS
from steps import LastToken
from transformers import AutoConfig, AutoModel

from contrastive_text.poolers import CLSPooler, MeanPooler
from contrastive_text.training import Inference
from contrastive_text.training.checks import causal_warning


@pytest.fixture
def decoder(tmp_path: Path) -> str:
    """A small Llama with a tokenizer learned from the texts."""
    folder = tmp_path / "decoder"
    tiny.save_bert(folder)
    settings = {**CONFIGS["llama"], "vocab_size": tiny.CONFIG["vocab_size"]}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        AutoModel.from_config(AutoConfig.for_model(**settings)).save_pretrained(folder)
    return str(folder)


def test_a_pooler_that_takes_tokens_which_have_seen_little_is_warned_of_at_the_start(
    decoder: str, bert: str, texts: str, tmp_path: Path
) -> None:
    module = tiny.module(decoder, pooler=CLSPooler(), inference=Inference(MeanPooler()))
    said = "CLSPooler takes the first token, which has seen itself alone.*; MeanPooler takes the mean over tokens"
    with pytest.warns(UserWarning, match=said):
        tiny.trainer(tmp_path, max_steps=1).fit(module, datamodule=tiny.data(texts))
    assert causal_warning(module.encoder, [LastToken()]) is None
    # Here all tokens see each other.
    assert causal_warning(tiny.module(bert).encoder, [CLSPooler(), MeanPooler()]) is None
