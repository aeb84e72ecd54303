"""Models and tokenizers of Transformers: loaded whole, in float32, or refused with a reason."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from tokenizers import normalizers
from torch import Tensor, nn
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoConfig,
    AutoModelForMaskedLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from contrastive_text.core.errors import ContrastiveTextError, InvalidValueError, first_line
from contrastive_text.core.libraries import is_failure, quiet
from contrastive_text.core.misspelt import nearest_folder
from contrastive_text.core.storage.manifests import MODULES, TODO, check_whole, model_place
from contrastive_text.core.storage.records import Record, inside, read_json, records, shown
from contrastive_text.encoders.adapter_files import (
    NOT_BY_TRANSFORMERS,
    adapters_beside,
    merge_adapters,
    weights_source,
)
from contrastive_text.encoders.adapters import WeightsType
from contrastive_text.encoders.four_bits import loading_options, prepare
from contrastive_text.encoders.network_classes import (
    POOLER,
    NetworkClass,
    detach_pooler,
    network_class,
    pooler_layer,
    prepare_encoder,
    without_pooler,
)
from contrastive_text.encoders.tokenizer_files import check_tokenizer_file
from contrastive_text.encoders.weight_files import check_weight_files

_MODEL, _TOKENIZER = "encoder.model_name_or_path", "encoder.tokenizer_name_or_path"
_RECORDS = (
    "config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "model.safetensors.index.json", "pytorch_model.bin.index.json",
)  # fmt: skip
"""Mappings that Transformers reads of a folder."""
_COUNTS, _MOST_LAYERS = re.compile("layers|groups|experts|layer$"), 1000
"""Fields of a ``config.json`` that say how many parts are made one by one, and the most that any network has."""
TEXT_SETTINGS = "sentence_bert_config.json"
"""Settings of sentence-transformers for a network's texts: length limit and lower-casing."""
_WAY = "_implementation"
"""How a key ends that says by which code attention or experts are computed."""
_T = TypeVar("_T")


def _fetched(what: str, name: str, fetch: Callable[[], _T]) -> _T:
    """Returns what Transformers makes of a folder or a name on the hub; its errors are answers about that."""
    try:
        with quiet():
            return fetch()
    except ContrastiveTextError:
        raise
    except BaseException as error:  # of a damaged file nearly any
        if not is_failure(error):
            raise
        folder = Path(name)
        if folder.is_dir():
            listed = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
            answer = f"a whole model folder, got {name} with {listed}; {_said(error)}"
        else:
            answer = (
                f"a local model folder or a name on the Hugging Face hub, got {name!r}{nearest_folder(name)}; "
                f"there is no such folder, and the hub gave none: {_said(error)}"
            )
        raise InvalidValueError(f"{what}: expected {answer}") from error


def network_place(name: str) -> str:
    """Returns the folder of the network in the folder or the hub's copy of an embedding model, else the name.

    ``modules.json`` names it: the folder itself, or one inside of it such as ``0_Transformer``.
    """
    folder = model_place(name)
    if folder is None:
        return name
    path = folder / MODULES
    modules = records(read_json(path, TODO), of="modules", where=str(path), todo=TODO)
    return str(inside(folder, modules[0].text("path"), str(path))) if modules else name


def _check_files(name: str) -> None:
    """Checks that a folder is as it was saved, and its JSON files are JSON, before Transformers reads it."""
    folder = Path(name)
    if not folder.is_dir():
        return
    check_whole(folder)
    records = {file.name: Record.read(file, TODO) for file in map(folder.joinpath, _RECORDS) if file.exists()}
    for index in (record for name, record in records.items() if name.endswith(".index.json")):
        places = index.record("weight_map", {})
        for weight in places:
            if Path(places.text(weight)).name != places.text(weight):
                raise places.refusal("the name of a file beside it", places.values[weight], weight)
    if (config := records.get("config.json")) is not None:
        _check_implementations(str(folder / "config.json"), config.values)
        if type(config.values.get("pad_token_id")) is int:  # a list in some architectures
            config.integer("pad_token_id", least=0)
        for key in filter(_COUNTS.search, config):
            if type(config.values[key]) is int:  # nor is true one
                config.integer(key, most=_MOST_LAYERS)
    named = [file for kind in ("tokenizer.json", "*.safetensors", "*.bin") for file in folder.glob(kind)]
    for file in named:
        if not file.is_file():  # a pipe, or a link to nothing
            raise InvalidValueError(f"{file}: expected a file, got something else; {TODO}")


