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

from contrastive_text.cli.commands import Evaluate, Suite, Sweep
from contrastive_text.cli.files import form_of, plain_form, print_or_write
from contrastive_text.cli.models import load_readings, warnings_as_notes
from contrastive_text.cli.options import check_read
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage.text_files import Bounds
from contrastive_text.core.terminal import print_whole, say
from contrastive_text.data import read_pairs, read_rows
from contrastive_text.data.retrieval import RetrievalSet
from contrastive_text.evaluation.cached import CachedEncoder
from contrastive_text.evaluation.diagnosis import frequency_table
from contrastive_text.evaluation.results import ScoreTable, TaskScore, figure_cell, written_together
from contrastive_text.evaluation.sts import PairScore, TrainedPairs, check_labels, score_table, warnings_named
from contrastive_text.evaluation.sts_data import STSPairs
from contrastive_text.evaluation.suites import SUITES, SuiteProtocol, read_suites
from contrastive_text.recipes import GLUE_GRID

_GLUE_SEEDS = (5,)
"""Seeds of RoBERTa (Liu et al. 2019, https://arxiv.org/abs/1907.11692, section 5.1)."""
_CLASSIFIED = ("transfer", "probing", "declutr")
"""Suites that train classifiers."""
_SUITES: Sequence[str] = get_args(Suite)
_ALONE: Mapping[str, str] = {"glue": "it trains the model", "mteb": "its --output is a folder"}
"""Suites that go with no other, and why."""
_ENCODES = ("files", *(suite for suite in _SUITES if suite != "glue"))
"""What encodes texts by the model; GLUE trains it on."""
_CACHED = tuple(each for each in _ENCODES if each != "mteb")
_WITH_DATA = tuple(suite for suite in _SUITES if suite != "mteb")
"""Suites whose data lie in a folder; mteb gets its own."""
_READ_BY: Mapping[str, Sequence[str]] = {
    "columns": ("files", "retrieval"),
    "threshold": ("files",),
    "bounds": ("files",),
    "data": _WITH_DATA,
    "corpus": ("retrieval",),
    "setting": ("sts", "sts-pearson"),
    "without_frequent": ("sts",),
    "frequencies": ("sts",),
    "subsets": ("sts", "retrieval", "mteb"),
    "protocol": _CLASSIFIED,
    "classifier": _CLASSIFIED,
    **dict.fromkeys(("device", "pooler", "backend", "dtype"), _ENCODES),
    "cache": _CACHED,
    "tasks": ("glue", "retrieval", "mteb"),
    **dict.fromkeys(("grid", "seeds", "config", "runs"), ("glue",)),
    "format": ("files", *_SUITES),
    "output": ("files", *_SUITES),
}
"""Option -> what reads it: suites, or files of pairs."""


def evaluate(options: Evaluate) -> None:
    """Prints the correlation of cosine similarity with gold scores per file, or the tables of suites.

    Raises:
        ValueError: Options that don't go together, or that nothing would read.
    """
    _check(options)
    if not options.suite:
        _evaluate_files(options)
        return
    measure = {"glue": _finetuned, "mteb": _scored_by_mteb}.get(options.suite[0], _scored)
    with redirect_stdout(sys.stderr):  # the output is the tables alone
        tables = measure(options)
    output = None if "mteb" in tables else options.output
    print_or_write(_written(tables, options), output, "scores", options.format == "json")


def _check(options: Evaluate) -> None:
    """Checks that the options go together, and that something reads each of them."""
    if bool(options.suite) == bool(options.files):
        got = "both" if options.suite else "neither"
        raise InvalidValueError(
            f"files: expected files of scored pairs, or --suite {' '.join(_SUITES)}, got {got}"
        )
    check_read(options, _READ_BY, asked=options.suite or ["files"])
    for suite, reason in _ALONE.items():
        if suite in options.suite and len(options.suite) > 1:
            raise InvalidValueError(
                f"--suite {suite}: expected no other beside it, for {reason}, got {' '.join(options.suite)}; "
                "run it by itself"
            )
    if set(options.suite) & {*_WITH_DATA} and not options.data:
        raise InvalidValueError("--data: expected the folder of the suites' data sets, got none; give it")
    if options.threshold is not None and not -1 <= options.threshold < 1:
        raise InvalidValueError(
            f"--threshold: expected a cosine from -1 to below 1, got {options.threshold}; 0 is CS224N's"
        )
    if options.without_frequent and (len(options.suite) > 1 or options.cache):
        more = "--cache" if options.cache else "other suites"
        raise InvalidValueError(
            f"--without_frequent: expected --suite sts by itself, got {more} too; leave it out"
        )
    if options.frequencies and not options.without_frequent:
        raise InvalidValueError("--frequencies: expected --without_frequent, which reads it, got none; give K")
    if options.subsets and options.format in ("csv", "json"):
        raise InvalidValueError(
            f"--subsets: expected text, markdown or latex, got {options.format}, which holds sub-sets anyway; "
            "leave it out"
        )


