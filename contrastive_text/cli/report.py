"""Command ``report``: writes a page about one run, or about several runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated

from contrastive_text.cli.options import Device, Texts
from contrastive_text.cli.paths import ReadPath, WrittenFolder
from contrastive_text.core.libraries import require
from contrastive_text.core.terminal import print_message


@dataclass(frozen=True)
class Report:
    """Write a page about one run, or about several runs and models side by side."""

    runs: Annotated[Sequence[str], ReadPath(), {"metavar": "RUN"}, "Run folder or model folder."]
    _: KW_ONLY
    output: Annotated[
        Path | None,
        WrittenFolder(key="report.html", around_inputs=True),
        "Folder of the page. Default: report, in the run folder of a single run, else in the working directory.",
    ] = None
    pairs: Annotated[Texts | None, "File of scored pairs to use instead of the run's validation file."] = None
    texts: Annotated[Texts | None, "File of texts to use instead of the run's training files."] = None
    limit: Annotated[int, "Largest number of texts, and of pairs, to embed."] = 1000
    device: Device = None


def report(options: Report) -> None:
    """Writes a page with the curves, vectors and sample texts of runs."""
    from contrastive_text.cli.models import check_device, warnings_as_notes
    from contrastive_text.runs.report.page import write_report

    check_device(options.device)
    require("matplotlib", "report")  # fails before texts are encoded
    with warnings_as_notes():
        page = write_report(
            options.runs,
            output=options.output,
            pairs_file=options.pairs,
            texts_file=options.texts,
            limit=options.limit,
            device=options.device,
        )
    print_message(f"{page} written ({page.stat().st_size / 1e6:.2f} MB), and its charts as PNG files next to it")
