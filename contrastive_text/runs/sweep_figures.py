"""Figures of a sweep: a heat map of two keys, or points with error bars of one."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from contrastive_text.core.libraries import require
from contrastive_text.core.storage.disk import atomic_file
from contrastive_text.core.terminal import print_message
from contrastive_text.runs.sweep_table import Spread, SweepTable

_COLORS = "viridis"
_SETTINGS = {
    "svg.hashsalt": "contrastive-text",
    "svg.fonttype": "path",
    "pdf.fonttype": 42,  # TrueType: publishers refuse matplotlib's default, Type 3
    "font.family": "DejaVu Sans",
}
_METADATA: Mapping[str, Mapping[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
"""Format of a figure -> metadata to omit, because they would change the bytes from day to day."""
_DARK = 0.55
"""Position on the color map viridis below which white text has more contrast than black text (WCAG 2.1)."""
_TITLE = 40
"""Largest number of letters in a line of a title. The narrowest figure has room for that many."""
_LINE = 44
"""Largest number of letters in a line of a label. The narrowest figure then has room for points."""


def draw(table: SweepTable, folder: Path) -> None:
    """Draws the first report of a table: points for a grid of one key, a heat map for two keys, else nothing.

    If matplotlib isn't installed, a note is printed instead.
    """
    column = table.columns()[0]
    scores = {cell.labels: column.spread(cell) for cell in table.cells}
    over = f", mean ± sd over {len(table.seeds)} seeds" if len(table.seeds) > 1 else ""
    title = textwrap.fill(f"{column.report.title}{over}", _TITLE)
    try:
        if len(table.axes) == 1:
            name, figure = "points", points({label: scores[label,] for (label,) in scores}, table.axes[0], title)
        elif len(table.axes) == 2:
            pairs = {(row, across): spread for (row, across), spread in scores.items()}
            name, figure = "heat_map", heat_map(pairs, table.axes, title)
        else:
            return
    except ImportError as error:
        print_message(f"note: no figure: {error}")
        return
    for kind in _METADATA:
        with atomic_file(folder / f"{name}.{kind}") as file:
            file.write(picture(figure, kind))


def heat_map(
    scores: Mapping[tuple[str, str], Spread], names: Sequence[str], title: str
) -> Any:  # Any: a Figure of a library that not every user has
    """Draws a heat map of mean scores, as in ConSERT's figure of two alterations (Yan et al. 2021).

    Args:
        scores: Row and column -> mean score with its standard deviation, which is drawn in small letters. A mean
            of NaN is drawn as a gray cell.
        names: Titles of the vertical and of the horizontal axis.
        title: Title of the figure.

    Raises:
        ImportError: matplotlib isn't installed.

    Example:
        >>> scores = {("none", "none"): Spread(70.0, 0.5), ("none", "crop"): Spread(71.0, math.nan)}
        >>> figure = heat_map(scores, ["a", "b"], "score")
        >>> [text.get_text() for text in figure.axes[0].texts]
        ['70.00', '± 0.50', '71.00']
    """
    rows, columns = (list(dict.fromkeys(labels)) for labels in zip(*scores, strict=True))
    figure = _figure(width=2.8 + 1.15 * len(columns), height=1.9 + 0.72 * len(rows))
    axes = figure.add_subplot()
    colors = require("matplotlib", "sweep")
    map_ = colors.colormaps[_COLORS].with_extremes(bad="lightgray")
    finite = [spread.mean for spread in scores.values() if not math.isnan(spread.mean)]
    scale = colors.colors.Normalize(min(finite, default=0.0), max(finite, default=1.0))
    means = [[scores[row, column].mean for column in columns] for row in rows]
    image = axes.imshow(means, cmap=map_, norm=scale, aspect="auto")
    for (row, column), (mean, sd) in scores.items():
        x, y = columns.index(column), rows.index(row)
        color = "white" if scale(mean) < _DARK else "black"  # black for NaN too
        text = "n/a" if math.isnan(mean) else f"{mean:.2f}"
        style = {"ha": "center", "color": color}
        axes.text(x, y, text, va="center" if math.isnan(sd) else "bottom", fontsize=10, **style)
        if not math.isnan(sd):
            axes.text(x, y + 0.08, f"± {sd:.2f}", va="top", fontsize=7, **style)
    axes.set_xticks(range(len(columns)), _broken(columns), rotation=30, ha="right", fontsize=8)
    axes.set_yticks(range(len(rows)), _broken(rows), fontsize=8)
    axes.set_ylabel(names[0], fontsize=8)
    axes.set_xlabel(names[1], fontsize=8)
    axes.set_title(title, fontsize=10)
    figure.colorbar(image).ax.tick_params(labelsize=8)
    return figure


def points(scores: Mapping[str, Spread], name: str, title: str) -> Any:  # Any: see above
    """Draws the mean score of each label as a point with an error bar of its standard deviation.

    Args:
        scores: Label -> mean score with its standard deviation, from top to bottom. A mean of NaN has no point.
        name: Title of the vertical axis.
        title: Title of the figure.

    Raises:
        ImportError: matplotlib isn't installed.

    Example:
        >>> figure = points({"none": Spread(70.0, 0.5), "crop": Spread(71.0, 0.4)}, "view", "score")
        >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
        ['none', 'crop']
    """
    figure = _figure(width=6.4, height=1.2 + 0.4 * len(scores))
    axes = figure.add_subplot()
    means = [spread.mean for spread in scores.values()]
    bars = [0.0 if math.isnan(spread.sd) else spread.sd for spread in scores.values()]
    axes.errorbar(means, range(len(scores)), xerr=bars, fmt="o", capsize=4, color="#31688e")  # viridis at 1/3
    axes.set_yticks(range(len(scores)), _broken([*scores]), fontsize=8)
    axes.set_ylim(len(scores) - 0.5, -0.5)
    axes.set_ylabel(name, fontsize=8)
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(axis="x", alpha=0.3)
    axes.set_title(title, fontsize=10)
    return figure


def picture(figure: Any, kind: str) -> bytes:  # Any: see above
    """Renders a figure as bytes of ``png``, ``svg`` or ``pdf``. The same figure gives the same bytes.

    Example:
        >>> picture(points({"none": Spread(70.0, 0.5)}, "view", "score"), "png")[:4]
        b'\\x89PNG'
    """
    file = io.BytesIO()
    with require("matplotlib", "sweep").rc_context(_SETTINGS):
        figure.savefig(file, format=kind, dpi=150, metadata=_METADATA[kind])
    return file.getvalue()


def _figure(width: float, height: float) -> Any:  # Any: see above
    """Returns an empty matplotlib figure that isn't registered in pyplot, so no window shows it."""
    return require("matplotlib.figure", "sweep").Figure(figsize=(width, height), layout="constrained")


def _broken(labels: Sequence[str]) -> list[str]:
    """Breaks labels into lines: one line for each view of a chain, and at most ``_LINE`` letters in a line.

    Example:
        >>> _broken(["CropTokens+FeatureCutoff(rate=0.3)"])
        ['CropTokens+\\nFeatureCutoff(rate=0.3)']
    """
    chains = [label.replace("+", "+\n").split("\n") for label in labels]
    return ["\n".join("\n".join(textwrap.wrap(view, _LINE)) for view in chain) for chain in chains]
