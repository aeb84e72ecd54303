"""Every command of the papers' pages runs, in two steps with a tiny encoder; the pages are what the files say."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import glue_files
import pytest
import recipe_options
import sts_files
import tiny
import wordnet_files
from covering import turn_of
from evaluation.test_senteval import PROBING_FILES, write_probing, write_senteval
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
STAND_INS = (
    "sentences.txt", "wiki1m.txt", "documents.jsonl", "nli.jsonl", "nli_triples.tsv", "STS/", "SENTEVAL/",
    "GLUE/", "quora.train.tsv", "quora.dev.tsv", "sst.train.tsv", "sst.dev.tsv", "sts.train.tsv", "sts.dev.tsv",
    "MODEL/", "RUN/", "RUN2/",
)  # fmt: skip
"""Files and folders that the commands of the papers' pages read."""


def stand_ins(command: str) -> set[str]:
    """Returns the stand-ins in a command; a file within one counts as it."""
    words = re.findall(r"(?<![\w./])(?:[\w.]+/?)", re.sub(r"--output[ =]\S+", "", command))
    return {name for name in STAND_INS for word in words if word == name}


def write_all(folder: Path) -> Path:
    """Writes a file or a folder for each stand-in but models and runs, and the encoder; gives the folder."""
    tiny.save_masked_lm(folder / "encoder", max_position_embeddings=512)
    for name in ("sentences.txt", "wiki1m.txt"):
        tiny.write_texts(folder / name)
    documents = (" ".join((tiny.TEXTS * 2)[i : i + 24]) for i in range(40))  # a tenth of them makes a batch
    lines = [json.dumps({"text": text}) for text in documents]
    (folder / "documents.jsonl").write_text("\n".join(lines) + "\n")
    rows = [
        {"premise": text, "hypothesis": tiny.TEXTS[(i + step) % 40], "label": label}
        for i, text in enumerate(tiny.TEXTS)
        for step, label in ((8, "entailment"), (20, "contradiction"), (3, "neutral"))
    ]
    (folder / "nli.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    triples = [
        f"{text}\t{tiny.TEXTS[(i + 8) % 40]}\t{tiny.TEXTS[(i + 20) % 40]}" for i, text in enumerate(tiny.TEXTS)
    ]
    (folder / "nli_triples.tsv").write_text("\n".join(["anchor\tpositive\tnegative", *triples]) + "\n")
    for part in ("train", "dev"):
        for path in map(Path, recipe_options.task_files(folder).values()):
            path.rename(folder / f"{path.stem}.{part}.tsv")
    sts_files.write_tables(folder / "STS")
    write_senteval(folder / "SENTEVAL")
    glue_files.write_glue(folder / "GLUE")
    for file in PROBING_FILES.values():
        write_probing(folder / "SENTEVAL" / "probing" / file)
    sts_files.write_senteval(folder / "SENTEVAL")
    wordnet_files.write_wordnet(folder / "nltk_data")
    words = small(["fit", "--recipe", "simcse", "--data.train", "sentences.txt"], folder)
    with contextlib.chdir(folder):
        for name in ("RUN", "RUN2"):
            options = ["--trainer.default_root_dir", f"{name}s", "--data.validation", "STS/stsb.dev.tsv"]
            assert run([*words, *options]) == 0
            Path(f"{name}s", "version_0").rename(name)
        shutil.copytree("RUN/model", "MODEL")
    return folder


def small(words: Sequence[str], folder: Path) -> list[str]:
    """Returns the words of a command with options that make it short, and its encoder tiny."""
    kept = [word.replace("'bert-base-uncased'", f"'{folder / 'encoder'}'") for word in words]
    if kept[0] in ("fit", "sweep", "views"):
        kept += ["--model.encoder.model_name_or_path", str(folder / "encoder")]
        kept += ["--data.batch_size", "8", "--data.num_workers", "0"]
        if any(re.fullmatch(r"clear(/\w+)?", word) for word in words):  # from scratch
            kept += ["--model.encoder.config", "null"]
        kept += ["--data.task.join", "16"] if "--data.task.join" in words else []
        if any(re.fullmatch(r"(recipe=)?declutr[\w,/]*", word) for word in kept):
            kept += ["--data.task.pairing.min_length", "4", "--data.task.pairing.max_length", "16"]
            kept += ["--data.task.pairing.min_document_tokens", "64", "--data.batch_size", "4"]
            kept += ["--data.cache_dir", str(folder / "cache")]
    if kept[0] in ("fit", "sweep"):
        kept += ["--trainer.max_steps", "2", "--trainer.accelerator", "cpu"]
        kept += ["--trainer.val_check_interval", "1"] if "--data.validation" in kept else []
    if kept[0] == "evaluate" and "glue" in kept:
        kept += [*glue_files.write_short(folder), "--tasks", "CoLA"]
    if kept[0] == "sweep":
        kept += ["--seeds", "1"]
    return kept


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
    return write_all(tmp_path_factory.mktemp("papers"))


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
@pytest.mark.parametrize("name", turn_of((name for name, each in COMMANDS.items() if each), 3))
def test_the_commands_of_an_item_run(name: str, workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In miniature; of a sweep the whole grid is checked, and its last cell runs."""
    for command in COMMANDS[name]:
        words = shlex.split(command)[1:]
        again = [[*words, "--dry_run"], last_cell(words)] if words[0] == "sweep" else [words]
        for each in again:
            assert run(small(each, workplace)) == 0, (command, capsys.readouterr().err)
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
        used = {part for command in item.commands for part in stand_ins(command)}
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
