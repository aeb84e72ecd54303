"""Classification networks of Transformers: written from an encoder and a trained head, and read for inference."""

from __future__ import annotations

import re
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from inspect import signature
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from contrastive_text.core.batch import Batch, move_to_device
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.libraries import read_errors_as, silence_transformers
from contrastive_text.core.storage.manifests import CONFIG, folder_with_manifest
from contrastive_text.core.types import TextPair
from contrastive_text.data import TextTokenizer
from contrastive_text.data.batching import build_row, collate_rows
from contrastive_text.data.tokenizing import TextRow
from contrastive_text.encoders import Embedder, TransformerEncoder
from contrastive_text.encoders.asymmetric import require_transformer
from contrastive_text.encoders.networks import padding_id
from contrastive_text.encoders.onednn_products import onednn_products
from contrastive_text.encoders.packing import pad, token_mask
from contrastive_text.encoders.shared_use import evaluating
from contrastive_text.heads import FirstFeatures, UnitLength
from contrastive_text.inference.folder_modules import save_tokenizer
from contrastive_text.inference.head_files import TaskHead
from contrastive_text.inference.model_card import write_card
from contrastive_text.inference.model_parts import ModelParts, pooler_name
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.poolers import CLSPooler, LastTokenPooler, MaxPooler, MeanPooler

TOLERANCE = 1e-6
"""Largest difference between the logits of an exported folder and of the run, relative to the largest logit."""
_POOLERS = (CLSPooler(), MeanPooler(), LastTokenPooler(), MaxPooler())
_ACTIVATIONS = (nn.Tanh(), nn.ReLU(), nn.GELU())
_ACTIVATION_TYPES = tuple(type(layer) for layer in _ACTIVATIONS)
_UNKNOWN = "?"
"""Pooler of a head that reads the network's vectors in another way."""
_OWN = "add --own_format for a folder that only this library loads"
_POOLING_KEYS = {CLSPooler: "cls", MeanPooler: "mean"}
"""Pooler -> its value of ``classifier_pooling`` in configurations such as ModernBERT's."""
_ACTIVATION_KEYS = ("pooler_hidden_act", "classifier_activation")
"""Keys of the activation of the head in configurations such as DeBERTa's and ModernBERT's."""


