"""Facts of a Transformers network that its class or configuration tells: class, positions, padding, pooler."""

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
    PreTrainedTokenizerBase,
)

from contrastive_text.core.errors import InvalidValueError

NetworkClass: TypeAlias = type[AutoModel] | type[AutoModelForMaskedLM] | type[AutoModelForTextEncoding]
POOLER = "pooler."
"""Beginning of the names of a pooler's weights."""
_DENSE = ("pooler.dense", "pooler")
"""Names of a pooler's dense layer: BERT's, and ALBERT's, whose pooler is the layer itself."""
# Modules whose output enters the blocks at their width: after ELECTRA's and ALBERT's projection, the embeddings
# module of BERT's relatives, the token table of decoders.
_EMBEDDINGS = ("embeddings_project", "encoder.embedding_hidden_mapping_in", "embeddings", "embed_tokens")


def network_class(architecture: PreTrainedConfig) -> NetworkClass:
    """Returns the class that loads the network of a configuration; of an encoder-decoder, the encoder alone.

    Raises:
        ValueError: A model of images or sounds and texts, which has no token vectors for a text.

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
    """Returns the token id of padding; 0 for a configuration that names none."""
    return getattr(text_config(architecture), "pad_token_id", None) or 0  # some have no such key at all


def dropouts(architecture: PreTrainedConfig) -> dict[str, float]:
    """Returns the dropouts of a network without its heads: name in the configuration -> probability."""
    heads = ("classifier", "summary", "qa_", "seq_classif", "pooler", "layerdrop")  # OPT drops whole layers
    return {
        key: float(value)
        for key, value in architecture.to_dict().items()
        if "drop" in key and isinstance(value, int | float) and not key.startswith(heads)
    }


def embedding_module(model: nn.Module) -> nn.Module | None:
    """Returns the part of a network whose output enters its blocks; None if it isn't known."""
    modules = dict(model.named_modules())
    return next((modules[name] for name in _EMBEDDINGS if name in modules), None)


def without_cache(model: PreTrainedModel) -> dict[str, bool]:
    """Returns the option that keeps a decoder from storing keys and values of all layers for later tokens."""
    return {"use_cache": False} if "use_cache" in signature(model.forward).parameters else {}


def first_position(model: PreTrainedModel) -> int:
    """Returns the position number of a row's first token."""
    # RoBERTa and its relatives reserve the rows of the position table up to the padding index for padding.
    return max((t.padding_idx + 1 for t in _position_tables(model) if t.padding_idx is not None), default=0)


def longest_row(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> int | None:
    """Returns the longest row in tokens that a network and its tokenizer take; None for no limit."""
    limits = [table.num_embeddings - first_position(model) for table in _position_tables(model)]
    # GPT-2's own key is n_positions; the configuration maps this name to each architecture's key.
    places = getattr(model.config, "max_position_embeddings", None)
    if not limits and isinstance(places, int) and places > 0:  # XLNet writes -1 for no limit
        limits = [places]
    # Tokenizers without a limit have a huge number.
    if tokenizer is not None and tokenizer.model_max_length < 10**9:
        limits.append(tokenizer.model_max_length)
    return min(limits, default=None)


def _position_tables(model: PreTrainedModel) -> list[nn.Embedding]:
    return [
        module
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding) and name.endswith("position_embeddings")
    ]


def without_pooler(kind: NetworkClass, architecture: PreTrainedConfig) -> PreTrainedModel:
    """Returns a network with random weights, without a pooler if its class allows that."""
    made: PreTrainedModel
    try:
        made = kind.from_config(architecture, dtype=torch.float32, add_pooling_layer=False)  # type: ignore[no-untyped-call]  # theirs
    except TypeError:  # other architectures have no pooler
        made = kind.from_config(architecture, dtype=torch.float32)  # type: ignore[no-untyped-call]  # theirs
    return made


def detach_pooler(model: PreTrainedModel) -> dict[str, Tensor]:
    """Removes the pooler from a network whose class allows that. Returns the pooler's weights by name."""
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
