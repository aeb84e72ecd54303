"""Reading and writing of the network and the pooler of a model folder, with their settings.

Settings are written with the key names of sentence-transformers before version 6. Both these names and the names
of version 6 can be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import PreTrainedTokenizerBase

from contrastive_text.core.config.class_paths import import_class
from contrastive_text.core.config.specs import build_part, part_spec
from contrastive_text.core.errors import ContrastiveTextError, InvalidValueError
from contrastive_text.core.libraries import read_errors_as
from contrastive_text.core.storage.manifests import MANIFEST_ADVICE, MODULES
from contrastive_text.core.storage.records import Record, write_json
from contrastive_text.data import TextTokenizer
from contrastive_text.data.batching import collate_texts
from contrastive_text.encoders import (
    AsymmetricEncoder,
    Embedder,
    SparseStaticEncoder,
    StaticEncoder,
    TransformerEncoder,
)
from contrastive_text.encoders.adapters import write_adapters
from contrastive_text.encoders.asymmetric import SIDES, SavedEncoder, is_saved
from contrastive_text.encoders.loading import build_model
from contrastive_text.encoders.networks import longest_row
from contrastive_text.encoders.shared_use import evaluating
from contrastive_text.encoders.static import read_tokenizer
from contrastive_text.inference.model_parts import ModelParts
from contrastive_text.poolers import (
    CLSPooler,
    ConcatPooler,
    LastTokenPooler,
    LastTwoPooler,
    MaxPooler,
    MeanPooler,
    MeanSqrtLengthPooler,
    Pooler,
    SpladePooler,
    WeightedMeanPooler,
)

ELSEWHERE = "load this model with sentence-transformers"
"""Advice for a setting of sentence-transformers that this library doesn't support."""
TRANSFORMER_SETTINGS = "sentence_bert_config.json"
"""Name of the file with the settings of the network."""
_OLDER = ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
_NAMES = (TRANSFORMER_SETTINGS, *(f"sentence_{kind}_config.json" for kind in _OLDER))
FEATURE_EXTRACTION, FILL_MASK = "feature-extraction", "fill-mask"
_OUTPUTS = {FEATURE_EXTRACTION: "last_hidden_state", FILL_MASK: "logits"}
"""Task of a transformer in sentence-transformers -> its output. The second task is that of ``SpladePooling``."""
_CALLER_ARGUMENTS = {"trust_remote_code", "token", "cache_dir", "revision", "subfolder", "local_files_only"}
"""Arguments of ``from_pretrained`` that only a caller can set: sentence-transformers ignores them in a folder."""
_NETWORK_ARGUMENTS = {"attn_implementation", "dtype", "torch_dtype", "device_map", "low_cpu_mem_usage"}
_TOKENIZER_ARGUMENTS = {"model_max_length", "use_fast"}
_CONFIG_ARGUMENTS = {"use_cache", "output_hidden_states", "output_attentions"}
_ARGUMENTS = {
    "model_args": _NETWORK_ARGUMENTS,
    "model_kwargs": _NETWORK_ARGUMENTS,
    "tokenizer_args": _TOKENIZER_ARGUMENTS,
    "processor_kwargs": _TOKENIZER_ARGUMENTS,
    "config_args": _CONFIG_ARGUMENTS,
    "config_kwargs": _CONFIG_ARGUMENTS,
}
"""Key of a record of arguments in a module's settings -> the arguments that are used or change no vector."""
_PROCESSING = {"padding", "pad_to_multiple_of", "logits_to_keep", "verbose", "max_length", "truncation"}
"""Arguments of a tokenizer's call that are used or change no vector."""
_POOLERS: dict[str, type[Pooler]] = {
    "cls": CLSPooler,
    "max": MaxPooler,
    "mean": MeanPooler,
    "mean_sqrt_len_tokens": MeanSqrtLengthPooler,
    "weightedmean": WeightedMeanPooler,
    "lasttoken": LastTokenPooler,
}
"""Name of a pooling mode -> class of its pooler, in the order in which older versions concatenate modes."""
_MODE = "pooling_mode"
_FEATURES = ("embedding_dimension", "word_embedding_dimension")
"""Keys of the number of features of a vector, in newer and older versions."""
_FLAG = (
    {mode: f"{_MODE}_{mode}" for mode in _POOLERS}
    | {mode: f"{_MODE}_{mode}_tokens" for mode in ("max", "mean", "weightedmean")}
    | {"cls": f"{_MODE}_cls_token"}
)
"""Name of a pooling mode -> key of its flag in older versions."""
_CONSERT_FLAG = "pooling_mode_mean_last_2_tokens"
"""Key of the flag that ConSERT's copy of sentence-transformers adds, for the mean over the last two layers."""
_INCLUDE_PROMPT = "include_prompt"


