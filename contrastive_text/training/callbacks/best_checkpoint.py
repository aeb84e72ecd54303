"""Which weights of a run are kept."""

from __future__ import annotations

import math
import os
import warnings
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint

from contrastive_text.core.checks import one_of
from contrastive_text.core.config.specs import describe
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage.checkpoints import BestSoFar
from contrastive_text.core.storage.disk import remove_abandoned
from contrastive_text.core.terminal import say
from contrastive_text.data import TextDataModule
from contrastive_text.metrics.verdicts import usual_mode
from contrastive_text.training.checkpoint_io import copy_checkpoint, local_path
from contrastive_text.training.held_out import RANK_SCORE
from contrastive_text.training.module import ContrastiveModule

PAIR_SCORE = "val/spearman"
"""Mean correlation of the files of scored pairs."""
TASK_SCORE = "val/overall"
"""Mean score of the tasks."""
RANKING_SCORE = f"val/{RANK_SCORE}"
"""Mean nDCG@10 of the retrieval sets."""


def monitored(data: TextDataModule) -> str:
    """Says which score chooses the best checkpoint, and what is not part of it."""
    scored = data.table("validation")
    tasks = [task for task in data.tasks or () if task in scored]
    if not tasks:
        return f"the best is chosen by {usual_score(data)}, unless checkpoint.monitor names another"
    others = [task for task in data.tasks or () if task not in scored]
    left_out = f"; {', '.join(others)} without validation files" if others else ""
    means = f"the mean over {', '.join(tasks)}{left_out}"
    return f"the best is chosen by {TASK_SCORE}, {means}, unless checkpoint.monitor names another"


def usual_score(data: TextDataModule) -> str:
    """Returns the figure that chooses where none is named.

    It is the score of tasks, else of scored pairs, else of rankings, else the loss of the first objective.
    """
    scored = data.table("validation")
    if any(task in scored for task in data.tasks or ()):
        return TASK_SCORE
    if scored or not (data.held_out_rows or data.tables.ranked):
        return PAIR_SCORE
    return RANKING_SCORE if data.tables.ranked else f"val/{data.held_out_rows[0].objectives[0]}/loss"


def data_of(trainer: pl.Trainer) -> TextDataModule | None:
    """Returns the data module of a run; None where its loaders were given by hand."""
    data = getattr(trainer, "datamodule", None)  # Lightning sets it, undeclared
    return data if isinstance(data, TextDataModule) else None


def _validation_interval(trainer: pl.Trainer, data: TextDataModule) -> int | float:
    """Returns the run's interval in batches, shortened where an epoch or the run has fewer."""
    wanted, limit = trainer.val_check_interval, trainer.limit_train_batches
    epoch = len(data.training.steps)
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


