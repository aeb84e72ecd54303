"""Summary of runs: main figures, the gain of training on held-out pairs, configurations and facts."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from contrastive_text.core.config.specs import describe_spec
from contrastive_text.evaluation.cached import CachedEncoder
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.metrics import PairedBootstrap, paired_bootstrap_spearman
from contrastive_text.runs.report.charts import Note, number
from contrastive_text.runs.report.material import SEED, Material, Space, gold_scores, pair_cosines
from contrastive_text.runs.report.runs import CONFIG, LOSS, RunRecord
from contrastive_text.runs.report.vectors import score

Rows = list[tuple[str, list[str]]]
"""Rows of a table of runs: a name, and a value for each run."""


class Gain(NamedTuple):
    """Change of the score on scored pairs from a run's initial weights to its best weights.

    Args:
        before: Spearman times 100 of the initial weights.
        after: Spearman times 100 of the best weights.
        difference: Bootstrap of the difference of the correlations, which aren't multiplied by 100.
        start: Name of the initial weights.
    """

    before: float
    after: float
    difference: PairedBootstrap
    start: str


class Judgment(NamedTuple):
    """Line of the report page on whether training helped, or on how two runs differ.

    Args:
        about: Name of the run with a colon; empty on a page of one run.
        answer: Whether training helped; empty if that isn't known, or if two runs are compared.
        figures: Scores and their difference, or the reason why they aren't known.
    """

    about: str
    answer: str
    figures: str


def summarize(run: RunRecord) -> str:
    """Describes a run in one sentence: encoder, pooler, objectives, views, batch size and seed."""
    model, data = run.config.get("model") or {}, run.config.get("data") or {}
    arguments = (model.get("encoder") or {}).get("init_args") or {}
    weights = _file_name(str(arguments.get("model_name_or_path") or ""))
    parts = [
        weights or ("an encoder from a configuration" if arguments.get("config") else ""),
        _class(model.get("pooler")),
        " + ".join(_objective(part) for part in (model.get("objectives") or {"": "Contrastive"}).values()),
        _views(model.get("views") or {}),
        f"{data['batch_size']} rows a step" if "batch_size" in data else "",
        f"seed {run.config['seed_everything']}" if "seed_everything" in run.config else "",
    ]
    return " · ".join(part for part in parts if part)


def main_figures(runs: Sequence[RunRecord], spaces: Sequence[Space]) -> Rows:
    """Returns the main table of runs: best score, last loss, effective rank and uniformity."""
    diagnoses = {space.run.name: space.diagnosis for space in spaces}
    columns: list[dict[str, str]] = []
    for run in runs:
        figures: dict[str, str] = {}
        if run.best is not None:
            monitor, value, step = run.best
            figures |= {f"best {monitor.removeprefix('val/')}": number(value, ".2f"), "at step": f"{step:,}"}
        if (losses := run.metrics.get(LOSS)) is not None:
            figures["loss, last step"] = number(losses.values[-1], ".3g")
            figures["steps"] = f"{max(points.steps[-1] for points in run.metrics.values()):,}"
        if run.diverged is not None:
            figures["loss, last step"] = f"NaN or infinite from step {run.diverged:,} on"
        if (diagnosis := diagnoses.get(run.name)) is not None:
            figures["effective rank"] = f"{diagnosis.effective_rank:.1f} of {diagnosis.features}"
            figures["uniformity"] = number(diagnosis.uniformity, ".2f")
        columns.append(figures)
    return _rows(columns, absent="n/a")


def doubts(runs: Sequence[RunRecord], spaces: Sequence[Space]) -> list[str]:
    """Returns warnings: a sentence for each run whose score fell, and each warning of ``diagnose``."""
    warned = [(run, [run.checkpoint.best.regression]) for run in runs if run.checkpoint is not None]
    warned += [(space.run, space.diagnosis.warnings) for space in spaces if space.diagnosis is not None]
    return [run.says(words) for run, sentences in warned for words in sentences if words]


def judgments(spaces: Sequence[Space], material: Material, device: str | None = None) -> list[Judgment]:
    """Compares each run's score with the score of its initial weights, and with the first run's score.

    Returns:
        A line for each run, then one for each run after the first; empty without scored pairs.
    """
    if material.pairs is None or not spaces:
        return []
    lines = []
    for space in spaces:
        change = gain(space, material, device)
        if isinstance(change, str):
            lines.append(Judgment(space.run.says(""), "", f"The gain of training isn't known: {change}."))
            continue
        answer = _judged(change.difference, better="Training helped", worse="Training made it worse")
        before, after = number(change.before, ".2f"), number(change.after, ".2f")
        figures = f"{before} before ({change.start}), {after} after, {_interval(change.difference)}."
        lines.append(Judgment(space.run.says(""), answer, figures))
    first = spaces[0]
    for space in spaces[1:]:
        difference = _bootstrap(first.cosines, space.cosines, gold_scores(material.pairs))
        answer = _judged(difference, better="higher", worse="lower")
        pair = f"{space.run.name} against {first.run.name}"
        lines.append(Judgment("", "", f"{pair}: {answer}, {_interval(difference)}."))
    return lines


def gain(space: Space, material: Material, device: str | None = None) -> Gain | str:
    """Scores a run's initial weights on the scored pairs, with the pooler of the trained model.

    Returns:
        Change of the score, or the reason why it isn't known.
    """
    encoder: Any = (space.run.config.get("model") or {}).get("encoder")  # Any: a part of a configuration
    arguments = (encoder.get("init_args") or {}) if isinstance(encoder, dict) else {}
    start = str(arguments.get("model_name_or_path") or "")
    if material.pairs is None or not start or arguments.get("config"):
        return "the run started from random weights, or doesn't say from which"
    name = _file_name(start)
    try:
        trained = SentenceEncoder.from_pretrained(space.run.model or "", device="cpu")
        model = SentenceEncoder.from_pretrained(
            start, device=device, pooler=trained.pooler, max_length=trained.max_length, prompts=trained.prompts
        )
        before = pair_cosines(CachedEncoder(model), material.pairs)
    except (ValueError, OSError) as error:  # a deleted folder, or weights that don't load with this pooler
        return f"{name}, from which it started, can't be read now ({' '.join(str(error).split())[:200]})"
    gold = gold_scores(material.pairs)
    difference = _bootstrap(before, space.cosines, gold)
    return Gain(score(before, gold), score(space.cosines, gold), difference, name)


def differences(runs: Sequence[RunRecord]) -> Rows:
    """Returns a table of the configuration keys whose values differ between runs."""
    return _different(_rows([flat(run.config) for run in runs]))


def facts(runs: Sequence[RunRecord]) -> tuple[Rows, Rows]:
    """Returns two tables: facts that are equal in all runs, with one value each, and facts that differ."""
    rows = _rows([run.facts for run in runs])
    return [(name, values[:1]) for name, values in rows if len({*values}) == 1], _different(rows)


def missing_facts(runs: Sequence[RunRecord]) -> list[Note]:
    """Returns a note for each run without facts, and for each run without a configuration."""
    notes = []
    for run in runs:
        if not run.facts:
            why = run.lacks or "its checkpoint has none"
            notes.append(Note(run.says("facts of the run"), why, "fit keeps them in every checkpoint"))
        if not run.config_text:
            notes.append(Note(run.says("configuration"), f"there is no {CONFIG}", "fit writes it"))
    return notes


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:  # Any: what YAML can hold
    """Flattens a configuration to dotted keys and texts of their values, without null values.

    Example:
        >>> flat({"data": {"train": "a.txt", "columns": None}, "views": [{"class_path": "a.Crop"}]})
        {'data.train': 'a.txt', 'views': '[Crop()]'}
    """
    texts: dict[str, str] = {}
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            texts |= flat(value, f"{prefix}{name}.")
        elif value is not None:
            texts[f"{prefix}{name}"] = value if isinstance(value, str) else describe_spec(value)
    return texts


def _rows(columns: Sequence[Mapping[str, str]], absent: str = "\u2013") -> Rows:
    names = dict.fromkeys(name for column in columns for name in column)
    return [(name, [column.get(name, absent) for column in columns]) for name in names]


def _different(rows: Rows) -> Rows:
    return [(name, values) for name, values in rows if len({*values}) > 1]


def _bootstrap(before: torch.Tensor, after: torch.Tensor, gold: torch.Tensor) -> PairedBootstrap:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about vectors that are all equal, whose correlation is 0
        draws = torch.Generator().manual_seed(SEED)
        return paired_bootstrap_spearman(before, after, target=gold, generator=draws)


def _judged(difference: PairedBootstrap, better: str, worse: str) -> str:
    low, high = difference.interval()
    return better if low > 0 else worse if high < 0 else "No difference that these pairs can show"


def _interval(difference: PairedBootstrap) -> str:
    change, low, high = (number(100 * value, "+.2f") for value in (difference.difference, *difference.interval()))
    return f"{change} ({low} to {high})"


def _file_name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _class(part: Any) -> str:  # Any: a part of a configuration, a class path or a dictionary around one
    path = part.get("class_path", "") if isinstance(part, Mapping) else part or ""
    return str(path).rpartition(".")[2]


def _objective(part: Any) -> str:  # Any: as above
    loss = (part.get("init_args") or {}).get("loss") if isinstance(part, Mapping) else None
    return f"{_class(part)}({_class(loss)})" if loss else _class(part)


def _views(plan: Mapping[str, Any]) -> str:  # Any: as above
    chains = {role: chain for role, chain in plan.items() if isinstance(chain, list) and chain}
    texts = [f"{role}: {' → '.join(map(_class, chain))}" for role, chain in chains.items()]
    return "; ".join(texts) or ("views by task" if plan else "no views")
