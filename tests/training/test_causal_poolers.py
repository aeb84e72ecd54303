"""A pooler over tokens that have seen little is warned of."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
import tiny
import torch
from architectures import CONFIGS
from steps import LastToken
from transformers import AutoConfig, AutoModel

from contrastive_text.poolers import CLSPooler, MeanPooler, Pooler
from contrastive_text.training import Inference
from contrastive_text.training.checks import causal_warning


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small Llama with a tokenizer learned from the texts."""
    folder = tmp_path_factory.mktemp("decoder")
    tiny.save_bert(folder)
    settings = {**CONFIGS["llama"], "vocab_size": tiny.CONFIG["vocab_size"]}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        AutoModel.from_config(AutoConfig.for_model(**settings)).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(
    ("pooler", "used", "said"),
    [
        (CLSPooler, None, "CLSPooler takes the first token, which has seen itself alone"),
        (MeanPooler, None, "MeanPooler takes the mean over tokens, of which the early ones have seen little"),
        (LastToken, MeanPooler, "MeanPooler takes the mean"),
        (LastToken, None, None),
    ],
)
def test_a_pooler_that_takes_tokens_which_have_seen_little_is_warned_of_at_the_start(
    decoder: str, texts: str, tmp_path: Path, pooler: type[Pooler], used: type[Pooler] | None, said: str | None
) -> None:
    module = tiny.module(decoder, pooler=pooler(), inference=Inference(used and used()))
    trainer = tiny.trainer(tmp_path, max_steps=1)
    warned = pytest.warns(UserWarning, match=said) if said else nullcontext()
    with warned:
        trainer.fit(module, datamodule=tiny.data(texts))


def test_a_pooler_over_tokens_that_see_each_other_is_not_warned_of(bert: str) -> None:
    module = tiny.module(bert)
    assert causal_warning(module.encoder, [CLSPooler(), MeanPooler()]) is None
