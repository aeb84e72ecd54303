"""What a loss over the whole batch is: one value of all pairs, where an in-batch loss has a term of each row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.similarity import at_least_float32, full_precision


class BatchLoss(nn.Module, ABC):
    """Base class of losses whose value is one of all pairs of a step together, and no sum over rows.

    They have no negatives: a term pulls the two vectors of a pair together, another one keeps the vectors of a
    side, or their features, from becoming alike. The objective ``WholeBatch`` gathers the pairs of all ranks.

    Attributes:
        decorrelates: Whether it asks features to differ, so that their correlation is logged.
        remedy: What to try where vectors become alike all the same, beside a lower learning rate or a larger
            batch; the doctor of a run says it.

    Example:
        >>> class Invariance(BatchLoss):
        ...     def value(self, anchor, positive, ids):
        ...         return (anchor - positive).square().mean()
        >>> Invariance()(torch.eye(2), torch.zeros(2, 2))
        tensor(0.5000)
    """

    decorrelates: ClassVar[bool] = False
    remedy: ClassVar[str] = "a larger weight of the term that spreads vectors"

    @abstractmethod
    def value(self, anchor: Tensor, positive: Tensor, ids: Tensor) -> Tensor:
        """Returns the loss, the same on every rank; asked outside autocast.

        Args:
            anchor: Vectors of all ranks, in at least float32, (N, D).
            positive: Their partners, (N, D).
            ids: Of each anchor's text, then of its partner's, (N, 2), or (N, 2, kinds): texts are equal if they
                agree in one kind.

        Returns:
            A scalar.
        """

    def forward(self, anchor: Tensor, positive: Tensor, ids: Tensor | None = None) -> Tensor:
        """Returns the loss of N pairs.

        Args:
            anchor: (N, D).
            positive: (N, D).
            ids: As ``value`` has them; None where all texts differ.

        Returns:
            A scalar, in at least float32.

        Raises:
            ValueError: Shapes that don't belong together.
        """
        if ids is None:
            ids = torch.arange(2 * len(anchor), device=anchor.device).reshape(2, -1).T
        if anchor.ndim != 2 or anchor.shape != positive.shape or ids.shape[:2] != (len(anchor), 2):
            raise InvalidValueError(
                f"{type(self).__name__}: expected anchor and positive of one shape (N, D) and ids (N, 2), got "
                f"{tuple(anchor.shape)}, {tuple(positive.shape)} and {tuple(ids.shape)}; give one vector per text"
            )
        with full_precision(anchor.device):
            return self.value(at_least_float32(anchor), at_least_float32(positive), ids)


def check_weights(where: str, **weights: float) -> None:
    """Checks that the weights of a loss's terms are 0 or more (ValueError)."""
    for name, weight in weights.items():
        if not 0 <= weight < float("inf"):
            raise InvalidValueError(f"{where}.{name}: expected a weight of 0 or more, got {weight}")