def _check_implementations(where: str, config: Mapping[str, object], inside: bool = False) -> None:
    """Checks for kernels that Transformers would fetch and run: a configuration names its own ways alone."""
    for key, value in config.items():
        if isinstance(value, Mapping):  # of an encoder inside of it, or a way for each of several
            _check_implementations(f"{where}: {key}", value, inside=inside or key.endswith(_WAY))
        elif (inside or key.endswith(_WAY)) and isinstance(value, str) and "/" in value:
            raise InvalidValueError(
                f"{where}: {key}: expected a way of computing that Transformers has, such as sdpa, got "
                f"{shown(value)}, which would be fetched and run; take it out"
            )


_COUNTED: dict[str, int] = {}
"""A configuration -> how many weights it speaks of: to count them takes as long as to load a small model."""


def _check_sizes(name: str, architecture: PreTrainedConfig) -> None:
    """Checks for numbers of a ``config.json`` that its weights can't have, which would fill the memory."""
    folder = Path(name)
    if not folder.is_dir():
        return
    weights = [file for kind in ("*.safetensors", "*.bin") for file in folder.glob(kind)]
    written = sum(file.stat().st_size for file in weights)
    if not weights:
        return  # answered by Transformers
    if getattr(architecture, "quantization_config", None) is None:  # else Transformers reads them with its scales
        check_weight_files(weights)

    def count() -> int:
        with torch.device("meta"):
            fresh: nn.Module = network_class(architecture).from_config(architecture)  # type: ignore[no-untyped-call]  # theirs
        return sum(weight.numel() for weight in fresh.parameters())

    read = architecture.to_json_string(use_diff=False)
    wanted = _COUNTED[read] = _COUNTED[read] if read in _COUNTED else _fetched(_MODEL, name, count)
    if wanted > 2 * written:  # half a byte a weight, in 4 bits, is the least there is
        raise InvalidValueError(
            f"{folder / 'config.json'}: expected the sizes of the weights beside it ({weights[0].name}, "
            f"{written:,} bytes in all), got those of {wanted:,} weights; {TODO}"
        )


def _check_layers(name: str, model: PreTrainedModel, left_over: Iterable[str]) -> None:
    """Checks for layers that are in the checkpoint and not in the model, and for layers with a matrix of zeros.

    Both come from damage or from a changed ``config.json``, and give vectors of another model. Heads that are
    left over, zero biases of any shape, tables of positions, and matrices of adapters are left alone.
    """
    stacks = [place for place, part in model.named_modules() if isinstance(part, nn.ModuleList)]
    inside = re.compile(rf"(?:^|\.)((?:{'|'.join(map(re.escape, stacks))})\.\d+)\.") if stacks else None
    present = {place for place, _ in model.named_modules()}
    found = {match[1] for key in left_over if inside is not None and (match := inside.search(key))}
    if more := sorted(found - present):
        raise InvalidValueError(
            f"{_MODEL}: expected the layers that config.json of {name} speaks of, got weights of more of them "
            f"({', '.join(more[:3])}{', ...' * (len(more) > 3)}); put back the number of layers it was saved with"
        )
    zero = [
        f"{place}.{key}"
        for place, part in model.named_modules()
        if place.startswith(tuple(f"{stack}." for stack in stacks)) and not isinstance(part, nn.Embedding)
        for key, weight in part.named_parameters(recurse=False)
        if weight.ndim == 2 and min(weight.shape) > 1 and "bias" not in key.split("_")
        if "lora" not in place and not weight[0].any() and not weight.any()
    ]
    if zero:
        raise InvalidValueError(
            f"{_MODEL}: expected weights in every layer of {name}, got matrices of zeros ({', '.join(zero[:3])}"
            f"{', ...' * (len(zero) > 3)}); the file is damaged, fetch or save it again"
        )


def _said(error: BaseException) -> str:
    line = first_line(error)
    return line if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: {line}"


