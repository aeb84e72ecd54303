"""The modules of a model folder: of each kind what is written and what is read, side by side.

Written are the names of sentence-transformers' older versions, read are these and version 6's own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from tokenizers import normalizers
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from contrastive_text.core.class_paths import resolve
from contrastive_text.core.errors import ContrastiveTextError, InvalidValueError, first_line
from contrastive_text.core.libraries import is_failure, quiet
from contrastive_text.core.model_files import MODULES, TODO
from contrastive_text.core.records import Record
from contrastive_text.core.specs import part_spec
from contrastive_text.data import TextTokenizer
from contrastive_text.data.token_rows import collate_texts
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.encoders.adapter_files import write_adapters
from contrastive_text.encoders.embedder import Embedder
from contrastive_text.encoders.loading import load_model
from contrastive_text.inference.model_parts import ModelParts
from contrastive_text.inference.pooling import make_pooler
from contrastive_text.inference.shared_network import evaluating
from contrastive_text.poolers import (
    CLSPooler,
    LastTokenPooler,
    LastTwoPooler,
    MaxPooler,
    MeanPooler,
    Pooler,
    WeightedMeanPooler,
)

_POOLERS: dict[str, tuple[str, type[Pooler]]] = {
    "cls": ("pooling_mode_cls_token", CLSPooler),
    "mean": ("pooling_mode_mean_tokens", MeanPooler),
    "max": ("pooling_mode_max_tokens", MaxPooler),
    "weightedmean": ("pooling_mode_weightedmean_tokens", WeightedMeanPooler),
    "lasttoken": ("pooling_mode_lasttoken", LastTokenPooler),
}
"""Name of a pooling mode -> the name of its flag in older versions, and what it is here."""
_CONSERT_S = "pooling_mode_mean_last_2_tokens"
"""The flag that ConSERT's copy of sentence-transformers has beside them: the mean over the last two layers."""
_ACTIVATIONS: dict[str, type[nn.Module]] = {
    f"{cls.__module__}.{cls.__qualname__}": cls for cls in (nn.Identity, nn.Tanh, nn.ReLU, nn.GELU, nn.Sigmoid)
}
_LIMIT = "sentence_bert_config.json"
_INCLUDE_PROMPT = "include_prompt"
_WIDEST = 1 << 20
"""Features on a side of a Dense layer: a wider one is a damaged number."""


class Kind(NamedTuple):
    """A kind of module that a model folder has.

    Args:
        name: Its class in sentence-transformers, and the end of its folder's name.
        of: The modules of the kind that a model has, in order, each as what ``write`` takes.
        write: Writes a module into its folder; returns its class path where that isn't known by the name.
        read: From a module's folder and class path to what it holds.
    """

    name: str
    of: Callable[[ModelParts], list[Any]]  # Any: of each kind its own
    write: Callable[[Path, Any], str | None]
    read: Callable[[Path, str], Any]


def read_record(path: Path) -> Record:
    """Reads a JSON file of a model folder, which must be there."""
    if not path.exists():
        raise InvalidValueError(f"{path}: expected a file, got none; the folder is damaged, save it again")
    return Record.read(path, TODO)


def write_json(path: Path, content: object) -> None:
    """Writes a JSON file of a model folder."""
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def check_loadable(encoder: TransformerEncoder, where: str) -> None:
    """Checks that an encoder's own architecture could load its weights again, as with layers put in it could not.

    Args:
        encoder: The encoder that is to be saved.
        where: What errors begin with.

    Raises:
        ValueError: Weights of other names or shapes than those of a fresh model of its configuration.
    """
    with torch.device("meta"):
        fresh = load_model(None, encoder.model.config).state_dict()
    held = {name: weight.shape for name, weight in encoder.plain_state().items()}
    other = [name for name in {**held, **fresh} if name not in fresh or held.get(name) != fresh[name].shape]
    if other:
        raise InvalidValueError(
            f"{where}: expected an encoder with the weights of {encoder.model.config.model_type}, got others "
            f"({', '.join(other[:3])}{', ...' * (len(other) > 3)}), which no saved folder can hold; name "
            "adapters as encoder.adapters, merge those put in by hand (in peft: merge_and_unload), or leave "
            "ExportModel out"
        )


def _network_of(parts: ModelParts) -> list[ModelParts]:
    if parts.encoder.tokenizer is None:
        raise InvalidValueError("save_pretrained: expected an encoder with a tokenizer, got none; train it first")
    check_loadable(parts.encoder, where="save_pretrained")
    return [parts]


def _write_network(folder: Path, parts: ModelParts) -> None:
    assert parts.encoder.tokenizer is not None
    plain = parts.encoder.without_adapters(merge=False)
    head = plain.token_head  # where it was trained, so that training can go on with it
    with quiet():
        (plain.model if head is None else head.whole).save_pretrained(folder)
    if parts.encoder.adapters is not None:
        write_adapters(folder, parts.encoder.model, parts.encoder.model_name_or_path)
    parts.encoder.tokenizer.save_pretrained(folder)
    _write_padding(folder / "tokenizer_config.json", parts.encoder.tokenizer)
    write_json(folder / _LIMIT, {"max_seq_length": parts.max_length, "do_lower_case": False})


