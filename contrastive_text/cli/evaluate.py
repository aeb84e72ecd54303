"""Command ``evaluate``: scores a saved model on files of scored pairs or on suites of tasks."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import get_args

from rich.table import Table
from rich.text import Text

from contrastive_text.cli.commands import Evaluate, Suite, Sweep
from contrastive_text.cli.files import form_of, plain_form, print_or_write
from contrastive_text.cli.models import load_readings, load_reranker, warnings_as_notes
from contrastive_text.cli.options import check_options_used
from contrastive_text.core.errors import InvalidValueError, at_least
from contrastive_text.core.storage.text_files import SizeLimits
from contrastive_text.core.terminal import print_message, print_table
from contrastive_text.data import read_pairs, read_rows
from contrastive_text.data.retrieval import RetrievalSet
from contrastive_text.evaluation.cached import CachedEncoder
from contrastive_text.evaluation.diagnosis import frequency_table
from contrastive_text.evaluation.results import ScoreTable, TaskScore, figure_cell, render_tables
from contrastive_text.evaluation.retrieval import Rerank, score_retrieval
from contrastive_text.evaluation.sts import PairScore, TrainedPairs, check_labels, score_table, warnings_named
from contrastive_text.evaluation.sts_data import STSPairs
from contrastive_text.evaluation.suites import SUITES, SuiteProtocol, read_suites
from contrastive_text.recipes import GLUE_GRID

_GLUE_SEEDS = (5,)
"""Number of seeds of a GLUE task in RoBERTa (Liu et al. 2019, https://arxiv.org/abs/1907.11692, section 5.1)."""
_CLASSIFIED = ("transfer", "probing", "declutr")
"""Names of the suites that train classifiers."""
_SUITES: Sequence[str] = get_args(Suite)
_ALONE: Mapping[str, str] = {"glue": "it trains the model", "mteb": "its --output is a folder"}
"""Suite -> reason why it must be run without other suites."""
_ENCODES = ("files", *(suite for suite in _SUITES if suite != "glue"))
"""Names of the suites, and ``files``, that encode texts with the model. GLUE fine-tunes the model."""
_CACHED = tuple(name for name in _ENCODES if name != "mteb")
_WITH_DATA = tuple(suite for suite in _SUITES if suite != "mteb")
"""Names of the suites that read data sets from ``--data``. mteb downloads its data sets."""
_READ_BY: Mapping[str, Sequence[str]] = {
    "columns": ("files", "retrieval"),
    "threshold": ("files",),
    "bounds": ("files",),
    "data": _WITH_DATA,
    **dict.fromkeys(("corpus", "rerank", "rerank_top_k"), ("retrieval",)),
    "setting": ("sts", "sts-pearson"),
    "without_frequent": ("sts",),
    "frequencies": ("sts",),
    "subsets": ("sts", "retrieval", "mteb"),
    "protocol": _CLASSIFIED,
    "classifier": _CLASSIFIED,
    **dict.fromkeys(("device", "pooler", "backend", "dtype"), _ENCODES),
    **dict.fromkeys(("cache", "precision"), _CACHED),
    "tasks": ("glue", "retrieval", "mteb"),
    **dict.fromkeys(("grid", "seeds", "config", "runs"), ("glue",)),
    "format": ("files", *_SUITES),
    "output": ("files", *_SUITES),
}
"""Names of the suites that read an option, by the name of the option; ``files`` for files of pairs."""


def evaluate(options: Evaluate) -> None:
    """Prints the correlation of cosine and gold score of each file, or the tables of suites.

    Raises:
        ValueError: Options contradict each other, or no suite reads an option.
    """
    _check(options)
    if not options.suite:
        _evaluate_files(options)
        return
    measure = {"glue": _finetuned, "mteb": _scored_by_mteb}.get(options.suite[0], _scored)
    with redirect_stdout(sys.stderr):  # standard output has the tables only
        tables = measure(options)
    output = None if "mteb" in tables else options.output
    print_or_write(_written(tables, options), output, "scores", options.format == "json")


def _check(options: Evaluate) -> None:
    """Checks that the options don't contradict each other, and that a suite reads each option."""
    if bool(options.suite) == bool(options.files):
        got = "both; to score several models, use compare" if options.suite else "neither"
        raise InvalidValueError(
            f"files: expected files of scored pairs, or --suite {' '.join(_SUITES)}, got {got}"
        )
    check_options_used(options, _READ_BY, suites=options.suite or ["files"])
    for suite, reason in _ALONE.items():
        if suite in options.suite and len(options.suite) > 1:
            raise InvalidValueError(
                f"--suite {suite}: expected this suite alone, got {' '.join(options.suite)}; run it by itself, "
                f"because {reason}"
            )
    if set(options.suite) & {*_WITH_DATA} and not options.data:
        raise InvalidValueError("--data: expected a folder of the suites' data sets, got no folder; add --data")
    if options.threshold is not None and not -1 <= options.threshold < 1:
        raise InvalidValueError(
            f"--threshold: expected a cosine from -1 to below 1, got {options.threshold}; 0 is CS224N's"
        )
    if options.without_frequent and (len(options.suite) > 1 or options.cache):
        extra = "--cache" if options.cache else "other suites"
        raise InvalidValueError(
            f"--without_frequent: expected --suite sts by itself, got {extra} too; drop {extra}"
        )
    if options.frequencies and not options.without_frequent:
        raise InvalidValueError(
            "--frequencies: expected it with --without_frequent K, got it alone; add --without_frequent 10"
        )
    if options.subsets and options.format in ("csv", "json"):
        raise InvalidValueError(
            f"--subsets: expected --format text, markdown or latex, got {options.format}. It has the subsets "
            "already; drop --subsets"
        )


def _load(options: Evaluate) -> dict[str, CachedEncoder]:
    """Returns an encoder of texts for each pooler of ``--pooler``, by model and pooler."""
    models = load_readings(options.model, options.device, options.pooler, options.backend, options.dtype)
    with warnings_as_notes():
        return CachedEncoder.each(
            models,
            options.cache,
            options.batch_size,
            show_progress_bar=True,
            precision=options.precision or "float32",
        )


def _say_encoded(embeds: Mapping[str, CachedEncoder]) -> None:
    """Prints the numbers of encoded and truncated texts. Poolers differ only if a cache has vectors of some."""
    notes = {name: _encoded_note(embed) for name, embed in embeds.items()}
    are_equal = len(set(notes.values())) == 1
    print_message(
        next(iter(notes.values())) if are_equal else "\n".join(f"{name}: {note}" for name, note in notes.items())
    )


def _encoded_note(embed: CachedEncoder) -> str:
    limit = embed.model.max_length
    earlier = f", {embed.truncated_earlier:,} of earlier runs" if embed.truncated_earlier else ""
    precision = "" if embed.precision == "float32" else f"; vectors compared as {embed.precision}"
    return (
        f"{embed.encoded:,} distinct texts encoded; {embed.truncated:,} truncated to {limit} tokens{earlier}"
        f"{precision}"
    )


def _evaluate_files(options: Evaluate) -> None:
    """Prints or writes the scores of files of scored pairs.

    Notes go to standard error unless the format is text.
    """
    plain = options.output is None and options.format in (None, "text")
    bounds = SizeLimits.of(options.bounds)
    with redirect_stdout(sys.stdout if plain else sys.stderr):
        form = form_of(options)
        tables = {
            path: read_pairs(path, columns=options.columns, bounds=bounds, form=form) for path in options.files
        }
        for path, table in tables.items():
            print_message(table.description)
            if options.threshold is not None:
                check_labels(path, table)
        embeds = _load(options)
        names = Counter(Path(path).name for path in tables)
        scores: dict[str, dict[str, list[PairScore]]] = {}
        with warnings_as_notes():
            for path, table in tables.items():
                label = Path(path).name if names[Path(path).name] == 1 else path
                with warnings_named(path):
                    scores[label] = {
                        model: score_table(embed, table, options.threshold) for model, embed in embeds.items()
                    }
        _say_encoded(embeds)
    if plain:
        _print_files(scores, options.threshold)
    else:
        text = render_tables(_file_tables(scores, options.threshold), options.format or "text")
        print_or_write(text, options.output, "scores", options.format == "json")


def _print_files(scores: Mapping[str, Mapping[str, Sequence[PairScore]]], threshold: float | None) -> None:
    """Prints one table with a row for each file, subset and model."""
    models = next(iter(scores.values()))
    head = ["file", "subset", "pairs", "Spearman x 100", "Pearson x 100"]
    head += [] if threshold is None else [f"accuracy x 100 above {threshold:g}"]
    head += ["model"] if len(models) > 1 else []
    table = Table(*head, title="cosine similarity against gold score")
    for label, by_model in scores.items():
        for rows in zip(*by_model.values(), strict=True):
            for model, score in zip(by_model, rows, strict=True):
                figures = (score.spearman, score.pearson, score.accuracy)
                numbers = [figure_cell(figure) for figure in figures if figure is not None]
                cells = [label, score.subset, f"{score.pairs:,}", *numbers, model]
                table.add_row(*map(Text, cells[: len(head)]))
    print_table(table)


def _file_tables(
    scores: Mapping[str, Mapping[str, Sequence[PairScore]]], threshold: float | None
) -> dict[str, ScoreTable]:
    """Returns a table for each score, with a column for each subset of each file."""
    figures = ["spearman", "pearson", *([] if threshold is None else ["accuracy"])]
    models = next(iter(scores.values()))
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
                for label, by_model in scores.items()
                for score in by_model[model]
            ]
            for model in models
        }
        tables[figure] = ScoreTable(f"{figure} x 100", rows, averaged=list(scores))
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
            print_message(
                rows.description if rows.description.startswith(f"{name}: ") else f"{name}: {rows.description}"
            )
    corpus = _frequency_texts(options)
    rerank = _rerank(options)
    embeds = _load(options)
    with warnings_as_notes():
        if options.without_frequent:
            removed = options.without_frequent
            return {"sts": frequency_table(embeds, data["sts"], removed, corpus, protocol.setting)}
        tables: dict[str, ScoreTable] = {
            suite: SUITES[suite].table(embeds, data[suite], protocol) for suite in options.suite
        }
        if rerank is not None:
            table, stage = tables["retrieval"], f"{options.rerank}, top {rerank.top_k}"
            rows = {
                f"{name} + {stage}": score_retrieval(embed, data["retrieval"], rerank)
                for name, embed in embeds.items()
            }
            tables["retrieval"] = replace(table, rows={**table.rows, **rows})
        _say_encoded(embeds)
    return tables


