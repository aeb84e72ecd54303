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
from typing import Any, NamedTuple

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
    by_method,
    development_score,
    settings_of,
    tuned,
)
from runs import RESULTS, ROOT, markdown, mean_and_spread, publish, rows_of

from contrastive_text.metrics.bootstrap import PairedBootstrap, holm

LEVEL = 0.05
"""Largest adjusted p value of a difference that separates two methods."""

RUN_OF_ROW = ("method", "setting", "place", "encoder")
"""Keys of a run that its row has in a result."""
SETTING = """\
Start {start}. 300 steps of 64 texts, validated every 50. Development pairs in no test set: {left}.
Spearman x 100. {note}"""


class Place(NamedTuple):
    """A kind of runs, with its result.

    Args:
        file: Name of the result.
        title: Title of the result.
        about: What its table has.
    """

    file: str
    title: str
    about: str


METHODS_ABOUT = """\
Test sets: scores of the best validated weights, mean ± standard deviation over seeds. Against SimCSE: over the
seeds of both methods, 95 % interval over test pairs and seeds together; p by Holm over the methods. Best step: of
the best validation of each seed, the mean over seeds. Below: groups that can't be separated from their best
method."""
COST_ABOUT = """
Step: seconds of a step, SimCSE's = 1. To SimCSE's best: first validation with a development score of SimCSE's
best, in SimCSE's steps."""
PLACES = {
    "tuning": Place(
        "protocol_tuning",
        "# One protocol: tuning, and development scores over steps",
        "Mean of the development scores of STS-B and SICK. The second table has the chosen settings.",
    ),
    "seeds": Place(
        "protocol", "# Unsupervised sentence embeddings under one protocol", METHODS_ABOUT + COST_ABOUT
    ),
    "second": Place("protocol_second", "# One protocol: a second start", METHODS_ABOUT),
}

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
    """Returns validated step -> development score, the mean over seeds. A validation before step 1 is skipped."""
    scores: dict[int, list[float]] = {}
    for row in rows:
        for step, figures in row["validations"].items():
            if int(step):
                scores.setdefault(int(step), []).append(figures[DEVELOPMENT])
    return {step: statistics.mean(each) for step, each in sorted(scores.items())}


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


def method_table(
    rows: Sequence[Row], settings: Mapping[str, Setting], ratios: Mapping[str, float] | None = None
) -> list[str]:
    """Returns the table of the methods: test scores, difference from SimCSE, geometry, cost if known."""
    methods = by_method(rows)
    others = [name for name in methods if name != BASELINE and BASELINE in methods]
    against = {name: difference(methods[name], methods[BASELINE]) for name in others}
    adjusted = dict(zip(others, holm([against[name].p_value for name in others]), strict=True))
    target = max(curve(methods.get(BASELINE, [])).values(), default=float("inf"))
    lines = []
    for name, runs in methods.items():
        cells = [METHODS[name].said, str(len(runs)), settings[name].name().replace("-0.", ", 0.")]
        cells += [mean_and_spread([run["scores"][task] for run in runs]) for task in (*TASKS, "mean")]
        if name not in against:
            cells += ["-", "-"]
        else:
            low, high = against[name].interval()
            cells += [f"{against[name].difference:+.2f} ({low:+.2f} to {high:+.2f})", f"{adjusted[name]:.3f}"]
        bests = [run["validations"][best_step(run)] for run in runs]
        cells += [mean_and_spread([each[figure] for each in bests]) for figure in GEOMETRY]
        cells.append(f"{statistics.mean(int(best_step(run)) for run in runs):.0f}")
        if ratios is not None:
            reached = steps_to(target, curve(runs))
            said = "not reached" if reached is None else f"{reached * ratios[name]:.0f}"
            cells += [f"{ratios[name]:.2f}", said]
        lines.append(cells)
    geometry = [name.removeprefix("val/").replace("_", " ") for name in GEOMETRY]
    header = ["", "seeds", "rate, temperature", *TASKS, "mean", "against SimCSE", "p", *geometry, "best step"]
    return markdown(header if ratios is None else [*header, "step", "to SimCSE's best"], lines)


def untrained_table(rows: Sequence[Row]) -> list[str]:
    """Returns the table of the teacher and the starts before training."""
    lines = [[row["name"], *(f"{row['scores'][task]:.2f}" for task in (*TASKS, "mean"))] for row in rows]
    return markdown(["before training", *TASKS, "mean"], lines)


