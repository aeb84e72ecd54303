"""``fit --resume RUN``: a run goes on from its folder alone."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from contrastive_text.cli.words import with_values
from contrastive_text.core.checkpoints import Checkpoint, read_checkpoint
from contrastive_text.core.errors import InvalidValueError, MissingFileError
from contrastive_text.core.model_files import MODULES
from contrastive_text.core.places import settled
from contrastive_text.core.terminal import say
from contrastive_text.recipes.layers import read_config
from contrastive_text.training.run_parser import PLACES, VALUES

_CONFIG = "config.yaml"
_LENGTH = ("--trainer.max_steps", "--trainer.max_epochs", "--trainer.max_time", "--trainer.enable_progress_bar")
"""Options beside ``--resume``: how far the run goes, and what is seen of it."""


def resume_words(words: Sequence[str]) -> list[str]:
    """Returns the words of a ``fit`` that goes on with a run, in a folder of its own.

    Args:
        words: What follows ``fit``, with ``--resume RUN`` among it.

    Raises:
        FileNotFoundError: There is no such run.
        ValueError: A finished run, one without a whole checkpoint, an option that would change the result, or
            parts that the run's files name and nobody trusts.
    """
    folder, others = _split(words)
    file = folder / _CONFIG
    if not file.is_file():
        raise MissingFileError(
            f"--resume: expected the folder of a run, with {_CONFIG} in it, found none at {folder}; name one, "
            "such as runs/version_0"
        )
    config = read_config(file)
    _check(config, file)
    checkpoint = _latest(folder, config)
    say(f"Resuming {checkpoint.described}")
    given = ["--config", str(file), "--ckpt_path", str(checkpoint.path), "--init_from", "null"]
    given += ["--keep_heads", "false", "--weights_only", "true"]  # whatever the file says
    return ["fit", *given, *others]


def _check(config: Mapping[str, object], file: Path) -> None:
    """Checks that ``fit`` wrote it: the parser takes dotted names too, and imports what they name."""
    for name, inner in config.items():
        if name in PLACES and isinstance(inner, Mapping):
            settled(inner, PLACES[name], f"{file}: {name}")
        elif name in PLACES and inner is not None:
            raise InvalidValueError(f"{file}: {name}: expected names and values, got {inner!r}; start it anew")
        elif name in VALUES and isinstance(inner, Mapping | list):
            raise InvalidValueError(f"{file}: {name}: expected a plain value, got {inner!r}; start it anew")
        elif name not in (*PLACES, *VALUES):
            known = ", ".join((*PLACES, *VALUES))
            raise InvalidValueError(f"{file}: expected what a run writes ({known}), got {name!r}; start it anew")


def _split(words: Sequence[str]) -> tuple[Path, list[str]]:
    folder, others = "", []
    for word, value in with_values(words, "--resume", *_LENGTH):
        if value is None:
            raise InvalidValueError(
                f"--resume: expected no option beside it but {', '.join(_LENGTH)}, got {word}; all else stands "
                "in the run's folder. To change more, give --ckpt_path FILE and every option of the run"
            )
        if word == "--resume":
            folder = value
        else:
            others += [word, value]
    if not folder:
        raise InvalidValueError("--resume: expected the folder of a run, got nothing; name one")
    return Path(folder), others


def _latest(folder: Path, config: Mapping[str, object]) -> Checkpoint:
    """Returns the whole checkpoint of the most steps, and says which ones are damaged.

    A run that has none of its own yet goes on from where it began.
    """
    resumable = sorted(folder.glob("resume-step=*.ckpt"))
    kept = _place(config, "checkpoint") or folder / "checkpoints"
    model = _place(config, "export") or folder / "model"
    best = sorted(kept.glob("*.ckpt"))
    # A folder elsewhere may hold another run's model: then the run counts as one that was stopped.
    if not resumable and _lies_in(folder, model) and (model / MODULES).is_file():
        more = f"; to train on, give --ckpt_path {best[0]} and the options of a longer run" if best else ""
        raise InvalidValueError(
            f"--resume: expected a run that was stopped, got {folder}, which has finished: its model is {model}"
            f"{more}"
        )
    if not _lies_in(folder, kept):
        begun = (folder / _CONFIG).stat().st_mtime  # a former run may have had a folder of the same name
        best = [path for path in best if path.stat().st_mtime >= begun]
    sound, damaged = _read((*best, *resumable))
    if not _lies_in(folder, kept):
        sound = [each for each in sound if each.path in resumable or _wrote(folder, each)]
    started = config.get("ckpt_path")
    if not sound and isinstance(started, str):
        sound, more_damaged = _read([Path(started)])
        damaged += more_damaged
    if not sound:
        none = "none" if _lies_in(folder, kept) else f"none, and none of it in {kept}"
        raise InvalidValueError(
            f"--resume: expected a whole checkpoint in {folder}, got {'; '.join(damaged) or none}; start it anew"
        )
    for message in damaged:
        say(f"Left out: {message}")
    return max(enumerate(sound), key=lambda numbered: (numbered[1].step, numbered[0]))[1]


def _read(paths: Iterable[Path]) -> tuple[list[Checkpoint], list[str]]:
    """Returns the whole ones of some checkpoints, and what is wrong with the others."""
    sound: list[Checkpoint] = []
    damaged: list[str] = []
    for path in paths:
        try:
            sound.append(read_checkpoint(path, to_resume=True))
        except (InvalidValueError, MissingFileError) as error:
            damaged.append(str(error))
    return sound, damaged


def _wrote(folder: Path, checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint of a folder that runs may share is of the run in this folder."""
    return checkpoint.best.run == os.path.realpath(folder)


def _lies_in(folder: Path, inner: Path) -> bool:
    return Path(os.path.realpath(inner)).is_relative_to(os.path.realpath(folder))


def _place(config: Mapping[str, object], part: str) -> Path | None:
    inner = config.get(part)
    named = inner.get("dirpath") if isinstance(inner, Mapping) else None
    return Path(named) if isinstance(named, str) and named else None
