"""Ends a run without labels: when the vectors of the training texts spread no further."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from torch import Tensor

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.terminal import say


class StopWhenSpread(Callback):
    """Ends training when uniformity has stopped falling, a rule that reads no label.

    Contrastive training first spreads vectors that lie in a cone, from which most of its gain comes, and goes
    on spreading what is spread, which hurts similarity in the end: so ConSERT's author (issue 1 of
    github.com/yym6472/ConSERT), whose paper stops by labelled pairs. Here ``train/NAME/uniformity``, of the
    batches' own vectors, is averaged over windows of steps; the run ends after the first window that wins less
    than ``least`` over the one before. The weights are those of that moment, unless a validation chooses others.
    ``docs/diagnose.md`` says how well that agrees with labels.

    Args:
        every: Steps of a window.
        least: Fall of uniformity from one window to the next that is worth going on for.
        objective: Name of the contrastive objective.

    Raises:
        ValueError: A window of no step, or a fall below 0; in training, no objective of that name.

    Example:
        >>> rule = StopWhenSpread(every=2, least=0.1)
        >>> [rule.read(torch.tensor(figure)) for figure in (-1.0, -1.2, -2.0, -2.2, -2.1, -2.2)]
        [False, False, False, False, False, True]
    """

    reads_figures_every = 1

    def __init__(self, every: int = 25, least: float = 0.05, objective: str = "contrastive") -> None:
        if every < 1 or not least >= 0:
            raise InvalidValueError(
                f"StopWhenSpread: expected every of 1 or more and least of 0 or more, got {every} and {least}"
            )
        self.every = every
        self.least = least
        self.objective = objective
        self.last = math.inf
        self._window: list[Tensor] = []  # on their device: only the end of a window waits for it
        self._step = 0

    def read(self, uniformity: Tensor) -> bool:
        """Takes the uniformity of a step; returns whether the window that it ends has won too little.

        Args:
            uniformity: A scalar; NaN where the objective has no part in the step.
        """
        self._window.append(uniformity.detach())
        if len(self._window) < self.every:
            return False
        mean, before = float(torch.stack(self._window).nanmean()), self.last
        self._window = []
        if math.isnan(mean):
            return False
        self.last = mean
        return before - mean < self.least

    def on_train_batch_end(self, trainer: pl.Trainer, *rest: Any) -> None:  # noqa: ARG002  # Any: Lightning's
        """Reads the figure of the step, and ends the run where the rule says so."""
        if trainer.global_step == self._step:  # a batch that is accumulated
            return
        self._step = trainer.global_step
        name, figures = f"train/{self.objective}/uniformity", trainer.callback_metrics
        ended = self.read(figures.get(name, torch.tensor(math.nan)))
        if not self._window and name not in figures:
            there = ", ".join(each.split("/")[1] for each in figures if each.endswith("/uniformity")) or "none"
            raise InvalidValueError(
                f"StopWhenSpread.objective: expected the name of a contrastive objective ({there}), got "
                f"{self.objective}; name one, or leave the callback out"
            )
        if trainer.strategy.reduce_boolean_decision(ended, all=False):
            trainer.should_stop = True
            if trainer.is_global_zero:
                fell = f"uniformity is {self.last:.2f} and fell by less than {self.least:g}"
                say(f"stops at step {self._step:,}: {fell} in {self.every} steps")

    def state_dict(self) -> dict[str, Any]:  # Any: Lightning's signature
        """Returns what a resumed run must know: the last window, and the one that has begun."""
        return {"last": self.last, "window": [float(each) for each in self._window], "step": self._step}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:  # Any: Lightning's signature
        """Takes over what the run before it knew."""
        self.last, self._step = state_dict["last"], state_dict["step"]
        self._window = [torch.tensor(each) for each in state_dict["window"]]
