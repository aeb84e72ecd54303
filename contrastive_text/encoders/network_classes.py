"""Class of Transformers that a configuration's network has, and the pooler that its checkpoint brings along."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_TEXT_ENCODING_MAPPING,
    MODEL_MAPPING,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForTextEncoding,
    PreTrainedConfig,
    PreTrainedModel,
)

from contrastive_text.core.errors import InvalidValueError

NetworkClass: TypeAlias = type[AutoModel] | type[AutoModelForMaskedLM] | type[AutoModelForTextEncoding]
POOLER = "pooler."
"""Beginning of the names of a pooler's weights."""
_DENSE = ("pooler.dense", "pooler")
"""Places of a pooler's dense layer: BERT's, and ALBERT's, whose pooler is the layer itself."""


def network_class(architecture: PreTrainedConfig) -> NetworkClass:
    """Returns the class that loads the network of a configuration: of encoder-decoders the encoder alone, if any.

    Raises:
        ValueError: A model of images or sounds and texts, which gives no token vectors for a text.

    Example:
        >>> from transformers import BertConfig, T5Config
        >>> [network_class(config()).__name__ for config in (BertConfig, T5Config)]
        ['AutoModel', 'AutoModelForTextEncoding']
    """
    kind = type(architecture)
    alone: Any = MODEL_FOR_TEXT_ENCODING_MAPPING.get(kind, None)  # Any: a class of Transformers
    if alone is not None and alone.__name__.endswith("EncoderModel"):  # of T5's relatives
        return AutoModelForTextEncoding
    whole: Any = MODEL_MAPPING.get(kind, None)
    modalities = "text" if whole is None else whole.input_modalities
    if not isinstance(modalities, str) and (others := sorted({*modalities} - {"text"})):
        raise InvalidValueError(
            f"encoder: expected a network of texts alone, got {architecture.model_type}, which also reads "
            f"{' and '.join(others)}; save its text network in a folder of its own, or load this model with "
            "sentence-transformers"
        )
    return AutoModel


def text_config(architecture: PreTrainedConfig) -> PreTrainedConfig:
    """Returns the part of a configuration that describes the network that reads texts."""
    if architecture.model_type == "t5gemma":
        encoder: PreTrainedConfig = architecture.encoder
        return encoder
    return architecture.get_text_config(encoder=True)


def padding_id(architecture: PreTrainedConfig) -> int:
    """Returns the token id that padding has; 0 for a configuration that names none."""
    return getattr(text_config(architecture), "pad_token_id", None) or 0  # some have no such key at all


def prepare_encoder(architecture: PreTrainedConfig) -> None:
    """Changes a configuration whose class refuses to load the encoder alone of an encoder-decoder."""
    if architecture.model_type == "t5gemma":
        architecture.is_encoder_decoder = False


def without_pooler(kind: NetworkClass, architecture: PreTrainedConfig) -> PreTrainedModel:
    """Returns a network with random weights, without a pooler if it can be built without one."""
    made: PreTrainedModel
    try:
        made = kind.from_config(architecture, dtype=torch.float32, add_pooling_layer=False)  # type: ignore[no-untyped-call]  # theirs
    except TypeError:  # other architectures have none
        made = kind.from_config(architecture, dtype=torch.float32)  # type: ignore[no-untyped-call]  # theirs
    return made


def detach_pooler(model: PreTrainedModel) -> dict[str, Tensor]:
    """Removes the pooler from a network that can be built without one. Returns the pooler's weights by name."""
    if "add_pooling_layer" not in signature(type(model).__init__).parameters:
        return {}
    weights = {name: weight for name, weight in model.state_dict().items() if name.startswith(POOLER)}
    if weights:
        model.register_module(POOLER.rstrip("."), None)
    return weights


def pooler_layer(weights: Mapping[str, Tensor]) -> nn.Linear | None:
    """Returns the dense layer of a pooler, (D, D), with a copy of its weights; None if there is no such layer."""
    for place in _DENSE:
        if (weight := weights.get(f"{place}.weight")) is None:
            continue
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=f"{place}.bias" in weights, device="meta")
        own = {name: weights[f"{place}.{name}"].float().clone() for name in layer.state_dict()}
        layer.load_state_dict(own, assign=True)
        return layer
    return None
