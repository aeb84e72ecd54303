"""Warns in words, while training, of a space that collapses and of trivial positives."""

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
