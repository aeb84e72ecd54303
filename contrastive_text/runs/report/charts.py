"""Charts of the report page, drawn by matplotlib: SVG in the colors of the page's theme, and a PNG file."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

from contrastive_text.core.libraries import require
from contrastive_text.runs.report.runs import RunRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 352, 236
"""Size of a chart in CSS pixels, as wide as a phone, so that text isn't scaled down."""
TIMES_100 = "\u00d7 100"
"""Suffix of the title of a chart whose scores are multiplied by 100."""
STYLE_SHEET = files(__package__).joinpath("page.css").read_text(encoding="utf-8")
COLORS: dict[str, str] = dict(re.findall(r"--([\w-]+): (#\w{6})", STYLE_SHEET.partition("@media")[0]))
"""Name of a color -> hex value in the light theme, in which charts are drawn."""
_DASHES = ("solid", (0, (4, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)), (0, (2.5, 1)), (0, (8, 2)))
"""Line style of each run in a chart, by which runs differ without color."""
_SETTINGS = {
    "axes.axisbelow": True,
    "axes.edgecolor": COLORS["rule"],
    "axes.grid": True,
    "axes.labelcolor": COLORS["muted"],
    "axes.labelsize": "medium",
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.xmargin": 0.03,
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 11.5,
    "grid.color": COLORS["rule"],
    "grid.linewidth": 0.6,
    "legend.fontsize": "medium",
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "svg.fonttype": "none",
    "text.color": COLORS["ink"],
    "text.parse_math": False,
    "xtick.color": COLORS["rule"],
    "xtick.labelcolor": COLORS["muted"],
    "ytick.color": COLORS["rule"],
    "ytick.labelcolor": COLORS["muted"],
}


class Chart(NamedTuple):
    """Chart of the report page, as SVG and PNG.

    Args:
        name: Stem of the PNG file, different for each chart of a page.
        title: Title of the chart.
        note: One or two sentences that describe the chart, also for readers who don't see it.
        width: Width in CSS pixels.
        height: Height in CSS pixels.
        svg: Content of the SVG element.
        png: The chart in the light theme, with two dots per CSS pixel.
    """

    name: str
    title: str
    note: str
    width: int
    height: int
    svg: str
    png: bytes


class Note(NamedTuple):
    """Note on the report page in place of a chart that can't be drawn.

    Args:
        what: Name of the missing figure.
        why: The reason.
        remedy: How to get the figure.
    """

    what: str
    why: str
    remedy: str


def draw(
    name: str,
    title: str,
    note: str,
    paint: Callable[[Axes], None],
    runs: Sequence[RunRecord] = (),
    height: int = HEIGHT,
) -> Chart:
    """Draws a chart of the report page as SVG and PNG. The same input gives the same bytes.

    Args:
        name: Stem of the PNG file, different for each chart of a page.
        title: Title of the chart.
        note: One or two sentences that describe the chart.
        paint: Paints on empty axes with colors of ``COLORS``; the page replaces them by those of its theme.
        runs: Runs in the legend. A single run has no legend.
        height: Height in CSS pixels.

    Raises:
        ImportError: matplotlib isn't installed.
    """
    matplotlib, figures = require("matplotlib", "report"), require("matplotlib.figure", "report")
    svg, png = io.StringIO(), io.BytesIO()
    with matplotlib.rc_context({**_SETTINGS, "svg.hashsalt": name}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # of a run's name, in the PNG file only
        figure = figures.Figure(figsize=(WIDTH / 72, height / 72), dpi=72, layout="constrained")
        axes = figure.subplots()
        paint(axes)
        if any(not run.alone for run in runs):
            marks = [axes.plot([], [], **line_of(run), linewidth=3)[0] for run in runs]
            names = [run.name if len(run.name) < 24 else f"…{run.name[-22:]}" for run in runs]
            options = {"handlelength": 1.9, "handletextpad": 0.5, "columnspacing": 1.2, "borderaxespad": 0.2}
            figure.legend(marks, names, loc="outside upper left", ncols=2, **options)
        figure.savefig(svg, format="svg")
        figure.savefig(png, format="png", dpi=144, metadata={"Software": None})
    return Chart(name, title, note, WIDTH, height, _inline(svg.getvalue()), png.getvalue())


def color_of(number: int) -> str:
    """Returns the color of a run or of a group of texts, counted from 0.

    Example:
        >>> color_of(0)
        '#2b5fc7'
    """
    return COLORS[f"series-{number + 1}"]


def line_of(run: RunRecord) -> dict[str, Any]:  # Any: matplotlib's options
    """Returns matplotlib's options for the color and the line style of a run."""
    return {"color": color_of(run.number), "linestyle": _DASHES[run.number]}


def number(value: float | None, form: str) -> str:
    """Formats a number with a typographic minus sign, and without an exponent below a billion; ``n/a`` for None.

    Example:
        >>> number(3.2381, ".2f"), number(4357.2, ".3g"), number(None, ".2f")
        ('3.24', '4,357', 'n/a')
    """
    if value is None:
        return "n/a"
    text = format(value, form)
    return (f"{value:,.0f}" if "e+" in text and abs(value) < 1e9 else text).replace("-", "\u2212")


def _inline(svg: str) -> str:
    """Returns the content of matplotlib's SVG with the page's font and colors, and without repeated ids."""
    svg = svg[svg.index('<g id="figure_1"') : svg.rindex("</svg>")]
    variables = {value: f"var(--{name})" for name, value in COLORS.items()}

    def cleaned(tag: re.Match[str]) -> str:
        text = re.sub(r' id="[a-z0-9.]+_\d+"|font-family: [^;"]*;? ?', "", tag[0])
        text = re.sub(r"(\.\d\d)\d+", r"\1", text)  # a hundredth of a pixel is enough
        return re.sub(r"#\w{6}\b", lambda color: variables.get(color[0], color[0]), text)

    return re.sub(r"<[^>]*>", cleaned, svg)  # a ">" in a text is written "&gt;"
