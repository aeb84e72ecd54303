"""What a checkpoint keeps of a module."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import tiny
import torch
from steps import batches

from contrastive_text.cli import run
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.heads import MLPHead, TanhHead
from contrastive_text.losses import InfoNCE, NTXent
from contrastive_text.objectives import Contrastive, Duplicates
from contrastive_text.poolers import CLSPooler, FirstLastPooler
from contrastive_text.training import AdamW, ConstantSchedule
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.views import DeleteTokens, FeatureCutoff, SwapWords


def shape_of(value: object) -> object:
    """Types and keys of plain data."""
    if isinstance(value, Mapping):
        return {key: shape_of(item) for key, item in value.items()}
    return [shape_of(item) for item in value] if isinstance(value, list) else type(value)


@pytest.mark.slow
def test_a_module_from_python_and_one_from_the_shell_leave_the_same_checkpoint(
    bert: str, texts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    module = ContrastiveModule(
        TransformerEncoder(bert, max_length=32),
        pooler=FirstLastPooler(first="block_1"),
        views={"positive": [SwapWords(rate=0.3), DeleteTokens(rate=0.2), FeatureCutoff(rate=0.25)]},
        objectives={"contrastive": Contrastive(InfoNCE(temperature=0.05), head=TanhHead())},
        optimizer=AdamW(lr=3e-5),
    )
    trainer = tiny.trainer(tmp_path)
    trainer.fit(module, datamodule=tiny.data(texts))
    trainer.save_checkpoint(tmp_path / "python.ckpt")
    views = (
        '{"positive": [{"class_path": "SwapWords", "init_args": {"rate": 0.3}}, '
        '{"class_path": "DeleteTokens", "init_args": {"rate": 0.2}}, '
        '{"class_path": "FeatureCutoff", "init_args": {"rate": 0.25}}]}'
    )
    words = [
        "fit", "--recipe", "simcse", "--model.encoder.model_name_or_path", bert, "--data.train", texts,
        "--model.pooler", '{"class_path": "FirstLastPooler", "init_args": {"first": "block_1"}}',
        "--model.views", views, "--data.batch_size", "8", "--data.num_workers", "0",
        "--trainer.max_steps", "2", "--trainer.val_check_interval", "1.0", "--trainer.accelerator", "cpu",
        "--checkpoint.dirpath", str(tmp_path / "kept"),
    ]  # fmt: skip
    assert run(words) == 0
    (kept,) = (tmp_path / "kept").iterdir()
    ours, shells = (torch.load(path, weights_only=True) for path in (tmp_path / "python.ckpt", kept))
    assert ours["hyper_parameters"] == shells["hyper_parameters"]
    assert shape_of(ours["hyper_parameters"]) == shape_of(shells["hyper_parameters"])
    assert ours["state_dict"].keys() == shells["state_dict"].keys()
    # the same seed, rows, views and dropout masks; the train-only head alone started from other random weights
    for name, value in ours["state_dict"].items():
        if name.startswith("encoder"):
            torch.testing.assert_close(value, shells["state_dict"][name], rtol=0, atol=3e-4)
    assert ours["datamodule_hyper_parameters"].keys() == shells["datamodule_hyper_parameters"].keys()


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


@pytest.mark.slow
def test_a_user_s_parts_in_the_working_directory_survive_the_checkpoint(
    bert: str, texts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "parts_of_mine.py").write_text(
        "from contrastive_text.poolers import Pooler\n"
        "from contrastive_text.views import TextView\n"
        "class Shout(TextView):\n"
        "    def __init__(self, mark='!'):\n"
        "        self.mark = mark\n"
        "    def __call__(self, text, rng):\n"
        "        return text + self.mark\n"
        "class SecondToken(Pooler):\n"
        "    def forward(self, hidden):\n"
        "        return hidden.layers[-1][:, 1]\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    import parts_of_mine  # type: ignore[import-not-found]  # written above

    module = tiny.module(bert, pooler=parts_of_mine.SecondToken(), views={"anchor": [parts_of_mine.Shout("?")]})
    trainer = tiny.trainer(tmp_path)
    trainer.fit(module, datamodule=tiny.data(texts))
    trainer.save_checkpoint(tmp_path / "mine.ckpt")
    monkeypatch.delitem(sys.modules, "parts_of_mine")
    loaded = ContrastiveModule.load_from_checkpoint(tmp_path / "mine.ckpt", trust=["parts_of_mine"])
    (view,) = loaded.plan.chains["anchor"]
    assert type(view).__module__ == "parts_of_mine"
    assert view.mark == "?"
    batch = batches(module, texts)[0]
    assert torch.equal(loaded.eval()(batch), module.eval()(batch))


@pytest.mark.slow
def test_a_tokenizer_learned_from_the_corpus_survives_the_checkpoint(texts: str, tmp_path: Path) -> None:
    module = ContrastiveModule(TransformerEncoder(config=tiny.CONFIG))
    assert module.text_tokenizer() is None
    trainer = tiny.trainer(tmp_path)
    trainer.fit(module, datamodule=tiny.data(texts))
    trainer.save_checkpoint(tmp_path / "learned.ckpt")
    loaded = ContrastiveModule.load_from_checkpoint(tmp_path / "learned.ckpt")
    ours, theirs = module.text_tokenizer(), loaded.text_tokenizer()
    assert ours is not None
    assert theirs is not None
    assert theirs(tiny.TEXTS) == ours(tiny.TEXTS)
    assert len({tokens.ids for tokens in ours(tiny.TEXTS)}) == len(tiny.TEXTS)
    assert theirs.tokenizer.vocab_size <= tiny.CONFIG["vocab_size"]
    batch = batches(loaded, texts)[0]
    assert torch.equal(loaded.eval()(batch), module.eval()(batch))


@pytest.mark.parametrize("damage", ["cut short", "a flipped byte", "empty", "text", "not there"])
def test_a_damaged_checkpoint_is_named_with_what_to_do(
    bert: str, texts: str, tmp_path: Path, damage: str
) -> None:
    trainer = tiny.trainer(tmp_path, max_steps=1)
    trainer.fit(tiny.module(bert), datamodule=tiny.data(texts))
    path = tmp_path / "damaged.ckpt"
    trainer.save_checkpoint(path)
    content = bytearray(path.read_bytes())
    half = len(content) // 2
    if damage == "cut short":
        path.write_bytes(content[:half])
    elif damage == "a flipped byte":
        content[half] ^= 0x10
        path.write_bytes(content)
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "text":
        path.write_text("not a checkpoint")
    else:
        path.unlink()
    with pytest.raises((ValueError, FileNotFoundError), match=r"damaged\.ckpt.*; .*checkpoint|check --ckpt_path"):
        ContrastiveModule.load_from_checkpoint(path)
