"""Initial weights of a second training stage, from an earlier run or a saved model (``init_from``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage.checkpoints import best_checkpoint, read_checkpoint
from contrastive_text.core.storage.manifests import MODULES
from contrastive_text.core.targets import Classes
from contrastive_text.data.tokenizing import wrap_tokenizer
from contrastive_text.encoders.loading import load_tokenizer
from contrastive_text.inference.model_folder import read_folder
from contrastive_text.training.module import ContrastiveModule

_WHERE = "--init_from"


@dataclass(frozen=True, slots=True)
class _Start:
    """Weights and tokenizer of the first stage.

    Args:
        described: Description of the source, for messages.
        weights: Part of the module, such as an objective -> names and values of its weights.
        left_out: Names of parts that are never loaded.
        tokenizer: Tokenizer of the weights; None if it no longer exists.
        named: Name of the tokenizer, for messages.
        learned: Tokenizer as JSON, if it was learned from a corpus.
        objectives: Name of an objective -> its arguments in a configuration.
        base: Identity of the weights under the adapters; None without adapters.
    """

    described: str
    weights: Mapping[str, Mapping[str, Tensor]]
    left_out: tuple[str, ...]
    tokenizer: PreTrainedTokenizerBase | None
    named: str
    learned: str | None = None
    objectives: Mapping[str, Any] = field(default_factory=dict)  # Any: values of YAML
    base: str | None = None


def load_initial_weights(module: ContrastiveModule, path: str | Path, keep_heads: bool = False) -> str:
    """Loads the weights of an earlier run or a saved model into a module, before it is trained.

    Loads the encoder's weights and a vocabulary that was learned from a corpus. Loads the module's head and token
    head if both stages have them. The objectives keep their initial weights. Heads of the first stage are dropped
    unless ``keep_heads`` is true.

    Args:
        module: Module of the second stage, with the same architecture of the encoder.
        path: A ``.ckpt`` file; the folder of a run, for its best checkpoint; or a saved model.
        keep_heads: Whether an objective with the same name in both stages keeps its trained weights: its head,
            its layers and a learned temperature.

    Returns:
        Description of the loaded, random and skipped parts, for ``RunSummary(start_description=...)``.

    Raises:
        FileNotFoundError: The path doesn't exist.
        ValueError: The file is damaged, the folder has no run or several runs, or the architecture, the widths or
            the vocabulary differ. Or ``keep_heads`` is true and no objective has the same weights in both stages.
    """
    saved_model = Path(path, MODULES).is_file()
    predicts = _TOKEN_HEAD in _by_place(module.state_dict())
    start = _saved_model(Path(path), predicts) if saved_model else _checkpoint(best_checkpoint(path, _WHERE))
    _check_base(module, start)
    own = _by_place(module.without_base(module.state_dict()))
    loaded_places = {place for place in _KEPT if place in own and place in start.weights} | {"encoder"}
    loaded_places |= _heads(module, own, start) if keep_heads else set()
    for place in sorted(loaded_places):
        _check_shapes(start, own.get(place, {}), place, module.encoder.vocabulary_size)
    vocabulary_notes = _take_vocabulary(module, start)
    in_objectives = {place for place in loaded_places if place.startswith(_OBJECTIVES)}
    for place in sorted(loaded_places - in_objectives):
        module.load_state_dict(start.weights.get(place, {}), strict=False)
    module.by_task.build_networks(module.embedder)  # copies of the encoder, unless their weights are loaded next
    for place in sorted(in_objectives):
        module.load_state_dict(start.weights.get(place, {}), strict=False)
    loaded = [_named(place) for place in own if place in loaded_places]
    fresh = [_named(place) for place in own if place not in loaded_places and place != _MOMENTUM]
    skipped = [_named(place) for place in start.weights if place not in loaded_places] + [*start.left_out]
    lines = [start.described, f"loaded: {', '.join(loaded + vocabulary_notes)}"]
    lines += [f"starts from scratch: {', '.join(fresh)}"] if fresh else []
    lines += [f"starts as a copy: {_NAMES[_MOMENTUM]}"] if _MOMENTUM in own else []
    lines += [f"left out of it: {', '.join(skipped)}"] if skipped else []
    return "\n".join(lines)


def _heads(module: ContrastiveModule, own: Mapping[str, object], start: _Start) -> set[str]:
    """Returns the paths of objectives that have weights in both training stages, and checks their classes."""
    module_places, start_places = (
        {place for place in weights if place.startswith(_OBJECTIVES)} for weights in (own, start.weights)
    )
    if not module_places & start_places:
        names = [", ".join(sorted(map(_named, places))) or "none" for places in (start_places, module_places)]
        raise InvalidValueError(
            f"--keep_heads: expected an objective with weights of the same name in both stages, got {names[0]} "
            f"in {start.described} and {names[1]} here; name the run and not its model, or remove --keep_heads"
        )
    for place in sorted(module_places & start_places):
        name = place.removeprefix(_OBJECTIVES)
        before, now = _classes(start.objectives, name), _classes(module.hparams["objectives"], name)
        if before != now:
            raise InvalidValueError(
                f"--keep_heads: expected the classes of objective {name} in the first stage, {before}, got "
                f"{now}; set these classes, or rename the objective to start with a new head"
            )
    return module_places & start_places


def _classes(objectives: object, name: str) -> tuple[str, ...] | None:
    """Returns the class names of an objective's outputs, in order; None if the objective has no classes."""
    part = objectives.get(name) if isinstance(objectives, Mapping) else None
    arguments = (part or {}).get("init_args", {})
    if "objective" in arguments:  # a wrapper contains the objective
        return _classes(arguments, "objective")
    objectives = arguments.get("classes")
    if not isinstance(objectives, int | list):
        return None
    return Classes.of(objectives, f"{_OBJECTIVES}{name}.classes").names


