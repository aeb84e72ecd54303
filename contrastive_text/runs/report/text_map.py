"""Where texts lie: a map that shows each text under the finger, and the nearest neighbours of some of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from contrastive_text.runs.report.charts import WIDTH, Chart, draw
from contrastive_text.runs.report.groups import central, k_means, plane_of, words_of
from contrastive_text.runs.report.markup import Html, Note, tag
from contrastive_text.runs.report.section import Section
from contrastive_text.runs.report.space import Space
from contrastive_text.runs.report.style import LIGHT, SERIES, series

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_POINTS = 500
"""Texts on a map: on a phone more of them hide each other."""
_SAMPLES = 12
"""Texts whose neighbours are shown, divided among the runs of a page."""
_NEIGHBOURS = 3
_LETTERS, _BRIEF = 240, 140
"""Longest text, and longest neighbour, that is shown whole."""


class Layout(NamedTuple):
    """What all maps and lists of a page share.

    Args:
        texts: The texts of the map.
        groups: Number of each text's group, (N,).
        words: What the texts of each group have in common.
        places: For each run where the texts lie, (N, 2), and how much of the variance that shows.
        samples: Places of the texts whose neighbours are shown.
    """

    texts: Sequence[str]
    groups: Tensor
    words: Sequence[str]
    places: Sequence[tuple[Tensor, float]]
    samples: Sequence[int]


def lay_out(spaces: Sequence[Space], texts: Sequence[str]) -> Layout:
    """Finds groups and samples by the first run, and places the texts of each.

    Args:
        spaces: Vectors of the same texts, for each run; one at least.
        texts: The texts.
    """
    count = min(_POINTS, len(texts))
    first = spaces[0].texts[:count]
    groups = k_means(first, min(SERIES, max(1, count // 6)))
    places = [plane_of(first)]
    places += [plane_of(space.texts[:count], like=places[0][0]) for space in spaces[1:]]
    plane = places[0][0]
    samples = central(plane, k_means(plane, min(max(4, _SAMPLES // len(spaces)), count)))
    samples.sort(key=lambda i: (int(groups[i]), i))
    return Layout(texts[:count], groups, words_of(texts[:count], groups), places, samples)


def maps(spaces: Sequence[Space], notes: Sequence[Note], layout: Layout | None) -> Section:
    """Returns a map of the texts for each run that has a model; a dot that is touched, and those whose texts are
    searched for, light up in all."""
    title = "Map of texts"
    lead = (
        "Each dot is a text, in the two directions in which the vectors vary most. Colours are groups that lie "
        "together in all directions, with words that set them apart."
    )
    if layout is None:
        return Section("map", title, lead, notes)
    names = [
        tag("li", tag("span", class_=f"dot series-{number + 1}"), words)
        for number, words in enumerate(layout.words)
    ]
    reader = tag("output", "Point at a dot to read its text.", class_="reader", dir="auto", aria_live="polite")
    found = tag("ol", class_="found")
    field = tag("label", "Find texts ", tag("input", type="search", autocomplete="off", spellcheck="false"))
    search = tag("div", field, tag("output", class_="small"), found, class_="search", hidden="")
    key = tag("div", tag("ul", *names, class_="key"), reader, search, class_="beside")
    return Section("map", title, lead, [*(_map(number, spaces, layout) for number in range(len(spaces))), key])


def neighbours(
    spaces: Sequence[Space], notes: Sequence[Note], texts: Sequence[str], layout: Layout | None
) -> Section:
    """Returns the nearest neighbours of the sample texts in each run, with their cosines."""
    title = "Nearest neighbours"
    lead = (
        f"The numbered texts of the map, and the {_NEIGHBOURS} texts nearest to each among all {len(texts):,}, "
        "with their cosines. Neighbours that mean the same, and not only share words, are what training is for."
    )
    if layout is None:
        return Section("neighbours", title, lead, notes)
    found = [_nearest(space.texts, layout.samples) for space in spaces]
    items = []
    for number, sample in enumerate(layout.samples):
        lists = []
        for space, nearest in zip(spaces, found, strict=True):
            hits = [
                tag("li", tag("b", f"{cosine:.2f}"), shown(texts[i], _BRIEF)) for i, cosine in nearest[number]
            ]
            name = tag("h4", tag("span", class_=f"dot series-{space.run.number + 1}"), space.run.name)
            lists.append(tag("div", "" if space.run.alone else name, tag("ol", *hits)))
        group = int(layout.groups[sample]) + 1
        asked = tag("h3", tag("span", str(number + 1), class_=f"number series-{group}"), shown(texts[sample]))
        items.append(tag("li", asked, tag("div", *lists, class_="lists")))
    return Section(
        "neighbours",
        title,
        lead,
        [tag("ol", *items, class_="neighbours" if spaces[0].run.alone else "neighbours several")],
    )


def shown(text: str, letters: int = _LETTERS) -> Html:
    """Returns a text, the end of a long one left out, in the direction of its letters."""
    return tag("span", _shortened(text, letters), dir="auto", class_="text")


def _shortened(text: str, letters: int) -> str:
    return text if len(text) <= letters else f"{text[: letters - 1].rstrip()}…"


def _map(number: int, spaces: Sequence[Space], layout: Layout) -> Chart:
    run = spaces[number].run
    places, share = layout.places[number]
    x, y = (places[:, side].tolist() for side in (0, 1))
    colours = [series(group) for group in layout.groups.tolist()]

    def paint(figure: Figure) -> None:
        figure.set_layout_engine("none")
        axes = figure.add_axes((0, 0, 1, 1), aspect="equal", adjustable="datalim")
        axes.set_axis_off()
        axes.margins(0.05)
        dots = axes.scatter(x, y, s=22, c=colours, edgecolors=LIGHT["paper"], linewidths=0.5, alpha=0.85)
        dots.set(gid="points", clip_on=False)
        for place, sample in enumerate(layout.samples):
            at = (x[sample], y[sample])
            axes.plot(*at, "o", markersize=17, color=LIGHT["paper"], markeredgecolor=colours[sample])
            axes.annotate(str(place + 1), at, ha="center", va="center_baseline", weight="bold")

    title = "Texts" if run.alone else run.name
    turned = ", turned to lie like the first," if number else ""
    note = f"{len(x):,} texts; these two directions{turned} hold {share:.0%} of the variance."
    chart = draw(f"map-{run.number + 1}", title, note, paint, width=WIDTH, height=WIDTH)
    return replace(chart, svg=_with_texts(chart.svg, layout.texts))


def _with_texts(svg: str, texts: Sequence[str]) -> Html:
    """Returns a map whose dots know their texts: by title for the pointer, and as stops of the arrow keys."""
    start = svg.index('<g id="points">')
    end = svg.index("</g>", start)
    named = iter(texts)

    def dot(found: re.Match[str]) -> str:
        title = tag("title", _shortened(next(named), _LETTERS))
        return f'{found[1]}style="fill: {found[2]}" class="point" tabindex="-1" role="img">{title}</use>'

    body, dots = re.subn(r'(<use[^>]*)style="fill: ([^;]*);[^>]*/>', dot, svg[start:end])
    assert dots == len(texts)
    group = svg[:start].replace('role="img"', 'role="group"', 1)
    return Html(group + body.replace(' id="points"', "", 1) + svg[end:])


def _nearest(vectors: Tensor, samples: Sequence[int]) -> list[list[tuple[int, float]]]:
    cosines = vectors[list(samples)] @ vectors.T
    cosines[range(len(samples)), list(samples)] = -torch.inf  # not the text itself
    best = cosines.topk(min(_NEIGHBOURS, len(vectors) - 1), dim=1)
    return [
        list(zip(places, values, strict=True))
        for places, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
