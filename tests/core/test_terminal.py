"""Tests that printed text never controls the terminal, and that all output is printed by ``core.terminal``."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.color import ColorSystem
from rich.table import Table

from contrastive_text.core.terminal import (
    LOGGER,
    escape_controls,
    escaping_output,
    log_message,
    log_to_terminal,
    make_console,
    print_json,
    print_message,
    show_warnings,
)

HOSTILE = (
    "x[/bold]y \x1b[31mred\x1b]0;title\x07 \x9b2J \x07\x08\r \u202eabc\u2066 \udcff "
    "[link=http://a]b[/link] :smile:"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\tb\nc", "a\tb\nc"),
        ("naïve 東京 🙂 👩‍🚀 नमस्ते", "naïve 東京 🙂 👩‍🚀 नमस्ते"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\x9b31m\x85\x7f\0\r", "\\x9b31m\\x85\\x7f\\x00\\x0d"),
        ("a\u202eb\u2067c\u200fd", "a\\u202eb\\u2067c\\u200fd"),
        ("a\udcffb", "a\\udcffb"),
        ("a\U000e0041b", "a\\U000e0041b"),
        (3, "3"),
    ],
)
def test_what_steers_a_terminal_is_shown(text: object, expected: str) -> None:
    assert escape_controls(text) == expected


@given(st.text(max_size=40))
def test_what_is_shown_can_be_printed_and_stays_so(text: str) -> None:
    once = escape_controls(text)
    assert escape_controls(once) == once
    assert not {letter for letter in once if ord(letter) < 32 or 127 <= ord(letter) < 160} - {"\t", "\n"}
    once.encode()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_stream_that_lacks_letters_gets_escapes(encoding: str) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, newline="\n")
    print_message("東京 é \udcff \x1b", file=stream)
    expected = {"ascii": "\\u6771\\u4eac \\xe9", "latin-1": "\\u6771\\u4eac é", "utf-8": "東京 é"}[encoding]
    assert raw.getvalue().decode(encoding) == f"{expected} \\udcff \\x1b\n"


def test_tables_rules_and_lines_show_hostile_text_and_know_no_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as notebooks do
    file = io.StringIO()
    screen = make_console(file=file)
    screen.width = 400
    table = Table(HOSTILE, title=HOSTILE, caption=HOSTILE)
    table.add_row(HOSTILE)
    screen.print(table)
    screen.rule(HOSTILE)
    screen.print(HOSTILE)
    said = file.getvalue()
    assert escape_controls(said) == said  # a file gets no colors, so nothing steering is left
    assert said.count("x[/bold]y \\x1b[31mred") == 6
    assert ":smile:" in said and "[link=" in said


def test_a_terminal_still_gets_colors_of_our_own() -> None:
    file = io.StringIO()
    screen = make_console(file=file)
    screen._force_terminal = True
    screen._color_system = ColorSystem.STANDARD
    screen.print("\x1b[31mx", style="bold")
    assert file.getvalue() == "\x1b[1m\\x1b[31mx\x1b[0m\n"


def test_warnings_are_printed_in_the_same_way_however_they_are_laid_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    show_warnings()
    # As Lightning does.
    monkeypatch.setattr(warnings, "formatwarning", lambda message, *_: f"its own way: {message}\n")
    file = io.StringIO()
    warnings.showwarning("\x1b[31m", UserWarning, "a.py", 1, file)
    assert file.getvalue() == "its own way: \\x1b[31m\n"


def test_print_message_goes_where_standard_output_goes_at_the_time(capsys: pytest.CaptureFixture[str]) -> None:
    print_message("a\x1b", end="")
    print_message("b", file=sys.stderr)
    assert capsys.readouterr() == ("a\\x1b", "b\n")


def test_a_reader_that_has_gone_ends_a_program_without_a_word() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    code = "from contrastive_text.core.terminal import print_message as say; say('a bird'); say('never')"
    done = subprocess.run([sys.executable, "-c", code], stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_what_others_print_is_escaped_where_an_encoding_lacks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    out = io.TextIOWrapper(written, encoding="latin-1", errors="strict", write_through=True)
    monkeypatch.setattr(sys, "stdout", out)
    with escaping_output():
        out.write("\u2022 na\u00efve\n")  # as a progress bar does
        print_json(json.dumps({"text": "\u2022 \U0001f642 \x7f \u00ef"}, ensure_ascii=False))
    assert out.errors == "strict"
    first, second = written.getvalue().decode("latin-1").splitlines()
    assert first == "\\u2022 na\u00efve"
    assert json.loads(second) == {"text": "\u2022 \U0001f642 \x7f \u00ef"}


def test_messages_of_a_run_are_printed_unless_a_program_has_set_its_own_handlers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(LOGGER, "handlers", [])
    monkeypatch.setattr(LOGGER, "propagate", True)
    log_message("one")
    log_message("two", logging.WARNING)
    assert capsys.readouterr() == ("one\n", "two\n")
    own = logging.StreamHandler(stream := io.StringIO())
    monkeypatch.setattr(LOGGER, "handlers", [])
    monkeypatch.setattr(LOGGER, "propagate", True)
    monkeypatch.setattr(logging.getLogger(), "handlers", [own])
    log_message("three")
    assert (capsys.readouterr().out, stream.getvalue()) == ("", "three\n")
    log_to_terminal()  # as the shell does
    log_message("four")
    assert (capsys.readouterr().out, stream.getvalue()) == ("four\n", "three\n")
