"""A run with adapters that is resumed at any step, in every layout of it, ends with the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from resume.runs import check_same, flat
from torch import Tensor

from contrastive_text.encoders import LoRA, TransformerEncoder
from contrastive_text.heads import MLPHead
from contrastive_text.objectives import Contrastive, Duplicates, Momentum, Queue, Siblings
from contrastive_text.training import AtomicCheckpointIO, Schedule
from contrastive_text.training.module import ContrastiveModule

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),  # each run has a folder of its own
]


def run(
    folder: Path,
    bert: str,
    schedule: Schedule | None = None,
    resume: str | None = None,
    callbacks: tuple[Callback, ...] = (),
    **options: Any,
) -> dict[str, Tensor]:
    """Trains six steps of two epochs, keeps every one, and returns the last weights."""
    torch.manual_seed(0)
    module = ContrastiveModule(
        TransformerEncoder(bert, adapters=LoRA(rank=4, dropout=0.2)),
        objectives={
            "c": Contrastive(
                head=MLPHead(dropout=0.2), columns=[Duplicates(), Siblings(), Queue(16), Momentum(0.9)]
            )
        },
        chunk_tokens=40,
        schedule=schedule,
    )
    folder.mkdir(parents=True, exist_ok=True)
    keep = ModelCheckpoint(folder / "kept", filename="{step}", save_top_k=-1, every_n_train_steps=1)
    trainer = tiny.trainer(
        folder,
        max_steps=6,
        enable_checkpointing=True,
        callbacks=[*callbacks, keep],
        plugins=[AtomicCheckpointIO()],
        **options,
    )
    data = tiny.data(tiny.write_texts(folder / "texts.txt", tiny.TEXTS[:24]))
    trainer.fit(module, data, ckpt_path=resume, weights_only=True)
    assert trainer.global_step == 6
    return dict(flat(module.state_dict()))


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny.save_bert(tmp_path_factory.mktemp("bert") / "bert")


@pytest.mark.parametrize("options", [{}, {"accumulate_grad_batches": 2}, {"precision": "64-true"}], ids=str)
def test_at_every_step(options: dict[str, Any], bert: str, tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", bert, **options)
    assert any(name.startswith("momentum.") for name in whole)
    for step in range(1, 6):
        resume = str(tmp_path / "whole" / "kept" / f"step={step}.ckpt")
        check_same(whole, run(tmp_path / str(step), bert, resume=resume, **options))
