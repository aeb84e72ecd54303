"""Output for people: lines and tables on a terminal, tables in a notebook, code spans in Markdown."""

from __future__ import annotations

import html
import io
import json
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TextIO

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderableType, RenderHook, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table

_STEERING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # but tab and newline: control characters, the escape and C1's CSI among them
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # direction of writing, which can swap what is read; line ends
    "\ud800-\udfff"  # half characters, as a file's name that is no UTF-8 has them
    "\U000e0000-\U000e007f]"  # letters that no terminal shows
)


def shown(text: object) -> str:
    r"""Returns text with characters that steer a terminal, or are never seen, as escapes.

    Example:
        >>> print(shown("a \x1b[31mred\x1b[0m word"))
        a \x1b[31mred\x1b[0m word
        >>> shown("naïve 東京 🙂")
        'naïve 東京 🙂'
    """
    return _STEERING.sub(lambda found: _escape(found[0]), str(text))


def _escape(letter: str) -> str:
    number = ord(letter)
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}" if number < 65536 else f"\\U{number:08x}"


def say(text: object = "", file: TextIO | None = None, end: str = "\n") -> None:
    """Prints a text, with escapes in place of what would steer the terminal.

    Args:
        text: What to print.
        file: Where; None for standard output. What its encoding lacks is shown as escapes too.
        end: What comes after it.

    Raises:
        SystemExit: Nobody reads any longer, as after ``| head``: with the status that a shell gives for it, 141.
    """
    stream = sys.stdout if file is None else file
    encoding = stream.encoding or "utf-8"
    try:
        stream.write(shown(text).encode(encoding, "backslashreplace").decode(encoding) + end)
        stream.flush()
    except BrokenPipeError:
        with open(os.devnull, "w") as nowhere:  # for what is still in the buffer, when Python ends
            os.dup2(nowhere.fileno(), stream.fileno())
        raise SystemExit(128 + 13) from None  # SIGPIPE's number, which Windows hasn't


def say_json(text: str) -> None:
    r"""Prints JSON on standard output, with JSON's own escapes for what ``say`` would escape.

    Example:
        >>> say_json('{"text": "caf\u00e9 \x7f"}')
        {"text": "café \u007f"}
    """
    encoding = sys.stdout.encoding or "utf-8"

    def printable(letter: str) -> str:
        plain = shown(letter) == letter and letter.encode(encoding, "ignore") != b""
        return letter if plain else json.dumps(letter, ensure_ascii=True).strip('"').replace("\x7f", "\\u007f")

    say(text if text.isascii() and shown(text) == text else "".join(map(printable, text)))


@contextmanager
def escaping_output() -> Iterator[None]:
    """Prints characters that an output's encoding lacks as escapes, while the block runs.

    Libraries that print by themselves, such as a progress bar, would end a run with UnicodeEncodeError where the
    encoding of standard output isn't UTF-8. An error handler that the user chose stays.

    Example:
        >>> with escaping_output():
        ...     print("a")
        a
    """
    standard = (sys.stdout, sys.stderr)
    before = {
        stream: str(stream.errors)
        for stream in standard
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape")
    }
    with suppress(OSError):  # nobody reads any longer: said when something is printed
        for stream in before:
            stream.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        for stream, errors in before.items():
            with suppress(OSError, ValueError):  # as above, or closed meanwhile
                stream.reconfigure(errors=errors)


def show_warnings() -> None:
    """Has this process print warnings in the same way, whoever lays them out: Lightning does it by itself."""

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        laid_out = warnings.formatwarning(message, category, filename, lineno, line)  # as it is at that time
        say(laid_out, file=sys.stderr if file is None else file, end="")

    warnings.showwarning = show


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


def html_table(caption: str, cells: Sequence[Sequence[str]], notes: Sequence[str] = ()) -> str:
    """Returns rows of cells as a table whose first row names the columns and whose first column the rows.

    Texts stay texts: markup in them is escaped, and lines of a cell stay lines.

    Args:
        caption: What the table shows.
        cells: The rows, all of the same number of cells.
        notes: Lines under the table.

    Example:
        >>> print(html_table("scores", [["model", "MR"], ["<mine>", "81.00"]], notes=["times 100"]))
        <table><caption>scores</caption>
        <thead><tr><th scope="col">model</th><th scope="col">MR</th></tr></thead>
        <tbody><tr><th scope="row">&lt;mine&gt;</th><td>81.00</td></tr></tbody></table>
        <ul><li>times 100</li></ul>
    """
    head, *rows = [[_lines(cell) for cell in row] for row in cells]
    names = "".join(f'<th scope="col">{name}</th>' for name in head)
    body = "\n".join(
        f'<tr><th scope="row">{name}</th>{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>'
        for name, *rest in rows
    )
    top = f"<caption>{_lines(caption)}</caption>\n<thead><tr>{names}</tr></thead>"
    return "\n".join([f"<table>{top}\n<tbody>{body}</tbody></table>", *([html_list(notes)] if notes else [])])


def html_list(notes: Sequence[str]) -> str:
    """Returns notes as a list."""
    return f"<ul>{''.join(f'<li>{_lines(note)}</li>' for note in notes)}</ul>"


def facts_table(caption: str, facts: Mapping[str, str]) -> str:
    """Returns facts by name as a table of two columns."""
    return html_table(caption, [["", "value"], *([name, fact] for name, fact in facts.items())])


def _lines(text: str) -> str:
    return html.escape(text).replace("\n", "<br>")


_MARKUP = re.compile(r"[\\`*\[\]<|~$&#]|^>|(?<!\w)_|_(?!\w)")
"""Characters of markup; an underscore inside a word is none."""


def as_markdown(text: object) -> str:
    r"""Returns a text as Markdown that shows it unchanged on one line: no markup, no HTML, no cell ends.

    Characters that steer a terminal or the direction of writing are shown as escapes.

    Example:
        >>> print(as_markdown("<img src=x onerror=alert(1)> a|b"))
        \<img src=x onerror=alert(1)> a\|b
        >>> print(as_markdown("](javascript:x) `code`\nmodel_name_or_path __init__"))
        \](javascript:x) \`code\` model_name_or_path \__init_\_
    """
    return _MARKUP.sub(r"\\\g<0>", shown(_one_line(text)))


def _one_line(text: object) -> str:
    return re.sub(r"\s*[\r\n]+\s*", " ", str(text))


def code_span(text: object) -> str:
    """Returns a text as code in Markdown, whatever backticks it has.

    Example:
        >>> code_span("bert-base"), code_span("a`b"), code_span("`a")
        ('`bert-base`', '``a`b``', '`` `a ``')
    """
    line = shown(_one_line(text)) or " "
    fence = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))
    pad = " " if line[0] == "`" or line[-1] == "`" else ""
    return f"{fence}{pad}{line}{pad}{fence}"
