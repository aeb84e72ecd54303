"""Properties of a Transformers network, from its configuration, or from a trial run if that may be wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from inspect import signature
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_TEXT_ENCODING_MAPPING,
    MODEL_MAPPING,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTextEncoding,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from contrastive_text.core.errors import InvalidValueError, first_line, one_of
from contrastive_text.core.libraries import is_read_error, silence_transformers
from contrastive_text.encoders.packing import (
    ATTENTION,
    Layout,
    Packing,
    checkpoint_layers,
    natural_positions,
    packed_input,
    pad,
    token_mask,
)
from contrastive_text.encoders.shared_use import evaluating

NetworkClass: TypeAlias = (
    type[AutoModel]
    | type[AutoModelForMaskedLM]
    | type[AutoModelForSequenceClassification]
    | type[AutoModelForTextEncoding]
)
Attention: TypeAlias = Literal["causal", "bidirectional"]
_MAX_TRIAL_LIMIT = 2048
"""Largest length limit for which a longer packed row is tried. Larger limits state the length in training."""
POOLER = "pooler."
"""Prefix of the names of a pooler's weights."""
_DENSE = ("pooler.dense", "pooler")
"""Names of a pooler's dense layer: BERT's, and ALBERT's, whose pooler is the layer itself."""
# Modules whose output enters the blocks, at the width of the blocks: the projections of ELECTRA and ALBERT, the
# embeddings module of BERT's relatives, and the token table of decoders.
_EMBEDDINGS = ("embeddings_project", "encoder.embedding_hidden_mapping_in", "embeddings", "embed_tokens")


def network_class(architecture: PreTrainedConfig) -> NetworkClass:
    """Returns the class that loads the network of a configuration; for an encoder-decoder, only its encoder.

    Raises:
        ValueError: The model also reads images or audio, so it has no token vectors for a text alone.

    Example:
        >>> from transformers import BertConfig, T5Config
        >>> [network_class(config()).__name__ for config in (BertConfig, T5Config)]
        ['AutoModel', 'AutoModelForTextEncoding']
    """
    kind = type(architecture)
    encoder_class: Any = MODEL_FOR_TEXT_ENCODING_MAPPING.get(kind, None)  # Any: a class of Transformers
    if encoder_class is not None and encoder_class.__name__.endswith("EncoderModel"):  # of T5's relatives
        return AutoModelForTextEncoding
    model_class: Any = MODEL_MAPPING.get(kind, None)
    modalities = "text" if model_class is None else model_class.input_modalities
    if not isinstance(modalities, str) and (others := sorted({*modalities} - {"text"})):
        raise InvalidValueError(
            f"encoder: expected a network of texts alone, got {architecture.model_type}, which also reads "
            f"{' and '.join(others)}; save its text network in another folder, or load this model with "
            "sentence-transformers"
        )
    return AutoModel


def text_config(architecture: PreTrainedConfig) -> PreTrainedConfig:
    """Returns the part of a configuration that describes the text network."""
    if architecture.model_type == "t5gemma":
        encoder: PreTrainedConfig = architecture.encoder
        return encoder
    return architecture.get_text_config(encoder=True)


def padding_id(architecture: PreTrainedConfig) -> int:
    """Returns the token id of padding; 0 if the configuration has none."""
    return getattr(text_config(architecture), "pad_token_id", None) or 0  # some configurations lack the key


def dropouts(architecture: PreTrainedConfig) -> dict[str, float]:
    """Returns name in the configuration -> probability, for the dropouts of a network without its heads."""
    heads = ("classifier", "summary", "qa_", "seq_classif", "pooler", "layerdrop")  # OPT drops whole layers
    return {
        key: float(value)
        for key, value in architecture.to_dict().items()
        if "drop" in key and isinstance(value, int | float) and not key.startswith(heads)
    }


def embedding_module(model: nn.Module) -> nn.Module | None:
    """Returns the module of a network whose output enters its blocks; None if it is unknown."""
    modules = dict(model.named_modules())
    return next((modules[name] for name in _EMBEDDINGS if name in modules), None)


def without_cache(model: PreTrainedModel) -> dict[str, bool]:
    """Returns the option that keeps a decoder from caching keys and values for later tokens."""
    return {"use_cache": False} if "use_cache" in signature(model.forward).parameters else {}


def first_position(model: PreTrainedModel) -> int:
    """Returns the position number of the first token of a row."""
    # RoBERTa and its relatives reserve the rows of the position table up to the padding index for padding.
    return max((t.padding_idx + 1 for t in _position_tables(model) if t.padding_idx is not None), default=0)


