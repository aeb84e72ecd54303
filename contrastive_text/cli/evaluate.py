"""The command that prints the scores of a saved model, on files of scored pairs or on suites of tasks."""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from contrastive_text.cli.options import Parser, load_model
from contrastive_text.data import read_pairs
from contrastive_text.evaluation.cached import CachedEncoder
from contrastive_text.evaluation.classifiers import CLASSIFIERS, PROTOCOLS
from contrastive_text.evaluation.declutr import declutr_scores
from contrastive_text.evaluation.probing import probing_scores
from contrastive_text.evaluation.results import FORMATS, ScoreTable, TaskScore
from contrastive_text.evaluation.sts import SETTINGS, check_setting, score_table, score_tasks, warnings_named
from contrastive_text.evaluation.sts_data import STSPairs, find_pairs, find_sts
from contrastive_text.evaluation.trained_sts import SPLITS, TRAINED_TASKS, trained_sts_scores
from contrastive_text.evaluation.transfer import SIMCSE_TASKS, transfer_scores

_CLASSIFIED: Mapping[str, tuple[Callable[..., list[TaskScore]], Sequence[str] | None]] = {
    "transfer": (transfer_scores, SIMCSE_TASKS),
    "probing": (probing_scores, None),
    "declutr": (declutr_scores, ("Downstream (-SNLI)",)),
}
"""Suite that trains classifiers -> its scores, and what the papers average; None for all of them."""
_SUITES = ("sts", "trained-sts", *_CLASSIFIED)
_FILES = "files"
_READ_BY: Mapping[str, Sequence[str]] = {
    "columns": (_FILES,),
    "data": _SUITES,
    "setting": ("sts",),
    "subsets": ("sts",),
    "protocol": tuple(_CLASSIFIED),
    "classifier": tuple(_CLASSIFIED),
    "format": _SUITES,
    "output": _SUITES,
}
"""Option -> what reads it: suites, or files of pairs."""


def evaluate(words: Sequence[str]) -> None:
    """Prints the correlation of cosine similarity with gold scores per file, or the tables of suites."""
    parser = Parser(
        prog="contrastive-text evaluate", description="Scores of a model: on files of scored pairs, or on suites."
    )
    parser.add_argument("model", help="folder or hub name")
    parser.add_argument("files", nargs="*", help="files of scored pairs: Spearman x 100 of cosine and gold score")
    parser.add_argument(
        "--columns",
        nargs="+",
        metavar="NAME=COLUMN",
        help="anchor=..., positive=..., target=..., where the names in the files aren't usual ones",
    )
    parser.add_argument("--suite", nargs="+", choices=_SUITES, help="suites of tasks, instead of files")
    parser.add_argument("--data", help="folder of the suites' data sets; hub: read STS from the hub")
    parser.add_argument("--setting", choices=SETTINGS, help="how sub-sets of a year of STS are joined; all")
    parser.add_argument("--subsets", action="store_true", help="a table of sub-sets for each year of STS")
    parser.add_argument("--protocol", choices=tuple(PROTOCOLS), help="of classifiers, as in SentEval; standard")
    parser.add_argument("--classifier", choices=tuple(CLASSIFIERS), help="what trains them; torch")
    parser.add_argument("--format", choices=tuple(FORMATS), help="of the suites' tables; text")
    parser.add_argument("--output", type=Path, help="file for them, instead of the terminal")
    parser.add_argument("--cache", type=Path, help="folder where vectors stay for the next run")
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--device", help="cpu, cuda, ...; the GPU if there is one")
    options = parser.understand(words)
    _check(parser, options)
    if options.suite:
        _evaluate_suites(options)
    else:
        _evaluate_files(options)


def _check(parser: Parser, options: argparse.Namespace) -> None:
    """Refuses options that don't go together, or that nothing would read."""
    if bool(options.suite) == bool(options.files):
        got = "both" if options.suite else "neither"
        parser.error(f"files: expected files of scored pairs, or --suite {' '.join(_SUITES)}, got {got}")
    scored = options.suite or [_FILES]
    for name, value in vars(options).items():
        readers = _READ_BY.get(name, scored)
        if value and not set(readers) & set(scored):
            todo = f"leave it out, or score {' or '.join(readers)}"
            parser.error(f"--{name}: expected something that reads it, got {' '.join(scored)}; {todo}")
    if options.suite and not options.data:
        parser.error("--data: expected the folder of the suites' data sets, got none; give it")
    for named in options.columns or ():
        if "=" not in named:
            parser.error(f"--columns: expected NAME=COLUMN, got {named}; write target=gold, for example")
    if options.output and not options.output.parent.is_dir():
        parser.error(
            f"--output: expected an existing folder, found none at {options.output.parent}; make it first"
        )


