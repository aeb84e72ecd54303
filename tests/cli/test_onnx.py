"""The command that exports to ONNX."""

from __future__ import annotations

from pathlib import Path

import pytest
from shells import Shell

from contrastive_text.data.prompts import Prompts
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.inference.onnx_export import Exported
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.poolers import CLSPooler

PROMPTS = Prompts({"default": "text: "}, "default")


def test_what_onnx_prints(
    shell: Shell, files: dict[str, str], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SentenceEncoder(TransformerEncoder(files["bert"]), CLSPooler(), prompts=PROMPTS).save_pretrained("model")

    def written(model: SentenceEncoder, folder: Path, opset: int) -> Exported:
        (here / folder).mkdir()
        (here / folder / "model.onnx").write_bytes(bytes(1_500_000))
        assert (model.prompts.text(), model.device.type, opset) == ("text: ", "cpu", 17)
        return Exported(("input_ids", "attention_mask"), model.features, 2.54e-7)

    monkeypatch.setattr("contrastive_text.inference.onnx_export.export_onnx", written)
    assert shell("onnx model graph --opset 17").out.splitlines() == [
        "graph/model.onnx: 1.5 MB, input_ids, attention_mask (texts, tokens) int64 -> "
        "sentence_embedding (texts, 16) float32",
        "its vectors differ from the model's by at most 2.5e-07 of the largest feature",
        f"put the model's prompts before the texts: {PROMPTS.describe()}",
        "tokenizer.json truncates to 32 tokens and pads; to run both you need only onnxruntime and tokenizers: "
        "see docs/onnx.md",
    ]
