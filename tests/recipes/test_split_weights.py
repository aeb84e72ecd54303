"""Every recipe starts with weights split over two ranks, or is refused with the reason."""

from __future__ import annotations

import os
import re
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import tiny
import torch
import wordnet_files
from processes import free_ports, start_all
from recipe_options import own_options
from resume.test_ranks import become_rank

from contrastive_text.cli import run
from contrastive_text.recipes import recipe_names

REFUSED = {
    "cs224n_pcgrad": r"model\.combine: expected no PCGrad with fsdp2",
}
"""Recipe -> what it is told under FSDP2."""


def one_step(number: int, port: int, words: list[str], folder: str) -> None:
    """Runs one of two ranks: a step of a run from the shell. Leaves its exit status and its output in files."""
    become_rank(number, port)
    os.chdir(folder)
    os.environ["NLTK_DATA"] = "nltk_data"  # a forked rank doesn't inherit it from the test
    with open(f"output {number}", "w") as file, redirect_stdout(file), redirect_stderr(file):
        status = run(words)
    Path(f"status {number}").write_text(str(status))


@pytest.mark.slow
@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_takes_a_step_with_split_weights_or_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bert = tiny.save_bert(tmp_path / "bert", max_position_embeddings=512)
    if "subs" in name:
        wordnet_files.write_wordnet(tmp_path / "nltk_data")
    monkeypatch.chdir(tmp_path)
    words = ["fit", "--recipe", name, "--model.encoder.model_name_or_path", bert, "--data.batch_size", "8"]
    words += ["--data.num_workers", "0", "--trainer.max_steps", "1", "--trainer.accelerator", "cpu"]
    words += ["--trainer.enable_progress_bar", "false", "--trainer.strategy", "fsdp2", "--trainer.devices", "2"]
    start_all(one_step, 2, *free_ports(1), [*words, *own_options(name, tmp_path)], str(tmp_path))
    status = [(tmp_path / f"status {number}").read_text() for number in range(2)]
    output = (tmp_path / "output 0").read_text()
    if name in REFUSED:
        assert status == ["2", "2"], output
        assert re.search(REFUSED[name], output), output
        return
    assert status == ["0", "0"], output
    (checkpoint,) = tmp_path.rglob("*.ckpt")
    assert torch.load(checkpoint, weights_only=True)["global_step"] == 1
