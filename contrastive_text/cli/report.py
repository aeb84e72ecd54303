"""The command that writes the page of a run, or of several side by side."""

from __future__ import annotations

from contrastive_text.cli.commands import Report
from contrastive_text.cli.models import check_device, warnings_as_notes
from contrastive_text.core.libraries import require
from contrastive_text.core.terminal import say


def report(options: Report) -> None:
    """Writes a page with the curves, the vectors and the samples of runs."""
    check_device(options.device)
    require("matplotlib", "report")  # before anything is embedded
    from contrastive_text.runs.report.page import write_report

    with warnings_as_notes():
        page = write_report(
            options.runs,
            output=options.output,
            pairs_file=options.pairs,
            texts_file=options.texts,
            limit=options.limit,
            device=options.device,
        )
    say(f"{page} written ({page.stat().st_size / 1e6:.2f} MB), and its charts as PNG files beside it")