def _rerank(options: Evaluate) -> Rerank | None:
    """Loads the reranker of ``--rerank``; None without one."""
    if options.rerank is None:
        if options.rerank_top_k is not None:
            raise InvalidValueError(
                "--rerank_top_k: expected it with --rerank RERANKER, got it alone; add --rerank"
            )
        return None
    top_k = at_least("--rerank_top_k", 100 if options.rerank_top_k is None else options.rerank_top_k, 1)
    return Rerank(load_reranker(options.rerank, options.device), top_k, options.batch_size)


def _finetuned(options: Evaluate) -> dict[str, ScoreTable]:
    """Fine-tunes a model on each GLUE task that has files, by a sweep of the recipe ``glue`` over a grid.

    Finished runs in the folder ``--runs`` are reused.

    Raises:
        ValueError: A name is no GLUE task, a file has another format than GLUE's, or ``fit`` would refuse a
            configuration.
        RuntimeError: A run failed. The other runs of its task are complete.
    """
    from contrastive_text.cli.sweep import sweep  # here: Lightning takes seconds
    from contrastive_text.runs.glue import GLUE, Finetuned, find_tasks, glue_table, write_task

    data, folder = options.data or "", options.runs or Path("runs/glue")
    problems = find_tasks(data, list(options.tasks) or None)
    task_files = {
        name: write_task(GLUE[name], data, folder / "data" / name)
        for name, problem in problems.items()
        if not problem
    }
    for files in task_files.values():
        print_message(files.description)
    words = ["--recipe", "glue", *(word for file in options.config for word in ("--config", str(file)))]
    words += [f"--model.encoder.model_name_or_path={options.model}", "--model.encoder.config=null"]
    outcomes: dict[str, Finetuned | str] = dict(problems)
    for name, files in task_files.items():
        task, place = GLUE[name], folder / name
        print_message(f"{name}: fine-tuned in {place}")
        grid = Sweep(
            grid=options.grid or GLUE_GRID,
            seeds=options.seeds or _GLUE_SEEDS,
            output=place,
            select=task.select,
            fit=[*words, *task.options(files.paths)],
        )
        table = sweep(grid)
        assert table is not None
        outcomes[name] = runs = Finetuned(task, sum(files.rows[part] for part in task.dev), table)
        print_message(runs.describe())
    return {"glue": glue_table(options.model, outcomes)}


