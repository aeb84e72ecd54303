"""How a run went: losses, learning rate, held-out scores, the path through alignment and uniformity."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import hypot
from typing import TYPE_CHECKING

from contrastive_text.runs.report.charts import Chart, draw, legend, line_of
from contrastive_text.runs.report.markup import TIMES_100, Html, missing, number
from contrastive_text.runs.report.runs import LOSS, METRICS, RunRecord, Series
from contrastive_text.runs.report.section import Section
from contrastive_text.runs.report.style import LIGHT, series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PLANE = ("alignment", "uniformity")
_SCORES = ("spearman", "overall")
_WATCHED = {
    "guide_agreement": "Agreement with guides",
    "guide_cosine": "Cosine with the guide",
    "momentum_distance": "Distance of the momentum network",
}
"""What is drawn of an objective's figures beside its loss, with the title."""


def training(runs: Sequence[RunRecord]) -> Section:
    """Returns losses, learning rate, held-out scores, and the path through alignment and uniformity."""
    lead = (
        "Losses are those of a step over all ranks, before their weights; long curves are smoothed, and single "
        "steps are pale. A ring marks the weights that were kept: those of the best validation score."
    )
    parts = [*_losses(runs), *_watched(runs), *_scores(runs), *_probes(runs), *_paths(runs)]
    parts.sort(key=lambda part: not isinstance(part, Chart))  # notes on what is missing come last
    return Section("training", "Training", lead, parts)


def _losses(runs: Sequence[RunRecord]) -> list[Chart | Html]:
    losses = _names(runs, lambda name: name.startswith("train/") and name.count("/") == 1)
    losses = [name for name in losses if name != "train/truncated"]
    if len(losses) == 2 and all(_same(run, *losses) for run in runs):
        losses.remove(LOSS)  # of a single objective with weight 1
    rates = _names(runs, lambda name: name.startswith("lr-"))
    total = "Loss: all objectives" if len(losses) > 1 else "Loss"
    titles = {name: total if name == LOSS else f"Loss: {name[6:]}" for name in losses}
    parts: list[Chart | Html] = [_curve(runs, name, title) for name, title in titles.items()]
    parts += [_curve(runs, name, f"Learning rate: {name[3:]}") for name in rates]
    if not losses:
        remedy = "a run logs its losses every trainer.log_every_n_steps steps"
        parts.append(missing("Losses", _without(runs, "train/*"), remedy))
    if not rates:
        remedy = "a LearningRateMonitor in trainer.callbacks logs it"
        parts.append(missing("Learning rate", _without(runs, "lr-*"), remedy))
    return parts


def _watched(runs: Sequence[RunRecord]) -> list[Chart | Html]:
    names = _names(runs, lambda name: name.startswith("train/") and name.rpartition("/")[2] in _WATCHED)
    split = {name: name[6:].rpartition("/") for name in names}
    return [_curve(runs, name, f"{_WATCHED[figure]}: {part}") for name, (part, _, figure) in split.items()]


def _scores(runs: Sequence[RunRecord]) -> list[Chart | Html]:
    def scored(name: str) -> bool:
        return "/" in name[4:] or name[4:] in _SCORES

    names = _names(runs, lambda name: name.startswith("val/") and name[4:] not in _PLANE)
    names.sort(key=lambda name: (not scored(name), name.count("/"), name))
    parts: list[Chart | Html] = [
        _curve(
            runs,
            name,
            f"Validation: {name[4:].replace('_', ' ')}{f' {TIMES_100}' if scored(name) else ''}",
            kept=True,
        )
        for name in names
    ]
    if not any(map(scored, names)):
        remedy = "fit --data.validation PAIRS.tsv scores a run while it trains"
        parts.append(missing("Validation scores", _without(runs, "val/*"), remedy))
    return parts


def _probes(runs: Sequence[RunRecord]) -> list[Chart]:
    names = _names(runs, lambda name: name.startswith("probe/"))
    return [_curve(runs, name, f"Probe: {name[6:].replace('_', ' ')}") for name in names]


