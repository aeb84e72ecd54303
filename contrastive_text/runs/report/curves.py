"""Charts of training curves: losses, learning rate, held-out scores, and alignment against uniformity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from contrastive_text.runs.report.charts import COLORS, TIMES_100, Chart, Note, color_of, draw, line_of, number
from contrastive_text.runs.report.runs import LOSS, METRICS, RunRecord, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PLANE = ("alignment", "uniformity")
_SCORES = ("spearman", "overall", "ndcg@10")
_WATCHED = {
    "guide_agreement": "Agreement with guides",
    "guide_cosine": "Cosine with the guide",
    "momentum_distance": "Distance of the momentum network",
}
"""Metric of an objective that is drawn in addition to the loss -> title of its chart."""


def training(runs: Sequence[RunRecord]) -> list[Chart | Note]:
    """Draws the charts of the metrics of runs, followed by a note for each kind of metric that no run has."""
    names = list(dict.fromkeys(name for run in runs for name in run.metrics))
    losses = [n for n in names if n.startswith("train/") and n.count("/") == 1 and n != "train/truncated"]
    if len(losses) == 2 and all(run.metrics.get(losses[0]) == run.metrics.get(losses[1]) for run in runs):
        losses.remove(LOSS)  # equal to the loss of a single objective with weight 1
    rates = [name for name in names if name.startswith("lr-")]
    watched = [n for n in names if n.startswith("train/") and n.rpartition("/")[2] in _WATCHED]
    held_out = [name for name in names if name.startswith("val/") and name[4:] not in _PLANE]
    held_out.sort(key=lambda name: (not _is_score(name), name.count("/"), name))
    probes = [name for name in names if name.startswith("probe/")]
    charts = [
        *[_curve(runs, name, _loss_title(name, losses)) for name in losses],
        *[_curve(runs, name, f"Learning rate: {name[3:]}") for name in rates],
        *[_curve(runs, name, f"{_WATCHED[_last(name)]}: {name[6:].rpartition('/')[0]}") for name in watched],
        *[_curve(runs, name, _held_out_title(name)) for name in held_out],
        *[_curve(runs, name, f"Probe: {name[6:].replace('_', ' ')}") for name in probes],
    ]
    places = ["val"] if all(f"val/{name}" in run.metrics for run in runs for name in _PLANE) else []
    places = places or [n.rpartition("/")[0] for n in names if n.startswith("train/") and _last(n) == "alignment"]
    paths = [_path(runs, place) for place in places]
    kinds = [
        ("Losses", losses, "train/*", "a run logs its losses every trainer.log_every_n_steps steps"),
        ("Learning rate", rates, "lr-*", "a LearningRateMonitor in trainer.callbacks logs it"),
        (
            "Validation scores",
            [name for name in held_out if _is_score(name) or _last(name) == "loss"],
            "val/*",
            "fit --data.validation PAIRS.tsv scores a run while it trains",
        ),
        (
            "Alignment and uniformity",
            places,
            "such figures",
            "a contrastive objective logs them, and so does a validation file of scored pairs",
        ),
    ]
    empty = ", ".join(run.name for run in runs if not run.metrics)
    notes = [
        Note(what, f"{empty} has no {METRICS}" if empty else f"{METRICS} has no {metrics}", remedy)
        for what, names_of_kind, metrics, remedy in kinds
        if not names_of_kind
    ]
    return [*charts, *paths, *notes]


def smoothed(values: Sequence[float], span: float) -> tuple[float, ...]:
    """Smooths a curve by exponential means, in which the newest value has the weight 2 / (span + 1).

    Example:
        >>> smoothed([1.0, 3.0, 3.0], span=1), smoothed([1.0, 4.0], span=3)
        ((1.0, 3.0, 3.0), (1.0, 3.0))
    """
    share = 2 / (span + 1)
    means, total, weight = [], 0.0, 0.0
    for value in values:
        total, weight = total + share * (value - total), weight + share * (1 - weight)
        means.append(total / weight)  # removes the pull towards the zero of the first total
    return tuple(means)


def _last(name: str) -> str:
    return name.rpartition("/")[2]


def _loss_title(name: str, losses: Sequence[str]) -> str:
    if name != LOSS:
        return f"Loss: {name[6:]}"
    return "Loss: all objectives" if len(losses) > 1 else "Loss"


def _held_out_title(name: str) -> str:
    return f"Validation: {name[4:].replace('_', ' ')}{f' {TIMES_100}' if _is_score(name) else ''}"


def _is_score(name: str) -> bool:
    """Returns whether a validation metric is the score of a file or a task, or a mean score; a loss is not."""
    return ("/" in name[4:] or name[4:] in _SCORES) and _last(name) != "loss"


def _curve(runs: Sequence[RunRecord], name: str, title: str) -> Chart:
    logged = [(run, run.metrics[name]) for run in runs if name in run.metrics]
    means = {run.name: smoothed(points.values, _span(points)) for run, points in logged}
    limits = _limits([points.values for _, points in logged]) if name.startswith("train/") else None
    best = {run.name: _kept(run, points) if name.startswith("val/") else None for run, points in logged}

    def paint(axes: Axes) -> None:
        axes.locator_params(nbins=5)
        axes.locator_params(axis="x", integer=True)
        for run, points in logged:
            if _span(points) > 1:
                axes.plot(points.steps, points.values, color=color_of(run.number), alpha=0.22, linewidth=0.9)
            dots = "." if len(points.values) < 25 else None
            axes.plot(points.steps, means[run.name], marker=dots, markersize=6, **line_of(run))
            _ring(axes, run, points.steps, points.values, best[run.name])
        axes.set(xlabel="step", ylim=limits)

    changes = {run.name: _change(points, means[run.name], best[run.name]) for run, points in logged}
    note = _sentence(runs, changes)
    if limits is not None:
        highest = number(max(max(points.values) for _, points in logged), ".4g")
        note += f" The first steps, up to {highest}, are above the chart."
    return draw(name.replace("/", "-"), title, note, paint, runs)


def _span(points: Series) -> float:
    """Returns the span of a curve's smoothing: 1 / 25 of its points, or 1 (none) for up to 25 points."""
    return len(points.values) / 25 if len(points.values) > 25 else 1.0


