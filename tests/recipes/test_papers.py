"""Every command of the papers' pages runs, in two steps with a tiny encoder; the pages are what the files say."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import paper_files
import pytest

from contrastive_text.cli import run
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.evaluation.classifiers import PROTOCOLS
from contrastive_text.recipes.papers import Item, broken, paper_names, read_paper
from contrastive_text.runs.grid import parse_vary

DOCS = Path(__file__).parents[2] / "docs" / "papers"
ITEMS = {
    f"{paper}: {item.name}": item for paper in paper_names() for item in read_paper(paper).items if item.commands
}
KINDS = (
    ("simcse: Table 5", "fit"),
    ("simcse: Table 5", "postprocess MODEL/"),
    ("simcse: Table 6", "sweep --recipe simcse --vary"),
    ("simcse: Table 8", "search"),
    ("consert: Table 1", "corpus"),
    ("consert: Figure 1", "report"),
    ("consert: Figure 4", "evaluate"),
    ("clear: Table 1", "evaluate MODEL/ --suite glue"),
)
"""A command of each kind, by its item and how it begins; the first runs by default."""
AFTER_OTHERS = {"ensemble", "validate"}
"""Kinds that read what other commands of their item write; tests/runs/test_ensemble.py runs them."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny file for each stand-in, for all items."""
    return paper_files.write_all(tmp_path_factory.mktemp("papers"))


@pytest.fixture
def workplace(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An own folder in which every stand-in lies."""
    for path in files.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    # Ten folds want more rows than there are.
    monkeypatch.setitem(PROTOCOLS, "standard", replace(PROTOCOLS["fast"], folds=3, max_epochs=2))
    monkeypatch.setenv("NLTK_DATA", str(files / "nltk_data"))
    yield tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("name", ITEMS)
def test_the_commands_of_an_item_run(name: str, workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ITEMS[name].commands:
        check_runs(command, workplace, capsys)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "beginning"), KINDS)
def test_a_command_of_each_kind_runs(
    name: str, beginning: str, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = (each for each in ITEMS[name].commands if each.startswith(f"contrastive-text {beginning}"))
    check_runs(next(found), workplace, capsys)


def test_every_kind_of_command_runs() -> None:
    kinds = {shlex.split(command)[1] for item in ITEMS.values() for command in item.commands}
    assert kinds - AFTER_OTHERS == {beginning.split()[0] for _, beginning in KINDS}


def check_runs(command: str, workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs a command in miniature; of a sweep the whole grid is checked, and its last cell runs."""
    words = shlex.split(command)[1:]
    if words[0] == "sweep":
        assert run([*paper_files.small(words, workplace), "--dry_run"]) == 0, (command, capsys.readouterr().err)
        words = last_cell(words)
    assert run(paper_files.small(words, workplace)) == 0, (command, capsys.readouterr().err)
    assert "Traceback" not in capsys.readouterr().err


def last_cell(words: list[str]) -> list[str]:
    """Returns the words of a sweep with the last value of each axis alone.

    SentEval's suites take a minute a run by ten folds. Commands of ``evaluate`` run them by fewer.
    """
    kept = [re.sub(r"(declutr|transfer|probing):.*", "sts:mean", word) for word in words]
    for place, word in enumerate(words):
        if place and words[place - 1] == "--vary":
            axis = parse_vary(word)
            kept[place] = f"{axis.name}={[*axis.values][-1]}"
    return kept


def test_the_pages_are_what_the_files_say() -> None:
    there = {path.stem: path.read_text(encoding="utf-8") for path in DOCS.glob("*.md")}
    assert there.keys() == set(paper_names())
    for name, text in there.items():
        assert text == f"{read_paper(name).markdown()}\n", f"{name}: run make pages"


@pytest.mark.parametrize("name", paper_names())
def test_the_shell_prints_the_page(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["paper", name]) == 0
    assert capsys.readouterr().out == (DOCS / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("paper", paper_names())
def test_commands_name_known_stand_ins_only(paper: str) -> None:
    for item in read_paper(paper).items:
        used = {part for command in item.commands for part in paper_files.stand_ins(command)}
        assert used == set(item.needs), f"{paper}, {item.name}"


def test_an_item_has_commands_or_a_reason() -> None:
    with pytest.raises(InvalidValueError, match="Table 1: expected commands, or why_not, got neither"):
        Item(name="Table 1", shows="scores")
    with pytest.raises(InvalidValueError, match="Table 1: expected contrastive-text"):
        Item(name="Table 1", shows="scores", commands=["python train.py"])


def test_a_broken_command_is_the_same_command() -> None:
    for item in ITEMS.values():
        for command in item.commands:
            assert shlex.split(broken(command).replace("\\\n", "")) == shlex.split(command)
            assert all(len(line) <= 100 or " --" not in line.strip() for line in broken(command).splitlines())
