"""What a run leaves for use: a model folder."""

from __future__ import annotations

import shlex
from importlib.util import find_spec
from pathlib import Path

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback, ModelCheckpoint

from contrastive_text.core.config.class_paths import own_modules, trust_words
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage.checkpoints import verify_checkpoint
from contrastive_text.core.storage.disk import remove_abandoned
from contrastive_text.core.storage.manifests import MODULES
from contrastive_text.core.terminal import console
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.inference.folder_modules import check_loadable
from contrastive_text.training.callbacks.best_checkpoint import BestCheckpoint
from contrastive_text.training.model_card import add_card
from contrastive_text.training.module import ContrastiveModule


class ExportModel(Callback):
    """Loads the best checkpoint after training and saves it for use, as a folder to load anywhere.

    A folder holds a ``TransformerEncoder``. Of any other encoder the checkpoint is what can be loaded again; that
    is said when training starts.

    Args:
        dirpath: The folder; None for ``model`` in the run's folder.
        adapters_beside: Whether LoRA is written beside the weights as they were, in peft's format; otherwise
            adapters become part of the weights.
    """

    def __init__(self, dirpath: str | None = None, adapters_beside: bool = False) -> None:
        self.dirpath = dirpath
        self.adapters_beside = adapters_beside

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Says that an encoder of a user's own gets no folder.

        Raises:
            ValueError: An encoder that couldn't be loaded again, such as one with layers put in by hand; or split
                weights without a checkpoint.
        """
        if not isinstance(pl_module, ContrastiveModule):
            return
        if pl_module.is_split and not trainer.checkpoint_callbacks:
            raise InvalidValueError(
                "export: expected a checkpoint beside it where weights are split (fsdp2), for it is made of one, "
                "got a run without; leave out --trainer.enable_checkpointing false, or the export"
            )
        if isinstance(pl_module.encoder, TransformerEncoder):
            check_loadable(pl_module.encoder, where="ExportModel")
            older = self.dirpath is not None and Path(self.dirpath, MODULES).exists()
            if older and trainer.ckpt_path is None and trainer.is_global_zero:
                console(soft_wrap=True).print(f"{self.dirpath} holds a model: this run's will take its place")
        elif trainer.is_global_zero:
            name = type(pl_module.encoder).__name__
            console().print(
                f"No model folder will be written: one holds a TransformerEncoder, and this is a {name}. "
                "ContrastiveModule.load_from_checkpoint loads it from a checkpoint."
            )

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Reloads the best weights on every rank and writes the folder on the first."""
        ours = [found for found in trainer.checkpoint_callbacks if isinstance(found, BestCheckpoint)]
        others = [found for found in trainer.checkpoint_callbacks if isinstance(found, ModelCheckpoint)]
        checkpoint = next(iter([*ours, *others]), None)
        best = "" if checkpoint is None else checkpoint.best_model_path
        if best:
            verify_checkpoint(best)
            state = torch.load(best, map_location=pl_module.device, weights_only=True)["state_dict"]
            pl_module.load_state_dict(state)
            del state
        # All ranks ask for the run's folder.
        run = trainer.log_dir
        folder = Path(self.dirpath or Path(run or trainer.default_root_dir) / "model")
        if not trainer.is_global_zero or not isinstance(pl_module, ContrastiveModule):
            return
        if not isinstance(pl_module.encoder, TransformerEncoder):
            return  # said at the start
        remove_abandoned(folder.parent)
        if pl_module.is_split:
            pl_module = pl_module.unsplit_class().load_from_checkpoint(best, map_location="cpu")
        model = pl_module.sentence_encoder()
        if best:
            add_card(model, best)
        model.save_pretrained(folder, self.adapters_beside)
        said = ""
        if checkpoint is not None and checkpoint.best_model_score is not None:
            said = f" (best {checkpoint.monitor} {float(checkpoint.best_model_score):.2f}, {Path(best).stem})"
        screen = console(soft_wrap=True)
        if isinstance(checkpoint, BestCheckpoint) and (regression := checkpoint.best.regression):
            screen.print(f"{regression}; try a lower learning rate, or use the model that it started from")
        screen.print(f"Model saved to {folder}{said}. Next:")
        screen.print(f"  contrastive-text embed TEXTS.txt VECTORS.npy --model {folder}")
        if run is not None and find_spec("matplotlib") is not None:  # which draws the page
            parts = [pl_module, vars(trainer).get("datamodule")]  # Lightning sets it, undeclared
            own = own_modules([dict(part.hparams) for part in parts if part is not None])
            screen.print("  " + shlex.join(["contrastive-text", "report", *trust_words(own), run]))