def _scored_by_mteb(options: Evaluate) -> dict[str, ScoreTable]:
    """Evaluates models by mteb and returns the main scores.

    Writes mteb's JSON files to the folder ``--output``.
    """
    from contrastive_text.evaluation.mteb import MTEBModel, find_mteb, organized_name, score_mteb

    with warnings_as_notes():
        tasks = find_mteb(options.tasks)
        models = load_readings(options.model, options.device, options.pooler, options.backend, options.dtype)
        name = organized_name(options.model)
        rows = {
            label: score_mteb(MTEBModel(model, name), tasks, options.output, options.batch_size)
            for label, model in models.items()
        }
        if options.output is not None:
            print_message(f"mteb's results are in {options.output}/results, under {name}")
    return {"mteb": ScoreTable("main score x 100", rows)}


def _written(tables: Mapping[str, ScoreTable], options: Evaluate) -> str:
    """Renders tables of scores in the format of ``--format``, with the further tables of ``--subsets``."""
    all_tables = dict(tables)
    if options.subsets:
        all_tables |= tables["sts"].subsets() if "sts" in tables else {}
        if ranked := tables.get("retrieval"):
            all_tables |= {"retrieval": ranked.of_one_task()} if len(ranked.tasks) == 1 else ranked.by_part()
        all_tables |= tables["mteb"].subsets() if "mteb" in tables else {}
    return render_tables(all_tables, options.format or "text")


def _frequency_texts(options: Evaluate) -> list[str] | None:
    """Returns the texts of ``--frequencies``, or None to count the tokens of the tasks' texts."""
    if options.frequencies is None:
        return None
    table = read_rows(options.frequencies, reads=("text",), form=plain_form())
    print_message(table.description)
    return [str(row["text"]) for row in table]
