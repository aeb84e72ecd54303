"""A run of a sweep: its stages are trained one after the other, then its best weights are measured."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from contrastive_text.cli.answers import answer
from contrastive_text.cli.main import run
from contrastive_text.cli.sweep_checks import speaking_to
from contrastive_text.cli.sweep_scores import SweepScores
from contrastive_text.cli.words import option_value
from contrastive_text.core.class_paths import trusted
from contrastive_text.core.distributed import leaving_the_group
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.terminal import say
from contrastive_text.recipes.layers import Config
from contrastive_text.runs.sweeps import Cell, SweepFolder, SweepRun, read_validations
from contrastive_text.runs.sweeps.stages import StageFolder, Training

_STOPPED = 130
"""Exit status after a Ctrl-C."""


@dataclass(frozen=True)
class Job:
    """How a cell is run.

    Args:
        options: Those of ``fit`` that all cells share.
        folder: Where runs are kept.
        keep_weights: Whether checkpoints and models stay.
        select: What chooses the weights of the last stage; None to leave it to ``fit``.
        scores: What is measured of them.
        configs: Name of a cell -> configuration of its last stage.
    """

    options: Sequence[str]
    folder: SweepFolder
    keep_weights: bool
    select: str | None
    scores: SweepScores
    configs: Mapping[str, Config]

    def words(self, cell: Cell, seed: int, stage: int = 1) -> list[str]:
        """Returns the command of a stage of a run, from ``fit`` on."""
        words = [f"--trust={module}" for module in trusted()] + cell.words(self.options, stage)
        if stage == cell.stages[-1] and self.select is not None:
            words.append(f"--checkpoint.monitor={self.select}")
        if stage > 1:
            before = self.folder.stages(cell, seed)[stage - 2]
            words.append(f"--init_from={before.checkpoints}")
        return ["fit", *words, f"--seed_everything={seed}"]

    def finished(self, cell: Cell, seed: int) -> bool:
        """Whether a run is trained and measured."""
        return self.folder.finished(cell, seed, self.scores.parts)

    def run(self, cell: Cell, seed: int, place: Path) -> SweepRun:
        """Does what is left of a run: trains the stages that aren't, and measures the weights of the last.

        Weights stay until nothing needs them any more: those of a stage until the next one is trained, those of
        the last until they are measured. After a failure those that are left stay for the next attempt.

        Raises:
            SystemExit: A signal stopped the run.
            ValueError: A figure to choose by that no run has.
        """
        known, stages = self.folder.read(cell, seed), self.folder.stages(cell, seed)
        trained = max((stage for stage in cell.stages if stages[stage - 1].is_trained), default=0)
        error = ""
        for stage in cell.stages[trained:]:
            if error := self._train(cell, seed, stage):
                break
            if stage > 1 and not self.keep_weights:
                stages[stage - 2].remove_weights()
        found = [each.training() or Training(0.0) for each in stages]
        scores, begun = {} if known is None else known.scores, time.perf_counter()
        if not error:
            scores, error = self._measure(cell, stages[-1], scores)
        seconds = sum(each.seconds for each in found) + time.perf_counter() - begun
        done = SweepRun(
            cell.labels,
            seed,
            round(seconds, 1),
            [] if error else found[-1].validations,
            error,
            scores,
            self.keep_weights,
        )
        commands = [shlex.join(["contrastive-text", *self.words(cell, seed, stage)]) for stage in cell.stages]
        self.folder.keep(place, done, commands=commands)
        self.tidy(cell, seed)
        return done

    def tidy(self, cell: Cell, seed: int) -> None:
        """Removes the weights of a run that is finished, where they weren't to stay."""
        run = self.folder.read(cell, seed)
        if run is not None and not run.error and not run.keeps_weights:
            for stage in self.folder.stages(cell, seed):
                stage.remove_weights()

    def _train(self, cell: Cell, seed: int, stage: int) -> str:
        """Trains a stage in its folder, which is emptied; what it prints goes into ``fit.log`` there.

        Returns:
            Why it failed; empty where it didn't.
        """
        place = self.folder.stages(cell, seed)[stage - 1]
        words = [*self.words(cell, seed, stage), f"--trainer.default_root_dir={place.path}"]
        words += [f"--export.dirpath={place.model}", f"--checkpoint.dirpath={place.checkpoints}"]
        if option_value(words, "--resumable.minutes") is None:
            words.append("--resumable.minutes=null")  # a stage that is killed is begun anew
        if option_value(words, "--trainer.enable_progress_bar") is None:
            words.append("--trainer.enable_progress_bar=false")
        place.empty()
        log = place.path / "fit.log"
        begun = time.perf_counter()
        with log.open("w", encoding="utf-8") as file, speaking_to(file), _alone(words):
            try:
                status: object = run(words)
            except SystemExit as left:
                # Lightning makes status 1 of a Ctrl-C before the first step.
                status = _STOPPED if isinstance(left.__context__, KeyboardInterrupt) else left.code
        if isinstance(status, int) and status > 128:
            what = "this run" if len(cell.stages) == 1 else f"stage {stage} of this run"
            say(f"stopped in {cell.name}, seed {seed}; the same command goes on, with {what} anew")
            raise SystemExit(status)
        gc.collect()  # a trainer and its parts refer to each other
        torch.cuda.empty_cache()
        if status != 0:
            reason = _reason(log)
            if self.select is not None and reason.startswith("checkpoint.monitor: "):  # no run has it
                raise InvalidValueError(reason.replace("checkpoint.monitor", "--select", 1))
            return reason
        seconds = round(time.perf_counter() - begun, 1)
        place.keep(Training(seconds, read_validations(place.path)), shlex.join(["contrastive-text", *words]))
        return ""

    def _measure(self, cell: Cell, last: StageFolder, known: Mapping[str, float]) -> tuple[dict[str, float], str]:
        """Returns the scores of a trained run, and why they couldn't be measured; empty where they could."""
        if known.keys() >= set(self.scores.parts):
            return dict(known), ""
        with (last.path / "report.log").open("w", encoding="utf-8") as file, speaking_to(file):
            try:
                return self.scores.measure(last.model, self.configs[cell.name], known), ""
            except KeyboardInterrupt:
                raise SystemExit(_STOPPED) from None
            except Exception as error:
                if (said := answer(error, "sweep")) is None:
                    raise
                return dict(known), " ".join(said.split())[:300]