def _limits(curves: Sequence[Sequence[float]]) -> tuple[float, float] | None:
    """Returns limits of a loss axis that cut off a high beginning; None if all values fit.

    Example:
        >>> _limits([[9.0, *([1.0, 2.0] * 15)]])
        (0.9, 2.1)
        >>> _limits([[2.5, *([1.0, 2.0] * 15)]]), _limits([[9.0, 1.0, 2.0]])
        (None, None)
    """
    if max(map(len, curves)) <= 25:
        return None
    later = [value for values in curves for value in values[-(-len(values) // 10) :]]
    low, high = min(later), max(later)
    margin = 0.1 * (high - low)
    beyond = max(map(max, curves)) > 2 * high - low
    return (min(low, *map(min, curves)) - margin, high + margin) if beyond and margin else None


def _path(runs: Sequence[RunRecord], place: str) -> Chart:
    """Draws the path of each run in the plane of uniformity and alignment, from an open to a full circle."""
    paths: list[tuple[RunRecord, tuple[float, ...], tuple[float, ...], Series]] = []
    for run in runs:
        down, across = (run.metrics.get(f"{place}/{name}") for name in _PLANE)
        if down is not None and across is not None:
            # A batch is a small sample; validation pairs are always the same.
            span = 1.0 if place == "val" else max(3.0, len(down.values) / 25)
            paths.append((run, smoothed(across.values, span), smoothed(down.values, span), across))

    def paint(axes: Axes) -> None:
        axes.locator_params(nbins=5)
        axes.margins(0.12)
        axes.set(xlabel="uniformity", ylabel="alignment")
        for run, x, y, points in paths:
            axes.plot(x, y, alpha=0.7, **line_of(run))
            for end, face in ((0, COLORS["paper"]), (-1, color_of(run.number))):
                color = color_of(run.number)
                axes.plot(x[end], y[end], "o", markersize=9, markerfacecolor=face, color=color)
            _ring(axes, run, x, y, _kept(run, points) if place == "val" else None)
        axes.text(0.02, 0.03, "↙ better", transform=axes.transAxes, color=COLORS["muted"])

    def point(x: float, y: float) -> str:
        return f"({number(x, '.3g')}, {number(y, '.3g')})"

    ends = {run.name: f"from {point(x[0], y[0])} to {point(x[-1], y[-1])}" for run, x, y, _ in paths}
    source = "validation pairs" if place == "val" else f"training batches of {place[6:]}, smoothed"
    note = (
        "How far apart are texts that belong together, and how evenly do all texts fill the sphere (Wang and "
        f"Isola 2020)? On {source}, from the open circle to the full one. {_sentence(runs, ends)}"
    )
    return draw(f"plane-{place.replace('/', '-')}", "Alignment and uniformity", note, paint, runs, height=300)


def _ring(axes: Axes, run: RunRecord, x: Sequence[float], y: Sequence[float], index: int | None) -> None:
    """Draws a ring around the point of the best checkpoint."""
    if index is not None:
        axes.plot(
            x[index],
            y[index],
            "o",
            color=color_of(run.number),
            markersize=12,
            markerfacecolor="none",
            markeredgewidth=1.8,
        )


def _kept(run: RunRecord, points: Series) -> int | None:
    """Returns the index of the best checkpoint's step in a series; None if this step was not logged."""
    step = None if run.best is None else run.best[2]
    return points.steps.index(step) if step in points.steps else None


def _change(points: Series, means: Sequence[float], kept: int | None) -> str:
    """Describes a curve: its value at the best checkpoint, or its first and last value."""
    if kept is not None:
        value = number(points.values[kept], ".4g")
        return f"{value} at step {points.steps[kept]:,}, which was kept, of {points.steps[-1]:,}"
    if len(means) == 1:
        return f"{number(means[0], '.4g')} at step {points.steps[0]:,}"
    first, last = (number(means[end], ".4g") for end in (0, -1))
    return f"from {first} to {last} in {points.steps[-1]:,} steps{', smoothed' if _span(points) > 1 else ''}"


def _sentence(runs: Sequence[RunRecord], words: Mapping[str, str]) -> str:
    """Joins the texts about each run to a sentence."""
    text = "; ".join(run.says(words.get(run.name, "not logged")) for run in runs)
    return f"{text[0].upper() if runs[0].alone else text[0]}{text[1:]}."
