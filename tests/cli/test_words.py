"""Short spellings, the list of recipes, the help of fit, and a run up to its first step."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import yaml

from contrastive_text.cli import run
from contrastive_text.cli.words import SHORT, spelled_out
from contrastive_text.recipes import recipe_names

SHORTLY = ["--encoder", "here/", "--train=a.txt", "--validation", "b.tsv", "--batch_size", "8", "--lr=1e-3"]
AT_LENGTH = [
    *("--model.encoder.model_name_or_path", "here/", "--data.train=a.txt", "--data.validation", "b.tsv"),
    *("--data.batch_size", "8", "--model.optimizer.lr=1e-3"),
]


def printed(words: list[str], capsys: pytest.CaptureFixture[str]) -> object:
    """Returns the configuration that ``fit`` would use."""
    with pytest.raises(SystemExit) as left:
        run(["fit", "--recipe", "simcse", *words, "--print_config"])
    assert left.value.code in (0, None)
    return yaml.safe_load(capsys.readouterr().out)


def test_every_short_spelling_is_written_out_and_nothing_else() -> None:
    assert spelled_out([*SHORTLY, "--epochs", "2"]) == [*AT_LENGTH, "--trainer.max_epochs", "2"]
    others = ["--recipe", "lr", "--trainer.max_epochs", "3", "--learning", "lr", "--vary", "model.pooler=A,B"]
    assert spelled_out(others) == others


def test_columns_are_named_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    short = printed(["--columns", "anchor=searched for", "positive=clicked=1", "--lr", "1e-3"], capsys)
    assert isinstance(short, dict)
    assert short["data"]["task"]["columns"] == {"anchor": "searched for", "positive": "clicked=1"}
    assert short["model"]["optimizer"]["init_args"]["lr"] == 1e-3
    several = ["--columns", "text=title", "text=body", "text=notes"]
    assert spelled_out(several) == ["--data.task.columns", '{"text": ["title", "body", "notes"]}']
    for option in ("--data.task.eval_columns", "--data.tasks.nli.columns"):
        words = spelled_out([option, "target=gold", "--seed_everything=1"])
        assert words[1:] == ['{"target": "gold"}', "--seed_everything=1"]
    others = ["--data.task.columns", "{text: a}", "a=b", "--vary", "columns=1,2", "x=y"]
    assert spelled_out(others)[:3] == others[:3]


def test_another_command_keeps_an_option_of_its_own_of_that_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["evaluate", "nowhere", "--suite", "sts", "--epochs", "3"]) == 2
    assert "--trainer.max_epochs" not in capsys.readouterr().err


def test_every_recipe_is_listed_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["recipes"]) == 0
    *lines, _, _ = capsys.readouterr().out.splitlines()
    named = [line.split()[0].removesuffix(":") for line in lines]
    assert sorted(named) == recipe_names()
    assert all(len(line.split()) > 3 for line in lines)


def test_a_recipe_is_printed_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["recipes", "gist"]) == 0
    said = capsys.readouterr().out
    assert "# fidelity: corrected" in said and yaml.safe_load(said)["model"]["pooler"] == "CLSPooler"


def test_the_help_of_fit_is_one_screen_and_names_what_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fit", "--help"]) == 0
    said = capsys.readouterr().out
    assert len(said.splitlines()) <= 40 and all(len(line) <= 100 for line in said.splitlines())
    assert all(f"  --{name} " in said for name in SHORT)


def test_a_dry_run_says_what_would_be_trained_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    texts, pairs = tiny.write_texts(tmp_path / "a.txt"), tiny.write_pairs(tmp_path / "b.tsv")
    words = [
        "fit", "--recipe", "simcse", "--encoder", tiny.save_bert(tmp_path / "here"), "--train", texts,
        "--validation", pairs, "--batch_size", "8", "--epochs", "2", "--data.num_workers", "0",
        "--trainer.accelerator", "cpu", "--dry_run",
    ]  # fmt: skip
    before = sorted(tmp_path.rglob("*"))
    assert run([*words, "--trainer.default_root_dir", "not/there/yet"]) == 0
    said = capsys.readouterr()
    assert "What makes the result" in said.out and "Dry run: 10 steps would follow" in said.out + said.err
    assert sorted(tmp_path.rglob("*")) == before
    assert run([*words, "--data.validation=nowhere.tsv"]) == 2
    assert run([word if word != pairs else "nowhere.tsv" for word in words]) == 2
    assert "nowhere.tsv" in capsys.readouterr().err


def test_a_run_that_never_began_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    texts = tiny.write_texts(tmp_path / "a.txt")
    words = ["fit", "--recipe", "simcse", "--encoder", tiny.save_bert(tmp_path / "here"), "--train", texts]
    for more in ((), ("--folder", "mine")):
        assert run([*words, "--validation", texts, "--trainer.accelerator", "cpu", *more]) == 2
        assert "a.txt: expected anchor, positive, target, got a .txt file" in capsys.readouterr().err
    assert not list(tmp_path.glob("runs/*")) and not (tmp_path / "mine").exists()
