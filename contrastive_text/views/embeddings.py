"""Views of the embedding output that erase: features, tokens, a span of tokens, single entries."""

from __future__ import annotations

import torch
from torch import Tensor

from contrastive_text.core.random import RowRandom
from contrastive_text.core.types import Vocabulary
from contrastive_text.views.base import EmbeddingView, check_rate


def eligible_tokens(mask: Tensor, spared: tuple[int, int] | None) -> Tensor:
    """Returns the tokens that a view may alter: the real ones without those spared at the ends.

    Args:
        mask: True on tokens, (n, L).
        spared: Number of tokens to spare at the start and at the end of each row; None if still unknown.

    Raises:
        RuntimeError: The numbers are unknown.

    Example:
        >>> mask = torch.tensor([[True, True, True, True, False]])
        >>> eligible_tokens(mask, spared=(1, 1)).int().tolist()
        [[0, 1, 1, 0, 0]]
    """
    if spared is None:
        raise RuntimeError("specials=False: expected build(vocabulary) before the first call")
    place = mask.cumsum(dim=1)
    return mask & (place > spared[0]) & (place <= mask.sum(dim=1, keepdim=True) - spared[1])


def _share(eligible: Tensor, rate: float, features: int = 1) -> Tensor:
    """Returns ``int(count * features * rate)`` of each row's eligible tokens, (n, L) -> (n,).

    Python's float64 decides each count, in a table over all lengths, because not every device has float64.
    """
    counts = [int(count * features * rate) for count in range(eligible.shape[1] + 1)]
    return torch.tensor(counts, device=eligible.device)[eligible.sum(dim=1)]


