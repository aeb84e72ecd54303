"""A section of the page: charts, tables and notes on what is missing, under one heading."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from contrastive_text.runs.report.charts import Chart
from contrastive_text.runs.report.markup import Html, Note, tag


@dataclass(frozen=True, slots=True)
class Section:
    """What stands under one heading.

    Args:
        name: Of its place in the page.
        title: The heading.
        lead: How to read what follows.
        parts: Charts, and other markup, in their order.
    """

    name: str
    title: str
    lead: str
    parts: Sequence[Chart | Html]

    @property
    def charts(self) -> list[Chart]:
        """The charts, whose pictures are written beside the page."""
        return [part for part in self.parts if isinstance(part, Chart)]

    @property
    def markup(self) -> Html:
        """The section as markup: charts, and notes in place of them, stand side by side where there is room."""
        body: list[Html] = []
        for drawn, group in groupby(self.parts, key=lambda part: isinstance(part, Chart | Note)):
            said = [part.figure if isinstance(part, Chart) else part for part in group]
            body += [tag("div", *said, class_="charts")] if drawn else said
        heading = tag("header", tag("h2", self.title, id=f"{self.name}-heading"), tag("p", self.lead))
        return tag(
            "section",
            heading,
            tag("div", *body, class_="body"),
            id=self.name,
            aria_labelledby=f"{self.name}-heading",
        )
