"""Network and pooler of a model folder: written and read with their settings.

Written are the names of sentence-transformers' older versions. Read are these and the names of version 6.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import PreTrainedTokenizerBase

from contrastive_text.core.config.class_paths import resolve
from contrastive_text.core.config.specs import part_spec
from contrastive_text.core.errors import ContrastiveTextError, InvalidValueError, first_line
from contrastive_text.core.libraries import is_failure
from contrastive_text.core.storage.manifests import MODULES, TODO
from contrastive_text.core.storage.records import Record
from contrastive_text.data import TextTokenizer
from contrastive_text.data.collator import collate_texts
from contrastive_text.encoders import Embedder, TransformerEncoder
from contrastive_text.encoders.adapters import write_adapters
from contrastive_text.encoders.loading import build_model
from contrastive_text.encoders.networks import longest_row
from contrastive_text.encoders.shared_use import evaluating
from contrastive_text.inference.model_parts import ModelParts, make_pooler
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

ELSEWHERE = "load this model with sentence-transformers"
"""Advice for a setting that has no equal here."""
TRANSFORMER_SETTINGS = "sentence_bert_config.json"
_OLDER = ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
_NAMES = (TRANSFORMER_SETTINGS, *(f"sentence_{kind}_config.json" for kind in _OLDER))
_TASK = "feature-extraction"
_TEXT = {"method": "forward", "method_output_name": "last_hidden_state"}
_FROM_THE_CALL = {"trust_remote_code", "token", "cache_dir", "revision", "subfolder", "local_files_only"}
"""Arguments of ``from_pretrained`` that sentence-transformers takes from its caller alone."""
_OF_NETWORK = {"attn_implementation", "dtype", "torch_dtype", "device_map", "low_cpu_mem_usage"}
_OF_TOKENIZER = {"model_max_length", "use_fast"}
_OF_CONFIG = {"use_cache", "output_hidden_states", "output_attentions"}
_ARGUMENTS = {
    "model_args": _OF_NETWORK,
    "model_kwargs": _OF_NETWORK,
    "tokenizer_args": _OF_TOKENIZER,
    "processor_kwargs": _OF_TOKENIZER,
    "config_args": _OF_CONFIG,
    "config_kwargs": _OF_CONFIG,
}
"""Key of older and newer versions -> the arguments under it that change no vector, or are used here."""
_PROCESSING = {"padding", "pad_to_multiple_of", "logits_to_keep", "verbose", "max_length", "truncation"}
"""Arguments of a tokenizer's call that change no vector, or are used here."""
_POOLERS: dict[str, type[Pooler]] = {
    "cls": CLSPooler,
    "max": MaxPooler,
    "mean": MeanPooler,
    "mean_sqrt_len_tokens": MeanSqrtLengthPooler,
    "weightedmean": WeightedMeanPooler,
    "lasttoken": LastTokenPooler,
}
"""Name of a pooling mode -> its pooler here, in the order in which older versions concatenate several."""
_MODE = "pooling_mode"
_FEATURES = ("embedding_dimension", "word_embedding_dimension")
"""Keys of a vector's number of features, in newer and older versions."""
_FLAG = (
    {mode: f"{_MODE}_{mode}" for mode in _POOLERS}
    | {mode: f"{_MODE}_{mode}_tokens" for mode in ("max", "mean", "weightedmean")}
    | {"cls": f"{_MODE}_cls_token"}
)
"""Name of a pooling mode -> its flag in older versions."""
_CONSERT_S = "pooling_mode_mean_last_2_tokens"
"""A further flag of ConSERT's copy of sentence-transformers: the mean over the last two layers."""
_INCLUDE_PROMPT = "include_prompt"


def read_record(path: Path) -> Record:
    """Reads a JSON file of a model folder, which must exist."""
    if not path.exists():
        raise InvalidValueError(f"{path}: expected a file, got none; the folder is damaged, save it again")
    return Record.read(path, TODO)


def write_json(path: Path, content: object) -> None:
    """Writes a JSON file of a model folder."""
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


class TransformerSettings(NamedTuple):
    """Settings of a folder's network: ``sentence_bert_config.json`` and its older names.

    Each key that sentence-transformers reads and that changes vectors is used, or refused by its name.

    Args:
        max_length: Longest text in tokens; None for the tokenizer's limit.
        query_length: Longest query; None for ``max_length``.
        document_length: Longest document; None for ``max_length``.
    """

    max_length: int | None = None
    query_length: int | None = None
    document_length: int | None = None


