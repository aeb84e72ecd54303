"""Around the training: what is said at the start, which weights are kept, what is left for use."""

from __future__ import annotations

import os
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from rich.table import Table
from rich.text import Text

from contrastive_text.core.console import console
from contrastive_text.core.disk import remove_abandoned
from contrastive_text.core.errors import InvalidTypeError, InvalidValueError
from contrastive_text.core.terminal import say
from contrastive_text.data import TextDataModule
from contrastive_text.distributed import world_size
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.model_writing import check_loadable
from contrastive_text.module import ContrastiveModule
from contrastive_text.objectives import Objective
from contrastive_text.sentence_encoder import SentenceEncoder
from contrastive_text.specs import describe
from contrastive_text.training import Schedule
from contrastive_text.training.checkpoint_io import copy_checkpoint, local_path
from contrastive_text.training.checkpoints import verify_checkpoint

PAIR_SCORE = "val/spearman"
"""Mean correlation of the files of scored pairs."""
TASK_SCORE = "val/overall"
"""Mean score of the tasks."""
_STARTS_FROM = "starts from"
_LIBRARIES = ("contrastive-text", "torch", "transformers", "tokenizers", "pytorch-lightning")
"""Whose versions a run says."""


def model_facts(module: ContrastiveModule) -> dict[str, str]:
    """Gives what a reader of the results should know of the model: parts, rates, dropout in effect."""
    weights = sum(p.numel() for p in module.encoder.parameters())
    plans = {"": module.plan, **{f"{task}, ": plan for task, plan in module.by_task.own_plans.items()}}
    chains = [
        f"{task}{name}: {' -> '.join(map(describe, chain)) or 'unaltered'}"
        for task, plan in plans.items()
        for name, chain in plan.chains.items()
    ]
    dropout = ", ".join(f"{name} {p:g}" for name, p in module.encoder.dropout_in_effect.items() if p)
    parts = module.objective_parts().items()
    token_head = module.encoder.token_head if isinstance(module.encoder, TransformerEncoder) else None
    origin = "" if token_head is None else "the checkpoint's" if token_head.pretrained else "starts at random"
    layout, why = module.encoder.layout_on(module.device)
    chunks = "whole batches" if module.chunk_tokens is None else f"chunks of {module.chunk_tokens:,} tokens"
    return {
        "encoder": f"{describe(module.encoder)}; {weights / 1e6:.1f} M weights",
        **({"token head": origin} if origin else {}),
        "layout": f"{layout}: {why}; {chunks}",
        "dropout": dropout or "none",
        "views": "\n".join(chains) or "none",
        "pooler": f"{describe(module.pooler)} in training, {describe(module.used_network.pooler)} in use",
        "head in use": "none" if module.head is None else describe(module.head),
        "objectives": "\n".join(f"{name}: {module.weights[name]:g} x {describe(part)}" for name, part in parts),
        **({"gradient": describe(module.combine)} if len(parts) > 1 else {}),
        "optimizer": f"{describe(module.optimizer)}\n{describe(module.schedule)}",
        "libraries": ", ".join(f"{name} {version(name)}" for name in _LIBRARIES),
    }


