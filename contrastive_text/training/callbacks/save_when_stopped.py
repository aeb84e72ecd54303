"""Callback that saves a checkpoint to resume from: at intervals, and when a signal stops the run."""

from __future__ import annotations

import logging
import os
import shlex
import signal
import subprocess
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

import pytorch_lightning as pl
from lightning_fabric.plugins.environments.slurm import SLURMEnvironment
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.utilities.exceptions import SIGTERMException

from contrastive_text.core.errors import at_least
from contrastive_text.core.terminal import log_message


class SaveWhenStopped(Callback):
    """Callback that saves a checkpoint to resume from: at intervals, and when a signal stops the run.

    The checkpoint is ``resume-step=N.ckpt`` in the run's folder. A newer checkpoint replaces it. It is deleted
    when the run finishes.

    Schedulers stop a run by SIGTERM, users by Ctrl-C. The callback then finishes the step, with its validation if
    one is due. At the end of an epoch it finishes one more step. It writes the checkpoint and ends the process
    with status 143 or 130, the status of a process that the signal killed. A scheduler therefore knows that the
    run isn't finished. A second Ctrl-C kills the process immediately. If the last step is running, the run
    finishes. After each step the ranks agree whether to stop.

    On SLURM, Lightning's signal to requeue a job (SIGUSR1) has the same effect. If the run has a named folder,
    the first rank then requeues the job, and the run resumes in its folder.

    Differs: Lightning ends without a checkpoint and with status 0, may stop inside a validation, and notifies
    other ranks from the signal handler. To requeue a job, it saves a checkpoint in the signal handler, while
    ranks may be at different points of a step.

    Args:
        minutes: Minutes between two checkpoints; None for no checkpoints at intervals.

    Attributes:
        command: Command that resumes the run, to be followed by its folder; None to print ``Trainer.fit``.
        requeues: Whether the run resumes if SLURM starts the same command again.
        former_checkpoints: Checkpoints of earlier processes of the run. They are deleted after a newer one is
            saved.
        checkpoint: Checkpoint to resume this run from; None if nothing is saved yet.
    """

    def __init__(self, minutes: float | None = 15) -> None:
        self.minutes = at_least("resumable.minutes", minutes, 0, "null is no checkpoint by the clock")
        self.command: str | None = None
        self.requeues = False
        self.former_checkpoints: list[Path] = []
        self._written = 0.0
        self._postponed = False
        self._signal: int | None = None
        self._requeue_signal: int | None = None
        self._speaks = True
        self._stopping = False
        self._before = 0
        self.checkpoint: Path | None = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:  # noqa: ARG002  # Lightning's signature
        """Moves the callback to the end of the list, so its checkpoint has the state of ``BestCheckpoint``."""
        callbacks = vars(trainer)["callbacks"]  # set by Lightning, but not declared
        vars(trainer)["callbacks"] = [callback for callback in callbacks if callback is not self] + [self]

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002  # Lightning's signature
        """Installs the handlers of signals that stop the run. Lightning restores the previous handlers."""
        environment = (
            trainer._accelerator_connector.cluster_environment
        )  # no public attribute has it on one device
        self._requeue_signal = None
        if isinstance(environment, SLURMEnvironment) and environment.auto_requeue:
            self._requeue_signal = environment.requeue_signal
        self._signal = signal.SIGTERM if trainer.received_sigterm else None
        self._speaks, self._stopping, self.checkpoint = trainer.is_global_zero, False, None
        self._written, self._postponed = time.monotonic(), False
        _let_lightning_stop(trainer, False)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._handle_signal)
            signal.signal(signal.SIGINT, self._handle_signal)
            if self._requeue_signal is not None:
                signal.signal(self._requeue_signal, self._handle_signal)

    def _handle_signal(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002  # Python's signature
        hint = ""
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            hint = "; once more ends it at once"
        if self._signal is None and self._speaks:
            message = f"{signal.Signals(number).name}: the step is finished and a checkpoint written{hint}\n"
            os.write(2, f"\n{message}".encode())  # print isn't reentrant, and the signal may have interrupted it
        self._signal = number

    def on_train_batch_start(self, trainer: pl.Trainer, *rest: Any) -> None:  # noqa: ARG002  # Any: Lightning's
        """Records the number of optimizer steps before each batch.

        With gradient accumulation not every batch ends a step.
        """
        self._before = trainer.global_step

    def on_train_batch_end(self, trainer: pl.Trainer, *rest: Any) -> None:  # noqa: ARG002  # Any: Lightning's
        """Saves a checkpoint if it is due or the run must stop. Ends a stopped run, except at an epoch's end."""
        self._stopping = False
        if trainer.global_step == self._before:
            return
        agree = trainer.strategy.reduce_boolean_decision
        if not agree(self._signal is not None or self._is_due(trainer), all=False):
            return
        self._stopping = agree(self._signal is not None, all=False)
        if self._stopping:
            self._save(trainer)
            _let_lightning_stop(trainer, not _ends_an_epoch(trainer))
        elif not _ends_an_epoch(trainer):
            self._postponed = _validates_now(trainer)
            if not self._postponed:
                self._save(trainer)

    def _is_due(self, trainer: pl.Trainer) -> bool:
        """Returns whether the time between two checkpoints has passed. False on ranks other than the first."""
        passed = time.monotonic() - self._written
        return trainer.is_global_zero and self.minutes is not None and passed >= 60 * self.minutes

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002  # Lightning's signature
        """Postpones the end of a stopped run: Lightning would end the validation after its first batch."""
        if self._stopping:
            _let_lightning_stop(trainer, False)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002  # Lightning's signature
        """Saves a postponed checkpoint, or replaces the checkpoint of a stopped run, with the scores."""
        if self._postponed and not trainer.sanity_checking:
            self._postponed = False
            self._save(trainer)
        elif self._stopping and not trainer.sanity_checking:
            self._save(trainer)
            _let_lightning_stop(trainer, not _ends_an_epoch(trainer))

    def _save(self, trainer: pl.Trainer) -> None:
        folder = Path(trainer.log_dir or trainer.default_root_dir)  # collective: all ranks must call log_dir
        path = folder / f"resume-step={trainer.global_step}.ckpt"
        trainer.save_checkpoint(path, weights_only=False)
        self._drop_all(trainer, but=path)
        self.checkpoint = path
        self._written = time.monotonic()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002  # Lightning's signature
        """Deletes the checkpoints to resume from when the run has finished."""
        self._drop_all(trainer)

    def _drop_all(self, trainer: pl.Trainer, but: Path | None = None) -> None:
        for path in (*self.former_checkpoints, self.checkpoint):
            if path not in (None, but):
                trainer.strategy.remove_checkpoint(path)
        self.checkpoint, self.former_checkpoints = None, []

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:  # noqa: ARG002  # Lightning's signature
        """Prints the command that resumes the stopped run, and sets the exit status of the process."""
        if self.checkpoint is None or not isinstance(exception, SIGTERMException):
            return
        # If another rank ends with a status other than 0, Lightning's launcher kills the first rank.
        exception.code = 128 + (self._signal or signal.SIGTERM) if trainer.is_global_zero else 0
        if trainer.is_global_zero:
            path = str(self.checkpoint)
            call = f"trainer.fit(module, data, ckpt_path={path!r})"
            run = str(self.checkpoint.parent)
            resume_command = call if self.command is None else f"{self.command} {shlex.quote(run)}"
            log_message(
                f"Stopped after step {trainer.global_step:,}. To go on exactly there:\n  {resume_command}"
            )
            if self.requeues and self._signal is not None and self._signal == self._requeue_signal:
                _requeue()


def _requeue() -> None:
    """Requests SLURM to start the job of a stopped run again."""
    command = ["scontrol", "requeue", os.environ["SLURM_JOB_ID"]]
    try:
        result = subprocess.run(command, capture_output=True, text=True, errors="backslashreplace", check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else error
        log_message(f"Not requeued: {shlex.join(command)}: {reason}", logging.WARNING)
    else:
        log_message(f"Requeued: {shlex.join(command)} {result.stdout.strip()}".rstrip())


def _let_lightning_stop(trainer: pl.Trainer, stops: bool) -> None:
    # No public option makes Lightning stop between steps without calling the hooks of a finished run.
    trainer._signal_connector.received_sigterm = stops


def _validates_now(trainer: pl.Trainer) -> bool:
    """Returns whether Lightning validates after this batch. A run that resumed from before it would skip it."""
    loop = trainer.fit_loop
    assert loop._data_fetcher is not None
    return loop.epoch_loop._should_check_val_fx(loop._data_fetcher)  # no public method has it


def _ends_an_epoch(trainer: pl.Trainer) -> bool:
    """Returns whether the epoch or the run ends with this batch. A run resumed here would skip the end's work."""
    return trainer.is_last_batch or 0 < trainer.max_steps <= trainer.global_step
