"""Postprocessing of sentence vectors by whitening or by removal of top components, saved with the model.

Both are affine maps, fitted on vectors of unlabeled texts without training. The vectors of a pretrained encoder
are in a narrow cone with high cosines; both maps spread them out. A map is a linear layer after the model's head,
so every use of the saved model applies it, in sentence-transformers too.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor, nn

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.inference.sentence_encoder import SentenceEncoder

_NO_SPREAD = 1e-5
"""Smallest standard deviation along a direction, relative to the vectors' length, that isn't rounding."""


def fit_whitening(vectors: Tensor, features: int | None = None) -> nn.Linear:
    """Fits a linear layer after which vectors have mean 0 and covariance I ("BERT-whitening").

    The layer maps x -> (x - mu) W. W has the first columns of U sqrt(1 / Lambda), where U Lambda U' is the
    covariance, largest eigenvalue first (Su et al. 2021, https://arxiv.org/abs/2103.15316, section 3; divided by
    n - 1, as in the authors' code). The solution uses singular values in float64. The sign of each direction
    makes its largest weight positive, so equal vectors give equal layers.

    Differs: directions without variance are dropped, because 1 / Lambda would scale their rounding errors to unit
    variance. Such a direction is common: BERT's last LayerNorm always causes one.

    Args:
        vectors: Vectors of texts before normalization, (n, D). Use at least about 10 D texts of the kind that the
            model will encode; the estimate from few texts doesn't hold for other texts.
        features: Number of features to keep, those of the largest variance; None for all with any variance.

    Returns:
        Layer from D to ``features`` features, float64.

    Raises:
        ValueError: There are not more texts than features, fewer directions with variance than ``features``, or a
            vector is not finite.

    Example:
        >>> layer = fit_whitening(torch.tensor([[0.0, 5.0], [2.0, 5.0], [4.0, 5.0]]))
        >>> layer(torch.tensor([[4.0, 7.0]], dtype=torch.float64)).round(decimals=4).tolist()  # (4 - 2) / 2
        [[1.0]]
    """
    mean, directions, spreads = _principal_axes("fit_whitening", vectors)
    n, width = vectors.shape
    count = width if features is None else features
    if not 1 <= count <= width:
        raise InvalidValueError(f"fit_whitening.features: expected 1 to {width}, got {features}; None keeps all")
    if n <= count:
        raise InvalidValueError(
            f"fit_whitening: expected more than {count} texts for {count} features, got {n}; give more texts "
            f"(some {10 * count:,} make it steady), or set features below {n}"
        )
    if features is not None and features > len(spreads):
        raise InvalidValueError(
            f"fit_whitening.features: expected at most {len(spreads)}, the directions in which these {n:,} texts "
            f"differ, got {features}; ask for fewer, or give other texts"
        )
    weight = (directions / spreads.unsqueeze(1))[:count]
    return _affine(weight, mean)


def fit_component_removal(vectors: Tensor, components: int | None = None) -> nn.Linear:
    """Fits a linear layer that removes the mean and the top principal components ("All-but-the-Top").

    The layer maps x -> (I - U U') (x - mu), with the top principal components in the columns of U (Mu and
    Viswanath 2018, https://arxiv.org/abs/1702.01417, algorithm 1). The number of features stays the same.

    Args:
        vectors: Vectors of texts before normalization, (n, D).
        components: Number of principal components to remove; None for D / 100, the paper's rule of thumb, but at
            least 1.

    Returns:
        Layer from D to D features, float64.

    Raises:
        ValueError: ``components`` is below 1 or not below the number of directions with variance, or a vector is
            not finite.

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
            f"fit_component_removal.components: expected 1 to {len(directions) - 1}, got {count}; remove fewer, "
            f"or give more texts. These {len(vectors):,} texts differ in {len(directions)} directions."
        )
    top = directions[:count]
    return _affine(torch.eye(width, dtype=torch.float64) - top.T @ top, mean)


def with_layer(model: SentenceEncoder, layer: nn.Linear) -> SentenceEncoder:
    """Returns a copy of a model with a linear layer after its head, before its normalization.

    The copy shares the network with the model. The layers of the head are copied.

    Args:
        model: Model, which stays unchanged.
        layer: Result of ``fit_whitening`` or ``fit_component_removal``; the copy is float32.

    Raises:
        ValueError: The layer has another input width than the model's vectors or weights beyond float32, or the
            model has ``truncate_dim``.
    """
    width = model.features
    if layer.in_features != width:
        raise InvalidValueError(
            f"with_layer.layer: expected a layer for the model's {width} features, got {layer.in_features}; fit "
            "it "
            "on this model's vectors"
        )
    head = copy.deepcopy(nn.Sequential(*(model.head or ()), layer)).to(model.device, torch.float32)
    if not all(bool(weight.isfinite().all()) for weight in head[-1].parameters()):
        raise InvalidValueError(
            "with_layer.layer: expected weights that float32 can hold, got infinity or NaN; fit it on texts that "
            "differ more, or with fewer features"
        )
    return _with_head(model, head, normalize=model.normalize)


def without_normalization(model: SentenceEncoder) -> SentenceEncoder:
    """Returns a copy of a model without normalization, to fit a layer on its vectors. It shares the network.

    Raises:
        ValueError: The model has ``truncate_dim``.
    """
    return _with_head(model, model.head, normalize=False)


def _with_head(model: SentenceEncoder, head: nn.Sequential | None, normalize: bool) -> SentenceEncoder:
    if model.truncate_dim not in (None, model.features):
        raise InvalidValueError(
            f"postprocessing.model: expected a model that keeps its {model.features} features, got truncate_dim: "
            f"{model.truncate_dim}; set it to None, and let fit_whitening(features=...) choose fewer"
        )
    parts = replace(model.parts, head=head, normalize=normalize, truncate_dim=None, card="")
    return SentenceEncoder.of(parts).eval()


def _principal_axes(where: str, vectors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Computes the principal axes of vectors, without directions whose variance is only rounding.

    Returns:
        Mean (D,), unit directions (K, D), and the standard deviation along each direction (K,), largest first.
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
    # R of the QR decomposition is only D x D and has the same right singular vectors.
    _, singular, directions = torch.linalg.svd(torch.linalg.qr(values - mean, mode="r").R, full_matrices=False)
    spreads = singular / (len(values) - 1) ** 0.5
    mask = spreads > _NO_SPREAD * values.square().sum(dim=1).mean().sqrt()
    directions, spreads = directions[mask], spreads[mask]
    largest = directions.gather(1, directions.abs().argmax(dim=1, keepdim=True))
    return mean, directions * largest.sign(), spreads


def _affine(weight: Tensor, mean: Tensor) -> nn.Linear:
    """Returns the linear layer x -> weight (x - mean)."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(-weight @ mean)
    return layer.requires_grad_(False)
