"""A part of one's own to begin with: what is written works as it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from shells import Shell

KINDS = ("view", "text_view", "embedding_view", "pooler", "loss", "objective")


def class_of(kind: str) -> str:
    return kind.title().replace("_", "")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_trains_as_it_is(kind: str, shell: Shell, here: Path) -> None:
    name, module = f"Brand{class_of(kind)}", f"brand_{kind}"
    shell(f"new {kind} {name}")
    said = shell(f"FIT --config {module}.yaml --trainer.max_steps 1 TINY").out
    assert (f"contrastive-text report --trust {module} " in said) or kind != "view"
    (config,) = here.rglob("config.yaml")
    assert f"{module}.{name}" in config.read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_tests_that_are_written_pass(shell: Shell, here: Path) -> None:
    for kind in KINDS:
        shell(f"new {kind} Fresh{class_of(kind)}")
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=here)
    assert done.returncode == 0 and "14 passed" in done.stdout, done.stdout
