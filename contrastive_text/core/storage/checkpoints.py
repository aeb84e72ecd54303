"""Checkpoints on disk: whether a file is undamaged, its content, and the best checkpoint of a run."""

from __future__ import annotations

import hashlib
import inspect
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from contrastive_text.core.config.class_paths import foreign_modules, trusting
from contrastive_text.core.config.suggestions import short_parser_errors, suggest_name
from contrastive_text.core.config.untrusted import check_untrusted, importing_only
from contrastive_text.core.errors import InvalidValueError, MissingFileError
from contrastive_text.core.libraries import is_read_error, read_errors_as
from contrastive_text.core.storage.records import Record
from contrastive_text.core.storage.weights import check_dense

BASE = "base"
"""Checkpoint key of the identity of the base weights, which a checkpoint with adapters doesn't contain."""
_FOLDER_FLAG = 0x10
_TODO = "name a .ckpt file that fit wrote"
_UNEXPECTED_KEYS = {"hparams", "module_arguments", "hparams_name", "datamodule_hparams_name"}
"""Keys that make Lightning look for further arguments, or read arguments from another key."""


def verify_checkpoint(path: str | Path) -> None:
    """Checks that a checkpoint file exists and is undamaged.

    ``torch.load`` reads a flipped byte of a tensor without an error. The file is a zip archive with a checksum of
    every part. This function compares all checksums. It also refuses an archive whose directory torch would
    misread.

    Args:
        path: A ``.ckpt`` file.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is cut short, empty or has damaged bytes.
    """
    path = Path(path)
    if not path.is_file():
        raise MissingFileError(f"checkpoint: expected a file, found none at {path}; check --ckpt_path")
    if damage := _damage(path):
        raise InvalidValueError(
            f"{path}: expected a whole checkpoint, got {damage}; it was cut short or changed after it was "
            "written, so use another checkpoint"
        )


