"""A second stage: a module that starts from the weights of a run before, or of a saved model."""

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
    """What a module is to start from.

    Args:
        described: Where it comes from.
        weights: Name of a weight, as the module has it -> its value.
        left_out: What is not taken over in any case.
        tokenizer: What the weights were trained with; None if it can't be found any more.
        named: Its name, for messages.
        learned: As JSON, where it was learned from a corpus.
        objectives: Name of an objective -> its arguments, as a configuration has them.
        base: Identity of the weights under its adapters; None without adapters.
    """

    described: str
    weights: Mapping[str, Tensor]
    left_out: tuple[str, ...]
    tokenizer: PreTrainedTokenizerBase | None
    named: str
    learned: str | None = None
    objectives: Mapping[str, Any] = field(default_factory=dict)  # Any: what YAML can hold
    base: str | None = None


def load_initial_weights(module: ContrastiveModule, path: str | Path, keep_heads: bool = False) -> str:
    """Loads the weights of an earlier run into a module, before it is trained.

    The encoder's weights come, those of the module's head and of its token head where both have one, and the
    vocabulary that was learned from a corpus. The objectives keep the weights they were built with: the heads of
    the first stage are thrown away, unless they are to be kept.

    Args:
        module: What a second stage will train; of the encoder's architecture.
        path: A ``.ckpt`` file; the folder of a run, for its best checkpoint; or a saved model.
        keep_heads: Whether an objective that both stages have, by its name, goes on with its weights: its head,
            its layers, a temperature that it learns.

    Returns:
        What was loaded, what starts at random and what was left out, for ``RunSummary(starts_from=...)``.

    Raises:
        FileNotFoundError: There is nothing at the path.
        ValueError: A damaged file, a folder without a run or with several, or weights of another architecture, of
            other widths or of another vocabulary. Or heads to keep where no objective has any, or one has others.
    """
    saved_model = Path(path, MODULES).is_file()
    predicts = bool(_at(_TOKEN_HEAD, _tensors(module.state_dict())))
    start = _saved_model(Path(path), predicts) if saved_model else _checkpoint(best_checkpoint(path, _WHERE))
    _check_base(module, start)
    own = _tensors(module.without_base(module.state_dict()))
    taken = {name for name in _KEPT if _at(name, own) and _at(name, start.weights)} | {"encoder"}
    taken |= _heads(module, own, start) if keep_heads else set()
    for place in sorted(taken):
        _check_shapes(_at(place, start.weights), _at(place, own), start, place, module.encoder.vocabulary_size)
    given = {name: weight for name, weight in start.weights.items() if _place(name) in taken}
    said = _take_vocabulary(module, start)
    kept = {name: weight for name, weight in given.items() if name.startswith(_OBJECTIVES)}
    module.load_state_dict({name: given[name] for name in given if name not in kept}, strict=False)
    module.by_task.build_networks(module.embedder)  # they begin as the encoder does, unless they are kept
    module.load_state_dict(kept, strict=False)
    here, there = (dict.fromkeys(map(_place, weights)) for weights in (own, start.weights))
    loaded = [_named(place) for place in here if place in taken]
    fresh = [_named(place) for place in here if place not in taken and place != _MOMENTUM]
    left = [_named(place) for place in there if place not in taken] + [*start.left_out]
    lines = [start.described, f"loaded: {', '.join(loaded + said)}"]
    lines += [f"starts anew: {', '.join(fresh)}"] if fresh else []
    lines += [f"starts as a copy: {_NAMES[_MOMENTUM]}"] if _MOMENTUM in here else []
    lines += [f"left out of it: {', '.join(left)}"] if left else []
    return "\n".join(lines)


def _heads(module: ContrastiveModule, own: Mapping[str, Tensor], start: _Start) -> set[str]:
    """Returns the places of the objectives that both stages have with weights, of the same classes."""
    mine, theirs = (
        {_place(name) for name in weights if name.startswith(_OBJECTIVES)} for weights in (own, start.weights)
    )
    if not mine & theirs:
        names = [", ".join(sorted(map(_named, each))) or "none" for each in (theirs, mine)]
        raise InvalidValueError(
            f"--keep_heads: expected an objective with weights of the same name in both stages, got {names[0]} "
            f"in {start.described} and {names[1]} here; name the run and not its model, or leave --keep_heads out"
        )
    for place in sorted(mine & theirs):
        name = place.removeprefix(_OBJECTIVES)
        before, now = _classes(start.objectives, name), _classes(module.hparams["objectives"], name)
        if before != now:
            raise InvalidValueError(
                f"--keep_heads: expected the classes of objective {name} as they were before, {before}, got "
                f"{now}; give it those, or another name to let its head start anew"
            )
    return mine & theirs


def _classes(objectives: object, name: str) -> tuple[str, ...] | None:
    """Returns the classes of an objective's outputs, in their order; None where it has none."""
    part = objectives.get(name) if isinstance(objectives, Mapping) else None
    arguments = (part or {}).get("init_args", {})
    if "objective" in arguments:  # that of a wrapper
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


def _place(name: str) -> str:
    """Returns the part of the module that a weight belongs to: of ``_KEPT``, or an objective."""
    if name.startswith(_OBJECTIVES):
        return ".".join(name.split(".")[:2])
    return _TOKEN_HEAD if name.startswith(f"{_TOKEN_HEAD}.") else name.partition(".")[0]


