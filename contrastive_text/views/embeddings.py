"""Views that alter the encoder's embedding output: cutoffs, noise, adversarial steps and shared dropout masks."""

from __future__ import annotations

import torch
from torch import Tensor

from contrastive_text.core.batch import move_to_device
from contrastive_text.core.errors import at_least, fraction
from contrastive_text.core.random import RowRandom
from contrastive_text.views.base import EmbeddingView, GradientView, View

EPSILON = 1e-10
"""Epsilon that is added to the norm of a gradient, as in ConSERT's code, so that no gradient gives no step."""


def _counts(mask: Tensor, rate: float, features: int = 1) -> Tensor:
    """Returns ``int(count * features * rate)`` for the number of tokens of each row, (n, L) -> (n,).

    Counts are computed in Python's float64 for all lengths, because not every device has float64.
    """
    counts = [int(count * features * rate) for count in range(mask.shape[1] + 1)]
    return move_to_device(torch.tensor(counts), mask.device)[mask.sum(dim=1)]


class FeatureCutoff(EmbeddingView):
    """Sets an exact share of the features to zero, the same features in all tokens of a text.

    ``int(rate * D)`` features of each text are set to zero, without rescaling the others, in padding too. Source:
    Yan et al. 2021, ConSERT (https://arxiv.org/abs/2105.11741), section 3.2 "cutoff", and the authors' code (0.2
    of 768: 153).

    Args:
        rate: Share of the features to set to zero.

    Raises:
        ValueError: ``rate`` is outside [0, 1].

    Example:
        >>> rng = RowRandom(torch.tensor([1, 2]))
        >>> view = FeatureCutoff(rate=0.5)(torch.ones(2, 3, 4), torch.ones(2, 3, dtype=torch.bool), rng)
        >>> view.sum(dim=2).tolist()
        [[2.0, 2.0, 2.0], [2.0, 2.0, 2.0]]
    """

    def __init__(self, rate: float = 0.2) -> None:
        self.rate = fraction("FeatureCutoff.rate", rate)

    def __call__(self, embeddings: Tensor, mask: Tensor, rng: RowRandom) -> Tensor:  # noqa: ARG002  # the base's signature
        """Returns the embeddings with some features set to zero, (n, L, D)."""
        rows, _, features = embeddings.shape
        eligible = torch.ones(rows, features, dtype=torch.bool, device=embeddings.device)
        count = torch.full((rows,), int(self.rate * features), device=embeddings.device)
        return embeddings.masked_fill(rng.choose(eligible, count).unsqueeze(1), 0.0)


class TokenCutoff(EmbeddingView):
    """Sets all features of an exact share of a text's tokens to zero.

    ``int(n * rate)`` of n tokens are set to zero: at 0.15, no token of a text of up to 6 tokens. These tokens are
    still part of attention and of the mean. Source: Yan et al. 2021, ConSERT (https://arxiv.org/abs/2105.11741),
    section 3.2 "cutoff" (0.15), and the authors' code (0.1 in the joint scripts).

    Args:
        rate: Share of the tokens to set to zero.
        specials: Whether special tokens are counted and may be set to zero, as in the authors' code.

    Raises:
        ValueError: ``rate`` is outside [0, 1].

    Example:
        >>> mask = torch.tensor([[True, True, True, True, False]])
        >>> TokenCutoff(rate=0.5)(torch.ones(1, 5, 1), mask, RowRandom(torch.tensor([5]))).flatten().tolist()
        [1.0, 0.0, 1.0, 0.0, 1.0]
    """

    def __init__(self, rate: float = 0.15, specials: bool = True) -> None:
        self.rate = fraction("TokenCutoff.rate", rate)
        self.specials = specials

    def __call__(self, embeddings: Tensor, mask: Tensor, rng: RowRandom) -> Tensor:
        """Returns the embeddings with some tokens set to zero, (n, L, D)."""
        erase = rng.choose(mask, _counts(mask, self.rate))
        return embeddings.masked_fill(erase.unsqueeze(2), 0.0)


