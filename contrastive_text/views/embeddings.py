"""Views of the embedding output, on the device."""

from __future__ import annotations

import torch
from torch import Tensor

from contrastive_text.random import RowRandom
from contrastive_text.views.base import EmbeddingView, check_rate


class FeatureCutoff(EmbeddingView):
    """Sets an exact share of the features to zero, the same ones in every token of a text.

    ``int(rate * D)`` features per text, without rescaling. Source: Yan et al. 2021, ConSERT
    (https://arxiv.org/abs/2105.11741), section 3.2 "cutoff", and its authors' code (0.2 of 768: 153).

    Args:
        rate: Share of the features to erase.

    Raises:
        ValueError: A rate outside [0, 1].

    Example:
        >>> rng = RowRandom(torch.tensor([1, 2]))
        >>> view = FeatureCutoff(rate=0.5)(torch.ones(2, 3, 4), torch.ones(2, 3, dtype=torch.bool), rng)
        >>> view.sum(dim=2).tolist()
        [[2.0, 2.0, 2.0], [2.0, 2.0, 2.0]]
    """

    def __init__(self, rate: float = 0.2) -> None:
        check_rate("FeatureCutoff", rate)
        self.rate = rate

    def __call__(self, embeddings: Tensor, mask: Tensor, rng: RowRandom) -> Tensor:  # noqa: ARG002  # the contract
        """Gives the embeddings with some features erased, (n, L, D)."""
        rows, _, features = embeddings.shape
        eligible = torch.ones(rows, features, dtype=torch.bool, device=embeddings.device)
        count = torch.full((rows,), int(self.rate * features), device=embeddings.device)
        return embeddings.masked_fill(rng.choose(eligible, count).unsqueeze(1), 0.0)
