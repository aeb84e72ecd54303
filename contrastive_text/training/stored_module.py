"""What a checkpoint has of the module beside its weights, and how one is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import pytorch_lightning as pl

from contrastive_text.core.checkpoints import load_options
from contrastive_text.core.misspelt import parsing
from contrastive_text.core.setting import SETTING, current_setting
from contrastive_text.data.vocabulary import wrap_tokenizer
from contrastive_text.encoders import Encoder
from contrastive_text.training.divergence import check_weights
from contrastive_text.training.run_guides import GUIDES, check_same_guides, identities
from contrastive_text.training.start_checks import check_resumed
from contrastive_text.training.tasks import TaskParts

_TOKENIZER = "tokenizer"


class StoredModule(pl.LightningModule):
    """Base class of the module: a checkpoint of it holds its setting and a tokenizer learned from the corpus.

    Attributes:
        encoder: The part that has the tokenizer.
        by_task: The parts of each data set, whose prompts a resumed run must have too.
    """

    encoder: Encoder
    by_task: TaskParts
    _learned_tokenizer: str | None = None

    def adopt_tokenizer(self, description: str) -> None:
        """Takes over a tokenizer learned from the corpus, as JSON; checkpoints keep it."""
        self._learned_tokenizer = description
        self.encoder.tokenizer = wrap_tokenizer(description)

    @classmethod
    def load_from_checkpoint(  # type: ignore[override]  # Lightning's options are all in ``options``
        cls, checkpoint_path: str | Path, trust: Sequence[str] | None = None, **options: Any
    ) -> Self:
        """Loads a checkpoint after checking that it is whole, and that it may name the classes that it names.

        Args:
            checkpoint_path: A local ``.ckpt`` file.
            trust: Modules whose classes the file may name, beside this library's and those that are imported.
            options: As in Lightning's method, but ``hparams_file``; ``weights_only`` is True unless given.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: The file is damaged, or names a class of a module that isn't trusted.
        """
        with load_options(checkpoint_path, cls, "model", trust, options) as arguments:
            loaded: Self = super().load_from_checkpoint(checkpoint_path, **arguments)
        return loaded

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Takes weights over as torch does; those of another network are a ValueError that says what differs."""
        where = (None if self._trainer is None else self._trainer.ckpt_path) or "load_state_dict"
        with parsing(where, "the weights of a module that is built as this one", (RuntimeError,)):
            return super().load_state_dict(state_dict, strict=strict, assign=assign)  # Any: torch's

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:  # Any: what Lightning puts into it
        """Checks that weights are numbers; keeps the setting, guides' identities, a learned tokenizer."""
        check_weights(self.trainer, self)
        checkpoint[SETTING] = current_setting(self.device)
        checkpoint[GUIDES] = identities(self.by_task.guides)
        if self._learned_tokenizer is not None:
            checkpoint[_TOKENIZER] = self._learned_tokenizer

    def on_load_checkpoint(self, checkpoint: Mapping[str, Any]) -> None:  # Any: what Lightning put into it
        """Takes the learned tokenizer back; where a run is to go on, checks that it can (``check_resumed``)."""
        if self._trainer is not None and self._trainer.state.fn == "fit":
            check_resumed(checkpoint, self.trainer, self.by_task.prompts)
            check_same_guides(self.by_task.guides, checkpoint.get(GUIDES, {}), self.trainer.ckpt_path)
        if _TOKENIZER in checkpoint:
            self.adopt_tokenizer(checkpoint[_TOKENIZER])
