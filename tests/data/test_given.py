"""Rows from Python through a data module: the batches of a file, and what a checkpoint keeps of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import tiny
import torch

from contrastive_text import Run
from contrastive_text.core.errors import ContrastiveTextError
from contrastive_text.data import TextTask
from contrastive_text.data.datamodule import TextDataModule
from contrastive_text.pairings import Given

ROWS = [{"query": one, "pos": other} for one, other in zip(tiny.TEXTS[:12], tiny.TEXTS[12:24], strict=True)]


def forms(folder: Path) -> dict[str, Any]:
    """Returns the same rows in every form, a file first."""
    path = folder / "rows.tsv"
    path.write_text("".join(f"{one}\t{other}\n" for one, other in [("query", "pos"), *map(dict.values, ROWS)]))
    forms: dict[str, Any] = {"file": str(path), "dicts": ROWS, "tuples": [tuple(row.values()) for row in ROWS]}
    for library, make in (("pandas", "DataFrame"), ("polars", "DataFrame"), ("datasets", "Dataset")):
        found = getattr(pytest.importorskip(library), make)
        forms[library] = found.from_list(ROWS) if library == "datasets" else found(ROWS)
    return forms


def batches(bert: str, data: TextDataModule) -> list[dict[str, Any]]:
    """The fields of each batch, tensors as lists."""
    data.attach(tiny.module(bert))
    data.setup("fit")
    given = [batch.batches["one"] if data.tasks else batch for batch in data.train_dataloader()]
    return [
        {
            name: value.tolist() if isinstance(value, torch.Tensor) else value
            for name, value in vars(batch).items()
        }
        for batch in given
    ]


def test_every_form_gives_the_batches_of_a_file(bert: str, tmp_path: Path) -> None:
    found = {
        name: batches(bert, TextDataModule(train=given, task=TextTask(pairing=Given()), batch_size=4))
        for name, given in forms(tmp_path).items()
    }
    assert all(each == found["file"] for each in found.values()), found.keys()
    assert len(found["file"]) == 3


@pytest.mark.slow
def test_a_checkpoint_keeps_the_record_and_asks_for_the_rows_again(bert: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False}
    options |= {"enable_progress_bar": False, "enable_model_summary": False}
    path = tmp_path / "a.ckpt"
    data = TextDataModule(train=ROWS, task=TextTask(pairing=Given()), batch_size=4)
    trainer = pl.Trainer(max_steps=1, **options)
    trainer.fit(tiny.module(bert), datamodule=data)
    trainer.save_checkpoint(path)
    saved = torch.load(path, weights_only=True)
    record = saved["datamodule_hyper_parameters"]["train"]
    assert type(record) is str
    assert record.startswith("given:list:12:")
    with pytest.raises(ContrastiveTextError, match=rf"data\.train: .* got their record alone \({record}\)"):
        TextDataModule.load_from_checkpoint(path)
    again = TextDataModule.load_from_checkpoint(path, train=ROWS)
    assert str(again.train) == record
    others = TextDataModule(train=ROWS[:11] + ROWS[:1], task=TextTask(pairing=Given()), batch_size=4)
    for given in (again, others):
        resumed = pl.Trainer(max_steps=2, **options)
        if given is again:
            resumed.fit(tiny.module(bert), datamodule=given, ckpt_path=path)
            assert resumed.global_step == 2
        else:
            with pytest.raises(ContrastiveTextError, match="of train of the checkpoint, got other rows of list"):
                resumed.fit(tiny.module(bert), datamodule=given, ckpt_path=path)


@pytest.mark.slow
def test_a_run_takes_rows_and_its_configuration_their_record(bert: str, tmp_path: Path) -> None:
    texts = [{"text": text} for text in tiny.TEXTS]
    options: dict[str, Any] = {"encoder": bert, "batch_size": 4, "fast_dev_run": 1, "accelerator": "cpu"}
    run = Run.from_recipe("simcse", train=texts, default_root_dir=str(tmp_path), **options)
    assert run.data.hparams["train"].startswith("given:list:40:")
    run.fit()
    data = TextDataModule.from_recipe("simcse", tasks={"one": TextTask(train=texts)}, batch_size=4)
    assert batches(bert, data) == batches(
        bert, TextDataModule(tasks={"one": TextTask(train=texts)}, batch_size=4)
    )
    with pytest.raises(ContrastiveTextError, match=r"read more than once, got a generator"):
        TextTask(train=(text for text in texts))