def step_facts(trainer: pl.Trainer, module: ContrastiveModule, data: TextDataModule) -> dict[str, str]:
    """Gives what happens in a step: the effective number of negatives, ranks, steps, precision."""
    negatives = [
        f"{name}: {said}" for name, part in module.objective_parts().items() if (said := _negatives(part, data))
    ]
    of = {task: f" of {task}" if data.tasks else "" for task in data.training}
    rows = ", ".join(f"{data.rows_per_step(task)} rows{of[task]}" for task in data.training)
    interval = vars(trainer).get("val_check_interval")
    total = trainer.estimated_stepping_batches
    peak = _peak(module.schedule, int(total)) if total < float("inf") else 1.0
    below = (
        f"; the learning rate comes to {peak:.0%} of its peak at most: a shorter warm-up?" if peak < 0.9 else ""
    )
    validated = (
        f"every {interval} batches" if isinstance(interval, int) else "by share of an epoch, or by the clock"
    )
    merged = trainer.accumulate_grad_batches > 1 and len(data.step_kinds()) > 1
    turns = ", so that turns of the mixture share an optimiser step" if merged else ""
    return {
        "negatives": "\n".join(negatives) or "none",
        "validated": f"{validated}; {_monitored(data)}" if data.table("validation") else "never",
        "step": (
            f"{rows} over {world_size()} process{'es' if world_size() > 1 else ''}, "
            f"accumulated over {trainer.accumulate_grad_batches}{turns}; gradient norm clipped at "
            f"{trainer.gradient_clip_val}; precision {trainer.precision}"
        ),
        "run": (
            f"{f'{total:,.0f}' if total < float('inf') else 'an unknown number of'} steps, seed {data.seed}, "
            f"a last, smaller batch {'left out' if data.drop_last else 'kept'}{below}"
        ),
    }


def _negatives(objective: Objective, data: TextDataModule) -> str | None:
    training = data.data_of(objective.task)
    roles = [slot.role for slot in training.slots]
    task = objective.task or next(iter(data.training))
    examples = data.rows_per_step(task) * training.examples_per_row
    return objective.describe_negatives(examples, roles.count("positive"), roles.count("negative"))


def _monitored(data: TextDataModule) -> str:
    """Says which score chooses the best checkpoint, and what is not part of it."""
    scored = data.table("validation")
    tasks = [task for task in data.tasks or () if task in scored]
    if not tasks:
        return f"the best is chosen by {PAIR_SCORE}, unless checkpoint.monitor names another"
    others = [task for task in data.tasks or () if task not in scored]
    left_out = f"; {', '.join(others)} without validation files" if others else ""
    means = f"the mean over {', '.join(tasks)}{left_out}"
    return f"the best is chosen by {TASK_SCORE}, {means}, unless checkpoint.monitor names another"


