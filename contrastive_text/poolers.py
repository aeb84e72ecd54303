"""Poolers: from token vectors to one vector per text. Special tokens count as tokens, as in the papers' code."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from contrastive_text.core.batch import Hidden, sent
from contrastive_text.core.checks import one_of
from contrastive_text.core.errors import InvalidTextError, InvalidValueError
from contrastive_text.core.similarity import at_least_float32

FirstLayer = Literal["embeddings", "block_1"]


def masked_mean(tokens: Tensor, mask: Tensor) -> Tensor:
    """Returns the mean of the token vectors, padding left out, in at least float32.

    Args:
        tokens: (n, L, D).
        mask: True on tokens, (n, L).

    Returns:
        (n, D); zeros for a row without tokens.

    Example:
        >>> masked_mean(torch.tensor([[[1.0], [3.0], [99.0]]]), torch.tensor([[True, True, False]]))
        tensor([[2.]])
    """
    kept = at_least_float32(tokens).masked_fill(~mask.unsqueeze(-1), 0.0)
    return kept.sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1)


def _mean_of_layers(hidden: Hidden, layers: tuple[int, ...]) -> Tensor:
    """Returns the masked mean of the average of some layers, (n, D)."""
    average = torch.stack([at_least_float32(hidden.layers[layer]) for layer in layers]).mean(dim=0)
    return masked_mean(average, hidden.mask)


def _token_at(hidden: Hidden, places: Tensor) -> Tensor:
    """Returns the last layer's vector of one token of each text, (n, D), in at least float32."""
    tokens = at_least_float32(hidden.layers[-1])
    return tokens[torch.arange(len(tokens), device=tokens.device), places]


class Pooler(nn.Module, ABC):
    """Base class of poolers.

    Attributes:
        layers: The layers that ``forward`` reads, numbered as in ``Hidden``.
        template_bias: Whether the vector of each text's template alone, with the same places left free, is taken
            off the text's (see ``encoders.templates``).
        reads_end: Whether all that it reads is the last token: training sees to it that this is the same one in
            every row (``append_eos`` of ``TransformerEncoder``).

    Example:
        >>> class MiddleToken(Pooler):
        ...     def forward(self, hidden):
        ...         tokens, middle = hidden.layers[-1], hidden.mask.sum(dim=1) // 2
        ...         return tokens[torch.arange(len(tokens)), middle]
        >>> MiddleToken()(Hidden({-1: torch.tensor([[[1.0], [3.0], [9.0]]])}, mask=torch.tensor([[True] * 3])))
        tensor([[3.]])
    """

    layers: tuple[int, ...] = (-1,)
    template_bias: bool = False
    reads_end: bool = False

    @abstractmethod
    def forward(self, hidden: Hidden) -> Tensor:
        """Returns one vector per text, (n, D), from layers (n, L, D) and the mask (n, L)."""

    def width(self, features: int) -> int:
        """Returns the number of features of a vector, of the network's number of features.

        Most poolers return as many as the network; a pooler that doesn't overrides this.
        """
        return features


class MeanPooler(Pooler):
    """Mean of the last layer's tokens (SBERT, DeCLUTR, ConSERT in training; ``avg`` in SimCSE's code).

    Example:
        >>> hidden = Hidden({-1: torch.tensor([[[1.0], [3.0], [9.0]]])}, mask=torch.tensor([[True, True, False]]))
        >>> MeanPooler()(hidden)
        tensor([[2.]])
    """

    def forward(self, hidden: Hidden) -> Tensor:
        """Returns the masked mean, (n, D)."""
        return masked_mean(hidden.layers[-1], hidden.mask)


class CLSPooler(Pooler):
    """First token of the last layer (``cls_before_pooler`` in SimCSE's code; add a head for its ``cls``).

    Example:
        >>> hidden = Hidden({-1: torch.tensor([[[1.0], [3.0], [9.0]]])}, mask=torch.tensor([[True, True, False]]))
        >>> CLSPooler()(hidden)
        tensor([[1.]])
    """

    def forward(self, hidden: Hidden) -> Tensor:
        """Returns the vector of the first token that is not padding, (n, D)."""
        return _token_at(hidden, hidden.mask.int().argmax(dim=1))


class LastTwoPooler(Pooler):
    """Mean over tokens of the average of the last two layers (``avg_top2``; ConSERT's evaluation).

    Example:
        >>> layers = {-1: torch.tensor([[[1.0], [3.0]]]), -2: torch.tensor([[[3.0], [5.0]]])}
        >>> LastTwoPooler()(Hidden(layers, mask=torch.tensor([[True, True]])))
        tensor([[3.]])
    """

    layers = (-1, -2)

    def forward(self, hidden: Hidden) -> Tensor:
        """Returns the masked mean of the two layers' average, (n, D)."""
        return _mean_of_layers(hidden, self.layers)