def read_record(path: Path) -> Record:
    """Reads a JSON file of a model folder. Raises ValueError if it is missing or damaged."""
    if not path.exists():
        raise InvalidValueError(
            f"{path}: expected a file of the model, got no file; the folder is damaged, save it again"
        )
    return Record.read(path, MANIFEST_ADVICE)


class TransformerSettings(NamedTuple):
    """Settings of a model folder's network, from ``sentence_bert_config.json`` or its older names.

    A key that changes vectors in sentence-transformers is used, or an error names it.

    Args:
        max_length: Longest text in tokens; None for the tokenizer's limit.
        query_length: Longest query; None for ``max_length``.
        document_length: Longest document; None for ``max_length``.
    """

    max_length: int | None = None
    query_length: int | None = None
    document_length: int | None = None


def read_transformer_settings(
    folder: Path, tasks: Sequence[str | None] = (FEATURE_EXTRACTION, None)
) -> TransformerSettings:
    """Reads the settings of a folder's network from the first settings file that isn't empty.

    Args:
        folder: Folder of the network.
        tasks: Values that ``transformer_task`` may have, the usual one first; None if it may be missing.

    Raises:
        ValueError: A key would give other vectors in sentence-transformers than in this library.
    """
    records = (Record.read(path, MANIFEST_ADVICE) for path in map(folder.joinpath, _NAMES) if path.exists())
    record = next((record for record in records if record.values), Record({}, str(folder), MANIFEST_ADVICE))
    _check_values(record, required=None not in tasks, transformer_task=tuple(tasks))
    _check_values(record, query_expansion=(None,), tokenizer_name_or_path=(None,))
    if "modality_config" in record:  # texts enter unchanged, and the output is the last layer's vectors
        config = record.record("modality_config")
        _check_values(config, message=(None,))  # a chat template around texts
        output = _OUTPUTS[tasks[0] or FEATURE_EXTRACTION]
        entry = config.record("text")
        _check_values(
            entry, required=True, method=("forward", ["forward"]), method_output_name=(output, [output])
        )
        _check_values(record, required=True, module_output_name=("token_embeddings",))
    length = record.integer("max_seq_length", None, least=1)
    for key, names in _ARGUMENTS.items():
        arguments = record.record(key, {})
        _check_names(arguments, names | _CALLER_ARGUMENTS)
        length = arguments.integer("model_max_length", length, least=1)
    query, document = (record.integer(key, None, least=1) for key in ("query_length", "document_length"))
    processing = record.record("processing_kwargs", {})
    common, text = processing.record("common", {}), processing.record("text", {})
    _check_names(common, {"return_tensors"})
    _check_values(common, return_tensors=("pt",))
    _check_names(text, _PROCESSING)
    _check_values(text, truncation=(True, "longest_first", "only_first"))
    if "max_length" in text:  # also for queries and documents
        length, query, document = text.integer("max_length", least=1), None, None
    record.flag("do_lower_case", False)  # only checked here; the tokenizer's loader uses it
    return TransformerSettings(length, query, document)


def _check_names(record: Record, names: set[str]) -> None:
    """Checks that a record has no other fields than those that are used or change no vector."""
    for name in record:
        if name not in names:
            raise record.refusal("no such argument", record.values[name], name, ELSEWHERE)


