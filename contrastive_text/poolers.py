"""Poolers, which compute one vector per text from its token vectors, special tokens included."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from contrastive_text.core.batch import Hidden, move_to_device
from contrastive_text.core.errors import InvalidTextError, InvalidValueError, one_of
from contrastive_text.core.similarity import at_least_float32

FirstLayer = Literal["embeddings", "block_1"]
"""Names of the layers that ``FirstLastPooler`` may use as first layer."""


def masked_mean(tokens: Tensor, mask: Tensor) -> Tensor:
    """Returns the mean of each row's token vectors without padding, in at least float32.

    Args:
        tokens: Token vectors, (n, L, D).
        mask: True for tokens, False for padding, (n, L).

    Returns:
        (n, D); zeros for a row without tokens.

    Example:
        >>> masked_mean(torch.tensor([[[1.0], [3.0], [99.0]]]), torch.tensor([[True, True, False]]))
        tensor([[2.]])
    """
    vectors = at_least_float32(tokens).masked_fill(~mask.unsqueeze(-1), 0.0)
    return vectors.sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1)


def _mean_of_layers(hidden: Hidden, layers: tuple[int, ...]) -> Tensor:
    """Averages several layers and returns the mean over tokens, (n, D)."""
    average = torch.stack([at_least_float32(hidden.layers[layer]) for layer in layers]).mean(dim=0)
    return masked_mean(average, hidden.mask)


def _token_at(hidden: Hidden, positions: Tensor) -> Tensor:
    """Returns the last layer's vector of the token at a position of each text, (n, D), in at least float32."""
    tokens = at_least_float32(hidden.layers[-1])
    return tokens[torch.arange(len(tokens), device=tokens.device), positions]


class Pooler(nn.Module, ABC):
    """Base class of poolers, which compute one vector per text from its token vectors.

    A subclass implements ``forward``.

    Attributes:
        layers: Layers that ``forward`` reads, numbered as in ``Hidden``.
        template_bias: Whether the vector of each text's template, without the text and with the same positions,
            is subtracted from the vector of the text (see ``encoders.templates``).
        reads_last_token: Whether the pooler reads only the last token. Training then appends the same last
            token to every row (``append_eos`` of ``TransformerEncoder``).
        reads_token_logits: Whether the pooler reads ``Hidden.token_logits``, and gives a weight for each token of
            the vocabulary. The encoder then has a masked-language-model head.

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
    reads_last_token: bool = False
    reads_token_logits: ClassVar[bool] = False

    @abstractmethod
    def forward(self, hidden: Hidden) -> Tensor:
        """Returns one vector per text, (n, D), from layers (n, L, D) and the mask (n, L)."""

    def width(self, features: int) -> int:
        """Returns the width of the pooled vectors for a network of width ``features``.

        The default is the width of the network. A pooler with another width overrides this method.
        """
        return features


def pools_tokens(pooler: Pooler) -> bool:
    """Returns whether a pooler reads all tokens of a text, and none at a fixed place such as [CLS].

    Example:
        >>> pools_tokens(MeanPooler()), pools_tokens(CLSPooler())
        (True, False)
    """
    parts = [part for part in pooler.modules() if isinstance(part, Pooler)]
    return not any(isinstance(part, CLSPooler | MaskTokenPooler) or part.reads_last_token for part in parts)


class MeanPooler(Pooler):
    """Mean of the last layer's token vectors (SBERT, DeCLUTR, ConSERT in training; ``avg`` in SimCSE's code).

    Example:
        >>> hidden = Hidden({-1: torch.tensor([[[1.0], [3.0], [9.0]]])}, mask=torch.tensor([[True, True, False]]))
        >>> MeanPooler()(hidden)
        tensor([[2.]])
    """

    def forward(self, hidden: Hidden) -> Tensor:
        """Returns the mean of each text's token vectors, (n, D)."""
        return masked_mean(hidden.layers[-1], hidden.mask)


