"""Data, trainers and poolers under which a module would learn something else than it says are refused or told."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import torch
from architectures import CONFIGS
from steps import LastToken
from transformers import AutoConfig, AutoModel

from contrastive_text import ContrastiveModule, TextDataModule
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.data import TextTask
from contrastive_text.pairings import Given, Spans
from contrastive_text.poolers import CLSPooler, MeanPooler
from contrastive_text.training import Inference, WeightedSum
from contrastive_text.training.checks import causal_warning, check_pairings, check_strategy


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny.save_bert(tmp_path_factory.mktemp("bert"), max_position_embeddings=512)


def test_a_module_of_a_recipe_never_trains_on_texts_that_are_paired_otherwise(bert: str, tmp_path: Path) -> None:
    module = ContrastiveModule.from_recipe("declutr", bert)
    trainer = tiny.trainer(tmp_path)
    with pytest.raises(
        InvalidValueError, match=r"pairing: expected Spans, .* declutr .* got SameText; .*from_recipe"
    ):
        trainer.fit(module, datamodule=tiny.data(tiny.write_texts(tmp_path / "texts.txt")))
    assert trainer.global_step == 0


def test_pairings_are_compared_by_class_and_by_task(tmp_path: Path) -> None:
    trainer = tiny.trainer(tmp_path)
    for name in ("simcse/sup", "declutr", "cs224n"):  # a pairing each
        trainer.datamodule = TextDataModule.from_recipe(name, num_workers=0)
        check_pairings(trainer, name)
    trainer.datamodule = TextDataModule(task=TextTask(pairing=Spans(anchors=1)))
    check_pairings(trainer, "declutr")
    check_pairings(trainer, None)
    with pytest.raises(InvalidValueError, match=r"data\.task\.pairing: expected SameText, .* got Spans"):
        check_pairings(trainer, "simcse")
    tasks = {"sentiment": {}, "paraphrase": {"pairing": "Given"}, "similarity": {"pairing": "SameText"}}
    trainer.datamodule = TextDataModule.from_recipe("cs224n", tasks=tasks)
    with pytest.raises(InvalidValueError, match=r"data\.tasks\.similarity\.pairing: expected Given"):
        check_pairings(trainer, "cs224n")


def test_data_of_a_recipe_take_options_over_it() -> None:
    data = TextDataModule.from_recipe("declutr", train="docs.jsonl", batch_size=8)
    assert isinstance(data.task.pairing, Spans) and (data.train, data.batch_size) == ("docs.jsonl", 8)
    assert isinstance(TextDataModule.from_recipe("simcse", pairing=Given()).task.pairing, Given)
    with pytest.raises(InvalidValueError, match="no option 'trian' at this place; did you mean 'train'"):
        TextDataModule.from_recipe("simcse", trian="a.txt")


def test_lightning_s_sampler_over_several_processes_is_refused_for_loaders_of_the_user_s_own(
    bert: str, tmp_path: Path
) -> None:
    module = tiny.module(bert)
    for devices, injects, refused in ((2, True, True), (2, False, False), (1, True, False)):
        trainer = tiny.trainer(tmp_path, devices=devices, strategy="ddp", use_distributed_sampler=injects)
        if refused:
            with pytest.raises(InvalidValueError, match="use_distributed_sampler: expected False with several"):
                check_strategy(trainer, WeightedSum(), module.by_task)
        else:
            check_strategy(trainer, WeightedSum(), module.by_task)


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
