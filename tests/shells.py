"""Commands as a user types them, in lines; capitals stand for files and for what a finished run has left."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from contrastive_text.cli import run

FINISHED = ("FOLDER", "CHECKPOINT", "MODEL")
"""Files of a finished run; the fixture ``finished`` trains it only if a line names one of them."""


def run_here(words: Sequence[str], log: Path, mode: str = "wb") -> str:
    """Stands for ``contrastive_text.cli.sweep._call``: a command of a sweep runs in this process."""
    with log.open(mode[0]) as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        status = run(words)
    return "" if status == 0 else log.read_text().rpartition("error: ")[2].strip()


@dataclass(frozen=True)
class Shell:
    """Runs commands in this process.

    Args:
        known: Word in capitals -> the words that it stands for.
        request: Gives the finished run.
        capture: What is written meanwhile.
    """

    known: Mapping[str, Sequence[str]]
    request: pytest.FixtureRequest
    capture: pytest.CaptureFixture[str]

    def words(self, line: str) -> list[str]:
        """Returns the words of a line."""
        return [each for word in shlex.split(line) for each in self._meant(word)]

    def _meant(self, word: str) -> Sequence[str]:
        if word in FINISHED:
            return [self.request.getfixturevalue("finished")[word.lower()]]
        return self.known.get(word, [word])

    def status(self, line: str | Sequence[str]) -> object:
        """Returns the status with which a command ends, of a line or of words."""
        words = self.words(line) if isinstance(line, str) else line
        self.capture.readouterr()
        try:
            return run(words)
        except SystemExit as left:
            if isinstance(left.code, str):
                print(left.code, file=sys.stderr)
            return left.code or 0

    def __call__(self, line: str | Sequence[str]) -> Any:  # Any: pytest's record of out and err
        """Runs a command that must end well; gives what it wrote to both streams."""
        status, said = self.status(line), self.capture.readouterr()
        assert status == 0, said
        return said

    def refused(self, line: str | Sequence[str]) -> str:
        """Runs a command that must fail; gives what it said, which is a few lines and no traceback."""
        status, message = self.status(line), self.capture.readouterr().err
        assert status != 0
        assert "Traceback" not in message
        assert "error:" in message
        lines = message.strip().splitlines()
        assert len(lines) <= 6, message
        return " ".join(" ".join(lines).split())

    def config(self, line: str) -> Any:  # Any: of YAML
        """Returns the configuration of a run, as ``--print_config`` shows it."""
        return yaml.safe_load(self(f"{line} --print_config").out)