def _check_values(record: Record, required: bool = False, **allowed: tuple[object, ...]) -> None:
    """Checks that fields of a record have an allowed value, or are missing. The first value is the usual one."""
    for name, values in allowed.items():
        value = record.values.get(name)
        if (required or name in record.values) and value not in values:
            usual = "null" if values[0] is None else repr(values[0])
            raise record.refusal(usual, value, name, ELSEWHERE)


def check_loadable(encoder: SavedEncoder, where: str, lengths: Sequence[int | None] = ()) -> None:
    """Checks that a saved encoder can be loaded again, which layers that a user inserted prevent.

    Args:
        encoder: Encoder to save.
        where: Beginning of error messages.
        lengths: Longest query and longest document in tokens, which a ``StaticEmbedding`` doesn't have.

    Raises:
        ValueError: The names or shapes of the weights differ from a new model of the same configuration. A static
            model has ``lengths``.
    """
    if isinstance(encoder, AsymmetricEncoder):
        for side in (encoder.query, encoder.document):
            if is_saved(side):
                check_loadable(side, where)
        return
    if isinstance(encoder, StaticEncoder | SparseStaticEncoder):
        if any(lengths):
            raise InvalidValueError(
                f"{where}: expected one length limit of all texts of a static model, got query_length and "
                f"document_length of {' and '.join(map(str, lengths))}; set model.inference.max_length instead"
            )
        return
    with torch.device("meta"):
        expected = build_model(encoder.model.config).state_dict()
    shapes = {name: weight.shape for name, weight in encoder.plain_state().items()}
    names = [
        name
        for name in {**shapes, **expected}
        if name not in expected or shapes.get(name) != expected[name].shape
    ]
    if names:
        raise InvalidValueError(
            f"{where}: expected an encoder with the weights of {encoder.model.config.model_type}, got other "
            f"weights ({', '.join(names[:3])}{', ...' * (len(names) > 3)}), which a saved folder can't hold; "
            "name adapters as encoder.adapters, merge adapters that were added by hand (in peft: "
            "merge_and_unload), or remove ExportModel"
        )


def write_network(folder: Path, parts: ModelParts) -> None:
    """Writes the network of a model with its tokenizer, and its adapters if it has any."""
    if parts.encoder.tokenizer is None:
        raise InvalidValueError(
            "save_pretrained: expected an encoder with a tokenizer, got no tokenizer; train it first"
        )
    check_loadable(parts.encoder, "save_pretrained", (parts.query_length, parts.document_length))
    if isinstance(parts.encoder, StaticEncoder | SparseStaticEncoder):
        parts.encoder.save_network(folder, parts.max_length)
        return
    assert isinstance(parts.encoder, TransformerEncoder), "module_lists writes a Router"
    plain = parts.encoder.without_adapters(merge=False)
    plain.save_network(folder)
    if parts.encoder.adapters is not None:
        write_adapters(folder, parts.encoder.model, parts.encoder.model_name_or_path)
    save_tokenizer(parts.encoder.tokenizer, folder)
    lengths = {"query_length": parts.query_length, "document_length": parts.document_length}
    settings = {"max_seq_length": parts.max_length, "do_lower_case": False}
    settings |= {name: length for name, length in lengths.items() if length is not None}
    write_json(folder / TRANSFORMER_SETTINGS, settings)


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path, **settings: object) -> None:
    """Saves a tokenizer that sentence-transformers and Transformers 4 and 5 load.

    A padding token and ``padding_side: right`` give sentence-transformers our positions. Transformers 4 doesn't
    know the name that Transformers 5 gives to its general class, but both know the older name.

    Args:
        tokenizer: The tokenizer.
        folder: Folder of its files.
        settings: Further settings of ``tokenizer_config.json``.
    """
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    saved = dict(read_record(path).values)
    names = (tokenizer.pad_token, tokenizer.eos_token, tokenizer.bos_token, tokenizer.unk_token)
    token = next((name for name in names if name is not None), None)
    if (tokenizer.pad_token, tokenizer.padding_side) != (token, "right"):
        settings |= {"padding_side": "right"} | ({} if token is None else {"pad_token": token})
    if saved.get("tokenizer_class") == "TokenizersBackend":
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    if settings:
        write_json(path, saved | settings)