def _write_padding(path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """Names what sentence-transformers pads with, and the right side, where tokens have their places of here."""
    names = (tokenizer.pad_token, tokenizer.eos_token, tokenizer.bos_token, tokenizer.unk_token)
    token = next((name for name in names if name is not None), None)
    padding = {"padding_side": "right"} | ({} if token is None else {"pad_token": token})
    if (tokenizer.pad_token, tokenizer.padding_side) != (token, "right"):
        write_json(path, dict(read_record(path).values) | padding)


def _read_network(folder: Path, class_path: str) -> tuple[TransformerEncoder, int | None]:  # noqa: ARG001
    """Returns the network with its tokenizer, and the longest text in tokens, where one is known."""
    path = folder / _LIMIT
    settings = read_record(path) if path.exists() else Record({}, where=str(path), todo=TODO)
    bounds = [settings.integer("max_seq_length", None, least=1)]
    lower_case = settings.flag("do_lower_case", False)
    encoder = TransformerEncoder(str(folder))
    _check_vocabulary(encoder, folder)
    if lower_case and encoder.tokenizer is not None:
        backend = encoder.tokenizer.backend_tokenizer
        parts = [normalizers.Lowercase(), *([backend.normalizer] if backend.normalizer else [])]
        backend.normalizer = normalizers.Sequence(parts)
    _check_runs(encoder, folder)
    return encoder, min([bound for bound in (*bounds, encoder.limit) if bound], default=None)


def _check_vocabulary(encoder: TransformerEncoder, folder: Path) -> None:
    """Checks for the tokenizer that Transformers makes up where a folder has none: no words in it."""
    tokenizer = encoder.tokenizer
    if tokenizer is not None and set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
        raise InvalidValueError(
            f"{folder}: expected a tokenizer (tokenizer.json, or the files of its vocabulary), got none; save it "
            "beside the weights with tokenizer.save_pretrained"
        )


def _check_runs(encoder: TransformerEncoder, folder: Path) -> None:
    """Checks that an encoder takes a text: some settings of its files only show with the first one."""
    if encoder.tokenizer is None:
        return
    try:
        tokenizer = TextTokenizer(encoder.tokenizer, encoder.limit)
        # Such as a vector that isn't finite: told when it is asked for.
        with suppress(ContrastiveTextError), torch.no_grad(), evaluating(encoder):
            texts = tokenizer.framed(["a", "a bird and a dog"])
            Embedder(encoder, MeanPooler()).pool(collate_texts(tokenizer, texts))
    except BaseException as error:
        if isinstance(error, ContrastiveTextError) or not is_failure(error):
            raise
        raise InvalidValueError(
            f"{folder}: expected a network and a tokenizer that take a text, got {type(error).__name__}: "
            f"{first_line(error)}; config.json or tokenizer.json is damaged, save the model again"
        ) from error


def is_plain(parts: ModelParts) -> bool:
    """Whether sentence-transformers has words for a model's pooler and prompts, and so loads its folder."""
    return type(parts.pooler) in [cls for _, cls in _POOLERS.values()] and parts.prompts.is_plain


def _write_pooler(folder: Path, parts: ModelParts) -> str | None:
    """Writes a pooler's settings; what sentence-transformers can't express under its class path."""
    assert parts.pooler is not None
    left_out = {} if parts.prompts.pooled else {_INCLUDE_PROMPT: False}
    if not is_plain(parts):
        spec = part_spec(parts.pooler, "pooler")
        write_json(folder / "config.json", left_out | spec["init_args"])
        return str(spec["class_path"])
    flags = {flag: type(parts.pooler) is cls for flag, cls in _POOLERS.values()}
    flags["pooling_mode_mean_sqrt_len_tokens"] = False
    write_json(folder / "config.json", {"word_embedding_dimension": parts.encoder.features} | flags | left_out)
    return None


def _read_pooler(folder: Path, class_path: str) -> tuple[Pooler, bool]:
    """Returns the pooler, and whether it reads the tokens of a prompt."""
    path = folder / "config.json"
    if class_path.rpartition(".")[2] == "Pooling":
        return _pooling(path)
    return _own_pooler(class_path, path)


def _pooling(path: Path) -> tuple[Pooler, bool]:
    config = read_record(path)
    pooled = config.flag(_INCLUDE_PROMPT, True)
    named = config.values.get("pooling_mode")
    modes = [named] if isinstance(named, str) else config.texts("pooling_mode", [])
    flags = [key for key in config if key.startswith("pooling_mode_")]
    modes = modes or [key for key in flags if config.flag(key, False)]
    if modes == [_CONSERT_S]:
        return LastTwoPooler(), pooled
    known = [cls for mode, (flag, cls) in _POOLERS.items() if modes in ([mode], [flag])]
    if not known:
        raise InvalidValueError(
            f"{path}: expected one pooling mode of {', '.join(_POOLERS)}, got "
            f"{', '.join(modes) or 'none'}; load this model with sentence-transformers"
        )
    return known[0](), pooled


def _own_pooler(class_path: str, path: Path) -> tuple[Pooler, bool]:
    """Makes a pooler of ours, or of a module that is imported or trusted; a folder can name no other code."""
    where = path.parent.parent / MODULES
    if class_path.startswith("sentence_transformers."):
        raise InvalidValueError(
            f"{where}: expected Transformer, Pooling, Dense, Normalize or a pooler of yours, got {class_path}; "
            "load this model with sentence-transformers"
        )
    config = read_record(path)
    pooled = config.flag(_INCLUDE_PROMPT, True)
    arguments = {name: value for name, value in config.values.items() if name != _INCLUDE_PROMPT}
    return make_pooler(resolve(class_path, Pooler, str(where)), arguments, str(path), TODO), pooled


def _dense_of(parts: ModelParts) -> list[tuple[nn.Linear, nn.Module]]:
    layers: list[tuple[nn.Linear, nn.Module]] = []
    for layer in parts.head or ():
        if isinstance(layer, nn.Linear):
            layers.append((layer, nn.Identity()))
        elif layers and type(layer) in _ACTIVATIONS.values() and isinstance(layers[-1][1], nn.Identity):
            layers[-1] = (layers[-1][0], layer)
        elif not isinstance(layer, nn.Dropout):
            raise InvalidValueError(
                f"save_pretrained: expected a head of Linear layers and activations, got {type(layer).__name__}; "
                "sentence-transformers could not express it"
            )
    return layers


def _write_dense(folder: Path, layer: tuple[nn.Linear, nn.Module]) -> None:
    linear, activation = layer
    cls = type(activation)
    config = {
        "in_features": linear.in_features,
        "out_features": linear.out_features,
        "bias": linear.bias is not None,
        "activation_function": f"{cls.__module__}.{cls.__qualname__}",
    }
    write_json(folder / "config.json", config)
    weights = {f"linear.{name}": weight.contiguous() for name, weight in linear.state_dict().items()}
    save_file(weights, folder / "model.safetensors")


def _read_dense(folder: Path, class_path: str) -> tuple[nn.Linear, nn.Module]:  # noqa: ARG001
    path = folder / "config.json"
    config = read_record(path)
    if config.flag("use_residual", False):
        raise InvalidValueError(
            f"{folder}: expected a plain Dense layer, got use_residual; load this model with "
            "sentence-transformers"
        )
    activation = config.text("activation_function", "torch.nn.modules.activation.Tanh")
    if activation not in _ACTIVATIONS:
        raise InvalidValueError(f"{path}: expected one of {', '.join(_ACTIVATIONS)}, got {activation}")
    linear = nn.Linear(
        config.integer("in_features", least=1, most=_WIDEST),
        config.integer("out_features", least=1, most=_WIDEST),
        bias=config.flag("bias", True),
        device="meta",  # takes no memory before its weights are known to fit
    )
    weights = {name.removeprefix("linear."): weight.float() for name, weight in _dense_weights(folder).items()}
    try:
        linear.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        raise InvalidValueError(
            f"{folder}: expected the weights of {linear}, got others ({' '.join(str(error).split())}); the "
            "folder is damaged, save it again"
        ) from error
    return linear, _ACTIVATIONS[activation]()


def _dense_weights(folder: Path) -> dict[str, Tensor]:
    path, binary = folder / "model.safetensors", folder / "pytorch_model.bin"  # the latter of older versions
    try:
        if path.exists() or not binary.exists():
            return load_file(path)
        weights = torch.load(binary, weights_only=True, map_location="cpu")
    except Exception as error:  # whatever the two readers raise
        read = path if path.exists() or not binary.exists() else binary
        raise InvalidValueError(
            f"{read}: expected whole weights, got {error}; the folder is damaged, save it again"
        ) from error
    if not isinstance(weights, dict) or not all(isinstance(weight, Tensor) for weight in weights.values()):
        raise InvalidValueError(f"{binary}: expected weights by name, got something else; {TODO}")
    return {str(name): weight for name, weight in weights.items()}


NETWORK = Kind("Transformer", of=_network_of, write=_write_network, read=_read_network)
POOLER = Kind("Pooling", of=lambda parts: [parts], write=_write_pooler, read=_read_pooler)
DENSE = Kind("Dense", of=_dense_of, write=_write_dense, read=_read_dense)
NORMALIZE = Kind(
    "Normalize",
    of=lambda parts: [parts] if parts.normalize else [],
    write=lambda folder, parts: None,  # noqa: ARG005  # its name says all
    read=lambda folder, class_path: True,  # noqa: ARG005
)
KINDS = (NETWORK, POOLER, DENSE, NORMALIZE)
"""In the order in which vectors go through them; a class of none of the four names is a pooler."""
