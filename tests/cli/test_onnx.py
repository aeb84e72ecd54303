"""The command that exports to ONNX."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from contrastive_text.cli import run
from contrastive_text.data.prompts import Prompts
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.inference.onnx_export import TOLERANCE, Exported
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.poolers import CLSPooler

PROMPTS = Prompts({"default": "text: "}, "default")


def test_what_onnx_prints(
    files: dict[str, str], here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    SentenceEncoder(TransformerEncoder(files["bert"]), CLSPooler(), prompts=PROMPTS).save_pretrained("model")

    def written(model: SentenceEncoder, folder: Path, opset: int) -> Exported:
        (here / folder).mkdir()
        (here / folder / "model.onnx").write_bytes(bytes(1_500_000))
        assert (model.prompts.text(), model.device.type, opset) == ("text: ", "cpu", 17)
        return Exported(("input_ids", "attention_mask"), model.features, 2.54e-7)

    monkeypatch.setattr("contrastive_text.inference.onnx_export.export_onnx", written)
    assert run(["onnx", "model", "graph", "--opset", "17"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "graph/model.onnx: 1.5 MB, input_ids, attention_mask (texts, tokens) int64 -> "
        "sentence_embedding (texts, 16) float32",
        "its vectors are the model's to 2.5e-07 of the largest feature",
        f"put the model's prompts before the texts: {PROMPTS.describe()}",
        "tokenizer.json cuts at 32 tokens and pads; both run with onnxruntime and tokenizers alone: see "
        "docs/onnx.md",
    ]


@pytest.mark.slow  # torch's exporter takes seconds; tests/inference/test_onnx_export.py runs it
def test_onnx_says_how_near_it_is_and_what_belongs_to_it(
    files: dict[str, str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime", reason="needs the onnx extra")
    pytest.importorskip("onnxscript", reason="needs the onnx extra")
    SentenceEncoder(TransformerEncoder(files["bert"]), CLSPooler(), prompts=PROMPTS).save_pretrained("model")
    assert run(["onnx", "model", "graph"]) == 0
    said = capsys.readouterr()
    assert "input_ids, attention_mask (texts, tokens) int64 -> sentence_embedding (texts, 16) float32" in said.out
    difference = re.search(r"its vectors are the model's to (\S+) of the largest feature", said.out)
    assert difference is not None
    assert 0 < float(difference[1]) <= TOLERANCE
    assert f"put the model's prompts before the texts: {PROMPTS.describe()}" in said.out
    assert "tokenizer.json cuts at 32 tokens and pads" in said.out
    assert len(said.out.splitlines()) == 4  # and nothing of the exporter's
    assert said.err == ""
    assert {path.name for path in (here / "graph").iterdir()} >= {"model.onnx", "tokenizer.json"}
