"""Report page of one run, or of several side by side: one HTML file, and its charts as PNG files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage.disk import atomic_file, lock_output
from contrastive_text.runs.report.charts import STYLE_SHEET, Chart, Note
from contrastive_text.runs.report.curves import training
from contrastive_text.runs.report.material import FILES_REMEDY, Space, embed, gather, read_run_files
from contrastive_text.runs.report.runs import RunRecord, read_runs
from contrastive_text.runs.report.summary import (
    differences,
    doubts,
    facts,
    judgments,
    main_figures,
    missing_facts,
    summarize,
)
from contrastive_text.runs.report.text_map import NEIGHBORS, text_map
from contrastive_text.runs.report.vectors import figures, geometry, similarity

PAGE = "report.html"


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
        "doubts": doubts(spaces),
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
