"""Export of the best weights of a run: a model folder with its model card."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from huggingface_hub import try_to_load_from_cache
from pytorch_lightning.callbacks import Callback, ModelCheckpoint

from contrastive_text.core.config.class_paths import own_modules, trust_words
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage.checkpoints import read_checkpoint, verify_checkpoint
from contrastive_text.core.storage.disk import remove_abandoned
from contrastive_text.core.storage.manifests import MODULES
from contrastive_text.core.terminal import code_span, console
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.inference.folder_modules import check_loadable, is_plain
from contrastive_text.inference.model_card import ModelCard
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.recipes.citations import citations
from contrastive_text.training.callbacks.best_checkpoint import BestCheckpoint
from contrastive_text.training.module import ContrastiveModule

RECIPE = "recipe"
"""The fact that names the recipes of a run."""
_FACTS = (
    RECIPE, "training data", "validation data", "run", "step", "pairing", "views", "prompts", "objectives",
    "guides", "mixture", "gradient", "dropout", "pooler", "head in use", "optimizer", "length limit", "libraries",
)  # fmt: skip
_STARTS_FROM = "starts from"
_LIMITS = (
    "Nothing beyond the scores above was measured when this card was written. The length limit above is that of "
    "training. The model repeats what its training texts take for granted; test it on texts of your own."
)
_PATH = re.compile(r"(?<![\w.])(?:~|\.\.?|[A-Za-z]:)?(?:[/\\]+[\w.~-]+)*[/\\]+([\w.-]*)")
"""A path that begins at the root, at a drive, at home or at a dot: another slash is no path's."""


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


def add_card(model: SentenceEncoder, checkpoint: str | Path) -> None:
    """Gives a model the card of the checkpoint that its weights are of. Of a path it has the last part alone.

    Args:
        model: The model; ``save_pretrained`` writes its card.
        checkpoint: The ``.ckpt`` file.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: A damaged one.
    """
    known = read_checkpoint(checkpoint)
    arguments = (known.model.get("encoder") or {}).get("init_args") or {}
    base = str(arguments.get("model_name_or_path") or "")
    of_hub = _is_of_hub(base)
    start = base if of_hub else _last(base)
    places = sorted({*_places(known.model), *_places(known.data)}, key=len, reverse=True)
    facts = {name: _without_places(known.facts[name], places) for name in _FACTS if name in known.facts}
    if _STARTS_FROM in known.facts:
        facts[_STARTS_FROM] = _last(known.facts[_STARTS_FROM])
    validation = known.data.get("validation")
    model.card = ModelCard(
        what="Vectors of sentences, trained by contrastive learning"
        + (f" from the weights of {code_span(start)}." if start else " from random weights."),
        elsewhere=is_plain(model.parts),
        ranks=model.prompts.ranks,
        base=base if of_hub else None,
        facts={
            "steps of these weights": f"{known.step:,}",
            "seed": str(known.data.get("seed", "unknown")),
            **facts,
        },
        scores=known.best.figures,
        setting="Of these very weights, on the validation data above; one run, so without a spread. Correlations "
        "and accuracies are times 100. The checkpoint was chosen by them, so they flatter it.",
        pairs=_last(validation) if isinstance(validation, str) else None,
        limits=_LIMITS,
        citations=citations(known.facts.get(RECIPE, "").split(", ")),
    ).text()


def _is_of_hub(name: str) -> bool:
    """Whether a name is certainly one of the hub's: no folder, and the hub's cache has it."""
    if not re.fullmatch(r"[\w-][\w.-]*(/[\w.-]+)?", name) or Path(name).exists():
        return False
    return isinstance(try_to_load_from_cache(name, "config.json"), str)


def _places(part: Any) -> Iterator[str]:  # Any: what YAML can hold
    """Yields the strings with a separator of folders in a configuration."""
    if isinstance(part, str):
        if "/" in part or "\\" in part:
            yield part
    elif isinstance(part, Mapping):
        for each in part.values():
            yield from _places(each)
    elif isinstance(part, list | tuple):
        for each in part:
            yield from _places(each)


def _last(path: str) -> str:
    r"""Returns what follows the last separator of folders.

    Example:
        >>> _last("/home/Jane Doe/model/"), _last("C:\\models\\bert")
        ('model', 'bert')
    """
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1]


def _without_places(text: str, places: list[str]) -> str:
    r"""Returns a text in which only the last part of every path stays.

    Example:
        >>> _without_places("/home/Jane Doe/texts.txt: 3 rows; ../b.tsv", ["/home/Jane Doe/texts.txt"])
        'texts.txt: 3 rows; b.tsv'
    """
    for place in places:
        text = text.replace(place, _last(place))
    return _PATH.sub(r"\1", text)
