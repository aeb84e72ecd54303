"""Parts of the user's own in the working directory: found last, trusted by name, and resumed with."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from contrastive_text.__main__ import leave_working_directory
from contrastive_text.cli import run

OWN = """\
from contrastive_text import TextView

class TurnAround(TextView):
    def __call__(self, text, rng):
        return " ".join(reversed(text.split()))
"""


@pytest.fixture
def trained(tiny_words: list[str], here: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Words of a run with a view of the user's own, and its checkpoint at the end; the view isn't imported."""
    (here / "own_views.py").write_text(OWN)
    (here / "own.yaml").write_text("model: {views: {positive: [{class_path: own_views.TurnAround}]}}\n")
    chosen = ["--recipe", "simcse", *tiny_words, "--trainer.max_steps", "2"]
    assert run(["fit", *chosen, "--config", "own.yaml"]) == 0
    (checkpoint,) = here.rglob("*.ckpt")
    monkeypatch.delitem(sys.modules, "own_views")
    return [*chosen, "--ckpt_path", str(checkpoint)]


def test_a_run_with_parts_of_one_s_own_is_resumed_with_trust(
    trained: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    more = [*trained, "--trainer.max_steps", "3"]
    assert run(["fit", *more]) == 2
    error = capsys.readouterr().err
    assert "own_views.TurnAround" in error and "nothing was imported" in error
    assert "own_views" not in sys.modules
    said = shlex.split(error.strip().splitlines()[-1])
    assert said == ["contrastive-text", "fit", "--trust", "own_views", *more]  # the whole command again
    assert run(said[1:]) == 0
    assert "TurnAround" in capsys.readouterr().out


def test_the_working_directory_is_last_on_the_path_and_gone_behind_the_command(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "looking_views.py").write_text("import sys\nplaces = list(sys.path)\n")
    before = list(sys.path)
    assert run(["views", "--recipe", "simcse", "--model.pooler", "looking_views.Nothing"]) == 2
    assert sys.modules.pop("looking_views").places == [*before, str(here)]
    assert sys.path == before
    assert run(["embed", "texts.txt", "vectors.npy", "--model", "nothing"]) == 2
    assert sys.path == before
    capsys.readouterr()


def test_python_m_s_place_for_the_working_directory_is_taken_away(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = str(Path(leave_working_directory.__code__.co_filename).parents[1])
    for before, after in (
        ([str(here), "/lib", home], ["/lib", home]),
        (["", "/lib", ".", home], ["/lib", home]),
        (["/bin", "/lib", home], ["/bin", "/lib", home]),
        ([str(here), "/lib"], ["/lib", home]),  # a clone that isn't installed
        (["/bin", str(here), "/lib", home], ["/bin", "/lib", home, str(here)]),  # by PYTHONPATH
    ):
        path = list(before)
        leave_working_directory(path)
        assert path == after, before
    monkeypatch.chdir(home)
    path = [home, "/lib"]
    leave_working_directory(path)
    assert path == ["/lib", home]
