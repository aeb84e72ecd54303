"""The folder a model is saved in: sentence-transformers' layout, read without it.

Read are the names of its older versions, which ``model_writing`` writes, and version 6's own.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from safetensors.torch import load_file
from tokenizers import normalizers
from torch import Tensor, nn

from contrastive_text.core.class_paths import resolve
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.inside import inside
from contrastive_text.core.model_files import MODULES, TODO, check_whole
from contrastive_text.core.records import Record, read_json, records
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.inference.model_parts import ModelParts
from contrastive_text.poolers import CLSPooler, MaxPooler, MeanPooler, Pooler

POOLING_MODES: dict[str, type[Pooler]] = {"cls": CLSPooler, "mean": MeanPooler, "max": MaxPooler}
POOLING_FLAGS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
}
_WIDEST = 1 << 20
"""Features on a side of a Dense layer: a wider one is a damaged number."""
_MOST_MODULES = 100
"""Of a model: each names a place, which is looked up on the disk."""
ACTIVATIONS: dict[str, type[nn.Module]] = {
    f"{cls.__module__}.{cls.__qualname__}": cls for cls in (nn.Identity, nn.Tanh, nn.ReLU, nn.GELU, nn.Sigmoid)
}


def local_folder(model_name_or_path: str) -> Path:
    """Returns the folder of a model: itself, or where the hub's copy of a name lies.

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


def _read_record(path: Path) -> Record:
    if not path.exists():
        raise InvalidValueError(f"{path}: expected a file, got none; the folder is damaged, save it again")
    return Record.read(path, TODO)


def read_folder(folder: Path) -> ModelParts:
    """Reads a folder written by us, by sentence-transformers, or by Transformers alone.

    Raises:
        ValueError: A module of sentence-transformers that has no equal here, or a damaged file, by its name.
    """
    check_whole(folder)
    pooler, layers, normalize = None, [], False
    root = folder
    modules = _read_modules(folder)
    _check_order(folder / MODULES, [kind.rpartition(".")[2] for kind, _ in modules])
    for kind_path, place in modules:
        kind = kind_path.rpartition(".")[2]
        if kind == "Transformer":
            root = place
        elif kind == "Normalize":
            normalize = True
        elif kind == "Dense":
            layers += _read_dense(place)
        elif kind == "Pooling":
            pooler = _read_pooling(place / "config.json")
        else:
            pooler = _read_part(kind_path, place / "config.json")
    max_length, lower_case = _read_limit(root / "sentence_bert_config.json")
    prompt, truncate_dim = _read_settings(folder / "config_sentence_transformers.json")
    encoder = TransformerEncoder(str(root))
    _check_vocabulary(encoder, root)
    if lower_case and encoder.tokenizer is not None:
        backend = encoder.tokenizer.backend_tokenizer
        parts = [normalizers.Lowercase(), *([backend.normalizer] if backend.normalizer else [])]
        backend.normalizer = normalizers.Sequence(parts)
    bounds = [bound for bound in (max_length, encoder.limit) if bound]
    return ModelParts(
        encoder=encoder,
        pooler=pooler,
        head=nn.Sequential(*layers) if layers else None,
        normalize=normalize,
        max_length=min(bounds, default=None),
        prompt=prompt,
        truncate_dim=truncate_dim,
    )


def _read_modules(folder: Path) -> list[tuple[str, Path]]:
    """Returns the class path and the folder of each module; none for a model of Transformers alone."""
    path = folder / MODULES
    if path.exists():
        listed = records(read_json(path, TODO), of="modules", where=str(path), todo=TODO, most=_MOST_MODULES)
        return [(module.text("type"), inside(folder, module.text("path"), str(path))) for module in listed]
    if beside := sorted(part.name for part in folder.glob("[0-9]_*") if part.is_dir()):
        raise InvalidValueError(
            f"{path}: expected the list of modules beside {', '.join(beside)}, got none; the folder is damaged, "
            "save it again"
        )
    return []


