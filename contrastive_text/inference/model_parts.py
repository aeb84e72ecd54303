"""Parts of a ``SentenceEncoder``, the fingerprint of a model, and the choice of its pooler."""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from contrastive_text.core.config.class_paths import import_class, is_own, trusting
from contrastive_text.core.config.specs import build_part, describe, parse_part, part_spec
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage.manifests import MANIFEST_ADVICE
from contrastive_text.core.storage.records import Record
from contrastive_text.core.storage.weights import add_weights
from contrastive_text.data.prompts import NO_PROMPTS, Prompts
from contrastive_text.encoders import Encoder, TransformerEncoder
from contrastive_text.encoders.asymmetric import SavedEncoder, require_transformer
from contrastive_text.encoders.base import check_template_bias
from contrastive_text.encoders.loading import load_pooler
from contrastive_text.inference.runtimes import BACKENDS, RuntimeEncoder
from contrastive_text.inference.search import SimilarityName
from contrastive_text.poolers import CLSPooler, LastTwoPooler, MeanPooler, Pooler

_POOLER = "pooler"


_SIMCSE = "https://github.com/princeton-nlp/SimCSE, Evaluation, --pooler"
_DECLUTR = "https://github.com/JohnGiorgi/DeCLUTR, Embedding"
_CONSERT = "https://github.com/yym6472/ConSERT, Pre-trained Models & Results, note 3"
_PUBLISHED: Mapping[str, tuple[type[Pooler], bool, str]] = {
    "unsup-simcse-": (CLSPooler, False, f"{_SIMCSE} cls_before_pooler"),
    "sup-simcse-": (CLSPooler, True, f"{_SIMCSE} cls"),
    "declutr-": (MeanPooler, False, _DECLUTR),
    "unsup-consert-": (LastTwoPooler, False, _CONSERT),
    "sup-consert-": (LastTwoPooler, False, _CONSERT),
}
"""Beginning of a published checkpoint's name, without its owner -> its pooler, whether the checkpoint's layer on
[CLS] (linear and tanh) follows the pooler, and the source of both."""


@dataclass(frozen=True, slots=True)
class ModelParts:
    """Parts of a trained model, as read from a model folder.

    Args:
        encoder: Network with its tokenizer.
        pooler: Pooler; None if the folder names no pooler.
        head: Layers after the pooler, or None.
        normalize: Whether vectors are scaled to unit length, before ``truncate_dim`` applies.
        max_length: Longest text in tokens, special tokens included; None for the network's limit.
        prompts: Prompts of the model, by name.
        truncate_dim: Number of first features to keep by default; None for all.
        pooling: Text that names the chosen pooler and the reason for it; empty until a pooler is chosen.
        runtime: Runtime that computes the network in place of torch; None for torch.
        card: Text of the model card; empty if there is none, or if the model was changed.
        similarity_fn_name: Similarity that compares vectors.
        query_length: Longest query in tokens; None for ``max_length``.
        document_length: Longest document in tokens; None for ``max_length``.
    """

    encoder: SavedEncoder
    pooler: Pooler | None
    head: nn.Sequential | None
    normalize: bool
    max_length: int | None
    prompts: Prompts = NO_PROMPTS
    truncate_dim: int | None = None
    pooling: str = ""
    runtime: RuntimeEncoder | None = None
    card: str = ""
    similarity_fn_name: SimilarityName = "cosine"
    query_length: int | None = None
    document_length: int | None = None

    def with_runtime(self, backend: str, dtype: torch.dtype) -> ModelParts:
        """Returns a copy of the parts whose network is computed by a runtime; see ``RuntimeEncoder``.

        Args:
            backend: ``onnx`` or ``openvino``; ``torch`` returns the parts unchanged.
            dtype: Type in which the network is computed.

        Raises:
            ImportError: The runtime isn't installed.
            ValueError: The backend is unknown, or it can't compute in ``dtype``.
        """
        if backend != "torch":
            if self.pooler is not None and self.pooler.reads_token_logits:
                raise InvalidValueError(
                    f"backend: expected torch for {pooler_name(self.pooler)}, which needs the head of the "
                    f"network, got {backend!r}; remove it"
                )
            runtime = RuntimeEncoder(require_transformer(self.encoder, "backend"), backend, dtype)
            if self.pooler is not None:
                runtime.open_runtime(self.pooler.layers)  # prepares the graph before the first text
            return replace(self, runtime=runtime)
        if not dtype.is_floating_point:
            raise InvalidValueError(
                f"dtype: expected a floating-point type with backend='torch', got {dtype}; "
                f"give backend={' or '.join(map(repr, BACKENDS))} with it"
            )
        return self

    def device_and_dtype(self, device: str | None, dtype: torch.dtype) -> tuple[str, torch.dtype]:
        """Returns the device and the type of the weights. A model with a runtime is on the CPU in float32.

        Args:
            device: Requested device; None for the GPU if there is one, otherwise the CPU.
            dtype: Type in which the network is computed.
        """
        if self.runtime is not None:
            return device or "cpu", torch.float32
        return device or ("cuda" if torch.cuda.is_available() else "cpu"), dtype

    @property
    def identity(self) -> str:
        """Fingerprint of weights, tokenizer, pooler, head, prompts and limits, on which vectors depend."""
        assert self.encoder.tokenizer is not None and self.pooler is not None
        digest = hashlib.blake2b(digest_size=16)
        pooler = part_spec(self.pooler, "pooler")
        if is_own(pooler["class_path"]):  # the module of a class may change between versions
            pooler["class_path"] = type(self.pooler).__name__
        limits: list[object] = [self.max_length, self.normalize, self.prompts.spec, self.truncate_dim, pooler]
        if self.runtime is not None and self.runtime.dtype != torch.float32:
            limits.append([self.runtime.backend, str(self.runtime.dtype)])  # float32 differs only by rounding
        if self.query_length or self.document_length:
            limits.append({"query_length": self.query_length, "document_length": self.document_length})
        layers = [layer for layer in self.head or () if not isinstance(layer, nn.Identity | nn.Dropout)]
        vocabulary = self.encoder.tokenizer.backend_tokenizer.to_str()
        settings = dict(self.encoder.settings)
        settings.pop("architectures", None)  # the class that saved the network; it changes no vector
        network = json.dumps(settings, sort_keys=True, default=str)
        digest.update(json.dumps([limits, list(map(str, layers)), vocabulary, network]).encode())
        parts = {"encoder": self.encoder, "pooler": self.pooler, "head": nn.Sequential(*layers)}
        weights = nn.ModuleDict(parts).state_dict()
        is_read = self.pooler.reads_token_logits
        names = [name for name in weights if is_read or not name.startswith("encoder.token_head.")]
        add_weights(digest, {name: weights[name] for name in names})
        return digest.hexdigest()


