"""What a checkpoint has of the module beside its weights, and how one is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from contrastive_text.core.config.misspelt import parsing
from contrastive_text.core.distributed import split_as
from contrastive_text.core.errors import InvalidValueError, RunError
from contrastive_text.core.setting import SETTING, current_setting
from contrastive_text.core.storage.checkpoints import BASE, load_options
from contrastive_text.data.tokenizing import wrap_tokenizer
from contrastive_text.encoders import Encoder
from contrastive_text.encoders.adapters import is_part_of_packed
from contrastive_text.training.callbacks.every_run import check_weights
from contrastive_text.training.checks import check_resumed
from contrastive_text.training.continuation import TRAINER, check_changes, trainer_settings
from contrastive_text.training.fsdp2 import SplitModule
from contrastive_text.training.guides import GUIDES, check_same_guides, identities
from contrastive_text.training.tasks import TaskParts

_TOKENIZER = "tokenizer"
_T = TypeVar("_T")


class StoredModule(SplitModule):
    """Base class of the module: a checkpoint of it holds its setting and a tokenizer learned from the corpus.

    Weights under adapters are not in it: their identity is.

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
        """Takes weights over as torch does; those of another network are a ValueError that says what differs.

        Weights under adapters stay as they are where none are given; of split weights each rank takes its part.
        """
        bases, own = self._base_names() - state_dict.keys(), self.state_dict()
        state_dict = {name: split_as(value, own.get(name, value)) for name, value in state_dict.items()}
        state_dict |= {name: own[name] for name in bases}
        where = (None if self._trainer is None else self._trainer.ckpt_path) or "load_state_dict"
        with parsing(where, "the weights of a module that is built as this one", (RuntimeError,)):
            return super().load_state_dict(state_dict, strict=strict, assign=assign)  # Any: torch's

    def without_base(self, state: Mapping[str, _T]) -> dict[str, _T]:
        """Returns a state of the module without the weights under adapters, which it is never trained on."""
        bases = frozenset(self._base_names())
        return {
            name: value
            for name, value in state.items()
            if name not in bases and not is_part_of_packed(name, bases)
        }

    def _base_names(self) -> set[str]:
        """Returns the names of the weights under adapters: those of copies too, and of what is tied to them."""
        if self.encoder.base_identity is None:
            return set()
        bases = {id(weight) for weight in self.encoder.base_weights()}
        return {name for name, weight in self.named_parameters(remove_duplicate=False) if id(weight) in bases}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:  # Any: what Lightning puts into it
        """Checks that weights are numbers; keeps the setting, identities of others, a learned tokenizer.

        Raises:
            RunError: Weights under adapters that were unfrozen.
        """
        check_weights(self.trainer, self)
        if self.encoder.base_identity is not None:
            if any(weight.requires_grad for weight in self.encoder.base_weights()):
                raise RunError(
                    "model.encoder.adapters: expected that the weights under them stay frozen, for no checkpoint "
                    "has them, got some that are trained; unfreeze other parts, or train without adapters"
                )
            checkpoint["state_dict"] = self.without_base(checkpoint["state_dict"])
            checkpoint[BASE] = self.encoder.base_identity
        checkpoint[SETTING] = current_setting(self.device)
        checkpoint[TRAINER] = trainer_settings(self.trainer)
        checkpoint[GUIDES] = identities(self.by_task.guides)
        if self._learned_tokenizer is not None:
            checkpoint[_TOKENIZER] = self._learned_tokenizer

    def on_load_checkpoint(self, checkpoint: Mapping[str, Any]) -> None:  # Any: what Lightning put into it
        """Takes the learned tokenizer back; where a run is to go on, checks that it can (``check_resumed``).

        A run that ended inside an epoch, as by ``max_steps``, goes on inside it when it is made longer.

        Raises:
            ValueError: Adapters of other weights than the encoder's.
        """
        if (kept := checkpoint.get(BASE)) is not None and kept != self.encoder.base_identity:
            raise InvalidValueError(
                "model.encoder: expected the weights on which the checkpoint's adapters were trained "
                f"({kept}), got {self.encoder.base_identity or 'an encoder without adapters'}; no checkpoint has "
                "them, so name them by model_name_or_path as they were"
            )
        if self._trainer is not None and self._trainer.state.fn == "fit":
            check_resumed(checkpoint, self.trainer, self.by_task.prompts)
            check_changes(checkpoint, self.trainer, self.hparams, self.by_task.objectives(None))
            check_same_guides(self.by_task.guides, checkpoint.get(GUIDES, {}), self.trainer.ckpt_path)
            _settle_epoch(checkpoint["loops"]["fit_loop"])
        if _TOKENIZER in checkpoint:
            self.adopt_tokenizer(checkpoint[_TOKENIZER])


def _settle_epoch(loop: dict[str, Any]) -> None:  # Any: Lightning's
    """Has a checkpoint from after the last batch of an epoch, or of a run, say what one from that batch says.

    Lightning counts the last epoch of every run as done, so that a longer run would leave out what the epoch had
    left; and a run by steps would give the batches of the next epoch the numbers after those of the last one.
    """
    epochs, batches = loop["epoch_progress"], loop["epoch_loop.batch_progress"]
    resumable = bool(loop["state_dict"].get("combined_loader"))  # other loaders can't go to a place in an epoch
    afterwards = epochs["current"]["processed"] == epochs["current"]["started"]
    if not resumable or not afterwards or not batches["current"]["processed"]:
        return
    for counted in (epochs["total"], epochs["current"]):
        counted["processed"] = counted["completed"] = counted["started"] - 1
    if batches["is_last_batch"]:
        for counted in (batches["total"], batches["current"]):
            counted["completed"] = counted["processed"] - 1
        loop["epoch_loop.state_dict"]["_batches_that_stepped"] -= 1  # which is added again
