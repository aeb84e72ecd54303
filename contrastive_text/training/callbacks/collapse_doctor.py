"""Callbacks that monitor the distribution of vectors: warnings of collapse, and early stopping without labels."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from torch import Tensor

from contrastive_text.core.distributed import world_size
from contrastive_text.core.errors import InvalidValueError, at_least
from contrastive_text.core.terminal import log_message
from contrastive_text.metrics import EffectiveRank, MeanCosine, PositiveAlignment, Uniformity
from contrastive_text.metrics.geometry import COLLAPSED, describe_collapse
from contrastive_text.objectives import Objective
from contrastive_text.training.module import ContrastiveModule

EVERY = 50
"""Number of steps between two readings of the training log. Reading synchronizes with the device."""

IN_A_ROW = 4
"""Number of consecutive readings with the same problem before a warning. A single batch may be easy."""

SETTLED = 100
"""Number of steps before the first warning of collapse: vectors of a random network are close together."""

SOLVED_LOSS, SOLVED_ACCURACY = 0.01, 0.999
"""Largest loss and smallest accuracy at which an objective is solved: its gradient is almost zero."""

FLAT, SPREAD = 0.25, -2.0
"""Two bounds on uniformity: its fall since the start, and its value. A solved objective should reach one of them.

A loss near 0 alone is usual: SimCSE reaches 0.001 within a few hundred steps, while its uniformity falls by more
than 1. A random encoder that started at -3.2 with a loss of 0.003 still gained 11 points of Spearman."""

MOST_TEXTS = 8192
"""Largest number of held-out texts that are measured on all ranks. Every pair of texts is compared."""

ALIKE = 0.5
"""Smallest root mean square of the correlations between features at which features are redundant.

