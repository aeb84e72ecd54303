"""Helpers for tests of resumed runs: a run over three tasks that stores every step, and comparisons of runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import several
import tiny
import torch
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from torch import Tensor

from contrastive_text.core.distributed import full_tensor
from contrastive_text.data import Mixture, TextTask
from contrastive_text.heads import ProjectorHead
from contrastive_text.objectives import Contrastive, Duplicates, Momentum, Queue, Siblings
from contrastive_text.training import AtomicCheckpointIO
from contrastive_text.views import FeatureCutoff, SwapWords


def run(
    folder: Path,
    bert: str,
    tasks: dict[str, TextTask] | None,
    steps: int,
    mixture: Mixture | None = None,
    resume: str | None = None,
    workers: int = 0,
    accumulate: int = 1,
    dropout: float = 0.2,
    callbacks: tuple[Callback, ...] = (),
    data: dict[str, Any] | None = None,
    computed_above: int | None = None,
    parts: dict[str, Any] | None = None,
    **options: Any,
) -> dict[str, Tensor]:
    """Trains with dropout, drawing views, running statistics and a queue of keys; gives the last weights.

    Every step is kept. Without tasks it trains on texts alone. ``parts`` are the module's, ``options`` the
    trainer's.
    """
    views = {"anchor": [SwapWords(0.3)], "positive": [FeatureCutoff(0.2)]}
    columns = [Duplicates(), Siblings(), Queue(20), Momentum(0.9)]
    contrastive = Contrastive(task=tasks and "sst", head=ProjectorHead(last_norm=True), columns=columns)
    if tasks is None:
        torch.manual_seed(0)
        module = tiny.module(bert, dropout, objectives={"contrastive": contrastive}, views=views)
        loaded = tiny.data(tiny.write_texts(folder.parent / "texts.txt"), num_workers=workers)
    else:
        module = several.module(bert, dropout, contrastive=contrastive, views={"sst": views}, **(parts or {}))
        loaded = several.data(tasks, mixture, num_workers=workers, **(data or {}))
    keep = ModelCheckpoint(folder, filename="{step}", save_top_k=-1, every_n_train_steps=1)
    trainer = tiny.trainer(
        folder,
        enable_checkpointing=True,
        callbacks=[*callbacks, keep],
        gradient_clip_val=1.0,
        accumulate_grad_batches=accumulate,
        plugins=[AtomicCheckpointIO()],
        **{"max_steps": steps, **options},
    )
    with tiny.computed_above(computed_above):
        trainer.fit(module, loaded, ckpt_path=resume, weights_only=True)
    assert trainer.global_step == steps
    return dict(flat(module.state_dict()))


def flat(state: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yields copies of all tensors with their names, those of extra state too; of split weights whole ones."""
    for name, part in state.items():
        if isinstance(part, Mapping):
            yield from flat(part, f"{above}{name}.")
        elif isinstance(part, Tensor):
            yield f"{above}{name}", full_tensor(part).clone()


def check_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, weight in one.items():
        assert torch.equal(weight, other[name]), name


def check_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    """Holds two runs with all that a run may carry, networks of objectives and a queue, to the same bits."""
    check_same(one, other)
    assert {name.partition(".")[0] for name in one} >= {"encoder", "momentum", "objectives"}
    assert any(name.endswith("_extra_state.texts.vectors") for name in one)  # the queue


class KeepValidated(ModelCheckpoint):
    """Keeps a checkpoint of every validation, and notes how far from the end of a step it was."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, filename="validated", save_top_k=-1)
        self.inside: list[bool] = []

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002  # Lightning's
        batches = trainer.fit_loop.epoch_loop.batch_progress.current.completed
        self.inside.append(batches % trainer.accumulate_grad_batches > 0 and not trainer.is_last_batch)
        trainer.save_checkpoint(Path(self.dirpath or "") / f"{len(self.inside)}.ckpt")

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Keeps nothing."""
