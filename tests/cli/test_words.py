"""Short spellings, the list of recipes, the help of fit, and a run up to its first step."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from shells import Shell

from contrastive_text.cli.words import SHORT, expand_short_options
from contrastive_text.recipes import recipe_names

SHORTLY = ["--encoder", "here/", "--train=a.txt", "--validation", "b.tsv", "--batch_size", "8", "--lr=1e-3"]
AT_LENGTH = [
    *("--model.encoder.model_name_or_path", "here/", "--data.train=a.txt", "--data.validation", "b.tsv"),
    *("--data.batch_size", "8", "--model.optimizer.lr=1e-3"),
]


def test_every_short_spelling_is_written_out_and_nothing_else() -> None:
    assert expand_short_options([*SHORTLY, "--epochs", "2"]) == [*AT_LENGTH, "--trainer.max_epochs", "2"]
    others = ["--recipe", "lr", "--trainer.max_epochs", "3", "--learning", "lr", "--vary", "model.pooler=A,B"]
    assert expand_short_options(others) == others


def test_columns_are_named_in_words(shell: Shell) -> None:
    short = shell.config("FIT --columns 'anchor=searched for' positive=clicked=1 --lr 1e-3")
    assert short["data"]["task"]["columns"] == {"anchor": "searched for", "positive": "clicked=1"}
    assert short["model"]["optimizer"]["init_args"]["lr"] == 1e-3
    several = ["--columns", "text=title", "text=body", "text=notes"]
    assert expand_short_options(several) == ["--data.task.columns", '{"text": ["title", "body", "notes"]}']
    for option in ("--data.task.eval_columns", "--data.tasks.nli.columns"):
        words = expand_short_options([option, "target=gold", "--seed_everything=1"])
        assert words[1:] == ['{"target": "gold"}', "--seed_everything=1"]
    others = ["--data.task.columns", "{text: a}", "a=b", "--vary", "columns=1,2", "x=y"]
    assert expand_short_options(others)[:3] == others[:3]


def test_another_command_keeps_an_option_of_its_own_of_that_name(shell: Shell) -> None:
    assert "--trainer.max_epochs" not in shell.refused("evaluate nowhere --suite sts --epochs 3")


def test_every_recipe_is_listed_once_and_one_is_printed_whole(shell: Shell) -> None:
    *lines, _, _ = shell("recipes").out.splitlines()
    named = [line.split()[0].removesuffix(":") for line in lines]
    assert sorted(named) == recipe_names()
    assert all(len(line.split()) > 3 for line in lines)
    said = shell("recipes gist").out
    assert "# fidelity: corrected" in said and yaml.safe_load(said)["model"]["pooler"] == "CLSPooler"


def test_the_help_of_fit_is_one_screen_and_names_what_is_there(shell: Shell) -> None:
    said = shell("fit --help").out
    assert len(said.splitlines()) <= 40 and all(len(line) <= 100 for line in said.splitlines())
    assert all(f"  --{name} " in said for name in SHORT)


def test_a_dry_run_says_what_would_be_trained_and_leaves_nothing(shell: Shell, here: Path) -> None:
    words = "FIT --encoder BERT --train TEXTS --batch_size 8 --epochs 2 --data.num_workers 0"
    words += " --trainer.accelerator cpu --dry_run"
    said = shell(f"{words} --validation PAIRS --trainer.default_root_dir not/there/yet")
    assert "What makes the result" in said.out and "Dry run: 10 steps would follow" in said.out + said.err
    for option in ("--data.validation=nowhere.tsv", "--validation nowhere.tsv"):
        assert "nowhere.tsv" in shell.refused(f"{words} {option}")
    assert not [*here.iterdir()]


@pytest.mark.slow
def test_a_run_that_never_began_leaves_no_folder(shell: Shell, here: Path) -> None:
    for more in ("", "--folder mine"):
        said = shell.refused(f"FIT TINY --validation TEXTS {more}")
        assert "texts.txt: expected anchor, positive, target, got a .txt file" in said
    assert not list(here.glob("runs/*")) and not (here / "mine").exists()