class CLSPooler(Pooler):
    """Vector of the first token in the last layer (``cls_before_pooler`` in SimCSE's code).

    SimCSE's ``cls`` is this pooler with ``TanhHead``.

    Example:
        >>> hidden = Hidden({-1: torch.tensor([[[1.0], [3.0], [9.0]]])}, mask=torch.tensor([[True, True, False]]))
        >>> CLSPooler()(hidden)
        tensor([[1.]])
    """

    def forward(self, hidden: Hidden) -> Tensor:
        """Returns the vector of the first token that is not padding, (n, D)."""
        return _token_at(hidden, hidden.mask.int().argmax(dim=1))


class LastTwoPooler(Pooler):
    """Mean over tokens of the average of the last two layers (``avg_top2`` of SimCSE; ConSERT's evaluation).

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

    The literature uses "first layer" for two layers. Untrained BERT-base scores 56.70 with the one and 60.73 with
    the other (SimCSE issue 285), so there is no default.

    Args:
        first: ``embeddings`` for the embedding output (ConSERT; SimCSE's published baseline), ``block_1`` for the
            first transformer block (``avg_first_last`` in SimCSE's current code).

    Raises:
        ValueError: ``first`` is unknown.

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
    """Maximum of each feature over the last layer's token vectors (sentence-transformers' ``max``).

    Tokens that an embedding view has set to zero are equal in every layer; rounding decides which has the
    maximum.

    Example:
        >>> hidden = Hidden({-1: torch.tensor([[[1.0], [3.0], [9.0]]])}, mask=torch.tensor([[True, True, False]]))
        >>> MaxPooler()(hidden)
        tensor([[3.]])
    """

    def forward(self, hidden: Hidden) -> Tensor:
        """Returns the maximum of each text's token vectors, (n, D). Every row needs a token."""
        tokens = at_least_float32(hidden.layers[-1])
        return tokens.masked_fill(~hidden.mask.unsqueeze(-1), -torch.inf).amax(dim=1)


class LastTokenPooler(Pooler):
    """Vector of the last token in the last layer, for decoders (sentence-transformers' ``lasttoken``).

    In a decoder only the last token attends to the whole text. Source: Jiang et al. 2023, PromptEOL
    (https://arxiv.org/abs/2307.16645), section 3.1; sentence-transformers. If the tokenizer adds no special token
    after a text, training appends its end token, unless a template ends the row.

    Example:
        >>> hidden = Hidden({-1: torch.tensor([[[1.0], [3.0], [9.0]]])}, mask=torch.tensor([[True, True, False]]))
        >>> LastTokenPooler()(hidden)
        tensor([[3.]])
    """

    reads_last_token = True

    def forward(self, hidden: Hidden) -> Tensor:
        """Returns the vector of the last token that is not padding, (n, D)."""
        return _token_at(hidden, hidden.mask.shape[1] - 1 - hidden.mask.flip(1).int().argmax(dim=1))


class MeanSqrtLengthPooler(Pooler):
    """Sum of the last layer's token vectors divided by the square root of their number.

    Source: Cer et al. 2018, Universal Sentence Encoder (https://arxiv.org/abs/1803.11175), section 3.1;
    sentence-transformers' ``mean_sqrt_len_tokens``.

    Example:
        >>> mask = torch.tensor([[True, True, True, True, False]])
        >>> MeanSqrtLengthPooler()(Hidden({-1: torch.tensor([[[1.0], [3.0], [5.0], [7.0], [99.0]]])}, mask))
        tensor([[8.]])
    """

    def forward(self, hidden: Hidden) -> Tensor:
        """Returns the sum of each text's token vectors over the square root of their number, (n, D)."""
        counts = hidden.mask.sum(dim=1, keepdim=True)
        mean = masked_mean(hidden.layers[-1], hidden.mask)
        return mean * counts.to(mean.dtype).sqrt()