def group_lines(rows: Sequence[Row]) -> list[str]:
    """Returns a list of the groups of methods that can't be separated."""
    named = [[METHODS[name].said for name in group] for group in groups(by_method(rows))]
    return ["", *(f"{place}. {'; '.join(names)}" for place, names in enumerate(named, start=1))]


def curve_table(methods: Mapping[str, Sequence[Row]]) -> list[str]:
    """Returns the table of development scores by step."""
    curves = {name: curve(rows) for name, rows in methods.items()}
    steps = sorted({step for points in curves.values() for step in points})
    lines = [
        [
            METHODS[name].said,
            str(len(methods[name])),
            *(f"{points[step]:.2f}" if step in points else "" for step in steps),
        ]
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
    curves = {name: curve(rows) for name, rows in methods.items()}
    last = sorted(curves, key=lambda name: -list(curves[name].values())[-1])
    for place, name in enumerate(last):
        points = curves[name]
        style = {"color": f"C{place % 10}", "linestyle": styles[place // 10]}
        axes.plot(points.keys(), points.values(), label=METHODS[name].said, **style)
    axes.set(xlabel="step", ylabel="Spearman x 100, development")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small")
    figure.savefig(path, metadata={"Date": None})


def as_rows(runs: Sequence[Row]) -> list[dict[str, Any]]:
    """Returns a row for each method and setting, with the runs of its seeds."""
    rows: dict[tuple[str, Setting], dict[str, Any]] = {}
    for run in runs:
        setting = Setting(**run["setting"])
        row = {
            "name": run["method"],
            "setting": setting._asdict(),
            "place": run["place"],
            "encoder": run["encoder"],
        }
        row = rows.setdefault((run["method"], setting), {**row, "runs": []})
        row["runs"].append({name: value for name, value in run.items() if name not in RUN_OF_ROW})
    return list(rows.values())


def configurations(out: Path, place: str) -> dict[str, Any]:
    """Returns the configuration of each method's first seed."""
    files = sorted((out / place).glob("*/*/seed-1/version_*/config.yaml"))
    return {str(file.parents[1].relative_to(out)): yaml.safe_load(file.read_text()) for file in files}


def main() -> None:
    """Writes the dated tables of tuning, of the methods and of the second start, and the curve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "protocol", help="folder of the runs")
    parser.add_argument("--figure", type=Path, help="file of the curve")
    parser.add_argument("--note", default="", help="machines of the runs, for the result")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    runs = {place: all_rows(options.out, place) for place in PLACES}
    settings, ratios = tuned(runs["tuning"]), step_ratios(options.results)
    counts = json.loads((options.out / "development.json").read_text())
    left = ", ".join(f"{after} of {before} of {task}" for task, (before, after) in counts.items())
    chosen = [row for row in runs["tuning"] if Setting(**row["setting"]) == settings[row["method"]]]
    curves = by_method(runs["seeds"])
    curves |= {row["method"]: [row] for row in chosen if row["method"] not in curves}
    if options.figure is not None:
        draw(curves, options.figure)
    tables = {
        "tuning": [*tuning_table(runs["tuning"]), "", *curve_table(curves)],
        "seeds": [*method_table(runs["seeds"], settings, ratios), *group_lines(runs["seeds"])],
    }
    if runs["second"]:
        tables["second"] = [*method_table(runs["second"], settings), *group_lines(runs["second"])]
        tables["second"] += ["", *curve_table(by_method(runs["second"]))]
    for place, table in tables.items():
        start = runs[place][0]["encoder"]
        lines = [PLACES[place].title, "", *SETTING.format(start=start, left=left, note=options.note).splitlines()]
        lines += [*PLACES[place].about.splitlines(), "", *table]
        print("\n".join(lines))
        rows = as_rows(runs[place])
        print(publish(PLACES[place].file, lines, rows, configurations(options.out, place), options.results))
    untrained = rows_of(options.out / "untrained" / name for name in ("teacher", "start", "second start"))
    lines = ["# One protocol: before training", "", "Spearman x 100 on the test sets.", ""]
    lines += untrained_table(untrained)
    print("\n".join(lines))
    print(publish("protocol_untrained", lines, untrained, {}, options.results))


if __name__ == "__main__":
    main()
