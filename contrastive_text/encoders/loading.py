"""Models and tokenizers of Transformers: loaded whole, in float32, or refused with a reason."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from tokenizers import normalizers, processors
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

from contrastive_text.core.checks import share
from contrastive_text.core.config.misspelt import nearest, nearest_folder
from contrastive_text.core.errors import ContrastiveTextError, InvalidValueError, first_line
from contrastive_text.core.libraries import is_failure, quiet
from contrastive_text.core.storage.manifests import MODULES, TODO, model_place
from contrastive_text.core.storage.records import Record, inside, read_json, records, shown
from contrastive_text.encoders.adapters import (
    NOT_BY_TRANSFORMERS,
    WeightsType,
    four_bit_options,
    has_adapters,
    merge_adapters,
    prepare_four_bits,
    weights_source,
)
from contrastive_text.encoders.folder_checks import (
    check_folder,
    check_implementations,
    check_tokenizer_file,
    check_weight_files,
)
from contrastive_text.encoders.networks import (
    POOLER,
    NetworkClass,
    detach_pooler,
    dropouts,
    network_class,
    pooler_layer,
    without_pooler,
)

_MODEL, _TOKENIZER = "encoder.model_name_or_path", "encoder.tokenizer_name_or_path"
_TEXT_SETTINGS = "sentence_bert_config.json"
"""Settings of sentence-transformers for a network's texts: length limit and lower-casing."""
_T = TypeVar("_T")


def _fetched(what: str, name: str, fetch: Callable[[], _T]) -> _T:
    """Calls a loader of Transformers. Its errors become answers about the folder or the name on the hub."""
    try:
        with quiet():
            return fetch()
    except ContrastiveTextError:
        raise
    except BaseException as error:  # a damaged file raises nearly any error
        if not is_failure(error):
            raise
        folder = Path(name)
        if folder.is_dir():
            listed = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
            answer = f"a whole model folder, got {name} with {listed}; {_message(error)}"
        else:
            answer = (
                f"a local model folder or a name on the Hugging Face hub, got {name!r}{nearest_folder(name)}; "
                f"there is no such folder, and the hub gave none: {_message(error)}"
            )
        raise InvalidValueError(f"{what}: expected {answer}") from error


def _message(error: BaseException) -> str:
    line = first_line(error)
    return line if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: {line}"


def _network_place(name: str) -> str:
    """Returns the network's folder in the folder, or the hub's copy, of an embedding model; otherwise the name.

    ``modules.json`` names it: the folder itself, or one inside of it such as ``0_Transformer``.
    """
    folder = model_place(name)
    if folder is None:
        return name
    path = folder / MODULES
    modules = records(read_json(path, TODO), of="modules", where=str(path), todo=TODO)
    return str(inside(folder, modules[0].text("path"), str(path))) if modules else name


_weight_counts: dict[str, int] = {}
"""Configuration -> number of its network's weights. Counting them takes a sixth of a small model's loading."""


def _check_sizes(name: str, architecture: PreTrainedConfig) -> None:
    """Checks that the sizes in a ``config.json`` fit those of the weights: larger ones would fill the memory."""
    folder = Path(name)
    weights = [file for kind in ("*.safetensors", "*.bin") for file in folder.glob(kind)]
    if not weights:  # a name on the hub, or a folder that Transformers refuses
        return
    written = sum(file.stat().st_size for file in weights)
    if getattr(architecture, "quantization_config", None) is None:  # otherwise Transformers reads the scales too
        check_weight_files(weights)

    def count() -> int:
        with torch.device("meta"):
            fresh: nn.Module = network_class(architecture).from_config(architecture)  # type: ignore[no-untyped-call]  # theirs
        return sum(weight.numel() for weight in fresh.parameters())

    read = architecture.to_json_string(use_diff=False)
    if read not in _weight_counts:
        _weight_counts[read] = _fetched(_MODEL, name, count)
    if _weight_counts[read] > 2 * written:  # half a byte per weight, in 4 bits, is the least
        raise InvalidValueError(
            f"{folder / 'config.json'}: expected the sizes of the weights beside it ({weights[0].name}, "
            f"{written:,} bytes in all), got those of {_weight_counts[read]:,} weights; {TODO}"
        )