def load_architecture(name: str | None, config: dict[str, Any] | None, dropout: float | None) -> PreTrainedConfig:
    """Returns the configuration of a network.

    Args:
        name: Folder or name on the hub; None where ``config`` is given.
        config: As in ``config.json``, with ``model_type``; Any: whatever the architecture wants.
        dropout: Probability for every dropout; None keeps the configuration's own.

    Raises:
        ValueError: Neither or both of name and config, no probability, an architecture that Transformers doesn't
            have, or a model that isn't there or is damaged.
    """
    if (name is None) == (config is None):
        raise InvalidValueError(
            "encoder: expected either model_name_or_path (pretrained) or config (random start), got "
            f"{'neither' if config is None else 'both'}; set --model.encoder.model_name_or_path, and the other "
            "to null"
        )
    if dropout is not None and not 0 <= dropout < 1:
        raise InvalidValueError(f"encoder.dropout: expected a probability in [0, 1) or null, got {dropout}")
    if config is not None:
        if "model_type" not in config:
            raise InvalidValueError(
                f"encoder.config: expected model_type (bert, roberta, ...), got {', '.join(config) or 'nothing'}"
            )
        _check_implementations("encoder.config", config)
        known = list(CONFIG_MAPPING.keys())
        if config["model_type"] not in known:
            near = ", ".join(get_close_matches(str(config["model_type"]), known)) or "bert, roberta, ..."
            raise InvalidValueError(
                f"encoder.config.model_type: expected an architecture of Transformers (nearest: {near}), "
                f"got {config['model_type']!r}"
            )
        architecture: PreTrainedConfig = AutoConfig.for_model(**config)
    else:
        assert name is not None
        name = network_place(name)
        _check_files(name)
        source = weights_source(name)
        _check_files(source)
        architecture = _fetched(
            _MODEL, source, lambda: AutoConfig.from_pretrained(source, trust_remote_code=False)
        )
    prepare_encoder(architecture)
    if dropout is not None:
        for key in dropouts(architecture):
            setattr(architecture, key, dropout)  # the names differ by architecture: they come from its config
    return architecture


def dropouts(architecture: PreTrainedConfig) -> dict[str, float]:
    """Returns the dropouts of a network without its heads: name in the configuration -> probability."""
    heads = ("classifier", "summary", "qa_", "seq_classif", "pooler", "layerdrop")  # and OPT's, of whole layers
    return {
        key: float(value)
        for key, value in architecture.to_dict().items()
        if ("drop" in key and isinstance(value, int | float) and not key.startswith(heads))
    }


def load_model(
    name: str | None, architecture: PreTrainedConfig, weights_dtype: WeightsType = "float32"
) -> tuple[PreTrainedModel, dict[str, Tensor]]:
    """Returns the network without its pooler and heads, and the weights of the checkpoint's own pooler by name.

    Every weight of the network comes from the checkpoint. The pooler isn't part of the network, because it would
    never get a gradient, which DDP refuses.

    Args:
        name: Folder or name on the hub; None for random weights.
        architecture: The configuration.
        weights_dtype: Type of the network's weights.
    """
    if name is None:
        return build_model(architecture), {}
    name = network_place(name)
    source = weights_source(name)
    _check_sizes(source, architecture)
    packed = loading_options() if weights_dtype == "nf4" else {}
    dtype = torch.float32 if weights_dtype == "float32" else torch.bfloat16
    with torch.random.fork_rng(devices=[]):  # a pooler that the checkpoint lacks would draw random numbers
        model, lacking, left_over = _load(network_class(architecture), source, architecture, dtype, **packed)
    if packed:
        prepare(model)
    if without := [weight for weight in lacking if not weight.startswith(POOLER)]:
        raise _lacking(source, architecture, without)
    _check_layers(source, model, left_over)
    for folder in dict.fromkeys((source, name)):
        if adapters_beside(folder):
            merge_adapters(Path(folder), model)
    pooler = detach_pooler(model)
    return model, {} if pooler.keys() & {*lacking} else pooler


def _lacking(source: str, architecture: PreTrainedConfig, weights: Sequence[str]) -> InvalidValueError:
    """Returns the error of a checkpoint that lacks weights of the network."""
    if all(weight.startswith("decoder.") for weight in weights):
        return InvalidValueError(
            f"encoder.model_name_or_path: expected an encoder, got the encoder of {architecture.model_type} in "
            f"{source}, which Transformers loads only with its decoder; load it with sentence-transformers"
        )
    return InvalidValueError(
        f"encoder.model_name_or_path: expected all weights of the encoder in {source}, but {len(weights)} are "
        f"missing or of another shape ({', '.join(weights[:3])}, ...) by its config.json; they would have "
        "started at random"
    )


def build_model(architecture: PreTrainedConfig) -> PreTrainedModel:
    """Returns a network with random weights, without a pooler and heads."""
    kind = network_class(architecture)
    return _made(lambda: without_pooler(kind, architecture))


