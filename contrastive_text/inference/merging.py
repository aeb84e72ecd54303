"""One model of several: the mean of their weights."""

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
from contrastive_text.inference.folder_modules import is_plain
from contrastive_text.inference.model_card import ModelCard
from contrastive_text.inference.model_folder import local_folder, read_folder
from contrastive_text.inference.model_parts import ModelParts, read_with
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.recipes.citations import entry_of

_NOT_NETWORK = {"architectures", "_name_or_path", "transformers_version", "dtype", "torch_dtype"}
"""Settings that change no vector."""


def merge(models: Sequence[str | Path], weights: Sequence[float] | None = None) -> SentenceEncoder:
    """Returns the model whose weights are the mean of the weights of others (a model soup).

    The members should come from the same start, as runs of several seeds or learning rates do. Sums are taken in
    float64, with one member in memory at a time; the result has the type of the members. Source: Wortsman et
    al. 2022, "Model soups", section 2, https://arxiv.org/abs/2203.05482.

    Args:
        models: Two folders or hub names, or more.
        weights: Of each, above 0; they are divided by their sum. None for equal ones.

    Raises:
        ValueError: Fewer than two, weights of another number or range, or members that differ in architecture,
            tokenizer, pooler, prompts or limits, or that have layers after the pooler.

    Example:
        >>> model = merge(["runs/version_0/model", "runs/version_1/model"])  # doctest: +SKIP
        >>> model.save_pretrained("soup")  # doctest: +SKIP
    """
    shares = _shares(len(models), weights)
    names = short_names(models)
    made: ModelParts | None = None
    means: dict[str, Tensor] = {}
    for number, (path, name, share) in enumerate(zip(models, names, shares, strict=True)):
        parts = _member(path, name)
        if made is None:
            made = parts
        else:
            _check_alike(made, parts, names[0], name)
        for key, value in _state(parts).items():
            if not value.is_floating_point():
                continue
            taken = value.double() * share
            means[key] = taken if number == 0 else means[key] + taken
    assert made is not None
    with torch.no_grad():
        for key, value in _state(made).items():
            if key in means:
                value.copy_(means[key])
    model = SentenceEncoder.of(made).eval()
    model.card = merged_card(model, models, weights)
    return model


def merged_card(
    model: SentenceEncoder,
    models: Sequence[str | Path],
    weights: Sequence[float] | None = None,
    scores: Mapping[str, float] | None = None,
    setting: str = "",
) -> str:
    """Returns the card of a merged model, which names its members.

    Args:
        model: What ``merge`` gave.
        models: As ``merge`` took them.
        weights: Likewise.
        scores: Figure -> value, those of the members beside it.
        setting: Of what they are.
    """
    shares = _shares(len(models), weights)
    members = [f"{name} ({share:.4g})" for name, share in zip(short_names(models), shares, strict=True)]
    libraries = ("contrastive-text", "torch", "transformers", "tokenizers")
    return ModelCard(
        what=f"Vectors of sentences, by the mean of the weights of {len(members)} models.",
        elsewhere=is_plain(model.parts),
        ranks=model.prompts.ranks,
        facts={
            "members (share)": "\n".join(members),
            "pooler": type(model.pooler).__name__,
            "length limit": f"{model.max_length} tokens with special ones",
            "libraries": ", ".join(f"{name} {version(name)}" for name in libraries),
        },
        scores=scores or {},
        setting=setting,
        limits="How the members were trained stands in their own cards. Nothing beyond the scores above was "
        "measured. Texts longer than the length limit are cut.",
        citations=[entry_of("wortsman2022soups")],
    ).text()


def short_names(models: Sequence[str | Path]) -> list[str]:
    """Returns the ends of paths, as long as it takes to tell them apart, at most three parts.

    Example:
        >>> short_names(["/home/me/runs/a/model", "/home/me/runs/b/model"])
        ['a/model', 'b/model']
    """
    parts = [Path(model).parts for model in models]
    ends = [["/".join(each[-count:]) for each in parts] for count in (1, 2, 3)]
    return next((names for names in ends if len({*names}) == len(names)), ends[-1])


def _shares(count: int, weights: Sequence[float] | None) -> list[float]:
    if count < 2:
        raise InvalidValueError(f"merge: expected two models or more, got {count}; name another")
    given = [1.0] * count if weights is None else [*weights]
    if len(given) != count or not all(math.isfinite(each) and each > 0 for each in given):
        raise InvalidValueError(
            f"merge.weights: expected {count} numbers above 0, one for each model, got {given}; give others"
        )
    return [each / math.fsum(given) for each in given]


def _member(path: str | Path, name: str) -> ModelParts:
    parts = read_with(read_folder(local_folder(str(path))), None, name=name)
    if parts.head is not None:
        raise InvalidValueError(
            f"{name}: expected a model that ends with its pooler, got layers after it, such as whitening is, "
            "which belong to one model's vectors; merge the models without them, and fit them on the result"
        )
    return replace(parts, encoder=parts.encoder.without_adapters(merge=True), card="")


def _state(parts: ModelParts) -> dict[str, Tensor]:
    assert parts.pooler is not None
    return nn.ModuleDict({"encoder": parts.encoder, "pooler": parts.pooler}).state_dict()


def _check_alike(one: ModelParts, other: ModelParts, name: str, other_name: str) -> None:
    """Checks that two members differ in nothing but the values of their weights."""
    found = _traits(other)
    for what, mine in _traits(one).items():
        its = found[what]
        if mine != its:
            shown = f"{mine}, got {its}" if len(f"{mine}{its}") < 200 else f"that of {name}, got another"
            raise InvalidValueError(
                f"merge: expected {other_name} to have the {what} of {name}, {shown}; merge models of one start"
            )


def _traits(parts: ModelParts) -> dict[str, object]:
    assert parts.pooler is not None and parts.encoder.tokenizer is not None
    settings = parts.encoder.model.config.to_diff_dict()
    network = {name: value for name, value in settings.items() if name not in _NOT_NETWORK}
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