def _check_layers(name: str, model: PreTrainedModel, left_over: Iterable[str]) -> None:
    """Checks for layers that are in the checkpoint and not in the model, and for layers with a matrix of zeros.

    Both come from damage or from a changed ``config.json``, and give vectors of another model. Heads that are
    left over, zero biases of any shape, tables of positions, and matrices of adapters are not checked.
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


def load_architecture(name: str | None, config: dict[str, Any] | None, dropout: float | None) -> PreTrainedConfig:
    """Returns the configuration of a network.

    Args:
        name: Folder or name on the hub; None if ``config`` is given.
        config: As in ``config.json``, with ``model_type``; Any: an architecture's own values.
        dropout: Probability for every dropout; None keeps the configuration's own.

    Raises:
        ValueError: Neither or both of name and config, no probability, an architecture that Transformers doesn't
            have, or a model that is missing or damaged.
    """
    share("encoder.dropout", dropout, "0.1 is usual, null keeps the model's own", with_one=False)
    if config is not None and name is None:
        architecture = _configured(config)
    elif name is not None and config is None:
        place = _network_place(name)
        check_folder(place)
        source = weights_source(place)
        check_folder(source)
        architecture = _fetched(
            _MODEL, source, lambda: AutoConfig.from_pretrained(source, trust_remote_code=False)
        )
    else:
        raise InvalidValueError(
            "encoder: expected either model_name_or_path (pretrained) or config (random start), got "
            f"{'neither' if config is None else 'both'}; set --model.encoder.model_name_or_path, and the other "
            "to null"
        )
    if architecture.model_type == "t5gemma":  # its class refuses to load the encoder alone of an encoder-decoder
        architecture.is_encoder_decoder = False
    if dropout is not None:
        for key in dropouts(architecture):
            setattr(architecture, key, dropout)  # the names differ by architecture: they come from its config
    return architecture


def _configured(config: dict[str, Any]) -> PreTrainedConfig:
    """Returns the configuration with the values of a ``config.json``."""
    if "model_type" not in config:
        raise InvalidValueError(
            f"encoder.config: expected model_type (bert, roberta, ...), got {', '.join(config) or 'nothing'}"
        )
    check_implementations("encoder.config", config)
    if (name := config["model_type"]) not in CONFIG_MAPPING:
        raise InvalidValueError(
            "encoder.config.model_type: expected an architecture of Transformers (bert, roberta, ...), got "
            f"{name!r}{nearest(str(name), CONFIG_MAPPING)}"
        )
    return AutoConfig.for_model(**config)


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
    name = _network_place(name)
    source = weights_source(name)
    _check_sizes(source, architecture)
    in_four_bits = weights_dtype == "nf4"
    dtype = torch.float32 if weights_dtype == "float32" else torch.bfloat16
    with torch.random.fork_rng(devices=[]):  # a pooler that the checkpoint lacks would draw random numbers
        options = four_bit_options() if in_four_bits else {}
        model, lacking, left_over = _load(network_class(architecture), source, architecture, dtype, **options)
    if in_four_bits:
        prepare_four_bits(model)
    if without := [weight for weight in lacking if not weight.startswith(POOLER)]:
        raise _lacking(source, architecture, without)
    _check_layers(source, model, left_over)
    for folder in dict.fromkeys((source, name)):
        if has_adapters(folder):
            merge_adapters(Path(folder), model)
    pooler = detach_pooler(model)
    return model, {} if pooler.keys() & {*lacking} else pooler


def _lacking(source: str, architecture: PreTrainedConfig, weights: Sequence[str]) -> InvalidValueError:
    """Returns the error of a checkpoint that lacks weights of the network."""
    if all(weight.startswith("decoder.") for weight in weights):
        return InvalidValueError(
            f"{_MODEL}: expected an encoder, got the encoder of {architecture.model_type} in "
            f"{source}, which Transformers loads only with its decoder; load it with sentence-transformers"
        )
    return InvalidValueError(
        f"{_MODEL}: expected all weights of the encoder in {source}, but {len(weights)} are "
        f"missing or of another shape ({', '.join(weights[:3])}, ...) by its config.json; they would have "
        "started at random"
    )


def build_model(architecture: PreTrainedConfig) -> PreTrainedModel:
    """Returns a network with random weights, without a pooler and heads."""
    kind = network_class(architecture)
    return _made(lambda: without_pooler(kind, architecture))


def load_masked_lm(name: str | None, architecture: PreTrainedConfig) -> tuple[PreTrainedModel, bool]:
    """Returns the masked language model, and whether its whole head came from a checkpoint.

    Raises:
        ValueError: An architecture without such a head, such as a decoder.
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
    model, lacking, _ = _load(AutoModelForMaskedLM, weights_source(_network_place(name)), architecture)
    return model, not lacking


def load_pooler(name: str) -> nn.Linear | None:
    """Returns the dense layer over [CLS] of a checkpoint of BERT's kind; None if it has none of its own.

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
    **options: Any,  # Any: those of ``four_bit_options``
) -> tuple[PreTrainedModel, list[str], list[str]]:
    """Returns the model, its weights that the checkpoint lacks, and the checkpoint's that the model lacks."""

    def load() -> tuple[PreTrainedModel, list[str], list[str]]:
        model, report = kind.from_pretrained(
            name,
            config=architecture,
            dtype=dtype,
            adapter_kwargs=NOT_BY_TRANSFORMERS if has_adapters(name) else None,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # refused or reported by name
            **options,
        )
        lacking = {*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])}
        return model, sorted(lacking), sorted(report["unexpected_keys"])

    return _fetched(_MODEL, name, load)


