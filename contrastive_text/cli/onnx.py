"""The command that exports a model to ONNX."""

from __future__ import annotations

from contrastive_text.cli.commands import Onnx
from contrastive_text.cli.models import load_model
from contrastive_text.core.storage.disk import alone_with
from contrastive_text.core.storage.manifests import GRAPH
from contrastive_text.core.terminal import say
from contrastive_text.inference.onnx_export import OUTPUT, export_onnx


def onnx(options: Onnx) -> None:
    """Writes a model as an ONNX graph with its tokenizer, and prints how near its vectors are to the model's."""
    with alone_with(options.output):
        model = load_model(options.model, device="cpu")
        exported = export_onnx(model, options.output, opset=options.opset)
    size = sum(path.stat().st_size for path in options.output.glob(f"{GRAPH}*")) / 1e6
    say(
        f"{options.output / GRAPH}: {size:,.1f} MB, {', '.join(exported.inputs)} (texts, tokens) int64 -> "
        f"{OUTPUT} (texts, {exported.features}) float32"
    )
    say(f"its vectors are the model's to {exported.difference:.1e} of the largest feature")
    if model.prompts:
        say(f"put the model's prompts before the texts: {model.prompts.describe()}")
    say(
        f"tokenizer.json cuts at {model.max_length} tokens and pads; both run with onnxruntime and tokenizers "
        "alone: see docs/onnx.md"
    )