At this value the features behave like mixtures of 4 = 1 / 0.5^2 directions. Independent features of 128 vectors
have the value 0.09."""


def remedy(objectives: Iterable[Objective]) -> str:
    """Returns a message with remedies for a collapse of the vectors of these objectives.

    Example:
        >>> from contrastive_text.objectives import Contrastive
        >>> remedy([Contrastive()])
        'try a lower learning rate, a larger batch or a lower temperature, from an earlier checkpoint'
    """
    remedies = dict.fromkeys(remedy_text for objective in objectives for remedy_text in objective.collapse_advice)
    *first, last = ["a lower learning rate", "a larger batch", *remedies]
    return f"try {', '.join(first)} or {last}, from an earlier checkpoint"


class ProblemDetector:
    """Detects problems of training, such as a collapse, from the metrics of logged steps.

    Attributes:
        start: Name of an objective -> its uniformity at the first reading.
        objectives: Name -> objective. An objective that isn't in the dictionary counts as one with negatives.

    Example:
        >>> signs = ProblemDetector()
        >>> signs.read(50, {"train/loss": 0.5})
        {}
    """

    def __init__(self) -> None:
        self.start: dict[str, float] = {}
        self.objectives: Mapping[str, Objective] = {}
        self._in_a_row: Counter[tuple[str, str]] = Counter()

    def read(self, step: int, figures: Mapping[str, float]) -> dict[str, str]:
        """Looks for problems such as a collapse in the logged metrics of a step.

        Returns kind -> message of each problem that lasts for several readings.

        Args:
            step: Number of the step.
            figures: Metrics that are logged under ``train/``.
        """
        problems: dict[str, str] = {}
        for key, uniformity in figures.items():
            place, _, figure = key.rpartition("/")
            part, _, name = place.partition("/")
            if (part, figure) != ("train", "uniformity") or math.isnan(uniformity):  # NaN: no part of this step
                continue
            prefix = f"{place}/"
            log = {
                metric_name.removeprefix(prefix): figures[metric_name]
                for metric_name in figures
                if metric_name.startswith(prefix)
            }
            problems |= self._read_objective(name, step, {**log, "loss": figures[place]})
        return problems

    def last_verdict(self, step: int, figures: Mapping[str, float]) -> str:
        """Returns whether the vectors of the last logged step have collapsed, as text; empty if not measured.

        Args:
            step: Number of the step.
            figures: Metrics that are logged under ``train/``.
        """
        verdicts = []
        for name, objective in self.objectives.items():
            prefix = f"train/{name}/"
            log = {
                metric_name.removeprefix(prefix): figures[metric_name]
                for metric_name in figures
                if metric_name.startswith(prefix)
            }
            if math.isnan(log.get("negative_similarity", math.nan)):
                continue
            collapsed = _collapsed(name, step, log, objective.has_negatives)
            similarities = _similarities(log, objective.has_negatives)
            healthy = f"{name}: the space has not collapsed at step {step:,}: {similarities}"
            verdicts.append(f"{collapsed}; {remedy([objective])}" if collapsed else healthy)
        return "\n".join(verdicts)

    def _read_objective(self, name: str, step: int, log: Mapping[str, float]) -> dict[str, str]:
        start = self.start.setdefault(name, log["uniformity"])
        objective = self.objectives.get(name)
        has_negatives = objective is None or objective.has_negatives
        signs = {
            "trivial": has_negatives and _trivial(name, step, log, start),
            "collapse": step >= SETTLED and _collapsed(name, step, log, has_negatives),
            "alike": step >= SETTLED and _alike(name, step, log),
        }
        problems = {}
        for kind, message in signs.items():
            self._in_a_row[name, kind] = self._in_a_row[name, kind] + 1 if message else 0
            if message and self._in_a_row[name, kind] >= IN_A_ROW:
                advice = "" if kind == "trivial" else f"; {remedy([] if objective is None else [objective])}"
                problems[kind] = message + advice
        return problems


def _similarities(log: Mapping[str, float], has_negatives: bool) -> str:
    pairs, contrasts = ("positives", "negatives") if has_negatives else ("pairs", "other texts")
    return f"{pairs} have cosine {log['positive_similarity']:.3f}, {contrasts} {log['negative_similarity']:.3f}"


def _trivial(name: str, step: int, log: Mapping[str, float], start: float) -> str | None:
    """Returns a message if positives are trivial: the loss is near 0, and uniformity is flat. Otherwise None."""
    solved = log["loss"] <= SOLVED_LOSS and log["accuracy"] >= SOLVED_ACCURACY
    if not solved or log["uniformity"] <= max(start - FLAT, SPREAD):
        return None
    return (
        f"{name}: loss {log['loss']:.4f} and accuracy {log['accuracy']:.3f} at step {step:,}, but uniformity "
        f"{log['uniformity']:.2f} is flat, {start:.2f} at the start ({_similarities(log, has_negatives=True)}): "
        "positives are trivial, so that nothing is learned from them; try stronger views or dropout, other "
        "positives, hard negatives, a larger batch or a higher temperature"
    )


def _collapsed(name: str, step: int, log: Mapping[str, float], has_negatives: bool) -> str | None:
    """Returns a message if vectors of unrelated texts are almost equal. Otherwise None."""
    if log["negative_similarity"] < COLLAPSED:
        return None
    return (
        f"{name}: the space has collapsed at step {step:,}: {_similarities(log, has_negatives)}, uniformity "
        f"{log['uniformity']:.2f}"
    )


def _alike(name: str, step: int, log: Mapping[str, float]) -> str | None:
    """Returns a message if features are strongly correlated. None if they aren't, or if it isn't logged."""
    correlation = log.get("off_diagonal", 0.0)
    if correlation < ALIKE:
        return None
    return (
        f"{name}: features repeat each other at step {step:,}: two of them have a correlation of "
        f"{correlation:.2f}, as if all were mixtures of {1 / correlation**2:.0f} directions: a partial collapse, "
        "in which texts that differ come to lie together"
    )


class CollapseDoctor(Callback):
    """Callback that logs the distribution of held-out vectors, and warns once for each kind of problem.

    At each validation of a training run with scored pairs, it logs four metrics of the validation's vectors, over
    all ranks. ``val/alignment`` is the mean over the files, of the pairs that count as positives (see
    ``metrics.positive_pairs``). ``val/uniformity``, ``val/mean_cosine`` and ``val/effective_rank`` are computed
    over the texts of all files, at most ``MOST_TEXTS``. Nothing is measured if a file has fewer pairs than ranks.

    The callback warns if held-out or training vectors collapse. It warns if positives are trivial, for objectives
    with negatives. It warns if features are redundant, for objectives that log correlations of features. A short
    run ends before a collapse can be distinguished from the first steps. It gets a verdict on its last vectors.
    """

    reads_figures_every = EVERY

    def __init__(self) -> None:
        self.signs = ProblemDetector()
        self._warned_kinds: set[str] = set()
        self._last_read = -1
        self._verdict = ""
        self._measured = self._features = 0
        self._alignments: dict[int, PositiveAlignment] = {}
        self._spread: tuple[MeanCosine, Uniformity, EffectiveRank] = _spread_metrics()

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002  # Lightning's signature
        """Stores the objectives, which state whether they have negatives and how to remedy a collapse."""
        if isinstance(pl_module, ContrastiveModule):
            self.signs.objectives = pl_module.objective_parts()

    def on_train_batch_end(self, trainer: pl.Trainer, *rest: Any) -> None:  # noqa: ARG002  # Any: Lightning's
        """Reads the logged metrics every ``EVERY`` steps, and warns of problems such as a collapse."""
        step = trainer.global_step
        if step == self._last_read or (step % EVERY and self._last_read >= 0):
            return
        self._last_read = step
        figures = {name: float(figure) for name, figure in trainer.callback_metrics.items()}
        for kind, message in self.signs.read(step, figures).items():
            self._warn(trainer, kind, message)

    def on_validation_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002  # Lightning's signature
        """Clears the metrics of held-out vectors before a validation."""
        self._measured, self._alignments, self._spread = 0, {}, _spread_metrics()

    def on_validation_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,  # noqa: ARG002  # Lightning's signature
        outputs: Tensor | Mapping[str, Any] | None,  # Any: Lightning's
        batch: Any,  # noqa: ARG002  # Any: Lightning's
        batch_idx: int,  # noqa: ARG002  # Lightning's signature
        dataloader_idx: int = 0,
    ) -> None:
        """Adds the vectors of a batch of scored pairs to the metrics of held-out vectors. Skips other batches."""
        if trainer.state.fn != "fit" or trainer.sanity_checking or not isinstance(outputs, Mapping):
            return
        u, v, target = (outputs[name] for name in ("anchor", "positive", "target"))
        if dataloader_idx not in self._alignments:
            self._alignments[dataloader_idx] = PositiveAlignment().to(u.device)
        self._alignments[dataloader_idx].update(u, v, target=target)
        room = max(MOST_TEXTS // world_size() - self._measured, 0)
        texts = torch.cat([u, v])[:room]
        self._measured += len(texts)
        self._features = texts.shape[1]
        for metric in self._spread:
            metric.to(u.device).update(texts)

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Logs the metrics of the held-out vectors, and warns if they have collapsed."""
        complete = bool(self._alignments) and all(trainer.num_val_batches)
        if not trainer.strategy.reduce_boolean_decision(complete, all=True):
            return
        texts, features = self._measured * world_size(), self._features
        mean_cosine, uniformity, effective_rank = self._spread
        figures = {"mean_cosine": float(mean_cosine.compute())}
        if math.isnan(figures["mean_cosine"]):
            return  # then there are no scores either, which BestCheckpoint refuses
        figures |= {"uniformity": float(uniformity.compute()), "effective_rank": float(effective_rank.compute())}
        alignments = [float(metric.compute()) for metric in self._alignments.values()]
        if defined := [value for value in alignments if not math.isnan(value)]:
            figures["alignment"] = sum(defined) / len(defined)
        # The metrics have already gathered over ranks; sync_dist only avoids a warning.
        pl_module.log_dict({f"val/{name}": figure for name, figure in figures.items()}, sync_dist=True)
        problem = describe_collapse(figures["mean_cosine"], figures["effective_rank"], most=min(texts, features))
        summary = ", ".join(f"{name} {figure:.3g}" for name, figure in figures.items())
        self._verdict = (
            f"held out at step {trainer.global_step:,}, {problem or 'the space has not collapsed'} ({summary})"
        )
        if problem:
            self._verdict += f"; {remedy(self.signs.objectives.values())}"
        if problem and trainer.global_step >= SETTLED:
            self._warn(trainer, "collapse", self._verdict)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002  # Lightning's signature
        """Prints at the end of a short run whether its last vectors have collapsed."""
        if trainer.global_step >= SETTLED + IN_A_ROW * EVERY or self._warned_kinds:
            return
        figures = {name: float(figure) for name, figure in trainer.callback_metrics.items()}
        verdict = self._verdict or self.signs.last_verdict(trainer.global_step, figures)
        if verdict and trainer.is_global_zero:
            log_message(verdict[0].upper() + verdict[1:])

    def _warn(self, trainer: pl.Trainer, kind: str, message: str) -> None:
        if kind not in self._warned_kinds and trainer.is_global_zero:
            warnings.warn(message, stacklevel=2)
        self._warned_kinds.add(kind)

    def state_dict(self) -> dict[str, Any]:  # Any: Lightning's signature
        """Returns the callback's state for a checkpoint: uniformity at the start, kinds of earlier warnings."""
        return {"start": dict(self.signs.start), "said": sorted(self._warned_kinds)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:  # Any: Lightning's signature
        """Restores from a checkpoint the uniformity at the start and the kinds of earlier warnings."""
        self.signs.start = dict(state_dict["start"])
        self._warned_kinds = set(state_dict["said"])


def _spread_metrics() -> tuple[MeanCosine, Uniformity, EffectiveRank]:
    return MeanCosine(), Uniformity(), EffectiveRank()


class StopWhenSpread(Callback):
    """Callback that ends training when uniformity stops falling. It needs no labels.

    Contrastive training first spreads vectors out of a narrow cone, which gives most of its gain. Further
    spreading finally hurts similarity, according to ConSERT's author (issue 1 of github.com/yym6472/ConSERT); the
    paper stops by labeled pairs. Here ``train/NAME/uniformity`` of the batches is averaged over windows of steps.
    The run ends after the first window whose uniformity is less than ``min_fall`` below the previous window. It
    keeps the weights of this step, unless a validation selects other weights. ``docs/collapse.md`` compares the
    rule with labels.

    Args:
        every: Number of steps in a window.
        min_fall: Smallest fall of uniformity between two windows that continues the run.
        objective: Name of the contrastive objective.

    Raises:
        ValueError: ``every`` is below 1, or ``min_fall`` is below 0. Or, in training, the objective doesn't
            exist.

    Example:
        >>> rule = StopWhenSpread(every=2, min_fall=0.1)
        >>> [rule.read(torch.tensor(figure)) for figure in (-1.0, -1.2, -2.0, -2.2, -2.1, -2.2)]
        [False, False, False, False, False, True]
    """

    reads_figures_every = 1

    def __init__(self, every: int = 25, min_fall: float = 0.05, objective: str = "contrastive") -> None:
        self.every = at_least("StopWhenSpread.every", every, 1)
        self.min_fall = at_least("StopWhenSpread.min_fall", min_fall, 0)
        self.objective = objective
        self.last = math.inf
        self._window: list[Tensor] = []  # stays on the device, which is read only at the end of a window
        self._step = 0

    def read(self, uniformity: Tensor) -> bool:
        """Adds the uniformity of a step to the current window.

        Returns whether a window ends in which uniformity has fallen too little.

        Args:
            uniformity: A scalar; NaN if the objective isn't in the step.
        """
        self._window.append(uniformity.detach())
        if len(self._window) < self.every:
            return False
        mean, before = float(torch.stack(self._window).nanmean()), self.last
        self._window = []
        if math.isnan(mean):
            return False
        self.last = mean
        return before - mean < self.min_fall

    def on_train_batch_end(self, trainer: pl.Trainer, *rest: Any) -> None:  # noqa: ARG002  # Any: Lightning's
        """Reads the uniformity of the step, and ends the run if uniformity has stopped falling."""
        if trainer.global_step == self._step:  # a batch inside an accumulation window
            return
        self._step = trainer.global_step
        name, figures = f"train/{self.objective}/uniformity", trainer.callback_metrics
        ended = self.read(figures.get(name, torch.tensor(math.nan)))
        if not self._window and name not in figures:
            there = ", ".join(key.split("/")[1] for key in figures if key.endswith("/uniformity")) or "none"
            raise InvalidValueError(
                f"StopWhenSpread.objective: expected the name of a contrastive objective ({there}), got "
                f"{self.objective}; name one, or remove the callback"
            )
        if trainer.strategy.reduce_boolean_decision(ended, all=False):
            trainer.should_stop = True
            if trainer.is_global_zero:
                fell = f"uniformity is {self.last:.2f} and fell by less than {self.min_fall:g}"
                log_message(f"stops at step {self._step:,}: {fell} in {self.every} steps")

    def state_dict(self) -> dict[str, Any]:  # Any: Lightning's signature
        """Returns the state of the early stopping: mean of the last window, and values of the current window."""
        return {"last": self.last, "window": [float(value) for value in self._window], "step": self._step}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:  # Any: Lightning's signature
        """Restores the state of the early stopping: mean of the last window, and values of the current window."""
        self.last, self._step = state_dict["last"], state_dict["step"]
        self._window = [torch.tensor(value) for value in state_dict["window"]]
