"""Fixtures for tests of commands: a tiny encoder and files, working directories, one finished run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny
from foreign_code import IMPORTED, note
from shells import Shell

from contrastive_text.cli import run


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A random encoder, texts and scored pairs."""
    folder = tmp_path_factory.mktemp("shell")
    return {
        "bert": tiny.save_bert(folder / "bert"),
        "texts": tiny.write_texts(folder / "texts.txt"),
        "pairs": tiny.write_pairs(folder / "pairs.tsv"),
    }


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of a user; tables are printed wide."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # a part of the user's own puts the working directory on it
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


@pytest.fixture(scope="session")
def audited() -> None:
    """Notes every import of this process, also one that fails."""
    sys.addaudithook(note)


@pytest.fixture
def foreign(here: Path, audited: None) -> Iterator[Path]:  # noqa: ARG001  # its notes are read
    """A working directory with code that tells when it is run; nothing in it may be imported."""
    (here / "evil.py").write_text(
        "open('RUN', 'w').close()\n"
        "from contrastive_text.poolers import MeanPooler\n"
        "class Evil(MeanPooler):\n    pass\n"
    )
    (here / "evil.yaml").write_text("class_path: evil.Evil\n")
    sys.path.append(str(here))
    IMPORTED.clear()
    yield here
    assert not {name for name in IMPORTED if name.partition(".")[0] == "evil"}
    assert not (here / "RUN").exists()


@pytest.fixture(scope="session")
def tiny_words(files: dict[str, str]) -> list[str]:
    """Options that make any recipe small: the tiny encoder, eight rows a step, no worker."""
    return [
        "--model.encoder.model_name_or_path", files["bert"], "--data.train", files["texts"],
        "--data.batch_size", "8", "--data.num_workers", "0", "--trainer.accelerator", "cpu",
        "--trainer.enable_progress_bar", "false", "--trainer.log_every_n_steps", "1",
        "--trainer.val_check_interval", "1.0",
    ]  # fmt: skip


@pytest.fixture(scope="session")
def finished(
    files: dict[str, str], tiny_words: list[str], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """One epoch of the recipe from the shell: its folder, its checkpoint and its model."""
    folder = tmp_path_factory.mktemp("finished")
    words = ["fit", "--recipe", "simcse", *tiny_words, "--data.validation", files["pairs"]]
    words += ["--model.optimizer.lr", "1e-2", "--trainer.default_root_dir", str(folder)]
    assert run(words) == 0
    (checkpoint,) = (folder / "version_0" / "checkpoints").iterdir()
    place = folder / "version_0"
    return {"folder": str(place), "checkpoint": str(checkpoint), "model": str(place / "model")}


@pytest.fixture
def shell(
    files: dict[str, str],
    tiny_words: list[str],
    here: Path,  # noqa: ARG001  # works there
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> Shell:
    """The shell of a user in a working directory of the test's own."""
    known = {"FIT": ["fit", "--recipe", "simcse"], "TINY": tiny_words}
    return Shell(known | {name.upper(): [path] for name, path in files.items()}, request, capsys)
