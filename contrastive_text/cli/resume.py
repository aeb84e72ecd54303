"""``fit --resume RUN``: a run goes on from its folder alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from contrastive_text.cli.words import with_values
from contrastive_text.core.errors import InvalidValueError, MissingFileError
from contrastive_text.core.places import settled
from contrastive_text.core.storage.checkpoints import Checkpoint
from contrastive_text.core.terminal import say
from contrastive_text.recipes.layers import read_config
from contrastive_text.training.latest_checkpoint import CONFIG, finished_run, kept_elsewhere, latest_checkpoint
from contrastive_text.training.run_parser import PLACES, VALUES

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
    file = folder / CONFIG
    if not file.is_file():
        raise MissingFileError(
            f"--resume: expected the folder of a run, with {CONFIG} in it, found none at {folder}; name one, "
            "such as runs/version_0"
        )
    config = read_config(file)
    _check(config, file)
    checkpoint = _latest(folder, config)
    say(f"Resuming {checkpoint.described}")
    given = ["--config", str(file), "--ckpt_path", str(checkpoint.path), "--init_from", "null"]
    given += ["--keep_heads", "false", "--weights_only", "true"]  # whatever the file says
    if config.get("folder") is not None:
        given += ["--folder", str(folder)]
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
    if (ended := finished_run(folder, config)) is not None:
        raise InvalidValueError(
            f"--resume: expected a run that was stopped, got {folder}, which has finished: its model is {ended}"
        )
    checkpoint, damaged = latest_checkpoint(folder, config, "--resume")
    if checkpoint is None:
        elsewhere = kept_elsewhere(folder, config)
        none = "none" if elsewhere is None else f"none, and none of it in {elsewhere}"
        raise InvalidValueError(f"--resume: expected a whole checkpoint in {folder}, got {none}; start it anew")
    for message in damaged:
        say(f"Left out: {message}")
    return checkpoint
