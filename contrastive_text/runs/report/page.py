"""The page of a run, or of several side by side: one HTML file that needs no other, and its charts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage.disk import alone_with, replacing
from contrastive_text.runs.report.curves import training
from contrastive_text.runs.report.markup import Html, Note, tag
from contrastive_text.runs.report.material import gather
from contrastive_text.runs.report.provenance import head, provenance
from contrastive_text.runs.report.run_parts import read_run_parts
from contrastive_text.runs.report.runs import RunRecord, read_runs
from contrastive_text.runs.report.samples import samples
from contrastive_text.runs.report.section import Section
from contrastive_text.runs.report.space import Space, embed, geometry, pairs
from contrastive_text.runs.report.style import script, style_sheet
from contrastive_text.runs.report.text_map import lay_out, maps, neighbours
from contrastive_text.runs.report.verdict import verdict

PAGE = "report.html"


def write_report(
    runs: Sequence[str | Path],
    output: str | Path | None = None,
    pairs_file: str | Path | None = None,
    texts_file: str | Path | None = None,
    limit: int = 1000,
    device: str | None = None,
) -> Path:
    """Writes the page of one run, or of several side by side, and its charts as PNG files beside it.

    What a run has left gives the page: configuration, ``metrics.csv``, checkpoint and saved model. What isn't
    there is named on the page, with what would bring it. The same runs give the same bytes.

    Args:
        runs: Folders of runs, or folders with one run inside.
        output: Folder of the page; None for ``report`` in the run's folder, or, of several, in the working
            directory.
        pairs_file: Scored pairs in place of the first run's validation file.
        texts_file: Texts in place of the first run's training files.
        limit: Texts, and pairs, that are embedded at most; of more some are drawn.
        device: Where to embed; None for the GPU if there is one.

    Returns:
        The page.

    Raises:
        FileNotFoundError: A folder or a named file that isn't there.
        ImportError: matplotlib isn't installed.
        ValueError: A folder that holds no run, or several; a damaged checkpoint; a named file that can't be read.
    """
    found = read_runs(runs)
    folder = Path(output or (found[0].folder / "report" if found[0].alone else "report"))
    if folder.exists() and not folder.is_dir():
        raise InvalidValueError(f"report.output: expected a folder, got the file {folder}; name another")
    with alone_with(folder):
        sections, top = _sections(found, pairs_file, texts_file, limit, device)
        folder.mkdir(parents=True, exist_ok=True)
        for chart in (chart for section in sections for chart in section.charts):
            with replacing(folder / f"{chart.name}.png") as file:
                file.write(chart.png)
        page = _page(found, top, sections)
        with replacing(folder / PAGE) as file:
            file.write(page.encode(errors="replace"))
    return folder / PAGE


def _sections(
    runs: Sequence[RunRecord],
    pairs_file: str | Path | None,
    texts_file: str | Path | None,
    limit: int,
    device: str | None,
) -> tuple[list[Section], Html]:
    parts = {run.name: read_run_parts(run) for run in runs}
    material = gather(parts, pairs_file, texts_file, limit)
    embedded = [embed(run, material, device) for run in runs]
    spaces = [space for space in embedded if isinstance(space, Space)]
    notes = [note for note in embedded if isinstance(note, Note)]
    layout = lay_out(spaces, material.texts) if spaces else None
    sections = [
        training(runs),
        pairs(spaces, notes, material),
        geometry(spaces, notes),
        maps(spaces, notes, layout),
        neighbours(spaces, notes, material.texts, layout),
        samples(runs, parts),
        provenance(runs),
    ]
    return sections, head(runs, spaces, verdict(spaces, material, device))


def _page(runs: Sequence[RunRecord], top: Html, sections: Sequence[Section]) -> str:
    title = " and ".join(run.name for run in runs)
    links = [tag("li", tag("a", section.title, href=f"#{section.name}")) for section in sections]
    meta = [
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("link", rel="icon", href="data:,"),
        tag("title", f"{title}: training report"),
        tag("style", Html(style_sheet())),
    ]
    body = [
        top,
        tag("nav", tag("ul", *links), aria_label="Sections"),
        tag("main", *(section.markup for section in sections)),
        tag("script", Html(script())),
    ]
    return f"<!doctype html>\n{tag('html', tag('head', *meta), tag('body', *body), lang='en')}\n"
