"""Recipes of every set of parts start with weights split over two ranks, or are refused with the reason."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import tiny
import torch
import torch.distributed as dist
import wordnet_files
from processes import free_ports, start_all
from recipe_options import own_options
from resume.test_ranks import become_rank

from contrastive_text.cli import run
from contrastive_text.recipes import recipe_names
from contrastive_text.recipes.layers import read_recipe

REFUSED = {
    "cs224n/pcgrad": r"model\.combine: expected no PCGrad with fsdp2",
}
"""Recipe -> what it is told under FSDP2."""


def different_recipes() -> list[str]:
    """Returns the first recipe of every set of classes, in which numbers and files may differ."""
    first: dict[frozenset[str], str] = {}
    for name in recipe_names():
        first.setdefault(frozenset(re.findall(r'"([A-Z]\w+)"', json.dumps(read_recipe(name)))), name)
    return sorted({*first.values(), *REFUSED})


GROUPS = [different_recipes()[i::3] for i in range(3)]
"""The recipes by turns. Two ranks run a group: what they have loaded serves the next recipe."""


def one_step_each(number: int, ports: Sequence[int], commands: Mapping[str, list[str]], folder: str) -> None:
    """Runs one of two ranks: a step of each recipe from the shell. Leaves exit status and output in files."""
    os.environ["NLTK_DATA"] = str(Path(folder, "nltk_data"))  # a forked rank doesn't inherit it from the test
    for (name, words), port in zip(commands.items(), ports, strict=True):
        become_rank(number, port)
        os.chdir(Path(folder, folder_name(name)))
        with open(f"output {number}", "w") as file, redirect_stdout(file), redirect_stderr(file):
            status = run(words)
        Path(f"status {number}").write_text(str(status))
        if dist.is_initialized():
            dist.destroy_process_group()


def folder_name(recipe: str) -> str:
    """Returns the name of a recipe's folder, none of which is within another's."""
    return recipe.replace("/", "_")


def command(name: str, folder: Path, bert: str) -> list[str]:
    """Returns the words of a step, and writes its data."""
    folder.mkdir()
    words = ["fit", "--recipe", name, "--model.encoder.model_name_or_path", bert, "--data.batch_size", "8"]
    words += ["--data.num_workers", "0", "--trainer.max_steps", "1", "--trainer.accelerator", "cpu"]
    words += ["--trainer.enable_progress_bar", "false", "--trainer.strategy", "fsdp2", "--trainer.devices", "2"]
    with chdir(folder):
        return [*words, *own_options(name, folder)]


@pytest.mark.slow
@pytest.mark.parametrize("names", GROUPS, ids=lambda names: f"{names[0]} and others")
def test_a_recipe_takes_a_step_with_split_weights_or_is_refused(names: list[str], tmp_path: Path) -> None:
    bert = tiny.save_bert(tmp_path / "bert", max_position_embeddings=512)
    wordnet_files.write_wordnet(tmp_path / "nltk_data")
    commands = {name: command(name, tmp_path / folder_name(name), bert) for name in names}
    start_all(one_step_each, 2, free_ports(len(names)), commands, str(tmp_path))
    for name in names:
        folder = tmp_path / folder_name(name)
        status = [(folder / f"status {number}").read_text() for number in range(2)]
        output = (folder / "output 0").read_text()
        if name in REFUSED:
            assert status == ["2", "2"], output
            assert re.search(REFUSED[name], output), output
            continue
        assert status == ["0", "0"], (name, output)
        (checkpoint,) = folder.rglob("*.ckpt")
        assert torch.load(checkpoint, weights_only=True)["global_step"] == 1
