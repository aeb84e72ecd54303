"""Callbacks that watch how far vectors spread: warnings of collapse, and a stop without labels."""

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

from contrastive_text.core.checks import at_least
from contrastive_text.core.distributed import world_size
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.terminal import say
from contrastive_text.metrics import EffectiveRank, MeanCosine, PositiveAlignment, Uniformity
from contrastive_text.metrics.verdicts import COLLAPSED, collapse
from contrastive_text.objectives import Objective
from contrastive_text.training.module import ContrastiveModule

EVERY = 50
"""Steps between two readings of what training logs: reading waits for the device."""

IN_A_ROW = 4
"""Readings that must agree: a single batch may be an easy one."""

SETTLED = 100
"""Steps before which nothing is called a collapse: the vectors of a random network lie together at first."""

SOLVED_LOSS, SOLVED_ACCURACY = 0.01, 0.999
"""Loss and accuracy in the batch from which on an objective hardly has a gradient."""

FLAT, SPREAD = 0.25, -2.0
"""Uniformity that a run must win from its start, unless its vectors are spread already. By itself a loss near 0
is usual: SimCSE comes to 0.001 within some hundred steps, while its uniformity falls by 1 and more; and a random
encoder that started at -3.2 with a loss of 0.003 still won 11 points of Spearman."""

MOST_TEXTS = 8192
"""Held-out texts that are measured at most, of all ranks: every pair of them counts."""

ALIKE = 0.5
"""Root mean square of the correlation of two features from which on they repeat each other: as if all of them
were mixtures of four directions, 1 / 0.5^2. Drawn independently, features of 128 vectors have 0.09."""


def remedy(objectives: Iterable[Objective]) -> str:
    """Returns in words what to try where the vectors of these objectives collapse.

    Example:
        >>> from contrastive_text.objectives import Contrastive
        >>> remedy([Contrastive()])
        'try a lower learning rate, a larger batch or a lower temperature, from an earlier checkpoint'
    """
    own = dict.fromkeys(each for objective in objectives for each in objective.remedies)
    *first, last = ["a lower learning rate", "a larger batch", *own]
    return f"try {', '.join(first)} or {last}, from an earlier checkpoint"


class TrainingSigns:
    """Says, from figures that it logs now and then, that training goes wrong.

    Attributes:
        start: Name of an objective -> its uniformity at the first reading.
        objectives: Name -> objective; one that isn't among them is taken to have negatives.

    Example:
        >>> signs = TrainingSigns()
        >>> signs.read(50, {"train/loss": 0.5})
        {}
    """

    def __init__(self) -> None:
        self.start: dict[str, float] = {}
        self.objectives: Mapping[str, Objective] = {}
        self._in_a_row: Counter[tuple[str, str]] = Counter()

    def read(self, step: int, figures: Mapping[str, float]) -> dict[str, str]:
        """Returns what is wrong, kind -> message, as far as ``IN_A_ROW`` readings agree on it.

        Args:
            step: Number of the step.
            figures: What is logged under ``train/``.
        """
        found: dict[str, str] = {}
        for key, uniformity in figures.items():
            place, _, figure = key.rpartition("/")
            part, _, name = place.partition("/")
            if (part, figure) != ("train", "uniformity") or math.isnan(uniformity):  # NaN: no part of this step
                continue
            prefix = f"{place}/"
            own = {each.removeprefix(prefix): figures[each] for each in figures if each.startswith(prefix)}
            found |= self._read_objective(name, step, {**own, "loss": figures[place]})
        return found

    def last_verdict(self, step: int, figures: Mapping[str, float]) -> str:
        """Returns whether the vectors of the last logged step have collapsed; empty if they weren't measured.

        Args:
            step: Number of the step.
            figures: What is logged under ``train/``.
        """
        said = []
        for name, objective in self.objectives.items():
            prefix = f"train/{name}/"
            own = {each.removeprefix(prefix): figures[each] for each in figures if each.startswith(prefix)}
            if math.isnan(own.get("negative_similarity", math.nan)):
                continue
            collapsed = _collapsed(name, step, own, objective.has_negatives)
            seen = _similarities(own, objective.has_negatives)
            healthy = f"{name}: the space has not collapsed at step {step:,}: {seen}"
            said.append(f"{collapsed}; {remedy([objective])}" if collapsed else healthy)
        return "\n".join(said)

    def _read_objective(self, name: str, step: int, own: Mapping[str, float]) -> dict[str, str]:
        start = self.start.setdefault(name, own["uniformity"])
        objective = self.objectives.get(name)
        has_negatives = objective is None or objective.has_negatives
        signs = {
            "trivial": has_negatives and _trivial(name, step, own, start),
            "collapse": step >= SETTLED and _collapsed(name, step, own, has_negatives),
            "alike": step >= SETTLED and _alike(name, step, own),
        }
        found = {}
        for kind, message in signs.items():
            self._in_a_row[name, kind] = self._in_a_row[name, kind] + 1 if message else 0
            if message and self._in_a_row[name, kind] >= IN_A_ROW:
                advice = "" if kind == "trivial" else f"; {remedy([] if objective is None else [objective])}"
                found[kind] = message + advice
        return found


