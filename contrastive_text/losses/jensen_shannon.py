"""How far apart two distributions over the same columns are."""

from __future__ import annotations

import math

from torch import Tensor, logaddexp


def jensen_shannon_terms(first: Tensor, second: Tensor) -> Tensor:
    """Returns the Jensen-Shannon divergence of each row's two softmaxes, between 0 and log 2.

    ``KL(p || m) / 2 + KL(q || m) / 2`` with ``m = (p + q) / 2``.

    Args:
        first: Logits, (R, C).
        second: Logits of the same columns, (R, C).

    Returns:
        (R,).

    Example:
        >>> import torch
        >>> jensen_shannon_terms(torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 100.0]]))
        tensor([0.2158])
    """
    logs = [first.log_softmax(dim=1), second.log_softmax(dim=1)]
    middle = logaddexp(*logs) - math.log(2)
    one, other = ((each.exp() * (each - middle)).sum(dim=1) for each in logs)
    return (one + other) / 2
