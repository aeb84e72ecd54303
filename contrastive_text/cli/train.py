"""The commands fit, validate, test and predict, of one model or of an ensemble's."""

from __future__ import annotations

import logging

from contrastive_text.cli.ensemble import run_members
from contrastive_text.cli.resume import resume_words
from contrastive_text.cli.training import configured, option_value, perform
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.terminal import shown
from contrastive_text.runs.ensemble import is_ensemble
from contrastive_text.training.run import Run


def quieten() -> None:
    """Keeps away what Lightning says of its shop."""
    logging.getLogger("pytorch_lightning.utilities.rank_zero").addFilter(_is_said)


def _is_said(record: logging.LogRecord) -> bool:
    record.msg, record.args = shown(record.getMessage()), ()  # a path in it may be anyone's
    return "Tip:" not in record.msg


def train(words: list[str]) -> None:
    """Runs ``fit``, ``validate``, ``test`` or ``predict``, of one model or of an ensemble's."""
    quieten()
    command, *rest = words
    if option_value(rest, "--resume") is not None:
        if command != "fit":
            raise InvalidValueError(f"--resume: expected it with fit, got it with {command}; give --ckpt_path")
        command, *rest = resume_words(rest)
    checkpoint = option_value(rest, "--ckpt_path")
    if command != "fit" and option_value(rest, "--init_from") is not None:
        raise InvalidValueError(f"--init_from: expected it with fit, got it with {command}; give --ckpt_path")
    if checkpoint is not None and is_ensemble(checkpoint):
        run_members(command, rest, checkpoint)
    else:
        perform(command, Run(*configured(command, rest)))
