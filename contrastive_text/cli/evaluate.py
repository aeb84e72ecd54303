"""The command that prints the scores of a saved model, on files of scored pairs or on suites of tasks."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import get_args

from rich.table import Table
from rich.text import Text

from contrastive_text.cli.commands import Evaluate, Suite
from contrastive_text.cli.models import load_model, warnings_as_notes
from contrastive_text.cli.options import check_read
from contrastive_text.cli.tables import print_or_write
from contrastive_text.core.console import console
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.terminal import say
from contrastive_text.core.text_files import Bounds
from contrastive_text.data import read_pairs
from contrastive_text.evaluation.cached import CachedEncoder
from contrastive_text.evaluation.results import written_together
from contrastive_text.evaluation.sts.cosine import score_table, warnings_named
from contrastive_text.evaluation.sts.data import STSPairs
from contrastive_text.evaluation.suites import SUITES, SuiteProtocol, read_suites, trained_splits

_CLASSIFIED = ("transfer", "probing", "declutr")
"""Suites that train classifiers."""
_SUITES: Sequence[str] = get_args(Suite)
_READ_BY: Mapping[str, Sequence[str]] = {
    "columns": ("files",),
    "bounds": ("files",),
    "data": _SUITES,
    "setting": ("sts",),
    "subsets": ("sts",),
    "protocol": _CLASSIFIED,
    "classifier": _CLASSIFIED,
    "format": _SUITES,
    "output": _SUITES,
}
"""Option -> what reads it: suites, or files of pairs."""


def evaluate(options: Evaluate) -> None:
    """Prints the correlation of cosine similarity with gold scores per file, or the tables of suites.

    Raises:
        ValueError: Options that don't go together, or that nothing would read.
    """
    _check(options)
    if options.suite:
        _evaluate_suites(options)
    else:
        _evaluate_files(options)


def _check(options: Evaluate) -> None:
    """Checks that the options go together, and that something reads each of them."""
    if bool(options.suite) == bool(options.files):
        got = "both" if options.suite else "neither"
        raise InvalidValueError(
            f"files: expected files of scored pairs, or --suite {' '.join(_SUITES)}, got {got}"
        )
    check_read(options, _READ_BY, asked=options.suite or ["files"])
    if options.suite and not options.data:
        raise InvalidValueError("--data: expected the folder of the suites' data sets, got none; give it")
    if options.subsets and options.format in ("csv", "json"):
        raise InvalidValueError(
            f"--subsets: expected text, markdown or latex, got {options.format}, which holds sub-sets anyway; "
            "leave it out"
        )


def _load(options: Evaluate) -> CachedEncoder:
    model = load_model(options.model, device=options.device)
    say(f"{options.model}: {type(model.pooler).__name__}, at most {model.max_length} tokens")
    with warnings_as_notes():
        return CachedEncoder(model, folder=options.cache, batch_size=options.batch_size, show_progress_bar=True)


def _say_encoded(embed: CachedEncoder) -> None:
    limit = embed.model.max_length
    earlier = f", {embed.truncated_earlier:,} of earlier runs" if embed.truncated_earlier else ""
    say(f"{embed.encoded:,} distinct texts encoded; {embed.truncated:,} cut to {limit} tokens{earlier}")


def _evaluate_files(options: Evaluate) -> None:
    bounds = Bounds.of(options.bounds)
    tables = {path: read_pairs(path, columns=options.columns, bounds=bounds) for path in options.files}
    for table in tables.values():
        say(table.understood)
    embed = _load(options)
    shown = Table("file", "sub-set", "pairs", "Spearman x 100", title="cosine similarity against gold score")
    names = Counter(Path(path).name for path in tables)
    with warnings_as_notes():
        for path, table in tables.items():
            with warnings_named(path):
                found = score_table(embed, table)
            name = Path(path).name
            for score in found:
                figure = "n/a" if math.isnan(score.spearman) else f"{score.spearman:.2f}"
                shown.add_row(
                    Text(name if names[name] == 1 else path), Text(score.subset), f"{score.pairs:,}", figure
                )
    _say_encoded(embed)
    console().print(shown)


def _evaluate_suites(options: Evaluate) -> None:
    """Prints the tables to the terminal or a file, and all else to standard error."""
    protocol = SuiteProtocol(
        options.setting or "all", options.protocol or "standard", options.classifier or "torch"
    )
    with redirect_stdout(sys.stderr):
        data = read_suites(options.data or "", options.suite, protocol)
        for name, pairs in (*data.sts.items(), *trained_splits(data).items()):
            if isinstance(pairs, STSPairs):
                say(f"{name}: {pairs.understood}")
        embed = _load(options)
        with warnings_as_notes():
            tables = {suite: SUITES[suite].table(options.model, embed, data, protocol) for suite in options.suite}
        _say_encoded(embed)
    further = tables["sts"].subsets() if options.subsets else {}
    print_or_write(written_together(tables | further, options.format or "text"), options.output, "scores")
