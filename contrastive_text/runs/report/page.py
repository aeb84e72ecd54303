"""Report page of one run, or of several side by side: one HTML file, and its charts as PNG files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from torch import Tensor

from contrastive_text.core.config.specs import flat_settings
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage.checkpoints import BestCheckpointState, RowScores
from contrastive_text.core.storage.disk import atomic_file, lock_output
from contrastive_text.evaluation.cached import CachedEncoder
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.metrics.verdict import Verdict, compare_rows, is_comparable, verdicts
from contrastive_text.runs.report.charts import STYLE_SHEET, TIMES_100, Chart, Note, number
from contrastive_text.runs.report.curves import training
from contrastive_text.runs.report.material import (
    FILES_REMEDY,
    Material,
    Space,
    embed,
    gather,
    gold_scores,
    pair_cosines,
    read_run_files,
)
from contrastive_text.runs.report.runs import CONFIG, LOSS, RunRecord, read_runs
from contrastive_text.runs.report.vectors import NEIGHBORS, figures, geometry, similarity, text_map

PAGE = "report.html"
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
    settings = [flat_settings(run.config) for run in runs]
    return _different(
        _rows([{name: value for name, value in each.items() if value != "null"} for each in settings])
    )


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


def write_report(
    runs: Sequence[str | Path],
    output: str | Path | None = None,
    pairs_file: str | Path | None = None,
    texts_file: str | Path | None = None,
    limit: int = 1000,
    device: str | None = None,
) -> Path:
    """Writes the report page of one run, or of several side by side, with its charts as PNG files.

    The page is made from the configuration, ``metrics.csv``, the checkpoint and the saved model. It names missing
    data, and how to get them. The same runs give the same bytes.

    Args:
        runs: Folders of runs or saved models, or folders that contain one run.
        output: Folder of the page. None for ``report`` in the run's folder or, for several runs, in the working
            directory.
        pairs_file: Scored pairs in place of the first run's validation file.
        texts_file: Texts in place of the first run's training files.
        limit: Largest number of texts, and of pairs; some are drawn if there are more.
        device: Device that embeds; None for the GPU if there is one.

    Returns:
        Path of the page.

    Raises:
        FileNotFoundError: A folder or a named file doesn't exist.
        ImportError: matplotlib isn't installed.
        ValueError: A folder contains no run, or several; a checkpoint is damaged; a named file can't be read.
    """
    records = read_runs(runs)
    folder = Path(output or (records[0].folder / "report" if records[0].alone else "report"))
    if folder.exists() and not folder.is_dir():
        raise InvalidValueError(f"report.output: expected a folder, got the file {folder}; name another")
    with lock_output(folder):
        context = _context(records, pairs_file, texts_file, limit, device)
        page = _environment().from_string(_resource("page.html")).render(context)
        folder.mkdir(parents=True, exist_ok=True)
        charts = [*context["training"], *context["similarity"], *context["geometry"]]
        charts += context["text_map"].charts if context["text_map"] else []
        for chart in charts:
            if isinstance(chart, Chart):
                with atomic_file(folder / f"{chart.name}.png") as file:
                    file.write(chart.png)
        with atomic_file(folder / PAGE) as file:
            file.write(page.encode(errors="replace"))
    return folder / PAGE


def _context(
    runs: Sequence[RunRecord],
    pairs_file: str | Path | None,
    texts_file: str | Path | None,
    limit: int,
    device: str | None,
) -> dict[str, Any]:  # Any: values of the template's variables
    files = {run.name: read_run_files(run) for run in runs}
    material = gather(files, pairs_file, texts_file, limit)
    embedded = [embed(run, material, device) for run in runs]
    spaces = [space for space in embedded if isinstance(space, Space)]
    measured = [(space.run, space.diagnosis) for space in spaces if space.diagnosis is not None]
    shared_facts, own_facts = facts(runs)
    return {
        "runs": runs,
        "names": [run.name for run in runs],
        "summarize": summarize,
        "material": material,
        "judgments": judgments(runs, spaces, material, device, named_pairs=pairs_file is not None),
        "main_figures": main_figures(runs, spaces),
        "differences": differences(runs),
        "training": training(runs),
        "spaces": spaces,
        "no_vectors": [note for note in embedded if isinstance(note, Note)],
        "similarity": similarity(spaces, material),
        "geometry": geometry(measured),
        "no_figures": [
            Note(space.run.says("figures"), space.lacks, FILES_REMEDY) for space in spaces if space.lacks
        ],
        "measured": measured,
        "measured_names": [run.name for run, _ in measured],
        "figures": figures(measured),
        "warnings": [run.says(words) for run, diagnosis in measured for words in diagnosis.warnings],
        "text_map": text_map(spaces, material.texts) if spaces else None,
        "most_neighbors": NEIGHBORS,
        "files": files,
        "shared_facts": shared_facts,
        "own_facts": own_facts,
        "missing_facts": missing_facts(runs),
        "style_sheet": STYLE_SHEET,
        "script": _resource("map.js"),
    }


def _environment() -> Environment:
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    environment.filters |= {"breakable": _breakable, "shortened": _shortened}
    return environment


def _breakable(text: str) -> Markup:
    """Returns HTML of a text whose long names and calls may break, for example after a bracket."""
    return Markup("<wbr>").join(re.split(r"(?<=[(=/_.])(?=[^\W\d])", text))


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1].rstrip()}…"


def _resource(name: str) -> str:
    return package_files(__package__).joinpath(name).read_text(encoding="utf-8")