def _similarities(own: Mapping[str, float], has_negatives: bool) -> str:
    pairs, others = ("positives", "negatives") if has_negatives else ("pairs", "other texts")
    return f"{pairs} have cosine {own['positive_similarity']:.3f}, {others} {own['negative_similarity']:.3f}"


def _trivial(name: str, step: int, own: Mapping[str, float], start: float) -> str | None:
    """Says that positives are trivial: a loss near 0 over vectors that don't spread; None if they aren't."""
    solved = own["loss"] <= SOLVED_LOSS and own["accuracy"] >= SOLVED_ACCURACY
    if not solved or own["uniformity"] <= max(start - FLAT, SPREAD):
        return None
    return (
        f"{name}: loss {own['loss']:.4f} and accuracy {own['accuracy']:.3f} at step {step:,}, but uniformity "
        f"{own['uniformity']:.2f} is flat, {start:.2f} at the start ({_similarities(own, has_negatives=True)}): "
        "positives are trivial, so that nothing is learned from them; try stronger views or dropout, other "
        "positives, hard negatives, a larger batch or a higher temperature"
    )


def _collapsed(name: str, step: int, own: Mapping[str, float], has_negatives: bool) -> str | None:
    """Says that texts which don't belong together have one vector; None if they haven't."""
    if own["negative_similarity"] < COLLAPSED:
        return None
    return (
        f"{name}: the space has collapsed at step {step:,}: {_similarities(own, has_negatives)}, uniformity "
        f"{own['uniformity']:.2f}"
    )


def _alike(name: str, step: int, own: Mapping[str, float]) -> str | None:
    """Says that features repeat each other, where that is logged; None if they don't."""
    correlation = own.get("off_diagonal", 0.0)
    if correlation < ALIKE:
        return None
    return (
        f"{name}: features repeat each other at step {step:,}: two of them have a correlation of "
        f"{correlation:.2f}, as if all were mixtures of {1 / correlation**2:.0f} directions: a partial collapse, "
        "in which texts that differ come to lie together"
    )


