"""Recipes of every set of parts start with weights split over two ranks, or are refused with the reason."""

from __future__ import annotations

import itertools
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
from covering import covering, turn_of
from processes import free_ports, start_all
from recipe_options import own_options
from resume.test_ranks import become_rank

from contrastive_text.cli import run
from contrastive_text.recipes import recipe_names
from contrastive_text.recipes.layers import read_recipe

REFUSED = {
    "asymmetric": r"trainer\.strategy: expected ddp with AsymmetricEncoder",
    "splade/doc": r"trainer\.strategy: expected ddp with AsymmetricEncoder",
    "cs224n/pcgrad": r"model\.combine: expected no PCGrad with fsdp2",
}
"""Recipe -> what it is told under FSDP2."""


def different_recipes() -> list[str]:
    """Returns recipes in which every two classes meet that meet in any; numbers and files may differ."""
    texts = {name: json.dumps(read_recipe(name)) for name in recipe_names()}
    classes = {name: tuple(sorted({*re.findall(r'"([A-Z]\w+)"', text)})) for name, text in texts.items()}
    first = {found: name for name, found in reversed(classes.items())}
    chosen = covering([*first], of=lambda found: {*itertools.combinations(found, 2)})
    return sorted({*(first[found] for found in chosen), *REFUSED})


GROUPS = 3
"""Each commit has a group. Two ranks run it: what they have loaded serves the next recipe."""


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
@pytest.mark.parametrize("group", turn_of(range(GROUPS), GROUPS))
def test_a_recipe_takes_a_step_with_split_weights_or_is_refused(group: int, tmp_path: Path) -> None:
    names = different_recipes()[group::GROUPS]
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