class SpanCutoff(EmbeddingView):
    """Sets a span of neighboring tokens at a random position to zero.

    The span has ``int(n * rate)`` of n tokens; all positions are equally likely. Source: Shen et al. 2020, "A
    Simple but Tough-to-Beat Data Augmentation Approach for Natural Language Understanding and Generation"
    (https://arxiv.org/abs/2009.13818), "span cutoff".

    Differs: their code also removes the span from attention, and never draws the last position. Here the tokens
    remain in attention and in the mean, as in ConSERT's cutoffs. ConSERT's code has another, unpublished
    ``span``: it keeps a window of ``max(int(n * (1 - rate)), 1)`` tokens and replaces the ids of all other tokens
    by 0.

    Args:
        rate: Share of the tokens to set to zero.
        specials: Whether special tokens are counted and may be set to zero.

    Raises:
        ValueError: ``rate`` is outside [0, 1].

    Example:
        >>> mask = torch.tensor([[True, True, True, True, False]])
        >>> SpanCutoff(rate=0.5)(torch.ones(1, 5, 1), mask, RowRandom(torch.tensor([1]))).flatten().tolist()
        [1.0, 0.0, 0.0, 1.0, 1.0]
    """

    def __init__(self, rate: float = 0.1, specials: bool = True) -> None:
        self.rate = fraction("SpanCutoff.rate", rate)
        self.specials = specials

    def __call__(self, embeddings: Tensor, mask: Tensor, rng: RowRandom) -> Tensor:
        """Returns the embeddings with a span of tokens set to zero, (n, L, D)."""
        length = _counts(mask, self.rate)
        # Draws are at most 1 - 2**-24, so that their float32 product with a whole number is below the number.
        start = (rng.rand() * (mask.sum(dim=1) - length + 1)).long()
        position = mask.cumsum(dim=1) - 1 - start.unsqueeze(1)
        erase = mask & (position >= 0) & (position < length.unsqueeze(1))
        return embeddings.masked_fill(erase.unsqueeze(2), 0.0)


class EmbeddingDropout(EmbeddingView):
    """Sets an exact share of the entries of a text's embeddings to zero, drawn independently of each other.

    ``int(n * D * rate)`` entries of n tokens are set to zero, without rescaling the others. Source: Yan et al.
    2021, ConSERT (https://arxiv.org/abs/2105.11741), section 3.2 "dropout" (0.2), and the authors' code. Unlike
    the dropout of the network it sets an exact number, is applied once, and depends only on the text's key.

    Args:
        rate: Share of the entries to set to zero.
        specials: Whether entries of special tokens are counted and may be set to zero, as in the authors' code.

    Raises:
        ValueError: ``rate`` is outside [0, 1].

    Example:
        >>> rng = RowRandom(torch.tensor([2]))
        >>> view = EmbeddingDropout(rate=0.25)(torch.ones(1, 2, 6), torch.ones(1, 2, dtype=torch.bool), rng)
        >>> view.tolist()
        [[[1.0, 1.0, 0.0, 1.0, 1.0, 1.0], [1.0, 1.0, 0.0, 1.0, 1.0, 0.0]]]
    """

    def __init__(self, rate: float = 0.2, specials: bool = True) -> None:
        self.rate = fraction("EmbeddingDropout.rate", rate)
        self.specials = specials

    def __call__(self, embeddings: Tensor, mask: Tensor, rng: RowRandom) -> Tensor:
        """Returns the embeddings with some entries set to zero, (n, L, D)."""
        # Entries are ordered by token, so that padding after a text doesn't change the draws of its entries.
        entries = mask.unsqueeze(2).expand_as(embeddings).flatten(start_dim=1)
        erase = rng.choose(entries, _counts(mask, self.rate, features=embeddings.shape[2]))
        return embeddings.masked_fill(erase.view(embeddings.shape), 0.0)


class GaussianNoise(EmbeddingView):
    """Adds Gaussian noise to the embedding of every token, in proportion to its root mean square.

        e + scale * rms(e) * z,   z ~ N(0, 1) for each entry

    ``rms`` is the root mean square of the token's D entries, without a gradient. A scale therefore has the same
    effect before BERT's blocks (entries of about 1, after LayerNorm) and before a decoder's blocks (0.02). Tokens
    that an earlier view has set to zero remain zero.

    Args:
        scale: Standard deviation of the noise, as a share of the token's root mean square.
        specials: Whether special tokens get noise too.

    Raises:
        ValueError: ``scale`` is negative or not finite.

    Example:
        >>> rng, mask = RowRandom(torch.tensor([1])), torch.tensor([[True, False]])
        >>> view = GaussianNoise(scale=0.1)(torch.ones(1, 2, 3), mask, rng)
        >>> (view != 1).tolist()
        [[[True, True, True], [False, False, False]]]
    """

    def __init__(self, scale: float = 0.1, specials: bool = True) -> None:
        self.scale = at_least("GaussianNoise.scale", scale, 0, "0.1 is a tenth of a token's size")
        self.specials = specials

    def __call__(self, embeddings: Tensor, mask: Tensor, rng: RowRandom) -> Tensor:
        """Returns the embeddings with noise on the tokens, (n, L, D)."""
        # Squares of half-precision entries overflow in half precision.
        values = embeddings.detach().to(torch.promote_types(embeddings.dtype, torch.float32))
        size = values.square().mean(dim=2, keepdim=True).sqrt()
        noise = self.scale * size * rng.randn(*embeddings.shape[1:])
        return torch.where(mask.unsqueeze(2), embeddings + noise.to(embeddings.dtype), embeddings)


