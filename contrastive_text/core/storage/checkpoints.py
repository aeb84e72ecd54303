"""Checkpoints on disk: whether one is whole, what it holds, and which one of a run is the best."""

from __future__ import annotations

import hashlib
import inspect
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from contrastive_text.core.config.class_paths import own_modules, trusting
from contrastive_text.core.config.foreign import check_foreign, importing_only
from contrastive_text.core.config.misspelt import nearest, parsing
from contrastive_text.core.errors import InvalidValueError, MissingFileError, first_line
from contrastive_text.core.libraries import is_failure
from contrastive_text.core.storage.records import Record
from contrastive_text.core.storage.weights import check_dense

BASE = "base"
"""Key of a checkpoint for the identity of the weights under adapters, which it doesn't hold."""
_FOLDER_FLAG = 0x10
_TODO = "name a .ckpt file that fit wrote"
_ELSEWHERE = {"hparams", "module_arguments", "hparams_name", "datamodule_hparams_name"}
"""Names under which Lightning would look for further arguments, or put them into another place."""


def verify_checkpoint(path: str | Path) -> None:
    """Checks that a checkpoint file is there and undamaged.

    ``torch.load`` reads a flipped byte of a tensor without an error. The file is a zip archive with a checksum of
    every part. This function compares all of them, and refuses a directory that torch would read differently.

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


def checksums(path: str | Path) -> bytes:
    """Returns a digest of the checksums in a checkpoint's archive, which tells checkpoints apart.

    It reads the directory of the archive alone. The digest is empty if that is damaged.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            parts = [(part.filename, part.CRC, part.file_size) for part in archive.infolist()]
    except Exception as error:  # as in ``_damage``
        if not is_failure(error):
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
            if not is_failure(error):
                raise
            return f"a damaged file ({error})"
    return None if damaged is None else f"damaged bytes in {damaged}"


