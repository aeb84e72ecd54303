"""Precisions of a run: where it is half, the loss is not."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import torch
from steps import Watch, batches, weights_of

from contrastive_text.heads import TanhHead
from contrastive_text.losses import InfoNCE, Loss, NTXent
from contrastive_text.objectives import Contrastive
from contrastive_text.training.module import ContrastiveModule


def test_in_bf16_the_loss_is_float32_and_computed_in_float32(bert: str, texts: str, tmp_path: Path) -> None:
    watch = Watch()
    module = tiny.module(bert)
    before = weights_of(module)
    trainer = tiny.trainer(tmp_path, precision="bf16-mixed", callbacks=[watch])
    trainer.fit(module, datamodule=tiny.data(texts))
    assert [loss.dtype for loss in watch.losses] == [torch.float32] * 2
    assert all(bool(loss.isfinite()) for loss in watch.losses)
    assert all(value.dtype == torch.float32 for value in module.parameters())
    assert any(not torch.equal(before[name], value) for name, value in module.named_parameters())


@pytest.mark.parametrize("loss", [InfoNCE(), NTXent()], ids=["InfoNCE", "NTXent"])
def test_autocast_does_not_reach_into_the_loss(bert: str, texts: str, loss: Loss) -> None:
    module = tiny.module(bert, objectives={"c": Contrastive(loss=loss)})
    batch = batches(module, texts)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        encoded = module.encode(batch)
        inside = module.objectives["c"](encoded).total
    outside = module.objectives["c"](encoded).total
    assert encoded.embeddings.dtype == torch.float32
    # the same float32 operations; in bf16 cosines of 3 digits over a temperature of 0.05 would differ by 0.1
    torch.testing.assert_close(inside, outside, rtol=0, atol=1e-5)


def test_float64_stays_float64(bert: str, texts: str, tmp_path: Path) -> None:
    watch = Watch()
    module = tiny.module(bert, objectives={"c": Contrastive(head=TanhHead())})
    tiny.trainer(tmp_path, precision="64-true", callbacks=[watch]).fit(module, datamodule=tiny.data(texts))
    assert [loss.dtype for loss in watch.losses] == [torch.float64] * 2


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_a_head_takes_what_a_pooler_gives_in_half_precision(
    bert: str, texts: str, tmp_path: Path, precision: str
) -> None:
    module = ContrastiveModule.from_recipe("simcse", bert)
    trainer = tiny.trainer(tmp_path, max_steps=1, precision=precision)
    trainer.fit(module, datamodule=tiny.data(texts))
    assert torch.isfinite(trainer.callback_metrics["train/loss"])
