"""Sheets of drawings as SVG text: boxes of words, grids of features, bars and lines, with one layout for all."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Literal, NamedTuple

WIDTH = 640
MARGIN = 16
SIZE = 15
SMALL = 13
LETTER = 0.6  # em, a generous mean width of letters
PAD, GAP = 5, 4
BOX, LINE = 26, 34
ROW = 18
LABELS = 74

Kind = Literal["kept", "gone", "new", "moved"]
"""Effect of a view on a piece of text, and the CSS class of its color."""


class Colors(NamedTuple):
    """Colors of a theme: paper, ink, small print, cells, and fill, stroke and ink of each kind."""

    paper: str
    ink: str
    soft: str
    cell: str
    kinds: dict[Kind, tuple[str, str, str]]

    def rules(self) -> str:
        """Returns the colors as CSS."""
        kinds = "".join(
            f".{kind}{{stroke:{stroke}}}rect.{kind}{{fill:{fill}}}text.{kind}{{fill:{ink};stroke:none}}"
            for kind, (fill, stroke, ink) in self.kinds.items()
        )
        return (
            f".paper{{fill:{self.paper}}}text{{fill:{self.ink}}}{kinds}text.soft{{fill:{self.soft}}}"
            f".cell{{fill:{self.cell}}}.hole{{stroke:{self.kinds['gone'][1]}}}"
        )


LIGHT = Colors(
    paper="#fff",
    ink="#1f2328",
    soft="#59636e",
    cell="#0969da",
    kinds={
        "kept": ("#f0f1f3", "#b6bdc6", "#1f2328"),
        "gone": ("#ffebe9", "#d1242f", "#a40e26"),
        "new": ("#dafbe1", "#1a7f37", "#116329"),
        "moved": ("#ddf4ff", "#0969da", "#0a4a9e"),
    },
)
DARK = Colors(
    paper="#0d1117",
    ink="#e6edf3",
    soft="#9198a1",
    cell="#58a6ff",
    kinds={
        "kept": ("#21262d", "#59636e", "#e6edf3"),
        "gone": ("#3c1618", "#f85149", "#ff9b94"),
        "new": ("#12301b", "#3fb950", "#7ee787"),
        "moved": ("#10284a", "#4493f8", "#a5cdff"),
    },
)
FORMS = (
    "text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}"
    "text.code{font-family:ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace}"
    "text.gone{text-decoration:line-through}rect.new{stroke-width:2}"
    "path{stroke-width:1.5}path,circle,.hole{fill:none}.faint{stroke-dasharray:2 3}"
)


class Box(NamedTuple):
    """A word in a box, and a note below it."""

    text: str
    kind: Kind = "kept"
    note: str = ""
    note_kind: Kind = "kept"


class Place(NamedTuple):
    """Position of a box: its middle, its upper and its lower edge."""

    middle: int
    top: int
    bottom: int


def text_width(text: str, size: int = SIZE) -> int:
    """Returns a width that is enough for a text."""
    return math.ceil(LETTER * size * len(text))


class Sheet:
    """A sheet that is filled from top to bottom.

    Args:
        title: What it shows, for those who can't see it.
        call: The part that was at work, as Python.
    """

    def __init__(self, title: str, call: str) -> None:
        self.y = MARGIN
        self._title = title
        self._shapes: list[str] = []
        self.label(call, kind="code")

    def text(
        self, x: float, y: float, text: str, kind: str = "", size: int = SIZE, anchor: str = "start"
    ) -> None:
        """Writes a line whose letters stand on y."""
        self._shapes.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" class="{kind}">'
            f"{escape(text)}</text>"
        )

    def rectangle(self, x: float, y: float, width: float, height: float, kind: str, opacity: float = 1.0) -> None:
        """Draws a rectangle with round corners."""
        faded = "" if opacity == 1 else f' fill-opacity="{opacity:.2f}"'
        self._shapes.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" class="{kind}"{faded}/>'
        )

    def path(self, points: Sequence[tuple[float, float]], kind: str) -> None:
        """Draws a line through points."""
        joined = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        self._shapes.append(f'<path d="M{joined}" class="{kind}"/>')

    def arrow(self, x: float, y: float, dx: float, dy: float, kind: str) -> None:
        """Draws an arrow from a point."""
        tip, turn = (x + dx, y + dy), math.atan2(dy, dx)
        back, forth = (
            (tip[0] - 6 * math.cos(turn + side), tip[1] - 6 * math.sin(turn + side)) for side in (0.5, -0.5)
        )
        self.path([(x, y), tip, back, tip, forth], kind=kind)

    def circle(self, x: float, y: float, radius: float) -> None:
        """Draws a faint circle."""
        self._shapes.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" class="kept faint"/>')

    def label(self, text: str, kind: str = "soft") -> None:
        """Writes a small line of its own."""
        self.text(MARGIN, self.y + SMALL, text, kind=kind, size=SMALL)
        self.y += SMALL + 9

    def boxes(self, boxes: Sequence[Box], widths: Iterable[int] | None = None, x: int = MARGIN) -> list[Place]:
        """Sets boxes side by side, on as many lines as they need.

        Args:
            boxes: The boxes; one without text is left out, but keeps its place.
            widths: Width of each; None for that of its text.
            x: Where lines begin.
        """
        left, places = x, []
        step = LINE + (SMALL + 3 if any(box.note for box in boxes) else 0)
        wanted = map(box_width, boxes) if widths is None else widths
        for box, width in zip(boxes, wanted, strict=True):
            if left > x and left + width > WIDTH - MARGIN:
                left, self.y = x, self.y + step
            middle = left + width // 2
            if box.text:
                self.rectangle(left, self.y, width, BOX, kind=box.kind)
                self.text(middle, self.y + BOX - 8, box.text, kind=box.kind, anchor="middle")
            if box.note:
                note = "soft" if box.note_kind == "kept" else box.note_kind
                self.text(middle, self.y + BOX + SMALL + 2, box.note, kind=note, size=SMALL, anchor="middle")
            places.append(Place(middle, self.y, self.y + BOX))
            left += width + GAP
        self.y += step
        return places

    def names(self, names: Sequence[str]) -> None:
        """Writes the names of a grid's rows, and stays in the first."""
        for row, name in enumerate(names):
            self.text(MARGIN + LABELS - 10, self.y + row * ROW + SMALL, name, size=SMALL, anchor="end")

    def grid(self, x: int, cell: int, rows: Sequence[Sequence[float]]) -> None:
        """Draws numbers as cells, stronger for greater ones, hollow for 0, and stays in the first row.

        Args:
            x: Left edge.
            cell: Width of a cell.
            rows: The numbers.
        """
        for i, row in enumerate(rows):
            for j, number in enumerate(row):
                kind = "hole" if number == 0 else "cell"
                opacity = 1.0 if number == 0 else 0.1 + 0.9 / (1 + math.exp(-1.5 * number))
                self.rectangle(x + j * cell, self.y + i * ROW, cell - 3, ROW - 3, kind=kind, opacity=opacity)

    def svg(self) -> str:
        """Returns the sheet as the content of a file."""
        height = self.y + MARGIN - (LINE - BOX)
        style = f"{LIGHT.rules()}@media (prefers-color-scheme:dark){{{DARK.rules()}}}{FORMS}"
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
                f'height="{height}" role="img">',
                f"<title>{escape(self._title)}</title>",
                f"<style>{style}</style>",
                f'<rect width="{WIDTH}" height="{height}" class="paper"/>',
                '<g transform="translate(.5 .5)">',  # lines of one pixel, crisp
                *self._shapes,
                "</g>",
                "</svg>",
                "",
            ]
        )


def box_width(box: Box) -> int:
    """Returns the width that a box needs."""
    return max(text_width(box.text) + 2 * PAD, text_width(box.note, SMALL))
