"""What is printed: text of files and of users is shown as it is, and never steers the terminal."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

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