def require_token_head(encoder: Encoder, pooler: Pooler) -> None:
    """Builds the masked-language-model head that a pooler reads, unless the encoder has it already.

    Raises:
        ValueError: The architecture has no such head, or the folder has no weights of it.
    """
    if not pooler.reads_token_logits:
        return
    network = require_transformer(encoder, pooler_name(pooler))
    if network.token_head is not None:
        return
    head = network.token_head_of(network.model)
    if network.model_name_or_path is not None and not head.pretrained:
        raise InvalidValueError(
            f"{network.model_name_or_path}: expected the weights of a masked-language-model head for "
            f"{pooler_name(pooler)}, got a folder without them, so that they would be random; give "
            "another model or pooler"
        )
    network.token_head = head.to(next(network.model.parameters())).train(network.model.training)


def build_pooler(pooler: Pooler | str) -> Pooler:
    """Builds a pooler from text such as ``MeanPooler``. Returns a pooler unchanged.

    Args:
        pooler: Pooler or its text, such as ``CLSPooler``, ``FirstLastPooler(first=block_1)``, or ``module.Class``
            for a class of yours.

    Raises:
        ValueError: There is no such pooler, or its class doesn't take the arguments.

    Example:
        >>> build_pooler("FirstLastPooler(first=block_1)").layers
        (-1, 1)
    """
    if isinstance(pooler, Pooler):
        return pooler
    spec = parse_part(pooler, _POOLER)
    path = str(spec["class_path"])
    module = path.rpartition(".")[0]
    with trusting([module] if module else None):  # the user named the module
        cls = import_class(path, Pooler, _POOLER)
    return build_part(cls, spec.get("init_args", {}), _POOLER, "give the arguments that it takes")


def pooler_name(pooler: Pooler) -> str:
    """Returns a pooler as text: its class and its arguments, if it has any.

    Example:
        >>> pooler_name(MeanPooler()), pooler_name(build_pooler("FirstLastPooler(first=embeddings)"))
        ('MeanPooler', "FirstLastPooler(first='embeddings')")
    """
    return describe(pooler).removesuffix("()")


