"""Command ``compare``: compares the scores and the vectors of models with a baseline."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path

import torch

from contrastive_text.cli.commands import Compare
from contrastive_text.cli.files import plain_form, print_or_write
from contrastive_text.cli.models import load_model, warnings_as_notes
from contrastive_text.cli.options import check_options_used
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage.text_files import SizeLimits
from contrastive_text.core.terminal import print_message
from contrastive_text.data import read_pairs, read_rows
from contrastive_text.data.retrieval import RetrievalSet
from contrastive_text.evaluation.cached import CachedEncoder
from contrastive_text.evaluation.classifiers import PROTOCOLS
from contrastive_text.evaluation.compare import ModelComparison, check_any_data, check_pairs
from contrastive_text.evaluation.compare import compare as measure
from contrastive_text.evaluation.retrieval import find_retrieval
from contrastive_text.evaluation.senteval import SIMCSE_TASKS, check_folds, find_tasks, outcomes
from contrastive_text.evaluation.senteval_data import TRANSFER_TASKS, LabeledTexts
from contrastive_text.evaluation.sts_data import STSPairs, find_sts
from contrastive_text.inference.model_folder import has_pooler
from contrastive_text.metrics.bootstrap import check_resamples

_FORMATS = {"text": ModelComparison.text, "markdown": ModelComparison.markdown, "json": ModelComparison.json}
_READ_BY: Mapping[str, Sequence[str]] = {
    "setting": ("sts",),
    "protocol": ("transfer",),
    "columns": ("sts", "retrieval"),
    "corpus": ("retrieval",),
    "tasks": ("retrieval",),
}
"""Names of the suites that read an option, by the name of the option."""


def compare(options: Compare) -> None:
    """Prints scores of models, differences from the first model with intervals, and agreement of vectors.

    Raises:
        ValueError: Options contradict each other, or no suite reads an option.
    """
    if len(options.models) < 2:
        raise InvalidValueError(
            f"models: expected two or more, got {options.models[0]} alone; the first is the baseline"
        )
    check_options_used(options, _READ_BY, options.suite)
    check_resamples(options.resamples)
    if "transfer" in options.suite and Path(options.data).is_file():
        raise InvalidValueError(f"--data: expected a folder with --suite transfer, got the file {options.data}")
    bounds = SizeLimits.of(options.bounds)
    setting, protocol = options.setting or "all", options.protocol or "standard"
    tasks = _sts_tasks(options.data, options.columns, bounds) if "sts" in options.suite else None
    if tasks is not None:
        check_any_data("--data", tasks)
        check_pairs(tasks, setting)
    data = find_tasks(options.data, TRANSFER_TASKS) if "transfer" in options.suite else None
    if data is not None:
        check_any_data("--data", data)
        check_folds(data, PROTOCOLS[protocol])
    ranked = (
        find_retrieval(options.data, options.corpus, options.tasks, options.columns, bounds)
        if "retrieval" in options.suite
        else None
    )
    if ranked is not None:
        check_any_data("--data", ranked)
    # Repeated models are numbered.
    repeats = [options.models[:i].count(path) for i, path in enumerate(options.models)]
    names = {f"{path} ({n + 1})" if n else path: path for path, n in zip(options.models, repeats, strict=True)}
    form = plain_form()
    rows = read_rows(options.texts, reads=("text",), bounds=bounds, form=form) if options.texts else None
    texts = None if rows is None else [str(row["text"]) for row in rows]
    with redirect_stdout(sys.stderr):  # standard output has the comparison only, for another program
        data_sets = (*(tasks or {}).values(), *(ranked or {}).values())
        notes = [data.description for data in data_sets if isinstance(data, STSPairs | RetrievalSet)]
        print_message("\n".join([*notes, *([] if rows is None else [rows.description])]))
        with warnings_as_notes():
            models = {
                name: CachedEncoder(
                    load_model(path, options.device, None if has_pooler(path) else options.pooler),
                    options.cache,
                    options.batch_size,
                    show_progress_bar=True,
                )
                for name, path in names.items()
            }
            comparison = measure(
                models,
                sts=tasks,
                correct=None if data is None else _answers(models, data, protocol),
                retrieval=ranked,
                texts=texts,
                setting=setting,
                resamples=options.resamples,
                seed=options.seed,
                title=f"transfer x 100, {protocol}, torch",
                averaged=SIMCSE_TASKS,
            )
        _say_truncated(models)
    print_or_write(_FORMATS[options.format](comparison), options.output, "comparison", options.format == "json")


def _say_truncated(models: Mapping[str, CachedEncoder]) -> None:
    """Prints the number of truncated texts of each model."""
    for name, embed in models.items():
        length = embed.model.max_length
        if embed.truncated:
            print_message(
                f"{name}: {embed.truncated:,} of {embed.encoded:,} texts are longer than {length} tokens"
            )
        if embed.truncated_earlier:
            print_message(f"{name}: {embed.truncated_earlier:,} texts of earlier runs are longer too")


def _sts_tasks(data: str, columns: Mapping[str, str] | None, bounds: SizeLimits) -> Mapping[str, STSPairs | str]:
    """Returns the STS tasks of a file or of a folder."""
    path = Path(data)
    if path.is_file():
        form = plain_form(columns="--columns")
        return {path.name: STSPairs.of_table(read_pairs(path, columns, bounds=bounds, form=form), by_column=True)}
    if columns:
        raise InvalidValueError(f"--columns: expected a file of pairs for --data, got {data}; leave it out")
    return find_sts(data)


def _answers(
    models: Mapping[str, CachedEncoder], data: Mapping[str, LabeledTexts | str], protocol: str
) -> dict[str, dict[str, torch.Tensor | str]]:
    """Returns which test rows each model classifies correctly, or why a task has no data, by model and task."""
    answers: dict[str, dict[str, torch.Tensor | str]] = {}
    for name, embed in models.items():
        by_task = outcomes(embed, data, PROTOCOLS[protocol], classifier=None)
        answers[name] = {
            task: rows if isinstance(rows, str) else by_task[task].correct for task, rows in data.items()
        }
    return answers
