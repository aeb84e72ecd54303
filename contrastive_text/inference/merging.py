"""Merging of several models into one by the mean of their weights (model soups)."""

from __future__ import annotations

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
from contrastive_text.recipes.citations import entry_of

_IGNORED = {"architectures", "_name_or_path", "transformers_version", "dtype", "torch_dtype"}
"""Settings of a network in which the merged models may differ, because they change no vector."""


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
        has_query_prompts=model.prompts.has_retrieval_prompts,
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
    settings = parts.encoder.model.config.to_diff_dict()
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
