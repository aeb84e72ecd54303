"""Command ``ensemble``: selects the best of several runs for each task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated

from contrastive_text.cli.paths import ReadPath, WrittenFolder


@dataclass(frozen=True)
class Ensemble:
    """Select the best of several runs for each task. The ensemble predicts each task with its best run."""

    output: Annotated[Path, WrittenFolder(key="ensemble.json"), "Folder of the ensemble; must not exist yet."]
    _: KW_ONLY
    runs: Annotated[Sequence[str], ReadPath(), "Run folders or .ckpt files to choose from."]


def ensemble(options: Ensemble) -> None:
    """Writes an ensemble: the run with the best validation score of each task."""
    from rich.table import Table
    from rich.text import Text

    from contrastive_text.core.storage.disk import lock_output
    from contrastive_text.core.terminal import make_console
    from contrastive_text.runs.ensemble import build_ensemble

    with lock_output(options.output):
        choices = build_ensemble(options.output, options.runs)
    table = Table("task", "score", "x 100, validation", "best run", title=f"ensemble {options.output}")
    for task, choice in choices.items():
        table.add_row(task, choice.metric, f"{choice.score:.2f}", Text(choice.source))
    make_console().print(table)
