"""Modules of the working directory: parts of the user's own, found last and by name, and no others."""

from __future__ import annotations

import contextlib
import importlib
import shlex
import subprocess
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path

import pytest
from shells import Shell

from contrastive_text.__main__ import leave_working_directory
from contrastive_text.training.run_folder import LockFolders

OWN = """\
import own_words
from contrastive_text import TextView

class TurnAround(TextView):
    def __call__(self, text, rng):
        from own_late import turned
        return own_words.joined(turned(own_words.split(text)))
"""


CHOSEN = "--recipe simcse TINY --trainer.max_steps 2 --data.num_workers 1"


@pytest.mark.slow
def test_a_run_with_parts_of_one_s_own_is_resumed_with_trust(
    shell: Shell, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "own_views.py").write_text(OWN)
    (here / "own_words.py").write_text("split, joined = str.split, ' '.join\n")
    (here / "own_late.py").write_text("turned = reversed\n")
    (here / "own.yaml").write_text("model: {views: {positive: [{class_path: own_views.TurnAround}]}}\n")
    shell(f"fit {CHOSEN} --config own.yaml")
    (checkpoint,) = here.rglob("*.ckpt")
    assert "own_late" not in sys.modules  # a worker imported it
    monkeypatch.delitem(sys.modules, "own_views")
    monkeypatch.delitem(sys.modules, "own_words")
    more = f"{CHOSEN} --ckpt_path {checkpoint} --trainer.max_steps 3"
    assert shell.status(f"fit {more}") == 2
    error = shell.capture.readouterr().err
    assert "own_views.TurnAround" in error and "nothing was imported" in error
    assert "own_views" not in sys.modules
    said = shlex.split(error.strip().splitlines()[-1])
    assert said == shell.words(f"contrastive-text fit --trust own_views {more}")  # the whole command again
    assert "TurnAround" in shell(said[1:]).out


def test_the_working_directory_is_last_on_the_path_and_gone_behind_the_command(shell: Shell, here: Path) -> None:
    (here / "looking_views.py").write_text("import sys\nplaces = list(sys.path)\n")
    before = list(sys.path)
    shell.refused("views --recipe simcse --model.pooler looking_views.Nothing")
    assert sys.modules.pop("looking_views").places == [*before, str(here)]
    assert sys.path == before


class Looks(MetaPathFinder):
    """Notes on which path a module that nobody else finds was looked for."""

    def __init__(self) -> None:
        self.paths: dict[str, list[str]] = {}

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:  # noqa: ARG002  # Python's signature
        self.paths[name] = [*sys.path]


@pytest.mark.slow
def test_no_absent_library_is_looked_for_in_the_working_directory(
    shell: Shell, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = Looks()
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, looks])
    (here / "absent_library.py").write_text("raise SystemExit('run')\n")

    def absent(*_: object, **__: object) -> None:
        with contextlib.suppress(ImportError):
            importlib.import_module("absent_library")

    monkeypatch.setattr(LockFolders, "setup", absent)
    for more, status in (("", 0), ("--trust nowhere", 0), ("--model.pooler nowhere.Pooler", 2)):
        looks.paths.clear()
        assert shell.status(f"validate --ckpt_path CHECKPOINT --data.validation PAIRS {more}") == status
        assert ("absent_library" if status == 0 else "nowhere") in looks.paths
        assert not [name for name, path in looks.paths.items() if str(here) in path]


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
def test_a_callback_of_one_s_own_is_named_by_an_option_alone(shell: Shell, here: Path) -> None:
    (here / "own_calls.py").write_text(
        "from pytorch_lightning import Callback\n"
        "class Counts(Callback):\n"
        "    def on_train_start(self, trainer, pl_module):\n"
        "        print('counting')\n"
    )
    assert "counting" in shell("FIT TINY --trainer.max_steps 1 --trainer.callbacks=own_calls.Counts").out
    del sys.modules["own_calls"]


# No command reads a module of the working directory


SHADOWED = (
    *("__future__", "typing", "dataclasses", "csv", "json", "random", "string", "logging", "argparse", "shlex"),
    *("traceback", "tempfile", "torch", "numpy", "rich", "yaml", "jsonargparse", "transformers", "tokenizers"),
    *("safetensors", "pytorch_lightning", "huggingface_hub"),
)  # but what Python reads for -m itself, before any of ours

DRIVER = """
import sys
sys.path.insert(0, {here!r})  # as python -m does
sys.path.append({home!r})
from contrastive_text.__main__ import leave_working_directory
leave_working_directory(sys.path)
from contrastive_text.cli import run
for words in {commands!r}:
    try:
        run(words)
    except SystemExit:
        pass
"""


def test_python_m_reads_no_module_of_the_working_directory(tmp_path: Path) -> None:
    _shadow(tmp_path)
    home = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "contrastive_text", "--version"],
        cwd=tmp_path, capture_output=True, text=True, check=False, env={"PYTHONPATH": str(home)},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_no_command_reads_a_module_of_the_working_directory(shell: Shell, here: Path) -> None:
    lines = (
        "FIT TINY --trainer.max_steps=1",
        "validate --ckpt_path CHECKPOINT --data.validation PAIRS",
        "views --recipe simcse TINY",
        "embed TEXTS v.npy --model MODEL",
        "search TEXTS 'a dog' --model MODEL",
        "duplicates TEXTS d.tsv --model MODEL",
        "evaluate MODEL PAIRS",
        "diagnose MODEL TEXTS",
        "compare MODEL MODEL --pairs PAIRS",
        "report FOLDER --output page --limit 8",
        "postprocess MODEL TEXTS white",
        "onnx MODEL onnx",
        "sweep --dry_run --vary data.batch_size=8,16 --recipe simcse TINY",
    )
    commands = [shell.words(line) for line in lines]
    _shadow(here)
    code = DRIVER.format(here=str(here), home=str(Path(__file__).parents[2]), commands=commands)
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=here, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "shadowed" not in done.stderr + done.stdout
    assert (here / "v.npy").exists()


def _shadow(folder: Path) -> None:
    for name in SHADOWED:
        (folder / f"{name}.py").write_text(f"raise SystemExit('shadowed {name}')\n")
