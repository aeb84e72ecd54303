"""The command that saves the model of a checkpoint for use."""

from __future__ import annotations

from pathlib import Path

from contrastive_text.cli.commands import Export
from contrastive_text.core.storage.checkpoints import best_checkpoint
from contrastive_text.core.storage.disk import alone_with
from contrastive_text.core.storage.manifests import MODULES
from contrastive_text.core.terminal import say
from contrastive_text.training.model_card import add_card
from contrastive_text.training.module import ContrastiveModule


def export(options: Export) -> None:
    """Saves the model of a checkpoint as a folder, as ``fit`` does with the best one at its end."""
    with alone_with(options.output):
        older = Path(options.output, MODULES).exists()
        path = best_checkpoint(options.checkpoint, "checkpoint")
        module = ContrastiveModule.load_from_checkpoint(path, map_location="cpu")
        model = module.sentence_encoder()
        add_card(model, path)
        model.save_pretrained(options.output, options.adapters_beside)
    say(f"Model of {path} saved to {options.output}{', in place of an older one' if older else ''}. Next:")
    say(f"  contrastive-text embed TEXTS.txt VECTORS.npy --model {options.output}")
