"""Tables on the terminal, apart from plain lines: rich takes its time to import."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TextIO

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderableType, RenderHook, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table

from contrastive_text.core.terminal import shown


def console(file: TextIO | None = None, soft_wrap: bool = False) -> Console:
    """Returns a console for tables, which takes no text for markup and shows what would steer the terminal.

    Args:
        file: Where it prints, without colours, also where FORCE_COLOR asks for them, as notebooks do; None for
            standard output.
        soft_wrap: Whether long lines are left to the terminal.
    """
    made = Console(
        file=file,
        color_system="auto" if file is None else None,
        soft_wrap=soft_wrap,
        markup=False,
        emoji=False,
        highlight=False,
    )
    made.push_render_hook(_ShowAll())
    return made


def print_whole(table: Table) -> None:
    """Prints a table, as wide as it is where no terminal bounds it: a name that is cut is another one's, too."""
    screen = console()
    if not screen.is_terminal:
        unbound = screen.options.update(max_width=10_000)
        screen.width = max(screen.width, Measurement.get(screen, unbound, table).maximum)
    screen.print(table)


class _ShowAll(RenderHook):
    """Lets nothing through to the terminal but what the console makes by itself."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Shown(renderable) for renderable in renderables]


class _Shown:
    def __init__(self, renderable: RenderableType) -> None:
        self.renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        segments: Iterable[Segment] = console.render(self.renderable, options)
        for segment in segments:
            yield segment if segment.control else Segment(shown(segment.text), segment.style)