def fgv_perturbation(gradient: Tensor, norm: float) -> Tensor:
    """Scales the gradient g of each token to a fixed length: ``norm * g / (|g| + EPSILON)``, the FGV step.

    Args:
        gradient: Gradient of each token, (..., D).
        norm: Euclidean length of the result.

    Returns:
        (..., D), in float32, or in float64 for a gradient in float64.

    Example:
        >>> fgv_perturbation(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), norm=1.0)
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """
    # In half precision squares and EPSILON underflow.
    gradient = gradient.to(torch.promote_types(gradient.dtype, torch.float32))
    length: Tensor = torch.linalg.vector_norm(gradient, dim=-1, keepdim=True)
    return norm * gradient / (length + EPSILON)


class Adversarial(GradientView):
    """Moves each token's embedding a fixed distance along the gradient of a loss, which increases the loss.

        e + norm * g / (|g| + 1e-10),   g = d loss / d e of the token

    Source: the fast gradient value of Rozsa et al. 2016 (https://arxiv.org/abs/1605.01775) on embeddings, as in
    Miyato et al. 2017 (https://arxiv.org/abs/1605.07725, section 3); the view "adversarial attack" of Yan et al.
    2021, ConSERT (https://arxiv.org/abs/2105.11741), section 3.2, and the authors' code. Miyato et al. divide by
    the norm over the whole text; ConSERT and this view divide by the norm of each token.

    Differs: ConSERT's code uses the gradient of the supervised objective only. Here any objective can be named.

    Args:
        norm: Euclidean length of the step of each token; 1.0 in ConSERT's code.
        objective: Name of the objective whose gradient is used; None for the only one.
        same_dropout: Whether the pass that computes the gradient and the pass that is trained use the same
            dropout masks. In the authors' code they don't.

    Raises:
        ValueError: ``norm`` is negative or not finite.

    Example:
        >>> embeddings, gradient = torch.zeros(1, 2, 2), torch.tensor([[[0.0, 5.0], [3.0, 4.0]]])
        >>> mask, rng = torch.tensor([[True, False]]), RowRandom(torch.tensor([1]))
        >>> Adversarial(norm=2.0)(embeddings, gradient, mask, rng).tolist()
        [[[0.0, 2.0], [0.0, 0.0]]]
    """

    def __init__(self, norm: float = 1.0, objective: str | None = None, same_dropout: bool = False) -> None:
        self.norm = at_least("Adversarial.norm", norm, 0, "1.0 is ConSERT's")
        self.objective = objective
        self.same_dropout = same_dropout

    def __call__(self, embeddings: Tensor, gradient: Tensor, mask: Tensor, rng: RowRandom) -> Tensor:  # noqa: ARG002  # the base's signature
        """Returns the embeddings moved along the gradient, (n, L, D)."""
        step = fgv_perturbation(gradient, self.norm).to(embeddings.dtype)
        return torch.where(mask.unsqueeze(2), embeddings + step, embeddings)


class FixedDropout(View):
    """Applies the anchor's dropout masks to another role, so that dropout makes no difference between both.

    The view only marks the role: the module encodes each slot separately, and uses the anchor's masks for the
    role. A mask applies to positions, so every text of the role must have the length of its anchor. Use the view
    with ``SameText`` and without views that change the length of a text. It must be the last view of a chain,
    can't be used on the anchor, and needs an encoder with dropout. Source: "Fixed 0.1" of Gao et al. 2021, SimCSE
    (https://arxiv.org/abs/2104.08821), section 3, table of dropout probabilities. It shows that SimCSE fails
    without different masks.

    Example:
        >>> from contrastive_text.views import ViewPlan
        >>> ViewPlan({"positive": [FixedDropout()]}).fixed_dropout
        ('positive',)
    """