class FeatureCutoff(EmbeddingView):
    """Sets an exact share of the features to zero, the same ones in every token of a text.

    ``int(rate * D)`` features per text, without rescaling, padding too. Source: Yan et al. 2021, ConSERT
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
        """Returns the embeddings with some features erased, (n, L, D)."""
        rows, _, features = embeddings.shape
        eligible = torch.ones(rows, features, dtype=torch.bool, device=embeddings.device)
        count = torch.full((rows,), int(self.rate * features), device=embeddings.device)
        return embeddings.masked_fill(rng.choose(eligible, count).unsqueeze(1), 0.0)


class TokenCutoff(EmbeddingView):
    """Sets an exact share of a text's tokens to zero, all their features.

    ``int(n * rate)`` of n tokens: at 0.15 a text of up to 6 stays whole. Erased tokens still take part in
    attention and in the mean. Source: Yan et al. 2021, ConSERT (https://arxiv.org/abs/2105.11741), section 3.2
    "cutoff" (0.15), and its authors' code (0.1 in the joint scripts).

    Args:
        rate: Share of the tokens to erase.
        specials: Whether special tokens count and may be erased, as in the authors' code.

    Raises:
        ValueError: A rate outside [0, 1].

    Example:
        >>> mask = torch.tensor([[True, True, True, True, False]])
        >>> TokenCutoff(rate=0.5)(torch.ones(1, 5, 1), mask, RowRandom(torch.tensor([5]))).flatten().tolist()
        [1.0, 0.0, 1.0, 0.0, 1.0]
    """

    def __init__(self, rate: float = 0.15, specials: bool = True) -> None:
        check_rate("TokenCutoff", rate)
        self.rate = rate
        self.specials = specials
        self._spared = (0, 0) if specials else None

    def build(self, vocabulary: Vocabulary) -> None:
        """Takes the number of special tokens around a text."""
        self._spared = (0, 0) if self.specials else (vocabulary.prefix, vocabulary.suffix)

    def __call__(self, embeddings: Tensor, mask: Tensor, rng: RowRandom) -> Tensor:
        """Returns the embeddings with some tokens erased, (n, L, D)."""
        eligible = eligible_tokens(mask, self._spared)
        erased = rng.choose(eligible, _share(eligible, self.rate))
        return embeddings.masked_fill(erased.unsqueeze(2), 0.0)


class SpanCutoff(EmbeddingView):
    """Sets a stretch of neighbouring tokens to zero, at a random place.

    ``int(n * rate)`` of n tokens; all places are equally likely. Source: Shen et al. 2020, "A Simple but
    Tough-to-Beat Data Augmentation Approach for Natural Language Understanding and Generation"
    (https://arxiv.org/abs/2009.13818), "span cutoff".

    Differs: their code also takes the stretch out of attention, and its draw of the start misses the last
    place; here erased tokens stay in attention and in the mean, as in ConSERT's cutoffs. ConSERT's code has an
    unpublished ``span`` of its own: it keeps a window of ``max(int(n * (1 - rate)), 1)`` tokens and replaces the
    ids of all others by 0.

    Args:
        rate: Share of the tokens to erase.
        specials: Whether special tokens count and may be erased.

    Raises:
        ValueError: A rate outside [0, 1].

    Example:
        >>> mask = torch.tensor([[True, True, True, True, False]])
        >>> SpanCutoff(rate=0.5)(torch.ones(1, 5, 1), mask, RowRandom(torch.tensor([1]))).flatten().tolist()
        [1.0, 0.0, 0.0, 1.0, 1.0]
    """

    def __init__(self, rate: float = 0.1, specials: bool = True) -> None:
        check_rate("SpanCutoff", rate)
        self.rate = rate
        self.specials = specials
        self._spared = (0, 0) if specials else None

    def build(self, vocabulary: Vocabulary) -> None:
        """Takes the number of special tokens around a text."""
        self._spared = (0, 0) if self.specials else (vocabulary.prefix, vocabulary.suffix)

    def __call__(self, embeddings: Tensor, mask: Tensor, rng: RowRandom) -> Tensor:
        """Returns the embeddings with a stretch of tokens erased, (n, L, D)."""
        eligible = eligible_tokens(mask, self._spared)
        length = _share(eligible, self.rate)
        # Draws are at most 1 - 2**-24: in float32, their product with a whole number stays below it.
        start = (rng.rand() * (eligible.sum(dim=1) - length + 1)).long()
        place = eligible.cumsum(dim=1) - 1 - start.unsqueeze(1)
        erased = eligible & (place >= 0) & (place < length.unsqueeze(1))
        return embeddings.masked_fill(erased.unsqueeze(2), 0.0)


class EmbeddingDropout(EmbeddingView):
    """Sets an exact share of a text's entries to zero, each on its own.

    ``int(n * D * rate)`` of the entries of n tokens, without rescaling the others. Source: Yan et al. 2021,
    ConSERT (https://arxiv.org/abs/2105.11741), section 3.2 "dropout" (0.2), and its authors' code. Unlike the
    network's own dropout it has an exact count, acts once, and depends on the text's key alone.

    Args:
        rate: Share of the entries to erase.
        specials: Whether entries of special tokens count and may be erased, as in the authors' code.

    Raises:
        ValueError: A rate outside [0, 1].

    Example:
        >>> rng = RowRandom(torch.tensor([2]))
        >>> view = EmbeddingDropout(rate=0.25)(torch.ones(1, 2, 6), torch.ones(1, 2, dtype=torch.bool), rng)
        >>> view.tolist()
        [[[1.0, 1.0, 0.0, 1.0, 1.0, 1.0], [1.0, 1.0, 0.0, 1.0, 1.0, 0.0]]]
    """

    def __init__(self, rate: float = 0.2, specials: bool = True) -> None:
        check_rate("EmbeddingDropout", rate)
        self.rate = rate
        self.specials = specials
        self._spared = (0, 0) if specials else None

    def build(self, vocabulary: Vocabulary) -> None:
        """Takes the number of special tokens around a text."""
        self._spared = (0, 0) if self.specials else (vocabulary.prefix, vocabulary.suffix)

    def __call__(self, embeddings: Tensor, mask: Tensor, rng: RowRandom) -> Tensor:
        """Returns the embeddings with some entries erased, (n, L, D)."""
        eligible = eligible_tokens(mask, self._spared)
        # Token by token, so that padding behind a text shifts no entry's draw.
        entries = eligible.unsqueeze(2).expand_as(embeddings).flatten(start_dim=1)
        erased = rng.choose(entries, _share(eligible, self.rate, features=embeddings.shape[2]))
        return embeddings.masked_fill(erased.view(embeddings.shape), 0.0)
