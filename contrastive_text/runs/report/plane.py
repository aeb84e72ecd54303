"""The plane of alignment and uniformity, in which each run or model is a point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from contrastive_text.evaluation.diagnosis import Diagnosis
from contrastive_text.runs.report.charts import Chart, draw
from contrastive_text.runs.report.markup import TIMES_100, number
from contrastive_text.runs.report.runs import RunRecord
from contrastive_text.runs.report.style import LIGHT, series

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plane(found: Sequence[tuple[RunRecord, Diagnosis]]) -> list[Chart]:
    """Returns a chart with a named point for each; none where no pairs were measured.

    Figure 3 of SimCSE (Gao et al. 2021, https://aclanthology.org/2021.emnlp-main.552). Alignment is over pairs
    above four fifths of the highest gold score, of STS-B those above 4; uniformity over all texts of the pairs.
    """
    points = [
        (run, diagnosis.uniformity, diagnosis.alignment, diagnosis.spearman)
        for run, diagnosis in found
        if diagnosis.alignment is not None
    ]
    if not points:
        return []

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        for run, uniformity, alignment, score in points:
            axes.plot([uniformity], [alignment], "o", color=series(run.number), markersize=7)
            label = run.name if score is None else f"{run.name} ({score:.1f})"
            axes.annotate(
                label, (uniformity, alignment), xytext=(0, 7), textcoords="offset points", ha="center",
                color=LIGHT["ink"],
            )  # fmt: skip
        axes.margins(0.25)
        axes.set(xlabel="uniformity (lower is more even)", ylabel="alignment (lower is nearer)")

    each = [
        run.says(
            f"alignment {number(alignment, '.3f')}, uniformity {number(uniformity, '.3f')}, Spearman {TIMES_100} "
            f"{number(score, '.1f')}"
        )
        for run, uniformity, alignment, score in points
    ]
    note = (
        "Down and left is better: positive pairs, above four fifths of the highest gold score, lie close"
        f" and texts are spread (Gao et al. 2021, figure 3). {'; '.join(each)}."
    )
    return [draw("plane", "Alignment and uniformity", note, paint, height=300)]
