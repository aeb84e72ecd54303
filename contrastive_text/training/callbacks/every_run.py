"""Callbacks of every run: log of metrics, gradients of unfinished steps, and checks of loss and weights."""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from torch import Tensor, nn

from contrastive_text.core.batch import Batch, StepBatch
from contrastive_text.core.distributed import (
    full_tensor,
    local_tensor,
    means_over_ranks,
    shard_like,
    world_size,
)
from contrastive_text.core.errors import InvalidValueError, RunError, at_least
from contrastive_text.losses import ListNet
from contrastive_text.objectives import RankDistillation, Reranking
from contrastive_text.training.callbacks.save_when_stopped import SaveWhenStopped
from contrastive_text.training.fsdp2 import FSDP2Strategy, average_gradients


class LogFigures(Callback):
    """Callback that selects the logged steps and logs their metrics. Other steps compute no metrics.

    Logged are every ``trainer.log_every_n_steps``-th step, the first step of a run, and the last step of an epoch
    and of a run. A callback can request more steps: its attribute ``reads_figures_every`` is a number of steps.
    The progress bar shows the loss of the last logged step. Other steps don't synchronize with the device.

    Differs: Lightning averages the metrics of every step, and its progress bar reads them.
    """

    def __init__(self) -> None:
        self._every: set[int] = set()
        self._is_first = True
        self._names: set[str] = set()
        self._truncated = 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002  # Lightning's signature
        """Collects the intervals at which the logger and callbacks read metrics."""
        options = vars(trainer)  # set by Lightning, but not declared
        intervals = [getattr(callback, "reads_figures_every", 0) for callback in options["callbacks"]]
        self._every = {interval for interval in (options["log_every_n_steps"], *intervals) if interval}
        self._is_first, self._truncated = True, 0

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *rest: Any) -> None:  # noqa: ARG002  # Any: Lightning's
        """Sets in the module's ``logs_step`` whether the metrics of the next step are logged."""
        step = trainer.global_step + 1
        ends = trainer.is_last_batch or step == trainer.max_steps
        is_logged = self._is_first or ends or any(step % interval == 0 for interval in self._every)
        pl_module.logs_step = is_logged  # type: ignore[assignment]  # the module's own, not one of Lightning's modules
        if not is_logged:
            _clear_last_figures(trainer)

    def on_before_optimizer_step(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        optimizer: torch.optim.Optimizer,  # noqa: ARG002  # Lightning's signature
    ) -> None:
        """Logs the metrics of the step, which are copied to the host together after the backward pass."""
        if not pl_module.logs_step:
            return
        figures = copy_to_host(vars(pl_module)["figures"])
        # Lightning repeats the last value of a name that a step doesn't log.
        absent = {name: torch.tensor(torch.nan) for name in self._names - set(figures)}
        self._names |= set(figures)
        for name, figure in sorted((figures | absent).items()):
            pl_module.log(f"train/{name}", figure, on_step=True, on_epoch=False, prog_bar=name == "loss")
        if self._is_first and trainer.is_global_zero:
            _warn_temperature(pl_module.get_submodule("objectives").named_children(), figures)
        self._is_first = False

    def on_train_batch_end(self, trainer: pl.Trainer, *rest: Any) -> None:  # noqa: ARG002  # Any: Lightning's
        """Counts the texts that were truncated to the length limit."""
        batch: Batch | StepBatch = rest[2]  # after the module and the step's output
        parts = batch.batches.values() if isinstance(batch, StepBatch) else [batch]
        self._truncated += sum(part.truncated for part in parts)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002  # Lightning's signature
        """Logs the number of truncated texts of an epoch on all ranks, as ``train/truncated``."""
        several = world_size() > 1
        pl_module.log("train/truncated", float(self._truncated), batch_size=1, sync_dist=several, reduce_fx="sum")
        self._truncated = 0

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:  # noqa: ARG002  # Lightning's signature
        """Resets ``logs_step`` of the module, so a step outside of the run computes its metrics."""
        pl_module.logs_step = True  # type: ignore[assignment]  # the module's own, as above


