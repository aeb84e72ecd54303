"""What a module whose weights are split over ranks does in hooks of Lightning's."""

from __future__ import annotations

from typing import Self

import pytorch_lightning as pl
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.optim import Optimizer

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.training.split_weights import average_gradients, clip_gradients, split_weights
from contrastive_text.training.strategies import FSDP2Strategy


class SplitModule(pl.LightningModule):
    """Base class of the module: splits its weights where the trainer's strategy is ``fsdp2``."""

    _numbers: list[nn.Parameter]
    """Weights that are not split though all others are."""

    @property
    def is_split(self) -> bool:
        """Whether its weights are split over ranks."""
        return isinstance(self, FSDPModule)

    @classmethod
    def unsplit_class(cls) -> type[Self]:
        """Returns the class that it had before its weights were split."""
        found: type[Self] = next(each for each in cls.__mro__ if not issubclass(each, FSDPModule))  # type: ignore[assignment]  # its base
        return found

    def configure_model(self) -> None:
        """Splits the weights, once."""
        strategy = None if self._trainer is None else self._trainer.strategy
        if isinstance(strategy, FSDP2Strategy) and not self.is_split:
            self._numbers = split_weights(self, strategy.device_mesh["data_parallel"])

    def on_after_backward(self) -> None:
        """Reduces what FSDP2 doesn't, and lets go of the weights that were whole during the step."""
        if isinstance(self, FSDPModule):
            average_gradients(self._numbers)
            self.reshard()

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clips gradients as Lightning does, of split weights too."""
        if self.is_split:
            if gradient_clip_val:
                weights = (weight for group in optimizer.param_groups for weight in group["params"])
                clip_gradients(weights, gradient_clip_val, gradient_clip_algorithm)
            return
        self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def on_predict_start(self) -> None:
        """Refuses predictions with split weights, for ranks may have different numbers of batches.

        Raises:
            ValueError: Weights that are split.
        """
        if self.is_split:
            raise InvalidValueError(
                "trainer.strategy: expected one that splits no weights for a prediction, got fsdp2; use the "
                "exported model, with contrastive-text embed"
            )