def _load(options: argparse.Namespace) -> CachedEncoder:
    model = load_model(options.model, device=options.device)
    print(f"{options.model}: {type(model.pooler).__name__}, at most {model.max_length} tokens")
    return CachedEncoder(model, folder=options.cache, batch_size=options.batch_size, show_progress_bar=True)


def _say_encoded(embed: CachedEncoder) -> None:
    limit = embed.model.max_length
    print(f"{embed.encoded:,} distinct texts encoded; {embed.truncated:,} cut to {limit} tokens")


@contextmanager
def _notes() -> Iterator[None]:
    """Prints warnings as notes."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        yield
    for message in dict.fromkeys(str(warning.message) for warning in said):
        print(f"note: {message}")


def _evaluate_files(options: argparse.Namespace) -> None:
    columns = dict(named.split("=", 1) for named in options.columns or ())
    tables = {path: read_pairs(path, columns=columns) for path in options.files}
    embed = _load(options)
    shown = Table("file", "sub-set", "pairs", "Spearman x 100", title="cosine similarity against gold score")
    with _notes():
        for path, table in tables.items():
            with warnings_named(path):
                scores = score_table(embed, table)
            for score in scores:
                figure = "n/a" if math.isnan(score.spearman) else f"{score.spearman:.2f}"
                shown.add_row(Path(path).name, Text(score.subset), f"{score.pairs:,}", figure)
    _say_encoded(embed)
    Console().print(shown)


def _evaluate_suites(options: argparse.Namespace) -> None:
    """Prints the tables to the terminal or a file, and all else to standard error."""
    setting = options.setting or "all"
    with redirect_stdout(sys.stderr):
        found = find_sts(options.data) if "sts" in options.suite else {}
        pairs = {task: each for task, each in found.items() if isinstance(each, STSPairs)}
        check_setting(setting, pairs.values())  # before minutes of encoding
        if "trained-sts" in options.suite:
            for name, task in TRAINED_TASKS.items():
                splits = {f"{name}, {split}": find_pairs(task, options.data, split) for split in SPLITS}
                pairs |= {split: each for split, each in splits.items() if isinstance(each, STSPairs)}
        for name, each in pairs.items():
            print(f"{name}: {each.understood}")
        embed = _load(options)
        with _notes():
            tables = {suite: _table(suite, embed, found, setting, options) for suite in options.suite}
        _say_encoded(embed)
    written = _written(tables, options.format or "text", subsets=options.subsets) + "\n"
    if options.output is None:
        print(written, end="")
    else:
        options.output.write_text(written, encoding="utf-8")
        print(f"scores written to {options.output}", file=sys.stderr)


def _table(
    suite: str,
    embed: CachedEncoder,
    found: Mapping[str, STSPairs | str],
    setting: str,
    options: argparse.Namespace,
) -> ScoreTable:
    if suite == "sts":
        return ScoreTable(f"Spearman x 100, {setting}", {options.model: score_tasks(embed, found, setting)})
    if suite == "trained-sts":
        return ScoreTable("Spearman x 100, trained", {options.model: trained_sts_scores(embed, options.data)})
    classified, averaged = _CLASSIFIED[suite]
    protocol = options.protocol or "standard"
    scores = classified(
        embed,
        options.data,
        protocol=PROTOCOLS[protocol],
        classifier=CLASSIFIERS[options.classifier or "torch"],
    )
    return ScoreTable(f"{suite} x 100, {protocol}", {options.model: scores}, averaged=averaged)


def _written(tables: Mapping[str, ScoreTable], form: str, subsets: bool) -> str:
    """Gives the tables of the suites as one text, one JSON object or one CSV table."""
    if form == "json":
        return json.dumps(
            {suite: json.loads(table.json()) for suite, table in tables.items()}, indent=2, ensure_ascii=False
        )
    if form == "csv":
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        for number, (suite, table) in enumerate(tables.items()):
            header, *lines = csv.reader(io.StringIO(table.csv()))
            writer.writerows([] if number else [["suite", *header]])
            writer.writerows([suite, *line] for line in lines)
        return out.getvalue().rstrip("\n")
    further = _subset_tables(tables["sts"]) if subsets else []
    return "\n\n".join(FORMATS[form](table) for table in (*tables.values(), *further))


def _subset_tables(table: ScoreTable) -> list[ScoreTable]:
    """Gives a table of the sub-sets of each year of STS."""
    return [
        ScoreTable(
            f"{score.task}, sub-sets",
            {name: [TaskScore(part, score.metric, figure) for part, figure in score.parts.items()]},
        )
        for name, scores in table.rows.items()
        for score in scores
        if score.parts
    ]