def _check_order(path: Path, kinds: list[str]) -> None:
    """Refuses modules in another order than they are used in here: encoder, pooler, Dense layers, Normalize."""
    known = {"Transformer": "T", "Dense": "D", "Normalize": "N"}
    if path.exists() and not re.fullmatch("T(PD*N?)?", "".join(known.get(kind, "P") for kind in kinds)):
        raise InvalidValueError(
            f"{path}: expected a Transformer and, where more follows, a pooler, Dense layers and Normalize in "
            f"this order, got {', '.join(kinds[:6]) or 'none'}{', ...' * (len(kinds) > 6)}; load this model "
            "with sentence-transformers"
        )


def _read_limit(path: Path) -> tuple[int | None, bool]:
    """Returns the longest text in tokens, where one is said, and whether texts are lower-cased."""
    if not path.exists():
        return None, False
    settings = _read_record(path)
    return settings.integer("max_seq_length", None, least=1), settings.flag("do_lower_case", False)


def _read_settings(path: Path) -> tuple[str, int | None]:
    """Returns the prompt, and the features that are kept where a number is said."""
    if not path.exists():
        return "", None
    settings = _read_record(path)
    name = settings.text("default_prompt_name", None)
    prompt = settings.record("prompts").text(name) if name is not None else ""
    return prompt, settings.integer("truncate_dim", None, least=1)


def _check_vocabulary(encoder: TransformerEncoder, folder: Path) -> None:
    """Refuses the tokenizer that Transformers makes up where a folder has none: special tokens and no words."""
    tokenizer = encoder.tokenizer
    if tokenizer is not None and set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
        raise InvalidValueError(
            f"{folder}: expected a tokenizer (tokenizer.json, or the files of its vocabulary), got none; save it "
            "beside the weights with tokenizer.save_pretrained"
        )


def _read_pooling(path: Path) -> Pooler:
    config = _read_record(path)
    if not config.flag("include_prompt", True):
        raise InvalidValueError(
            f"{path}: expected a prompt to take part in pooling, got include_prompt: false; load this model with "
            "sentence-transformers"
        )
    named = config.values.get("pooling_mode")
    modes = [named] if isinstance(named, str) else config.texts("pooling_mode", [])
    flags = [key for key in config if key.startswith("pooling_mode_")]
    modes = modes or [key for key in flags if config.flag(key, False)]
    names = {flag: mode for mode, flag in POOLING_FLAGS.items()}
    known = [names.get(mode, mode) for mode in modes]
    if len(known) != 1 or known[0] not in POOLING_MODES:
        raise InvalidValueError(
            f"{path}: expected one pooling mode of {', '.join(POOLING_MODES)}, got "
            f"{', '.join(modes) or 'none'}; load this model with sentence-transformers"
        )
    return POOLING_MODES[known[0]]()


def _read_part(class_path: str, path: Path) -> Pooler:
    """Makes a pooler of ours, or of a module that is imported or trusted; a folder can name no other code."""
    where = path.parent.parent / MODULES
    if class_path.startswith("sentence_transformers."):
        raise InvalidValueError(
            f"{where}: expected Transformer, Pooling, Dense, Normalize or a pooler of yours, got {class_path}; "
            "load this model with sentence-transformers"
        )
    cls, arguments = resolve(class_path, Pooler, str(where)), _read_record(path).values
    try:
        inspect.signature(cls).bind(**arguments)
    except TypeError as error:
        raise InvalidValueError(f"{path}: expected the arguments of {class_path}, got {error}; {TODO}") from error
    if inspect.isabstract(cls):
        raise InvalidValueError(f"{where}: expected a pooler, got the base class {class_path}; {TODO}")
    return cls(**arguments)


def _read_dense(folder: Path) -> list[nn.Module]:
    path = folder / "config.json"
    config = _read_record(path)
    if config.flag("use_residual", False):
        raise InvalidValueError(
            f"{folder}: expected a plain Dense layer, got use_residual; load this model with "
            "sentence-transformers"
        )
    activation = config.text("activation_function", "torch.nn.modules.activation.Tanh")
    if activation not in ACTIVATIONS:
        raise InvalidValueError(f"{path}: expected one of {', '.join(ACTIVATIONS)}, got {activation}")
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
    return [linear, ACTIVATIONS[activation]()]


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