@dataclass(frozen=True, slots=True)
class BestSoFar:
    """What the callback that keeps the best checkpoint wrote into one.

    Args:
        monitor: The score that it goes by; None where nothing was validated, or no such callback ran.
        score: Its best value up to this checkpoint; None likewise.
        path: Where the checkpoint with that value was written; empty if none was.
        figures: ``val/NAME`` -> score of these very weights; empty if they were not validated.
        validated: Task or file -> identity of its validation rows.
        run: The folder of the run that wrote it, as the system resolves it; empty if unknown.
        start: ``val/NAME`` -> score of the weights before the first step; empty if they were not validated.
        mode: ``max`` if a high score is good, ``min`` if a low one is.
    """

    monitor: str | None = None
    score: float | None = None
    path: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
    validated: Mapping[str, int] = field(default_factory=dict)
    run: str = ""
    start: Mapping[str, float] = field(default_factory=dict)
    mode: str = "max"

    @property
    def regression(self) -> str:
        """Sentence that the best score is worse than the one before the first step; empty if it isn't."""
        start = self.start.get(self.monitor or "")
        if start is None or self.score is None:
            return ""
        is_worse = self.score < start if self.mode == "max" else self.score > start
        said = f"{self.monitor} was {start:.4g} before the first step, and is {self.score:.4g} at best"
        return f"Training made it worse: {said}" if is_worse else ""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a checkpoint holds; weights stay in the file until they are copied.

    Args:
        path: The file.
        step: Optimiser steps that made its weights.
        weights: Name of a parameter or buffer of the module -> its value.
        model: The module's arguments, as plain data.
        data: The data's arguments, as plain data.
        tokenizer: A tokenizer that was learned from the corpus, as JSON; None if none was.
        best: What is known of the best checkpoint of its run.
        facts: What was printed before the first step of its run: all that makes the result.
        base: The identity of the weights under adapters, which it doesn't hold; None without adapters.
    """

    path: Path
    step: int
    weights: Mapping[str, Tensor]
    model: Mapping[str, Any]  # Any: what YAML can hold
    data: Mapping[str, Any]
    tokenizer: str | None
    best: BestSoFar
    facts: Mapping[str, str]
    base: str | None = None

    def arguments(
        self, cls: type, place: Literal["model", "data"], without: Collection[str] = ()
    ) -> dict[str, Any]:
        """Returns the arguments of the module or of the data, if the file may name every class in them."""
        given = self.model if place == "model" else self.data
        arguments = {name: value for name, value in given.items() if name not in without}
        known = inspect.signature(cls).parameters
        others = [str(name) for name in arguments if name not in known]
        if others and not any(each.kind is each.VAR_KEYWORD for each in known.values()):
            raise InvalidValueError(
                f"{self.path}: {place}: expected an argument of {cls.__name__}, got {others[0]!r}"
                f"{nearest(others[0], known)}"
            )
        check_foreign(arguments, f"{self.path}: {place}")
        return arguments

    @property
    def tasks(self) -> dict[str, Mapping[str, object]]:
        """The tasks that the data arguments name, each as its arguments."""
        tasks = self.data.get("tasks") or {}
        assert isinstance(tasks, Mapping)
        return {str(name): task.get("init_args", task) for name, task in tasks.items()}

    @property
    def described(self) -> str:
        """The file, its step, and the score that the run kept it for, where it did."""
        line = f"{self.path}: step {self.step:,}"
        if self.best.score is None or Path(self.best.path).name != self.path.name:
            return line
        return f"{line}, {self.best.monitor} {self.best.score:.2f}"


def read_checkpoint(path: str | Path, to_resume: bool = False) -> Checkpoint:
    """Reads a checkpoint of a ``ContrastiveModule`` after checking that it is whole.

    Args:
        path: A ``.ckpt`` file.
        to_resume: Whether a run is to go on from it.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is damaged, holds something else, or weights alone where a run is to go on.
    """
    verify_checkpoint(path)
    expected = f"{path}: expected a checkpoint of this library"
    try:
        saved = torch.load(str(path), map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # whatever the unpickler raises
        if not is_failure(error):
            raise
        raise InvalidValueError(
            f"{expected}, got a file that can't be read as one: {first_line(error)}"
        ) from error
    check_dense(saved, str(path), _TODO)
    if not isinstance(saved, dict) or not {"state_dict", "hyper_parameters"} <= set(saved):
        raise InvalidValueError(f"{expected}, got a file without weights and parts; {_TODO}")
    record = Record(saved, where=str(path), todo=_TODO)
    step, _ = record.integer("global_step", least=0), record.integer("epoch", least=0)
    record.record("loops", {})
    weights = record.record("state_dict")
    named = [name for name in weights if not name.endswith("_extra_state")]  # torch's own name: any plain data
    if others := [name for name in named if not isinstance(weights.values[name], Tensor)]:
        raise weights.refusal("a tensor", weights.values[others[0]], others[0])
    model = record.record("hyper_parameters").values
    data = record.record("datamodule_hyper_parameters", {}).values
    callbacks = record.record("callbacks", {})
    facts = callbacks.record("RunSummary", {})
    if to_resume:
        check_resumable(saved, path)
    if any(saved.get(name) not in (None, "kwargs") for name in _ELSEWHERE):
        raise InvalidValueError(f"{expected}, got one whose parts aren't where fit writes them; {_TODO}")
    if "_class_path" in {**model, **data}:
        raise InvalidValueError(
            f"{path}: expected the arguments of a module, got _class_path; load it with the class that wrote it"
        )
    return Checkpoint(
        path=Path(path),
        step=step,
        weights=saved["state_dict"],  # each of them a tensor
        model={name: part for name, part in model.items() if name != "_instantiator"},
        data={name: part for name, part in data.items() if name != "_instantiator"},
        tokenizer=record.text("tokenizer", None),
        best=_best_so_far(callbacks, step),
        facts={name: facts.text(name) for name in facts},
        base=record.text(BASE, None),
    )


def check_resumable(saved: Mapping[str, Any], where: object) -> None:  # Any: what Lightning put into it
    """Checks that a checkpoint has all the state of a run, as one of weights alone has not.

    Args:
        saved: What the checkpoint holds.
        where: Its place, for the error.

    Raises:
        ValueError: No state of an optimiser, none of schedules, or no place in the run.
    """
    loops = saved.get("loops")
    kept = {
        "optimizer_states": isinstance(states := saved.get("optimizer_states"), list) and len(states) > 0,
        "lr_schedulers": isinstance(saved.get("lr_schedulers"), list),
        "loops": isinstance(loops, Mapping) and bool(loops.get("fit_loop")),
    }
    if lacks := [name for name, there in kept.items() if not there]:
        raise InvalidValueError(
            f"{where}: expected a checkpoint that a run can go on from, got one with weights and without "
            f"{', '.join(lacks)}; start a run from its weights with --init_from"
        )


@contextmanager
def load_options(
    path: str | Path,
    cls: type,
    place: Literal["model", "data"],
    trust: Sequence[str] | None,
    given: Mapping[str, Any],
) -> Iterator[dict[str, Any]]:
    """Yields the options for Lightning's ``load_from_checkpoint``, once every part in the file may be named.

    While the block runs, the modules are trusted, and what the parser of arguments says becomes an answer.

    Args:
        path: A ``.ckpt`` file.
        cls: The class of the module or of the data.
        place: Which of the two.
        trust: Modules whose classes the file may name, beside this library's and those that are imported.
        given: Options of the caller, which come before the file's; ``weights_only`` is True unless given.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is damaged, names a class that it may not, or has arguments that a part refuses, with
            the part's own words.
    """
    with trusting(trust), parsing(path):
        parts = read_checkpoint(path).arguments(cls, place, without=given)
        with importing_only(own_modules(parts)):
            yield {"weights_only": True, **parts, **given}


def _best_so_far(callbacks: Record, step: int) -> BestSoFar:
    # Lightning names the state of a callback after its class and settings.
    state = callbacks.record(next((name for name in callbacks if name.startswith("BestCheckpoint")), ""), {})
    score = state.values.get("best_model_score")
    if score is not None and not (isinstance(score, Tensor) and score.numel() == 1):
        raise state.refusal("a tensor of one number", score, "best_model_score")
    figures = state.record("figures", {}).values if state.integer("figures_step", -1) == step else {}
    validated = state.record("validated", {})
    return BestSoFar(
        monitor=state.text("monitor", None),
        score=None if score is None else float(score),
        path=state.text("best_model_path", ""),
        # A score may be NaN: an undefined correlation.
        figures={name: float(str(figure)) for name, figure in figures.items()},
        validated={name: validated.integer(name) for name in validated},
        run=state.text("run", ""),
        start={name: float(str(figure)) for name, figure in state.record("start", {}).values.items()},
        mode=state.text("mode", "max"),
    )


def best_checkpoint(path: str | Path, where: str) -> Path:
    """Returns the best checkpoint of a run.

    That is the only one in the folder ``checkpoints`` of the run, or, of several, the one that the latest of them
    names as the best so far; without validation that is the last.

    Args:
        path: A run's folder, a folder of ``.ckpt`` files, or such a file, which is given back.
        where: Name of the option, for the error.

    Raises:
        FileNotFoundError: There is nothing at the path.
        ValueError: No checkpoint in it, those of several runs, damaged ones, or several of which none is known to
            be the best.
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
        got = f"a folder of runs ({', '.join(runs[:6])}); name one of them" if runs else "none; name a .ckpt file"
        raise InvalidValueError(
            f"{where}: expected a run's folder with checkpoints, or one run at {path}, got {got}"
        )
    if len(files) == 1:
        return files[0]
    latest = max((read_checkpoint(file) for file in files), key=lambda read: read.step)
    known = latest.best.path
    best = next((file for file in files if file.name == Path(known).name), Path(known))
    if not best.is_file():
        raise InvalidValueError(
            f"{where}: expected to learn from {latest.path} which of the {len(files)} checkpoints in {folder} is "
            f"the best, got {known or 'none'}, which isn't there; name a .ckpt file"
        )
    return best
