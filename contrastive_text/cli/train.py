"""Commands ``fit``, ``validate``, ``test`` and ``predict``, for a model or for an ensemble."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytorch_lightning as pl
import torch
from rich.table import Table
from torch import Tensor

from contrastive_text.cli.configuration import configured, merge_options
from contrastive_text.cli.files import write_predictions
from contrastive_text.cli.words import option_value, option_values, with_values
from contrastive_text.core.config.untrusted import check_untrusted
from contrastive_text.core.distributed import temporary_process_group
from contrastive_text.core.errors import InvalidValueError, MissingFileError
from contrastive_text.core.terminal import escape_controls, make_console, print_message
from contrastive_text.inference.vector_files import write_vectors
from contrastive_text.recipes.layers import Config, read_config
from contrastive_text.runs.ensemble import Choice, is_ensemble, read_choices
from contrastive_text.training.held_out import OVERALL, find_predictor
from contrastive_text.training.run import RUNS, Run
from contrastive_text.training.run_folder import CONFIG
from contrastive_text.training.run_parser import PLACES, VALUES, checkpoint_parts

_PARTS = {"validate": "validation", "test": "test", "predict": "predict"}
"""Command -> data set of ``TextDataModule`` that it reads."""


def quieten() -> None:
    """Removes Lightning's advertisements from the log."""
    logging.getLogger("pytorch_lightning.utilities.rank_zero").addFilter(_is_no_tip)


def _is_no_tip(record: logging.LogRecord) -> bool:
    record.msg, record.args = escape_controls(record.getMessage()), ()  # a path can hold control characters
    return "Tip:" not in record.msg


def train(words: list[str]) -> None:
    """Runs ``fit``, ``validate``, ``test`` or ``predict``, for a model or for an ensemble."""
    quieten()
    command, *rest = words
    if (resumed := option_value(rest, "--resume")) is not None:
        if command != "fit":
            raise InvalidValueError(f"--resume: expected it with fit, got it with {command}; give --ckpt_path")
        rest = _resume_words(rest, resumed)
    dry_run = command == "fit" and "--dry_run" in rest
    if dry_run:
        rest = [word for word in rest if word != "--dry_run"]
    checkpoint = option_value(rest, "--ckpt_path")
    if command != "fit" and option_value(rest, "--init_from") is not None:
        raise InvalidValueError(f"--init_from: expected it with fit, got it with {command}; give --ckpt_path")
    with temporary_process_group():
        if checkpoint is not None and is_ensemble(checkpoint):
            _run_members(command, rest, checkpoint)
        else:
            files = option_values(rest, "--config")
            parser, config = configured(command, rest, is_foreign=resumed is not None)
            _perform(command, Run(parser, config, files=files), dry_run=dry_run)


def _resume_words(words: Sequence[str], folder: str) -> list[str]:
    """Replaces ``--resume RUN`` by ``--folder RUN`` and the configuration in that folder.

    Raises:
        FileNotFoundError: The folder has no configuration.
        ValueError: ``fit`` did not write the configuration, or it names classes of untrusted modules.
    """
    file = Path(folder, CONFIG)
    if not file.is_file():
        raise MissingFileError(
            f"--resume: expected a run folder with {CONFIG}, found none at {folder}; name a run folder, "
            "such as runs/version_0"
        )
    _check_config(read_config(file), file)
    options = ["--config", str(file), "--folder", folder, "--trainer.default_root_dir", "null"]
    options += ["--weights_only", "true"]  # overrides the file, which may be foreign
    return [*options, *(word for word, value in with_values(words, "--resume") if value is None)]


def _check_config(config: Mapping[str, object], file: Path) -> None:
    """Checks that ``fit`` wrote a configuration, and that all its classes are of trusted modules."""
    if unknown := [name for name in config if name not in (*PLACES, *VALUES)]:
        keys = ", ".join((*PLACES, *VALUES))
        raise InvalidValueError(
            f"{file}: expected the keys of a run ({keys}), got {unknown[0]!r}; start a new run"
        )
    check_untrusted(config, str(file))


def _perform(command: str, run: Run, folder: Path | None = None, dry_run: bool = False) -> Path | None:
    """Executes ``fit``, ``validate``, ``test`` or ``predict`` with a run.

    Args:
        command: ``fit``, ``validate``, ``test`` or ``predict``.
        run: The run.
        folder: Folder of the predictions; None for the run folder.
        dry_run: Whether ``fit`` stops before its first step.

    Returns:
        Folder of the predictions.
    """
    if command == "fit":
        run.fit(dry_run)
    elif command == "predict":
        return write_outputs(run, folder)
    else:
        run.call(pl.Trainer.validate if command == "validate" else pl.Trainer.test)
    return folder


