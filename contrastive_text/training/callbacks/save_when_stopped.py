"""A run that is told to stop, or killed, has a checkpoint to go on from."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

import pytorch_lightning as pl
from lightning_fabric.plugins.environments.slurm import SLURMEnvironment
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.utilities.exceptions import SIGTERMException

from contrastive_text.core.checks import at_least
from contrastive_text.core.terminal import say


class SaveWhenStopped(Callback):
    """Keeps a checkpoint to resume from: one every so many minutes, and one when the run is told to stop.

    It is ``resume-step=N.ckpt`` in the run's folder, one at a time, and goes when the run comes to its end.

    On SIGTERM, as schedulers send it, and on Ctrl-C: the step is finished, with its validation if one is due, at
    the end of an epoch one more; the checkpoint is written; the process ends with status 143 or 130, as one that
    the signal kills, lest a scheduler take the run for a finished one. A second Ctrl-C kills at once. A
    run in its last step is finished. Ranks agree after each step on where to stop.

    On SLURM the signal with which Lightning requeues a job (SIGUSR1) does the same; then the first rank has a run
    with a named folder requeued, where it goes on.

    Differs: Lightning ends without a checkpoint and with status 0, may leave a validation half done, and tells
    other ranks from within the signal's handler. To requeue a job it saves from within the handler too, wherever
    each rank is in its step.

    Args:
        minutes: Between two checkpoints against a kill, of which the older one goes; None for none of them.

    Attributes:
        command: What resumes the run when its folder is put after it; None to name ``Trainer.fit``.
        requeues: Whether the same command, started again by SLURM, goes on with the run.
        former: Such checkpoints that this run has left when it was stopped, which go when there is a newer one.
        saved: The checkpoint that is there to resume this run from; None while there is none.
    """

    def __init__(self, minutes: float | None = 15) -> None:
        self.minutes = at_least("resumable.minutes", minutes, 0, "null is no checkpoint by the clock")
        self.command: str | None = None
        self.requeues = False
        self.former: list[Path] = []
        self._written = 0.0
        self._postponed = False
        self._signal: int | None = None
        self._requeue_signal: int | None = None
        self._speaks = True
        self._stopping = False
        self._before = 0
        self.saved: Path | None = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:  # noqa: ARG002  # Lightning's signature
        """Takes the last place: what it saves after a validation must have the best checkpoint in it."""
        callbacks = vars(trainer)["callbacks"]  # Lightning sets it, undeclared
        vars(trainer)["callbacks"] = [other for other in callbacks if other is not self] + [self]

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002  # Lightning's signature
        """Takes the signals over; Lightning gives them back after the training."""
        environment = trainer._accelerator_connector.cluster_environment  # nothing public has it on one device
        self._requeue_signal = None
        if isinstance(environment, SLURMEnvironment) and environment.auto_requeue:
            self._requeue_signal = environment.requeue_signal
        self._signal = signal.SIGTERM if trainer.received_sigterm else None
        self._speaks, self._stopping, self.saved = trainer.is_global_zero, False, None
        self._written, self._postponed = time.monotonic(), False
        _let_lightning_stop(trainer, False)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._note)
            signal.signal(signal.SIGINT, self._note)
            if self._requeue_signal is not None:
                signal.signal(self._requeue_signal, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002  # Python's signature
        again = ""
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            again = "; once more ends it at once"
        if self._signal is None and self._speaks:
            said = f"{signal.Signals(number).name}: the step is finished and a checkpoint written{again}\n"
            os.write(2, f"\n{said}".encode())  # print, which the signal may have come upon, isn't reentrant
        self._signal = number

    def on_train_batch_start(self, trainer: pl.Trainer, *rest: Any) -> None:  # noqa: ARG002  # Any: Lightning's
        """Notes how many steps were taken: under accumulation only some batches end one."""
        self._before = trainer.global_step

    def on_train_batch_end(self, trainer: pl.Trainer, *rest: Any) -> None:  # noqa: ARG002  # Any: Lightning's
        """Saves after the step, and has Lightning end the run unless the epoch ends first."""
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
        """Whether it is time for a checkpoint, as the first rank decides."""
        passed = time.monotonic() - self._written
        return trainer.is_global_zero and self.minutes is not None and passed >= 60 * self.minutes

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002  # Lightning's signature
        """Holds the end back: Lightning would leave the validation after its first batch."""
        if self._stopping:
            _let_lightning_stop(trainer, False)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002  # Lightning's signature
        """Saves again, with the scores."""
        if self._postponed and not trainer.sanity_checking:
            self._postponed = False
            self._save(trainer)
        elif self._stopping and not trainer.sanity_checking:
            self._save(trainer)
            _let_lightning_stop(trainer, not _ends_an_epoch(trainer))

    def _save(self, trainer: pl.Trainer) -> None:
        folder = Path(trainer.log_dir or trainer.default_root_dir)  # all ranks ask
        path = folder / f"resume-step={trainer.global_step}.ckpt"
        trainer.save_checkpoint(path, weights_only=False)
        self._drop_all(trainer, but=path)
        self.saved = path
        self._written = time.monotonic()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002  # Lightning's signature
        """Drops the checkpoint of a run that came to its end."""
        self._drop_all(trainer)

    def _drop_all(self, trainer: pl.Trainer, but: Path | None = None) -> None:
        for path in (*self.former, self.saved):
            if path not in (None, but):
                trainer.strategy.remove_checkpoint(path)
        self.saved, self.former = None, []

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:  # noqa: ARG002  # Lightning's signature
        """Says how to go on, and gives the process its status."""
        if self.saved is None or not isinstance(exception, SIGTERMException):
            return
        # A rank that ends with another status than 0 has Lightning's launcher kill the first.
        exception.code = 128 + (self._signal or signal.SIGTERM) if trainer.is_global_zero else 0
        if trainer.is_global_zero:
            path = str(self.saved)
            call = f"trainer.fit(module, data, ckpt_path={path!r})"
            run = str(self.saved.parent)
            said = call if self.command is None else f"{self.command} {shlex.quote(run)}"
            say(f"Stopped after step {trainer.global_step:,}. To go on exactly there:\n  {said}")
            if self.requeues and self._signal is not None and self._signal == self._requeue_signal:
                _requeue()


def _requeue() -> None:
    """Has SLURM start the job again."""
    command = ["scontrol", "requeue", os.environ["SLURM_JOB_ID"]]
    try:
        said = subprocess.run(command, capture_output=True, text=True, errors="backslashreplace", check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else error
        say(f"Not requeued: {shlex.join(command)}: {reason}", file=sys.stderr)
    else:
        say(f"Requeued: {shlex.join(command)} {said.stdout.strip()}".rstrip())


def _let_lightning_stop(trainer: pl.Trainer, wanted: bool) -> None:
    # Nothing public has Lightning leave between steps without the hooks of a run that is complete.
    trainer._signal_connector.received_sigterm = wanted


def _validates_now(trainer: pl.Trainer) -> bool:
    """Whether a validation comes after this batch, which a run resumed from before it would leave out."""
    loop = trainer.fit_loop
    assert loop._data_fetcher is not None
    return loop.epoch_loop._should_check_val_fx(loop._data_fetcher)  # nothing public tells it


def _ends_an_epoch(trainer: pl.Trainer) -> bool:
    """Whether the epoch or the run ends with this batch: a resumed run leaves out what is done then."""
    return trainer.is_last_batch or 0 < trainer.max_steps <= trainer.global_step
