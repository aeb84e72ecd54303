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
from shells import run_here

from contrastive_text.cli import run
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.evaluation.classifiers import PROTOCOLS
from contrastive_text.recipes.papers import Item, broken, paper_names, read_paper
from contrastive_text.runs.grid import parse_vary

DOCS = Path(__file__).parents[2] / "docs" / "papers"
ITEMS = {
    f"{paper}: {item.name}": item for paper in paper_names() for item in read_paper(paper).items if item.commands
}


def commands() -> dict[str, list[str]]:
    """Returns the commands of each item, of those that evaluate a model in one way the first alone."""
    known, found = set(), {}
    for name, item in ITEMS.items():
        found[name] = []
        for command in item.commands:
            kind = re.sub(r"( evaluate| --runs) \S+", r"\1", command)
            if " evaluate " not in command or kind not in known:
                found[name].append(command)
            known.add(kind)
    return found


COMMANDS = commands()


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
    monkeypatch.setattr("contrastive_text.cli.sweep._call", run_here)
    yield tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, each in COMMANDS.items() if each])
def test_the_commands_of_an_item_run(name: str, workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In miniature; of a sweep the whole grid is checked, and its last cell runs."""
    for command in COMMANDS[name]:
        words = shlex.split(command)[1:]
        again = [[*words, "--dry_run"], last_cell(words)] if words[0] == "sweep" else [words]
        for each in again:
            assert run(paper_files.small(each, workplace)) == 0, (command, capsys.readouterr().err)
            assert "Traceback" not in capsys.readouterr().err


def last_cell(words: list[str]) -> list[str]:
    """Returns the words of a sweep with the last value of each axis alone, and a suite that takes seconds."""
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
    with pytest.raises(InvalidValueError, match="Table 1: expected either commands or why_not, got neither"):
        Item(name="Table 1", shows="scores")
    with pytest.raises(InvalidValueError, match="Table 1: expected contrastive-text"):
        Item(name="Table 1", shows="scores", commands=["python train.py"])


def test_a_broken_command_is_the_same_command() -> None:
    for item in ITEMS.values():
        for command in item.commands:
            assert shlex.split(broken(command).replace("\\\n", "")) == shlex.split(command)
            assert all(len(line) <= 100 or " --" not in line.strip() for line in broken(command).splitlines())
