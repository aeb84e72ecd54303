"""Start of a run from an embedding model: its folder's parts in place of the recipe's for a plain encoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from contrastive_text.core.config.specs import part_spec
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage.manifests import model_place
from contrastive_text.heads import Head, StackHead, stack_of
from contrastive_text.inference.model_folder import ModelStart, read_start
from contrastive_text.poolers import Pooler
from contrastive_text.recipes.layers import PLAIN, Config, merge, value_at

_ENCODER = "model.encoder.model_name_or_path"
_COSINE, _NONE = "cosine", "none"
_VALIDATED = {"num_sanity_val_steps": -1}
"""Options of the trainer that validate the whole start before the first step."""


def with_start(layers: Sequence[Config], override: Callable[[Config], Config]) -> Config:
    """Merges the layers of a run's configuration over the parts that its start brings along.

    An embedding model's folder brings its pooler, the layers after it, prompts, length limit, similarity function
    and truncated width. A plain encoder gets the recipe's parts. A checkpoint has its own.

    Args:
        layers: Of ``read_layers`` with ``apart``, the lowest first; before them the parts of a checkpoint.
        override: Puts the options that come later over a configuration.

    Returns:
        The merged layers. The options are not part of it, but decide: a head isn't taken along if an option
        replaces its pooler.

    Raises:
        ValueError: A damaged folder, or one with layers that ``StackHead`` doesn't have.
    """
    merged = merge(layers)
    apart = merged.pop(PLAIN, {})
    plain, method = ({"model": {}} | apart)["model"], apart.get("method", {})
    whole = override(merged)
    name = _start_name(whole)
    place = None if name is None else model_place(name)
    start = None if place is None else read_start(place)
    if name is None or start is None or whole.get("ckpt_path") not in (None, "null"):
        return merge([{"model": plain}, merged])
    brought = _folder_config(start, name, whole, method, plain)
    return merge([{"model": brought, "trainer": _VALIDATED}, merged])


def _start_name(config: Config) -> str | None:
    """Returns the saved model that a run starts from, or else the name of its encoder."""
    before = config.get("init_from")
    if isinstance(before, str) and model_place(before) is not None:
        return before
    name = value_at(config, _ENCODER)
    return name if isinstance(name, str) else None


def _folder_config(start: ModelStart, name: str, whole: Config, method: Config, plain: Config) -> Config:
    """Returns the arguments of the module that a folder brings along."""
    model = whole.get("model") or {}
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
    layers, normalize, kept = list(start.layers), start.normalize, start.truncate_dim
    if "pooler" in model and not is_same_pooler(model["pooler"], start.pooler):
        layers, kept = [], None  # they were trained on the folder's own pooler
    else:
        config["pooler"] = part_spec(start.pooler, "model.pooler")
    if "head" not in model and (stack := stack_of(layers, normalize, kept)):
        weights = None if name == whole.get("init_from") or not layers else name
        config["head"] = {"class_path": StackHead.__name__, "init_args": {"stack": stack, "weights": weights}}
    return config


def is_same_pooler(given: object, pooler: Pooler) -> bool:
    """Returns whether a pooler in a configuration is the one of a folder."""
    spec = {"class_path": given} if isinstance(given, str) else given
    if not isinstance(spec, dict):
        return False
    same_class = str(spec["class_path"]).rpartition(".")[2] == type(pooler).__name__
    own: Any = part_spec(pooler, "model.pooler")["init_args"]  # Any: arguments of the pooler
    return same_class and own | (spec.get("init_args") or {}) == own


def load_head(head: Head | None) -> None:
    """Loads the weights of a folder's layers into the head of a module that starts from them.

    Raises:
        ValueError: The folder has other layers, or none.
    """
    if not isinstance(head, StackHead) or head.weights is None or head.network is None:
        return
    place = model_place(head.weights)
    start = None if place is None else read_start(place)
    listed = [] if start is None else stack_of(start.layers)
    if start is None or head.stack[: len(listed)] != listed:
        raise InvalidValueError(
            f"model.head: expected the layers {head.stack} in {head.weights}, got {listed}; name a model "
            "that has them with --model.head.weights, or set it to null for random weights"
        )
    head.network.load_state_dict(start.layers.state_dict())
