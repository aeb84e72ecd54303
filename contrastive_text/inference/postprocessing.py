"""Models from trained models without training: mean of several models' weights, and whitened vectors.

``merge`` averages the weights of models (a model soup). Whitening and the removal of top components are affine
maps, fitted on vectors of unlabeled texts. The vectors of a pretrained encoder are in a narrow cone with high
cosines; both maps spread them out. A map is a linear layer after the head of the model, so every use of the saved
model applies it, in sentence-transformers too.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor, nn

from contrastive_text.core.config.specs import part_spec
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.inference.folder_modules import is_loadable_elsewhere
from contrastive_text.inference.model_card import ModelCard
from contrastive_text.inference.model_folder import local_folder, read_folder
from contrastive_text.inference.model_parts import ModelParts, with_pooler
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.recipes.papers import entry_of

_IGNORED = {"architectures", "_name_or_path", "transformers_version", "dtype", "torch_dtype"}
"""Settings of a network in which the merged models may differ, because they change no vector."""
_NO_SPREAD = 1e-5
"""Smallest standard deviation along a direction, relative to the vectors' length, that isn't rounding."""


def merge(models: Sequence[str | Path], weights: Sequence[float] | None = None) -> SentenceEncoder:
    """Merges models into one, whose weights are the mean of the models' weights (a model soup).

    The models (members) should be trained from the same start, such as runs with several seeds or learning rates.
    Weights are summed in float64, with one member in memory at a time. The merged model has the type of the
    members. Source: Wortsman et al. 2022, "Model soups", section 2, https://arxiv.org/abs/2203.05482.

    Args:
        models: Model folders or hub names, at least two.
        weights: Weight of each member in the mean, above 0, before division by their sum. None for equal weights.

    Raises:
        ValueError: There are fewer than two models, or another number of weights than models, or a weight isn't
            above 0. Members differ in architecture, tokenizer, pooler, prompts or limits, or have a head.

    Example:
        >>> model = merge(["runs/version_0/model", "runs/version_1/model"])  # doctest: +SKIP
        >>> model.save_pretrained("soup")  # doctest: +SKIP
    """
    shares = _shares(len(models), weights)
    names = short_names(models)
    merged: ModelParts | None = None
    means: dict[str, Tensor] = {}
    for path, name, share in zip(models, names, shares, strict=True):
        parts = _read_member(path, name)
        if merged is None:
            merged = parts
        else:
            _check_alike(merged, parts, names[0], name)
        for key, value in _state(parts).items():
            if value.is_floating_point():
                term = value.double() * share
                means[key] = means[key] + term if key in means else term
    assert merged is not None
    with torch.no_grad():
        for key, value in _state(merged).items():
            if key in means:
                value.copy_(means[key])
    model = SentenceEncoder.of(merged).eval()
    model.card = merged_card(model, models, weights)
    return model


def merged_card(
    model: SentenceEncoder,
    models: Sequence[str | Path],
    weights: Sequence[float] | None = None,
    scores: Mapping[str, float] | None = None,
    setting: str = "",
) -> str:
    """Returns the text of the model card of a merged model, with the names and shares of its members.

    Args:
        model: Result of ``merge``.
        models: Argument of ``merge``.
        weights: Argument of ``merge``.
        scores: Name of a figure -> value, for the merged model and for its members.
        setting: Description of the scores, in Markdown.
    """
    shares = _shares(len(models), weights)
    members = [f"{name} ({share:.4g})" for name, share in zip(short_names(models), shares, strict=True)]
    libraries = ("contrastive-text", "torch", "transformers", "tokenizers")
    return ModelCard(
        description=f"Vectors of sentences, by the mean of the weights of {len(members)} models.",
        in_sentence_transformers=is_loadable_elsewhere(model.parts),
        has_query_prompts=model.prompts.has_retrieval_prompts or model.encoder.pools,
        facts={
            "members (share)": "\n".join(members),
            "pooler": type(model.pooler).__name__,
            "length limit": f"{model.max_length} tokens with special ones",
            "libraries": ", ".join(f"{name} {version(name)}" for name in libraries),
        },
        scores=scores or {},
        score_description=setting,
        limits="The cards of the members describe their training. Only the scores above were measured. Texts "
        "longer than the length limit are truncated.",
        citations=[entry_of("wortsman2022soups")],
    ).text()


def short_names(models: Sequence[str | Path]) -> list[str]:
    """Shortens paths to their last one, two or three parts: the fewest that make them different.

    Example:
        >>> short_names(["/home/me/runs/a/model", "/home/me/runs/b/model"])
        ['a/model', 'b/model']
    """
    paths = [Path(model).parts for model in models]
    endings = [["/".join(parts[-count:]) for parts in paths] for count in (1, 2, 3)]
    return next((names for names in endings if len({*names}) == len(names)), endings[-1])


def _shares(count: int, weights: Sequence[float] | None) -> list[float]:
    if count < 2:
        raise InvalidValueError(f"merge: expected two models or more, got {count}; name another")
    numbers = [1.0] * count if weights is None else [*weights]
    if len(numbers) != count or not all(math.isfinite(number) and number > 0 for number in numbers):
        raise InvalidValueError(
            f"merge.weights: expected {count} numbers above 0, one for each model, got {numbers}; give others"
        )
    return [number / math.fsum(numbers) for number in numbers]


def _read_member(path: str | Path, name: str) -> ModelParts:
    parts = with_pooler(read_folder(local_folder(str(path))), None, name=name)
    if parts.head is not None:
        raise InvalidValueError(
            f"{name}: expected a model that ends with its pooler, got {len(parts.head)} layers after it (a head, "
            "such as whitening), fitted to this model's vectors; merge models without a head, and fit whitening "
            "on the merged model"
        )
    return replace(parts, encoder=parts.encoder.without_adapters(merge=True), card="")


def _state(parts: ModelParts) -> dict[str, Tensor]:
    assert parts.pooler is not None
    return nn.ModuleDict({"encoder": parts.encoder, "pooler": parts.pooler}).state_dict()


def _check_alike(first: ModelParts, second: ModelParts, name: str, second_name: str) -> None:
    """Checks that two models of a merge differ only in the values of their weights."""
    values = _traits(second)
    for trait, expected in _traits(first).items():
        value = values[trait]
        if expected != value:
            is_short = len(f"{expected}{value}") < 200
            difference = f" ({expected}), got {value}" if is_short else f", got a different {trait}"
            raise InvalidValueError(
                f"merge: expected {second_name} to have the {trait} of {name}{difference}; merge models that "
                "were trained from the same start"
            )


def _traits(parts: ModelParts) -> dict[str, object]:
    assert parts.pooler is not None and parts.encoder.tokenizer is not None
    settings = parts.encoder.settings
    network = {name: value for name, value in settings.items() if name not in _IGNORED}
    state = _state(parts)
    return {
        "architecture": json.dumps(network, sort_keys=True, default=str),
        "names and shapes of weights": {name: tuple(value.shape) for name, value in state.items()},
        "types of weights": {name: str(value.dtype) for name, value in state.items()},
        "buffers": {name: value.tolist() for name, value in state.items() if not value.is_floating_point()},
        "tokenizer": parts.encoder.tokenizer.backend_tokenizer.to_str(),
        "pooler": part_spec(parts.pooler, "pooler"),
        "prompts": parts.prompts.spec,
        "normalization": parts.normalize,
        "length limit": parts.max_length,
        "number of features": parts.truncate_dim,
        "similarity": parts.similarity_fn_name,
        "lengths of queries and documents": (parts.query_length, parts.document_length),
    }


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
