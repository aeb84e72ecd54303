"""A part of one's own to begin with: what is written works as it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from covering import rest_slow

from contrastive_text.cli import run

KINDS = ("view", "text_view", "embedding_view", "pooler", "loss", "objective")


def class_of(kind: str) -> str:
    return kind.title().replace("_", "")


@pytest.mark.parametrize("kind", rest_slow(KINDS, quick=2))
def test_what_is_written_trains_as_it_is(
    kind: str, here: Path, tiny_words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"Brand{class_of(kind)}"
    assert run(["new", kind, name]) == 0
    module = f"brand_{kind}"
    words = ["--trainer.max_steps", "1", *tiny_words]
    assert run(["fit", "--recipe", "simcse", "--config", f"{module}.yaml", *words]) == 0
    if kind == "view":
        assert f"contrastive-text report --trust {module} " in capsys.readouterr().out
    (config,) = here.rglob("config.yaml")
    assert f"{module}.{name}" in config.read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_tests_that_are_written_pass(here: Path) -> None:
    for kind in KINDS:
        assert run(["new", kind, f"Fresh{class_of(kind)}"]) == 0
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=here)
    assert done.returncode == 0 and "14 passed" in done.stdout, done.stdout
