"""Views of the encoder's embedding output: cutoffs, noise and adversarial steps; and the view of its dropout."""

from __future__ import annotations

import torch
from torch import Tensor

from contrastive_text.core.batch import sent
from contrastive_text.core.checks import at_least, share
from contrastive_text.core.random import RowRandom
from contrastive_text.views.base import EmbeddingView, GradientView, View

EPSILON = 1e-10
"""Added to the norm of a gradient, from ConSERT's code: no gradient gives no perturbation."""


def _counts(mask: Tensor, rate: float, features: int = 1) -> Tensor:
    """Returns ``int(count * features * rate)`` of each row's tokens, (n, L) -> (n,).

    Python's float64 decides each count, in a table over all lengths, because not every device has float64.
    """
    counts = [int(count * features * rate) for count in range(mask.shape[1] + 1)]
    return sent(torch.tensor(counts), mask.device)[mask.sum(dim=1)]


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
        self.rate = share("FeatureCutoff.rate", rate)

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
        self.rate = share("TokenCutoff.rate", rate)
        self.specials = specials

    def __call__(self, embeddings: Tensor, mask: Tensor, rng: RowRandom) -> Tensor:
        """Returns the embeddings with some tokens erased, (n, L, D)."""
        erased = rng.choose(mask, _counts(mask, self.rate))
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
        self.rate = share("SpanCutoff.rate", rate)
        self.specials = specials

    def __call__(self, embeddings: Tensor, mask: Tensor, rng: RowRandom) -> Tensor:
        """Returns the embeddings with a stretch of tokens erased, (n, L, D)."""
        length = _counts(mask, self.rate)
        # Draws are at most 1 - 2**-24: in float32, their product with a whole number stays below it.
        start = (rng.rand() * (mask.sum(dim=1) - length + 1)).long()
        place = mask.cumsum(dim=1) - 1 - start.unsqueeze(1)
        erased = mask & (place >= 0) & (place < length.unsqueeze(1))
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
        self.rate = share("EmbeddingDropout.rate", rate)
        self.specials = specials

    def __call__(self, embeddings: Tensor, mask: Tensor, rng: RowRandom) -> Tensor:
        """Returns the embeddings with some entries erased, (n, L, D)."""
        # Token by token, so that padding after a text shifts no entry's draw.
        entries = mask.unsqueeze(2).expand_as(embeddings).flatten(start_dim=1)
        erased = rng.choose(entries, _counts(mask, self.rate, features=embeddings.shape[2]))
        return embeddings.masked_fill(erased.view(embeddings.shape), 0.0)


class GaussianNoise(EmbeddingView):
    """Adds normal noise to every token, in proportion to the token's size.

        e + scale * rms(e) * z,   z ~ N(0, 1) for each entry

    with the root mean square of the token's D entries, through which no gradient flows. One scale then means
    the same before BERT's blocks (entries of about 1, after LayerNorm) and before a decoder's (0.02), and what
    an earlier view has erased stays erased.

    Args:
        scale: Standard deviation of the noise, as a share of the token's root mean square.
        specials: Whether special tokens get noise too.

    Raises:
        ValueError: A scale that is negative or not finite.

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
    """Returns ``norm * g / (|g| + EPSILON)`` of the gradient g of each token.

    Args:
        gradient: (..., D).
        norm: Euclidean length of the perturbation.

    Returns:
        (..., D), float32, or float64 where the gradient is.

    Example:
        >>> fgv_perturbation(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), norm=1.0)
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """
    # In half precision squares vanish, and so does EPSILON.
    gradient = gradient.to(torch.promote_types(gradient.dtype, torch.float32))
    length: Tensor = torch.linalg.vector_norm(gradient, dim=-1, keepdim=True)
    return norm * gradient / (length + EPSILON)


class Adversarial(GradientView):
    """Moves each token's embedding uphill: where the objective's loss grows fastest.

        e + norm * g / (|g| + 1e-10),   g = d loss / d e of the token

    Source: the fast gradient value of Rozsa et al. 2016 (https://arxiv.org/abs/1605.01775) on embeddings, as
    Miyato et al. 2017 (https://arxiv.org/abs/1605.07725, section 3) train on it; the view "adversarial attack"
    of Yan et al. 2021, ConSERT (https://arxiv.org/abs/2105.11741), section 3.2, and its authors' code. Miyato et
    al. divide by the norm over the whole text, ConSERT and this view by each token's own.

    Differs: ConSERT's code follows the supervised objective only; here any one, by name.

    Args:
        norm: Euclidean length of the step of each token; 1.0 is ConSERT's code's.
        objective: Name of the objective to follow; None for the only one.
        same_dropout: Whether the pass that finds the gradient has the dropout masks of the one trained on. In
            the authors' code it hasn't.

    Raises:
        ValueError: A norm that is negative or not finite.

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

    def __call__(self, embeddings: Tensor, gradient: Tensor, mask: Tensor, rng: RowRandom) -> Tensor:  # noqa: ARG002  # the contract
        """Returns the embeddings one step uphill, (n, L, D)."""
        step = fgv_perturbation(gradient, self.norm).to(embeddings.dtype)
        return torch.where(mask.unsqueeze(2), embeddings + step, embeddings)


class FixedDropout(View):
    """Repeats the anchor's dropout masks for a role: dropout then makes no difference between the views.

    A marker: the module encodes each slot by itself and gives those of the role the anchor's masks. A mask is
    laid over places, so every text of the role must be as long as its anchor: use it with ``SameText`` and no
    view that changes a text's length. It stands last in a chain, never on the anchor, and needs an encoder
    with dropout. Source: "Fixed 0.1" of Gao et al. 2021, SimCSE (https://arxiv.org/abs/2104.08821), section 3,
    in the table of dropout probabilities: without a second mask the method fails.

    Example:
        >>> from contrastive_text.views import ViewPlan
        >>> ViewPlan({"positive": [FixedDropout()]}).fixed_dropout
        ('positive',)
    """
