"""Parts of a model in use: settings, the digest of its vectors, and the choice of its pooler."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from contrastive_text.core.config.class_paths import is_own, resolve, trusting
from contrastive_text.core.config.specs import describe, part_spec, typed_part
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage.manifests import TODO
from contrastive_text.core.storage.records import Record
from contrastive_text.core.storage.weights import add_weights
from contrastive_text.data.prompts import NO_PROMPTS, Prompts
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.encoders.embedder import check_template_bias
from contrastive_text.encoders.loading import load_pooler
from contrastive_text.inference.runtimes import BACKENDS, RuntimeEncoder
from contrastive_text.inference.search import SimilarityName
from contrastive_text.poolers import CLSPooler, LastTwoPooler, MeanPooler, Pooler

_ASKED = "pooler"


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
"""Beginning of a checkpoint's name, without its owner -> its pooler, whether its own layer over [CLS] (linear and
tanh) follows, and where its authors say so."""


@dataclass(frozen=True, slots=True)
class ModelParts:
    """Parts of a model folder.

    Args:
        encoder: The network with its tokenizer.
        pooler: The pooler; None if the folder names none.
        head: Dense layers after the pooler, or None.
        normalize: Whether vectors get unit length, before features are dropped.
        max_length: Longest text in tokens with special tokens; None for the network's limit.
        prompts: Prompts of texts, by name.
        truncate_dim: Features that are kept by default; None for all.
        pooling: Pooler that reads the model, and the reason, as text; empty until it is chosen.
        runtime: Runs the network in place of torch; None for torch.
        card: Text of the folder's ``README.md``; empty for none, or if the model was changed.
        similarity_fn_name: Similarity of vectors.
        query_length: Longest query in tokens; None for ``max_length``.
        document_length: Longest document in tokens; None for ``max_length``.
    """

    encoder: TransformerEncoder
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

    def asked(self, max_length: int | None, truncate_dim: int | None, prompts: Prompts | None) -> ModelParts:
        """Returns the parts with the options of ``SentenceEncoder.from_pretrained`` in place of their own.

        Raises:
            ValueError: A length beyond the model's limit.
        """
        limit = self.encoder.limit
        if max_length is not None and limit is not None and max_length > limit:
            raise InvalidValueError(
                f"from_pretrained.max_length: expected at most {limit} tokens, got {max_length}"
            )
        return replace(
            self,
            max_length=max_length or self.max_length,
            truncate_dim=self.truncate_dim if truncate_dim is None else truncate_dim,
            prompts=self.prompts if prompts is None else prompts,
            query_length=None if max_length else self.query_length,
            document_length=None if max_length else self.document_length,
            card=self.card if (max_length, truncate_dim, prompts) == (None, None, None) else "",
        )

    def run_by(self, backend: str, dtype: torch.dtype) -> ModelParts:
        """Returns the parts with the network in a runtime; see ``RuntimeEncoder``.

        Args:
            backend: ``onnx`` or ``openvino``; or ``torch``, for unchanged parts.
            dtype: Type in which the runtime computes.

        Raises:
            ImportError: The runtime isn't installed.
            ValueError: Another name, or a type in which the runtime, or torch, doesn't compute.
        """
        if backend != "torch":
            runtime = RuntimeEncoder(self.encoder, backend, dtype)
            if self.pooler is not None:
                runtime.runtime(self.pooler.layers)  # now, not with the first text
            return replace(self, runtime=runtime)
        if not dtype.is_floating_point:
            raise InvalidValueError(
                f"dtype: expected a floating-point type with backend='torch', got {dtype}; "
                f"give backend={' or '.join(map(repr, BACKENDS))} with it"
            )
        return self

    def place(self, device: str | None, dtype: torch.dtype) -> tuple[str, torch.dtype]:
        """Returns the device and the type of the weights; for a runtime's model the CPU and float32.

        Args:
            device: None for the GPU if there is one, otherwise the CPU.
            dtype: Type in which the network computes.
        """
        if self.runtime is not None:
            return device or "cpu", torch.float32
        return device or ("cuda" if torch.cuda.is_available() else "cpu"), dtype

    @property
    def identity(self) -> str:
        """32 hex digits, the same for equal vectors: of weights, tokenizer, pooler, head, prompts and limits."""
        assert self.encoder.tokenizer is not None and self.pooler is not None
        digest = hashlib.blake2b(digest_size=16)
        pooler = part_spec(self.pooler, "pooler")
        if is_own(pooler["class_path"]):  # by its name alone, whatever package it is in
            pooler["class_path"] = type(self.pooler).__name__
        limits: list[object] = [self.max_length, self.normalize, self.prompts.spec, self.truncate_dim, pooler]
        if self.runtime is not None and self.runtime.dtype != torch.float32:
            limits.append([self.runtime.backend, str(self.runtime.dtype)])  # float32 differs by rounding alone
        if self.query_length or self.document_length:
            limits.append({"query_length": self.query_length, "document_length": self.document_length})
        layers = [layer for layer in self.head or () if not isinstance(layer, nn.Identity | nn.Dropout)]
        vocabulary = self.encoder.tokenizer.backend_tokenizer.to_str()
        settings = self.encoder.model.config.to_diff_dict()
        settings.pop("architectures", None)  # the class that saved it
        network = json.dumps(settings, sort_keys=True, default=str)
        digest.update(json.dumps([limits, list(map(str, layers)), vocabulary, network]).encode())
        parts = {"encoder": self.encoder, "pooler": self.pooler, "head": nn.Sequential(*layers)}
        weights = nn.ModuleDict(parts).state_dict()
        unread = "encoder.token_head."  # no vector passes it
        add_weights(digest, {name: weights[name] for name in weights if not name.startswith(unread)})
        return digest.hexdigest()


def pooler_of(given: Pooler | str) -> Pooler:
    """Returns a pooler, which is built if only its name is given.

    Args:
        given: A pooler, or its text: ``CLSPooler``, ``FirstLastPooler(first=block_1)``, ``module.Class`` for your
            own.

    Raises:
        ValueError: A name that no pooler has, or other arguments than it takes.

    Example:
        >>> pooler_of("FirstLastPooler(first=block_1)").layers
        (-1, 1)
    """
    if isinstance(given, Pooler):
        return given
    spec = typed_part(given, _ASKED)
    path = str(spec["class_path"])
    module = path.rpartition(".")[0]
    with trusting([module] if module else None):  # the user typed the name
        cls = resolve(path, Pooler, _ASKED)
    return make_pooler(cls, spec.get("init_args", {}), _ASKED, "give the arguments that it takes")


def make_pooler(cls: type[Pooler], arguments: Mapping[str, object], where: str, todo: str) -> Pooler:
    """Builds a pooler from a class and the arguments of its constructor.

    Args:
        cls: The class.
        arguments: By name.
        where: Beginning of errors.
        todo: Advice for wrong arguments.

    Raises:
        ValueError: The base class, or other arguments than it takes.
    """
    if inspect.isabstract(cls):
        raise InvalidValueError(f"{where}: expected a pooler, got the base class {cls.__name__}; {todo}")
    try:
        inspect.signature(cls).bind(**arguments)
    except TypeError as error:
        raise InvalidValueError(
            f"{where}: expected the arguments of {cls.__name__}, got {error}; {todo}"
        ) from error
    return cls(**arguments)


def pooler_name(pooler: Pooler) -> str:
    """Returns the text of a pooler.

    Example:
        >>> pooler_name(MeanPooler()), pooler_name(pooler_of("FirstLastPooler(first=embeddings)"))
        ('MeanPooler', "FirstLastPooler(first='embeddings')")
    """
    return describe(pooler).removesuffix("()")


def read_with(parts: ModelParts, pooler: Pooler | str | None, name: str) -> ModelParts:
    """Returns a model's parts with the pooler that reads it. ``pooling`` names the pooler and the reason.

    A head belongs to the pooler on which it was trained or fitted. With another pooler the head is removed, and
    so is the number of features that were kept of it.

    Args:
        parts: Parts of a model.
        pooler: The pooler or its name; None for the model's own.
        name: Name of the model, for messages.

    Raises:
        ValueError: A name that no pooler has, or a pooler of layers or of a template's bias that the network
            doesn't have.

    Warns:
        UserWarning: No pooler is given for a model that names none; or a head is removed.
    """
    own = parts.pooler
    if pooler is None and own is None:
        return _unnamed(parts, name)
    asked = own if pooler is None else pooler_of(pooler)
    assert asked is not None
    said = pooler_name(asked)
    if own is not None and part_spec(own, _ASKED) == part_spec(asked, _ASKED):
        return replace(parts, pooling=said)
    _check_layers(asked, parts)
    check_template_bias(asked, parts.encoder)
    if own is None:
        return replace(parts, pooler=asked, pooling=f"{said}, asked for")
    said += f", asked for in place of its own {pooler_name(own)}"
    if parts.head is None:
        return replace(parts, pooler=asked, pooling=said, card="")
    left_out = f"its head belongs to {pooler_name(own)} and is left out"
    warnings.warn(f"{name} is read with {pooler_name(asked)}: {left_out}", stacklevel=3)
    return replace(parts, pooler=asked, head=None, truncate_dim=None, pooling=f"{said}; {left_out}", card="")


def _unnamed(parts: ModelParts, name: str) -> ModelParts:
    """Returns the parts of a model that names no pooler, with its authors' pooler, or the mean."""
    folder = str(parts.encoder.model_name_or_path)
    names = [each.lower() for each in _names(name, folder)]
    authors = next((start for each in names for start in _PUBLISHED if each.startswith(start)), None)
    pooler, keeps_head, source = _PUBLISHED.get(authors or "", (MeanPooler, False, ""))
    said, why, head = pooler_name(pooler()), f"the pooling of its authors ({source})", None
    if keeps_head:
        said += " and the checkpoint's layer over [CLS]"
    taken = f"{said}, {why}"
    if authors is None:
        why, taken, head = "for it names none", "the mean over tokens", parts.head
    todo = "give pooler=... to choose (--pooler in evaluate, compare and diagnose)"
    warnings.warn(f"{name} names no pooler: taking {taken}; {todo}", stacklevel=4)
    if keeps_head:
        if (layer := load_pooler(folder)) is None:
            raise InvalidValueError(
                f"{folder}: expected a checkpoint with the layer over [CLS] (pooler.dense), got none; "
                "name a pooler"
            )
        head = nn.Sequential(layer, nn.Tanh())
    return replace(parts, pooler=pooler(), head=head, pooling=f"{said}, {why}")


def _check_layers(pooler: Pooler, parts: ModelParts) -> None:
    blocks = parts.encoder.model.config.to_dict().get("num_hidden_layers")  # named otherwise by a few
    if isinstance(blocks, int) and (lacking := [n for n in pooler.layers if not -blocks - 1 <= n <= blocks]):
        raise InvalidValueError(
            f"{_ASKED}: expected layers 0 (the embeddings) to {blocks}, got {', '.join(map(str, lacking))} of "
            f"{pooler_name(pooler)}; take another pooler"
        )


def _names(name: str, folder: str) -> Iterator[str]:
    """Yields the names of a model without their owners.

    Args:
        name: The requested folder or hub name.
        folder: Its folder, which may have the model's name, be the hub's copy, or name the original in its
            ``config.json`` (``_name_or_path``).
    """
    yield Path(name).name
    yield from (copy[1] for part in Path(folder).parts if (copy := re.fullmatch("models--.*--(.+)", part)))
    config = Path(folder, "config.json")
    if config.is_file():
        yield Path(Record.read(config, TODO).text("_name_or_path", "")).name
