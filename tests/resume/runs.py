"""What the tests of resumed runs share: a run over three tasks that keeps every step, and what equals it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import several
import tiny
import torch
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from torch import Tensor

from contrastive_text.core.distributed import whole
from contrastive_text.data import AllTasks, BatchRoundRobin, EpochRoundRobin, Fusion, Mixture, TextTask
from contrastive_text.heads import ProjectorHead
from contrastive_text.objectives import Contrastive, Duplicates, Momentum, Queue, Siblings
from contrastive_text.training import AtomicCheckpointIO, Combine, Optimizer, Schedule
from contrastive_text.views import FeatureCutoff, SwapWords

FUSION = Fusion([["sentiment", "paraphrase", "similarity"], ["contrastive"]])
MIXTURES: dict[str, Mixture] = {
    "all": AllTasks(),
    "by size": AllTasks(temperature=1.0),
    "batch round robin": BatchRoundRobin(),
    "epoch round robin": EpochRoundRobin(),
    "fusion": FUSION,
}


def run(
    folder: Path,
    bert: str,
    tasks: dict[str, TextTask],
    steps: int,
    mixture: Mixture | None = None,
    combine: Combine | None = None,
    resume: str | None = None,
    workers: int = 0,
    accumulate: int = 1,
    dropout: float = 0.2,
    callbacks: tuple[Callback, ...] = (),
    data: dict[str, Any] | None = None,
    computed_above: int | None = None,
    schedule: Schedule | None = None,
    optimizer: Optimizer | None = None,
    **options: Any,
) -> dict[str, Tensor]:
    """Trains with dropout, drawing views, running statistics and a queue of keys; gives the last weights.

    Every step is kept.
    """
    module = several.module(
        bert,
        dropout=dropout,
        combine=combine,
        schedule=schedule,
        **({} if optimizer is None else {"optimizer": optimizer}),
        contrastive=Contrastive(
            task="sst",
            head=ProjectorHead(last_norm=True),
            columns=[Duplicates(), Siblings(), Queue(20), Momentum(0.9)],
        ),
        views={"sst": {"anchor": [SwapWords(0.3)], "positive": [FeatureCutoff(0.2)]}},
    )
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
    loaded = several.data(tasks, mixture, num_workers=workers, **(data or {}))
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
            yield f"{above}{name}", whole(part).clone()


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
