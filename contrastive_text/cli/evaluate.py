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
from contrastive_text.evaluation.compare.measure import check_some
from contrastive_text.evaluation.results import ScoreTable, written_together
from contrastive_text.evaluation.senteval.classifiers import CLASSIFIERS, PROTOCOLS
from contrastive_text.evaluation.senteval.declutr import SuiteData, check_declutr, score_declutr
from contrastive_text.evaluation.senteval.probing import PROBING_TASKS
from contrastive_text.evaluation.senteval.transfer import (
    SIMCSE_TASKS,
    check_folds,
    find_tasks,
    outcomes,
    scores,
)
from contrastive_text.evaluation.senteval.transfer_data import TRANSFER_TASKS
from contrastive_text.evaluation.sts.cosine import (
    check_setting,
    score_table,
    score_tasks,
    warnings_named,
)
from contrastive_text.evaluation.sts.data import STSPairs, find_sts
from contrastive_text.evaluation.sts.trained import find_trained, score_trained

_CLASSIFIED: Mapping[str, Sequence[str] | None] = {
    "transfer": SIMCSE_TASKS,
    "probing": None,
    "declutr": ("Downstream (-SNLI)",),
}
"""Suite that trains classifiers -> what the papers average; None for all its tasks."""
_SUITES: Sequence[str] = get_args(Suite)
_READ_BY: Mapping[str, Sequence[str]] = {
    "columns": ("files",),
    "bounds": ("files",),
    "data": _SUITES,
    "setting": ("sts",),
    "subsets": ("sts",),
    "protocol": tuple(_CLASSIFIED),
    "classifier": tuple(_CLASSIFIED),
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
    with redirect_stdout(sys.stderr):
        data = _suite_data(options)
        embed = _load(options)
        with warnings_as_notes():
            tables: dict[str, ScoreTable] = {
                suite: _table(suite, embed, data, options) for suite in options.suite
            }
        _say_encoded(embed)
    further = tables["sts"].subsets() if options.subsets else {}
    print_or_write(written_together(tables | further, options.format or "text"), options.output, "scores")


def _suite_data(options: Evaluate) -> SuiteData:
    """Reads and checks what all the suites need, before minutes of encoding, and prints how it was read."""
    folder, suites, protocol = options.data or "", set(options.suite), PROTOCOLS[options.protocol or "standard"]
    data = SuiteData(
        sts=find_sts(folder) if suites & {"sts", "declutr"} else {},
        trained=find_trained(folder) if suites & {"trained-sts", "declutr"} else {},
        transfer=find_tasks(folder, TRANSFER_TASKS) if suites & {"transfer", "declutr"} else {},
        probing=find_tasks(folder, PROBING_TASKS) if suites & {"probing", "declutr"} else {},
    )
    check_some("--data", {**data.sts, **_trained_splits(data), **data.transfer, **data.probing})
    if "sts" in suites:
        check_setting(
            options.setting or "all", [pairs for pairs in data.sts.values() if isinstance(pairs, STSPairs)]
        )
    if "declutr" in suites:
        check_declutr(data, protocol)
    check_folds(data.transfer, protocol)
    trained = _trained_splits(data)
    for name, pairs in (*data.sts.items(), *trained.items()):
        if isinstance(pairs, STSPairs):
            say(f"{name}: {pairs.understood}")
    return data


def _trained_splits(data: SuiteData) -> dict[str, STSPairs | str]:
    """Returns the pairs of each split, or what is missing, under one name."""
    return {f"{task}, {split}": pairs for task, splits in data.trained.items() for split, pairs in splits.items()}


def _table(suite: str, embed: CachedEncoder, data: SuiteData, options: Evaluate) -> ScoreTable:
    setting = options.setting or "all"
    if suite == "sts":
        return ScoreTable(f"Spearman x 100, {setting}", {options.model: score_tasks(embed, data.sts, setting)})
    if suite == "trained-sts":
        return ScoreTable("Spearman x 100, trained", {options.model: score_trained(embed, data.trained)})
    trained, name = options.protocol or "standard", options.classifier or "torch"
    protocol, classifier = PROTOCOLS[trained], CLASSIFIERS[name]
    if suite == "declutr":
        found = score_declutr(embed, data, protocol, classifier)
    else:
        rows = data.transfer if suite == "transfer" else data.probing
        found = scores(rows, outcomes(embed, rows, protocol, classifier))
    title = f"{suite} x 100, {trained}, {name}"
    return ScoreTable(title, {options.model: found}, averaged=_CLASSIFIED[suite])