def longest_row(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> int | None:
    """Returns the largest number of tokens of a row for a network and its tokenizer; None for no limit."""
    limits = [table.num_embeddings - first_position(model) for table in _position_tables(model)]
    # GPT-2's own key is n_positions; the configuration maps this name to each architecture's key.
    max_positions = getattr(model.config, "max_position_embeddings", None)
    if not limits and isinstance(max_positions, int) and max_positions > 0:  # XLNet writes -1 for no limit
        limits = [max_positions]
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
    """Builds a network with random weights, without a pooler if its class allows that."""
    model: PreTrainedModel
    try:
        model = kind.from_config(architecture, dtype=torch.float32, add_pooling_layer=False)  # type: ignore[no-untyped-call]  # theirs
    except TypeError:  # other architectures have no pooler
        model = kind.from_config(architecture, dtype=torch.float32)  # type: ignore[no-untyped-call]  # theirs
    return model


def detach_pooler(model: PreTrainedModel) -> dict[str, Tensor]:
    """Removes the pooler from a network whose class allows that. Returns the pooler's weights by name."""
    if "add_pooling_layer" not in signature(type(model).__init__).parameters:
        return {}
    weights = {name: weight for name, weight in model.state_dict().items() if name.startswith(POOLER)}
    if weights:
        model.register_module(POOLER.rstrip("."), None)
    return weights


def pooler_layer(weights: Mapping[str, Tensor]) -> nn.Linear | None:
    """Builds the dense layer of a pooler, (D, D), with a copy of its weights; None if there is no such layer."""
    for layer_name in _DENSE:
        if (weight := weights.get(f"{layer_name}.weight")) is None:
            continue
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=f"{layer_name}.bias" in weights, device="meta")
        state = {name: weights[f"{layer_name}.{name}"].float().clone() for name in layer.state_dict()}
        layer.load_state_dict(state, assign=True)
        return layer
    return None


@contextmanager
def _trying(model: nn.Module) -> Iterator[None]:
    """Runs a network on trial inside the block: without dropout, gradient, or compilation just for this."""
    with evaluating(model), torch.no_grad(), torch.compiler.set_stance("force_eager"):
        yield


def prepare_layout(
    model: PreTrainedModel,
    layout: Layout,
    compiled: bool,
    limit: int | None,
    gradient_checkpointing: bool = False,
) -> str | None:
    """Sets the attention function of this library in a network, unless its rows can't be packed.

    Args:
        model: The network.
        layout: As ``encoder.layout``.
        compiled: Whether its blocks are compiled.
        limit: Largest number of tokens of a row; None for no limit.
        gradient_checkpointing: Whether layers store only their input; see ``TransformerEncoder``.

    Returns:
        The reason against packed rows; None if there is none.

    Raises:
        ValueError: An unknown layout, ``packed`` for a network that doesn't support it, or a network whose
            vectors depend on padding.
    """
    one_of("encoder.layout", layout, Layout)
    if gradient_checkpointing:
        checkpoint_layers(model)
    reason = "a compiled network takes no packed rows" if compiled else _why_not_packed(model, limit)
    reads_padding = False
    with suppress(
        RuntimeError, TypeError, IndexError
    ):  # a network that can't be called is refused at the first text
        reads_padding = reason is not None and not ignores_padding(model, limit)
    if reads_padding:
        raise InvalidValueError(
            "encoder: expected a network whose vectors of a text are the same next to padding, got "
            f"{model.config.model_type}, whose vectors would depend on the other texts of the batch; take "
            "another encoder"
        )
    if layout == "packed" and reason:
        raise InvalidValueError(
            f"encoder.layout: expected bucketed, padded or auto, for {reason}, got packed; take auto"
        )
    if reason is None:
        with silence_transformers():
            model.set_attn_implementation(ATTENTION)
    return reason


def _why_not_packed(model: PreTrainedModel, limit: int | None) -> str | None:
    """Returns the reason why a network can't encode packed rows; None if it can.

    Some architectures ignore the attention function, or do more than it does. Therefore the values of padded rows
    with the network's own attention are compared with those of packed rows with this library's attention.

    Args:
        model: The network, on the CPU. Its own attention is restored afterwards.
        limit: Largest number of tokens of a row; None for no limit.
    """
    name, own_attention, start = model.config.model_type, model.config._attn_implementation, first_position(model)
    if not model.is_backend_compatible():  # type: ignore[no-untyped-call]  # theirs
        return f"{name} takes no other attention function"
    try:  # a damaged limit is also refused at the first text
        lengths = torch.tensor([_trial_length(model, limit), 2, 2])
        ids = torch.arange(5, 5 + int(lengths.sum())) % text_config(model.config).vocab_size
        padding = padding_id(model.config)
        with _trying(model), silence_transformers():
            positions, mask = natural_positions(lengths) + start, token_mask(lengths)
            padded = {"input_ids": pad(ids, mask, fill=padding), "attention_mask": mask.long()}
            expected = model(**padded).last_hidden_state[mask]
            model.set_attn_implementation(ATTENTION)
            with packed_input(Packing.of(lengths)):
                output = model(input_ids=ids[None], position_ids=positions[None]).last_hidden_state[0]
            _check_long_row(model, limit, start)
        if torch.allclose(output, expected, rtol=0, atol=_rounding(expected)):
            return None
        return f"{name} gives other values with packed rows"
    except (RuntimeError, TypeError, ValueError) as error:
        if not is_read_error(error):
            raise
        return f"{name} can't be called with packed rows ({first_line(error)})"
    finally:
        with silence_transformers():
            model.set_attn_implementation(own_attention)


class _Entered(Exception):
    """Exception that ends a forward pass at the first block."""


