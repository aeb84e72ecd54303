"""Charts: drawn once, given as SVG for the page, in its theme and with real text, and as PNG for elsewhere."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from contrastive_text.core.libraries import require
from contrastive_text.runs.report.markup import Html, tag
from contrastive_text.runs.report.runs import RunRecord
from contrastive_text.runs.report.style import LIGHT, dashes, series, variable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 352, 236
"""Size of a chart in CSS pixels: the width of a phone, where its letters keep their size."""
_LETTERS = 11.5
_DENSITY = 144
"""Dots per inch of the picture, of which 72 are one per CSS pixel."""
_SETTINGS = {
    "axes.edgecolor": LIGHT["rule"],
    "axes.facecolor": LIGHT["paper"],
    "axes.grid": True,
    "axes.labelcolor": LIGHT["muted"],
    "axes.labelsize": _LETTERS,
    "axes.axisbelow": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": _LETTERS,
    "axes.xmargin": 0.03,
    "figure.facecolor": LIGHT["paper"],
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": _LETTERS,
    "grid.color": LIGHT["rule"],
    "grid.linewidth": 0.6,
    "legend.fontsize": _LETTERS,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
    "savefig.facecolor": LIGHT["paper"],
    "svg.fonttype": "none",
    "text.color": LIGHT["ink"],
    "text.parse_math": False,
    "xtick.color": LIGHT["rule"],
    "xtick.labelcolor": LIGHT["muted"],
    "xtick.labelsize": _LETTERS,
    "ytick.color": LIGHT["rule"],
    "ytick.labelcolor": LIGHT["muted"],
    "ytick.labelsize": _LETTERS,
}


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing.

    Args:
        name: Of its picture's file, without suffix.
        title: What it shows.
        note: What there is to be seen, in a sentence or two, also for those who don't see it.
        svg: For the page.
        png: The same in the light theme, two dots per CSS pixel.
    """

    name: str
    title: str
    note: str
    svg: Html
    png: bytes

    @property
    def figure(self) -> Html:
        """The chart with its title and its note, as a figure of the page."""
        return tag("figure", tag("figcaption", tag("h3", self.title), tag("p", self.note)), self.svg)


def draw(
    name: str,
    title: str,
    note: str,
    paint: Callable[[Figure], None],
    width: int = WIDTH,
    height: int = HEIGHT,
) -> Chart:
    """Draws a chart.

    The same drawing has the same bytes whenever it is made, without a date or a library's name in it.

    Args:
        name: Of its picture's file, without suffix; another for each chart of a page.
        title: What it shows.
        note: What there is to be seen, in a sentence or two.
        paint: Paints on an empty figure with colours of ``style.LIGHT``, which the page turns into its theme's.
        width: In CSS pixels.
        height: In CSS pixels.

    Raises:
        ImportError: matplotlib isn't installed.
    """
    matplotlib = require("matplotlib", "report")
    figures = require("matplotlib.figure", "report")
    with matplotlib.rc_context({**_SETTINGS, "svg.hashsalt": name}):
        figure = figures.Figure(figsize=(width / 72, height / 72), dpi=72, layout="constrained")
        paint(figure)
        svg, png = io.StringIO(), io.BytesIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing")  # of a name, in the picture only
            figure.savefig(svg, format="svg", metadata=nothing)
            figure.savefig(png, format="png", dpi=_DENSITY, metadata={"Software": None})
    return Chart(name, title, note, _inline(svg.getvalue(), name, title, note), png.getvalue())


def legend(axes: Axes, runs: Sequence[RunRecord]) -> None:
    """Adds the names of runs, in their colours, above the axes; one that is alone needs none."""
    if all(run.alone for run in runs):
        return
    lines = require("matplotlib.lines", "report")
    marks = [lines.Line2D([], [], linewidth=3, **line_of(run)) for run in runs]
    shown = [run.name if len(run.name) < 24 else f"…{run.name[-22:]}" for run in runs]
    figure = axes.get_figure()
    assert figure is not None
    options = {"handlelength": 1.9, "handletextpad": 0.5, "columnspacing": 1.2, "borderaxespad": 0.2}
    figure.legend(marks, shown, loc="outside upper left", ncols=2, **options)


def line_of(run: RunRecord) -> dict[str, Any]:  # Any: what matplotlib takes
    """Returns the colour of a run's lines, and their dashes, which tell them apart on grey paper too."""
    return {"color": series(run.number), "linestyle": dashes(run.number)}


def _inline(svg: str, name: str, title: str, note: str) -> Html:
    """Returns matplotlib's SVG as part of a page: no header, one set of names, the page's letters and colours."""
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<[^>]*>", _cleaned, svg[svg.index("<svg") :])
    svg = re.sub(r">\s+<", "><", svg).strip()
    box = re.search(r'viewBox="([^"]*)"', svg)
    assert box is not None
    spoken = tag("title", title, id=f"{name}-title") + tag("desc", note, id=f"{name}-desc")
    opening = f'<svg viewBox="{box[1]}" role="img" aria-labelledby="{name}-title {name}-desc">'
    return Html(opening + spoken + svg[svg.index(">") + 1 :])


def _cleaned(found: re.Match[str]) -> str:
    """Returns a tag of matplotlib's without what the page has itself; its texts, outside of tags, stay."""
    cleaned = re.sub(r' id="[a-z0-9.]+_\d+"', "", found[0])
    cleaned = cleaned.replace("xlink:href", "href")
    cleaned = re.sub(r"font-family: [^;\"]*;? ?", "", cleaned)
    cleaned = re.sub(r"(font: [^;\"]*px) [^;\"]*", r"\1 system-ui, sans-serif", cleaned)  # matplotlib 3.8
    cleaned = re.sub(r"(\.\d\d)\d+", r"\1", cleaned)  # a hundredth of a pixel is enough
    cleaned = re.sub(r" transform=\"rotate\(-0 [^\"]*\"", "", cleaned)
    return re.sub(r"#[0-9a-f]{6}\b", lambda colour: variable(colour[0]), cleaned).replace("\n", " ")