class SequenceNetwork(nn.Module):
    """Classification network of Transformers that reads ragged batches.

    Args:
        model: The network with its head.
        tokenizer: Tokenizer of the network, which says whether the network reads token types.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__()
        self.model = model
        self._reads_types = (
            "token_type_ids" in signature(model.forward).parameters
            and "token_type_ids" in tokenizer.model_input_names
        )

    def forward(self, batch: Batch) -> Tensor:
        """Returns the logits of each row, (S, outputs), in float32."""
        mask = token_mask(batch.lengths)
        inputs = {
            "input_ids": pad(batch.ids, mask, fill=padding_id(self.model.config)),
            "attention_mask": move_to_device(mask, batch.ids.device).long(),
        }
        if self._reads_types:
            types = torch.zeros_like(batch.ids) if batch.types is None else batch.types
            inputs["token_type_ids"] = pad(types, mask)
        with onednn_products(self.model, batch.ids):
            logits: Tensor = self.model(**inputs).logits
        return logits.float() if logits.dtype.itemsize < 4 else logits


def write_sequence_classifier(folder: Path, parts: ModelParts, head: TaskHead, card: str = "") -> None:
    """Writes an encoder and its head to a folder that ``AutoModelForSequenceClassification`` loads.

    The written folder is loaded again before it replaces an older one. Its logits are compared with the logits of
    the encoder and the head, in float64. sentence-transformers' ``CrossEncoder`` loads the folder, too.

    Args:
        folder: Folder to write.
        parts: Encoder, pooler and layers before the head.
        head: Head that reads one text, or two texts in one sequence.
        card: Model card; empty for none.

    Raises:
        ValueError: The architecture's own classification head has another pooler, other layers or other
            activations, or its logits differ.
        DiskError: The folder can't be written to.
    """
    settings = head.settings
    encoder = _plain_encoder(parts)
    tokenizer = encoder.tokenizer
    assert tokenizer is not None, "checked by SentenceEncoder"
    model = classification_network(encoder, parts, head)
    if prompt := settings.prompts[0]:
        raise _refusal(model, "texts without a prompt", repr(prompt), "train without model.prompts")
    _check_layers(model, encoder, parts, head)
    with folder_with_manifest(folder, last=CONFIG) as target, silence_transformers():
        model.config.contrastive_text = {"kind": settings.kind, "reads": settings.reads}
        if settings.outputs == 1:
            activation = type(settings.activation)
            class_path = f"{activation.__module__}.{activation.__qualname__}"
            model.config.sentence_transformers = {"activation_fn": class_path}
        model.save_pretrained(target)
        saved = deepcopy(tokenizer)
        saved.model_max_length = parts.max_length or saved.model_max_length
        # A learned tokenizer doesn't return the types of two texts by itself.
        types = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
        save_tokenizer(saved, target, **(types if encoder.takes_types else {}))
        _check_logits(target, encoder, parts, head)
    write_card(folder, card)


def _plain_encoder(parts: ModelParts) -> TransformerEncoder:
    """Returns the encoder without adapters, in float32 or float64."""
    encoder = require_transformer(parts.encoder, "export").without_adapters(merge=True)
    return encoder if next(encoder.parameters()).dtype.itemsize >= 4 else encoder.clone().float()


def classification_network(encoder: TransformerEncoder, parts: ModelParts, head: TaskHead) -> PreTrainedModel:
    """Builds the architecture's classification network around the weights of an encoder, which are not copied.

    Weights of the head are random. Options of the configuration that set pooler or activation of the head follow
    the trained head.

    Raises:
        ValueError: Transformers has no classification network for the architecture.
    """
    config, settings = deepcopy(encoder.model.config), head.settings
    names = dict(enumerate(settings.classes if settings.kind == "classifier" else ["score"]))
    if type(config) not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING:
        raise InvalidValueError(
            f"export: expected an architecture with a classification head in Transformers, got "
            f"{config.model_type}; {_OWN}"
        )
    config.id2label, config.label2id = names, {name: number for number, name in names.items()}
    config.problem_type = "single_label_classification" if settings.outputs > 1 else "regression"
    known, pooler = config.to_dict(), parts.pooler
    if "classifier_pooling" in known and type(pooler) in _POOLING_KEYS:
        config.classifier_pooling = _POOLING_KEYS[type(pooler)]  # type: ignore[index]  # not None
    linear = [layer for layer in head.layers if isinstance(layer, nn.Linear)]
    activation = next((layer for layer in head.layers if isinstance(layer, _ACTIVATION_TYPES)), None)
    for key in _ACTIVATION_KEYS if activation is not None else ():
        if key in known:
            setattr(config, key, type(activation).__name__.lower())
    if "classifier_bias" in known and linear:
        config.classifier_bias = linear[0].bias is not None
    with torch.random.fork_rng(devices=[]), silence_transformers(), torch.device("meta"):
        model: PreTrainedModel = AutoModelForSequenceClassification.from_config(config)  # type: ignore[no-untyped-call]  # theirs
    generator, dtype = torch.Generator().manual_seed(0), next(encoder.parameters()).dtype
    shapes = {name: model.get_parameter(name).shape for name in _own_weights(model, encoder)}
    drawn = {
        name: torch.randn(shape, generator=generator).to(dtype) / max(shape[-1], 1) ** 0.5
        for name, shape in shapes.items()
    }
    model.load_state_dict(drawn, strict=False, assign=True)
    model.base_model.load_state_dict(encoder.plain_state(), strict=False, assign=True)
    for name, buffer in encoder.model.named_buffers():  # some aren't part of the state
        place, _, leaf = name.rpartition(".")
        setattr(model.base_model.get_submodule(place), leaf, buffer)
    if any(weight.is_meta for weight in model.parameters()):
        raise _refusal(model, "the encoder and a head", "further parts, such as a decoder", "use another encoder")
    moved: nn.Module = nn.Module.to(model, next(encoder.parameters()).device)
    moved.train(False)
    return model


def _own_weights(model: PreTrainedModel, encoder: TransformerEncoder) -> list[str]:
    """Returns the names of the weights of a classification network that its encoder doesn't have, in order."""
    prefix = f"{model.base_model_prefix}."
    shared = {f"{prefix}{name}" for name in encoder.plain_state()}
    return [name for name, _ in model.named_parameters() if name not in shared]


