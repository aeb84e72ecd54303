"""The command that joins the best models of several tasks."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from contrastive_text.cli.commands import Ensemble
from contrastive_text.core.console import console
from contrastive_text.core.storage.disk import alone_with
from contrastive_text.runs.ensemble import build_ensemble


def ensemble(options: Ensemble) -> None:
    """Writes an ensemble: for each task the run with the best score on its validation files."""
    with alone_with(options.output):
        choices = build_ensemble(options.output, options.runs)
    shown = Table("task", "score", "x 100, validation", "best run", title=f"ensemble {options.output}")
    for task, choice in choices.items():
        shown.add_row(task, choice.metric, f"{choice.score:.2f}", Text(choice.source))
    console().print(shown)