def archive_digest(path: str | Path) -> bytes:
    """Returns a digest of the checksums in a checkpoint's archive, by which two checkpoints can be compared.

    It reads only the directory of the archive. The digest is empty if the directory is damaged.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            parts = [(part.filename, part.CRC, part.file_size) for part in archive.infolist()]
    except Exception as error:  # as in ``_damage``
        if not is_read_error(error):
            raise
        return b""
    return hashlib.sha256(repr(parts).encode()).digest()


def _damage(path: Path) -> str | None:
    with path.open("rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                parts = archive.infolist()
                if sum(part.file_size for part in parts) > path.stat().st_size:
                    return "an archive of more bytes than its own, as torch writes none"
                if any(part.external_attr & _FOLDER_FLAG for part in parts):
                    return "a damaged file (a folder in its archive, which torch reads as zeros)"
                damaged = archive.testzip()
        except Exception as error:  # BadZipFile, UnicodeDecodeError, NotImplementedError, ... of damaged headers
            if not is_read_error(error):
                raise
            return f"a damaged file ({error})"
    return None if damaged is None else f"damaged bytes in {damaged}"


class RowScores(NamedTuple):
    """Values of held-out rows from which a validation score is computed, in an order that every run has.

    Args:
        values: Score of each row, (n,), float64: the validation score is their mean. Or cosines of scored pairs.
        target: Gold score of each pair, (n,), float64: the validation score is Spearman's correlation, times 100.
            None for a mean.
    """

    values: Tensor
    target: Tensor | None = None


ScoreRows: TypeAlias = Mapping[str, Mapping[str, RowScores]]
"""``val/NAME`` -> file or data set -> values of its rows. The validation score is the mean over files."""


@dataclass(frozen=True, slots=True)
class BestCheckpointState:
    """State of the callback that keeps the best checkpoint, as stored in a checkpoint.

    Args:
        monitor: Name of the score that is monitored; None without validation or without the callback.
        score: Best value of the score up to this checkpoint, or None.
        path: Path of the checkpoint with the best value; empty if none was written.
        figures: ``val/NAME`` -> score of the weights in this checkpoint; empty if they were not validated.
        validated: Task or file -> identity of its validation rows.
        run: Resolved path of the run folder that wrote the checkpoint; empty if unknown.
        start: ``val/NAME`` -> score of the weights before the first step; empty if they were not validated.
        mode: ``max`` if a high score is good, ``min`` if a low score is good.
        rows: Values of the held-out rows with the best weights, from which intervals are computed.
        start_rows: The same before the first step.
    """

    monitor: str | None = None
    score: float | None = None
    path: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
    validated: Mapping[str, int] = field(default_factory=dict)
    run: str = ""
    start: Mapping[str, float] = field(default_factory=dict)
    mode: str = "max"
    rows: ScoreRows = field(default_factory=dict)
    start_rows: ScoreRows = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Content of a checkpoint file: arguments, weights, step and facts of the run.

    Weights stay in the file until they are copied.

    Args:
        path: The file.
        step: Number of optimizer steps before the checkpoint was written.
        weights: Name of a parameter or buffer of the module -> its value.
        model: Arguments of the module, as plain data.
        data: Arguments of the data module, as plain data.
        tokenizer: JSON of a tokenizer that was trained on the corpus; None without one.
        best: State of the callback that keeps the best checkpoint.
        facts: Summary printed before the first step of the run: everything that determines the result.
        base: Identity of the base weights under adapters, which aren't in the file; None without adapters.
    """

    path: Path
    step: int
    weights: Mapping[str, Tensor]
    model: Mapping[str, Any]  # Any: what YAML can hold
    data: Mapping[str, Any]
    tokenizer: str | None
    best: BestCheckpointState
    facts: Mapping[str, str]
    base: str | None = None

    def arguments(
        self, cls: type, place: Literal["model", "data"], without: Collection[str] = ()
    ) -> dict[str, Any]:
        """Returns the arguments of the module or the data module, after checking the classes that they name."""
        options = self.model if place == "model" else self.data
        arguments = {name: value for name, value in options.items() if name not in without}
        parameters = inspect.signature(cls).parameters
        unknown = [str(name) for name in arguments if name not in parameters]
        if unknown and not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            raise InvalidValueError(
                f"{self.path}: {place}: expected an argument of {cls.__name__}, got {unknown[0]!r}"
                f"{suggest_name(unknown[0], parameters)}"
            )
        check_untrusted(arguments, f"{self.path}: {place}")
        return arguments

    @property
    def tasks(self) -> dict[str, Mapping[str, object]]:
        """Arguments of each task in the data arguments, by the task's name."""
        tasks = self.data.get("tasks") or {}
        assert isinstance(tasks, Mapping)
        return {str(name): task.get("init_args", task) for name, task in tasks.items()}

    @property
    def summary(self) -> str:
        """Path and step of the checkpoint, and its score if the run kept it as the best."""
        line = f"{self.path}: step {self.step:,}"
        if self.best.score is None or Path(self.best.path).name != self.path.name:
            return line
        return f"{line}, {self.best.monitor} {self.best.score:.2f}"


