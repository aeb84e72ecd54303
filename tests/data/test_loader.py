"""Settings of a trainer under which batches would be others are refused before the first batch."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import tiny
from pytorch_lightning.callbacks import BatchSizeFinder
from torch.utils.data import DataLoader

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.data import KeyedRow
from contrastive_text.data.loader import KeyedRows


class Texts(pl.Callback):
    """Notes the texts of each batch."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002  # Lightning's
        self.seen.append(batch.text_ids.tolist())


def test_overfitting_takes_the_same_rows_in_every_epoch(bert: str, tmp_path: Path) -> None:
    seen = {}
    for batches in (0.0, 2):
        texts = Texts()
        trainer = tiny.trainer(
            tmp_path,
            callbacks=[texts],
            overfit_batches=batches,
            limit_train_batches=2,
            max_steps=-1,
            max_epochs=3,
        )
        trainer.fit(tiny.module(bert), tiny.data(tiny.write_texts(tmp_path / "texts.txt")))
        assert len(texts.seen) == 6
        seen[batches] = texts.seen
    assert seen[2][:2] == seen[2][2:4] == seen[2][4:]
    assert seen[0.0][:2] == seen[2][:2]
    assert seen[0.0][2:4] != seen[2][2:4]


def test_lightning_s_own_sampler_is_refused_over_several_processes(bert: str, tmp_path: Path) -> None:
    data = tiny.data(
        tiny.write_texts(tmp_path / "texts.txt"), validation=tiny.write_pairs(tmp_path / "pairs.tsv")
    )
    for devices, injects, refused in ((2, True, True), (2, False, False), (1, True, False)):
        data.trainer = tiny.trainer(tmp_path, devices=devices, strategy="ddp", use_distributed_sampler=injects)
        data.trainer.strategy._lightning_module = tiny.module(bert)
        for stage in ("fit", "validate"):
            if refused:
                with pytest.raises(
                    InvalidValueError, match="use_distributed_sampler: expected False with several"
                ):
                    data.setup(stage)
            else:
                data.setup(stage)


def test_a_search_for_the_batch_size_is_refused_with_what_to_take(bert: str, tmp_path: Path) -> None:
    trainer = tiny.trainer(tmp_path, callbacks=[BatchSizeFinder()])
    with pytest.raises(InvalidValueError, match=r"expected no BatchSizeFinder, got one; .* --chunk auto"):
        trainer.fit(tiny.module(bert), tiny.data(tiny.write_texts(tmp_path / "texts.txt")))


class Millions:
    """Three million rows, none of them in memory."""

    def __len__(self) -> int:
        return 3_000_000

    def __getitem__(self, number: int) -> dict[str, str]:
        return {"text": str(number)}


def test_rows_to_predict_come_in_order_without_a_list_of_them() -> None:
    tracemalloc.start()
    try:
        batches = iter(DataLoader(KeyedRows({"texts": Millions()}), batch_size=2, collate_fn=list))
        seen = [next(batches) for _ in range(2)]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert seen[1] == [KeyedRow(0, number, {"text": str(number)}, "texts") for number in (2, 3)]
    assert peak < 1_000_000
