"""Output for people: lines and tables on a terminal, tables in a notebook, code spans in Markdown."""

from __future__ import annotations

import html
import io
import json
import logging
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

LOGGER = logging.getLogger("contrastive_text")
"""Logger of the messages of a run."""
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters except tab and newline, such as escape and C1's CSI
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # direction of writing (can reorder text), line separators
    "\ud800-\udfff"  # lone surrogates, as in a file name that isn't UTF-8
    "\U000e0000-\U000e007f]"  # letters that no terminal shows
)


def escape_controls(text: object) -> str:
    r"""Replaces characters that control a terminal, or that it doesn't show, by escapes.

    Example:
        >>> print(escape_controls("a \x1b[31mred\x1b[0m word"))
        a \x1b[31mred\x1b[0m word
        >>> escape_controls("naïve 東京 🙂")
        'naïve 東京 🙂'
    """
    return _UNSAFE.sub(lambda match: _escape(match[0]), str(text))


def _escape(letter: str) -> str:
    number = ord(letter)
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}" if number < 65536 else f"\\U{number:08x}"


def print_message(text: object = "", file: TextIO | None = None, end: str = "\n") -> None:
    """Prints a text, with escapes in place of characters that control the terminal.

    Args:
        text: Text to print.
        file: Output; None for standard output. Characters that its encoding lacks are escaped too.
        end: Text that is printed after it.

    Raises:
        SystemExit: The reader has closed the pipe, as in ``| head``. The status is 141, as in a shell.
    """
    stream = sys.stdout if file is None else file
    encoding = stream.encoding or "utf-8"
    try:
        stream.write(escape_controls(text).encode(encoding, "backslashreplace").decode(encoding) + end)
        stream.flush()
    except BrokenPipeError:
        with open(os.devnull, "w") as nowhere:  # receives the rest of the buffer when Python exits
            os.dup2(nowhere.fileno(), stream.fileno())
        raise SystemExit(128 + 13) from None  # the number of SIGPIPE, which Windows lacks


class _Terminal(logging.Handler):
    """Prints messages on standard output, and warnings on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        print_message(record.getMessage(), file=sys.stderr if record.levelno >= logging.WARNING else None)


def log_to_terminal() -> None:
    """Makes the logger ``contrastive_text`` print on the terminal, whatever handlers other libraries have set."""
    if not any(isinstance(handler, _Terminal) for handler in LOGGER.handlers):
        LOGGER.addHandler(_Terminal())
    LOGGER.propagate = False


def log_message(text: object, level: int = logging.INFO) -> None:
    """Logs a message of a run with the logger ``contrastive_text``.

    If no handler is set, the message is printed. A program that embeds a run sets the logger's level, or handlers
    of its own.

    Args:
        text: Text to log.
        level: Level of ``logging``.

    Example:
        >>> LOGGER.setLevel(logging.WARNING)
        >>> log_message("Resuming")
        >>> LOGGER.setLevel(logging.INFO)
    """
    if LOGGER.level == logging.NOTSET:
        LOGGER.setLevel(logging.INFO)
    if not LOGGER.hasHandlers():
        log_to_terminal()
    LOGGER.log(level, "%s", text)


def print_json(text: str) -> None:
    r"""Prints JSON on standard output, with JSON's own escapes for characters that ``print_message`` would
    escape.

    Example:
        >>> print_json('{"text": "caf\u00e9 \x7f"}')
        {"text": "café \u007f"}
    """
    encoding = sys.stdout.encoding or "utf-8"

    def printable(letter: str) -> str:
        plain = escape_controls(letter) == letter and letter.encode(encoding, "ignore") != b""
        return letter if plain else json.dumps(letter, ensure_ascii=True).strip('"').replace("\x7f", "\\u007f")

    print_message(text if text.isascii() and escape_controls(text) == text else "".join(map(printable, text)))


@contextmanager
def escaping_output() -> Iterator[None]:
    """Makes outputs print characters that their encoding lacks as escapes, inside the block.

    Libraries that print, such as progress bars, would otherwise end a run with UnicodeEncodeError if the encoding
    of standard output isn't UTF-8. An error handler that the user chose is kept.

    Example:
        >>> with escaping_output():
        ...     print("a")
        a
    """
    standard = (sys.stdout, sys.stderr)
    handlers = {
        stream: str(stream.errors)
        for stream in standard
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape")
    }
    with suppress(OSError):  # a closed pipe: reported by the next print
        for stream in handlers:
            stream.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        for stream, errors in handlers.items():
            with suppress(OSError, ValueError):  # as above, or closed meanwhile
                stream.reconfigure(errors=errors)


def show_warnings() -> None:
    """Makes this process print warnings with escapes, in any format. (Lightning sets its own format.)"""

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        text = warnings.formatwarning(message, category, filename, lineno, line)  # as it is at that time
        print_message(text, file=sys.stderr if file is None else file, end="")

    warnings.showwarning = show


def make_console(file: TextIO | None = None, soft_wrap: bool = False) -> Console:
    """Returns a console for tables that ignores markup and escapes characters that control the terminal.

    Args:
        file: Output, always without colors, even if FORCE_COLOR is set, as notebooks do. None for standard
            output.
        soft_wrap: Whether the terminal, not the console, wraps long lines.
    """
    result = Console(
        file=file,
        color_system="auto" if file is None else None,
        soft_wrap=soft_wrap,
        markup=False,
        emoji=False,
        highlight=False,
    )
    result.push_render_hook(_EscapeText())
    return result


def print_table(table: Table) -> None:
    """Prints a table; outside a terminal at full width, so that no name is cut off and taken for another."""
    screen = make_console()
    if not screen.is_terminal:
        options = screen.options.update(max_width=10_000)
        screen.width = max(screen.width, Measurement.get(screen, options, table).maximum)
    screen.print(table)


class _EscapeText(RenderHook):
    """Escapes characters that control the terminal in all text, but not in the console's own commands."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Escaped(renderable) for renderable in renderables]


