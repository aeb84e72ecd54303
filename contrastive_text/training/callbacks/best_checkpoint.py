"""Callback that keeps the checkpoint with the best validation score of a run."""

from __future__ import annotations

import math
import os
import warnings
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint

from contrastive_text.core.config.specs import describe
from contrastive_text.core.errors import InvalidValueError, one_of
from contrastive_text.core.storage.checkpoints import BestCheckpointState, ScoreRows, plain_rows, read_rows
from contrastive_text.core.storage.disk import remove_abandoned
from contrastive_text.core.storage.records import Record
from contrastive_text.core.terminal import log_message
from contrastive_text.data import TextDataModule
from contrastive_text.metrics.verdict import usual_mode, verdicts
from contrastive_text.training.checkpoint_io import copy_checkpoint, local_path
from contrastive_text.training.held_out import RANK_SCORE
from contrastive_text.training.module import ContrastiveModule

PAIR_SCORE = "val/spearman"
"""Name of the mean Spearman correlation over the files of scored pairs."""
TASK_SCORE = "val/overall"
"""Name of the mean validation score of the tasks."""
RANKING_SCORE = f"val/{RANK_SCORE}"
"""Name of the mean nDCG@10 of the retrieval sets."""


def describe_monitor(data: TextDataModule) -> str:
    """Describes the score that selects the best checkpoint, and the tasks without a score."""
    scored = data.table("validation")
    tasks = [task for task in data.tasks or () if task in scored]
    if not tasks:
        return f"the best is chosen by {default_score(data)}, unless checkpoint.monitor names another"
    unscored_tasks = [task for task in data.tasks or () if task not in scored]
    left_out = f"; {', '.join(unscored_tasks)} without validation files" if unscored_tasks else ""
    means = f"the mean over {', '.join(tasks)}{left_out}"
    return f"the best is chosen by {TASK_SCORE}, {means}, unless checkpoint.monitor names another"


def default_score(data: TextDataModule) -> str:
    """Returns the name of the score that selects the best checkpoint by default.

    This is the first that exists: score of tasks, of scored pairs, of rankings, loss of the first objective.
    """
    scored = data.table("validation")
    if any(task in scored for task in data.tasks or ()):
        return TASK_SCORE
    if scored or not (data.held_out_rows or data.tables.retrieval_sets):
        return PAIR_SCORE
    return RANKING_SCORE if data.tables.retrieval_sets else f"val/{data.held_out_rows[0].objectives[0]}/loss"


def get_datamodule(trainer: pl.Trainer) -> TextDataModule | None:
    """Returns the data module of a run, or None if the run uses other loaders."""
    data = getattr(trainer, "datamodule", None)  # set by Lightning, but not declared
    return data if isinstance(data, TextDataModule) else None


def _validation_interval(trainer: pl.Trainer, data: TextDataModule) -> int | float:
    """Returns the interval between validations, at most an epoch if it counts from the epoch's start."""
    interval, limit = trainer.val_check_interval, trainer.limit_train_batches
    if not isinstance(interval, int) or trainer.check_val_every_n_epoch is None:
        return interval
    epoch = len(data.training.steps)
    return min(interval, limit if isinstance(limit, int) else max(1, int(limit * epoch)), epoch)


def _ends_run(trainer: pl.Trainer, batch: int) -> bool:
    """Returns whether a batch of the current epoch, counted from 0, is the last of the run."""
    ends_epoch = batch + 1 == trainer.num_training_batches
    if trainer.max_steps > 0 and trainer.global_step + 1 == trainer.max_steps:
        return ends_epoch or (batch + 1) % trainer.accumulate_grad_batches == 0
    return ends_epoch and trainer.current_epoch + 1 == trainer.max_epochs


