"""Tables and curve of the runs of ``protocol.py``, finished or not.

    python benchmarks/protocol_table.py --out runs/protocol --figure docs/protocol_curve.svg

A difference from SimCSE has a 95 % interval and a p value by a bootstrap over test pairs and seeds together: each
resample draws pairs, the same for all runs, and seeds, the same for both methods (Efron and Tibshirani 1993, "An
Introduction to the Bootstrap", chapter 13). P values are adjusted by Holm's method over the methods.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from protocol import (
    BASELINE,
    DEVELOPMENT,
    GEOMETRY,
    METHODS,
    TASKS,
    Setting,
    all_rows,
    best_step,
    development_score,
    settings_of,
    tuned,
)
from runs import RESULTS, ROOT, markdown, mean_and_spread, publish

from contrastive_text.metrics.bootstrap import PairedBootstrap, holm

LEVEL = 0.05
"""Largest adjusted p value of a difference that separates two methods."""

Row = Mapping[str, Any]  # Any: scores and names of a run


def difference(ours: Sequence[Row], theirs: Sequence[Row]) -> PairedBootstrap:
    """Bootstraps the difference of two methods' mean scores over test pairs and seeds, for the seeds of both.

    Example:
        >>> ours, theirs = ([{"seed": 1, "scores": {"mean": m}, "resampled": [m, m]}] for m in (72.0, 70.0))
        >>> difference(ours, theirs).difference, difference(ours, theirs).interval()
        (2.0, (2.0, 2.0))
    """
    pairs = [(a, b) for a in ours for b in theirs if a["seed"] == b["seed"]]
    observed = statistics.mean(a["scores"]["mean"] - b["scores"]["mean"] for a, b in pairs)
    gains = torch.tensor([a["resampled"] for a, _ in pairs], dtype=torch.float64)
    gains -= torch.tensor([b["resampled"] for _, b in pairs], dtype=torch.float64)  # (seeds, resamples)
    seeds = torch.randint(len(pairs), gains.shape, generator=torch.Generator().manual_seed(0))
    return PairedBootstrap(observed, gains.gather(0, seeds).mean(dim=0))


def by_method(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Returns method -> rows of its seeds, the best mean score first."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["method"], []).append(row)
    return dict(sorted(found.items(), key=lambda item: -mean_score(item[1])))


def mean_score(rows: Sequence[Row]) -> float:
    """Returns the mean test score over seeds."""
    return statistics.mean(row["scores"]["mean"] for row in rows)


def groups(methods: Mapping[str, Sequence[Row]]) -> list[list[str]]:
    """Returns groups of methods that the runs can't separate from the best method of the group.

    Args:
        methods: Method -> rows, the best first.

    Example:
        >>> means = {"a": 72.0, "b": 71.9, "c": 70.0}
        >>> rows = {
        ...     name: [{"seed": 1, "scores": {"mean": m}, "resampled": [m - 1, m + 1] * (50 if name != "b" else 0)
        ...             + ([m + 1, m - 1] * 50 if name == "b" else [])}] for name, m in means.items()
        ... }
        >>> groups(rows)
        [['a', 'b'], ['c']]
    """
    rest, found = list(methods), []
    while rest:
        first, *others = rest
        p_values = holm([difference(methods[name], methods[first]).p_value for name in others])
        equal = [first, *(name for name, p in zip(others, p_values, strict=True) if p > LEVEL)]
        found.append(equal)
        rest = [name for name in rest if name not in equal]
    return found


def curve(rows: Sequence[Row]) -> dict[int, float]:
    """Returns validated step -> development score, the mean over seeds."""
    steps = sorted({int(step) for row in rows for step in row["validations"]})
    return {step: statistics.mean(row["validations"][str(step)][DEVELOPMENT] for row in rows) for step in steps}


def steps_to(score: float, points: Mapping[int, float]) -> int | None:
    """Returns the first validated step with a development score; None if there is none.

    Example:
        >>> steps_to(72.0, {0: 60.0, 50: 71.0, 100: 73.0}), steps_to(80.0, {0: 60.0})
        (100, None)
    """
    return next((step for step, each in sorted(points.items()) if each >= score), None)


def step_ratios(results: Path) -> dict[str, float]:
    """Returns method -> seconds of a step over SimCSE's, of the newest result of ``protocol.py steps``."""
    rows = json.loads(max(results.glob("*-protocol_steps.json")).read_text())["rows"]
    ratios = {
        name: statistics.median(own / base for own, base in zip(each["own"], each[BASELINE], strict=True))
        for name, each in rows.items()
    }
    return {BASELINE: 1.0, **ratios}


def method_table(rows: Sequence[Row], settings: Mapping[str, Setting], ratios: Mapping[str, float]) -> list[str]:
    """Returns the table of the methods: test scores, difference from SimCSE, geometry and cost."""
    methods = by_method(rows)
    others = [name for name in methods if name != BASELINE]
    against = {name: difference(methods[name], methods[BASELINE]) for name in others}
    adjusted = dict(zip(others, holm([against[name].p_value for name in others]), strict=True))
    target = max(curve(methods[BASELINE]).values())
    lines = []
    for name, runs in methods.items():
        cells = [METHODS[name].said, str(len(runs)), settings[name].name().replace("-0.", ", 0.")]
        cells += [mean_and_spread([run["scores"][task] for run in runs]) for task in (*TASKS, "mean")]
        if name == BASELINE:
            cells += ["-", "-"]
        else:
            low, high = against[name].interval()
            cells += [f"{against[name].difference:+.2f} ({low:+.2f} to {high:+.2f})", f"{adjusted[name]:.3f}"]
        bests = [run["validations"][best_step(run)] for run in runs]
        cells += [mean_and_spread([each[figure] for each in bests]) for figure in GEOMETRY]
        cells += [f"{statistics.mean(int(best_step(run)) for run in runs):.0f}", f"{ratios[name]:.2f}"]
        reached = steps_to(target, curve(runs))
        cells.append("not reached" if reached is None else f"{reached * ratios[name]:.0f}")
        lines.append(cells)
    geometry = [name.removeprefix("val/").replace("_", " ") for name in GEOMETRY]
    header = ["", "seeds", "rate, temperature", *TASKS, "mean", "against SimCSE", "p", *geometry]
    return markdown([*header, "best step", "step", "to SimCSE's best"], lines)


