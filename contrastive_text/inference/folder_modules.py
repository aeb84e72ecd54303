"""Transformer and pooling of a model folder: written and read.

Written are the names of sentence-transformers' older versions, read are these and version 6's own.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedTokenizerBase

from contrastive_text.core.class_paths import resolve
from contrastive_text.core.errors import ContrastiveTextError, InvalidValueError, first_line
from contrastive_text.core.libraries import is_failure
from contrastive_text.core.specs import part_spec
from contrastive_text.core.storage.manifests import MODULES, TODO
from contrastive_text.core.storage.records import Record
from contrastive_text.data import TextTokenizer
from contrastive_text.data.token_rows import collate_texts
from contrastive_text.encoders import TransformerEncoder
from contrastive_text.encoders.adapters import write_adapters
from contrastive_text.encoders.embedder import Embedder
from contrastive_text.encoders.loading import build_model
from contrastive_text.encoders.networks import longest_row
from contrastive_text.encoders.shared_use import evaluating
from contrastive_text.inference.folder_files import ELSEWHERE, read_record, write_json
from contrastive_text.inference.model_parts import ModelParts
from contrastive_text.inference.pooling import make_pooler
from contrastive_text.inference.transformer_settings import (
    TRANSFORMER_SETTINGS,
    TransformerSettings,
    read_transformer_settings,
)
from contrastive_text.poolers import (
    CLSPooler,
    ConcatPooler,
    LastTokenPooler,
    LastTwoPooler,
    MaxPooler,
    MeanPooler,
    MeanSqrtLengthPooler,
    Pooler,
    WeightedMeanPooler,
)

_POOLERS: dict[str, type[Pooler]] = {
    "cls": CLSPooler,
    "max": MaxPooler,
    "mean": MeanPooler,
    "mean_sqrt_len_tokens": MeanSqrtLengthPooler,
    "weightedmean": WeightedMeanPooler,
    "lasttoken": LastTokenPooler,
}
"""Name of a pooling mode -> its pooler here, in the order in which older versions put several side by side."""
_MODE = "pooling_mode"
_FEATURES = ("embedding_dimension", "word_embedding_dimension")
"""The keys of a vector's number of features, of today and of older versions."""
_FLAG = (
    {mode: f"{_MODE}_{mode}" for mode in _POOLERS}
    | {mode: f"{_MODE}_{mode}_tokens" for mode in ("max", "mean", "weightedmean")}
    | {"cls": f"{_MODE}_cls_token"}
)
"""Name of a pooling mode -> its flag in older versions."""
_CONSERT_S = "pooling_mode_mean_last_2_tokens"
"""The flag that ConSERT's copy of sentence-transformers has beside them: the mean over the last two layers."""
_INCLUDE_PROMPT = "include_prompt"


class Kind(NamedTuple):
    """A module of a folder that every model has once.

    Args:
        name: Its class in sentence-transformers, and the end of its folder's name.
        write: Writes a model's module into its folder; returns its class path if the name doesn't tell it.
        read: From a module's folder and class path to its content.
    """

    name: str
    write: Callable[[Path, ModelParts], str | None]
    read: Callable[[Path, str], Any]  # Any: of each kind its own


class Network(NamedTuple):
    """The network of a folder.

    Args:
        encoder: The network with its tokenizer.
        max_length: Longest text in tokens; None for no limit.
        settings: All that the folder says of it.
    """

    encoder: TransformerEncoder
    max_length: int | None
    settings: TransformerSettings


def check_loadable(encoder: TransformerEncoder, where: str) -> None:
    """Checks that an encoder's own architecture could load its weights again, as with layers put in it could not.

    Args:
        encoder: The encoder that is to be saved.
        where: What errors begin with.

    Raises:
        ValueError: Weights of other names or shapes than those of a fresh model of its configuration.
    """
    with torch.device("meta"):
        fresh = build_model(encoder.model.config).state_dict()
    held = {name: weight.shape for name, weight in encoder.plain_state().items()}
    other = [name for name in {**held, **fresh} if name not in fresh or held.get(name) != fresh[name].shape]
    if other:
        raise InvalidValueError(
            f"{where}: expected an encoder with the weights of {encoder.model.config.model_type}, got others "
            f"({', '.join(other[:3])}{', ...' * (len(other) > 3)}), which no saved folder can hold; name "
            "adapters as encoder.adapters, merge those put in by hand (in peft: merge_and_unload), or leave "
            "ExportModel out"
        )


def _write_network(folder: Path, parts: ModelParts) -> None:
    if parts.encoder.tokenizer is None:
        raise InvalidValueError("save_pretrained: expected an encoder with a tokenizer, got none; train it first")
    check_loadable(parts.encoder, where="save_pretrained")
    plain = parts.encoder.without_adapters(merge=False)
    plain.save_network(folder)
    if parts.encoder.adapters is not None:
        write_adapters(folder, parts.encoder.model, parts.encoder.model_name_or_path)
    parts.encoder.tokenizer.save_pretrained(folder)
    _write_padding(folder / "tokenizer_config.json", parts.encoder.tokenizer)
    lengths = {"query_length": parts.query_length, "document_length": parts.document_length}
    settings = {"max_seq_length": parts.max_length, "do_lower_case": False}
    settings |= {name: length for name, length in lengths.items() if length is not None}
    write_json(folder / TRANSFORMER_SETTINGS, settings | dict(parts.settings.get(TRANSFORMER_SETTINGS, {})))


