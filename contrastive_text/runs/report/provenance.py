"""What a run is, in a glance and in full: its parts, its best score, and everything that makes the result."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from contrastive_text.runs.report.markup import Html, join, missing, number, table, tag
from contrastive_text.runs.report.runs import CONFIG, LOSS, RunRecord, flat
from contrastive_text.runs.report.section import Section
from contrastive_text.runs.report.space import Space

_NOTHING = Html("")
_DIFFER = "Where the configurations differ"


def head(runs: Sequence[RunRecord], spaces: Sequence[Space], verdict: Html = _NOTHING) -> Html:
    """Returns the top of the page: what the runs are, whether they worked, and their main figures."""
    measured = {space.run.name: space for space in spaces}
    found = [(run, [run.regression]) for run in runs if run.regression]
    found += [(space.run, [*space.diagnosis.warnings]) for space in spaces if space.diagnosis is not None]
    doubts = [tag("li", run.says(words)) for run, warnings in found for words in warnings]
    warned = tag("ul", *doubts, class_="verdicts") if doubts else ""
    glances = [_glance(run, measured.get(run.name)) for run in runs]
    if runs[0].alone:
        tiles = [tag("div", tag("dt", name), tag("dd", value)) for name, value in glances[0].items()]
        lede = tag("p", summary(runs[0]), class_="lede")
        said = join([lede, verdict, warned, tag("dl", *tiles, class_="tiles")])
    else:
        legend = [
            tag("li", tag("span", class_=f"dot series-{run.number + 1}"), tag("b", run.name), f" {summary(run)}")
            for run in runs
        ]
        names = dict.fromkeys(name for glance in glances for name in glance)
        rows = [(name, [glance.get(name, "n/a") for glance in glances]) for name in names]
        figures = table(["", *(run.name for run in runs)], rows, caption="Main figures", class_="figures")
        differ = _compared(runs, [flat(run.config) for run in runs], _DIFFER, "The configurations are equal.")
        said = join([tag("ul", *legend, class_="runs"), verdict, warned, figures, differ])
    dates = ", ".join(run.says(f"{run.changed:%d %B %Y, %H:%M} UTC") for run in runs)
    title = runs[0].name if runs[0].alone else f"{len(runs)} runs side by side"
    return tag("header", tag("p", dates, class_="small"), tag("h1", title), said, class_="head")


def summary(run: RunRecord) -> str:
    """Returns a run in one sentence: encoder, pooler, objectives, views and steps."""
    model, data = run.config.get("model") or {}, run.config.get("data") or {}
    arguments = (model.get("encoder") or {}).get("init_args") or {}
    weights = str(arguments.get("model_name_or_path") or "").rstrip("/").rpartition("/")[2]
    parts = [
        weights or ("an encoder from a configuration" if arguments.get("config") else ""),
        _class(model.get("pooler")),
        " + ".join(_objective(part) for part in (model.get("objectives") or {"": "Contrastive"}).values()),
        _views(model.get("views") or {}),
        f"{data['batch_size']} rows a step" if "batch_size" in data else "",
        f"seed {run.config['seed_everything']}" if "seed_everything" in run.config else "",
    ]
    return " · ".join(part for part in parts if part)


def provenance(runs: Sequence[RunRecord]) -> Section:
    """Returns the facts that make the result, what differs between runs, and the full configuration."""
    parts: list[Html] = []
    facts = [run.facts for run in runs]
    if any(facts):
        alike = {name: fact for name, fact in facts[0].items() if all(each.get(name) == fact for each in facts)}
        own = [{name: fact for name, fact in each.items() if name not in alike} for each in facts]
        if not runs[0].alone:
            parts.append(_compared(runs, own, "Facts that differ", "All facts are equal."))
        caption = "Facts" if runs[0].alone else "Facts that all runs share"
        rows = [(name, [_lines(fact)]) for name, fact in alike.items()]
        parts.append(
            table(["fact", "in this run" if runs[0].alone else "in all runs"], rows, caption, class_="facts")
        )
    for run in runs:
        if not run.facts:
            why = run.lacks or "its checkpoint has none"
            parts.append(missing(run.says("facts of the run"), why, "fit keeps them in every checkpoint"))
        if run.config_text:
            name = tag("summary", run.says(f"The whole configuration ({CONFIG})"))
            parts.append(tag("details", name, tag("pre", run.config_text, tabindex=0)))
        else:
            parts.append(missing(run.says("configuration"), f"there is no {CONFIG}", "fit writes it"))
    lead = "Everything that changes the numbers above, as the run printed it before its first step."
    return Section("provenance", "What makes the result", lead, parts)


def _glance(run: RunRecord, space: Space | None) -> dict[str, str]:
    figures: dict[str, str] = {}
    if run.best is not None:
        monitor, score, step = run.best
        figures[f"best {monitor.removeprefix('val/')}"] = number(score, ".2f")
        figures["at step"] = f"{step:,}"
    if (losses := run.metrics.get(LOSS)) is not None:
        figures["loss, last step"] = number(losses.values[-1], ".3g")
        figures["steps"] = f"{max(points.steps[-1] for points in run.metrics.values()):,}"
    if run.diverged is not None:
        figures["loss, last step"] = f"NaN or infinite from step {run.diverged:,} on"
    if space is not None and space.diagnosis is not None:
        figures["effective rank"] = f"{space.diagnosis.effective_rank:.1f} of {space.diagnosis.features}"
        figures["uniformity"] = number(space.diagnosis.uniformity, ".2f")
    return figures


def _compared(runs: Sequence[RunRecord], each: Sequence[Mapping[str, str]], caption: str, equal: str) -> Html:
    """Returns what differs between runs, a column for each."""
    names = dict.fromkeys(name for named in each for name in named)
    rows = [
        (_lines(name), [_lines(named.get(name, "\u2013")) for named in each])
        for name in names
        if len({named.get(name) for named in each}) > 1
    ]
    if not rows:
        return tag("p", equal, class_="fine")
    return table(["name", *(run.name for run in runs)], rows, caption, class_="facts differ")


def _lines(text: str) -> Html:
    """Returns a fact with its line breaks, and with places where a long name or call may break."""
    lines = [join(re.split(r"(?<=[(=/_.])(?=\w)", line), tag("wbr")) for line in text.split("\n")]
    return join(lines, tag("br"))


def _class(part: Any) -> str:  # Any: a part of a configuration, a class path or a dictionary around one
    path = part.get("class_path", "") if isinstance(part, Mapping) else part or ""
    return str(path).rpartition(".")[2]


def _objective(part: Any) -> str:  # Any: as above
    loss = (part.get("init_args") or {}).get("loss") if isinstance(part, Mapping) else None
    return f"{_class(part)}({_class(loss)})" if loss else _class(part)


def _views(plan: Mapping[str, Any]) -> str:  # Any: as above
    chains = {role: chain for role, chain in plan.items() if isinstance(chain, list) and chain}
    said = [f"{role}: {' → '.join(map(_class, chain))}" for role, chain in chains.items()]
    return "; ".join(said) or ("views by task" if plan else "no views")