class CollapseDoctor(Callback):
    """Logs how held-out vectors lie in space, and warns in words, once for each kind, when training goes wrong.

    While training, at each validation with scored pairs, it logs ``val/alignment`` (of the pairs that count as
    positives, see ``metrics.positive_pairs``; the mean over the files), ``val/uniformity``, ``val/mean_cosine``
    and ``val/effective_rank`` (over the texts of all files), of the vectors that validation computes anyway, on
    all ranks, of ``MOST_TEXTS`` texts at most. Nothing is measured where a file has fewer pairs than there are
    ranks.

    It warns when the space collapses, held out or in training; when positives are trivial, of objectives that
    have negatives; and when features repeat each other, of those that ask them to differ. A run that ends before
    that can be told from the disorder of the first steps gets a verdict on its last vectors.
    """

    reads_figures_every = EVERY

    def __init__(self) -> None:
        self.signs = TrainingSigns()
        self._said: set[str] = set()
        self._last_read = -1
        self._verdict = ""
        self._measured = self._features = 0
        self._alignments: dict[int, PositiveAlignment] = {}
        self._spread: tuple[MeanCosine, Uniformity, EffectiveRank] = _spread_metrics()

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002  # Lightning's signature
        """Learns which objectives have negatives, and what each of them can be helped by."""
        if isinstance(pl_module, ContrastiveModule):
            self.signs.objectives = pl_module.objective_parts()

    def on_train_batch_end(self, trainer: pl.Trainer, *rest: Any) -> None:  # noqa: ARG002  # Any: Lightning's
        """Reads what the step has logged, now and then."""
        step = trainer.global_step
        if step == self._last_read or (step % EVERY and self._last_read >= 0):
            return
        self._last_read = step
        figures = {name: float(figure) for name, figure in trainer.callback_metrics.items()}
        for kind, message in self.signs.read(step, figures).items():
            self._warn(trainer, kind, message)

    def on_validation_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002  # Lightning's signature
        """Starts anew."""
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
        """Takes the vectors of a batch of scored pairs; a task's batch has none."""
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
        """Logs the figures of the held-out vectors, and warns if they have collapsed."""
        complete = bool(self._alignments) and all(trainer.num_val_batches)
        if not trainer.strategy.reduce_boolean_decision(complete, all=True):
            return
        texts, features = self._measured * world_size(), self._features
        mean_cosine, uniformity, effective_rank = self._spread
        figures = {"mean_cosine": float(mean_cosine.compute())}
        if math.isnan(figures["mean_cosine"]):
            return  # no scores either, which is refused
        figures |= {"uniformity": float(uniformity.compute()), "effective_rank": float(effective_rank.compute())}
        alignments = [float(metric.compute()) for metric in self._alignments.values()]
        if known := [each for each in alignments if not math.isnan(each)]:
            figures["alignment"] = sum(known) / len(known)
        # The metrics have gathered over ranks; sync_dist spares a warning.
        pl_module.log_dict({f"val/{name}": figure for name, figure in figures.items()}, sync_dist=True)
        said = collapse(figures["mean_cosine"], figures["effective_rank"], most=min(texts, features))
        seen = ", ".join(f"{name} {figure:.3g}" for name, figure in figures.items())
        self._verdict = (
            f"held out at step {trainer.global_step:,}, {said or 'the space has not collapsed'} ({seen})"
        )
        if said:
            self._verdict += f"; {remedy(self.signs.objectives.values())}"
        if said and trainer.global_step >= SETTLED:
            self._warn(trainer, "collapse", self._verdict)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002  # Lightning's signature
        """Prints a verdict on the last vectors of a run that is too short for a warning on the way."""
        if trainer.global_step >= SETTLED + IN_A_ROW * EVERY or self._said:
            return
        figures = {name: float(figure) for name, figure in trainer.callback_metrics.items()}
        said = self._verdict or self.signs.last_verdict(trainer.global_step, figures)
        if said and trainer.is_global_zero:
            say(said[0].upper() + said[1:])

    def _warn(self, trainer: pl.Trainer, kind: str, message: str) -> None:
        if kind not in self._said and trainer.is_global_zero:
            warnings.warn(message, stacklevel=2)
        self._said.add(kind)

    def state_dict(self) -> dict[str, Any]:  # Any: Lightning's signature
        """Returns what a resumed run must know: how the run started, and what has been said."""
        return {"start": dict(self.signs.start), "said": sorted(self._said)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:  # Any: Lightning's signature
        """Takes over what the run before it knew."""
        self.signs.start = dict(state_dict["start"])
        self._said = set(state_dict["said"])


def _spread_metrics() -> tuple[MeanCosine, Uniformity, EffectiveRank]:
    return MeanCosine(), Uniformity(), EffectiveRank()


class StopWhenSpread(Callback):
    """Ends training when uniformity has stopped falling, a rule that reads no label.

    Contrastive training first spreads vectors that lie in a cone, from which most of its gain comes, and goes
    on spreading what is spread, which hurts similarity in the end: so ConSERT's author (issue 1 of
    github.com/yym6472/ConSERT), whose paper stops by labeled pairs. Here ``train/NAME/uniformity``, of the
    batches' own vectors, is averaged over windows of steps; the run ends after the first window that wins less
    than ``least`` over the one before. The weights are those of that moment, unless a validation chooses others.
    ``docs/collapse.md`` says how well that agrees with labels.

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
        self.every = at_least("StopWhenSpread.every", every, 1)
        self.least = at_least("StopWhenSpread.least", least, 0)
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