class _Escaped:
    def __init__(self, renderable: RenderableType) -> None:
        self.renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        segments: Iterable[Segment] = console.render(self.renderable, options)
        for segment in segments:
            yield segment if segment.control else Segment(escape_controls(segment.text), segment.style)


def html_table(caption: str, cells: Sequence[Sequence[str]], notes: Sequence[str] = ()) -> str:
    """Returns rows of cells as an HTML table. The first row names the columns, the first column names the rows.

    Texts are escaped, and lines of a cell stay lines.

    Args:
        caption: Caption of the table.
        cells: The rows, all of the same number of cells.
        notes: Lines under the table.

    Example:
        >>> print(html_table("scores", [["model", "MR"], ["<mine>", "81.00"]], notes=["times 100"]))
        <table><caption>scores</caption>
        <thead><tr><th scope="col">model</th><th scope="col">MR</th></tr></thead>
        <tbody><tr><th scope="row">&lt;mine&gt;</th><td>81.00</td></tr></tbody></table>
        <ul><li>times 100</li></ul>
    """
    head, *rows = [[_html_lines(cell) for cell in row] for row in cells]
    names = "".join(f'<th scope="col">{name}</th>' for name in head)
    body = "\n".join(
        f'<tr><th scope="row">{name}</th>{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>'
        for name, *rest in rows
    )
    top = f"<caption>{_html_lines(caption)}</caption>\n<thead><tr>{names}</tr></thead>"
    return "\n".join([f"<table>{top}\n<tbody>{body}</tbody></table>", *([html_list(notes)] if notes else [])])


def html_list(notes: Sequence[str]) -> str:
    """Returns notes as an HTML list."""
    return f"<ul>{''.join(f'<li>{_html_lines(note)}</li>' for note in notes)}</ul>"


def facts_table(caption: str, facts: Mapping[str, str]) -> str:
    """Returns a mapping of name to value as an HTML table of two columns."""
    return html_table(caption, [["", "value"], *([name, fact] for name, fact in facts.items())])


def _html_lines(text: str) -> str:
    return html.escape(text).replace("\n", "<br>")


_MARKUP = re.compile(r"[\\`*\[\]<|~$&#]|^>|(?<!\w)_|_(?!\w)")
"""Characters that are markup in Markdown; an underscore inside a word is not."""


def as_markdown(text: object) -> str:
    r"""Escapes a text so that Markdown shows it unchanged on one line: no markup, HTML or ends of cells.

    Characters that control a terminal or the direction of writing become escapes.

    Example:
        >>> print(as_markdown("<img src=x onerror=alert(1)> a|b"))
        \<img src=x onerror=alert(1)> a\|b
        >>> print(as_markdown("](javascript:x) `code`\nmodel_name_or_path __init__"))
        \](javascript:x) \`code\` model_name_or_path \__init_\_
    """
    return _MARKUP.sub(r"\\\g<0>", escape_controls(_one_line(text)))


def _one_line(text: object) -> str:
    return re.sub(r"\s*[\r\n]+\s*", " ", str(text))


def code_span(text: object) -> str:
    """Returns a text as a code span in Markdown, whatever backticks it contains.

    Example:
        >>> code_span("bert-base"), code_span("a`b"), code_span("`a")
        ('`bert-base`', '``a`b``', '`` `a ``')
    """
    line = escape_controls(_one_line(text)) or " "
    fence = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))
    pad = " " if line[0] == "`" or line[-1] == "`" else ""
    return f"{fence}{pad}{line}{pad}{fence}"