def _made(make: Callable[[], PreTrainedModel]) -> PreTrainedModel:
    """Returns a network that Transformers builds from a configuration."""
    try:
        with quiet():
            return make()
    except (TypeError, ValueError, RuntimeError, ZeroDivisionError) as error:
        if not is_failure(error):
            raise
        raise InvalidValueError(
            f"encoder.config: expected an architecture that Transformers can make, got {_message(error)}"
        ) from error


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """Loads the tokenizer of a folder or of a name on the hub.

    Raises:
        ValueError: There is none, a damaged one, or one that isn't fast.
    """
    name = _network_place(name)
    check_folder(name)
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
    settings = Path(name, _TEXT_SETTINGS)
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
    todo = f"set it to {ids}"
    if name is not None:
        todo = (
            "take the tokenizer that the network was trained with, or call "
            f"resize_token_embeddings({ids}) of the Transformers model and save it again"
        )
    raise InvalidValueError(
        f"{name or 'encoder.config.vocab_size'}: expected a row of embeddings for each of the tokenizer's {ids} "
        f"token ids, got {rows}; {todo}"
    )


def _lower_case(tokenizer: PreTrainedTokenizerBase) -> None:
    """Makes a tokenizer convert texts to lower case first, unless it does so already."""
    own = tokenizer.backend_tokenizer.normalizer
    parts = [] if own is None else [own]
    if isinstance(own, normalizers.Sequence):
        parts = [own[number] for number in range(len(own))]
    if not any(isinstance(part, normalizers.Lowercase) for part in parts):
        tokenizer.backend_tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *parts])


def end_rows(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Makes a tokenizer put its end token after each text, if it puts no special token there.

    The end token's vector has seen the whole text. Source: Wang et al. 2024, "Improving Text Embeddings with
    Large Language Models" (https://arxiv.org/abs/2401.00368), section 3.2. It becomes a step of the
    post-processor in ``tokenizer.json``, so that whatever loads a saved model adds it too.

    Args:
        tokenizer: A fast tokenizer, which is changed.

    Returns:
        The end token; None if rows end with a special token already.

    Raises:
        ValueError: A tokenizer without an end token, or one that doesn't accept the step.

    Example:
        >>> from contrastive_text.data import learn_vocabulary
        >>> tokenizer = learn_vocabulary(["a bird sings"], 40)
        >>> end_rows(tokenizer) is None  # rows end with [SEP]
        True
        >>> tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B")
        >>> tokenizer.eos_token = "[SEP]"
        >>> end_rows(tokenizer), tokenizer.tokenize("a bird", add_special_tokens=True)
        ('[SEP]', ['a', 'bird', '[SEP]'])
    """

    def short_row() -> tuple[list[int], list[int | None]]:
        encoding = tokenizer("a", return_attention_mask=False)
        return encoding["input_ids"], encoding.sequence_ids(0)  # 0 for the text, None for special tokens

    ids, texts = short_row()
    if texts[-1] is None:
        return None
    end: str | None = tokenizer.eos_token
    if end is None:
        raise InvalidValueError(
            "encoder.append_eos: expected a tokenizer with an end token for rows to end with, got none; set "
            "eos_token in its tokenizer_config.json, or append_eos: false to read the last token of texts"
        )
    begin = tokenizer.convert_ids_to_tokens(ids[: texts.index(0)])
    backend = tokenizer.backend_tokenizer
    template = processors.TemplateProcessing(
        single=[*begin, "$A", end],
        pair=[*begin, "$A", end, *(f"{token}:1" for token in begin), "$B:1", f"{end}:1"],
        special_tokens=[(token, tokenizer.convert_tokens_to_ids(token)) for token in {*begin, end}],
    )
    # Two templates in a sequence don't see each other, so the template replaces the tokenizer's own.
    own = backend.post_processor
    parts = list(own) if isinstance(own, processors.Sequence) else [own]  # type: ignore[call-overload]  # it has items
    kept = [part for part in parts if isinstance(part, processors.ByteLevel)]
    backend.post_processor = processors.Sequence([*kept, template]) if kept else template
    if short_row()[0] != [*ids, tokenizer.eos_token_id]:
        raise InvalidValueError(
            f"encoder.append_eos: expected a tokenizer that can end rows with {end}, got "
            f"{type(tokenizer).__name__}, which doesn't; save it with such a post-processor, or set append_eos: "
            "false"
        )
    return end
