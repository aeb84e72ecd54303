"""Command ``onnx``: exports a model to ONNX and compares the vectors."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated

from contrastive_text.cli.options import Model
from contrastive_text.cli.paths import WrittenFolder
from contrastive_text.core.storage.manifests import GRAPH, MODULES
from contrastive_text.core.terminal import print_message


@dataclass(frozen=True)
class Onnx:
    """Export a model to ONNX, and compare the vectors of both."""

    model: Model
    output: Annotated[
        Path, WrittenFolder(key=GRAPH, never_with=(MODULES, "config.json")), "Folder to write the ONNX model to."
    ]
    _: KW_ONLY
    opset: Annotated[int, "Version of the ONNX operator set."] = 18


def onnx(options: Onnx) -> None:
    """Writes a model as an ONNX graph with its tokenizer, and prints the difference of their vectors."""
    from contrastive_text.cli.models import load_model
    from contrastive_text.core.storage.disk import lock_output
    from contrastive_text.inference.onnx_export import OUTPUT, export_onnx

    with lock_output(options.output):
        model = load_model(options.model, device="cpu")
        exported = export_onnx(model, options.output, opset=options.opset)
    size = sum(path.stat().st_size for path in options.output.glob(f"{GRAPH}*")) / 1e6
    print_message(
        f"{options.output / GRAPH}: {size:,.1f} MB, {', '.join(exported.inputs)} (texts, tokens) int64 -> "
        f"{OUTPUT} (texts, {exported.features}) float32"
    )
    print_message(
        f"its vectors differ from the model's by at most {exported.difference:.1e} of the largest feature"
    )
    if model.prompts:
        print_message(f"put the model's prompts before the texts: {model.prompts.describe()}")
    print_message(
        f"tokenizer.json truncates to {model.max_length} tokens and pads; to run both you need only onnxruntime "
        "and tokenizers: see docs/onnx.md"
    )
