"""Figures of a sweep: a heat map of two keys, or points with error bars of one."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Sequence
from typing import Any, Literal

from contrastive_text.core.libraries import require

_COLORS = "viridis"
_SETTINGS = {
    "svg.hashsalt": "contrastive-text",
    "svg.fonttype": "path",
    "pdf.fonttype": 42,  # TrueType: publishers refuse matplotlib's default, Type 3
    "font.family": "DejaVu Sans",
}
_METADATA: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
"""Image metadata to omit, because they would change the bytes of a figure from day to day."""
_DARK = 0.55
"""Position on the color map viridis below which white text has more contrast than black text (WCAG 2.1)."""
_LINE = 44
"""Largest number of letters in a line of a label. The narrowest figure then has room for points."""


def heat_map(
    means: Sequence[Sequence[float]],
    sds: Sequence[Sequence[float]],
    rows: Sequence[str],
    columns: Sequence[str],
    names: tuple[str, str],
    title: str,
) -> Any:  # Any: a Figure of a library that not every user has
    """Draws a heat map of mean scores, as in ConSERT's figure of two alterations (Yan et al. 2021).

    Args:
        means: Mean score of each row and column; a NaN is drawn as a gray cell.
        sds: Standard deviations of the scores, in small letters; NaN for none.
        rows: Labels from top to bottom.
        columns: Labels from left to right.
        names: Titles of the vertical and of the horizontal axis.
        title: Title of the figure.

    Raises:
        ImportError: matplotlib isn't installed.

    Example:
        >>> figure = heat_map([[70.0, 71.0]], [[0.5, math.nan]], ["none"], ["none", "crop"], ("a", "b"), "score")
        >>> [text.get_text() for text in figure.axes[0].texts]
        ['70.00', '± 0.50', '71.00']
    """
    figure = _figure(width=2.8 + 1.15 * len(columns), height=1.9 + 0.72 * len(rows))
    axes = figure.add_subplot()
    colors = require("matplotlib", "sweep")
    map_ = colors.colormaps[_COLORS].with_extremes(bad="lightgray")
    finite = [mean for row in means for mean in row if not math.isnan(mean)]
    scale = colors.colors.Normalize(min(finite, default=0.0), max(finite, default=1.0))
    image = axes.imshow([[*row] for row in means], cmap=map_, norm=scale, aspect="auto")
    for y, row in enumerate(means):
        for x, mean in enumerate(row):
            color = "white" if scale(mean) < _DARK else "black"  # black for NaN too
            sd = sds[y][x]
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


def points(
    means: Sequence[float], sds: Sequence[float], labels: Sequence[str], name: str, title: str
) -> Any:  # Any: a Figure of a library that not every user has
    """Draws the mean score of each label as a point with an error bar of its standard deviation.

    Args:
        means: Mean scores; a label with NaN has no point.
        sds: Standard deviations; NaN for none.
        labels: Labels from top to bottom.
        name: Title of the vertical axis.
        title: Title of the figure.

    Raises:
        ImportError: matplotlib isn't installed.

    Example:
        >>> figure = points([70.0, 71.0], [0.5, 0.4], ["none", "crop"], "view", "score")
        >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
        ['none', 'crop']
    """
    figure = _figure(width=6.4, height=1.2 + 0.4 * len(labels))
    axes = figure.add_subplot()
    bars = [0.0 if math.isnan(sd) else sd for sd in sds]
    axes.errorbar([*means], range(len(labels)), xerr=bars, fmt="o", capsize=4, color="#31688e")  # viridis at 1/3
    axes.set_yticks(range(len(labels)), _broken(labels), fontsize=8)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set_ylabel(name, fontsize=8)
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(axis="x", alpha=0.3)
    axes.set_title(title, fontsize=10)
    return figure


def picture(figure: Any, kind: Literal["png", "svg", "pdf"]) -> bytes:  # Any: see above
    """Renders a figure as PNG, SVG or PDF bytes. The same figure gives the same bytes.

    Example:
        >>> picture(points([70.0], [0.5], ["none"], "view", "score"), "png")[:4]
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