class BestCheckpoint(ModelCheckpoint):
    """Callback that keeps the checkpoint with the best validation score; without a score the last checkpoint.

    The last step of a run is validated too, even if the validation interval doesn't reach it, unless
    ``check_val_every_n_epoch`` skips the last epoch or the interval is a time. Among equal scores the first
    checkpoint is kept. Every checkpoint contains all validation scores of its weights, which select
    members of an ensemble. It also contains the scores before the first step, if the initial weights were
    validated (``num_sanity_val_steps`` -1).

    A resumed run keeps the best checkpoint so far only if its score has the same meaning: the same metric, rows,
    vectors and objectives. Otherwise the search for the best starts again, also in ``EarlyStopping``, and a line
    is printed with the reason.

    Source: the authors' code of SimCSE (Gao et al. 2021) selects on the STS-B development set.

    Args:
        dirpath: Folder of the checkpoints; None for ``checkpoints`` in the run's folder.
        monitor: Name of the score. None for the first that exists: ``val/overall`` of tasks, ``val/spearman``,
            ``val/ndcg@10``, the first objective's ``val/OBJECTIVE/loss``.
        mode: ``max`` or ``min``; None for ``min`` if the score is a loss or another metric that should be low.
    """

    def __init__(self, dirpath: str | None = None, monitor: str | None = None, mode: str | None = None) -> None:
        one_of("checkpoint.mode", mode, ("max", "min"), "max keeps the highest")
        self._given_monitor, self._given_mode = monitor, mode
        mode = mode or usual_mode(monitor or PAIR_SCORE)
        super().__init__(dirpath=dirpath, filename="{step}", monitor=monitor, mode=mode, save_top_k=1)
        self._figures: dict[str, float] = {}
        self._validated: dict[str, int] = {}
        self._figures_step = -1
        self._interval = 0
        self._run = ""
        self._resumes: Path | None = None
        self._start: dict[str, float] = {}
        self._basis: dict[str, str] = {}
        self._rows: ScoreRows = {}
        self._best_rows: ScoreRows = {}
        self._start_rows: ScoreRows = {}

    @property
    def state_key(self) -> str:
        """Key of the callback's state in a checkpoint, equal for every monitored score."""
        return type(self).__qualname__

    @property
    def best(self) -> BestCheckpointState:
        """Path and score of the best checkpoint so far, with the scores before the first step."""
        score = None if self.best_model_score is None else float(self.best_model_score)
        return BestCheckpointState(
            self.monitor,
            score,
            self.best_model_path,
            start=self._start,
            mode=self.mode,
            rows=self._best_rows,
            start_rows=self._start_rows,
        )

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Selects the monitored score, and shortens the validation interval to an epoch."""
        if stage == "fit" and (data := get_datamodule(trainer)) is not None:
            if "val_check_interval" in vars(trainer):  # absent if validation depends on the time
                trainer.val_check_interval = _validation_interval(trainer, data)
            self._validated = data.tables.validated
            if self.monitor is None:
                self.monitor = default_score(data)
                self.mode = self._given_mode or usual_mode(self.monitor)
                self.kth_value = torch.tensor(math.inf if self.mode == "min" else -math.inf)
            # By default Lightning reads an interval of 1 batch as 1.0 epochs, and saves too late.
            self._save_on_train_epoch_end = not self._validated
            if not self._validated:
                self.monitor = None
            self._basis = self._describe_basis(trainer, pl_module, data)
        super().setup(trainer, pl_module, stage)
        if stage == "fit":
            self._run = os.path.realpath(
                trainer.log_dir or trainer.default_root_dir
            )  # collective: all ranks must call log_dir
        folder = local_path(self.dirpath or "")
        if stage == "fit" and trainer.is_global_zero and folder is not None:
            remove_abandoned(folder)

    def on_train_batch_start(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,  # noqa: ARG002  # Lightning's signature
        batch: object,  # noqa: ARG002
        batch_idx: int,
    ) -> None:
        """Makes Lightning validate after the last batch of the run, which the interval may not reach."""
        if self._validated and isinstance(trainer.val_check_batch, int) and _ends_run(trainer, batch_idx):
            self._interval, trainer.val_check_batch = trainer.val_check_batch, 1

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Records the validation scores before Lightning writes a checkpoint.

        Raises:
            ValueError: The validation has no score with the name ``monitor``.
        """
        metrics = trainer.callback_metrics.items()
        self._figures = {name: float(figure) for name, figure in metrics if name.startswith("val/")}
        self._figures_step = trainer.global_step
        rows = pl_module.held_out_rows if isinstance(pl_module, ContrastiveModule) else {}
        self._rows = {f"val/{name}": files for name, files in rows.items()}
        if trainer.sanity_checking and trainer.num_sanity_val_steps == math.inf:  # set by -1
            self._start, self._start_rows = self._figures, self._rows
        trains = trainer.state.fn == "fit" and not trainer.sanity_checking
        if trains and self.monitor is not None and self.monitor not in trainer.callback_metrics:
            names = ", ".join(sorted(self._figures))
            raise InvalidValueError(
                f"checkpoint.monitor: expected a validation metric ({names}), got {self.monitor}; name one of "
                f"these, or remove monitor"
            )
        super().on_validation_end(trainer, pl_module)

    def _update_best_and_save(
        self,
        current: torch.Tensor,
        trainer: pl.Trainer,
        monitor_candidates: dict[str, torch.Tensor],
    ) -> None:
        """Keeps the rows of the new best score before Lightning writes its checkpoint."""
        self._best_rows = self._rows
        super()._update_best_and_save(current, trainer, monitor_candidates)

    def _describe_basis(
        self, trainer: pl.Trainer, module: pl.LightningModule, data: TextDataModule
    ) -> dict[str, str]:
        """Returns name -> description of everything except the weights that the monitored score depends on."""
        basis = {
            "score": f"{self.monitor} ({self.mode})",
            "validation rows": repr(sorted(self._validated.items())),
        }
        basis["limit_val_batches"] = str(trainer.limit_val_batches)
        if not isinstance(module, ContrastiveModule):
            return basis
        monitor_parts = (self.monitor or "").split("/")
        objectives = {
            name: describe(part)
            for name, part in module.objective_parts().items()
            if self.monitor == TASK_SCORE or {name, part.task} & {*monitor_parts}
        }
        if objectives:
            basis |= {"objectives": repr(objectives), "pooler in training": describe(module.pooler)}
        if monitor_parts[-1] == "loss":
            basis["batch_size"] = str(data.batch_size)
        pooler, features = describe(module.inference_embedder.pooler), module.by_task.truncate_dim
        return {**basis, "pooler in use": pooler, "saved features": str(features)}

    def state_dict(self) -> dict[str, Any]:  # Any: Lightning's signature
        """Returns the best checkpoint so far, the meaning of its score, and the last and the initial scores."""
        figures = {"figures": dict(self._figures), "figures_step": self._figures_step, "start": dict(self._start)}
        meaning = {
            "validated": dict(self._validated),
            "run": self._run,
            "basis": dict(self._basis),
            "mode": self.mode,
            "rows": plain_rows(self._best_rows),
            "start_rows": plain_rows(self._start_rows),
        }
        return {**super().state_dict(), **figures, **meaning}

    def on_load_checkpoint(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,  # noqa: ARG002  # Lightning's signature
        checkpoint: dict[str, Any],  # Any: content from Lightning
    ) -> None:
        """Drops the best score so far, including the best of ``EarlyStopping``, if its meaning has changed.

        ``EarlyStopping`` always keeps its configured patience; Lightning would restore the saved patience.
        """
        self._resumes = None if trainer.ckpt_path is None else local_path(trainer.ckpt_path)
        states = checkpoint.get("callbacks", {})
        saved = states.get(self.state_key)
        if trainer.state.fn != "fit" or saved is None:
            return
        saved_basis, basis = saved.get("basis", {}), self._basis
        differing = [name for name in {**saved_basis, **basis} if saved_basis.get(name) != basis.get(name)]
        for callback in vars(trainer)["callbacks"]:  # set by Lightning, but not declared
            if isinstance(callback, EarlyStopping) and callback.state_key in states:
                state = callback.state_dict() if differing else states[callback.state_key]
                states[callback.state_key] = {**state, "patience": callback.patience}
        if differing:
            del states[self.state_key]
            if trainer.is_global_zero:
                reasons = ", ".join(differing)
                log_message(f"The best checkpoint starts again: its score has another meaning ({reasons})")

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:  # Any: Lightning's signature
        """Restores the best checkpoint so far for a resumed run. If its file is missing, warns and drops it."""
        state_dict = _update_paths(state_dict, self._resumes)
        self._start = state_dict["start"]
        state = Record(state_dict, where=self.state_key, todo="resume from a checkpoint that fit wrote")
        self._best_rows, self._start_rows = read_rows(state, "rows"), read_rows(state, "start_rows")
        if state_dict.get("best_model_score") is None:  # the last checkpoint of a run without a score
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
            self._best_rows = {}
        super().load_state_dict({**self.state_dict(), **state_dict, "dirpath": self.dirpath})

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Keeps the last checkpoint if there is no score, copies a resumed run's best, and prints the verdict."""
        super().on_train_end(trainer, pl_module)
        trainer.val_check_batch, self._interval = self._interval or trainer.val_check_batch, 0  # for another fit
        if (
            not vars(trainer)["fast_dev_run"] and self.best_model_score is None
        ):  # set by Lightning, but not declared
            self._keep_last(trainer)
        best, folder = Path(self.best_model_path), Path(self.dirpath or "")
        if self.best_model_path and self.dirpath and folder.absolute() not in best.absolute().parents:
            if trainer.is_global_zero:
                copy_checkpoint(best, folder / best.name)
            trainer.strategy.barrier()
            self.best_model_path = str(folder / best.name)
        if trainer.is_global_zero and not vars(trainer)["fast_dev_run"]:
            self._log_verdicts()

    def _log_verdicts(self) -> None:
        """Prints whether the kept weights are better than the initial weights, with advice if they are worse."""
        lines = verdicts(self.best)
        for verdict in lines:
            log_message(verdict)
        if any(verdict.is_worse for verdict in lines):
            log_message("Try a lower learning rate, or use the model that the run started from.")

    def _keep_last(self, trainer: pl.Trainer) -> None:
        """Keeps the checkpoint of the last step if there is no score, and prints the reason."""
        if not self.best_model_path:
            self._save_none_monitor_checkpoint(trainer, self._monitor_candidates(trainer))
        reason = "no validation was reached"
        if not self._validated:
            reason = "there are no validation data"
        elif trainer.limit_val_batches == 0:
            reason = "trainer.limit_val_batches is 0"
        if trainer.is_global_zero:
            log_message(
                f"No score chose a checkpoint, because {reason}: the last one is kept, {self.best_model_path}"
            )


def _update_paths(state: dict[str, Any], resumes: Path | None) -> dict[str, Any]:  # Any: Lightning's
    """Returns the state of ``BestCheckpoint`` with the current path of the best checkpoint.

    The folder of the run may have been moved. The best checkpoint is then still next to the checkpoint that the
    run resumes from. The recorded path may now contain the checkpoint of another run.

    Args:
        state: State of the callback in the checkpoint.
        resumes: Path of the checkpoint that the run resumes from.
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
