"""Command ``export``: saves the model of a checkpoint as a folder."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated

from contrastive_text.cli.paths import ReadPath, WrittenFolder
from contrastive_text.core.storage.manifests import MODULES
from contrastive_text.core.terminal import print_message


@dataclass(frozen=True)
class Export:
    """Save the model of a checkpoint as a folder, as fit does with its best checkpoint."""

    checkpoint: Annotated[
        str, ReadPath(), "Checkpoint file (.ckpt), or a run folder, whose best checkpoint is used."
    ]
    output: Annotated[Path, WrittenFolder(key=MODULES), "Model folder to write."]
    _: KW_ONLY
    separate_adapters: Annotated[
        bool, "Save LoRA weights separately, in the format of peft, instead of merging them."
    ] = False


def export(options: Export) -> None:
    """Saves the model of a checkpoint as a folder, as ``fit`` does with its best checkpoint."""
    from contrastive_text.core.storage.checkpoints import best_checkpoint
    from contrastive_text.core.storage.disk import lock_output
    from contrastive_text.training.callbacks.export_model import add_card
    from contrastive_text.training.module import ContrastiveModule

    with lock_output(options.output):
        is_replaced = Path(options.output, MODULES).exists()
        path = best_checkpoint(options.checkpoint, "checkpoint")
        module = ContrastiveModule.load_from_checkpoint(path, map_location="cpu")
        model = module.sentence_encoder()
        add_card(model, path)
        model.save_pretrained(options.output, options.separate_adapters)
    print_message(
        f"Model of {path} saved to {options.output}{', replacing an older model' if is_replaced else ''}. Next:"
    )
    print_message(f"  contrastive-text embed TEXTS.txt VECTORS.npy --model {options.output}")