def read_transformer_settings(folder: Path) -> TransformerSettings:
    """Reads the settings of a folder, from the first file that isn't empty.

    Raises:
        ValueError: A key with which sentence-transformers would give other vectors than this library.
    """
    records = (Record.read(path, TODO) for path in map(folder.joinpath, _NAMES) if path.exists())
    record = next((each for each in records if each.values), None)
    if record is None:
        return TransformerSettings()
    if (task := record.text("transformer_task", _TASK)) != _TASK:
        raise record.refusal(repr(_TASK), task, "transformer_task", ELSEWHERE)
    for key in ("query_expansion", "tokenizer_name_or_path"):
        if key in record:
            raise record.refusal("null", record.values[key], key, ELSEWHERE)
    _check_modalities(record)
    length = record.integer("max_seq_length", None, least=1)
    for key, known in _ARGUMENTS.items():
        arguments = record.record(key, {})
        for name in arguments:
            if name not in known | _FROM_THE_CALL:
                raise arguments.refusal("no such argument", arguments.values[name], name, ELSEWHERE)
        length = arguments.integer("model_max_length", length, least=1)
    query, document = (record.integer(key, None, least=1) for key in ("query_length", "document_length"))
    if (cut := _cut(record.record("processing_kwargs", {}))) is not None:  # also for queries and documents
        length, query, document = cut, None, None
    record.flag("do_lower_case", False)  # used by the tokenizer's loader
    return TransformerSettings(length, query, document)


def _check_modalities(record: Record) -> None:
    """Checks that texts enter the network unchanged, and that its output is the last layer's vectors."""
    if "modality_config" not in record:
        return
    config = record.record("modality_config")
    if "message" in config:  # a chat template around texts
        raise config.refusal("texts without a chat template", "message", todo=ELSEWHERE)
    text = config.record("text")
    for key, expected in _TEXT.items():
        value = text.values.get(key)
        if value not in (expected, [expected]):
            raise text.refusal(repr(expected), value, key, ELSEWHERE)
    if (name := record.text("module_output_name")) != "token_embeddings":
        raise record.refusal("'token_embeddings'", name, "module_output_name", ELSEWHERE)


def _cut(processing: Record) -> int | None:
    """Checks the arguments of the tokenizer's call. Returns the length at which it cuts, or None."""
    common = processing.record("common", {})
    for name in common:
        if (name, common.values[name]) != ("return_tensors", "pt"):
            raise common.refusal("no such argument", common.values[name], name, ELSEWHERE)
    text = processing.record("text", {})
    for name in text:
        if name not in _PROCESSING:
            raise text.refusal("no such argument", text.values[name], name, ELSEWHERE)
    truncation = text.values.get("truncation", True)
    if truncation not in (True, "longest_first", "only_first"):
        raise text.refusal("true", truncation, "truncation", ELSEWHERE)
    return text.integer("max_length", None, least=1)