class BestCheckpoint(ModelCheckpoint):
    """Keeps the checkpoint of the best validation score, the first of equals; without any score the last.

    Every checkpoint says what its own weights scored in all validation figures, by which an ensemble chooses, and
    what the weights before the first step scored, if they were validated (``num_sanity_val_steps`` -1).

    A resumed run keeps the best so far only if its score means the same: by the same figure, of the same rows,
    vectors and objectives. Otherwise the best starts again, and so does ``EarlyStopping``; a line says why.

    Source: the authors' code of SimCSE (Gao et al. 2021) selects on the STS-B development set.

    Args:
        dirpath: Folder; None for ``checkpoints`` in the run's folder.
        monitor: The score; None for ``val/overall`` where tasks are validated, else ``val/spearman``, else
            ``val/ndcg@10``, else the first objective's ``val/OBJECTIVE/loss``.
        mode: ``max`` or ``min``; None for ``min`` of a loss or another figure that is good where it is low.
    """

    def __init__(self, dirpath: str | None = None, monitor: str | None = None, mode: str | None = None) -> None:
        one_of("checkpoint.mode", mode, ("max", "min"), "max keeps the highest")
        self._asked, self._asked_mode = monitor, mode
        mode = mode or usual_mode(monitor or PAIR_SCORE)
        super().__init__(dirpath=dirpath, filename="{step}", monitor=monitor, mode=mode, save_top_k=1)
        self._figures: dict[str, float] = {}
        self._validated: dict[str, int] = {}
        self._figures_step = -1
        self._run = ""
        self._resumes: Path | None = None
        self._start: dict[str, float] = {}
        self._basis: dict[str, str] = {}

    @property
    def state_key(self) -> str:
        """Name of its state in a checkpoint, the same for every monitor: the state says what the score means."""
        return type(self).__qualname__

    @property
    def best(self) -> BestSoFar:
        """The best so far, with the score before the first step."""
        score = None if self.best_model_score is None else float(self.best_model_score)
        return BestSoFar(self.monitor, score, self.best_model_path, start=self._start, mode=self.mode)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Sees to a score before the run ends, and does without one where there is no validation data."""
        if stage == "fit" and (data := data_of(trainer)) is not None:
            if "val_check_interval" in vars(trainer):  # absent where validation goes by the clock
                trainer.val_check_interval = _validation_interval(trainer, data)
            self._validated = data.tables.validated
            if self.monitor is None:
                self.monitor = usual_score(data)
                self.mode = self._asked_mode or usual_mode(self.monitor)
                self.kth_value = torch.tensor(math.inf if self.mode == "min" else -math.inf)
            # Left to itself Lightning takes an interval of 1 batch for 1.0 epochs, and saves too late.
            self._save_on_train_epoch_end = not self._validated
            if not self._validated:
                self.monitor = None
            self._basis = self._describe_basis(trainer, pl_module, data)
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
        if trainer.sanity_checking and trainer.num_sanity_val_steps == math.inf:  # asked for by -1
            self._start = self._figures
        trains = trainer.state.fn == "fit" and not trainer.sanity_checking
        if trains and self.monitor is not None and self.monitor not in trainer.callback_metrics:
            there = ", ".join(sorted(self._figures))
            raise InvalidValueError(
                f"checkpoint.monitor: expected a figure of the validation ({there}), got {self.monitor}; name "
                "one of these, or leave it out"
            )
        super().on_validation_end(trainer, pl_module)

    def _describe_basis(
        self, trainer: pl.Trainer, module: pl.LightningModule, data: TextDataModule
    ) -> dict[str, str]:
        """Returns what the monitored score depends on beside the weights, by name."""
        basis = {
            "score": f"{self.monitor} ({self.mode})",
            "validation rows": repr(sorted(self._validated.items())),
        }
        basis["limit_val_batches"] = str(trainer.limit_val_batches)
        if not isinstance(module, ContrastiveModule):
            return basis
        named = (self.monitor or "").split("/")
        read = {
            name: describe(part)
            for name, part in module.objective_parts().items()
            if self.monitor == TASK_SCORE or {name, part.task} & {*named}
        }
        if read:
            basis |= {"objectives": repr(read), "pooler in training": describe(module.pooler)}
        if named[-1] == "loss":
            basis["batch_size"] = str(data.batch_size)
        pooler, features = describe(module.inference_embedder.pooler), module.by_task.truncate_dim
        return {**basis, "pooler in use": pooler, "saved features": str(features)}

    def state_dict(self) -> dict[str, Any]:  # Any: Lightning's signature
        """Returns the best so far, what its score means, and figures of the last validation and of the start."""
        figures = {"figures": dict(self._figures), "figures_step": self._figures_step, "start": dict(self._start)}
        own = {
            "validated": dict(self._validated),
            "run": self._run,
            "basis": dict(self._basis),
            "mode": self.mode,
        }
        return {**super().state_dict(), **figures, **own}

    def on_load_checkpoint(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,  # noqa: ARG002  # Lightning's signature
        checkpoint: dict[str, Any],  # Any: what Lightning put into it
    ) -> None:
        """Drops the best so far, and the best of ``EarlyStopping``, if their scores meant something else.

        ``EarlyStopping`` keeps its own patience in any case: Lightning's takes that of the checkpoint.
        """
        self._resumes = None if trainer.ckpt_path is None else local_path(trainer.ckpt_path)
        states = checkpoint.get("callbacks", {})
        saved = states.get(self.state_key)
        if trainer.state.fn != "fit" or saved is None:
            return
        was, now = saved.get("basis", {}), self._basis
        differing = [name for name in {**was, **now} if was.get(name) != now.get(name)]
        for callback in vars(trainer)["callbacks"]:  # Lightning sets it, undeclared
            if isinstance(callback, EarlyStopping) and callback.state_key in states:
                kept = callback.state_dict() if differing else states[callback.state_key]
                states[callback.state_key] = {**kept, "patience": callback.patience}
        if differing:
            del states[self.state_key]
            if trainer.is_global_zero:
                said = ", ".join(differing)
                say(f"The best checkpoint starts again: its score has another meaning ({said})")

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:  # Any: Lightning's signature
        """Takes over the best so far into the resumed run's own folder; one that is gone is forgotten."""
        state_dict = _located(state_dict, self._resumes)
        self._start = state_dict["start"]
        if state_dict.get("best_model_score") is None:  # the last one of a run without a score
            state_dict = {**state_dict, "best_model_path": ""}
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
        """Keeps the last checkpoint if there is no score; copies a resumed run's best if it is still best."""
        super().on_train_end(trainer, pl_module)
        if not vars(trainer)["fast_dev_run"] and self.best_model_score is None:  # Lightning's, undeclared
            self._keep_last(trainer)
        best, folder = Path(self.best_model_path), Path(self.dirpath or "")
        if self.best_model_path and self.dirpath and folder.absolute() not in best.absolute().parents:
            if trainer.is_global_zero:
                copy_checkpoint(best, folder / best.name)
            trainer.strategy.barrier()
            self.best_model_path = str(folder / best.name)

    def _keep_last(self, trainer: pl.Trainer) -> None:
        """Keeps the checkpoint of the last step, and says why no score chose one."""
        if not self.best_model_path:
            self._save_none_monitor_checkpoint(trainer, self._monitor_candidates(trainer))
        why = "no validation was reached"
        if not self._validated:
            why = "there are no validation data"
        elif trainer.limit_val_batches == 0:
            why = "trainer.limit_val_batches is 0"
        if trainer.is_global_zero:
            say(f"No score chose a checkpoint, because {why}: the last one is kept, {self.best_model_path}")


def _located(state: dict[str, Any], resumes: Path | None) -> dict[str, Any]:  # Any: Lightning's
    """Returns the state of the callback with the best checkpoint's path of today.

    The folder of the run may have been moved. The best checkpoint is then still next to the checkpoint that the
    run resumes from. The recorded path may meanwhile hold the checkpoint of another run.

    Args:
        state: The state as the checkpoint holds it.
        resumes: The checkpoint that the run resumes from.
    """
    best = state.get("best_model_path")
    if not best or resumes is None:
        return state
    name = Path(best).name
    places = (resumes.parent / "checkpoints" / name, resumes.parent / name)
    path = next((str(place) for place in places if place.is_file()), best)
    scores = {path if file == best else file: score for file, score in state.get("best_k_models", {}).items()}
    paths = {key: path for key in ("best_model_path", "kth_best_model_path") if state.get(key) == best}
    return {**state, **paths, "best_k_models": scores}
