"""Tests of the parts of a module that a checkpoint contains."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import tiny
import torch
from steps import batches

from contrastive_text.encoders import TransformerEncoder
from contrastive_text.heads import MLPHead, TanhHead
from contrastive_text.losses import NTXent
from contrastive_text.objectives import Contrastive, Duplicates
from contrastive_text.poolers import CLSPooler
from contrastive_text.training import AdamW, ConstantSchedule
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.views import FeatureCutoff, SwapWords


def test_a_checkpoint_gives_back_equal_vectors_and_every_part(bert: str, texts: str, tmp_path: Path) -> None:
    module = tiny.module(
        bert,
        pooler=CLSPooler(),
        head=MLPHead(hidden_features=5, out_features=7, train_only=False),
        views={"anchor": [SwapWords(rate=0.5)], "positive": [FeatureCutoff(rate=0.4)]},
        objectives={"c": Contrastive(NTXent(temperature=0.2), head=TanhHead(), columns=[])},
        weights={"c": 2.0},
        optimizer=AdamW(lr=1e-2, weight_decay=0.01),
        schedule=ConstantSchedule(warmup_steps=1),
    )
    trainer = tiny.trainer(tmp_path)
    trainer.fit(module, datamodule=tiny.data(texts))
    trainer.save_checkpoint(tmp_path / "whole.ckpt")
    loaded = ContrastiveModule.load_from_checkpoint(tmp_path / "whole.ckpt")
    batch = batches(module, texts)[0]
    trained = module.eval()(batch)
    assert torch.equal(loaded.eval()(batch), trained)
    assert not torch.equal(tiny.module(bert, pooler=CLSPooler()).eval()(batch)[:, :7], trained)
    assert loaded.hparams == module.hparams
    assert loaded.weights == {"c": 2.0}
    assert loaded.objectives["c"].part(Duplicates) is None


MINE = """
from contrastive_text.poolers import Pooler
from contrastive_text.views import TextView

class Shout(TextView):
    def __init__(self, mark="!"):
        self.mark = mark

    def __call__(self, text, rng):
        return text + self.mark

class SecondToken(Pooler):
    def forward(self, hidden):
        return hidden.layers[-1][:, 1]
"""


@pytest.mark.slow
def test_a_user_s_parts_in_the_working_directory_and_a_learned_tokenizer_survive_the_checkpoint(
    texts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "parts_of_mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    import parts_of_mine  # type: ignore[import-not-found]  # written above

    module = ContrastiveModule(
        TransformerEncoder(config=tiny.CONFIG),
        pooler=parts_of_mine.SecondToken(),
        views={"anchor": [parts_of_mine.Shout("?")]},
    )
    assert module.text_tokenizer() is None
    trainer = tiny.trainer(tmp_path)
    trainer.fit(module, datamodule=tiny.data(texts))
    trainer.save_checkpoint(tmp_path / "mine.ckpt")
    monkeypatch.delitem(sys.modules, "parts_of_mine")
    loaded = ContrastiveModule.load_from_checkpoint(tmp_path / "mine.ckpt", trust=["parts_of_mine"])
    (view,) = loaded.plan.chains["anchor"]
    assert (type(view).__module__, view.mark) == ("parts_of_mine", "?")
    ours, theirs = module.text_tokenizer(), loaded.text_tokenizer()
    assert ours is not None and theirs is not None
    assert theirs(tiny.TEXTS) == ours(tiny.TEXTS)
    assert len({tokens.ids for tokens in ours(tiny.TEXTS)}) == len(tiny.TEXTS)
    batch = batches(loaded, texts)[0]
    assert torch.equal(loaded.eval()(batch), module.eval()(batch))
