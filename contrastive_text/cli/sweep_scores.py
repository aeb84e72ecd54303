"""What a sweep measures of the best weights of a run: tasks of suites, and how its vectors lie in space."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from contrastive_text.cli.commands import Sweep
from contrastive_text.cli.files import plain_form
from contrastive_text.cli.models import warnings_as_notes
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.misspelt import nearest
from contrastive_text.core.storage.text_files import Bounds
from contrastive_text.data import Table, read_pairs
from contrastive_text.evaluation.cached import CachedEncoder
from contrastive_text.evaluation.diagnosis import Diagnosis, diagnose
from contrastive_text.evaluation.suites import SUITES, SuiteProtocol, read_suites, task_scores
from contrastive_text.inference.model_parts import pooler_name, pooler_of
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.metrics.verdicts import Mode, usual_mode
from contrastive_text.recipes.layers import Config
from contrastive_text.runs.sweeps import Report
from contrastive_text.training.callbacks import PAIR_SCORE

_DIAGNOSE = "diagnose"
_MEAN = "mean"
_FIGURES = (
    "mean_cosine",
    "uniformity",
    "alignment",
    "effective_rank",
    "isotropy",
    "off_diagonal",
    "hubness",
    "orphans",
    "spearman",
)
"""Those of ``Diagnosis`` that are one number each."""


def check_reports(options: Sweep) -> None:
    """Checks that what chooses and what is reported go together, before a configuration is read.

    Raises:
        ValueError: Something else than a figure of the validation that chooses; a report that isn't one; a score
            of test files without a figure that chooses; or an option that nothing reads.
    """
    if not (options.select or "val/").startswith("val/"):
        raise InvalidValueError(
            f"--select: expected a figure of the validation such as {PAIR_SCORE}, for test files never choose, "
            f"got {options.select}; report that with --report"
        )
    suites = _suites(options.report)
    for name in options.report:
        source, colon, _ = name.partition(":")
        if not name.startswith("val/") and (not colon or source not in (*SUITES, _DIAGNOSE)):
            raise InvalidValueError(
                f"--report: expected val/FIGURE, TASK or mean of a suite ({', '.join(SUITES)}) as in sts:mean, "
                f"or {_DIAGNOSE}:FIGURE, got {name}{nearest(source, [*SUITES, _DIAGNOSE])}"
            )
        if source in suites and options.select is None:
            raise InvalidValueError(
                f"--report {name}: expected --select beside it, got none: a score of test files never chooses, "
                "so name the figure of the validation that does, such as --select val/spearman"
            )
        if source in suites and options.report_data is None:
            raise InvalidValueError(
                f"--report {name}: expected the folder of the suite's data sets, got none; give --report_data"
            )
        if colon and options.take == "last":
            raise InvalidValueError(
                f"--report {name}: expected --take best, got last: the best weights of a run are those that are "
                "kept and measured; leave --take out, or report figures of the validation"
            )
    if options.report_pooler is not None and not any(":" in name for name in options.report):
        raise InvalidValueError(
            "--report_pooler: expected a report that is measured with it, as sts:mean is, got none; leave it out"
        )
    if options.report_data is not None and not suites:
        got = " ".join(options.report) or "none"
        raise InvalidValueError(
            f"--report_data: expected a report that reads it, such as sts:mean, got {got}; leave it out"
        )


def _suites(reports: Sequence[str]) -> list[str]:
    """Returns the suites of which something is reported."""
    sources = dict.fromkeys(name.partition(":")[0] for name in reports)
    return [source for source in sources if source in SUITES]


class SweepScores:
    """The reports of a sweep, and what measures those that the log of a run doesn't have.

    Everything that they read is read once, before the first run.

    Args:
        options: Those of the command.
        select: The figure that chooses, which is reported where nothing else is.
        mode: Whether a high one is good.

    Attributes:
        reports: In their order.
        parts: Name of a score that they are made of -> suite and task, or ``diagnose`` and figure.

    Raises:
        FileNotFoundError: No such folder of data sets.
        ValueError: A task that isn't one, or has no data.
    """

    def __init__(self, options: Sweep, select: str, mode: Mode) -> None:
        asked = list(dict.fromkeys(options.report)) or [select]
        suites = _suites(asked)
        self._pooler = None if options.report_pooler is None else pooler_of(options.report_pooler)
        self._suffix = "" if self._pooler is None else f" ({pooler_name(self._pooler)})"
        folder = options.report_data or ""
        self._data = read_suites(folder, suites, where="--report_data") if suites else None
        self.parts: dict[str, tuple[str, str]] = {}
        self.reports = [self._report(name, mode if name == select else usual_mode(name)) for name in asked]

    def _report(self, name: str, mode: Mode) -> Report:
        source, colon, task = name.partition(":")
        if not colon:
            return Report(name, mode)
        tasks = self._tasks_of(name, source, task)
        parts = {f"{source}:{each}{self._suffix}": (source, each) for each in tasks}
        self.parts |= parts
        return Report(f"{name}{self._suffix}", mode, (*parts,), over=", ".join(tasks) if task == _MEAN else "")

    def _tasks_of(self, name: str, source: str, task: str) -> list[str]:
        """Returns what a report is the mean of: one task or figure, or those of a suite that have data."""
        if source == _DIAGNOSE:
            _check_known(name, task, _FIGURES)
            return [task]
        assert self._data is not None
        suite = SUITES[source]
        missing = suite.missing(self._data)
        _check_known(name, task, [*missing, _MEAN])
        wanted = [task] if task != _MEAN else suite.averaged or list(missing)
        there = [each for each in wanted if not missing[each]]
        if not there:
            raise InvalidValueError(
                f"--report {name}: expected its data in --report_data, got none; {missing[wanted[0]]}"
            )
        return there

    def check(self, configs: Mapping[str, Config]) -> None:
        """Checks that every run has what is measured: for a diagnosis a file of scored pairs.

        Args:
            configs: Name of a cell -> configuration of its last stage.

        Raises:
            ValueError: A cell without such a file, or with several, or one that can't be read.
        """
        if any(source == _DIAGNOSE for source, _ in self.parts.values()):
            for name, config in configs.items():
                _pairs(config, f"--report {_DIAGNOSE} in the cell {name}")

    def measure(self, model: Path, config: Config, known: Mapping[str, float]) -> dict[str, float]:
        """Returns the scores of a model by the names of the reports' parts.

        Args:
            model: Its folder.
            config: Of the run's last stage, whose validation files are diagnosed.
            known: Scores that needn't be measured again, which are returned too.

        Raises:
            ValueError: A model of NaN, or files that changed since they were checked.
        """
        wanted = {part: of for part, of in self.parts.items() if part not in known}
        found = dict(known)
        if not wanted:
            return found
        with warnings_as_notes():
            embed = CachedEncoder(SentenceEncoder.from_pretrained(model, pooler=self._pooler))
            for source in dict.fromkeys(source for source, _ in wanted.values()):
                tasks = {part: task for part, (of, task) in wanted.items() if of == source}
                figures = (
                    self._diagnosis(embed, config)
                    if source == _DIAGNOSE
                    else self._tasks(embed, source, [*tasks.values()])
                )
                found |= {part: figures[task] for part, task in tasks.items()}
        return found

    def _tasks(self, embed: CachedEncoder, suite: str, tasks: Sequence[str]) -> dict[str, float]:
        assert self._data is not None
        scored = task_scores(suite, embed, self._data, SuiteProtocol(), tasks)
        return {score.task: score.score for score in scored}

    def _diagnosis(self, embed: CachedEncoder, config: Config) -> dict[str, float]:
        pairs = _pairs(config, f"--report {_DIAGNOSE}")
        texts = [str(row[side]) for row in pairs for side in ("anchor", "positive")]
        found: Diagnosis = diagnose(embed, texts, pairs=pairs)
        figures = dataclasses.asdict(found)
        return {name: math.nan if figures[name] is None else float(figures[name]) for name in _FIGURES}


def _pairs(config: Config, where: str) -> Table:
    """Returns the scored pairs of a run's validation."""
    data = config["data"]
    files = [data["validation"]] if isinstance(data["validation"], str) else data["validation"] or []
    if len(files) != 1:
        raise InvalidValueError(
            f"{where}: expected one file of scored pairs in data.validation, got {len(files)}; name one"
        )
    form = plain_form(columns="--data.task.eval_columns")
    return read_pairs(files[0], columns=data["task"]["eval_columns"], bounds=Bounds.of(data["bounds"]), form=form)


def _check_known(name: str, figure: str, known: Sequence[str]) -> None:
    if figure not in known:
        raise InvalidValueError(
            f"--report {name}: expected one of {', '.join(known)}, got {figure}{nearest(figure, known)}"
        )
