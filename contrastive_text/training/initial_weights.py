"""A second stage: a module that starts from the weights of a run before, or of a saved model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from contrastive_text.core.checkpoints import best_checkpoint, read_checkpoint
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.model_files import MODULES
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
        left_out: What is not taken over.
        tokenizer: What the weights were trained with; None if it can't be found any more.
        named: Its name, for messages.
        learned: As JSON, where it was learned from a corpus.
    """

    described: str
    weights: Mapping[str, Tensor]
    left_out: tuple[str, ...]
    tokenizer: PreTrainedTokenizerBase | None
    named: str
    learned: str | None = None


def load_initial_weights(module: ContrastiveModule, path: str | Path) -> str:
    """Loads the weights of an earlier run into a module, before it is trained.

    The encoder's weights come, those of the module's head and of its token head where both have one, and the
    vocabulary that was learned from a corpus. The objectives keep the weights they were built with: the heads of
    the first stage are thrown away.

    Args:
        module: What a second stage will train; of the encoder's architecture.
        path: A ``.ckpt`` file; the folder of a run, for its best checkpoint; or a saved model.

    Returns:
        What was loaded, what starts at random and what was left out, for ``RunSummary(starts_from=...)``.

    Raises:
        FileNotFoundError: There is nothing at the path.
        ValueError: A damaged file, a folder without a run or with several, or weights of another architecture, of
            other widths or of another vocabulary.
    """
    saved_model = Path(path, MODULES).is_file()
    start = _saved_model(Path(path)) if saved_model else _checkpoint(best_checkpoint(path, _WHERE))
    own = {name: weight for name, weight in module.state_dict().items() if _place(name) in _KEPT}
    optional = {place for place in _KEPT[1:] if not (_of(place, own) and _of(place, start.weights))}
    wanted = {name: weight for name, weight in own.items() if _place(name) not in optional}
    given = {name: weight for name, weight in start.weights.items() if _place(name) not in optional}
    _check_shapes(given, wanted, start.described, module.encoder.vocabulary_size)
    said = _take_vocabulary(module, start)
    module.load_state_dict(given, strict=False)
    loaded = [_NAMES[place] for place in _KEPT if _of(place, given)]
    fresh = [_NAMES[place] for place in _KEPT if place in optional and _of(place, own)]
    fresh += [f"objective {name}" for name, part in module.objective_parts().items() if _has_weights(part)]
    left = [_NAMES[place] for place in _KEPT if place in optional and _of(place, start.weights)]
    left += start.left_out
    lines = [start.described, f"loaded: {', '.join(loaded + said)}"]
    lines += [f"starts anew: {', '.join(fresh)}"] if fresh else []
    lines += [f"left out of it: {', '.join(left)}"] if left else []
    return "\n".join(lines)


_TOKEN_HEAD = "encoder.token_head"
_KEPT = ("encoder", "head", _TOKEN_HEAD)
_NAMES = {"encoder": "encoder", "head": "head in use", _TOKEN_HEAD: "token head"}


def _place(name: str) -> str:
    return _TOKEN_HEAD if name.startswith(f"{_TOKEN_HEAD}.") else name.partition(".")[0]


def _of(place: str, weights: Mapping[str, Tensor]) -> bool:
    return any(_place(name) == place for name in weights)


def _has_weights(part: nn.Module) -> bool:
    return next(part.parameters(), None) is not None


def _checkpoint(path: Path) -> _Start:
    read = read_checkpoint(path)
    others = [name for name in read.weights if _place(name) not in _KEPT]
    objectives = dict.fromkeys(name.split(".")[1] for name in others if name.startswith("objectives."))
    left_out = [f"objective {name}" for name in objectives]
    left_out += dict.fromkeys(_place(name) for name in others if not name.startswith("objectives."))
    encoder = read.model.get("encoder", {}).get("init_args", {})
    named = str(encoder.get("tokenizer_name_or_path") or encoder.get("model_name_or_path"))
    return _Start(
        described=read.described,
        weights={name: weight for name, weight in read.weights.items() if _place(name) in _KEPT},
        left_out=tuple(left_out),
        tokenizer=_found(named) if read.tokenizer is None else wrap_tokenizer(read.tokenizer),
        named=named if read.tokenizer is None else "one learned from the corpus",
        learned=read.tokenizer,
    )


def _found(name: str) -> PreTrainedTokenizerBase | None:
    try:
        return load_tokenizer(name)
    except ValueError:  # the first stage's folder may be gone: the weights are in the checkpoint
        return None


def _saved_model(path: Path) -> _Start:
    parts = read_folder(path)
    weights = {f"encoder.model.{name}": weight for name, weight in parts.encoder.model.state_dict().items()}
    if parts.head is not None:
        weights |= {f"head.network.{name}": weight for name, weight in parts.head.state_dict().items()}
    return _Start(
        described=f"{path}: a saved model",
        weights=weights,
        left_out=(),
        tokenizer=parts.encoder.tokenizer,
        named=str(path),
    )


def _check_shapes(
    given: Mapping[str, Tensor], wanted: Mapping[str, Tensor], described: str, vocabulary: int
) -> None:
    other = [name for name in wanted if name not in given] + [name for name in given if name not in wanted]
    if other:
        raise InvalidValueError(
            f"{_WHERE}: expected weights of the same architecture in {described}, got {len(other)} that only one "
            f"of the two has ({', '.join(other[:3])}{', ...' if len(other) > 3 else ''}); set model.encoder and "
            "model.head as they were there"
        )
    for name, weight in wanted.items():
        shape, came = tuple(weight.shape), tuple(given[name].shape)
        if shape == came:
            continue
        advice = "set model.encoder and model.head as they were there"
        if shape and shape[0] == vocabulary and shape[1:] == came[1:]:
            advice = (
                "the vocabularies differ: views such as DeleteTokens(mark=...) add tokens. Keep those views, or "
                "start from the run's model folder with --model.encoder.model_name_or_path"
            )
        raise InvalidValueError(
            f"{_WHERE}: expected {name} of shape {shape}, got {came} in {described}; {advice}"
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