def _peak(schedule: Schedule, total: int) -> float:
    """Gives the largest share of the peak rate that a run of so many steps reaches."""
    return max((schedule.factor(step, total) for step in range(0, total, max(1, total // 1000))), default=1.0)


def _data(trainer: pl.Trainer) -> TextDataModule | None:
    data = getattr(trainer, "datamodule", None)  # Lightning sets it, undeclared
    return data if isinstance(data, TextDataModule) else None


def _validation_interval(trainer: pl.Trainer, data: TextDataModule) -> int | float:
    """Gives the run's interval in batches, shortened where an epoch or the run has fewer."""
    wanted, limit = trainer.val_check_interval, trainer.limit_train_batches
    epoch = data.batches_per_epoch()
    epoch = min(limit, epoch) if isinstance(limit, int) else max(1, int(limit * epoch))
    if not isinstance(wanted, int):
        batches = trainer.max_steps * trainer.accumulate_grad_batches
        if trainer.max_steps < 1 or batches >= wanted * epoch:
            return wanted
        wanted = max(1, int(wanted * epoch))
    bounds = [wanted]
    if trainer.check_val_every_n_epoch is not None:
        bounds.append(epoch)
    if trainer.max_steps > 0:
        bounds.append(trainer.max_steps * trainer.accumulate_grad_batches)
    return min(bounds)


def _print_read(trainer: pl.Trainer, part: str) -> None:
    if trainer.is_global_zero and (data := _data(trainer)) is not None:
        for table in data.table(part).values():
            say(table.understood)


class RunSummary(Callback):
    """Prints, before the first step, everything that changes the result, and keeps it in every checkpoint.

    Args:
        starts_from: What ``stages.start_from`` said, where a second stage starts from the weights of a first.
    """

    def __init__(self, starts_from: str | None = None) -> None:
        self.starts_from = starts_from
        self.facts: dict[str, str] = {}

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Collects the facts and prints them on the first rank."""
        self.facts = {} if self.starts_from is None else {_STARTS_FROM: self.starts_from}
        if isinstance(pl_module, ContrastiveModule):
            self.facts |= model_facts(pl_module)
            if (data := _data(trainer)) is not None:
                self.facts |= data.facts() | step_facts(trainer, pl_module, data)
        if trainer.is_global_zero:
            table = Table("", "in this run", title="What makes the result", title_justify="left")
            for name, fact in self.facts.items():
                table.add_row(name, Text(fact))
            console().print(table)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002  # Lightning's signature
        """Prints how the files were understood, where nothing is trained."""
        if trainer.state.fn != "fit":
            _print_read(trainer, "validation")

    def on_test_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002  # Lightning's signature
        """Prints how the files were understood."""
        _print_read(trainer, "test")

    def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002  # Lightning's signature
        """Prints how the files were understood."""
        _print_read(trainer, "predict")

    def state_dict(self) -> dict[str, Any]:  # Any: Lightning's signature
        """Gives the facts for the checkpoint."""
        return dict(self.facts)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:  # Any: Lightning's signature
        """Takes over, when a run is resumed, what its first weights were."""
        self.starts_from = self.starts_from or state_dict.get(_STARTS_FROM)


class BestCheckpoint(ModelCheckpoint):
    """Keeps the checkpoint of the best validation score, the first of equals; without validation the last.

    Every checkpoint says what its own weights scored in all validation figures, by which an ensemble chooses.

    Source: the authors' code of SimCSE (Gao et al. 2021) selects on the STS-B development set.

    Args:
        dirpath: Folder; None for ``checkpoints`` in the run's folder.
        monitor: The score; None for ``val/overall`` where tasks are validated, else ``val/spearman``.
        mode: ``max`` or ``min``.
    """

    def __init__(self, dirpath: str | None = None, monitor: str | None = None, mode: str = "max") -> None:
        if mode not in ("max", "min"):
            raise InvalidValueError(f"checkpoint.mode: expected max or min, got {mode!r}; max keeps the highest")
        super().__init__(dirpath=dirpath, filename="{step}", monitor=monitor, mode=mode, save_top_k=1)
        self._asked = monitor
        self._figures: dict[str, float] = {}
        self._validated: dict[str, int] = {}
        self._figures_step = -1
        self._run = ""

    @property
    def state_key(self) -> str:
        """The name of its state in a checkpoint: by the monitor that was asked for, which every command knows."""
        return f"BestCheckpoint{{'monitor': {self._asked!r}}}"

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Sees to a score before the run ends, and does without one where there is no validation data."""
        if stage == "fit" and (data := _data(trainer)) is not None:
            if "val_check_interval" in vars(trainer):  # absent where validation goes by the clock
                trainer.val_check_interval = _validation_interval(trainer, data)
            scored = data.table("validation")
            self._validated = {name: table.identity for name, table in scored.items()}
            self.monitor = self.monitor or (TASK_SCORE if any(map(scored.get, data.tasks or ())) else PAIR_SCORE)
            # Left to itself Lightning takes an interval of 1 batch for 1.0 epochs, and saves too late.
            self._save_on_train_epoch_end = not scored
            if not scored:
                self.monitor = None
        super().setup(trainer, pl_module, stage)
        if stage == "fit":
            self._run = os.path.realpath(trainer.log_dir or trainer.default_root_dir)  # all ranks ask
        folder = local_path(self.dirpath or "")
        if stage == "fit" and trainer.is_global_zero and folder is not None:
            remove_abandoned(folder)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Notes the figures before a checkpoint is written."""
        named = trainer.callback_metrics.items()
        self._figures = {name: float(figure) for name, figure in named if name.startswith("val/")}
        self._figures_step = trainer.global_step
        trains = trainer.state.fn == "fit" and not trainer.sanity_checking
        if trains and self.monitor is not None and self.monitor not in trainer.callback_metrics:
            there = ", ".join(sorted(self._figures))
            raise InvalidValueError(
                f"checkpoint.monitor: expected a figure of the validation ({there}), got {self.monitor}; name "
                "one of these, or leave it out"
            )
        super().on_validation_end(trainer, pl_module)

    def state_dict(self) -> dict[str, Any]:  # Any: Lightning's signature
        """Gives the best so far, the last validation's figures, step and rows, and the run's folder."""
        figures = {"figures": dict(self._figures), "figures_step": self._figures_step}
        return {**super().state_dict(), **figures, "validated": dict(self._validated), "run": self._run}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:  # Any: Lightning's signature
        """Takes over the best so far into the resumed run's own folder; one that is gone is forgotten."""
        best = state_dict.get("best_model_path")
        if best and not Path(best).is_file():
            warnings.warn(
                f"the best checkpoint so far is gone ({best}): the best from here on is kept", stacklevel=2
            )
            state_dict = {
                name: part
                for name, part in state_dict.items()
                if name in ("figures", "figures_step", "validated")
            }
        super().load_state_dict({**self.state_dict(), **state_dict, "dirpath": self.dirpath})

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Copies the best of the run that was resumed, where this one has found none better."""
        super().on_train_end(trainer, pl_module)
        best, folder = Path(self.best_model_path), Path(self.dirpath or "")
        if self.best_model_path and self.dirpath and folder.absolute() not in best.absolute().parents:
            if trainer.is_global_zero:
                copy_checkpoint(best, folder / best.name)
            trainer.strategy.barrier()
            self.best_model_path = str(folder / best.name)


class ExportModel(Callback):
    """Loads the best checkpoint after training and saves it for use, as a folder to load anywhere.

    Args:
        dirpath: The folder; None for ``model`` in the run's folder.
    """

    def __init__(self, dirpath: str | None = None) -> None:
        self.dirpath = dirpath

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002  # Lightning's signature
        """Refuses an encoder that couldn't be loaded again, such as one with LoRA put in."""
        if isinstance(pl_module, ContrastiveModule) and isinstance(pl_module.encoder, TransformerEncoder):
            check_loadable(pl_module.encoder, where="ExportModel")

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Reloads the best weights on every rank and writes the folder on the first."""
        ours = [found for found in trainer.checkpoint_callbacks if isinstance(found, BestCheckpoint)]
        others = [found for found in trainer.checkpoint_callbacks if isinstance(found, ModelCheckpoint)]
        checkpoint = next(iter([*ours, *others]), None)
        best = "" if checkpoint is None else checkpoint.best_model_path
        if best:
            verify_checkpoint(best)
            state = torch.load(best, map_location=pl_module.device, weights_only=True)["state_dict"]
            pl_module.load_state_dict(state)
        # All ranks ask for the run's folder.
        folder = Path(self.dirpath or Path(trainer.log_dir or trainer.default_root_dir) / "model")
        if not trainer.is_global_zero or not isinstance(pl_module, ContrastiveModule):
            return
        if not isinstance(pl_module.encoder, TransformerEncoder):
            console().print(f"No model folder: {type(pl_module.encoder).__name__} has no format for one.")
            return
        remove_abandoned(folder.parent)
        export(pl_module).save_pretrained(folder)
        said = ""
        if checkpoint is not None and checkpoint.best_model_score is not None:
            said = f" (best {checkpoint.monitor} {float(checkpoint.best_model_score):.2f}, {Path(best).stem})"
        screen = console(soft_wrap=True)
        screen.print(f"Model saved to {folder}{said}. Next:")
        screen.print(f"  contrastive-text embed TEXTS.txt VECTORS.npy --model {folder}")


def export(module: ContrastiveModule) -> SentenceEncoder:
    """Gives a trained module as the encoder that inference uses: no view, no train-only head.

    Raises:
        TypeError: An encoder that isn't a ``TransformerEncoder``.
    """
    if not isinstance(module.encoder, TransformerEncoder):
        raise InvalidTypeError(f"export: expected a TransformerEncoder, got {type(module.encoder).__name__}")
    network = None if module.head is None else module.head.network
    return SentenceEncoder(module.encoder, module.used_network.pooler, head=network)
