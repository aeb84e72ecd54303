"""Start of a run from an embedding model: its folder's parts in place of the recipe's for a plain encoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.specs import describe, part_spec
from contrastive_text.core.storage.manifests import model_place
from contrastive_text.data.prompts import Prompts
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.heads import Head, StackHead, stack_of
from contrastive_text.inference.model_folder import ModelStart, read_start
from contrastive_text.inference.pooling import pooler_name
from contrastive_text.poolers import Pooler
from contrastive_text.recipes.layers import PLAIN, Config, layer_file, merge, read_layers, value_at

if TYPE_CHECKING:
    from contrastive_text.training.module import ContrastiveModule

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
    if "prompts" not in model and start.prompts.named:
        config["prompts"] = dict(start.prompts.named)
        config["default_prompt_name"] = start.prompts.default or ""
    if not start.prompts.pooled:
        config["include_prompt"] = False
    limits = (value_at(plain, "encoder.max_length"), start.inference.get("max_length"))
    if limits[0] is not None:
        length = min(limit for limit in limits if limit is not None)
        config["encoder"] = merge([plain["encoder"], {"init_args": {"max_length": length}}])
    if "pooler" in model and model["pooler"] == method.get("pooler"):
        return config
    layers, normalize, kept = list(start.layers), start.normalize, start.truncate_dim
    if "pooler" in model and not _is_same(model["pooler"], start.pooler):
        layers, kept = [], None  # they were trained on the folder's own pooler
    else:
        config["pooler"] = part_spec(start.pooler, "model.pooler")
    if "head" not in model and (stack := stack_of(layers, normalize, kept)):
        weights = None if name == whole.get("init_from") or not layers else name
        config["head"] = {"class_path": StackHead.__name__, "init_args": {"stack": stack, "weights": weights}}
    return config


def _is_same(given: object, pooler: Pooler) -> bool:
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


def describe_start(module: ContrastiveModule, recipe: str | None, before: str | None = None) -> str | None:
    """Says which parts of an embedding model a run starts from, and which the recipe or an option replaced.

    Args:
        module: That of the run.
        recipe: Names of its shipped recipes, joined by commas; None for none.
        before: The saved model whose weights it takes over; None for those that its encoder names.

    Returns:
        A line for each kind of part; None for a start from a plain encoder.
    """
    encoder = module.encoder
    name = before or (encoder.model_name_or_path if isinstance(encoder, TransformerEncoder) else None)
    place = None if name is None else model_place(name)
    start = None if place is None else read_start(place)
    if start is None:
        return None
    replaced_by_recipe = _replaced_by_recipe(module, [each for each in (recipe or "").split(", ") if each])
    lines: dict[str, list[str]] = {"taken from it": [], "replaced by the recipe": [], "replaced by an option": []}
    for part, own, here in _compared(start, module):
        if own == here:
            lines["taken from it"] += [own] if own != _NONE else []
        else:
            by = "the recipe" if part in replaced_by_recipe else "an option"
            lines[f"replaced by {by}"].append(f"{own} by {here}")
    length = encoder.max_length
    if length is not None and length != module.length_in_use:
        lines["in training alone"] = [f"texts are cut at {length} tokens"]
    said = [f"{title}: {', '.join(parts)}" for title, parts in lines.items() if parts]
    return "\n".join([f"{name}, an embedding model", *said])


def _replaced_by_recipe(module: ContrastiveModule, recipes: Sequence[str]) -> set[str]:
    """Returns the arguments of the module that a recipe's method replaces."""
    found: set[str] = set()
    for recipe in recipes:
        config = merge(read_layers(layer_file(recipe), apart=True))
        if _is_same(config.get(PLAIN, {}).get("method", {}).get("pooler"), module.pooler):
            found |= {"pooler", "head"}
        found |= {"prompts"} & set(config.get("model") or {})
    return found


def _compared(start: ModelStart, module: ContrastiveModule) -> list[tuple[str, str, str]]:
    """Returns each part's argument of the module, the folder's part, and the run's, as text."""
    stack = stack_of(start.layers, start.normalize, start.truncate_dim)
    in_use = module.inference_embedder.pooler
    poolers = dict.fromkeys(map(pooler_name, (module.pooler, in_use)))
    similarity = (module.inference or {}).get("similarity_fn_name", _COSINE)
    limit = start.inference.get("max_length")
    lengths = [] if limit is None else [("inference", f"{limit} tokens", f"{module.length_in_use} tokens")]
    return [
        ("pooler", pooler_name(start.pooler), " in training, in use ".join(poolers)),
        ("head", _words(stack), _NONE if module.head is None else _head_words(module.head)),
        ("prompts", _prompt_words(start.prompts), _prompt_words(module.by_task.prompts)),
        ("inference", str(start.inference.get("similarity_fn_name", _COSINE)), str(similarity)),
        *lengths,
    ]


def _prompt_words(prompts: Prompts) -> str:
    return f"prompts {prompts.describe()}" if prompts.named else _NONE


def _head_words(head: Head) -> str:
    return _words(head.stack) if isinstance(head, StackHead) else describe(head)


def _words(stack: Sequence[dict[str, Any]]) -> str:  # Any: of each layer its own
    """Returns layers as text, such as ``Linear(768) Tanh UnitLength``."""
    widths = [f"({layer['out_features']})" if "out_features" in layer else "" for layer in stack]
    return " ".join(f"{layer['name']}{width}" for layer, width in zip(stack, widths, strict=True)) or _NONE
