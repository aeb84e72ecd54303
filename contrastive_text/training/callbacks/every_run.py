"""Callbacks of every run: logged figures, gradients of unfinished steps, and checks of loss and weights."""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from torch import Tensor, nn

from contrastive_text.core.batch import Batch, StepBatch
from contrastive_text.core.checks import at_least
from contrastive_text.core.distributed import (
    means_over_ranks,
    own_part,
    split_as,
    whole,
    world_size,
)
from contrastive_text.core.errors import InvalidValueError, RunError
from contrastive_text.training.callbacks.save_when_stopped import SaveWhenStopped
from contrastive_text.training.fsdp2 import FSDP2Strategy, average_gradients


class LogFigures(Callback):
    """Says which steps are logged, and logs them: the others compute, sum and read no figures.

    Logged is every ``trainer.log_every_n_steps``-th step, which Lightning's loggers take, the first of a run, the
    last of an epoch and of a run, and those that a callback asks for: its attribute ``reads_figures_every`` is a
    number of steps. The progress bar shows the loss of the latest of them; no other step waits for the device.

    Differs: Lightning sums, and its bar reads, the figures of every step.
    """

    def __init__(self) -> None:
        self._every: set[int] = set()
        self._is_first = True
        self._names: set[str] = set()
        self._truncated = 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002  # Lightning's signature
        """Learns who reads how often."""
        options = vars(trainer)  # Lightning sets them, undeclared
        asked = [getattr(callback, "reads_figures_every", 0) for callback in options["callbacks"]]
        self._every = {every for every in (options["log_every_n_steps"], *asked) if every}
        self._is_first, self._truncated = True, 0

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *rest: Any) -> None:  # noqa: ARG002  # Any: Lightning's
        """Tells the module whether the figures of the coming step are looked at."""
        step = trainer.global_step + 1
        ends = trainer.is_last_batch or step == trainer.max_steps
        logged = self._is_first or ends or any(step % every == 0 for every in self._every)
        pl_module.logs_step = logged  # type: ignore[assignment]  # the module's own, not one of Lightning's modules
        if not logged:
            _forget(trainer)

    def on_before_optimizer_step(
        self,
        trainer: pl.Trainer,  # noqa: ARG002  # Lightning's signature
        pl_module: pl.LightningModule,
        optimizer: torch.optim.Optimizer,  # noqa: ARG002  # Lightning's signature
    ) -> None:
        """Logs the figures of the step, which are read at once and after its backward pass."""
        if not pl_module.logs_step:
            return
        self._is_first = False
        figures = on_host(vars(pl_module)["figures"])
        # Lightning repeats the last value of a name that a step doesn't log.
        absent = {name: torch.tensor(torch.nan) for name in self._names - set(figures)}
        self._names |= set(figures)
        for name, figure in sorted((figures | absent).items()):
            pl_module.log(f"train/{name}", figure, on_step=True, on_epoch=False, prog_bar=name == "loss")

    def on_train_batch_end(self, trainer: pl.Trainer, *rest: Any) -> None:  # noqa: ARG002  # Any: Lightning's
        """Counts the texts that were cut to the length limit."""
        batch: Batch | StepBatch = rest[2]  # after the module and what the step gave
        parts = batch.batches.values() if isinstance(batch, StepBatch) else [batch]
        self._truncated += sum(part.truncated for part in parts)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002  # Lightning's signature
        """Logs how many they were, on all ranks."""
        several = world_size() > 1
        pl_module.log("train/truncated", float(self._truncated), batch_size=1, sync_dist=several, reduce_fx="sum")
        self._truncated = 0

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:  # noqa: ARG002  # Lightning's signature
        """Leaves a module that computes its figures whenever it is asked."""
        pl_module.logs_step = True  # type: ignore[assignment]  # the module's own, as above


