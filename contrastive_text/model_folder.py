"""The folder a model is saved in: sentence-transformers' layout, read and written without it.

Written are the names of its older versions, which version 6 loads; read are those and version 6's own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tokenizers import normalizers
from torch import nn
from transformers.utils import logging as transformers_logging

from contrastive_text.core.class_paths import resolve
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.poolers import CLSPooler, MaxPooler, MeanPooler, Pooler
from contrastive_text.specs import part_spec

_POOLING_MODES: dict[str, type[Pooler]] = {"cls": CLSPooler, "mean": MeanPooler, "max": MaxPooler}
_FLAGS = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens", "max": "pooling_mode_max_tokens"}
_ACTIVATIONS: dict[str, type[nn.Module]] = {
    f"{cls.__module__}.{cls.__qualname__}": cls for cls in (nn.Identity, nn.Tanh, nn.ReLU, nn.GELU, nn.Sigmoid)
}


@dataclass(frozen=True, slots=True)
class FolderParts:
    """What a folder holds.

    Args:
        encoder: The network with its tokenizer.
        pooler: None where the folder names none.
        head: Dense layers behind the pooler, or None.
        normalize: Whether vectors get unit length, before features are dropped.
        max_length: Longest text in tokens with special ones; None for the network's limit.
        prompt: Put before every text unless another is given.
        truncate_dim: Features that are kept unless another number is asked for; None for all.
    """

    encoder: TransformerEncoder
    pooler: Pooler | None
    head: nn.Sequential | None
    normalize: bool
    max_length: int | None
    prompt: str = ""
    truncate_dim: int | None = None


def local_folder(model_name_or_path: str) -> Path:
    """Gives the folder of a model: itself, or where the hub's copy of a name lies.

    Raises:
        ValueError: Neither a folder nor a name the hub has, or the hub is out of reach.
    """
    path = Path(model_name_or_path)
    if path.is_dir():
        return path
    if path.exists() or path.is_absolute():
        raise InvalidValueError(
            f"model: expected a model folder, got {path}; give the folder that holds config.json"
        )
    try:
        return Path(snapshot_download(model_name_or_path, ignore_patterns=["*.onnx", "openvino/*", "*.h5"]))
    except (OSError, ValueError) as error:
        raise InvalidValueError(
            f"model: expected a local folder or a name on the Hugging Face hub, got {model_name_or_path!r}; "
            "there is no such folder, and the hub was out of reach or doesn't have it"
        ) from error


def _read_json(path: Path) -> Any:  # Any: JSON
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidValueError(
            f"{path}: expected a file, got none; the folder is damaged, save it again"
        ) from error
    except ValueError as error:
        raise InvalidValueError(
            f"{path}: expected JSON, got {error}; the folder is damaged, save it again"
        ) from error


def read_folder(folder: Path) -> FolderParts:
    """Reads a folder written by us, by sentence-transformers, or by Transformers alone.

    Raises:
        ValueError: A module of sentence-transformers that has no equal here, or a damaged file.
    """
    listed = _read_modules(folder)
    pooler, layers, normalize = None, [], False
    lower_case = False
    root = folder
    for module in listed:
        kind, place = module["type"].rpartition(".")[2], folder / module["path"]
        if kind == "Transformer":
            root = place
        elif kind == "Normalize":
            normalize = True
        elif kind == "Dense":
            layers += _read_dense(place)
        elif kind == "Pooling":
            pooler = _read_pooling(place / "config.json")
        else:
            pooler = _read_part(module["type"], place / "config.json")
    max_length = None
    if (root / "sentence_bert_config.json").exists():
        settings = _read_json(root / "sentence_bert_config.json")
        max_length = settings.get("max_seq_length")
        lower_case = bool(settings.get("do_lower_case"))
    encoder = TransformerEncoder(str(root))
    _check_vocabulary(encoder, root)
    if lower_case and encoder.tokenizer is not None:
        backend = encoder.tokenizer.backend_tokenizer
        parts = [normalizers.Lowercase(), *([backend.normalizer] if backend.normalizer else [])]
        backend.normalizer = normalizers.Sequence(parts)
    bounds = [bound for bound in (max_length, encoder.limit) if bound]
    head = nn.Sequential(*layers) if layers else None
    length = min(bounds, default=None)
    settings_path = folder / "config_sentence_transformers.json"
    settings = _read_json(settings_path) if settings_path.exists() else {}
    prompt = settings.get("default_prompt_name")
    return FolderParts(
        encoder=encoder,
        pooler=pooler,
        head=head,
        normalize=normalize,
        max_length=length,
        prompt=str(settings["prompts"][prompt]) if prompt else "",
        truncate_dim=settings.get("truncate_dim"),
    )


def _read_modules(folder: Path) -> list[dict[str, Any]]:  # Any: JSON
    path = folder / "modules.json"
    if path.exists():
        listed: list[dict[str, Any]] = _read_json(path)
        return listed
    if beside := sorted(part.name for part in folder.glob("[0-9]_*") if part.is_dir()):
        raise InvalidValueError(
            f"{path}: expected the list of modules beside {', '.join(beside)}, got none; the folder is damaged, "
            "save it again"
        )
    return []


def _check_vocabulary(encoder: TransformerEncoder, folder: Path) -> None:
    """Refuses the tokenizer that Transformers makes up where a folder has none: special tokens and no words."""
    tokenizer = encoder.tokenizer
    if tokenizer is not None and set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
        raise InvalidValueError(
            f"{folder}: expected a tokenizer (tokenizer.json, or the files of its vocabulary), got none; save it "
            "beside the weights with tokenizer.save_pretrained"
        )


def _read_pooling(path: Path) -> Pooler:
    config = _read_json(path)
    if not config.get("include_prompt", True):
        raise InvalidValueError(
            f"{path}: expected a prompt to take part in pooling, got include_prompt: false; load this model with "
            "sentence-transformers"
        )
    named = config.get("pooling_mode", [])
    modes = [named] if isinstance(named, str) else list(named)
    modes = modes or [key for key, on in config.items() if key.startswith("pooling_mode_") and on]
    names = {flag: mode for mode, flag in _FLAGS.items()}
    known = [names.get(mode, mode) for mode in modes]
    if len(known) != 1 or known[0] not in _POOLING_MODES:
        raise InvalidValueError(
            f"{path}: expected one pooling mode of {', '.join(_POOLING_MODES)}, got "
            f"{', '.join(modes) or 'none'}; load this model with sentence-transformers"
        )
    return _POOLING_MODES[known[0]]()


def _read_part(class_path: str, path: Path) -> Pooler:
    """Makes a pooler of ours, or of a module that is imported or trusted; a folder can name no other code."""
    where = path.parent.parent / "modules.json"
    if class_path.startswith("sentence_transformers."):
        raise InvalidValueError(
            f"{where}: expected Transformer, Pooling, Dense, Normalize or a pooler of yours, got {class_path}; "
            "load this model with sentence-transformers"
        )
    return resolve(class_path, Pooler, str(where))(**_read_json(path))


def _read_dense(folder: Path) -> list[nn.Module]:
    config = _read_json(folder / "config.json")
    if config.get("use_residual"):
        raise InvalidValueError(
            f"{folder}: expected a plain Dense layer, got use_residual; load this model with "
            "sentence-transformers"
        )
    activation = config.get("activation_function", "torch.nn.modules.activation.Tanh")
    if activation not in _ACTIVATIONS:
        raise InvalidValueError(f"{folder}: expected one of {', '.join(_ACTIVATIONS)}, got {activation}")
    linear = nn.Linear(config["in_features"], config["out_features"], bias=config.get("bias", True))
    try:
        binary = folder / "pytorch_model.bin"  # how sentence-transformers saved before safetensors
        weights = (
            torch.load(binary, weights_only=True) if binary.exists() else load_file(folder / "model.safetensors")
        )
    except (OSError, SafetensorError) as error:
        raise InvalidValueError(
            f"{folder / 'model.safetensors'}: expected whole weights, got {error}; the folder is damaged, save "
            "it again"
        ) from error
    try:
        linear.load_state_dict({name.removeprefix("linear."): weight for name, weight in weights.items()})
    except RuntimeError as error:
        raise InvalidValueError(
            f"{folder}: expected the weights of {linear}, got others ({' '.join(str(error).split())}); the "
            "folder is damaged, save it again"
        ) from error
    return [linear, _ACTIVATIONS[activation]()]


def write_folder(folder: Path, parts: FolderParts) -> None:
    """Writes a folder that ``sentence_transformers.SentenceTransformer(folder)`` loads with equal vectors.

    A pooler that sentence-transformers can't express is written under its class path: there loading fails
    instead of pooling otherwise, here it loads.

    Raises:
        ValueError: An encoder without a tokenizer, or a head of other layers than Linear and activations.
    """
    encoder, pooler = parts.encoder, parts.pooler
    if encoder.tokenizer is None or pooler is None:
        raise InvalidValueError("save_pretrained: expected an encoder with a tokenizer and a pooler, got none")
    folder.mkdir(parents=True, exist_ok=True)
    bar = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # theirs
    encoder.model.save_pretrained(folder)
    if bar:
        transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]  # theirs
    encoder.tokenizer.save_pretrained(folder)
    limit = {"max_seq_length": parts.max_length, "do_lower_case": False}
    _write_json(folder / "sentence_bert_config.json", limit)
    prompt = {"prompts": {"default": parts.prompt}, "default_prompt_name": "default"} if parts.prompt else {}
    kept = {"truncate_dim": parts.truncate_dim} if parts.truncate_dim else {}
    _write_json(folder / "config_sentence_transformers.json", {"similarity_fn_name": "cosine"} | prompt | kept)
    listed = [("", "sentence_transformers.models.Transformer")]
    mode = next((mode for mode, cls in _POOLING_MODES.items() if type(pooler) is cls), None)
    if mode is None:
        spec = part_spec(pooler, "pooler")
        listed.append(("1_Pooling", spec["class_path"]))
        _write_json(folder / "1_Pooling" / "config.json", spec["init_args"])
    else:
        listed.append(("1_Pooling", "sentence_transformers.models.Pooling"))
        flags = {flag: name == mode for name, flag in _FLAGS.items()}
        others = dict.fromkeys(("pooling_mode_mean_sqrt_len_tokens",), False)
        width = {"word_embedding_dimension": encoder.features}
        _write_json(folder / "1_Pooling" / "config.json", width | flags | others)
    for linear, activation in _dense_layers(parts.head):
        name = f"{len(listed)}_Dense"
        listed.append((name, "sentence_transformers.models.Dense"))
        _write_dense(folder / name, linear, activation)
    if parts.normalize:
        (folder / f"{len(listed)}_Normalize").mkdir(exist_ok=True)
        listed.append((f"{len(listed)}_Normalize", "sentence_transformers.models.Normalize"))
    modules = [{"idx": i, "name": str(i), "path": path, "type": kind} for i, (path, kind) in enumerate(listed)]
    _write_json(folder / "modules.json", modules)


def _dense_layers(head: nn.Sequential | None) -> list[tuple[nn.Linear, nn.Module]]:
    layers: list[tuple[nn.Linear, nn.Module]] = []
    for layer in head or ():
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


def _write_dense(folder: Path, linear: nn.Linear, activation: nn.Module) -> None:
    cls = type(activation)
    config = {
        "in_features": linear.in_features,
        "out_features": linear.out_features,
        "bias": linear.bias is not None,
        "activation_function": f"{cls.__module__}.{cls.__qualname__}",
    }
    _write_json(folder / "config.json", config)
    weights = {f"linear.{name}": weight.contiguous() for name, weight in linear.state_dict().items()}
    save_file(weights, folder / "model.safetensors")


def _write_json(path: Path, content: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
