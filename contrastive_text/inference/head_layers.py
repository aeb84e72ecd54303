"""Reading and writing of the layers after the pooler (the head) as modules of a model folder.

In sentence-transformers, Dense, LayerNorm, Dropout and Normalize modules follow a pooler in any order. In this
library they are the layers of one ``nn.Sequential``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.libraries import is_read_error
from contrastive_text.core.storage.manifests import MANIFEST_ADVICE
from contrastive_text.core.storage.records import Record
from contrastive_text.core.storage.weights import check_dense
from contrastive_text.heads import UnitLength
from contrastive_text.inference.folder_modules import ELSEWHERE, read_record, write_json

_WIDEST = 1 << 20
"""Largest number of features of a layer in a model folder. A larger number means that the folder is damaged."""
_INPUT = "sentence_embedding"
"""Name of the vector that modules after the pooler read and write in sentence-transformers."""
_TANH = "torch.nn.modules.activation.Tanh"
"""Class path of the default activation of a Dense module."""
_ACTIVATIONS = "torch.nn.modules.activation"
_KINDS = {UnitLength: "Normalize", nn.Dropout: "Dropout", nn.LayerNorm: "LayerNorm"}


def group_layers(layers: Iterable[nn.Module]) -> list[tuple[str, list[nn.Module]]]:
    """Groups layers into modules of sentence-transformers. Returns the class name and the layers of each module.

    Raises:
        ValueError: sentence-transformers has no module for a layer.
    """
    modules: list[tuple[str, list[nn.Module]]] = []
    for layer in layers:
        # Dropout does nothing in inference, so an activation after it belongs to the Dense layer before it.
        previous, members = next((module for module in reversed(modules) if module[0] != "Dropout"), ("", []))
        is_open = previous == "Dense" and (len(members) == 1 or isinstance(members[1], nn.Identity))
        path = f"{type(layer).__module__}.{type(layer).__qualname__}"
        kind = "Dense" if isinstance(layer, nn.Linear) else _KINDS.get(type(layer))
        if isinstance(layer, nn.LayerNorm):
            is_default = str(layer) == str(nn.LayerNorm(layer.normalized_shape[0])) and layer.bias is not None
            kind = kind if is_default else None
        if kind is not None:
            modules.append((kind, [layer]))
        elif is_open and activation_class(path) is type(layer) and str(layer) == str(type(layer)()):
            members[1:] = [layer]
        else:
            raise InvalidValueError(
                "save_pretrained: expected a head of Linear layers, each followed by at most one activation of "
                f"torch.nn with its default arguments, of LayerNorm, Dropout and UnitLength, got {layer}; "
                "sentence-transformers has no module for it"
            )
    return modules


def activation_class(path: str) -> type[nn.Module] | None:
    """Returns the activation class of torch.nn at a class path, or None if its constructor needs arguments."""
    package, _, name = path.rpartition(".")
    cls = vars(nn).get(name)
    is_theirs = package in ("torch.nn", _ACTIVATIONS, "torch.nn.modules.linear")
    if not (is_theirs and isinstance(cls, type) and issubclass(cls, nn.Module)):
        return None
    if cls is not nn.Identity and cls.__module__ != _ACTIVATIONS:
        return None
    try:
        cls()
    except TypeError:  # such as Threshold, whose arguments a folder doesn't hold
        return None
    return cls


def write_layers(folder: Path, kind: str, layers: Sequence[nn.Module]) -> None:
    """Writes the settings and weights of a module of layers (from ``group_layers``) into its folder."""
    first = layers[0]
    if isinstance(first, nn.Linear):
        activation = layers[1] if len(layers) > 1 else nn.Identity()
        config: dict[str, object] = {
            "in_features": first.in_features,
            "out_features": first.out_features,
            "bias": first.bias is not None,
            "activation_function": f"{type(activation).__module__}.{type(activation).__qualname__}",
        }
        weights = nn.ModuleDict({"linear": first, "activation_function": activation})
    elif isinstance(first, nn.LayerNorm):
        config, weights = {"dimension": first.normalized_shape[0]}, nn.ModuleDict({"norm": first})
    elif isinstance(first, nn.Dropout):
        config, weights = {"dropout": first.p}, nn.ModuleDict()
    else:
        assert kind == "Normalize"  # without settings and weights
        return
    write_json(folder / "config.json", config)
    if state := {name: weight.contiguous() for name, weight in weights.state_dict().items()}:
        save_file(state, folder / "model.safetensors")


def _read_dense(folder: Path) -> list[nn.Module]:
    config = read_record(folder / "config.json")
    _check_names(config)
    if config.flag("use_residual", False):
        raise config.refusal("false", True, "use_residual", ELSEWHERE)
    path = config.text("activation_function", _TANH)
    cls = activation_class(path)
    if cls is None:
        expected = "an activation of torch.nn without arguments"
        raise config.refusal(expected, path, "activation_function", ELSEWHERE)
    with torch.device("meta"):  # takes no memory until the weights are checked
        linear = nn.Linear(
            config.integer("in_features", least=1, most=_WIDEST),
            config.integer("out_features", least=1, most=_WIDEST),
            bias=config.flag("bias", True),
        )
        layers = {"linear": linear, "activation_function": cls()}
    return _read_weights(folder, layers)


def _read_norm(folder: Path) -> list[nn.Module]:
    config = read_record(folder / "config.json")
    with torch.device("meta"):
        norm = nn.LayerNorm(config.integer("dimension", least=1, most=_WIDEST))
    return _read_weights(folder, {"norm": norm})


def _read_dropout(folder: Path) -> list[nn.Module]:
    path = folder / "config.json"
    config = read_record(path) if path.exists() else Record({}, str(path), MANIFEST_ADVICE)
    rate = config.number("dropout", 0.2)  # their default
    if not 0 <= rate <= 1:
        raise config.refusal("a number from 0 to 1", rate, "dropout")
    return [nn.Dropout(rate)]


def _read_normalize(folder: Path) -> list[nn.Module]:
    path = folder / "config.json"  # written since version 6
    if path.exists():
        _check_names(read_record(path))
    return [UnitLength()]


def _check_names(config: Record) -> None:
    """Checks that a module in a model folder reads and writes ``sentence_embedding``, not another vector."""
    for key in ("module_input_name", "module_output_name"):
        name = config.text(key, _INPUT)
        if name != _INPUT:
            raise config.refusal(repr(_INPUT), name, key, ELSEWHERE)


def _read_weights(folder: Path, layers: dict[str, nn.Module]) -> list[nn.Module]:
    """Loads the weights of a module from its folder into its layers. Returns the layers in order."""
    weights = {name: weight.float() for name, weight in _tensors(folder).items()}
    try:
        nn.ModuleDict(layers).load_state_dict(weights, assign=True)
    except RuntimeError as error:
        if not is_read_error(error):
            raise
        first = next(iter(layers.values()))
        raise InvalidValueError(
            f"{folder}: expected the weights of {first}, got other weights ({' '.join(str(error).split())}); the "
            "folder is damaged, save it again"
        ) from error
    return list(layers.values())


def _tensors(folder: Path) -> dict[str, Tensor]:
    path, binary = folder / "model.safetensors", folder / "pytorch_model.bin"
    if binary.exists() and not path.exists():  # an older version wrote it
        path = binary
    try:
        weights = load_file(path) if path != binary else torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # the two readers raise many types
        if not is_read_error(error):
            raise
        raise InvalidValueError(
            f"{path}: expected whole weights, got {error}; the folder is damaged, save it again"
        ) from error
    if not isinstance(weights, dict) or not all(isinstance(weight, Tensor) for weight in weights.values()):
        raise InvalidValueError(f"{path}: expected tensors by name, got other content; {MANIFEST_ADVICE}")
    check_dense(weights, str(path), MANIFEST_ADVICE)
    return {str(name): weight for name, weight in weights.items()}


READERS: dict[str, Callable[[Path], list[nn.Module]]] = {
    "Dense": _read_dense,
    "LayerNorm": _read_norm,
    "Dropout": _read_dropout,
    "Normalize": _read_normalize,
}
"""Name of a class of sentence-transformers -> function that reads its layers from the module's folder."""