class ConcatPooler(Pooler):
    """Concatenates the vectors of several poolers (sentence-transformers' ``Pooling`` with several modes).

    Args:
        poolers: Poolers in the order of their features.

    Raises:
        ValueError: There are fewer than two poolers, or a pooler has ``template_bias`` or reads token logits.

    Example:
        >>> hidden = Hidden({-1: torch.tensor([[[1.0], [3.0]]])}, mask=torch.tensor([[True, True]]))
        >>> ConcatPooler([CLSPooler(), MeanPooler()])(hidden)
        tensor([[1., 2.]])
    """

    def __init__(self, poolers: Sequence[Pooler]) -> None:
        super().__init__()
        if len(poolers) < 2 or any(pooler.template_bias or pooler.reads_token_logits for pooler in poolers):
            names = ", ".join(type(pooler).__name__ for pooler in poolers) or "[]"
            raise InvalidValueError(
                "ConcatPooler.poolers: expected two or more poolers of token vectors without template_bias, got "
                f"{names}; give such poolers, or one pooler in place of ConcatPooler"
            )
        self.poolers = list(poolers)
        self.members = nn.ModuleList(poolers)
        self.layers = tuple(dict.fromkeys(layer for pooler in poolers for layer in pooler.layers))
        self.reads_last_token = all(pooler.reads_last_token for pooler in poolers)

    def forward(self, hidden: Hidden) -> Tensor:
        """Returns the concatenated vectors of all poolers, (n, D + D' + ...)."""
        return torch.cat([member(hidden) for member in self.members], dim=1)

    def width(self, features: int) -> int:
        """Returns the sum of the widths of all poolers for a network of width ``features``."""
        return sum(pooler.width(features) for pooler in self.poolers)


class WeightedMeanPooler(Pooler):
    """Mean of the last layer's token vectors, weighted by position from 1 (``weightedmean``).

    Later tokens of a decoder attend to more of the text. Source: Muennighoff 2022, SGPT
    (https://arxiv.org/abs/2202.08904), section 3; sentence-transformers. If a prompt is excluded, positions still
    count from its first token. Rows must be padded on the right.

    Example:
        >>> hidden = Hidden({-1: torch.tensor([[[1.0], [4.0], [9.0]]])}, torch.tensor([[True, True, False]]))
        >>> WeightedMeanPooler()(hidden)  # (1 * 1 + 2 * 4) / 3
        tensor([[3.]])
    """

    def forward(self, hidden: Hidden) -> Tensor:
        """Returns the weighted mean of each text's token vectors, (n, D)."""
        tokens, mask = at_least_float32(hidden.layers[-1]), hidden.mask
        weights = torch.arange(1, mask.shape[1] + 1, device=tokens.device).to(tokens) * mask
        total = (tokens.masked_fill(~mask.unsqueeze(-1), 0.0) * weights.unsqueeze(-1)).sum(dim=1)
        return total / weights.sum(dim=1, keepdim=True).clamp(min=1)