def read_checkpoint(path: str | Path, to_resume: bool = False) -> Checkpoint:
    """Reads a checkpoint of a ``ContrastiveModule`` after checking that it is undamaged.

    Args:
        path: A ``.ckpt`` file.
        to_resume: Whether a run will resume from it, which requires optimizer state.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is damaged or isn't a checkpoint of this library, or lacks the state to resume a run.
    """
    verify_checkpoint(path)
    expected = f"{path}: expected a checkpoint of this library"
    with read_errors_as(expected, _TODO):  # the unpickler may raise any error
        content = torch.load(str(path), map_location="cpu", weights_only=True, mmap=True)
    check_dense(content, str(path), _TODO)
    if not isinstance(content, dict) or not {"state_dict", "hyper_parameters"} <= set(content):
        raise InvalidValueError(f"{expected}, got a file without weights and parts; {_TODO}")
    record = Record(content, where=str(path), todo=_TODO)
    step, _ = record.integer("global_step", least=0), record.integer("epoch", least=0)
    record.record("loops", {})
    weights = record.record("state_dict")
    names = [name for name in weights if not name.endswith("_extra_state")]  # torch's own name: any plain data
    if invalid := [name for name in names if not isinstance(weights.values[name], Tensor)]:
        raise weights.refusal("a tensor", weights.values[invalid[0]], invalid[0])
    model = record.record("hyper_parameters").values
    data = record.record("datamodule_hyper_parameters", {}).values
    callbacks = record.record("callbacks", {})
    facts = callbacks.record("RunSummary", {})
    if to_resume:
        check_resumable(content, path)
    if any(content.get(name) not in (None, "kwargs") for name in _UNEXPECTED_KEYS):
        raise InvalidValueError(f"{expected}, got a checkpoint with keys that fit doesn't write; {_TODO}")
    if "_class_path" in {**model, **data}:
        raise InvalidValueError(
            f"{path}: expected the arguments of a module, got _class_path; load it with the class that wrote it"
        )
    return Checkpoint(
        path=Path(path),
        step=step,
        weights=content["state_dict"],  # all values are tensors
        model={name: part for name, part in model.items() if name != "_instantiator"},
        data={name: part for name, part in data.items() if name != "_instantiator"},
        tokenizer=record.text("tokenizer", None),
        best=_best_so_far(callbacks, step),
        facts={name: facts.text(name) for name in facts},
        base=record.text(BASE, None),
    )


def check_resumable(saved: Mapping[str, Any], where: object) -> None:  # Any: Lightning's content
    """Checks that a checkpoint has all the state of a run, not only weights.

    Args:
        saved: Content of the checkpoint.
        where: Its path, for the error.

    Raises:
        ValueError: The state of optimizers, of schedules or of the training loop is missing.
    """
    loops = saved.get("loops")
    has_part = {
        "optimizer_states": isinstance(states := saved.get("optimizer_states"), list) and len(states) > 0,
        "lr_schedulers": isinstance(saved.get("lr_schedulers"), list),
        "loops": isinstance(loops, Mapping) and bool(loops.get("fit_loop")),
    }
    if missing := [name for name, is_present in has_part.items() if not is_present]:
        raise InvalidValueError(
            f"{where}: expected a checkpoint with the state of a run, got one without "
            f"{', '.join(missing)}; start a run from its weights with --init_from"
        )


@contextmanager
def load_options(
    path: str | Path,
    cls: type,
    place: Literal["model", "data"],
    trust: Sequence[str] | None,
    given: Mapping[str, Any],
) -> Iterator[dict[str, Any]]:
    """Yields the options for Lightning's ``load_from_checkpoint``, after checking the classes it names.

    Inside the block the modules in ``trust`` are trusted, and errors of the argument parser become short errors.

    Args:
        path: A ``.ckpt`` file.
        cls: Class of the module or of the data module.
        place: Which of the two is loaded.
        trust: Modules whose classes the file may name, in addition to this library and imported modules.
        given: Options of the caller, which override those of the file. Default of ``weights_only``: True.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is damaged, names a class that isn't allowed, or has arguments that a part refuses.
            The message for refused arguments is the part's own.
    """
    with trusting(trust), short_parser_errors(path):
        arguments = read_checkpoint(path).arguments(cls, place, without=given)
        with importing_only(foreign_modules(arguments)):
            yield {"weights_only": True, **arguments, **given}