def check_loadable(encoder: TransformerEncoder, where: str) -> None:
    """Checks that the architecture of an encoder can load its weights again, which inserted layers prevent.

    Args:
        encoder: The encoder to be saved.
        where: Beginning of errors.

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


def write_network(folder: Path, parts: ModelParts) -> None:
    """Writes the network of a model with its tokenizer, and its adapters if it has any."""
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
    write_json(folder / TRANSFORMER_SETTINGS, settings)


def _write_padding(path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """Names the padding token for sentence-transformers, and the right side, for the positions of our rows."""
    names = (tokenizer.pad_token, tokenizer.eos_token, tokenizer.bos_token, tokenizer.unk_token)
    token = next((name for name in names if name is not None), None)
    padding = {"padding_side": "right"} | ({} if token is None else {"pad_token": token})
    if (tokenizer.pad_token, tokenizer.padding_side) != (token, "right"):
        write_json(path, dict(read_record(path).values) | padding)


def read_network(folder: Path) -> tuple[TransformerEncoder, int | None, TransformerSettings]:
    """Returns the network of a folder with its tokenizer, its longest text in tokens, and its settings."""
    settings = read_transformer_settings(folder)
    encoder = TransformerEncoder(str(folder))
    tokenizer = encoder.tokenizer
    assert tokenizer is not None, "an encoder of a folder has its tokenizer"
    if set(tokenizer.get_vocab()) <= set(
        tokenizer.all_special_tokens
    ):  # Transformers invents it if it is missing
        raise InvalidValueError(
            f"{folder}: expected a tokenizer (tokenizer.json, or the files of its vocabulary), got none; save it "
            "beside the weights with tokenizer.save_pretrained"
        )
    if tokenizer.truncation_side != "right":
        raise InvalidValueError(
            f"{folder / 'tokenizer_config.json'}: truncation_side: expected 'right', got "
            f"{tokenizer.truncation_side!r}; {ELSEWHERE}"
        )
    limit = encoder.limit
    longest = max(length or 0 for length in settings)
    if limit is not None and longest > limit:
        # As in sentence-transformers, the settings override the tokenizer's limit.
        tokenizer.model_max_length = longest
        encoder.limit = longest_row(encoder.model, tokenizer)
    _check_runs(encoder, folder)
    wanted = settings.max_length or limit
    return encoder, min(filter(None, (wanted, encoder.limit)), default=None), settings


def _check_runs(encoder: TransformerEncoder, folder: Path) -> None:
    """Checks that an encoder takes a text: some damaged settings only show with the first text."""
    assert encoder.tokenizer is not None
    try:
        tokenizer = TextTokenizer(encoder.tokenizer, encoder.limit)
        # A vector that isn't finite, for example, is reported by the call that needs it.
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
    """Returns whether sentence-transformers can express a model's pooler and prompts, and so loads its folder."""
    return parts.pooler is not None and bool(_modes(parts.pooler)) and parts.prompts.is_plain


def _modes(pooler: Pooler) -> list[str]:
    """Returns sentence-transformers' names of a pooler's modes; empty for a pooler that it doesn't have."""
    members = pooler.poolers if type(pooler) is ConcatPooler else [pooler]
    names = [next((name for name, cls in _POOLERS.items() if type(each) is cls), None) for each in members]
    known = [name for name in names if name is not None]
    return known if len(known) == len(names) else []


def write_pooler(folder: Path, parts: ModelParts) -> str | None:
    """Writes a pooler's settings. Returns its class path if sentence-transformers can't express it."""
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


def read_pooler(folder: Path, class_path: str) -> tuple[Pooler, bool]:
    """Returns the pooler, and whether it reads the tokens of a prompt.

    A class outside of sentence-transformers is one of ours, or of a module that is imported or trusted. A folder
    can name no other code.
    """
    config = read_record(folder / "config.json")
    pooled = config.flag(_INCLUDE_PROMPT, True)
    if class_path.startswith("sentence_transformers."):
        return _pooler_of_modes(config), pooled
    arguments = {name: value for name, value in config.values.items() if name != _INCLUDE_PROMPT}
    cls = resolve(class_path, Pooler, str(folder.parent / MODULES))
    return make_pooler(cls, arguments, config.where, TODO), pooled


def _pooler_of_modes(config: Record) -> Pooler:
    if not any(key in config for key in _FEATURES):  # sentence-transformers needs it too
        raise config.refusal("the number of features", None, _FEATURES[0])
    named = config.values.get(_MODE)
    modes = [named] if isinstance(named, str) else config.texts(_MODE, None)
    if modes is None:
        flags = [key for key in config if key.startswith(f"{_MODE}_") and config.flag(key, False)]
        if flags == [_CONSERT_S]:
            return LastTwoPooler()
        known = [mode for mode in _POOLERS if _FLAG[mode] in flags]
        modes = known + [flag for flag in flags if flag not in _FLAG.values()]
        modes = modes or ["mean"]  # their default, also if no flag is true
    others = [mode for mode in modes if mode not in _POOLERS]
    if others or not modes:
        raise InvalidValueError(
            f"{config.where}: {_MODE}: expected pooling modes of {', '.join(_POOLERS)}, got "
            f"{', '.join(others) or 'none'}; {ELSEWHERE}"
        )
    poolers = [_POOLERS[mode]() for mode in modes]
    return poolers[0] if len(poolers) == 1 else ConcatPooler(poolers)
