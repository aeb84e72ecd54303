"""The command that writes the page of a run, or of several side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from contrastive_text.cli.options import Parser, check_device
from contrastive_text.core.libraries import require
from contrastive_text.core.terminal import say


def report(words: Sequence[str]) -> None:
    """Writes a page with the curves, the vectors and the samples of runs."""
    parser = Parser(
        prog="contrastive-text report", description="Write a page of a run, or of several side by side."
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder of a run, as fit leaves it")
    parser.add_argument(
        "--output",
        type=Path,
        help="folder of the page; report in the run's folder, or, of several, in the working directory",
    )
    parser.add_argument("--pairs", help="scored pairs, in place of the run's validation file")
    parser.add_argument("--texts", help="texts, in place of the run's training files")
    parser.add_argument("--limit", type=int, default=1000, help="texts, and pairs, that are embedded at most")
    parser.add_argument("--device", help="cpu, cuda, ...; the GPU if there is one")
    options = parser.understand(words)
    check_device(options.device)
    require("matplotlib", "report")  # before anything is embedded
    from contrastive_text.runs.report.page import write_report

    page = write_report(
        options.runs,
        output=options.output,
        pairs_file=options.pairs,
        texts_file=options.texts,
        limit=options.limit,
        device=options.device,
    )
    say(f"{page} written ({page.stat().st_size / 1e6:.2f} MB), and its charts as PNG files beside it")