def _check_long_row(model: PreTrainedModel, limit: int | None, start: int) -> None:
    """Runs packed rows with more tokens in total than a row may have, up to the first block of a network.

    CLIP's text network, for example, compares the length of its input with its limit.

    Raises:
        ValueError: The network refuses the length.
    """
    block = next((stack[0] for stack in model.modules() if isinstance(stack, nn.ModuleList) and len(stack)), None)
    if block is None or limit is None or limit > _MAX_TRIAL_LIMIT:
        return

    def enter(*_: object) -> None:
        raise _Entered

    lengths = torch.full((limit // 2 + 1,), 2)
    positions = natural_positions(lengths) + start
    handle = block.register_forward_pre_hook(enter)
    try:
        with packed_input(Packing.of(lengths)), suppress(_Entered):
            model(input_ids=torch.full_like(positions, 5)[None], position_ids=positions[None])
    finally:
        handle.remove()


def _trial_length(model: PreTrainedModel, limit: int | None) -> int:
    """Returns the length of a trial row, which exceeds the attention window, if there is one."""
    settings = text_config(model.config).to_dict()
    windows = [settings.get(name) for name in ("sliding_window", "local_attention")]
    length = max([7, *(window + 3 for window in windows if isinstance(window, int))])
    return min(length, limit or length)


def reads_positions(model: PreTrainedModel) -> bool:
    """Returns whether a network reads position ids. Relative positions (DeBERTa-v2, T5) ignore them silently."""
    ids = torch.arange(4, device=model.device)[None]
    orders = [torch.tensor([order]).to(ids) + first_position(model) for order in ([0, 1, 2, 3], [2, 0, 3, 1])]
    try:
        with _trying(model):
            natural, other = (
                model(input_ids=ids, attention_mask=torch.ones_like(ids), position_ids=order).last_hidden_state
                for order in orders
            )
    except TypeError:
        return False
    return not torch.equal(natural, other)


def is_causal(model: PreTrainedModel) -> bool:
    """Returns whether a network is causal: tokens don't attend to later tokens.

    Settings may be wrong, so texts are run.

    Of three texts, the second differs from the first in its last token, the third in its first token. The effect
    of each change on the token at the other end is compared.
    """
    a, b, c, d, other = [i for i in range(5, 12) if i != padding_id(model.config)][:5]
    texts = [[a, b, c, d], [a, b, c, other], [other, b, c, d]]
    ids = torch.tensor(texts, device=model.device) % text_config(model.config).vocab_size
    with _trying(model):
        output = model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
    backward = (output[1, 0] - output[0, 0]).abs().max()
    forward = (output[2, -1] - output[0, -1]).abs().max()
    # With bidirectional attention both effects have the same magnitude. Otherwise one is 0, or rounding.
    return bool(backward < 1e-3 * forward)


def set_attention(model: PreTrainedModel, attention: Attention | None) -> None:
    """Makes each token of a network attend to all tokens of its row, or only to earlier tokens.

    From 5.2 on Transformers reads ``is_causal`` of a configuration, for rows with and without padding. Older
    versions, and architectures with their own masks, ignore it or use it for some rows only. Therefore texts are
    run.

    Args:
        model: The network. A change is written to its configuration.
        attention: ``causal`` or ``bidirectional``; None leaves it unchanged.

    Raises:
        ValueError: An unknown value, or a network that doesn't support this attention.
    """
    if attention is None:
        return
    one_of("encoder.attention", attention, Attention)
    is_wanted_causal = attention == "causal"
    if is_causal(model) == is_wanted_causal:
        return
    model.config.is_causal = is_wanted_causal
    if is_causal(model) != is_wanted_causal or not ignores_padding(model):
        raise InvalidValueError(
            f"encoder.attention: expected an architecture that can be {attention}, got "
            f"{model.config.model_type}, which has its own in this version of Transformers; remove attention, "
            f"or use another encoder"
        )


def ignores_padding(model: PreTrainedModel, limit: int | None = None) -> bool:
    """Returns whether a row has the same vectors with and without padding after it.

    Args:
        model: The network.
        limit: Largest number of tokens of a row; None for no limit.
    """
    length = min(5, limit or 5)
    short_length = -(-length // 2)
    ids = (
        torch.arange(5, 5 + length, device=model.device).expand(2, length) % text_config(model.config).vocab_size
    )
    mask = torch.ones_like(ids)
    mask[1, short_length:] = 0
    ids = torch.where(mask.bool(), ids, padding_id(model.config))  # MobileBERT reads a token's neighbors
    with _trying(model):
        padded = model(input_ids=ids, attention_mask=mask).last_hidden_state[1, :short_length]
        unpadded = model(
            input_ids=ids[1:, :short_length], attention_mask=mask[1:, :short_length]
        ).last_hidden_state[0]
    return torch.allclose(padded, unpadded, rtol=0, atol=_rounding(unpadded))


def _rounding(values: torch.Tensor) -> float:
    """Returns the largest difference that counts as rounding: 1e-4 of the largest value, in bfloat16 6e-2."""
    return max(1e-4, 8 * torch.finfo(values.dtype).eps) * float(values.abs().max())
