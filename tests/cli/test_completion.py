"""Tests of tab completion in the shells themselves."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from contrastive_text.cli import run
from contrastive_text.cli.main import COMMANDS
from contrastive_text.recipes import recipe_names


def offered(shell: str, script: str, words: Sequence[str], here: Path) -> list[str]:
    """Returns the words that a shell offers for the last one."""
    (here / "script").write_text(script, encoding="utf-8")
    start = "autoload -Uz compinit && compinit -u -d ./dump\n" if shell == "zsh" else ""
    asked = " ".join(f"'{word}'" for word in ("contrastive-text", *words))
    # zsh counts from 1 unless it is told otherwise, as bashcompinit does, and looks at the last word afterwards
    like = "setopt KSH_ARRAYS\n" if shell == "zsh" else ""
    code = f"{start}. ./script\n{like}COMP_WORDS=({asked})\nCOMP_CWORD={len(words)}\n"
    code += '_contrastive_text\nprintf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run([shell, "-c", code], capture_output=True, text=True, cwd=here)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return [word for word in done.stdout.split() if word.startswith(words[-1])]


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_tab_key_offers_commands_options_and_values(
    shell: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} isn't installed")
    assert run(["completion", shell]) == 0
    script = capsys.readouterr().out
    for words, expected in {
        ("",): {*COMMANDS},
        ("dup",): {"duplicates"},
        ("fit", "--recipe", ""): {*recipe_names()},
        ("fit", "--valid"): {"--validation"},
        ("sweep", "--take", ""): {"best", "last"},
        ("sweep", "--ta"): {"--take"},
        ("new", "po"): {"pooler"},
        ("embed", "texts.tx"): set(),  # the shell's turn: files
    }.items():
        assert {*offered(shell, script, words, here)} == expected, words