class LogGradients(Callback):
    """Callback that logs the norm of each objective's gradient, and the cosine of each pair of gradients.

    The metrics are ``train/gradient/norm/NAME`` and ``train/gradient/cosine/A/B``. A measurement costs one more
    backward pass per objective. If the step isn't logged, the next logged step is measured.

    Args:
        every: Number of steps between two measurements.

    Raises:
        ValueError: ``every`` is below 1, or the weights are split over ranks.

    Example:
        >>> LogGradients(every=50).every
        50
    """

    def __init__(self, every: int = 100) -> None:
        self.every = at_least("LogGradients.every", every, 1)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:  # noqa: ARG002  # Lightning's signature
        """Refuses split weights, because FSDP2 adds up the gradients of all objectives before a rank has them.

        Raises:
            ValueError: The strategy is ``fsdp2``.
        """
        if isinstance(trainer.strategy, FSDP2Strategy):
            raise InvalidValueError(
                "trainer.callbacks: expected no LogGradients with fsdp2, which sums the gradients of all "
                "objectives, got LogGradients; log them in a run on one GPU"
            )

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *rest: Any) -> None:  # noqa: ARG002  # Any: Lightning's
        """Sets whether the step logs gradient norms: whether a multiple of ``every`` follows the last log."""
        step, window = trainer.global_step, vars(trainer)["log_every_n_steps"] or 1  # set by Lightning
        pl_module.logs_gradients = step // self.every != (step - window) // self.every  # type: ignore[assignment]  # the module's own


def _warn_temperature(objectives: Iterable[tuple[str, nn.Module]], figures: Mapping[str, Tensor]) -> None:
    """Warns if the temperature of teacher scores makes a target of the first logged step uniform or one-hot."""
    for name, objective in objectives:
        if isinstance(objective, RankDistillation | Reranking) and isinstance(objective.loss, ListNet):
            target = [figures.get(f"{name}/{figure}") for figure in ("target_entropy", "teacher_deviation")]
            entropy, deviation = (0.0 if value is None else float(value) for value in target)
            if message := objective.loss.describe_misfit(entropy, deviation):
                warnings.warn(f"{name}: {message}", stacklevel=2)