class LogGradients(Callback):
    """Logs the norm of each objective's gradient, and the cosine of every two, by one more backward pass.

    The figures are ``train/gradient/norm/NAME`` and ``train/gradient/cosine/A/B``. A step that isn't logged has
    none: the next logged step has them.

    Args:
        every: Steps from one measurement to the next.

    Raises:
        ValueError: Fewer than one step, or weights that are split over ranks.

    Example:
        >>> LogGradients(every=50).every
        50
    """

    def __init__(self, every: int = 100) -> None:
        self.every = at_least("LogGradients.every", every, 1)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:  # noqa: ARG002  # Lightning's signature
        """Refuses split weights, whose gradients are added up before any rank has its part."""
        if isinstance(trainer.strategy, FSDP2Strategy):
            raise InvalidValueError(
                "trainer.callbacks: expected no LogGradients with fsdp2, which adds the gradients of all "
                "objectives up before any rank has its part, got one; log them in a run on one GPU"
            )

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *rest: Any) -> None:  # noqa: ARG002  # Any: Lightning's
        """Tells the module whether a multiple of ``every`` is between the last logged step and this one."""
        step, window = trainer.global_step, vars(trainer)["log_every_n_steps"] or 1  # Lightning's, undeclared
        pl_module.logs_gradients = step // self.every != (step - window) // self.every  # type: ignore[assignment]  # the module's own


