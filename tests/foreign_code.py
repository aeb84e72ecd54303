"""Code that files of others name, which nothing may import or run, and a note of what is imported."""

from __future__ import annotations

from typing import Any

POPEN = {"class_path": "subprocess.Popen", "init_args": {"args": "touch RUN", "shell": True}}

EVIL = {"class_path": "evil.Evil"}

IMPORTED: set[str] = set()
"""Names of the modules that were imported since the last check."""


def note(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "import":
        IMPORTED.add(str(arguments[0]))