def _paths(runs: Sequence[RunRecord]) -> list[Chart | Html]:
    places = ["val"] if all(f"val/{name}" in run.metrics for run in runs for name in _PLANE) else []
    if not places:
        found = _names(runs, lambda name: name.startswith("train/") and name.endswith("/alignment"))
        places = [name.rpartition("/")[0] for name in found]
    if not places:
        remedy = "a contrastive objective logs them, and so does a validation file of scored pairs"
        return [missing("Alignment and uniformity", _without(runs, "such figures"), remedy)]
    return [_path(runs, place) for place in places]


def smoothed(values: Sequence[float], span: float) -> tuple[float, ...]:
    """Returns exponential means of a curve, of which each value weighs 2 / (span + 1).

    Example:
        >>> smoothed([1.0, 3.0, 3.0], span=1), smoothed([1.0, 4.0], span=3)
        ((1.0, 3.0, 3.0), (1.0, 3.0))
    """
    share = 2 / (span + 1)
    means, total, weight = [], 0.0, 0.0
    for value in values:
        total, weight = total + share * (value - total), weight + share * (1 - weight)
        means.append(total / weight)  # without the pull of the zero that it starts from
    return tuple(means)


def _curve(runs: Sequence[RunRecord], name: str, title: str, kept: bool = False) -> Chart:
    having = [(run, run.metrics[name]) for run in runs if name in run.metrics]
    drawn = {run.name: Series(points.steps, smoothed(points.values, _span(points))) for run, points in having}
    view = _view([points.values for _, points in having]) if name.startswith("train/") else None

    def paint(figure: Figure) -> None:
        axes = _axes(figure, integer=True)
        axes.set(xlabel="step")
        for run, points in having:
            if _span(points) > 1:
                axes.plot(points.steps, points.values, color=series(run.number), alpha=0.22, linewidth=0.9)
            dots = "." if len(points.values) < 25 else None
            axes.plot(*drawn[run.name], marker=dots, markersize=6, **line_of(run))
            if kept and (at := _kept(run, points)) is not None:
                _ring(axes, points.steps[at], points.values[at], run)
        if view is not None:
            axes.set_ylim(*view)
        legend(axes, runs)

    said = {run.name: _change(points, drawn[run.name], run if kept else None) for run, points in having}
    note = _each(runs, said)
    if view is not None:
        highest = number(max(max(points.values) for _, points in having), ".4g")
        note += f" The first steps, up to {highest}, are above the chart."
    return draw(name.replace("/", "-"), title, note, paint)


def _span(points: Series) -> float:
    """Returns over how many steps a curve is smoothed: a 25th of them, and not below 26."""
    return len(points.values) / 25 if len(points.values) > 25 else 1.0