def _refusal(model: PreTrainedModel, expected: str, got: str, todo: str) -> InvalidValueError:
    return InvalidValueError(f"{_where(model)}: expected {expected}, got {got}; {todo}, or {_OWN}")


def _where(model: PreTrainedModel) -> str:
    return f"export: {type(model).__name__} of Transformers"


def head_difference(parts: ModelParts, head: TaskHead) -> str:
    """Returns why Transformers can't hold a head, with what to do; empty if it can."""
    try:
        encoder = _plain_encoder(parts)
        _check_layers(classification_network(encoder, parts, head), encoder, parts, head)
    except InvalidValueError as error:
        return re.sub(f"(, or|;) {_OWN}$", "", str(error))  # runs fall back to that format
    return ""


def _check_layers(model: PreTrainedModel, encoder: TransformerEncoder, parts: ModelParts, head: TaskHead) -> None:
    """Copies the weights of a head into a classification network.

    Raises:
        ValueError: Pooler, layers or activations of the network's own head differ.
    """
    layers = [*(parts.head or ()), *([UnitLength()] if parts.normalize else []), *head.layers]
    layers = [layer for layer in layers if not isinstance(layer, nn.Dropout | nn.Identity)]
    layers += [] if parts.truncate_dim is None else [FirstFeatures(parts.truncate_dim)]
    assert parts.pooler is not None
    ours, theirs = [pooler_name(parts.pooler), *map(_layer_name, layers)], own_head(model, encoder)
    if ours != theirs:
        raise _refusal(model, ", ".join(theirs), ", ".join(ours), _todo(ours, theirs, head))
    modules = _own_modules(model, encoder)
    trained = [layer for layer in layers if next(layer.parameters(), None) is not None]
    for number, (module, layer) in enumerate(zip(modules, trained, strict=True), start=1):
        weights = {name: weight.detach() for name, weight in layer.named_parameters()}
        if number == len(trained):  # the logits of this use of the head are linear in those of the objective
            eye = torch.eye(len(weights["weight"]), device=weights["weight"].device, dtype=torch.float64)
            matrix = head.settings.from_raw(eye) - head.settings.from_raw(torch.zeros_like(eye))
            zero = head.settings.from_raw(torch.zeros_like(eye[:1]))[0]
            bias = weights["bias"].double() if "bias" in weights else torch.zeros_like(eye[0])
            dtype = next(model.parameters()).dtype
            weights["weight"] = (matrix.T @ weights["weight"].double()).to(dtype)
            if "bias" in weights or bool(zero.any()):
                weights["bias"] = (matrix.T @ bias + zero).to(dtype)
        expected, shapes = (
            {name: tuple(weight.shape) for name, weight in part.items()}
            for part in (dict(module.named_parameters()), weights)
        )
        if shapes != expected:
            todo = "use another encoder, or a head of these widths"
            raise _refusal(model, f"layer {number} of its head with {expected}", str(shapes), todo)
        module.load_state_dict(weights, assign=True)


def _own_modules(model: PreTrainedModel, encoder: TransformerEncoder) -> list[nn.Module]:
    """Returns the modules of a classification network that its encoder doesn't have, in order."""
    names = dict.fromkeys(name.rpartition(".")[0] for name in _own_weights(model, encoder))
    return [model.get_submodule(name) for name in names]


def _layer_name(layer: nn.Module) -> str:
    if isinstance(layer, nn.Linear):
        return "Linear"
    return str(layer) if isinstance(layer, nn.GELU) and layer.approximate != "none" else type(layer).__name__


def _todo(ours: list[str], theirs: list[str], head: TaskHead) -> str:
    """Returns which pooler and head to train with."""
    if theirs[0] == _UNKNOWN:
        return "use another encoder"
    todo = [] if ours[0] == theirs[0] else [f"pooler: {theirs[0]}"]
    outputs = len(head.settings.classes) or 1
    heads = {
        ("Linear", "Tanh", "Linear"): f"FineTuningHead(out_features={outputs})",
        ("Linear", "ReLU", "Linear"): f"MLPHead(out_features={outputs})",
        ("Linear",): "null",
    }
    if ours[1:] != theirs[1:]:
        other = f"null, and model.head: a StackHead of {', '.join(theirs[1:-1])}"
        todo.append(f"the objective's head: {heads.get(tuple(theirs[1:]), other)}")
    return f"train with {' and '.join(todo)}"