def _best_so_far(callbacks: Record, step: int) -> BestCheckpointState:
    # Lightning names the state of a callback after its class and settings.
    state = callbacks.record(next((name for name in callbacks if name.startswith("BestCheckpoint")), ""), {})
    score = state.values.get("best_model_score")
    if score is not None and not (isinstance(score, Tensor) and score.numel() == 1):
        raise state.refusal("a tensor of one number", score, "best_model_score")
    figures = state.record("figures", {}).values if state.integer("figures_step", -1) == step else {}
    validated = state.record("validated", {})
    return BestCheckpointState(
        monitor=state.text("monitor", None),
        score=None if score is None else float(score),
        path=state.text("best_model_path", ""),
        # A score may be NaN: a correlation can be undefined.
        figures={name: float(str(figure)) for name, figure in figures.items()},
        validated={name: validated.integer(name) for name in validated},
        run=state.text("run", ""),
        start={name: float(str(figure)) for name, figure in state.record("start", {}).values.items()},
        mode=state.text("mode", "max"),
        rows=read_rows(state, "rows"),
        start_rows=read_rows(state, "start_rows"),
    )


def plain_rows(rows: ScoreRows) -> dict[str, Any]:  # Any: a mapping of tensors
    """Returns values of held-out rows as plain data for a checkpoint."""
    return {
        name: {part: dict(scores._asdict()) for part, scores in parts.items()} for name, parts in rows.items()
    }


def read_rows(state: Record, name: str) -> ScoreRows:
    """Reads values of held-out rows from the state of the callback, and checks their shapes.

    Args:
        state: State of the callback in a checkpoint.
        name: Name of the field; without the field there are no values.

    Raises:
        ValueError: The field has something other than tensors of finite numbers.
    """
    names = state.record(name, {})
    parts = {name: names.record(name) for name in names}
    return {name: {part: _row_scores(files.record(part)) for part in files} for name, files in parts.items()}


def _row_scores(record: Record) -> RowScores:
    values = _row_numbers(record, "values")
    target = _row_numbers(record, "target") if "target" in record else None
    if target is not None and len(target) != len(values):
        raise record.refusal(f"{len(values):,} numbers, one for each row", target, "target")
    return RowScores(values, target)


def _row_numbers(record: Record, name: str) -> Tensor:
    numbers = record.values.get(name)
    is_column = isinstance(numbers, Tensor) and numbers.ndim == 1 and numbers.dtype == torch.float64
    if not isinstance(numbers, Tensor) or not is_column or not len(numbers) or not numbers.isfinite().all():
        raise record.refusal("a tensor (n,) of finite numbers, float64", numbers, name)
    return numbers


def best_checkpoint(path: str | Path, where: str) -> Path:
    """Returns the path of a run's best checkpoint.

    A single checkpoint in the run's folder ``checkpoints`` is the best. Of several, the latest one records which
    is the best so far; without validation it records the last one.

    Args:
        path: Folder of a run, or a folder of ``.ckpt`` files. A ``.ckpt`` file is returned itself.
        where: Name of the option, for the error.

    Raises:
        FileNotFoundError: There is nothing at the path.
        ValueError: The folder has no checkpoint, has those of several runs or damaged ones, or the best one is
            unknown.
    """
    path = Path(path)
    if path.is_file():
        return path
    if not path.is_dir():
        raise MissingFileError(f"{where}: expected a run's folder or a .ckpt file, found nothing at {path}")
    folder = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    files = sorted(folder.glob("*.ckpt"))
    if not files:
        runs = sorted(str(inner.parent) for inner in path.glob("*/checkpoints"))
        contents = (
            f"a folder of runs ({', '.join(runs[:6])}); name one of them" if runs else "none; name a .ckpt file"
        )
        raise InvalidValueError(
            f"{where}: expected a run's folder with checkpoints, or one run at {path}, got {contents}"
        )
    if len(files) == 1:
        return files[0]
    last = max((read_checkpoint(file) for file in files), key=lambda read: read.step)
    best_path = last.best.path
    best = next((file for file in files if file.name == Path(best_path).name), Path(best_path))
    if not best.is_file():
        raise InvalidValueError(
            f"{where}: expected to learn from {last.path} which of the {len(files)} checkpoints in {folder} is "
            f"the best, got {best_path or 'none'}, which doesn't exist; name a .ckpt file"
        )
    return best