def _load(options: Evaluate) -> dict[str, CachedEncoder]:
    """Returns what gives the vectors of the model, by its name; of each reading where poolers are named."""
    models = load_readings(options.model, options.device, options.pooler, options.backend, options.dtype)
    with warnings_as_notes():
        return CachedEncoder.each(models, options.cache, options.batch_size, show_progress_bar=True)


def _say_encoded(embeds: Mapping[str, CachedEncoder]) -> None:
    said = {name: _encoded(embed) for name, embed in embeds.items()}
    alike = len(set(said.values())) == 1  # but where a cache has the texts of one and not of another
    say(next(iter(said.values())) if alike else "\n".join(f"{name}: {each}" for name, each in said.items()))


def _encoded(embed: CachedEncoder) -> str:
    limit = embed.model.max_length
    earlier = f", {embed.truncated_earlier:,} of earlier runs" if embed.truncated_earlier else ""
    return f"{embed.encoded:,} distinct texts encoded; {embed.truncated:,} cut to {limit} tokens{earlier}"


def _evaluate_files(options: Evaluate) -> None:
    """Prints the scores; those for a file or a program by themselves, with all else on standard error."""
    plain = options.output is None and options.format in (None, "text")
    bounds = Bounds.of(options.bounds)
    with redirect_stdout(sys.stdout if plain else sys.stderr):
        form = form_of(options)
        tables = {
            path: read_pairs(path, columns=options.columns, bounds=bounds, form=form) for path in options.files
        }
        for path, table in tables.items():
            say(table.understood)
            if options.threshold is not None:
                check_labels(path, table)
        embeds = _load(options)
        names = Counter(Path(path).name for path in tables)
        found: dict[str, dict[str, list[PairScore]]] = {}
        with warnings_as_notes():
            for path, table in tables.items():
                label = Path(path).name if names[Path(path).name] == 1 else path
                with warnings_named(path):
                    found[label] = {
                        model: score_table(embed, table, options.threshold) for model, embed in embeds.items()
                    }
        _say_encoded(embeds)
    if plain:
        _show_files(found, options.threshold)
    else:
        written = written_together(_file_tables(found, options.threshold), options.format or "text")
        print_or_write(written, options.output, "scores", options.format == "json")


def _show_files(found: Mapping[str, Mapping[str, Sequence[PairScore]]], threshold: float | None) -> None:
    models = next(iter(found.values()))
    head = ["file", "sub-set", "pairs", "Spearman x 100", "Pearson x 100"]
    head += [] if threshold is None else [f"accuracy x 100 above {threshold:g}"]
    head += ["model"] if len(models) > 1 else []
    shown = Table(*head, title="cosine similarity against gold score")
    for label, scores in found.items():
        for rows in zip(*scores.values(), strict=True):
            for model, score in zip(scores, rows, strict=True):
                known = (score.spearman, score.pearson, score.accuracy)
                figures = [figure_cell(each) for each in known if each is not None]
                cells = [label, score.subset, f"{score.pairs:,}", *figures, model]
                shown.add_row(*map(Text, cells[: len(head)]))
    print_whole(shown)


def _file_tables(
    found: Mapping[str, Mapping[str, Sequence[PairScore]]], threshold: float | None
) -> dict[str, ScoreTable]:
    """Returns a table of each figure, with a column for each file and each of its sub-sets."""
    figures = ["spearman", "pearson", *([] if threshold is None else ["accuracy"])]
    models = next(iter(found.values()))
    tables = {}
    for figure in figures:
        rows = {
            model: [
                TaskScore(
                    label if score.subset == "all" else f"{label}, {score.subset}",
                    figure,
                    math.nan if (value := score._asdict()[figure]) is None else float(value),
                    size=score.pairs,
                )
                for label, scores in found.items()
                for score in scores[model]
            ]
            for model in models
        }
        tables[figure] = ScoreTable(f"{figure} x 100", rows, averaged=list(found))
    return tables