def copy_to_host(figures: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies scalars from the device to the host in one transfer; each keeps its precision.

    Example:
        >>> copy_to_host({"loss": torch.tensor(0.5), "norm": torch.tensor(2.0, dtype=torch.float64)})
        {'loss': tensor(0.5000), 'norm': tensor(2., dtype=torch.float64)}
    """
    if not figures:
        return {}
    flat = [figure.detach().reshape(()) for figure in figures.values()]
    kind = torch.float32
    for figure in flat:
        kind = torch.promote_types(kind, figure.dtype)
    host = torch.stack([figure.to(kind) for figure in flat]).cpu()
    return {
        name: row.to(original.dtype) for name, row, original in zip(figures, host.unbind(), flat, strict=True)
    }


def _clear_last_figures(trainer: pl.Trainer) -> None:
    """Clears Lightning's cache of the last metrics, which it would log again if a run ends unexpectedly."""
    for key, result in (trainer._results or {}).items():
        if key.startswith("on_before_optimizer_step.train/"):
            result._forward_cache = None


_KEY = "accumulated"


class SaveAccumulatedGradients(Callback):
    """Callback that saves and restores the gradient of an unfinished accumulation window in checkpoints.

    With ``accumulate_grad_batches`` above 1 a validation and its checkpoint may come inside an accumulation
    window. The accumulated gradient is then part of the run's state. With several ranks it is averaged, and
    each rank continues with the mean, like a resumed run. The checkpoint therefore has one gradient, and another
    number of ranks can resume from it.

    Differs: Lightning drops the accumulated gradient.
    """

    def __init__(self) -> None:
        self._inside = False
        self._saved: dict[str, Any] | None = None  # Any: a number and tensors

    def on_after_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002  # Lightning's signature
        """Records that an accumulation window has begun, so a checkpoint must contain its gradient."""
        self._inside = True

    def on_before_optimizer_step(
        self,
        trainer: pl.Trainer,  # noqa: ARG002  # Lightning's signature
        pl_module: pl.LightningModule,  # noqa: ARG002  # Lightning's signature
        optimizer: torch.optim.Optimizer,  # noqa: ARG002  # Lightning's signature
    ) -> None:
        """Records that the accumulation window is finished, so a checkpoint needs no gradient."""
        self._inside = False

    def on_save_checkpoint(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        checkpoint: dict[str, Any],  # Any: content from Lightning
    ) -> None:
        """Adds the gradient of an unfinished accumulation window to the checkpoint."""
        if self._inside:
            average_gradients(pl_module.parameters())
            gradients_by_name = {name: weight.grad for name, weight in pl_module.named_parameters()}
            gradients = {
                name: full_tensor(gradient)
                for name, gradient in gradients_by_name.items()
                if gradient is not None
            }
            checkpoint[_KEY] = {"batches": trainer.accumulate_grad_batches, "gradients": gradients}

    def on_load_checkpoint(
        self,
        trainer: pl.Trainer,  # noqa: ARG002  # Lightning's signature
        pl_module: pl.LightningModule,  # noqa: ARG002  # Lightning's signature
        checkpoint: dict[str, Any],  # Any: content from Lightning
    ) -> None:
        """Keeps the gradient from a checkpoint until the weights are on their device."""
        self._saved = checkpoint.get(_KEY)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Restores the saved gradients of an unfinished accumulation window.

        Raises:
            ValueError: The checkpoint was saved with another ``accumulate_grad_batches``.
        """
        self._inside, saved, self._saved = self._saved is not None, self._saved, None
        if saved is None:
            return
        if saved["batches"] != trainer.accumulate_grad_batches:
            raise InvalidValueError(
                f"trainer.accumulate_grad_batches: expected {saved['batches']}, got "
                f"{trainer.accumulate_grad_batches}; resume with {saved['batches']}. The checkpoint is from "
                "inside an accumulation window."
            )
        for name, parameter in pl_module.named_parameters():
            if name in saved["gradients"]:
                parameter.grad = shard_like(
                    saved["gradients"][name].to(parameter.device, parameter.dtype), parameter
                )


FIRST = 10
"""Number of the first batches of a run whose losses are compared."""
_ROUNDING = 1e-6
"""Largest relative difference of losses that count as equal: rounding of float32 sums in another order."""
_CAUSES = (
    "check that the texts differ, that anchors and scores are not all the same, and that a batch has several rows"
)


class WarnConstantLoss(Callback):
    """Callback that warns once if the losses of the first ten batches are constant, so nothing is learned.

    The reason may be that all texts are equal, all rows have the same anchor, or all scores are equal. The losses
    stay on the device until the tenth batch, or the end of a shorter run. Then the host reads them all at once.
    """

    def __init__(self) -> None:
        self._losses: defaultdict[str, list[Tensor]] = defaultdict(list)
        self._batches = 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002  # Lightning's signature
        """Clears the collected losses of an earlier run."""
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
        """Compares the losses of a run with fewer than ten batches."""
        if 1 < self._batches < FIRST:
            self._warn(trainer)

    def _warn(self, trainer: pl.Trainer) -> None:
        losses_by_name = {
            f"{name}/{i}": loss_values
            for name, losses in self._losses.items()
            for i, loss_values in enumerate(losses)
        }
        host_losses = copy_to_host(means_over_ranks(losses_by_name))
        loss_values = {
            name: [float(host_losses[f"{name}/{i}"]) for i in range(len(losses_so_far))]
            for name, losses_so_far in self._losses.items()
        }
        description = describe_constant(loss_values)
        if description and trainer.is_global_zero:
            warnings.warn(f"{description} in each of the first {self._batches} batches: {_CAUSES}", stacklevel=2)


def describe_constant(losses: Mapping[str, Sequence[float]]) -> str:
    """Describes the losses of objectives if all are constant; empty if a loss changes or has only one value.

    Args:
        losses: Name of an objective -> its loss in each batch.

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
"""Number of batches between two checks that the loss is finite, if nothing is logged; Lightning's default."""


class StopWhenDiverged(Callback):
    """Callback that ends a run on all ranks if its loss or its weights are NaN or infinite.

    The loss of each batch stays on the device. The host reads it every ``trainer.log_every_n_steps`` batches (50
    if that is 0), before a validation and at the end, because reading synchronizes with the device. Weights are
    checked before each validation and each checkpoint, so no checkpoint has NaN weights. A step that the float16
    gradient scaler skips has a finite loss, and doesn't end the run.
    """

    def __init__(self) -> None:
        self._first: Tensor | None = None  # step and loss of the first batch with a loss of NaN or infinity

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002  # Lightning's signature
        """Clears the loss that an earlier run of the callback recorded."""
        self._first = torch.tensor([math.inf, 0.0], device=pl_module.device)

    def on_train_batch_end(self, trainer: pl.Trainer, *rest: Any) -> None:  # Any: Lightning's
        """Records the loss of a batch on the device, and checks at the log interval that it is finite."""
        _, outputs, _, batch_idx = rest  # module, output of the step, batch, number of the batch
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if isinstance(loss, Tensor) and self._first is not None:
            self._first = _earlier(self._first, loss.detach(), trainer.global_step)
        if (batch_idx + 1) % (vars(trainer)["log_every_n_steps"] or _INTERVAL) == 0:  # Lightning's, undeclared
            self._check_loss(trainer)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Checks before a validation that the loss and the weights are finite."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._check_loss(trainer)
            check_weights(trainer, pl_module)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Checks before the export of the model that the loss and the weights are finite."""
        self._check_loss(trainer)
        check_weights(trainer, pl_module)

    def _check_loss(self, trainer: pl.Trainer) -> None:
        if self._first is None:
            return
        step = float(trainer.strategy.reduce(self._first[0].clone(), reduce_op="min"))
        if step < math.inf:
            own_step, loss = self._first.tolist()
            got = f"{loss}" if own_step == step else "none on another rank"
            raise RunError(f"step {int(step):,}: expected a finite loss, got {got}; {_advice(trainer)}")


def _earlier(first: Tensor, loss: Tensor, step: int) -> Tensor:
    """Returns the first step with a loss of NaN or infinity and its loss, without waiting for the device."""
    now = torch.stack([torch.full_like(first[0], step), loss.reshape(()).to(first)])
    return torch.where(first[0].isinf() & ~loss.isfinite(), now, first)


def check_weights(trainer: pl.Trainer, module: nn.Module) -> None:
    """Checks that the weights of a module are finite, on all ranks together. Buffers (masks) may be infinite.

    Raises:
        RunError: A parameter is NaN or infinite, or a buffer is NaN.
    """
    sound = [local_tensor(parameter).isfinite().all() for parameter in module.parameters()]
    sound += [~buffer.isnan().any() for buffer in module.buffers()]
    finite = not sound or bool(torch.stack([check.to(sound[0].device) for check in sound]).all())
    if not trainer.strategy.reduce_boolean_decision(finite, all=True):
        raise RunError(
            f"step {trainer.global_step:,}: expected finite weights, got NaN or infinite ones; {_advice(trainer)}"
        )


def _advice(trainer: pl.Trainer) -> str:
    checkpoint = _last_checkpoint(trainer)
    where = f"the last checkpoint before it is {checkpoint}" if checkpoint else "there is no checkpoint before it"
    start = "start again, or from that checkpoint with --init_from, with" if checkpoint else "start again with"
    return f"{where}; training has diverged, so nothing is exported; {start} {_ADVICE}"


def _last_checkpoint(trainer: pl.Trainer) -> Path | None:
    """Returns the path of the run's latest existing checkpoint. All checkpoints have finite weights."""
    ours = [callback for callback in trainer.checkpoint_callbacks if isinstance(callback, ModelCheckpoint)]
    paths = [path for callback in ours for path in (callback.best_model_path, callback.last_model_path)]
    # Lightning sets the path of the best checkpoint before the file is written.
    paths += [vars(callback)["_last_checkpoint_saved"] for callback in ours]
    stopped = [
        callback.checkpoint for callback in vars(trainer)["callbacks"] if isinstance(callback, SaveWhenStopped)
    ]
    existing_paths = [path for path in (Path(name) for name in (*paths, *stopped) if name) if path.is_file()]
    return max(existing_paths, key=lambda path: path.stat().st_mtime, default=None)