class FirstLastPooler(Pooler):
    """Mean over tokens of the average of the first and the last layer.

    "First" means two things in the literature, and untrained BERT-base scores 56.70 with one and 60.73
    with the other (SimCSE issue 285), so there is no default.

    Args:
        first: ``embeddings`` is the embedding output (ConSERT; SimCSE's published baseline), ``block_1``
            the first transformer block (``avg_first_last`` in SimCSE's code today).

    Raises:
        ValueError: Another name.

    Example:
        >>> layers = {-1: torch.tensor([[[1.0], [3.0]]]), 0: torch.tensor([[[3.0], [5.0]]])}
        >>> FirstLastPooler("embeddings")(Hidden(layers, mask=torch.tensor([[True, True]])))
        tensor([[3.]])
    """

    def __init__(self, first: FirstLayer) -> None:
        super().__init__()
        self.first: FirstLayer = one_of("FirstLastPooler.first", first, FirstLayer)
        self.layers = (-1, 0 if first == "embeddings" else 1)

    def forward(self, hidden: Hidden) -> Tensor:
        """Returns the masked mean of the two layers' average, (n, D)."""
        return _mean_of_layers(hidden, self.layers)


class MaxPooler(Pooler):
    """Largest value of each feature over the last layer's tokens (sentence-transformers' ``max``).

    Of tokens that an embedding view erased whole, which stay equal in every layer, rounding chooses the largest.

    Example:
        >>> hidden = Hidden({-1: torch.tensor([[[1.0], [3.0], [9.0]]])}, mask=torch.tensor([[True, True, False]]))
        >>> MaxPooler()(hidden)
        tensor([[3.]])
    """

    def forward(self, hidden: Hidden) -> Tensor:
        """Returns the masked maximum, (n, D); every row needs a token."""
        tokens = at_least_float32(hidden.layers[-1])
        return tokens.masked_fill(~hidden.mask.unsqueeze(-1), -torch.inf).amax(dim=1)


class LastTokenPooler(Pooler):
    """Last token of the last layer, of a decoder the only one that has seen the whole text (``lasttoken``).

    Source: Jiang et al. 2023, PromptEOL (https://arxiv.org/abs/2307.16645), section 3.1; sentence-transformers'
    ``lasttoken``. It is a special token where the tokenizer puts one after a text; where it puts none, training
    puts the tokenizer's end token there, unless a template ends the row.

    Example:
        >>> hidden = Hidden({-1: torch.tensor([[[1.0], [3.0], [9.0]]])}, mask=torch.tensor([[True, True, False]]))
        >>> LastTokenPooler()(hidden)
        tensor([[3.]])
    """

    reads_end = True

    def forward(self, hidden: Hidden) -> Tensor:
        """Returns the vector of the last token that is not padding, (n, D)."""
        return _token_at(hidden, hidden.mask.shape[1] - 1 - hidden.mask.flip(1).int().argmax(dim=1))


class MeanSqrtLengthPooler(Pooler):
    """Sum of the last layer's tokens over the square root of their number (``mean_sqrt_len_tokens``).

    Source: Cer et al. 2018, Universal Sentence Encoder (https://arxiv.org/abs/1803.11175), section 3.1;
    sentence-transformers' ``mean_sqrt_len_tokens``.

    Example:
        >>> mask = torch.tensor([[True, True, True, True, False]])
        >>> MeanSqrtLengthPooler()(Hidden({-1: torch.tensor([[[1.0], [3.0], [5.0], [7.0], [99.0]]])}, mask))
        tensor([[8.]])
    """

    def forward(self, hidden: Hidden) -> Tensor:
        """Returns the masked sum over the square root of the number of tokens, (n, D)."""
        counts = hidden.mask.sum(dim=1, keepdim=True)
        mean = masked_mean(hidden.layers[-1], hidden.mask)
        return mean * counts.to(mean.dtype).sqrt()


