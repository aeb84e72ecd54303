"""The code of docs/integrations.md, each tool in a fresh environment, computes the vectors of the saved model."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import textwrap
import venv
from pathlib import Path

import numpy as np
import pytest
import tiny

from contrastive_text import SentenceEncoder, TransformerEncoder
from contrastive_text.inference import export_onnx
from contrastive_text.poolers import MeanPooler

PAGE = (Path(__file__).parents[2] / "docs" / "integrations.md").read_text(encoding="utf-8")
INDENTED = r"((?: {4}.*\n|\n)+)"
TOOLS = {
    name: (shlex.split(words), textwrap.dedent(code).replace("dim=384", "dim=16"))
    for words, name, code in re.findall(
        rf"^    pip install (.*)\n\n<!-- (\S+) -->\n\n{INDENTED}", PAGE, flags=re.M
    )
}
ROUNDING = 1e-6
"""Of float32, for features of unit vectors; the largest measured difference is 1.4e-7."""
BEFORE = """
import json
texts = json.load(open("texts.json"))
"""
AFTER = """
import numpy
numpy.save("theirs.npy", numpy.array([numpy.asarray(vector) for vector in vectors], dtype="float32"))
"""


def test_the_page_has_a_block_for_each_tool_of_its_table() -> None:
    assert len(TOOLS) == len(re.findall(r"^\| \[", PAGE, flags=re.M)) == 8


@pytest.mark.network  # the package index: minutes for each tool
@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_computes_the_vectors_of_the_saved_model(tool: str, tmp_path: Path) -> None:
    packages, code = TOOLS[tool]
    encoder = TransformerEncoder(tiny.save_bert(tmp_path / "encoder"))
    model = SentenceEncoder(encoder, MeanPooler(), normalize=True, max_length=16).eval()
    model.save_pretrained(tmp_path / "my-model")
    if tool == "fastembed":
        export_onnx(model, tmp_path / "my-model-onnx")
    texts = [*tiny.TEXTS[:8], " ".join(tiny.TEXTS)]
    (tmp_path / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
    (tmp_path / "main.py").write_text(BEFORE + code + AFTER, encoding="utf-8")
    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    (tmp_path / "torch.txt").write_text("torch==2.13.0\n", encoding="utf-8")
    commands = [
        [python, "-m", "pip", "install", "-q", "-c", "torch.txt", "torch", *packages],
        [python, "main.py"],
        [python, "-m", "pip", "list"],
    ]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
    environment.pop("PYTHONPATH", None)
    for command in commands:
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=3600, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    difference = np.abs(np.load(tmp_path / "theirs.npy") - model.encode(texts)).max()
    names = [re.split(r"[\[=<>]", name)[0] for name in (*packages, "transformers")]
    versions = [line for line in done.stdout.splitlines() if line.split(" ")[0].replace("_", "-") in names]
    print(tool, *(" ".join(line.split()) for line in versions), f"{difference:.1e}", sep=" | ")
    assert difference <= ROUNDING