def with_pooler(parts: ModelParts, pooler: Pooler | str | None, name: str) -> ModelParts:
    """Returns a model's parts with the requested pooler, or by default with the model's own pooler.

    ``ModelParts.pooling`` names the pooler and the reason for it. A head belongs to the pooler on which it was
    trained or fitted. With another pooler, the head and ``truncate_dim`` are removed.

    Args:
        parts: Parts of a model.
        pooler: Pooler or its text; None for the model's own pooler. If the model has no pooler, None gives its
            authors' pooler if known, otherwise the mean over tokens.
        name: Name of the model, for warnings.

    Raises:
        ValueError: There is no such pooler, or the network lacks a layer or the template that the pooler reads.

    Warns:
        UserWarning: The model names no pooler and ``pooler`` is None; or a head is removed.
    """
    own = parts.pooler
    if pooler is None and own is None:
        return _choose_pooler(parts, name)
    if pooler is not None and parts.encoder.pools:
        raise InvalidValueError(
            f"{_POOLER}: expected none, because the model has an encoder and a pooler per role, got {pooler}; "
            "remove it"
        )
    choice = own if pooler is None else build_pooler(pooler)
    assert choice is not None
    pooling = pooler_name(choice)
    if own is not None and part_spec(own, _POOLER) == part_spec(choice, _POOLER):
        return replace(parts, pooling=pooling)
    _check_layers(choice, parts)
    check_template_bias(choice, parts.encoder)
    if own is None:
        return replace(parts, pooler=choice, pooling=f"{pooling}, asked for")
    pooling += f", which you named in place of {pooler_name(own)}"
    if parts.head is None:
        return replace(parts, pooler=choice, pooling=pooling, card="")
    warning = f"its head belongs to {pooler_name(own)} and is left out"
    warnings.warn(f"{name} is read with {pooler_name(choice)}: {warning}", stacklevel=3)
    return replace(parts, pooler=choice, head=None, truncate_dim=None, pooling=f"{pooling}; {warning}", card="")


def _choose_pooler(parts: ModelParts, name: str) -> ModelParts:
    """Chooses the pooler of a model that names no pooler: its authors' pooler if known, otherwise the mean."""
    folder = str(parts.encoder.model_name_or_path)
    names = [model.lower() for model in _names(name, folder)]
    prefix = next((start for model in names for start in _PUBLISHED if model.startswith(start)), None)
    pooler, keeps_head, source = _PUBLISHED.get(prefix or "", (MeanPooler, False, ""))
    pooling, reason, head = pooler_name(pooler()), f"the pooling of its authors ({source})", None
    if keeps_head:
        pooling += " and the checkpoint's layer over [CLS]"
    choice = f"{pooling}, {reason}"
    if prefix is None:
        reason, choice, head = "for it names none", "the mean over tokens", parts.head
    todo = "give pooler=... to choose (--pooler in evaluate, compare and diagnose)"
    warnings.warn(f"{name} names no pooler: taking {choice}; {todo}", stacklevel=4)
    if keeps_head:
        if (layer := load_pooler(folder)) is None:
            raise InvalidValueError(
                f"{folder}: expected a checkpoint with the layer over [CLS] (pooler.dense), got one "
                "without that layer; name a pooler"
            )
        head = nn.Sequential(layer, nn.Tanh())
    return replace(parts, pooler=pooler(), head=head, pooling=f"{pooling}, {reason}")


def _check_layers(pooler: Pooler, parts: ModelParts) -> None:
    blocks: object = 0
    if isinstance(parts.encoder, TransformerEncoder):
        blocks = parts.encoder.model.config.to_dict().get("num_hidden_layers")  # a few networks name it otherwise
    if isinstance(blocks, int) and (missing := [n for n in pooler.layers if not -blocks - 1 <= n <= blocks]):
        raise InvalidValueError(
            f"{_POOLER}: expected layers 0 (the embeddings) to {blocks}, got {', '.join(map(str, missing))} of "
            f"{pooler_name(pooler)}; take another pooler"
        )


def _names(name: str, folder: str) -> Iterator[str]:
    """Yields all names of a model without their owners, such as ``bert-base-uncased``.

    Args:
        name: Requested folder or hub name.
        folder: Local folder of the model. Names come from its path in the hub's cache, and from
            ``_name_or_path`` in its ``config.json``.
    """
    yield Path(name).name
    yield from (copy[1] for part in Path(folder).parts if (copy := re.fullmatch("models--.*--(.+)", part)))
    config = Record.read(Path(folder, "config.json"), MANIFEST_ADVICE, required=False)
    yield Path(config.text("_name_or_path", "")).name
