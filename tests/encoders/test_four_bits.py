"""Weights of 4 bits under adapters: what is trained, what a checkpoint and a folder hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaModel

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.data import learn_vocabulary
from contrastive_text.encoders import LoRA, TransformerEncoder
from contrastive_text.encoders.adapters import _in_four_bits
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.poolers import LastTokenPooler
from contrastive_text.training.module import ContrastiveModule

bitsandbytes = pytest.importorskip("bitsandbytes", reason="the extra qlora isn't installed")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random Llama with a tokenizer learned from the texts."""
    folder = tmp_path_factory.mktemp("llama")
    tokenizer = learn_vocabulary(tiny.TEXTS, vocabulary_size=300)
    tokenizer.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=300, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, pad_token_id=0, initializer_range=0.1,
    )  # fmt: skip
    torch.manual_seed(0)
    LlamaModel(config).save_pretrained(folder)
    return str(folder)


def module_of(folder: str, **options: Any) -> ContrastiveModule:
    encoder = TransformerEncoder(folder, dropout=0.0, adapters=LoRA(rank=4, alpha=8.0), **options)
    torch.manual_seed(1)
    for name, weight in encoder.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(weight, std=0.1)
    return ContrastiveModule(encoder, LastTokenPooler(), optimizer=tiny.SGD())


def encoded(model: SentenceEncoder) -> Tensor:
    return torch.from_numpy(model.eval().encode(list(tiny.TEXTS[:6])))


def test_a_run_trains_adapters_over_packed_weights(llama: str, tmp_path: Path) -> None:
    module = module_of(llama, weights_dtype="nf4")
    packed = [part for part in module.modules() if _in_four_bits(part)]
    assert len(packed) == 14 and all(part.weight.dtype == torch.uint8 for part in packed)
    before = {name: value.clone() for name, value in module.named_parameters()}
    trainer = tiny.trainer(tmp_path, gradient_clip_val=0.1)
    trainer.fit(module, tiny.data(tiny.write_texts(tmp_path / "texts.txt")))
    moved = {name for name, value in module.named_parameters() if not torch.equal(value, before[name])}
    assert moved == {name for name in before if "lora_" in name}

    trainer.save_checkpoint(tmp_path / "kept.ckpt")
    kept = torch.load(tmp_path / "kept.ckpt", weights_only=True)["state_dict"]
    assert kept.keys() == moved
    again = ContrastiveModule.load_from_checkpoint(tmp_path / "kept.ckpt")
    vectors = encoded(module.sentence_encoder())
    assert torch.equal(encoded(again.sentence_encoder()), vectors)
    with pytest.raises(InvalidValueError, match="expected the weights on which the checkpoint's adapters"):
        ContrastiveModule.load_from_checkpoint(tmp_path / "kept.ckpt", encoder=module_of(llama).encoder)

    # The folder is plain: the values that packed weights stand for, with the adapters in them or beside them.
    found: list[Tensor] = []
    for name, beside in (("merged", False), ("beside", True)):
        module.sentence_encoder().save_pretrained(tmp_path / name, separate_adapters=beside)
        plain = SentenceEncoder.from_pretrained(tmp_path / name, device="cpu")
        assert not any(_in_four_bits(part) for part in plain.modules())
        found.append(encoded(plain))
        # Products in bfloat16, of 8 bits, against float32.
        assert float((found[-1] - vectors).norm() / vectors.norm()) < 0.03
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)