def group_lines(rows: Sequence[Row]) -> list[str]:
    """Returns a line per group of methods that can't be separated."""
    named = [[METHODS[name].said for name in group] for group in groups(by_method(rows))]
    return [f"{place}. {', '.join(names)}" for place, names in enumerate(named, start=1)]


def curve_table(methods: Mapping[str, Sequence[Row]]) -> list[str]:
    """Returns the table of development scores by step."""
    curves = {name: curve(rows) for name, rows in methods.items()}
    steps = sorted({step for points in curves.values() for step in points})
    lines = [
        [METHODS[name].said, str(len(methods[name])), *(f"{points[step]:.2f}" for step in steps)]
        for name, points in sorted(curves.items(), key=lambda item: -max(item[1].values()))
    ]
    return markdown(["development", "seeds", *map(str, steps)], lines)


def tuning_table(rows: Sequence[Row]) -> list[str]:
    """Returns the table of the development scores that chose the settings."""
    found = {(row["method"], Setting(**row["setting"])): development_score(row) for row in rows}
    columns = list(dict.fromkeys(setting for name in METHODS for setting in settings_of(name)))
    lines = [
        [METHODS[name].said, *(f"{found[name, each]:.2f}" if (name, each) in found else "" for each in columns)]
        for name in METHODS
        if any(method == name for method, _ in found)
    ]
    return markdown(["best development score", *(each.name().replace("-0.", ", 0.") for each in columns)], lines)


def draw(methods: Mapping[str, Sequence[Row]], path: Path) -> None:
    """Draws the development score of each method over steps."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "protocol"  # the same bytes for the same curves
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    styles = ("-", "--", ":")
    for place, (name, rows) in enumerate(methods.items()):
        points = curve(rows)
        style = {"color": f"C{place % 10}", "linestyle": styles[place // 10]}
        axes.plot(points.keys(), points.values(), label=METHODS[name].said, **style)
    axes.set(xlabel="step", ylabel="Spearman x 100, development")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small")
    figure.savefig(path, metadata={"Date": None})


def configurations(out: Path, earlier: Path | None) -> dict[str, Any]:
    """Returns the configuration of each method's first seed, of these runs and of an earlier result."""
    files = sorted(out.glob("se*/*/*/seed-1/version_*/config.yaml"))
    own = {str(file.parents[1].relative_to(out)): yaml.safe_load(file.read_text()) for file in files}
    return (json.loads(earlier.read_text())["configuration"] if earlier else {}) | own


def main() -> None:
    """Writes the dated tables, and the curve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "protocol", help="folder of the runs")
    parser.add_argument("--earlier", type=Path, help="JSON of the filed result that protocol.py took over")
    parser.add_argument("--figure", type=Path, help="file of the curve")
    parser.add_argument("--note", default="", help="machines of the runs, for the result")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    tuning, seeds, second = (all_rows(options.out, place) for place in ("tuning", "seeds", "second"))
    settings, ratios = tuned(tuning), step_ratios(options.results)
    counts = json.loads((options.out / "development.json").read_text())
    chosen = [row for row in tuning if Setting(**row["setting"]) == settings[row["method"]]]
    curves = {
        name: by_method(seeds).get(name) or [row for row in chosen if row["method"] == name] for name in settings
    }
    left = ", ".join(f"{after} of {before} of {task}" for task, (before, after) in counts.items())
    lines = [
        "# Unsupervised sentence embeddings under one protocol",
        "",
        f"300 steps of 64 texts, validated every 50. Development pairs in no test set: {left}.",
        "Scores: Spearman x 100 of the best validated weights, mean ± standard deviation over seeds.",
        "Against SimCSE: 95 % interval over test pairs and seeds; p by Holm over the methods. Step: seconds of a",
        "step, SimCSE's = 1. To SimCSE's best: time until the mean development score is SimCSE's best, in",
        f"SimCSE's steps. {options.note}".rstrip(),
        "",
        *method_table(seeds, settings, ratios),
        "",
        "Groups of methods that can't be separated from the best of the group:",
        "",
        *group_lines(seeds),
        "",
        "Methods without a run of the chosen setting with test scores: "
        + (", ".join(METHODS[name].said for name in settings if name not in by_method(seeds)) or "none")
        + ".",
        "",
        *curve_table(curves),
        "",
        *tuning_table(tuning),
    ]
    if second:
        lines += [
            "",
            f"From the second start, {second[0]['encoder']}:",
            "",
            *method_table(second, settings, ratios),
        ]
        lines += ["", *group_lines(second)]
    print("\n".join(lines))
    if options.figure is not None:
        draw(curves, options.figure)
    rows = {"development": counts, "runs": [*tuning, *seeds, *second]}
    print(publish("protocol", lines, rows, configurations(options.out, options.earlier), folder=options.results))


if __name__ == "__main__":
    main()