class MaskTokenPooler(Pooler):
    """Vector of the mask token in the last layer, for templates such as ``{text} means [MASK].``

    Source: Jiang et al. 2022, PromptBERT (https://arxiv.org/abs/2201.04337), section 4, and its authors' code.

    Differs: for RoBERTa the authors' code computes the template's bias with positions from 0, and the text's
    vector with positions from 2. Here both have the same positions.

    Args:
        template_bias: Whether the vector of the template without the text, at the same positions, is subtracted
            before any head. It is computed with gradient, by the same network in the same pass. Texts of equal
            length in a pass share a dropout mask for it. PromptBERT trains with it; its unsupervised model is
            used without it (``model.inference.pooler``).

    Raises:
        ValueError: Raised by ``forward``: a row has no mask token or several (with the number of the row), or the
            encoder gives no token ids or has no mask token.

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
            missing = "ids of the tokens" if hidden.ids is None else "mask token in the vocabulary"
            raise InvalidValueError(
                "MaskTokenPooler: expected an encoder that gives Hidden.ids and Hidden.mask_id, got no "
                f"{missing}; set both in Encoder.forward, or use another pooler"
            )
        mask, ids = hidden.host_copies or (hidden.mask, hidden.ids)
        masks = (ids == hidden.mask_id) & mask
        counts = masks.sum(dim=1)
        if bool((counts != 1).any()):
            row = int((counts != 1).int().argmax())
            raise InvalidTextError(
                f"expected exactly one mask token for MaskTokenPooler, got {int(counts[row])}; set a template "
                "with a mask token (model.prompts), use no view that masks tokens, and remove mask tokens from "
                "the texts",
                number=row,
            )
        return _token_at(hidden, move_to_device(masks.int().argmax(dim=1), hidden.mask.device))


_LOGITS = 2**25
"""Largest number of logits in memory at a time: 128 MiB in float32."""


class SpladePooler(Pooler):
    """Weight of each token of the vocabulary, log(1 + ReLU(logit)), maximum over the tokens of a text (SPLADE).

    The vectors are as wide as the vocabulary, and most of their entries are 0 after training with ``FLOPS``. The
    logits are those of the encoder's masked-language-model head. Source: Formal et al. 2021, SPLADE v2
    (https://arxiv.org/abs/2109.10086), equation 6; sentence-transformers' ``SpladePooling``.

    Logits are computed for some rows and tokens at a time. If there are several parts, the backward pass computes
    each part again, so that memory is bounded by one part and by the vectors of the step.

    Raises:
        ValueError: Raised by ``forward``: the encoder gives no token logits.

    Example:
        >>> tokens, mask = torch.tensor([[[1.0], [-2.0], [9.0]]]), torch.tensor([[True, True, False]])
        >>> hidden = Hidden({-1: tokens}, mask, token_logits=lambda rows: torch.cat([rows, -rows], dim=1))
        >>> SpladePooler()(hidden)  # log(1 + 1) and log(1 + 2)
        tensor([[0.6931, 1.0986]])
    """

    reads_token_logits = True

    def forward(self, hidden: Hidden) -> Tensor:
        """Returns the weight of each token of the vocabulary for each text, (n, V)."""
        compute, tokens = hidden.token_logits, hidden.layers[-1]
        if compute is None:
            raise InvalidValueError(
                "SpladePooler: expected Hidden.token_logits of a masked-language-model head, got None; call "
                "Embedder.encode, or use another pooler"
            )

        def largest(vectors: Tensor, mask: Tensor) -> Tensor:
            logits = at_least_float32(compute(vectors.flatten(0, 1))).view(*mask.shape, -1)
            return logits.masked_fill(~mask.unsqueeze(-1), -torch.inf).amax(dim=1)

        with torch.no_grad():
            width = compute(tokens[:1, 0]).shape[1]
        rows = max(1, _LOGITS // (width * tokens.shape[1]))
        length = max(1, min(tokens.shape[1], _LOGITS // width))
        parts = [
            list(zip(torch.split(vectors, length, dim=1), torch.split(mask, length, dim=1), strict=True))
            for vectors, mask in zip(torch.split(tokens, rows), torch.split(hidden.mask, rows), strict=True)
        ]
        is_bounded = torch.is_grad_enabled() and len(parts) * len(parts[0]) > 1

        def pooled(part: list[tuple[Tensor, Tensor]]) -> Tensor:
            each = [
                checkpoint(largest, *inputs, use_reentrant=False, preserve_rng_state=False)
                if is_bounded
                else largest(*inputs)
                for inputs in part
            ]
            return torch.stack(each).amax(dim=0) if len(each) > 1 else each[0]

        return torch.cat([pooled(part) for part in parts]).relu().log1p()