def _named(place: str) -> str:
    return _NAMES.get(place, place.replace(_OBJECTIVES, "objective "))


def _at(place: str, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: weight for name, weight in weights.items() if _place(name) == place}


def _tensors(state: Mapping[str, object]) -> dict[str, Tensor]:
    """Returns the weights of a module without what belongs to a run: the queues of objectives."""
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}


def _checkpoint(path: Path) -> _Start:
    read = read_checkpoint(path)
    weights = {
        name: weight
        for name, weight in _tensors(read.weights).items()
        if _place(name) in _KEPT or name.startswith(_OBJECTIVES)
    }
    others = [place for place in map(_place, read.weights) if not _at(place, weights)]
    encoder = read.model.get("encoder", {}).get("init_args", {})
    named = str(encoder.get("tokenizer_name_or_path") or encoder.get("model_name_or_path"))
    return _Start(
        described=read.described,
        weights=weights,
        left_out=tuple(dict.fromkeys(map(_named, others))),
        tokenizer=_found(named) if read.tokenizer is None else wrap_tokenizer(read.tokenizer),
        named=named if read.tokenizer is None else "one learned from the corpus",
        learned=read.tokenizer,
        objectives=read.model.get("objectives") or {},
        base=read.base,
    )


def _found(name: str) -> PreTrainedTokenizerBase | None:
    try:
        return load_tokenizer(name)
    except ValueError:  # the first stage's folder may be gone: the weights are in the checkpoint
        return None


def _saved_model(path: Path, with_token_head: bool) -> _Start:
    """Returns what a folder holds; its token head is only made where it is wanted."""
    parts = read_folder(path)
    weights = {f"encoder.model.{name}": weight for name, weight in parts.encoder.model.state_dict().items()}
    if parts.head is not None:
        weights |= {f"head.network.{name}": weight for name, weight in parts.head.state_dict().items()}
    has_token_head = any(
        str(name).endswith("ForMaskedLM") for name in parts.encoder.model.config.architectures or ()
    )
    if has_token_head and with_token_head:
        parts.encoder.build_token_head()
        weights |= {
            f"encoder.{name}": w for name, w in parts.encoder.state_dict().items() if "token_head." in name
        }
    return _Start(
        described=f"{path}: a saved model",
        weights=weights,
        left_out=(_NAMES[_TOKEN_HEAD],) if has_token_head and not with_token_head else (),
        tokenizer=parts.encoder.tokenizer,
        named=str(path),
    )


def _check_base(module: ContrastiveModule, start: _Start) -> None:
    own = module.encoder.base_identity
    if own == start.base:
        return
    wanted, got = (f"adapters on {base}" if base else "weights without adapters" for base in (own, start.base))
    advice = "give the encoder the adapters and the base that it had there"
    if own is None:
        advice = "name the run's model folder, into whose weights they are merged"
    elif start.base is None:
        advice = "name those weights by model.encoder.model_name_or_path: adapters begin on them"
    raise InvalidValueError(f"{_WHERE}: expected {wanted}, got {got} in {start.described}; {advice}")


def _check_shapes(
    given: Mapping[str, Tensor], wanted: Mapping[str, Tensor], start: _Start, place: str, vocabulary: int
) -> None:
    advice = "set model.encoder and model.head as they were there"
    if place.startswith(_OBJECTIVES):
        advice = f"build {_named(place)} as it was there, or give it another name to let it start anew"
    other = [name for name in wanted if name not in given] + [name for name in given if name not in wanted]
    if other:
        raise InvalidValueError(
            f"{_WHERE}: expected weights of the same architecture in {start.described}, got {len(other)} that "
            f"only one of the two has ({', '.join(other[:3])}{', ...' if len(other) > 3 else ''}); {advice}"
        )
    for name, weight in wanted.items():
        shape, came = tuple(weight.shape), tuple(given[name].shape)
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
    """Sees to the vocabulary that the weights were trained with; gives what was taken over of it."""
    own, theirs = module.encoder.tokenizer, start.tokenizer
    if own is None and start.learned is None:
        raise InvalidValueError(
            f"{_WHERE}: expected a tokenizer for weights that were trained with {start.named}, got none; set "
            f"--model.encoder.tokenizer_name_or_path {start.named}"
        )
    if own is None and theirs is not None and start.learned is not None:
        if lacking := [token for token in module.by_task.new_tokens if token not in theirs.get_vocab()]:
            raise InvalidValueError(
                f"{_WHERE}: expected views whose tokens are in the vocabulary that was learned before, got "
                f"{', '.join(lacking)}; leave out their mark, or give the first stage the same views"
            )
        module.adopt_tokenizer(start.learned)
        return ["its vocabulary"]
    if own is None or theirs is None:
        return [f"not compared: the vocabulary, for {start.named} isn't there"]
    numbers = own.get_vocab()
    if any(numbers.get(token) != number for token, number in theirs.get_vocab().items()):
        raise InvalidValueError(
            f"{_WHERE}: expected the vocabulary that the weights were trained with ({start.named}), got another "
            "one; set model.encoder as it was there"
        )
    return []