_TOKEN_HEAD = "encoder.token_head"
_KEPT = ("encoder", "head", _TOKEN_HEAD)
_OBJECTIVES = "objectives."
_MOMENTUM = "momentum"
_NAMES = {
    "encoder": "encoder",
    "head": "head in use",
    _TOKEN_HEAD: "token head",
    _MOMENTUM: "momentum network",
}


def _by_place(state: Mapping[str, object]) -> dict[str, dict[str, Tensor]]:
    """Groups the tensors of a state dict by the part of the module that they belong to, such as an objective."""
    weights: dict[str, dict[str, Tensor]] = {}
    for name, value in state.items():
        place = name.partition(".")[0]
        if name.startswith(_OBJECTIVES):
            place = ".".join(name.split(".")[:2])
        elif name.startswith(f"{_TOKEN_HEAD}."):
            place = _TOKEN_HEAD
        if isinstance(value, Tensor):
            weights.setdefault(place, {})[name] = value
    return weights


def _named(place: str) -> str:
    return _NAMES.get(place, place.replace(_OBJECTIVES, "objective "))


def _checkpoint(path: Path) -> _Start:
    content = read_checkpoint(path)
    weights = _by_place(content.weights)
    left_out = [place for place in weights if place not in _KEPT and not place.startswith(_OBJECTIVES)]
    encoder = content.model.get("encoder", {}).get("init_args", {})
    tokenizer_name = str(encoder.get("tokenizer_name_or_path") or encoder.get("model_name_or_path"))
    return _Start(
        described=content.summary,
        weights={place: weights[place] for place in weights if place not in left_out},
        left_out=tuple(map(_named, left_out)),
        tokenizer=_load_tokenizer_if_found(tokenizer_name)
        if content.tokenizer is None
        else wrap_tokenizer(content.tokenizer),
        named=tokenizer_name if content.tokenizer is None else "one learned from the corpus",
        learned=content.tokenizer,
        objectives=content.model.get("objectives") or {},
        base=content.base,
    )


def _load_tokenizer_if_found(name: str) -> PreTrainedTokenizerBase | None:
    try:
        return load_tokenizer(name)
    except ValueError:  # the first stage's folder may no longer exist, but the checkpoint has the weights
        return None


