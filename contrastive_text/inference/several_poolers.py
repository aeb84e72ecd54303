"""Vectors of one network with several poolers, from a single pass of the texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, nn

from contrastive_text.core.batch import Hidden
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.data.prompts import Kind
from contrastive_text.inference.model_parts import ModelParts, pooler_name, with_pooler
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.poolers import Pooler


def models_by_pooler(parts: ModelParts, poolers: Sequence[Pooler | str], name: str) -> dict[str, SentenceEncoder]:
    """Returns a model with each of several poolers, by the text of the pooler. All models share the network.

    Args:
        parts: Parts of the model, such as ``SentenceEncoder.parts``.
        poolers: Poolers or their texts, as in ``SentenceEncoder.from_pretrained``.
        name: Name of the model, for warnings.

    Raises:
        ValueError: ``poolers`` is empty or names a pooler twice, there is no such pooler, or the network lacks a
            layer that a pooler reads.

    Warns:
        UserWarning: The model's head is removed, because it belongs to another pooler.
    """
    models = [SentenceEncoder.of(with_pooler(parts, pooler, name)) for pooler in poolers]
    by_name = {pooler_name(model.pooler): model for model in models}
    if not models or len(by_name) < len(models):
        names = ", ".join(pooler_name(model.pooler) for model in models) or "none"
        raise InvalidValueError(f"poolers: expected different ones, got {names}")
    return by_name


def vectors_by_pooler(
    model: SentenceEncoder,
    poolers: Sequence[Pooler | str],
    sentences: Sequence[str],
    batch_size: int = 64,
    show_progress_bar: bool = False,
) -> dict[str, npt.NDArray[Any]]:  # Any: float32
    """Encodes texts with each of several poolers, in one pass of the network.

    Args:
        model: Model whose network encodes the texts.
        poolers: Poolers or their texts, as in ``SentenceEncoder.from_pretrained``.
        sentences: N texts.
        batch_size: Number of texts of a batch.
        show_progress_bar: Whether to draw a progress bar.

    Returns:
        Text of each pooler, in order -> vectors, (N, D), float32. They equal the vectors of that pooler alone,
        except for rounding.

    Raises:
        ValueError: ``poolers`` is empty or names a pooler twice, there is no such pooler, the network lacks a
            layer that a pooler reads, or a vector is not finite.

    Example:
        >>> vectors = vectors_by_pooler(model, ["CLSPooler", "MeanPooler"], ["a bird"])  # doctest: +SKIP
        >>> {name: values.shape for name, values in vectors.items()}  # doctest: +SKIP
        {'CLSPooler': (1, 384), 'MeanPooler': (1, 384)}
    """
    models = models_by_pooler(model.parts, poolers, name="the model")
    vectors, _ = encode_with_models(list(models.values()), sentences, batch_size, show_progress_bar)
    return {name: part.numpy() for name, part in zip(models, vectors, strict=True)}


def encode_with_models(
    models: Sequence[SentenceEncoder],
    sentences: Sequence[str],
    batch_size: int,
    show_progress_bar: bool,
    prompt: str | None = None,
    kind: Kind | None = None,
) -> tuple[list[Tensor], int]:
    """Encodes texts with several models that share a network, in one pass of the network.

    Args:
        models: Models of ``models_by_pooler``, which differ in their poolers.
        sentences: N texts.
        batch_size: Number of texts of a batch.
        show_progress_bar: Whether to draw a progress bar.
        prompt: Prompt of every text; None for the models' own prompt.
        kind: Kind of the texts; see ``Encoding``.

    Returns:
        Vectors of each model, (N, D), float32, on the CPU; and the number of texts that were truncated to the
        length limit.

    Raises:
        ValueError: A pooler has ``template_bias``, and there are several models; or a vector is not finite.
    """
    first = models[0]
    if len(models) > 1 and any(model.pooler.template_bias or model.pooler.reads_token_logits for model in models):
        raise InvalidValueError(
            "pooler: expected poolers of token vectors without template_bias to read one pass with several, got "
            f"{', '.join(pooler_name(model.pooler) for model in models)}; read the model with one pooler alone"
        )
    parts = replace(
        first.parts, pooler=_JoinedPooler(models), head=None, normalize=False, truncate_dim=None, card=""
    )
    joined = first if len(models) == 1 else SentenceEncoder.of(parts)
    array = joined.encode(sentences, batch_size, show_progress_bar, prompt=prompt, kind=kind)
    vectors = torch.as_tensor(array, dtype=torch.float32)
    widths = [model.truncate_dim or model.features for model in models[1:]]
    return list(torch.split(vectors, [vectors.shape[1] - sum(widths), *widths], dim=1)), joined.truncated


class _JoinedPooler(Pooler):
    """Pooler that concatenates the vectors of several models with one network."""

    def __init__(self, models: Sequence[SentenceEncoder]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)
        self.layers = tuple(dict.fromkeys(layer for model in models for layer in model.pooler.layers))

    def forward(self, hidden: Hidden) -> Tensor:
        """Returns the concatenated vectors of all models, (n, D + D' + ...)."""
        return torch.cat([self._of(model, hidden) for model in self.models], dim=1)  # type: ignore[arg-type]  # a list of modules forgets whose

    def _of(self, model: SentenceEncoder, hidden: Hidden) -> Tensor:
        return model.from_pooled(model.pooler(hidden))[:, : model.truncate_dim]
