"""What the views of runs do to their texts: how much each changes, and some rows with the changes marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from contrastive_text.evaluation.view_edits import Piece
from contrastive_text.runs.report.markup import Html, join, missing, table, tag
from contrastive_text.runs.report.run_parts import Altered, RunParts
from contrastive_text.runs.report.runs import RunRecord
from contrastive_text.runs.report.section import Section


def samples(runs: Sequence[RunRecord], parts_of_runs: Mapping[str, RunParts]) -> Section:
    """Returns the edit rates of each run's views, and its first rows as an epoch has them."""
    parts: list[Html] = []
    for run in runs:
        told = parts_of_runs[run.name]
        if not run.alone:
            parts.append(tag("h3", tag("span", class_=f"dot series-{run.number + 1}"), run.name, class_="of-run"))
        parts += [part for altered in told.altered for part in _altered(altered, len(told.altered) > 1)]
        if not told.altered:
            why = told.lacks or "the run has no training data"
            remedy = "run the command where the paths in the configuration lead to the files"
            parts.append(missing("Samples of the views", why, remedy))
    changes = [tag("del", "gone"), " or ", tag("ins", "new"), "."]
    lead = join(["The first rows as the first epoch has them. What text and token views change is ", *changes])
    return Section("views", "What the views do", lead, parts)


def marked_up(text: Sequence[Piece]) -> Html:
    """Returns an altered text with its changes as markup.

    Example:
        >>> marked_up([Piece("gone", "a big"), Piece("new", "one"), Piece("kept", "<b>")])
        '<del>a big</del> <ins>one</ins> &lt;b&gt;'
    """
    tags = {"gone": "del", "new": "ins"}
    return join([tag(tags[kind], words) if kind in tags else words for kind, words in text], " ")


def _altered(altered: Altered, named: bool) -> list[Html]:
    parts = [tag("h3", altered.task)] if named else []
    if altered.rows.rates:
        rows = [(place, [tag("code", view), rate]) for place, view, rate in altered.rows.rates]
        parts.append(table(["place", "view", "changed"], rows, caption="How much each view changes"))
    else:
        parts.append(tag("p", "No view alters these texts: only dropout tells equal ones apart.", class_="fine"))
    examples = []
    for texts in altered.rows.examples:
        lines = [
            tag("dt", slot) + tag("dd", tag("span", marked_up(text), dir="auto", class_="text"))
            for slot, text in zip(altered.rows.slots, texts, strict=True)
        ]
        examples.append(tag("li", tag("dl", *map(Html, lines))))
    paired = tag("p", "Paired by ", tag("code", altered.pairing), class_="small")
    return [*parts, paired, tag("ol", *examples, class_="examples")]
