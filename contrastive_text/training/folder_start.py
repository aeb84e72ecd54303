"""Start of a run from an embedding model: pooler, head, prompts and limits come from the model folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from contrastive_text.core.config.specs import part_spec
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage.manifests import find_model_folder
from contrastive_text.encoders import AsymmetricEncoder
from contrastive_text.encoders.static import StaticEncoder, static_folder
from contrastive_text.heads import StackHead, describe_stack
from contrastive_text.inference.model_folder import FolderParts, read_folder_parts
from contrastive_text.poolers import Pooler
from contrastive_text.recipes.layers import PLAIN, Config, merge, value_at

_ENCODER = "model.encoder.model_name_or_path"
_COSINE, _NONE = "cosine", "none"
_VALIDATED = {"num_sanity_val_steps": -1}
"""Trainer options that validate the initial model on all held-out data before the first step."""


def merge_start(layers: Sequence[Config], override: Callable[[Config], Config]) -> Config:
    """Merges the layers of a run's configuration over the parts of the model that the run starts from.

    From a model folder come the pooler, the layers after it, prompts, length limit, similarity function and
    truncated width. A run from a plain encoder uses the recipe's parts. A run from a checkpoint uses the parts of
    the checkpoint.

    Args:
        layers: Layers from ``read_layers`` with ``apart``, the lowest first; before them the parts of a
            checkpoint.
        override: Function that merges the command's options over a configuration.

    Returns:
        The merged layers, without the options. The options matter nevertheless: if an option replaces the
        pooler, the folder's head isn't used.

    Raises:
        ValueError: The folder is damaged, or has layers that ``StackHead`` doesn't support.
    """
    merged = merge(layers)
    apart = merged.pop(PLAIN, {})
    plain, method = ({"model": {}} | apart)["model"], apart.get("method", {})
    full_config = override(merged)
    name = _start_name(full_config)
    folder = None if name is None else find_model_folder(name)
    start = None if folder is None else read_folder_parts(folder)
    if name is None or start is None or full_config.get("ckpt_path") not in (None, "null"):
        return merge([{"model": plain}, merged])
    folder_parts = _folder_config(start, name, full_config, method, plain)
    return merge([{"model": folder_parts, "trainer": _VALIDATED}, merged])


def _start_name(config: Config) -> str | None:
    """Returns the path of the saved model that a run starts from, or the name of its encoder."""
    init_from = config.get("init_from")
    if isinstance(init_from, str) and find_model_folder(init_from) is not None:
        return init_from
    name = value_at(config, _ENCODER)
    is_static = _encoder_class(config) == StaticEncoder.__name__
    if not isinstance(name, str) or (is_static and static_folder(name) is None):
        return None  # only the table is computed from a transformer
    return name


def _folder_config(start: FolderParts, name: str, full_config: Config, method: Config, plain: Config) -> Config:
    """Returns the arguments of ``ContrastiveModule`` that a model folder provides."""
    model = full_config.get("model") or {}
    config: Config = {"inference": start.inference}
    config["prompts"] = {} if start.prompts.pooled else {"pooled": False}
    if "named" not in (model.get("prompts") or {}) and start.prompts.named:
        config["prompts"] |= {"named": dict(start.prompts.named), "default": start.prompts.default or ""}
    limits = (value_at(plain, "encoder.max_length"), start.inference.get("max_length"))
    if limits[0] is not None:
        length = min(limit for limit in limits if limit is not None)
        config["encoder"] = merge([plain["encoder"], {"init_args": {"max_length": length}}])
    if "pooler" in model and model["pooler"] == method.get("pooler"):
        return config
    layers, normalize, truncate_dim = list(start.layers), start.normalize, start.truncate_dim
    if "pooler" in model and not is_same_pooler(model["pooler"], start.pooler):
        layers, truncate_dim = [], None  # the layers were trained on the folder's pooler
    else:
        config["pooler"] = part_spec(start.pooler, "model.pooler")
    if "head" not in model and (stack := describe_stack(layers, normalize, truncate_dim)):
        weights = None if name == full_config.get("init_from") or not layers else name
        config["head"] = {"class_path": StackHead.__name__, "init_args": {"stack": stack, "weights": weights}}
    if _encoder_class(full_config) == AsymmetricEncoder.__name__:  # the folder is the encoder of documents
        own = {f"document_{name}": config.pop(name) for name in ("pooler", "head") if name in config}
        config["encoder"] = {"class_path": AsymmetricEncoder.__name__, "init_args": own}
    return config


def _encoder_class(config: Config) -> str:
    return str(value_at(config, "model.encoder.class_path")).rpartition(".")[2]


def is_same_pooler(given: object, pooler: Pooler) -> bool:
    """Returns whether the pooler of a configuration has the class and arguments of a folder's pooler."""
    spec = {"class_path": given} if isinstance(given, str) else given
    if not isinstance(spec, dict):
        return False
    same_class = str(spec["class_path"]).rpartition(".")[2] == type(pooler).__name__
    arguments: Any = part_spec(pooler, "model.pooler")["init_args"]  # Any: arguments of the pooler, plain data
    return same_class and arguments | (spec.get("init_args") or {}) == arguments


def load_head(head: nn.Module | None) -> None:
    """Loads the weights of a model folder's layers into a ``StackHead`` that names the folder.

    Raises:
        ValueError: The folder has other layers, or no layers.
    """
    if not isinstance(head, StackHead) or head.weights is None or head.network is None:
        return
    folder = find_model_folder(head.weights)
    start = None if folder is None else read_folder_parts(folder)
    folder_stack = [] if start is None else describe_stack(start.layers)
    if start is None or head.stack[: len(folder_stack)] != folder_stack:
        raise InvalidValueError(
            f"model.head: expected the layers {head.stack} in {head.weights}, got {folder_stack}; name a model "
            "that has them with --model.head.weights, or set weights to null for random weights"
        )
    head.network.load_state_dict(start.layers.state_dict())