def on_host(figures: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns scalars on the host, each in its precision, by one copy for all of them.

    Example:
        >>> on_host({"loss": torch.tensor(0.5), "norm": torch.tensor(2.0, dtype=torch.float64)})
        {'loss': tensor(0.5000), 'norm': tensor(2., dtype=torch.float64)}
    """
    if not figures:
        return {}
    flat = [figure.detach().reshape(()) for figure in figures.values()]
    kind = torch.float32
    for figure in flat:
        kind = torch.promote_types(kind, figure.dtype)
    host = torch.stack([figure.to(kind) for figure in flat]).cpu()
    return {name: row.to(each.dtype) for name, row, each in zip(figures, host.unbind(), flat, strict=True)}


def _forget(trainer: pl.Trainer) -> None:
    """Lets Lightning log nothing twice: it keeps the last figures, also for a step that ends a run unforeseen."""
    for key, kept in (trainer._results or {}).items():
        if key.startswith("on_before_optimizer_step.train/"):
            kept._forward_cache = None


_KEY = "accumulated"


class KeepGradients(Callback):
    """Puts the gradient of an unfinished optimizer step into each checkpoint, and takes it back.

    With ``accumulate_grad_batches`` above 1 a validation, and with it a checkpoint, may come between the batches
    of a step: the weights are those of the step before, and the gradient so far is part of the run's state. Ranks
    hold parts of it; where there are several it is averaged, and each goes on with the mean, as a resumed run
    does. So a checkpoint has it once, and another number of ranks can take it up.

    Differs: Lightning forgets it.
    """

    def __init__(self) -> None:
        self._inside = False
        self._saved: dict[str, Any] | None = None  # Any: a number and tensors

    def on_after_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002  # Lightning's signature
        """Notes that a step has begun."""
        self._inside = True

    def on_before_optimizer_step(
        self,
        trainer: pl.Trainer,  # noqa: ARG002  # Lightning's signature
        pl_module: pl.LightningModule,  # noqa: ARG002  # Lightning's signature
        optimizer: torch.optim.Optimizer,  # noqa: ARG002  # Lightning's signature
    ) -> None:
        """Notes that it is taken."""
        self._inside = False

    def on_save_checkpoint(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        checkpoint: dict[str, Any],  # Any: what Lightning puts into it
    ) -> None:
        """Puts the gradient of an unfinished step into the checkpoint."""
        if self._inside:
            average_gradients(pl_module.parameters())
            named = {name: weight.grad for name, weight in pl_module.named_parameters()}
            gradients = {name: whole(gradient) for name, gradient in named.items() if gradient is not None}
            checkpoint[_KEY] = {"batches": trainer.accumulate_grad_batches, "gradients": gradients}

    def on_load_checkpoint(
        self,
        trainer: pl.Trainer,  # noqa: ARG002  # Lightning's signature
        pl_module: pl.LightningModule,  # noqa: ARG002  # Lightning's signature
        checkpoint: dict[str, Any],  # Any: what Lightning put into it
    ) -> None:
        """Takes it out, until the weights are where they will be trained."""
        self._saved = checkpoint.get(_KEY)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Returns the parameters their gradients back.

        Raises:
            ValueError: The checkpoint is from inside a step of another number of batches.
        """
        self._inside, saved, self._saved = self._saved is not None, self._saved, None
        if saved is None:
            return
        if saved["batches"] != trainer.accumulate_grad_batches:
            raise InvalidValueError(
                f"trainer.accumulate_grad_batches: expected {saved['batches']}, for the checkpoint is from "
                f"inside a step of so many, got {trainer.accumulate_grad_batches}; resume with {saved['batches']}"
            )
        for name, parameter in pl_module.named_parameters():
            if name in saved["gradients"]:
                parameter.grad = split_as(
                    saved["gradients"][name].to(parameter.device, parameter.dtype), parameter
                )


FIRST = 10
"""Batches whose losses are compared."""
_ROUNDING = 1e-6
"""Relative difference up to which two losses are equal: sums in float32 differ by as much from order to order."""
_CAUSES = (
    "check that the texts differ, that anchors and scores are not all the same, and that a batch has several rows"
)


class WarnOfConstantLoss(Callback):
    """Warns once if every loss of the first ten batches is 0 or the same number, so that nothing is learned.

    That is so if all texts are equal, if all rows have one anchor, or if all scores are equal. The losses stay on
    the device until the tenth batch, or the end of a shorter run, when the host reads them at once.
    """

    def __init__(self) -> None:
        self._losses: defaultdict[str, list[Tensor]] = defaultdict(list)
        self._batches = 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002  # Lightning's signature
        """Starts to collect losses."""
        self._losses.clear()
        self._batches = 0

    def on_train_batch_end(self, trainer: pl.Trainer, *rest: Any) -> None:  # Any: Lightning's
        """Collects the loss of each objective, and compares them after the tenth batch."""
        if self._batches >= FIRST:
            return
        module = rest[0]
        for name in module.objective_parts():
            if name in module.figures:
                self._losses[name].append(module.figures[name])
        self._batches += 1
        if self._batches == FIRST:
            self._warn(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002  # Lightning's signature
        """Compares the losses of a shorter run."""
        if 1 < self._batches < FIRST:
            self._warn(trainer)

    def _warn(self, trainer: pl.Trainer) -> None:
        named = {f"{name}/{i}": each for name, losses in self._losses.items() for i, each in enumerate(losses)}
        read = on_host(means_over_ranks(named))
        each = {
            name: [float(read[f"{name}/{i}"]) for i in range(len(kept))] for name, kept in self._losses.items()
        }
        said = describe_constant(each)
        if said and trainer.is_global_zero:
            warnings.warn(f"{said} in each of the first {self._batches} batches: {_CAUSES}", stacklevel=2)


def describe_constant(losses: Mapping[str, Sequence[float]]) -> str:
    """Returns the loss of each objective if none of them changes; empty if one does, or is seen only once.

    Args:
        losses: Name of an objective -> its losses, one a batch.

    Example:
        >>> describe_constant({"contrastive": [0.0, 0.0, 0.0]})
        'contrastive has loss 0'
        >>> describe_constant({"contrastive": [0.0, 0.0], "mlm": [5.1, 5.0]})
        ''
    """
    for values in losses.values():
        spread = max(values) - min(values)
        if any(values) and (len(values) < 2 or not spread <= _ROUNDING * max(map(abs, values))):
            return ""
    return ", ".join(f"{name} has loss {values[0]:.4g}" for name, values in losses.items())


_ADVICE = (
    "a lower learning rate, a stronger clipping (trainer.gradient_clip_val), or bf16-mixed in place of 16-mixed"
)
_INTERVAL = 50
"""Batches between two looks where nothing is logged; Lightning's own default."""


class EndWhenDiverged(Callback):
    """Ends a run, on all ranks, once its loss or its weights are NaN or infinite.

    The loss of each batch is noted on the device and read every ``trainer.log_every_n_steps`` batches (50 where
    that is 0), before a validation and at the end: reading waits for the device. Weights are read before each
    validation and each checkpoint, so that none without a number in it is written. A step that float16's gradient
    scaling leaves out has a finite loss, and goes by.
    """

    def __init__(self) -> None:
        self._first: Tensor | None = None  # step and loss of the first batch whose loss was no number

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002  # Lightning's signature
        """Starts anew."""
        self._first = torch.tensor([math.inf, 0.0], device=pl_module.device)

    def on_train_batch_end(self, trainer: pl.Trainer, *rest: Any) -> None:  # Any: Lightning's
        """Notes the loss, and reads what was noted now and then."""
        _, outputs, _, batch_idx = rest  # module, what the step gave, batch, its number
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if isinstance(loss, Tensor) and self._first is not None:
            self._first = _earlier(self._first, loss.detach(), trainer.global_step)
        if (batch_idx + 1) % (vars(trainer)["log_every_n_steps"] or _INTERVAL) == 0:  # Lightning's, undeclared
            self._check_loss(trainer)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Looks before scores are made of it."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._check_loss(trainer)
            check_weights(trainer, pl_module)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Looks before a model is made of it."""
        self._check_loss(trainer)
        check_weights(trainer, pl_module)

    def _check_loss(self, trainer: pl.Trainer) -> None:
        if self._first is None:
            return
        step = float(trainer.strategy.reduce(self._first[0].clone(), reduce_op="min"))
        if step < math.inf:
            own, loss = self._first.tolist()
            got = f"{loss}" if own == step else "none on another rank"
            raise RunError(f"step {int(step):,}: expected a finite loss, got {got}; {_advice(trainer)}")


def _earlier(first: Tensor, loss: Tensor, step: int) -> Tensor:
    """Returns the first step and loss that are no numbers, without waiting for the device."""
    now = torch.stack([torch.full_like(first[0], step), loss.reshape(()).to(first)])
    return torch.where(first[0].isinf() & ~loss.isfinite(), now, first)


def check_weights(trainer: pl.Trainer, module: nn.Module) -> None:
    """Checks, on all ranks together, that weights are numbers; those of a mask may be infinite.

    Raises:
        RunError: A parameter that is NaN or infinite, or a buffer that is NaN.
    """
    sound = [own_part(parameter).isfinite().all() for parameter in module.parameters()]
    sound += [~buffer.isnan().any() for buffer in module.buffers()]
    finite = not sound or bool(torch.stack([each.to(sound[0].device) for each in sound]).all())
    if not trainer.strategy.reduce_boolean_decision(finite, all=True):
        raise RunError(
            f"step {trainer.global_step:,}: expected finite weights, got NaN or infinite ones; {_advice(trainer)}"
        )


def _advice(trainer: pl.Trainer) -> str:
    kept = _last_checkpoint(trainer)
    where = f"the last checkpoint before it is {kept}" if kept else "there is no checkpoint before it"
    start = "start again, or from that checkpoint with --init_from, with" if kept else "start again with"
    return f"{where}; training has diverged, so nothing is exported; {start} {_ADVICE}"


def _last_checkpoint(trainer: pl.Trainer) -> Path | None:
    """Returns the latest checkpoint of the run that is there: all of them are of finite weights."""
    ours = [callback for callback in trainer.checkpoint_callbacks if isinstance(callback, ModelCheckpoint)]
    named = [path for callback in ours for path in (callback.best_model_path, callback.last_model_path)]
    # The best so far is named before it is written.
    named += [vars(callback)["_last_checkpoint_saved"] for callback in ours]
    stopped = [callback.saved for callback in vars(trainer)["callbacks"] if isinstance(callback, SaveWhenStopped)]
    there = [path for path in (Path(name) for name in (*named, *stopped) if name) if path.is_file()]
    return max(there, key=lambda path: path.stat().st_mtime, default=None)