def load_masked_lm(name: str | None, architecture: PreTrainedConfig) -> tuple[PreTrainedModel, bool]:
    """Returns the masked language model, and whether all of its head came from a checkpoint.

    Raises:
        ValueError: An architecture that has none, such as a decoder.
    """
    if type(architecture) not in MODEL_FOR_MASKED_LM_MAPPING:
        raise InvalidValueError(
            f"MaskedLM: expected an architecture with a masked-language-model head, got "
            f"{architecture.model_type}; use another encoder, or leave MaskedLM out"
        )
    if name is None:
        fresh: Callable[[], PreTrainedModel] = partial(
            AutoModelForMaskedLM.from_config, architecture, dtype=torch.float32
        )
        return _made(fresh), False
    model, lacking, _ = _load(AutoModelForMaskedLM, weights_source(network_place(name)), architecture)
    return model, not lacking


def load_pooler(name: str) -> nn.Linear | None:
    """Returns the dense layer over [CLS] that a checkpoint of BERT's kind has; None where it has none of its own.

    Args:
        name: Folder of the checkpoint, or its name on the hub.
    """
    _, weights = load_model(name, load_architecture(name, None, None))
    return pooler_layer(weights)


def _load(
    kind: NetworkClass,
    name: str,
    architecture: PreTrainedConfig,
    dtype: torch.dtype = torch.float32,
    **packed: Any,
) -> tuple[PreTrainedModel, list[str], list[str]]:
    """Returns the model, its weights that the checkpoint lacks, and the checkpoint's that the model lacks."""

    def load() -> tuple[PreTrainedModel, list[str], list[str]]:
        model, report = kind.from_pretrained(
            name,
            config=architecture,
            dtype=dtype,
            adapter_kwargs=NOT_BY_TRANSFORMERS if adapters_beside(name) else None,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # refused or told by name
            **packed,
        )
        lacking = {*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])}
        return model, sorted(lacking), sorted(report["unexpected_keys"])

    return _fetched(_MODEL, name, load)


def _made(make: Callable[[], PreTrainedModel]) -> PreTrainedModel:
    """Returns a network that Transformers makes of a configuration."""
    try:
        with quiet():
            return make()
    except (TypeError, ValueError, RuntimeError, ZeroDivisionError) as error:
        if not is_failure(error):
            raise
        raise InvalidValueError(
            f"encoder.config: expected an architecture that Transformers can make, got {_said(error)}"
        ) from error


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """Loads the tokenizer of a folder or of a name on the hub.

    Raises:
        ValueError: There is none, a damaged one, or one that isn't fast.
    """
    name = network_place(name)
    _check_files(name)
    if (file := Path(name, "tokenizer.json")).is_file():
        check_tokenizer_file(file)
    tokenizer: PreTrainedTokenizerBase = _fetched(
        _TOKENIZER, name, lambda: AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    )
    if not tokenizer.is_fast:
        raise InvalidValueError(f"encoder: expected a fast tokenizer, got {type(tokenizer).__name__} from {name}")
    limit: object = tokenizer.model_max_length
    if isinstance(limit, bool) or not isinstance(limit, int | float) or limit < 1 or limit % 1:
        raise InvalidValueError(
            f"{name}: expected a number of tokens as model_max_length of tokenizer_config.json, got "
            f"{shown(limit)}; {TODO}"
        )
    settings = Path(name, TEXT_SETTINGS)
    if settings.is_file() and Record.read(settings, TODO).flag("do_lower_case", False):
        _lower_case(tokenizer)
    return tokenizer


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, rows: int, name: str | None) -> None:
    """Checks that every token of a tokenizer has a row in the table of embeddings.

    Args:
        tokenizer: The tokenizer.
        rows: Rows of the table.
        name: Folder or hub name of the network; None for a network of random weights.

    Raises:
        ValueError: More token ids than rows.
    """
    ids = max(tokenizer.get_vocab().values(), default=-1) + 1
    if ids <= rows:
        return
    if name is None:
        raise InvalidValueError(
            f"encoder.config.vocab_size: expected the tokenizer's {ids} token ids or more, got {rows}; set it to "
            f"{ids}"
        )
    raise InvalidValueError(
        f"{name}: expected a row of embeddings for each of the tokenizer's {ids} token ids, got {rows}; take "
        f"the tokenizer that the network was trained with, or call resize_token_embeddings({ids}) of the "
        "Transformers model and save it again"
    )


def _lower_case(tokenizer: PreTrainedTokenizerBase) -> None:
    """Puts texts into lower case before all else that the tokenizer does, unless it does so already."""
    own = tokenizer.backend_tokenizer.normalizer
    parts = [] if own is None else [own]
    if isinstance(own, normalizers.Sequence):
        parts = [own[number] for number in range(len(own))]
    if not any(isinstance(part, normalizers.Lowercase) for part in parts):
        tokenizer.backend_tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *parts])
