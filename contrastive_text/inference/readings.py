"""One network read with several poolers: the vectors of each, from one pass of its texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, nn

from contrastive_text.core.batch import Hidden
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.inference.model_parts import ModelParts, pooler_name, read_with
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.poolers import Pooler


def readings(parts: ModelParts, poolers: Sequence[Pooler | str], name: str) -> dict[str, SentenceEncoder]:
    """Returns a model read with each of several poolers, by the pooler's name; all have its network.

    Args:
        parts: Of the model, such as ``SentenceEncoder.parts``.
        poolers: Poolers, or their names, as ``SentenceEncoder.from_pretrained`` takes them.
        name: Of the model, for what is said.

    Raises:
        ValueError: No pooler, one of them twice, a name that none has, or one of layers that the network lacks.

    Warns:
        UserWarning: A head that belongs to another pooler and is left out.
    """
    read = [SentenceEncoder.of(read_with(parts, pooler, name)) for pooler in poolers]
    found = {pooler_name(each.pooler): each for each in read}
    if not read or len(found) < len(read):
        said = ", ".join(pooler_name(each.pooler) for each in read) or "none"
        raise InvalidValueError(f"poolers: expected different ones, got {said}")
    return found


def vectors_by_pooler(
    model: SentenceEncoder,
    poolers: Sequence[Pooler | str],
    sentences: Sequence[str],
    batch_size: int = 64,
    show_progress_bar: bool = False,
) -> dict[str, npt.NDArray[Any]]:  # Any: float32
    """Returns the vectors of texts by each of several poolers, which share one pass of the network.

    Args:
        model: The model.
        poolers: Poolers, or their names; as ``readings`` takes them.
        sentences: The texts.
        batch_size: Texts at once.
        show_progress_bar: Whether to draw a bar.

    Returns:
        Name of a pooler -> (N, D) float32, in the order given; equal to those of each alone but for
        rounding.

    Raises:
        ValueError: As ``readings``, or a vector that is not finite.

    Example:
        >>> found = vectors_by_pooler(model, ["CLSPooler", "MeanPooler"], ["a bird"])  # doctest: +SKIP
        >>> {name: vectors.shape for name, vectors in found.items()}  # doctest: +SKIP
        {'CLSPooler': (1, 384), 'MeanPooler': (1, 384)}
    """
    read = readings(model.parts, poolers, name="the model")
    vectors, _ = vectors_of_each(list(read.values()), sentences, batch_size, show_progress_bar)
    return {name: part.numpy() for name, part in zip(read, vectors, strict=True)}


def vectors_of_each(
    models: Sequence[SentenceEncoder],
    sentences: Sequence[str],
    batch_size: int,
    show_progress_bar: bool,
    prompt: str | None = None,
) -> tuple[list[Tensor], int]:
    """Returns the vectors of texts by each of several readings of one network, and how many texts were cut.

    Args:
        models: As ``readings`` gives them.
        sentences: N texts.
        batch_size: Texts at once.
        show_progress_bar: Whether to draw a bar.
        prompt: Put before every text; None for the models' own.

    Returns:
        (N, D) float32 for each on the CPU; and the number of texts that were cut to the length limit.
    """
    first = models[0]
    if len(models) > 1 and any(model.pooler.template_bias for model in models):
        raise InvalidValueError(
            "pooler: expected poolers without template_bias to read one pass with several, got one with it; read "
            "the model with it alone"
        )
    parts = replace(first.parts, pooler=_Each(models), head=None, normalize=False, truncate_dim=None, card="")
    whole = first if len(models) == 1 else SentenceEncoder.of(parts)
    encoded = whole.encode(sentences, batch_size=batch_size, show_progress_bar=show_progress_bar, prompt=prompt)
    vectors = torch.as_tensor(encoded, dtype=torch.float32)
    widths = [model.truncate_dim or model.features for model in models[1:]]
    return list(torch.split(vectors, [vectors.shape[1] - sum(widths), *widths], dim=1)), whole.truncated


class _Each(Pooler):
    """Gives what several readings of one network make of its layers, side by side."""

    def __init__(self, models: Sequence[SentenceEncoder]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)
        self.layers = tuple(dict.fromkeys(layer for model in models for layer in model.pooler.layers))

    def forward(self, hidden: Hidden) -> Tensor:
        """Returns the vectors of each, (n, D + D' + ...)."""
        return torch.cat([self._of(model, hidden) for model in self.models], dim=1)  # type: ignore[arg-type]  # a list of modules forgets whose

    def _of(self, model: SentenceEncoder, hidden: Hidden) -> Tensor:
        return model.from_pooled(model.pooler(hidden))[:, : model.truncate_dim]
