"""Published checkpoints that name no pooler, and how their authors pool them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from torch import nn

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage.manifests import TODO
from contrastive_text.core.storage.records import Record
from contrastive_text.encoders.loading import load_pooler
from contrastive_text.poolers import CLSPooler, LastTwoPooler, MeanPooler, Pooler


class Pooling(NamedTuple):
    """How authors pool their models.

    Args:
        pooler: From token vectors to one vector.
        keeps_head: Whether the checkpoint's own layer over [CLS], a linear one and tanh, follows.
        source: Where they say so.
    """

    pooler: type[Pooler]
    keeps_head: bool
    source: str

    def head(self, folder: str) -> nn.Sequential | None:
        """Returns the checkpoint's layers that follow the pooler, or None (ValueError where they are missing)."""
        if not self.keeps_head:
            return None
        if (layer := load_pooler(folder)) is None:
            raise InvalidValueError(
                f"{folder}: expected a checkpoint with the layer over [CLS] (pooler.dense), got none; "
                "name a pooler"
            )
        return nn.Sequential(layer, nn.Tanh())


_SIMCSE = "https://github.com/princeton-nlp/SimCSE, Evaluation, --pooler"
_DECLUTR = "https://github.com/JohnGiorgi/DeCLUTR, Embedding"
_CONSERT = "https://github.com/yym6472/ConSERT, Pre-trained Models & Results, note 3"
PUBLISHED: Mapping[str, Pooling] = {
    "unsup-simcse-": Pooling(CLSPooler, keeps_head=False, source=f"{_SIMCSE} cls_before_pooler"),
    "sup-simcse-": Pooling(CLSPooler, keeps_head=True, source=f"{_SIMCSE} cls"),
    "declutr-": Pooling(MeanPooler, keeps_head=False, source=_DECLUTR),
    "unsup-consert-": Pooling(LastTwoPooler, keeps_head=False, source=_CONSERT),
    "sup-consert-": Pooling(LastTwoPooler, keeps_head=False, source=_CONSERT),
}
"""Beginning of a model's name, without its owner -> how its authors pool it."""


def authors_pooling(name: str, folder: str) -> Pooling | None:
    """Returns how the authors of a checkpoint pool it; None for one that isn't theirs.

    Args:
        name: The folder or hub name by which it was asked for.
        folder: Where it lies: the folder may have the model's name, be the hub's copy of it, or say in its
            ``config.json`` (``_name_or_path``) what it was saved from.

    Example:
        >>> authors_pooling("princeton-nlp/unsup-simcse-roberta-base", "nowhere").pooler.__name__
        'CLSPooler'
    """
    found = (
        pooling
        for each in _names(name, folder)
        for begins, pooling in PUBLISHED.items()
        if each.lower().startswith(begins)
    )
    return next(found, None)


def _names(name: str, folder: str) -> Iterator[str]:
    """Yields the names that a model goes by, without their owners."""
    yield Path(name).name
    yield from (copy[1] for part in Path(folder).parts if (copy := re.fullmatch("models--.*--(.+)", part)))
    config = Path(folder, "config.json")
    if config.is_file():
        yield Path(Record.read(config, TODO).text("_name_or_path", "")).name
