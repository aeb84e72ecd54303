"""No command reads a module of the working directory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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
def test_no_command_reads_a_module_of_the_working_directory(
    tmp_path: Path, finished: dict[str, str], files: dict[str, str], tiny_words: list[str]
) -> None:
    _shadow(tmp_path)
    model, texts, pairs = finished["model"], files["texts"], files["pairs"]
    commands = [
        ["fit", "--recipe", "simcse", *tiny_words, "--trainer.max_steps=1"],
        ["validate", "--ckpt_path", finished["checkpoint"], "--data.validation", pairs],
        ["views", "--recipe", "simcse", *tiny_words],
        ["embed", texts, "v.npy", "--model", model],
        ["search", texts, "a dog", "--model", model],
        ["duplicates", texts, "d.tsv", "--model", model],
        ["evaluate", model, pairs],
        ["diagnose", model, texts],
        ["compare", model, model, "--pairs", pairs],
        ["report", finished["folder"], "--output", "page", "--limit", "8"],
        ["postprocess", model, texts, "white"],
        ["onnx", model, "onnx"],
        ["sweep", "--dry_run", "--vary", "data.batch_size=8,16", "--recipe", "simcse", *tiny_words],
    ]
    home = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-P", "-c", DRIVER.format(here=str(tmp_path), home=home, commands=commands)],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert "shadowed" not in done.stderr + done.stdout
    assert (tmp_path / "v.npy").exists()


def _shadow(folder: Path) -> None:
    for name in SHADOWED:
        (folder / f"{name}.py").write_text(f"raise SystemExit('shadowed {name}')\n")