def _scored(options: Evaluate) -> dict[str, ScoreTable]:
    """Scores a model on suites of tasks."""
    protocol = SuiteProtocol(
        options.setting or "all",
        options.protocol or "standard",
        options.classifier or "torch",
        corpus=options.corpus,
        tasks=options.tasks,
        columns=options.columns,
    )
    data = read_suites(options.data or "", options.suite, protocol)
    for name, rows in {task: rows for tasks in data.values() for task, rows in tasks.items()}.items():
        if isinstance(rows, STSPairs | TrainedPairs | RetrievalSet):
            say(rows.understood if rows.understood.startswith(f"{name}: ") else f"{name}: {rows.understood}")
    corpus = _counted(options)
    embeds = _load(options)
    with warnings_as_notes():
        if options.without_frequent:
            removed = options.without_frequent
            return {"sts": frequency_table(embeds, data["sts"], removed, corpus, protocol.setting)}
        tables: dict[str, ScoreTable] = {
            suite: SUITES[suite].table(embeds, data[suite], protocol) for suite in options.suite
        }
        _say_encoded(embeds)
    return tables


def _finetuned(options: Evaluate) -> dict[str, ScoreTable]:
    """Fine-tunes a model on each task of GLUE whose files are there: a sweep of the recipe ``glue`` over a grid.

    Runs that are finished in ``--runs`` aren't repeated.

    Raises:
        ValueError: No task of GLUE, a file that isn't GLUE's, or a configuration that ``fit`` would refuse.
        RuntimeError: Runs failed; the others of their task were done.
    """
    from contrastive_text.cli.sweep import sweep  # here: Lightning takes seconds
    from contrastive_text.runs.glue import GLUE, Finetuned, find_tasks, glue_table, write_task

    data, folder = options.data or "", options.runs or Path("runs/glue")
    lacking = find_tasks(data, list(options.tasks) or None)
    files = {
        name: write_task(GLUE[name], data, folder / "data" / name) for name, lacks in lacking.items() if not lacks
    }
    for each in files.values():
        say(each.understood)
    words = ["--recipe", "glue", *(word for file in options.config for word in ("--config", str(file)))]
    words += [f"--model.encoder.model_name_or_path={options.model}", "--model.encoder.config=null"]
    outcomes: dict[str, Finetuned | str] = dict(lacking)
    for name, written in files.items():
        task, place = GLUE[name], folder / name
        say(f"{name}: fine-tuned in {place}")
        grid = Sweep(
            grid=options.grid or GLUE_GRID,
            seeds=options.seeds or _GLUE_SEEDS,
            output=place,
            select=task.select,
            fit=[*words, *task.options(written.paths)],
        )
        table = sweep(grid)
        assert table is not None
        outcomes[name] = runs = Finetuned(task, sum(written.rows[part] for part in task.dev), table)
        say(runs.describe())
    return {"glue": glue_table(options.model, outcomes)}


def _scored_by_mteb(options: Evaluate) -> dict[str, ScoreTable]:
    """Returns the main scores of mteb, whose own JSON is written to a folder."""
    from contrastive_text.evaluation.mteb import MTEBModel, find_mteb, organised_name, score_mteb

    with warnings_as_notes():
        tasks = find_mteb(options.tasks)
        models = load_readings(options.model, options.device, options.pooler, options.backend, options.dtype)
        name = organised_name(options.model)
        rows = {
            each: score_mteb(MTEBModel(model, name), tasks, options.output, options.batch_size)
            for each, model in models.items()
        }
        if options.output is not None:
            say(f"mteb's results are in {options.output}/results, under {name}")
    return {"mteb": ScoreTable("main score x 100", rows)}


def _written(tables: Mapping[str, ScoreTable], options: Evaluate) -> str:
    """Returns tables in the format that is asked for, with further ones where these are."""
    shown = dict(tables)
    if options.subsets:
        shown |= tables["sts"].subsets() if "sts" in tables else {}
        if ranked := tables.get("retrieval"):
            shown |= {"retrieval": ranked.of_one_task()} if len(ranked.tasks) == 1 else ranked.by_part()
        shown |= tables["mteb"].subsets() if "mteb" in tables else {}
    return written_together(shown, options.format or "text")


def _counted(options: Evaluate) -> list[str] | None:
    """Returns the texts whose tokens are counted; None for those of the tasks."""
    if options.frequencies is None:
        return None
    table = read_rows(options.frequencies, reads=("text",), form=plain_form())
    say(table.understood)
    return [str(row["text"]) for row in table]