def _reason(log: Path) -> str:
    said = log.read_text(encoding="utf-8").rpartition("error: ")[2]
    return " ".join(said.split())[:300] or f"see {log}"


@contextlib.contextmanager
def _alone(words: Sequence[str]) -> Iterator[None]:
    """Lets a run start processes of its own for further devices, and leaves nothing of them to the next run."""
    typed, environment = sys.argv, dict(os.environ)
    sys.argv = [typed[0], *words]  # what Lightning starts them with
    try:
        with leaving_the_group():
            yield
    finally:
        sys.argv = typed
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        for name, value in environment.items():
            if os.environ.get(name) != value:  # a library's thread may read one while another is set
                os.environ[name] = value


def check_weights(job: Job, cells: Sequence[Cell], seeds: Sequence[int]) -> None:
    """Checks that runs which finished without the scores of a new report still have weights to measure.

    Raises:
        ValueError: Some have none any more; the message says which.
    """
    gone: list[Path] = []
    missing: dict[str, None] = {}
    for cell, seed in itertools.product(cells, seeds):
        run = job.folder.read(cell, seed)
        if run is None or run.error or job.finished(cell, seed):
            continue
        if not job.folder.stages(cell, seed)[-1].model.exists():
            gone.append(job.folder.place(cell, seed))
            missing |= dict.fromkeys(part for part in job.scores.parts if part not in run.scores)
    if gone:
        places = " ".join(map(str, gone))
        raise InvalidValueError(
            f"--report: expected runs with {', '.join(missing)} or with weights to measure it, got {len(gone)} "
            f"whose weights are gone; delete them to have them run anew: {places}; or leave the report out"
        )