def _run_members(command: str, words: Sequence[str], folder: str) -> None:
    """Runs ``validate``, ``test`` or ``predict`` of an ensemble: each task with its own model.

    Args:
        command: ``validate``, ``test`` or ``predict``.
        words: Options after the command. Options ``data.tasks.NAME`` are passed to the model of that task.
        folder: Folder of the ensemble.

    Raises:
        ValueError: The command is ``fit``, or an option fits no model of the ensemble.
    """
    if command not in _PARTS:
        raise InvalidValueError(
            f"--ckpt_path: expected a checkpoint to resume from, got the ensemble {folder}; name one "
            "of its members"
        )
    choices = read_choices(folder)
    figures: dict[str, float] = {}
    run: Run | None = None
    place: Path | None = None  # one folder for the predictions of all tasks
    for member in dict.fromkeys(choice.member for choice in choices.values()):
        path = str(Path(folder, member))
        parts = checkpoint_parts(path)
        member_tasks = [task for task, choice in choices.items() if choice.member == member]
        if absent := [task for task in member_tasks if task not in (parts["data"].get("tasks") or {})]:
            raise InvalidValueError(
                f"{path}: expected the checkpoint of a run with the task {absent[0]}, got the tasks "
                f"{', '.join(parts['data'].get('tasks') or {}) or 'of no run'}; build the ensemble again"
            )
        config, options = merge_options(parts, words)
        _check_data(config, options, parts, choices, _PARTS[command])
        if not _route(config, parts, member_tasks, _PARTS[command]):
            continue
        options = [option for option in options if not option.startswith("--ckpt_path=")]
        options += ["--verbose=false"] * (command != "predict")  # one table for all members
        run = Run(*configured(command, [*options, f"--ckpt_path={path}"], below=config))
        place = _perform(command, run, place)
        figures |= {name: float(figure) for name, figure in run.trainer.callback_metrics.items()}
    if run is None:
        raise InvalidValueError(
            f"data.tasks: expected a file of {' or '.join(choices)}, got no file; set --data.tasks."
            f"{next(iter(choices))}.{_PARTS[command]} FILE"
        )
    if command != "predict" and run.trainer.is_global_zero:
        _print_scores("val" if command == "validate" else command, choices, figures)


def _check_data(
    config: Config, options: Sequence[str], parts: Config, choices: dict[str, Choice], part: str
) -> None:
    """Checks that each data file belongs to a task of the ensemble."""
    data = config.get("data", {})
    for task in data.get("tasks") or {}:
        if task not in choices and task not in parts["data"]["tasks"]:
            raise InvalidValueError(
                f"data.tasks.{task}: expected one of the ensemble's tasks ({', '.join(choices)}), got {task}"
            )
    typed = next((option for option in options if option.startswith(f"--data.{part}=")), None)
    if typed is not None or data.get(part) != parts["data"].get(part):
        raise InvalidValueError(
            f"data.{part}: expected no file, got {typed or data[part]}. An ensemble reads files of tasks; "
            f"set --data.tasks.NAME.{part} FILE"
        )


def _route(config: Config, parts: Config, own: Sequence[str], part: str) -> bool:
    """Removes the files of other members' tasks from a configuration. Returns whether a file remains."""
    files = dict.fromkeys(_PARTS.values())
    overrides = config["data"].get("tasks") or {}
    tasks = {
        task: {**options, **(overrides.get(task, {}) if task in own else files)}
        for task, options in parts["data"]["tasks"].items()
    }
    config["data"] = {**config["data"], **files, "tasks": tasks}
    return any(tasks[task].get(part) for task in own)


def _print_scores(part: str, choices: dict[str, Choice], figures: dict[str, float]) -> None:
    """Prints the score of each task of an ensemble and their mean."""
    table = Table("task", "score", f"x 100, {part}", "model")
    scores = []
    for task, choice in choices.items():
        if (score := figures.get(f"{part}/{task}/{choice.metric}")) is not None:
            scores.append(score)
            table.add_row(task, choice.metric, f"{score:.2f}", choice.member)
    table.add_row(OVERALL, "mean", f"{math.fsum(scores) / len(scores):.2f}", "")
    make_console().print(table)


def write_outputs(run: Run, folder: Path | None = None) -> Path:
    """Writes the predictions of the tasks and the vectors of ``--data.predict``, and prints their files.

    Args:
        run: The run whose model predicts.
        folder: Folder to write to; None for the run folder.

    Returns:
        The folder.
    """
    parts = run.call(pl.Trainer.predict) or []
    folder = folder or Path(run.trainer.log_dir or RUNS)  # log_dir broadcasts: all ranks must read it
    tables = run.data.table("predict")
    outputs = [parts] if len(tables) == 1 else parts
    if not run.trainer.is_global_zero:
        return folder
    for (name, table), batches in zip(tables.items(), outputs, strict=True):
        result = torch.cat([part.cpu() for part in batches if isinstance(part, Tensor)])
        if name not in (run.data.tasks or {}):
            path = folder / "predictions.npy"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_vectors(path, result.numpy())
            print_message(f"{len(result):,} vectors of {result.shape[1]} features written to {path}")
            continue
        path = folder / "predictions" / f"{name}.tsv"
        target = find_predictor(run.module.by_task.objectives(name)).target
        assert target is not None
        changed = write_predictions(path, table.rows, result, target)
        note = f" (tabs and newlines of {changed:,} rows became spaces)" if changed else ""
        print_message(f"{len(result):,} predictions of {name} written to {path}{note}")
    return folder
