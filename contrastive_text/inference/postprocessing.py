"""Whitening and the removal of top components: affine maps of sentence vectors, saved in the model.

Both are fitted on vectors of some texts without labels, and need no training. A plain encoder's vectors lie in a
narrow cone, where all cosines are high; both maps open it. A map is a linear layer after the model's pooler and
head, so that every use of the saved model has it, in sentence-transformers too.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor, nn

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.inference.sentence_encoder import SentenceEncoder

_NO_SPREAD = 1e-5
"""Spread along a direction, as a share of the vectors' length, below which it is rounding and not text."""


def fit_whitening(vectors: Tensor, features: int | None = None) -> nn.Linear:
    """Returns the map after which vectors have mean 0 and covariance I, "BERT-whitening".

    x -> (x - mu) W with W the first columns of U sqrt(1 / Lambda), where U Lambda U' is the covariance, largest
    eigenvalue first (Su et al. 2021, https://arxiv.org/abs/2103.15316, section 3; over n - 1, as in the authors'
    code). Solved by singular values in float64. Each direction has the sign that makes its largest weight
    positive, so that equal vectors give equal maps.

    Differs: directions in which the texts don't differ are left out, where 1 / Lambda would blow rounding up to
    unit variance. That is no rare case: after BERT's last LayerNorm there is always one.

    Args:
        vectors: Of the texts to fit on, before any normalization, (n, D). Some 10 D texts or more of the kind
            that the model is for; the estimate of few texts fits those alone.
        features: How many features to keep, those of the largest variance; None for all directions with any.

    Returns:
        A layer D -> features, float64.

    Raises:
        ValueError: Not more texts than features, more features than directions with any variance, or NaN.

    Example:
        >>> layer = fit_whitening(torch.tensor([[0.0, 5.0], [2.0, 5.0], [4.0, 5.0]]))
        >>> layer(torch.tensor([[4.0, 7.0]], dtype=torch.float64)).round(decimals=4).tolist()  # (4 - 2) / 2
        [[1.0]]
    """
    mean, directions, spreads = _principal_axes("fit_whitening", vectors)
    n, width = vectors.shape
    wanted = width if features is None else features
    if not 1 <= wanted <= width:
        raise InvalidValueError(f"fit_whitening.features: expected 1 to {width}, got {features}; None keeps all")
    if n <= wanted:
        raise InvalidValueError(
            f"fit_whitening: expected more than {wanted} texts for {wanted} features, got {n}; give more texts "
            f"(some {10 * wanted:,} make it steady), or set features below {n}"
        )
    if features is not None and features > len(spreads):
        raise InvalidValueError(
            f"fit_whitening.features: expected at most {len(spreads)}, the directions in which these {n:,} texts "
            f"differ, got {features}; ask for fewer, or give other texts"
        )
    weight = (directions / spreads.unsqueeze(1))[:wanted]
    return _affine(weight, mean)


def fit_component_removal(vectors: Tensor, components: int | None = None) -> nn.Linear:
    """Returns the map that takes away the mean and the directions of largest variance, "All-but-the-Top".

    x -> (I - U U') (x - mu), with the top principal components in the columns of U (Mu and Viswanath 2018,
    https://arxiv.org/abs/1702.01417, algorithm 1). Nothing is left along them, and the number of features stays.

    Args:
        vectors: Of the texts to fit on, before any normalization, (n, D).
        components: How many directions to take away; None for D / 100, the paper's rule of thumb, at least 1.

    Returns:
        A layer D -> D, float64.

    Raises:
        ValueError: Components below 1, or as many as there are directions with any variance; or NaN.

    Example:
        >>> layer = fit_component_removal(torch.tensor([[0.0, 1.0], [8.0, 3.0], [8.0, 1.0], [0.0, 3.0]]))
        >>> layer(torch.tensor([[9.0, 5.0]], dtype=torch.float64)).tolist()
        [[0.0, 3.0]]
    """
    mean, directions, _ = _principal_axes("fit_component_removal", vectors)
    width = vectors.shape[1]
    count = max(1, round(width / 100)) if components is None else components
    if len(directions) < 2:
        raise InvalidValueError(
            "fit_component_removal.vectors: expected vectors that differ in 2 or more directions, got "
            f"{len(vectors):,} that differ in {len(directions)}; give other texts"
        )
    if not 1 <= count < len(directions):
        raise InvalidValueError(
            f"fit_component_removal.components: expected 1 to {len(directions) - 1}, for these {len(vectors):,} "
            f"texts differ in {len(directions)} directions, got {count}; take fewer away, or give more texts"
        )
    top = directions[:count]
    return _affine(torch.eye(width, dtype=torch.float64) - top.T @ top, mean)