def own_head(model: PreTrainedModel, encoder: TransformerEncoder) -> list[str]:
    """Finds pooler and layers of the head of a classification network by trying them on a few texts.

    Args:
        model: Network from ``classification_network``.
        encoder: Its encoder.

    Returns:
        Name of the pooler, then the class name of each layer, without dropout. The first name is ``?`` if no
        pooler with an activation after the first layer gives the network's logits.

    Raises:
        ValueError: The network can't compute logits of texts.
    """
    modules = _own_modules(model, encoder)
    assert encoder.tokenizer is not None
    tokenizer = TextTokenizer(encoder.tokenizer, encoder.limit)
    batch = collate_rows(tokenizer, _sample_rows(tokenizer)).to(next(model.parameters()).device)
    with torch.no_grad(), evaluating(encoder):
        expected, todo = f"{_where(model)}: expected a head that reads texts", f"use another encoder, or {_OWN}"
        with read_errors_as(expected, todo):
            logits = SequenceNetwork(model, encoder.tokenizer)(batch)
        for pooler in _POOLERS:
            vectors = Embedder(encoder, pooler).pool(batch)
            for activation in (nn.Identity(), *_ACTIVATIONS):
                layers = [modules[0], activation, *modules[1:]]
                with suppress(RuntimeError, TypeError):  # modules of other widths, or that read other inputs
                    if _is_close(nn.Sequential(*layers)(vectors), logits):
                        names = [_layer_name(layer) for layer in layers if not isinstance(layer, nn.Identity)]
                        return [type(pooler).__name__, *names]
    return [_UNKNOWN, *map(_layer_name, modules)]


def _is_close(first: Tensor, second: Tensor) -> bool:
    return first.shape == second.shape and bool((first - second).abs().max() <= 1e-4 * second.abs().max())


def _sample_texts(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Returns four texts of words from a tokenizer's vocabulary, always the same."""
    special = set(tokenizer.all_special_ids)
    ids = sorted(number for number in tokenizer.get_vocab().values() if number not in special)
    rng = np.random.default_rng(0)
    choices = [[int(ids[i]) for i in rng.integers(len(ids), size=n)] for n in (3, 6, 9, 12)]
    return [str(tokenizer.decode(choice)) for choice in choices]


def _sample_rows(tokenizer: TextTokenizer, pairs: bool = False) -> list[TextRow]:
    texts = _sample_texts(tokenizer.tokenizer)
    if pairs:
        return tokenizer.pair_rows([TextPair(*pair) for pair in zip(texts, reversed(texts), strict=True)])
    return [build_row(text, tokenizer) for text in tokenizer.tokenize_with_template(texts, with_words=False)]


def _check_logits(folder: Path, encoder: TransformerEncoder, parts: ModelParts, head: TaskHead) -> None:
    """Compares the logits of a written folder with the logits of the encoder and the head, in float64.

    Raises:
        ValueError: They differ by more than ``TOLERANCE``.
    """
    loaded = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float64).eval()
    their_tokenizer = AutoTokenizer.from_pretrained(folder)
    assert encoder.tokenizer is not None
    is_pair = head.settings.reads == "pair"
    texts = _sample_texts(encoder.tokenizer)
    second = list(reversed(texts)) if is_pair else None
    tokens = their_tokenizer(texts, second, padding=True, truncation=True, return_tensors="pt")
    tokenizer = TextTokenizer(encoder.tokenizer, parts.max_length)
    batch = collate_rows(tokenizer, _sample_rows(tokenizer, is_pair))
    with torch.no_grad():
        model = deepcopy(SentenceEncoder.of(replace(parts, encoder=encoder))).cpu().double().eval()
        ours, theirs = deepcopy(head).cpu().double().eval()(model(batch)), loaded(**tokens).logits
    difference, scale = float((ours - theirs).abs().max()), max(1.0, float(ours.abs().max()))
    if not difference <= TOLERANCE * scale:
        expected, todo = (
            f"the logits of the run up to {TOLERANCE * scale:.0e}",
            "train with another pooler, head or attention",
        )
        raise _refusal(loaded, expected, f"a difference of {difference:.1e}", todo)
