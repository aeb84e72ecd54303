"""Parts of the user's own in the working directory: found last and on purpose, and trusted by name."""

from __future__ import annotations

import contextlib
import importlib
import shlex
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path

import pytest

from contrastive_text.__main__ import leave_working_directory
from contrastive_text.cli import run
from contrastive_text.training.run_folder import OwnFolders

OWN = """\
import own_words
from contrastive_text import TextView

class TurnAround(TextView):
    def __call__(self, text, rng):
        from own_late import turned
        return own_words.joined(turned(own_words.split(text)))
"""


@pytest.fixture
def trained(tiny_words: list[str], here: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Words of a run with a view of the user's own, and its checkpoint at the end; the view isn't imported."""
    (here / "own_views.py").write_text(OWN)
    (here / "own_words.py").write_text("split, joined = str.split, ' '.join\n")
    (here / "own_late.py").write_text("turned = reversed\n")
    (here / "own.yaml").write_text("model: {views: {positive: [{class_path: own_views.TurnAround}]}}\n")
    chosen = ["--recipe", "simcse", *tiny_words, "--trainer.max_steps", "2", "--data.num_workers", "1"]
    assert run(["fit", *chosen, "--config", "own.yaml"]) == 0
    (checkpoint,) = here.rglob("*.ckpt")
    assert "own_late" not in sys.modules  # a worker imported it
    monkeypatch.delitem(sys.modules, "own_views")
    monkeypatch.delitem(sys.modules, "own_words")
    return [*chosen, "--ckpt_path", str(checkpoint)]


@pytest.mark.slow
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
    with pytest.raises(SystemExit):
        run(["views", "--recipe", "simcse", "--model.pooler", "looking_views.Nothing"])
    assert sys.modules.pop("looking_views").places == [*before, str(here)]
    assert sys.path == before
    capsys.readouterr()


class Looks(MetaPathFinder):
    """Notes on which path a module that nobody else finds was looked for."""

    def __init__(self) -> None:
        self.paths: dict[str, list[str]] = {}

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:  # noqa: ARG002  # Python's signature
        self.paths[name] = [*sys.path]


def exit_status(words: Sequence[str]) -> object:
    """Returns the status with which a command ends."""
    try:
        return run(words)
    except SystemExit as left:  # of the parser
        return left.code


@pytest.mark.slow
def test_no_absent_library_is_looked_for_in_the_working_directory(
    here: Path,
    finished: dict[str, str],
    files: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    looks = Looks()
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, looks])
    (here / "absent_library.py").write_text("raise SystemExit('run')\n")

    def absent(*_: object, **__: object) -> None:
        with contextlib.suppress(ImportError):
            importlib.import_module("absent_library")

    monkeypatch.setattr(OwnFolders, "setup", absent)
    scored = ["--ckpt_path", finished["checkpoint"], "--data.validation", files["pairs"]]
    for words, status in (
        (["validate", *scored], 0),
        (["validate", *scored, "--trust", "nowhere"], 0),
        (["validate", *scored, "--model.pooler", "nowhere.Pooler"], 2),
    ):
        looks.paths.clear()
        assert exit_status(words) == status
        assert ("absent_library" if status == 0 else "nowhere") in looks.paths
        assert not [name for name, path in looks.paths.items() if str(here) in path]
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


@pytest.mark.slow
def test_a_callback_of_one_s_own_is_named_by_an_option_alone(
    tiny_words: list[str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "own_calls.py").write_text(
        "from pytorch_lightning import Callback\n"
        "class Counts(Callback):\n"
        "    def on_train_start(self, trainer, pl_module):\n"
        "        print('counting')\n"
    )
    words = ["fit", "--recipe", "simcse", *tiny_words, "--trainer.max_steps", "1"]
    assert run([*words, "--trainer.callbacks=own_calls.Counts"]) == 0
    assert "counting" in capsys.readouterr().out
    del sys.modules["own_calls"]