def read_static_settings(folder: Path) -> TransformerSettings:
    """Reads the length limit of a static model, at which its tokenizer truncates."""
    return TransformerSettings(read_tokenizer(folder)[2])


def read_static(folder: Path) -> tuple[StaticEncoder, int | None, TransformerSettings]:
    """Reads a ``StaticEmbedding`` from its folder; returns the same as ``read_network``."""
    encoder = StaticEncoder(str(folder))
    return encoder, encoder.truncation, TransformerSettings(encoder.truncation)


def read_sparse_static(folder: Path) -> tuple[SparseStaticEncoder, int | None]:
    """Reads a ``SparseStaticEmbedding`` from its folder. Returns it, and the longest text in tokens or None."""
    _check_values(read_record(folder / "config.json"), path=(None,))  # of a file with the weights
    encoder = SparseStaticEncoder.read(folder)
    return encoder, encoder.truncation


def read_network(
    folder: Path, tasks: Sequence[str | None] = (FEATURE_EXTRACTION, None)
) -> tuple[TransformerEncoder, int | None, TransformerSettings]:
    """Reads the network of a model folder. Returns encoder, longest text in tokens (or None), and settings.

    Args:
        folder: Folder of the network.
        tasks: See ``read_transformer_settings``.

    Raises:
        ValueError: The folder has no tokenizer, is damaged, or has a setting that this library doesn't support.
    """
    settings = read_transformer_settings(folder, tasks)
    encoder = TransformerEncoder(str(folder))
    tokenizer = encoder.tokenizer
    assert tokenizer is not None, "an encoder of a folder has its tokenizer"
    # If the files are missing, Transformers makes up a tokenizer of special tokens.
    if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
        raise InvalidValueError(
            f"{folder}: expected a tokenizer (tokenizer.json, or the files of its vocabulary), got no tokenizer; "
            "save it next to the weights with tokenizer.save_pretrained"
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
    lengths = (settings.max_length or limit, encoder.limit)
    return encoder, min(filter(None, lengths), default=None), settings


def _check_runs(encoder: TransformerEncoder, folder: Path) -> None:
    """Checks that an encoder can encode a text, because some damaged settings fail only then."""
    assert encoder.tokenizer is not None
    expected = f"{folder}: expected a network and a tokenizer that can encode a text"
    todo = "config.json or tokenizer.json is damaged, save the model again"
    # Errors of this library, such as a vector that isn't finite, are raised by a later call again.
    with read_errors_as(expected, todo), suppress(ContrastiveTextError), torch.no_grad(), evaluating(encoder):
        tokenizer = TextTokenizer(encoder.tokenizer, encoder.limit)
        texts = tokenizer.tokenize_with_template(["a", "a bird and a dog"])
        Embedder(encoder, MeanPooler()).pool(collate_texts(tokenizer, texts))


def is_loadable_elsewhere(parts: ModelParts) -> bool:
    """Returns True if sentence-transformers can load a model with its pooler and prompts."""
    if isinstance(encoder := parts.encoder, AsymmetricEncoder):
        sides = [(side, pooler) for side, pooler, _ in map(encoder.parts, SIDES)]
        return all(
            is_saved(side) and is_loadable_elsewhere(replace(parts, encoder=side, pooler=pooler))
            for side, pooler in sides
        )
    if isinstance(encoder, StaticEncoder):  # a ``StaticEmbedding`` gives means
        return type(parts.pooler) is MeanPooler and parts.prompts.is_plain and parts.prompts.pooled
    has_modes = parts.pooler is not None and bool(_modes(parts.pooler))
    return (has_modes and parts.prompts.is_plain) or is_sparse_elsewhere(parts)


def is_sparse_elsewhere(parts: ModelParts) -> bool:
    """Returns True if a model is a ``SparseEncoder`` of sentence-transformers."""
    has_layers = parts.head is not None or parts.normalize
    is_plain = parts.prompts.is_plain and parts.prompts.pooled
    is_sparse = type(parts.pooler) is SpladePooler or parts.encoder.is_sparse
    return is_sparse and is_plain and not has_layers


def _modes(pooler: Pooler) -> list[str]:
    """Returns the pooling modes of a pooler in sentence-transformers; empty if there are none."""
    members = pooler.poolers if type(pooler) is ConcatPooler else [pooler]
    names = {cls: name for name, cls in _POOLERS.items()}
    return [names[type(member)] for member in members] if all(type(member) in names for member in members) else []


def write_pooler(folder: Path, parts: ModelParts) -> str | None:
    """Writes a pooler's settings into its folder.

    Returns its class path if sentence-transformers has no such pooler.
    """
    assert parts.pooler is not None
    prompt_flag = {} if parts.prompts.pooled else {_INCLUDE_PROMPT: False}
    if not is_loadable_elsewhere(parts):
        spec = part_spec(parts.pooler, "pooler")
        write_json(folder / "config.json", prompt_flag | spec["init_args"])
        return str(spec["class_path"])
    if is_sparse_elsewhere(parts):
        settings = {"pooling_strategy": "max", "activation_function": "relu"}
        write_json(folder / "config.json", settings | {_FEATURES[1]: parts.encoder.vocabulary_size})
        return None
    modes = _modes(parts.pooler)
    config: dict[str, object] = {_FEATURES[0]: parts.encoder.features, "pooling_mode": modes}
    if modes == [mode for mode in _POOLERS if mode in modes]:  # the only order of older versions
        flags = {_FLAG[mode]: mode in modes for mode in _POOLERS}
        config = {_FEATURES[1]: parts.encoder.features, **flags}
    write_json(folder / "config.json", config | prompt_flag)
    return None


def read_pooler(folder: Path, class_path: str) -> tuple[Pooler, bool]:
    """Reads a pooler from its folder. Returns the pooler, and whether it pools the tokens of a prompt too.

    Args:
        folder: Folder of the pooler in the model folder.
        class_path: Class of sentence-transformers or of this library, or a class of a module that is imported
            already or trusted. Other classes are refused, so that a folder can't run code. Empty for the mean of
            a ``StaticEmbedding``, which has no pooler.

    Raises:
        ValueError: The settings are damaged, or the class isn't trusted.
    """
    if not class_path:
        return MeanPooler(), True
    config = read_record(folder / "config.json")
    pooled = config.flag(_INCLUDE_PROMPT, True)
    if class_path.startswith("sentence_transformers.sparse_encoder."):
        _check_values(config, pooling_strategy=("max",), activation_function=("relu",))
        return SpladePooler(), True
    if class_path.startswith("sentence_transformers."):
        return _pooler_of_modes(config), pooled
    arguments = {name: value for name, value in config.values.items() if name != _INCLUDE_PROMPT}
    cls = import_class(class_path, Pooler, str(folder.parent / MODULES))
    return build_part(cls, arguments, config.where, MANIFEST_ADVICE), pooled


def _pooler_of_modes(config: Record) -> Pooler:
    if not any(key in config for key in _FEATURES):  # sentence-transformers needs it too
        raise config.refusal("the number of features", None, _FEATURES[0])
    mode = config.values.get(_MODE)
    modes = [mode] if isinstance(mode, str) else config.texts(_MODE, None)
    if modes is None:
        flags = [key for key in config if key.startswith(f"{_MODE}_") and config.flag(key, False)]
        if flags == [_CONSERT_FLAG]:
            return LastTwoPooler()
        modes = [mode for mode in _POOLERS if _FLAG[mode] in flags]
        modes += [flag for flag in flags if flag not in _FLAG.values()]
        modes = modes or ["mean"]  # their default, also if no flag is true
    unknown = [mode for mode in modes if mode not in _POOLERS]
    if unknown or not modes:
        raise InvalidValueError(
            f"{config.where}: {_MODE}: expected pooling modes of {', '.join(_POOLERS)}, got "
            f"{', '.join(unknown) or 'no mode'}; {ELSEWHERE}"
        )
    poolers = [_POOLERS[mode]() for mode in modes]
    return poolers[0] if len(poolers) == 1 else ConcatPooler(poolers)
