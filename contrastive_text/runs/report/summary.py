"""Summary of runs: main figures, the gain of training on held-out pairs, configurations and facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from contrastive_text.core.config.specs import describe_spec
from contrastive_text.core.storage.checkpoints import BestCheckpointState, RowScores
from contrastive_text.evaluation.cached import CachedEncoder
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.metrics.verdict import Verdict, compare_rows, is_comparable, verdicts
from contrastive_text.runs.report.charts import TIMES_100, Note, number
from contrastive_text.runs.report.material import Material, Space, gold_scores, pair_cosines
from contrastive_text.runs.report.runs import CONFIG, LOSS, RunRecord

Rows = list[tuple[str, list[str]]]
"""Rows of a table of runs: a name, and a value for each run."""


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


class Judgments(NamedTuple):
    """First lines of the report page.

    Args:
        title: Scores and rows that are compared.
        lines: A line for each score of each run, then comparisons with the first run.
    """

    title: str = ""
    lines: Sequence[Judgment] = ()


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


def doubts(spaces: Sequence[Space]) -> list[str]:
    """Returns the warnings of ``diagnose`` on the vectors of each run."""
    measured = [(space.run, space.diagnosis) for space in spaces if space.diagnosis is not None]
    return [run.says(words) for run, diagnosis in measured for words in diagnosis.warnings]


def judgments(
    runs: Sequence[RunRecord],
    spaces: Sequence[Space],
    material: Material,
    device: str | None = None,
    named_pairs: bool = False,
) -> Judgments:
    """Compares the kept weights of each run with its initial weights, and with the first run.

    The values of held-out rows come from the checkpoints. If a run has none, or if the user names pairs, models
    are scored on the scored pairs of the page.

    Args:
        runs: Runs of the page.
        spaces: Vectors of the runs.
        material: Texts and pairs of the page.
        device: Device that embeds.
        named_pairs: Whether the user has named a file of pairs.
    """
    best = {run.name: run.checkpoint.best for run in runs if run.checkpoint is not None}
    by_run = {name: verdicts(state) for name, state in best.items()}
    if spaces and material.pairs is not None and (named_pairs or not all(by_run.get(run.name) for run in runs)):
        return Judgments(f"Spearman {TIMES_100} on {material.pairs_source}", _of_pairs(spaces, material, device))
    lines = [
        Judgment(run.says(""), verdict.answer, f"{verdict.scores()} {verdict.interval}")
        for run in runs
        for verdict in by_run.get(run.name, ())
    ]
    first = runs[0].name
    for run in runs[1:]:
        names = best[first].rows if {first, run.name} <= best.keys() else ()
        lines += [_between(run.name, first, best[first], best[run.name], name) for name in names]
    return Judgments("Validation before the first step and with the kept weights", lines)


def _between(
    name: str, first: str, before: BestCheckpointState, after: BestCheckpointState, score: str
) -> Judgment:
    """Compares a score of two runs, if both were validated on the same rows."""
    pair = f"{name} against {first}"
    if before.validated != after.validated or not is_comparable(before.rows[score], after.rows.get(score)):
        return Judgment("", "", f"{pair}: {score} is of other rows")
    verdict = compare_rows(score, before.rows[score], after.rows[score])
    scores = verdict.scores(f"of {first}", f"of {name}")
    return Judgment("", "", f"{pair}: {verdict.words('better', 'worse')}. {scores} {verdict.interval}")


def _of_pairs(spaces: Sequence[Space], material: Material, device: str | None) -> list[Judgment]:
    lines = []
    for space in spaces:
        verdict = gain(space, material, device)
        if isinstance(verdict, str):
            lines.append(Judgment(space.run.says(""), "", f"The gain of training isn't known: {verdict}."))
            continue
        start = _file_name(str(_start(space.run)))
        figures = f"{verdict.scores(f'before ({start})', 'after')} {verdict.interval}"
        lines.append(Judgment(space.run.says(""), verdict.answer, figures))
    first = spaces[0]
    for space in spaces[1:]:
        verdict = _compare_cosines(first.cosines, space.cosines, material)
        pair = f"{space.run.name} against {first.run.name}"
        lines.append(Judgment("", "", f"{pair}: {verdict.words('better', 'worse')}. {verdict.interval}"))
    return lines


def _start(run: RunRecord) -> str:
    """Returns the folder or hub name of a run's initial weights; empty if they are random or unknown."""
    encoder: Any = (run.config.get("model") or {}).get("encoder")  # Any: a part of a configuration
    arguments = (encoder.get("init_args") or {}) if isinstance(encoder, dict) else {}
    return "" if arguments.get("config") else str(arguments.get("model_name_or_path") or "")


def gain(space: Space, material: Material, device: str | None = None) -> Verdict | str:
    """Scores a run's initial weights on the scored pairs, with the pooler of the trained model.

    Returns:
        Comparison with the trained model, or the reason why it isn't known.
    """
    start = _start(space.run)
    if material.pairs is None or not start:
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
    return _compare_cosines(before, space.cosines, material)


def _compare_cosines(before: Tensor, after: Tensor, material: Material) -> Verdict:
    """Compares the Spearman correlations of two models on the scored pairs of the page."""
    assert material.pairs is not None
    gold = gold_scores(material.pairs).double()
    first, second = ({"pairs": RowScores(cosines.double(), gold)} for cosines in (before, after))
    return compare_rows("Spearman", first, second)


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
