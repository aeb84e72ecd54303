"""What a comparison of models has found, as text, Markdown and JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from contrastive_text.core.markdown import as_markdown
from contrastive_text.core.notebook import html_list, html_table
from contrastive_text.evaluation.results import ScoreTable, in_columns, in_markdown

NEIGHBOURS = 10
"""Nearest neighbours of a text that two models may have in common."""


@dataclass(frozen=True, slots=True)
class ScoreDifference:
    """How far a model's score lies above the baseline's; figures times 100.

    Args:
        model: Its name.
        task: Of the score; ``Avg.`` for the mean over a suite.
        difference: Score minus the baseline's.
        low: Lower end of the 95 % interval.
        high: Upper end.
        p_value: Two-sided, of no difference.
        holm: The p adjusted for all models and tasks that were compared at once; NaN for a mean, which asks
            nothing that its tasks don't.
    """

    model: str
    task: str
    difference: float
    low: float
    high: float
    p_value: float
    holm: float

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval does."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True, slots=True)
class Agreement:
    """How alike a model's vectors of the same texts are to the baseline's.

    Args:
        model: Its name.
        neighbours: Share of the 10 nearest neighbours that both have in common, in [0, 1].
        cka: Linear CKA, debiased: 1 where the vectors are equal but for turning and scaling, about 0 where they
            are unrelated; NaN where all vectors of a model are equal.
    """

    model: str
    neighbours: float
    cka: float


@dataclass(frozen=True, slots=True)
class ModelComparison:
    """What ``compare`` has found.

    Args:
        baseline: Name of the model that the others are held against.
        tables: Scores of all models, a table for each suite.
        differences: For each suite and each other model its tasks and their mean.
        agreements: One for each other model; none where there were too few texts.
        texts: Number of texts that agreement was measured on.
        resamples: Resamples of the test rows behind each interval.
        notes: What else is to be known.
    """

    baseline: str
    tables: tuple[ScoreTable, ...]
    differences: tuple[ScoreDifference, ...]
    agreements: tuple[Agreement, ...]
    texts: int
    resamples: int
    notes: tuple[str, ...]

    def text(self) -> str:
        """Returns the tables in columns, as a terminal shows them."""
        grids = [in_columns(grid) for grid in self._grids()]
        return "\n\n".join([*(table.text() for table in self.tables), *grids, "\n".join(self._remarks())])

    def markdown(self) -> str:
        """Returns the tables in GitHub's Markdown."""
        grids = [in_markdown([[cell.strip() for cell in row] for row in grid]) for grid in self._grids()]
        remarks = "\n".join(f"- {as_markdown(remark)}" for remark in self._remarks())
        return "\n\n".join([*(table.markdown() for table in self.tables), *grids, remarks])

    def _repr_html_(self) -> str:
        """Returns the tables as a notebook shows them."""
        captions = ("Differences, times 100", "Agreement of the vectors")
        grids = [
            html_table(caption, [[cell.strip() for cell in row] for row in grid])
            for caption, grid in zip(captions, self._grids(), strict=False)
        ]
        notes = html_list(self._remarks())
        return "\n".join([*(table._repr_html_() for table in self.tables), *grids, notes])

    def json(self) -> str:
        """Returns all figures in full precision; ``null`` where there is none."""
        content = {
            "baseline": self.baseline,
            "scores": [json.loads(table.json()) for table in self.tables],
            "differences": [_plain(dataclasses.asdict(difference)) for difference in self.differences],
            "agreements": [_plain(dataclasses.asdict(agreement)) for agreement in self.agreements],
            "texts": self.texts,
            "resamples": self.resamples,
            "notes": self._remarks(),
        }
        return json.dumps(content, indent=2, ensure_ascii=False)

    def _grids(self) -> list[list[list[str]]]:
        differences = [["against the first model", "task", "difference", "95 % interval  ", "p", "Holm p"]]
        for one in self.differences:
            interval = f"{one.low:+.2f} to {one.high:+.2f} {'*' if one.excludes_zero else ' '}"
            adjusted = "" if math.isnan(one.holm) else f"{one.holm:.4f}"
            cells = [f"{one.difference:+.2f}", interval, f"{one.p_value:.4f}", adjusted]
            differences.append([one.model, one.task, *cells])
        agreements = [["vectors against the first", f"{NEIGHBOURS} neighbours in common", "linear CKA"]]
        for two in self.agreements:
            cka = "n/a" if math.isnan(two.cka) else f"{two.cka:.4f}"
            agreements.append([two.model, f"{two.neighbours:.1%}", cka])
        return [differences, *([agreements] if self.agreements else [])]

    def _remarks(self) -> list[str]:
        remarks = [
            "* the 95 % interval excludes 0; it is of other test rows, not of another training "
            f"({self.resamples:,} resamples, the same for all models)"
        ]
        questions = sum(not math.isnan(difference.holm) for difference in self.differences)
        if questions > 1:
            remarks.append(f"Holm p: adjusted for the {questions} comparisons made at once")
        if 2 * questions / (self.resamples + 1) > 0.05:
            remarks.append(
                f"no Holm p can be 0.05 or below with {self.resamples:,} resamples; {40 * questions:,} are needed"
            )
        if self.agreements:
            remarks.append(f"vectors of {self.texts:,} different texts; CKA is debiased")
        return [*remarks, *self.notes]


def _plain(figures: Mapping[str, Any]) -> dict[str, Any]:  # Any: JSON
    return {
        name: None if isinstance(value, float) and math.isnan(value) else value for name, value in figures.items()
    }
