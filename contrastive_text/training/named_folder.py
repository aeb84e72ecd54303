"""A run in a folder of its name: started again, by whomever, it goes on there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage.checkpoints import Checkpoint
from contrastive_text.core.terminal import say
from contrastive_text.recipes.layers import read_config
from contrastive_text.training.latest_checkpoint import CONFIG, FinishedRun, finished_run, latest_checkpoint
from contrastive_text.training.run_log import LOG_ROWS
from contrastive_text.training.settings import find_changes

_MAY_DIFFER = (
    *("trainer.max_steps", "trainer.max_epochs", "trainer.max_time", "trainer.enable_progress_bar"),
    *("trainer.devices", "trainer.num_nodes", "data.num_workers", "resumable", "oversubscribe"),
    *("folder", "ckpt_path", "weights_only", "init_from", "keep_heads"),
)
"""What a run may go on with another value of: none changes its steps, or what it has learned stands for them."""
_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
"""By default torchrun's agent keeps one store of addresses over all restarts (pytorch issue 167288)."""


def check_options(folder: str | None, trainer: Mapping[str, object]) -> None:
    """Checks that a run with a named folder keeps its log and its checkpoints there.

    Raises:
        ValueError: It wouldn't; or torchrun may restart a run that would begin anew, or whose processes wouldn't
            find each other.
    """
    most = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")
    if most != "0" and folder is None:
        raise InvalidValueError(
            f"folder: expected the folder of a run that torchrun may restart (--max-restarts {most}), got none, "
            "so a restarted run would begin anew; give --folder runs/NAME"
        )
    if most != "0" and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        raise InvalidValueError(
            f"torchrun: expected {_STORE}=1 in its environment beside --max-restarts {most}, got none: restarted "
            f"processes may look for each other where the former ones were; export {_STORE}=1"
        )
    if folder is None:
        return
    kept = {"logger": False, "enable_checkpointing": False}
    other = [f"trainer.{name} false" for name, value in kept.items() if trainer[name] is value]
    other += [f"trainer.{name}" for name in ("fast_dev_run", "default_root_dir") if trainer[name]]
    if other:
        raise InvalidValueError(
            f"folder: expected a run that keeps its log and checkpoints in {folder}, got {', '.join(other)}; "
            "drop that"
        )


class NamedFolder:
    """Looks what a folder holds before a run starts there: nothing, a finished run, or one to go on with.

    Args:
        folder: The run's folder; it need not be there.
        config: The whole configuration of the run that starts.

    Attributes:
        finished: What a finished run has left; None for an unfinished one.
        checkpoint: What the run goes on from; None to begin.
        log_end: Rows of the log at that checkpoint, and its step.

    Raises:
        ValueError: The folder holds something else, a run of other options, or damaged checkpoints alone.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:  # Any: what YAML can hold
        self.folder = folder
        self.finished: FinishedRun | None = None
        self.checkpoint: Checkpoint | None = None
        self.log_end = (0, 0)
        self._damaged: list[str] = []
        if not (folder / CONFIG).is_file():
            others = sorted(path.name for path in folder.glob("[!.]*"))
            if others:
                raise InvalidValueError(
                    f"folder: expected the folder of a run, or none yet, got {folder} with {others[0]} and "
                    f"without {CONFIG}; name another"
                )
            return
        saved = read_config(folder / CONFIG)
        own = {**saved, "ckpt_path": None}  # from where it began it begins again
        self.finished = finished_run(folder, saved)
        if self.finished is None:
            self.checkpoint, self._damaged = latest_checkpoint(folder, own, "folder")
        if self.finished is None and self.checkpoint is None:
            return
        if differing := _differing(saved, config):
            raise InvalidValueError(
                f"folder: expected the options of the run in {folder}, got others: {', '.join(differing[:6])}; "
                "give the same, or name another folder"
            )
        if self.checkpoint is not None:
            held = torch.load(self.checkpoint.path, weights_only=True, mmap=True)
            self.log_end = int(held.get(LOG_ROWS, 0)), self.checkpoint.step

    def tell(self) -> None:
        """Says what becomes of the run."""
        for message in self._damaged:
            say(f"Left out: {message}")
        if self.finished is not None:
            say(f"Finished before: {self.folder}, whose model is {self.finished}")
        elif self.checkpoint is not None:
            say(f"Going on in {self.folder} from {self.checkpoint.described}")
        elif (self.folder / CONFIG).is_file():
            say(f"Beginning again: the run in {self.folder} has no checkpoint yet")


def _differing(saved: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """Returns what differs between two configurations, each with both values."""
    return [
        str(change)
        for change in find_changes(saved, given)
        if not any(change.name == free or change.name.startswith(f"{free}.") for free in _MAY_DIFFER)
    ]