def with_layer(model: SentenceEncoder, layer: nn.Linear) -> SentenceEncoder:
    """Returns the model with a linear layer after its head, and before the normalization if it has one.

    The network is shared with the model, which stays as it is; the head's layers are copied.

    Args:
        model: The encoder.
        layer: What ``fit_whitening`` or ``fit_component_removal`` gave; the copy is float32.

    Raises:
        ValueError: A layer for vectors of another width or with weights beyond float32, or a model that drops
            features.
    """
    width = model.features
    if layer.in_features != width:
        raise InvalidValueError(
            f"with_layer.layer: expected one for the model's {width} features, got {layer.in_features}; fit it "
            "on this model's vectors"
        )
    head = copy.deepcopy(nn.Sequential(*(model.head or ()), layer)).to(model.device, torch.float32)
    if not all(bool(weight.isfinite().all()) for weight in head[-1].parameters()):
        raise InvalidValueError(
            "with_layer.layer: expected weights that float32 can hold, got infinity or NaN; fit it on texts that "
            "differ more, or with fewer features"
        )
    return _with_head(model, head, normalize=model.normalize)


def unnormalized(model: SentenceEncoder) -> SentenceEncoder:
    """Returns the model as maps are fitted on it: without its own normalization; the network is shared.

    Raises:
        ValueError: A model that drops features: which ones to keep is the map's business.
    """
    return _with_head(model, model.head, normalize=False)


def _with_head(model: SentenceEncoder, head: nn.Sequential | None, normalize: bool) -> SentenceEncoder:
    if model.truncate_dim not in (None, model.features):
        raise InvalidValueError(
            f"postprocessing.model: expected one that keeps its {model.features} features, got truncate_dim: "
            f"{model.truncate_dim}; set it to None, and let fit_whitening(features=...) choose fewer"
        )
    parts = replace(model.parts, head=head, normalize=normalize, truncate_dim=None, card="")
    return SentenceEncoder.of(parts).eval()


def _principal_axes(where: str, vectors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the mean (D,), the directions in which vectors differ by more than rounding, and by how much.

    Returns:
        Mean (D,), unit directions (K, D), and the standard deviation along each (K,), largest first.
    """
    if vectors.ndim != 2 or len(vectors) < 2:
        raise InvalidValueError(
            f"{where}: expected vectors (n, D) of two texts or more, got {tuple(vectors.shape)}"
        )
    if not bool(vectors.isfinite().all()):
        raise InvalidValueError(
            f"{where}: expected finite vectors, got NaN or infinity; check that the model is whole"
        )
    values = vectors.detach().cpu().double()
    mean = values.mean(dim=0)
    # R of the QR decomposition has the same right singular vectors, in a D x D matrix.
    _, singular, directions = torch.linalg.svd(torch.linalg.qr(values - mean, mode="r").R, full_matrices=False)
    spreads = singular / (len(values) - 1) ** 0.5
    kept = spreads > _NO_SPREAD * values.square().sum(dim=1).mean().sqrt()
    directions, spreads = directions[kept], spreads[kept]
    largest = directions.gather(1, directions.abs().argmax(dim=1, keepdim=True))
    return mean, directions * largest.sign(), spreads


def _affine(weight: Tensor, mean: Tensor) -> nn.Linear:
    """Returns the layer x -> weight (x - mean)."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(-weight @ mean)
    return layer.requires_grad_(False)