def _saved_model(path: Path, with_token_head: bool) -> _Start:
    """Reads the weights and the tokenizer of a model folder; the token head only if ``with_token_head``."""
    parts = read_folder(path)
    weights = {f"encoder.{name}": weight for name, weight in parts.encoder.state_dict().items()}
    if parts.head is not None:
        weights |= {f"head.network.{name}": weight for name, weight in parts.head.state_dict().items()}
    has_token_head = any(
        str(name).endswith("ForMaskedLM") for name in parts.encoder.settings.get("architectures") or ()
    )
    if has_token_head and with_token_head:
        parts.encoder.build_token_head()
        weights |= {
            f"encoder.{name}": w for name, w in parts.encoder.state_dict().items() if "token_head." in name
        }
    return _Start(
        described=f"{path}: a saved model",
        weights=_by_place(weights),
        left_out=(_NAMES[_TOKEN_HEAD],) if has_token_head and not with_token_head else (),
        tokenizer=parts.encoder.tokenizer,
        named=str(path),
    )


def _check_base(module: ContrastiveModule, start: _Start) -> None:
    own_base = module.encoder.base_identity
    if own_base == start.base:
        return
    needed, got = (
        f"adapters on {base}" if base else "weights without adapters" for base in (own_base, start.base)
    )
    advice = "give the encoder the adapters and the base that it had there"
    if own_base is None:
        advice = "name the run's model folder, into whose weights they are merged"
    elif start.base is None:
        advice = "name those weights by model.encoder.model_name_or_path: adapters begin on them"
    raise InvalidValueError(f"{_WHERE}: expected {needed}, got {got} in {start.described}; {advice}")


def _check_shapes(start: _Start, own_weights: Mapping[str, Tensor], place: str, vocabulary: int) -> None:
    """Checks that a part of the module has weights of the same names and shapes in both stages."""
    start_weights = start.weights.get(place, {})
    advice = "set model.encoder and model.head as they were there"
    if place.startswith(_OBJECTIVES):
        advice = f"build {_named(place)} as it was there, or give it another name to let it start from scratch"
    names = sorted(own_weights.keys() ^ start_weights.keys())
    if names:
        raise InvalidValueError(
            f"{_WHERE}: expected weights of the same architecture in {start.described}, got {len(names)} that "
            f"only one of the two has ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''}); {advice}"
        )
    for name, weight in own_weights.items():
        shape, came = tuple(weight.shape), tuple(start_weights[name].shape)
        if shape == came:
            continue
        if shape and shape[0] == vocabulary and shape[1:] == came[1:]:
            advice = (
                "the vocabularies differ: views such as DeleteTokens(mark=...) add tokens. Keep those views, or "
                "start from the run's model folder with --model.encoder.model_name_or_path"
            )
        raise InvalidValueError(
            f"{_WHERE}: expected {name} of shape {shape}, got {came} in {start.described}; {advice}"
        )


def _take_vocabulary(module: ContrastiveModule, start: _Start) -> list[str]:
    """Loads a learned vocabulary of the first stage, or checks that the vocabularies are equal.

    Returns:
        Notes for the summary of the loaded parts.
    """
    tokenizer, start_tokenizer = module.encoder.tokenizer, start.tokenizer
    if tokenizer is None and start.learned is None:
        raise InvalidValueError(
            f"{_WHERE}: expected a tokenizer for weights that were trained with {start.named}, got null; set "
            f"--model.encoder.tokenizer_name_or_path {start.named}"
        )
    if tokenizer is None and start_tokenizer is not None and start.learned is not None:
        if missing_tokens := [
            token for token in module.by_task.new_tokens if token not in start_tokenizer.get_vocab()
        ]:
            raise InvalidValueError(
                f"{_WHERE}: expected views whose tokens are in the learned vocabulary, got "
                f"{', '.join(missing_tokens)}; set their mark to null, or give the first stage the same views"
            )
        module.set_tokenizer(start.learned)
        return ["its vocabulary"]
    if tokenizer is None or start_tokenizer is None:
        return [f"not compared: the vocabulary, for {start.named} isn't there"]
    numbers = tokenizer.get_vocab()
    if any(numbers.get(token) != number for token, number in start_tokenizer.get_vocab().items()):
        raise InvalidValueError(
            f"{_WHERE}: expected the vocabulary that the weights were trained with ({start.named}), got a "
            "different vocabulary; set model.encoder as in that training"
        )
    return []