def _view(curves: Sequence[Sequence[float]]) -> tuple[float, float] | None:
    """Returns the ends of an axis for what comes after the first tenth, where the beginning would flatten it.

    Example:
        >>> _view([[9.0, *([1.0, 2.0] * 15)]])
        (0.9, 2.1)
        >>> _view([[2.5, *([1.0, 2.0] * 15)]]), _view([[9.0, 1.0, 2.0]])
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
    paths: list[tuple[RunRecord, tuple[float, ...], tuple[float, ...], Series]] = []
    for run in runs:
        down, across = (run.metrics.get(f"{place}/{name}") for name in _PLANE)
        if down is not None and across is not None:
            # A batch is a small sample; validation pairs are always the same.
            span = 1.0 if place == "val" else max(3.0, len(down.values) / 25)
            paths.append((run, smoothed(across.values, span), smoothed(down.values, span), across))

    def paint(figure: Figure) -> None:
        axes = _axes(figure)
        axes.set(xlabel="uniformity", ylabel="alignment")
        axes.margins(0.12)
        for run, x, y, points in paths:
            colour = series(run.number)
            axes.plot(x, y, alpha=0.7, **line_of(run))
            for start, end in _directions(x, y):
                arrow = {"arrowstyle": "-|>,head_width=0.3,head_length=0.6", "color": colour}
                axes.annotate("", end, start, arrowprops=arrow)
            axes.plot(x[:1], y[:1], "o", markersize=9, markerfacecolor=LIGHT["paper"], color=colour)
            axes.plot(x[-1:], y[-1:], "o", markersize=9, color=colour)
            if place == "val" and (at := _kept(run, points)) is not None:
                _ring(axes, x[at], y[at], run)
        axes.text(0.02, 0.03, "↙ better", transform=axes.transAxes, color=LIGHT["muted"])
        legend(axes, runs)

    ends = {
        run.name: [f"({number(x[i], '.3g')}, {number(y[i], '.3g')})" for i in (0, -1)] for run, x, y, _ in paths
    }
    said = {name: f"from {start} to {end}" for name, (start, end) in ends.items()}
    source = "validation pairs" if place == "val" else f"training batches of {place[6:]}, smoothed"
    note = (
        "How far apart lie texts that belong together, and how evenly do all fill the sphere (Wang and Isola "
        f"2020)? On {source}, from the open circle to the full one. {_each(runs, said)}"
    )
    title = "Alignment and uniformity"
    return draw(f"plane-{place.replace('/', '-')}", title, note, paint, height=300)


def _directions(x: Sequence[float], y: Sequence[float]) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    """Returns start and end of the two longest pieces of a path, which can carry an arrow."""
    pieces = list(pairwise(zip(x, y, strict=True)))
    width, height = (max(values) - min(values) or 1.0 for values in (x, y))

    def length(piece: tuple[tuple[float, float], tuple[float, float]]) -> float:
        return hypot((piece[1][0] - piece[0][0]) / width, (piece[1][1] - piece[0][1]) / height)

    middles = [((a[0], a[1]), ((a[0] + b[0]) / 2, (a[1] + b[1]) / 2)) for a, b in pieces]
    return sorted(middles, key=length, reverse=True)[:2]


def _axes(figure: Figure, integer: bool = False) -> Axes:
    axes: Axes = figure.subplots()
    axes.locator_params(nbins=5)
    axes.locator_params(axis="x", integer=integer)
    return axes


def _ring(axes: Axes, x: float, y: float, run: RunRecord) -> None:
    axes.plot([x], [y], "o", markersize=12, markerfacecolor="none", markeredgewidth=1.8, color=series(run.number))


def _kept(run: RunRecord, points: Series) -> int | None:
    """Returns the place of the kept weights in a series; None where they were not logged."""
    step = None if run.best is None else run.best[2]
    return points.steps.index(step) if step in points.steps else None


def _change(points: Series, drawn: Series, run: RunRecord | None) -> str:
    """Says from where to where a curve goes as it is drawn, or, of a run, what its kept weights have."""
    at = None if run is None else _kept(run, points)
    if at is not None:
        kept = number(points.values[at], ".4g")
        return f"{kept} at step {points.steps[at]:,}, which was kept, of {points.steps[-1]:,}"
    if len(points.values) == 1:
        return f"{number(points.values[0], '.4g')} at step {points.steps[0]:,}"
    first, last = (number(drawn.values[end], ".4g") for end in (0, -1))
    return f"from {first} to {last} in {points.steps[-1]:,} steps{', smoothed' if _span(points) > 1 else ''}"


def _each(runs: Sequence[RunRecord], said: Mapping[str, str]) -> str:
    """Joins what is said of each run, as a sentence."""
    words = "; ".join(run.says(said.get(run.name, "not logged")) for run in runs)
    return f"{words[0].upper() if runs[0].alone else words[0]}{words[1:]}."


def _names(runs: Sequence[RunRecord], wanted: Callable[[str], bool]) -> list[str]:
    return list(dict.fromkeys(name for run in runs for name in run.metrics if wanted(name)))


def _same(run: RunRecord, *names: str) -> bool:
    return len({run.metrics.get(name) for name in names}) == 1


def _without(runs: Sequence[RunRecord], what: str) -> str:
    empty = [run.name for run in runs if not run.metrics]
    return f"{', '.join(empty)} has no {METRICS}" if empty else f"{METRICS} has no {what}"