def _write_padding(path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """Names what sentence-transformers pads with, and the right side, where tokens have their places of here."""
    names = (tokenizer.pad_token, tokenizer.eos_token, tokenizer.bos_token, tokenizer.unk_token)
    token = next((name for name in names if name is not None), None)
    padding = {"padding_side": "right"} | ({} if token is None else {"pad_token": token})
    if (tokenizer.pad_token, tokenizer.padding_side) != (token, "right"):
        write_json(path, dict(read_record(path).values) | padding)


def _read_network(folder: Path, class_path: str) -> Network:  # noqa: ARG001
    settings = read_transformer_settings(folder)
    encoder = TransformerEncoder(str(folder))
    _check_vocabulary(encoder, folder)
    _check_side(encoder, folder)
    limit = encoder.limit
    if limit is not None and settings.longest > limit and encoder.tokenizer is not None:
        # As in sentence-transformers, the Transformer's settings hold in place of the tokenizer's.
        encoder.tokenizer.model_max_length = settings.longest
        encoder.limit = longest_row(encoder.model, encoder.tokenizer)
    _check_runs(encoder, folder)
    wanted = settings.max_length or limit
    return Network(encoder, min(filter(None, (wanted, encoder.limit)), default=None), settings)


def _check_side(encoder: TransformerEncoder, folder: Path) -> None:
    """Checks that long texts are cut at their end."""
    if encoder.tokenizer is not None and encoder.tokenizer.truncation_side != "right":
        raise InvalidValueError(
            f"{folder / 'tokenizer_config.json'}: truncation_side: expected 'right', got "
            f"{encoder.tokenizer.truncation_side!r}; {ELSEWHERE}"
        )


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
    return parts.pooler is not None and bool(_modes(parts.pooler)) and parts.prompts.is_plain


def _modes(pooler: Pooler) -> list[str]:
    """Returns sentence-transformers' names of a pooler's modes; none for a pooler that it doesn't have."""
    members = pooler.poolers if type(pooler) is ConcatPooler else [pooler]
    names = [next((name for name, cls in _POOLERS.items() if type(each) is cls), None) for each in members]
    known = [name for name in names if name is not None]
    return known if len(known) == len(names) else []


def _write_pooler(folder: Path, parts: ModelParts) -> str | None:
    """Writes a pooler's settings; what sentence-transformers can't express under its class path."""
    assert parts.pooler is not None
    left_out = {} if parts.prompts.pooled else {_INCLUDE_PROMPT: False}
    if not is_plain(parts):
        spec = part_spec(parts.pooler, "pooler")
        write_json(folder / "config.json", left_out | spec["init_args"])
        return str(spec["class_path"])
    modes = _modes(parts.pooler)
    config: dict[str, object] = {_FEATURES[0]: parts.encoder.features, "pooling_mode": modes}
    if modes == [mode for mode in _POOLERS if mode in modes]:  # older versions have this order alone
        flags = {_FLAG[mode]: mode in modes for mode in _POOLERS}
        config = {_FEATURES[1]: parts.encoder.features, **flags}
    write_json(folder / "config.json", config | left_out)
    return None


def _read_pooler(folder: Path, class_path: str) -> tuple[Pooler, bool]:
    """Returns the pooler, and whether it reads the tokens of a prompt."""
    path = folder / "config.json"
    if class_path.startswith("sentence_transformers."):
        return _pooling(read_record(path))
    return _own_pooler(class_path, path)


def _pooling(config: Record) -> tuple[Pooler, bool]:
    if not any(key in config for key in _FEATURES):  # sentence-transformers needs it too
        raise config.refusal("the number of features", None, _FEATURES[0])
    named = config.values.get(_MODE)
    modes = [named] if isinstance(named, str) else config.texts(_MODE, None)
    if modes is None:
        flags = [key for key in config if key.startswith(f"{_MODE}_") and config.flag(key, False)]
        if flags == [_CONSERT_S]:
            return LastTwoPooler(), config.flag(_INCLUDE_PROMPT, True)
        known = [mode for mode in _POOLERS if _FLAG[mode] in flags]
        modes = known + [flag for flag in flags if flag not in _FLAG.values()]
        modes = modes or ["mean"]  # theirs without a mode, or with none that is true
    if not modes or not all(mode in _POOLERS for mode in modes):
        expected, others = (
            f"pooling modes of {', '.join(_POOLERS)}",
            [mode for mode in modes if mode not in _POOLERS],
        )
        raise InvalidValueError(
            f"{config.where}: {_MODE}: expected {expected}, got {', '.join(others) or 'none'}; {ELSEWHERE}"
        )
    poolers = [_POOLERS[mode]() for mode in modes]
    pooler = poolers[0] if len(poolers) == 1 else ConcatPooler(poolers)
    return pooler, config.flag(_INCLUDE_PROMPT, True)


def _own_pooler(class_path: str, path: Path) -> tuple[Pooler, bool]:
    """Makes a pooler of ours, or of a module that is imported or trusted; a folder can name no other code."""
    where = path.parent.parent / MODULES
    config = read_record(path)
    pooled = config.flag(_INCLUDE_PROMPT, True)
    arguments = {name: value for name, value in config.values.items() if name != _INCLUDE_PROMPT}
    return make_pooler(resolve(class_path, Pooler, str(where)), arguments, str(path), TODO), pooled


NETWORK = Kind("Transformer", write=_write_network, read=_read_network)
POOLER = Kind("Pooling", write=_write_pooler, read=_read_pooler)
