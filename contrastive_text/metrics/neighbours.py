"""How often a text's nearest neighbours are of its class."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from contrastive_text.core.errors import InvalidValueError

_TEMPERATURE = 0.07
"""Wu et al. 2018, section 3.4."""
_BLOCK = 1024


def nearest_neighbour_accuracy(vectors: Tensor, labels: Tensor, k: int = 10) -> float:
    """Returns how often the k nearest others of a text vote for its class, times 100.

    Neighbours are by cosine, and each votes for its class with the weight exp(cosine / 0.07); a text is no
    neighbour of itself (Wu et al. 2018, "Unsupervised Feature Learning via Non-Parametric Instance
    Discrimination", https://arxiv.org/abs/1805.01978, section 3.4, here leaving one out).

    Args:
        vectors: (N, D).
        labels: Number of each text's class, from 0, (N,), integers.
        k: Neighbours; all others where there are fewer.

    Raises:
        ValueError: Fewer than two texts, as many labels as there aren't texts, or a k below 1.

    Example:
        >>> vectors = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
        >>> nearest_neighbour_accuracy(vectors, torch.tensor([0, 0, 1, 1]), k=1)
        100.0
        >>> nearest_neighbour_accuracy(vectors, torch.tensor([0, 1, 0, 1]), k=1)
        0.0
    """
    if vectors.ndim != 2 or len(vectors) < 2 or labels.shape != (len(vectors),) or k < 1:
        raise InvalidValueError(
            "nearest_neighbour_accuracy: expected vectors (N, D) of two texts or more, N labels and a k of 1 or "
            f"more, got {tuple(vectors.shape)}, {tuple(labels.shape)} and {k}; give a label for each vector"
        )
    unit, labels = normalize(vectors, dim=1), labels.to(vectors.device).long()
    classes, right = int(labels.max()) + 1, 0
    for start in range(0, len(unit), _BLOCK):
        rows = torch.arange(start, min(start + _BLOCK, len(unit)), device=unit.device)
        cosines = unit[rows] @ unit.T
        cosines[torch.arange(len(rows), device=unit.device), rows] = -torch.inf
        near = cosines.topk(min(k, len(unit) - 1), dim=1)
        votes = (near.values / _TEMPERATURE).exp()[:, :, None] * one_hot(labels[near.indices], classes)
        right += int((votes.sum(dim=1).argmax(dim=1) == labels[rows]).sum())
    return 100 * right / len(unit)