class ConcatPooler(Pooler):
    """Vectors of several poolers one after the other (sentence-transformers' ``Pooling`` with several modes).

    Args:
        poolers: In the order of their features.

    Raises:
        ValueError: Fewer than two poolers, or one with a template's bias.

    Example:
        >>> hidden = Hidden({-1: torch.tensor([[[1.0], [3.0]]])}, mask=torch.tensor([[True, True]]))
        >>> ConcatPooler([CLSPooler(), MeanPooler()])(hidden)
        tensor([[1., 2.]])
    """

    def __init__(self, poolers: Sequence[Pooler]) -> None:
        super().__init__()
        if len(poolers) < 2 or any(pooler.template_bias for pooler in poolers):
            names = ", ".join(type(pooler).__name__ for pooler in poolers) or "none"
            raise InvalidValueError(
                f"ConcatPooler.poolers: expected two poolers or more without template_bias, got {names}; give "
                "others, or one pooler in place of ConcatPooler"
            )
        self.poolers = list(poolers)
        self.members = nn.ModuleList(poolers)
        self.layers = tuple(dict.fromkeys(layer for pooler in poolers for layer in pooler.layers))
        self.reads_end = all(pooler.reads_end for pooler in poolers)

    def forward(self, hidden: Hidden) -> Tensor:
        """Returns the vectors of all poolers side by side, (n, D + D' + ...)."""
        return torch.cat([member(hidden) for member in self.members], dim=1)

    def width(self, features: int) -> int:
        """Returns the number of features of all poolers together."""
        return sum(pooler.width(features) for pooler in self.poolers)


class WeightedMeanPooler(Pooler):
    """Mean of the last layer's tokens, each weighted by its place in the row, from 1 (``weightedmean``).

    A decoder's later tokens have seen more. Source: Muennighoff 2022, SGPT (https://arxiv.org/abs/2202.08904),
    section 3; sentence-transformers' ``weightedmean``. A prompt that is left out keeps its places: the text's
    first token has the weight that it has after it. Rows are padded on the right.

    Example:
        >>> hidden = Hidden({-1: torch.tensor([[[1.0], [4.0], [9.0]]])}, torch.tensor([[True, True, False]]))
        >>> WeightedMeanPooler()(hidden)  # (1 * 1 + 2 * 4) / 3
        tensor([[3.]])
    """

    def forward(self, hidden: Hidden) -> Tensor:
        """Returns the weighted mean, (n, D)."""
        tokens, kept = at_least_float32(hidden.layers[-1]), hidden.mask
        weights = torch.arange(1, kept.shape[1] + 1, device=tokens.device).to(tokens) * kept
        summed = (tokens.masked_fill(~kept.unsqueeze(-1), 0.0) * weights.unsqueeze(-1)).sum(dim=1)
        return summed / weights.sum(dim=1, keepdim=True).clamp(min=1)


class MaskTokenPooler(Pooler):
    """Vector of the mask token in the last layer, for templates such as ``{text} means [MASK].``

    Source: Jiang et al. 2022, PromptBERT (https://arxiv.org/abs/2201.04337), section 4, and its authors' code.
    Differs: for RoBERTa their code takes the template's bias at places that begin at 0, and the text's vector at
    places that begin at 2; here both have the same.

    Args:
        template_bias: Whether the vector of the template alone, at the places that it has around the text, is
            taken off, before any head: with gradient, by the same network in the same pass, under one dropout
            mask for all texts of a length that go through the network together. PromptBERT trains with it, and
            is used without it where it has no labels: ``model.inference.pooler``.

    Raises:
        ValueError: At a batch: a row with no mask token or several, with its number; or an encoder that doesn't
            say its token ids, or has no mask token.

    Example:
        >>> ids, vectors = torch.tensor([[7, 3]]), torch.tensor([[[1.0], [4.0]]])
        >>> MaskTokenPooler()(Hidden({-1: vectors}, ids > 0, ids, mask_id=3))
        tensor([[4.]])
    """

    def __init__(self, template_bias: bool = False) -> None:
        super().__init__()
        self.template_bias = template_bias

    def forward(self, hidden: Hidden) -> Tensor:
        """Returns the vector of each row's mask token, (n, D)."""
        if hidden.ids is None or hidden.mask_id is None:
            lacking = "ids of the tokens" if hidden.ids is None else "mask token in the vocabulary"
            raise InvalidValueError(
                "MaskTokenPooler: expected an encoder that gives Hidden.ids and Hidden.mask_id, got no "
                f"{lacking}; fill both in Encoder.forward, or take another pooler"
            )
        mask, ids = hidden.on_host or (hidden.mask, hidden.ids)
        masks = (ids == hidden.mask_id) & mask
        counts = masks.sum(dim=1)
        if bool((counts != 1).any()):
            row = int((counts != 1).int().argmax())
            raise InvalidTextError(
                f"expected exactly one mask token for MaskTokenPooler, got {int(counts[row])}; put a template "
                "with one round every text (model.prompts), let no view hide tokens there, and take mask tokens "
                "out of the texts",
                number=row,
            )
        return _token_at(hidden, sent(masks.int().argmax(dim=1), hidden.mask.device))
