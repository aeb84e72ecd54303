"""Loading of models and tokenizers of Transformers: complete and in float32, or refused with a reason."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from tokenizers import normalizers, processors
from torch import Tensor, nn
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    AutoConfig,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from contrastive_text.core.config.suggestions import suggest_folder, suggest_name
from contrastive_text.core.errors import ContrastiveTextError, InvalidValueError, first_line
from contrastive_text.core.libraries import is_read_error, read_errors_as, silence_transformers
from contrastive_text.core.storage.manifests import MANIFEST_ADVICE, MODULES, find_model_folder
from contrastive_text.core.storage.records import Record, describe_value, read_json, records, resolve_inside
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
"""File of sentence-transformers with the settings of a network's texts: length limit and lower-casing."""
_ARCHITECTURE = "encoder.config: expected an architecture of Transformers"
_CORRECT = "correct the values of the configuration"
_T = TypeVar("_T")


def _fetched(what: str, name: str, fetch: Callable[[], _T]) -> _T:
    """Calls a function of Transformers that loads a model or tokenizer.

    Converts its errors to errors about the folder or the name on the hub.
    """
    try:
        with silence_transformers():
            return fetch()
    except ContrastiveTextError:
        raise
    except BaseException as error:  # a damaged file raises nearly any error
        if not is_read_error(error):
            raise
        folder = Path(name)
        if folder.is_dir():
            listed = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
            answer = f"a whole model folder, got {name} with {listed}; {_message(error)}"
        else:
            answer = (
                f"a local model folder or a name on the Hugging Face hub, got {name!r}{suggest_folder(name)}; "
                f"there is no such folder, and the hub gave none: {_message(error)}"
            )
        raise InvalidValueError(f"{what}: expected {answer}") from error


def _message(error: BaseException) -> str:
    line = first_line(error)
    return line if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: {line}"


def network_place(name: str) -> str:
    """Returns the network's folder in an embedding model, local or in the hub's cache; else the name unchanged.

    ``modules.json`` names it: the folder itself, or a folder inside it such as ``0_Transformer``.
    """
    folder = find_model_folder(name)
    if folder is None:
        return name
    path = folder / MODULES
    modules = records(read_json(path, MANIFEST_ADVICE), of="modules", where=str(path), todo=MANIFEST_ADVICE)
    return str(resolve_inside(folder, modules[0].text("path"), str(path))) if modules else name


_weight_counts: dict[str, int] = {}
"""Configuration -> number of weights of its network. Counting takes a sixth of a small model's loading time."""


def _check_sizes(name: str, architecture: PreTrainedConfig) -> None:
    """Checks that sizes in ``config.json`` match the weight files, because larger sizes would fill the memory."""
    folder = Path(name)
    weights = [file for kind in ("*.safetensors", "*.bin") for file in folder.glob(kind)]
    if not weights:  # a name on the hub, or a folder that Transformers will refuse
        return
    file_bytes = sum(file.stat().st_size for file in weights)
    if (
        getattr(architecture, "quantization_config", None) is None
    ):  # Transformers reads the scales of quantized weights
        check_weight_files(weights)

    def count() -> int:
        with torch.device("meta"):
            fresh: nn.Module = network_class(architecture).from_config(architecture)  # type: ignore[no-untyped-call]  # theirs
        return sum(weight.numel() for weight in fresh.parameters())

    settings = architecture.to_json_string(use_diff=False)
    if settings not in _weight_counts:
        _weight_counts[settings] = _fetched(_MODEL, name, count)
    if _weight_counts[settings] > 2 * file_bytes:  # a weight takes at least half a byte, with 4 bits
        raise InvalidValueError(
            f"{folder / 'config.json'}: expected the sizes of the weight files ({weights[0].name}, "
            f"{file_bytes:,} bytes in all), got sizes of {_weight_counts[settings]:,} weights; {MANIFEST_ADVICE}"
        )


def _check_layers(name: str, model: PreTrainedModel, left_over: Iterable[str]) -> None:
    """Checks for layers that are in the checkpoint but not in the model, and for layers with a matrix of zeros.

    Both result from damage or from a changed ``config.json``, and would give wrong vectors. Unused heads, zero
    biases of any shape, position tables and matrices of adapters are not checked.
    """
    stacks = [path for path, part in model.named_modules() if isinstance(part, nn.ModuleList)]
    layer_pattern = re.compile(rf"(?:^|\.)((?:{'|'.join(map(re.escape, stacks))})\.\d+)\.") if stacks else None
    model_layers = {path for path, _ in model.named_modules()}
    checkpoint_layers = {
        match[1] for key in left_over if layer_pattern is not None and (match := layer_pattern.search(key))
    }
    if extra := sorted(checkpoint_layers - model_layers):
        raise InvalidValueError(
            f"{_MODEL}: expected the layers in config.json of {name}, got weights of further layers "
            f"({', '.join(extra[:3])}{', ...' * (len(extra) > 3)}); put back the number of layers it was "
            "saved with"
        )
    zeros = [
        f"{path}.{key}"
        for path, part in model.named_modules()
        if path.startswith(tuple(f"{stack}." for stack in stacks)) and not isinstance(part, nn.Embedding)
        for key, weight in part.named_parameters(recurse=False)
        if weight.ndim == 2 and min(weight.shape) > 1 and "bias" not in key.split("_")
        if "lora" not in path and not weight[0].any() and not weight.any()
    ]
    if zeros:
        raise InvalidValueError(
            f"{_MODEL}: expected weights in every layer of {name}, got matrices of zeros ({', '.join(zeros[:3])}"
            f"{', ...' * (len(zeros) > 3)}); the file is damaged, download or save it again"
        )


def load_architecture(name: str | None, config: dict[str, Any] | None, dropout: float | None) -> PreTrainedConfig:
    """Loads the configuration of a network, or builds it from values.

    Args:
        name: Folder or name on the hub; None if ``config`` is given.
        config: Values as in ``config.json``, with ``model_type``; Any: an architecture's own values.
        dropout: Probability of every dropout; None keeps the configuration's own.

    Raises:
        ValueError: Neither or both of name and config, an architecture that Transformers doesn't have, or a model
            that is missing or damaged.
    """
    if config is not None and name is None:
        architecture = _configured(config)
    elif name is not None and config is None:
        place = network_place(name)
        check_folder(place)
        source = weights_source(place)
        check_folder(source)
        if place != name and Path(place, "tokenizer.json").is_file() and not Path(source, "config.json").exists():
            raise InvalidValueError(
                f"{_MODEL}: expected a transformer, got {name}, whose first module has no config.json; for a "
                "static model set model.encoder.class_path: StaticEncoder"
            )
        architecture = _fetched(
            _MODEL, source, lambda: AutoConfig.from_pretrained(source, trust_remote_code=False)
        )
    else:
        raise InvalidValueError(
            "encoder: expected either model_name_or_path (pretrained) or config (random start), got "
            f"{'neither' if config is None else 'both'}; set --model.encoder.model_name_or_path, and the other "
            "to null"
        )
    if architecture.model_type == "t5gemma":  # its class refuses to load only the encoder of an encoder-decoder
        architecture.is_encoder_decoder = False
    if dropout is not None:
        for key in dropouts(architecture):
            setattr(
                architecture, key, dropout
            )  # names of dropouts differ by architecture and come from its config
    return architecture


def _configured(config: dict[str, Any]) -> PreTrainedConfig:
    """Builds a configuration from the values of a ``config.json``."""
    if "model_type" not in config:
        raise InvalidValueError(
            f"encoder.config: expected model_type (bert, roberta, ...), got {', '.join(config) or 'nothing'}"
        )
    check_implementations("encoder.config", config)
    if (name := config["model_type"]) not in CONFIG_MAPPING:
        raise InvalidValueError(
            "encoder.config.model_type: expected an architecture of Transformers (bert, roberta, ...), got "
            f"{name!r}{suggest_name(str(name), CONFIG_MAPPING)}"
        )
    return AutoConfig.for_model(**config)


def load_model(
    name: str | None, architecture: PreTrainedConfig, weights_dtype: WeightsType = "float32"
) -> tuple[PreTrainedModel, dict[str, Tensor]]:
    """Loads a network without its pooler and heads. Returns it with the checkpoint's pooler weights by name.

    Every weight of the network comes from the checkpoint. The pooler is removed, because it would never get a
    gradient, which DDP refuses.

    Args:
        name: Folder or name on the hub; None for random weights.
        architecture: Configuration of the network.
        weights_dtype: Type of the network's weights.
    """
    if name is None:
        return build_model(architecture), {}
    name = network_place(name)
    source = weights_source(name)
    _check_sizes(source, architecture)
    in_four_bits = weights_dtype == "nf4"
    dtype = torch.float32 if weights_dtype == "float32" else torch.bfloat16
    with torch.random.fork_rng(devices=[]):  # a missing pooler would draw random numbers
        options = four_bit_options() if in_four_bits else {}
        model, lacking, left_over = _load(network_class(architecture), source, architecture, dtype, **options)
    if in_four_bits:
        prepare_four_bits(model)
    if missing := [weight for weight in lacking if not weight.startswith(POOLER)]:
        raise _lacking(source, architecture, missing)
    _check_layers(source, model, left_over)
    for folder in dict.fromkeys((source, name)):
        if has_adapters(folder):
            merge_adapters(Path(folder), model)
    pooler = detach_pooler(model)
    return model, {} if pooler.keys() & {*lacking} else pooler


def _lacking(source: str, architecture: PreTrainedConfig, weights: Sequence[str]) -> InvalidValueError:
    """Returns the error for a checkpoint that lacks weights of the network that is loaded."""
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
    """Builds a network with random weights, without a pooler and heads."""
    kind = network_class(architecture)
    with silence_transformers(), read_errors_as(_ARCHITECTURE, _CORRECT):
        return without_pooler(kind, architecture)


def load_masked_lm(name: str | None, architecture: PreTrainedConfig) -> tuple[PreTrainedModel, bool]:
    """Loads a masked language model. Returns it, and whether its whole head came from the checkpoint.

    Raises:
        ValueError: The architecture has no such head, such as a decoder.
    """
    if type(architecture) not in MODEL_FOR_MASKED_LM_MAPPING:
        raise InvalidValueError(
            f"MaskedLM: expected an architecture with a masked-language-model head, got "
            f"{architecture.model_type}; use another encoder, or remove MaskedLM and SpladePooler"
        )
    if name is None:
        with silence_transformers(), read_errors_as(_ARCHITECTURE, _CORRECT):
            return AutoModelForMaskedLM.from_config(architecture, dtype=torch.float32), False  # type: ignore[no-untyped-call]  # theirs
    model, lacking, _ = _load(AutoModelForMaskedLM, weights_source(network_place(name)), architecture)
    return model, not lacking


def load_sequence_classifier(name: str) -> PreTrainedModel:
    """Loads a network with its classification head, such as a cross-encoder, in float32.

    Args:
        name: Folder or name on the hub.

    Raises:
        ValueError: The architecture has no such head, or weights are missing, such as those of the head.
    """
    architecture = load_architecture(name, None, None)
    if type(architecture) not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING:
        raise InvalidValueError(
            f"{name}: expected an architecture with a classification head, got {architecture.model_type}; give "
            "the folder of a classifier or a cross-encoder"
        )
    source = weights_source(network_place(name))
    model, lacking, _ = _load(AutoModelForSequenceClassification, source, architecture)
    if lacking:
        raise InvalidValueError(
            f"{name}: expected all weights of {type(model).__name__}, got a folder without "
            f"{', '.join(lacking[:3])}{', ...' * (len(lacking) > 3)}; they would be random. Write a folder with "
            "contrastive-text export RUN FOLDER --as classifier, reranker or regressor"
        )
    model.train(False)
    return model


def load_pooler(name: str) -> nn.Linear | None:
    """Returns the dense layer over [CLS] of a checkpoint like BERT's; None if the checkpoint has none.

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
    **options: Any,  # Any: from ``four_bit_options``
) -> tuple[PreTrainedModel, list[str], list[str]]:
    """Loads a Transformers model and compares its weights with the checkpoint's.

    Returns it, its weights missing in the checkpoint, and unused weights.
    """

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


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """Loads the tokenizer of a folder or of a name on the hub.

    Raises:
        ValueError: There is no tokenizer, or it is damaged or isn't fast.
    """
    name = network_place(name)
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
            f"{describe_value(limit)}; {MANIFEST_ADVICE}"
        )
    settings = Path(name, _TEXT_SETTINGS)
    if settings.is_file() and Record.read(settings, MANIFEST_ADVICE).flag("do_lower_case", False):
        _lower_case(tokenizer)
    return tokenizer


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, rows: int, name: str | None) -> None:
    """Checks that every token id of a tokenizer has a row in the embedding table.

    Args:
        tokenizer: The tokenizer.
        rows: Number of rows of the table.
        name: Folder or hub name of the network; None for a network with random weights.

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
    """Makes a tokenizer lower-case texts first, unless it does so already."""
    normalizer = tokenizer.backend_tokenizer.normalizer
    parts = [] if normalizer is None else [normalizer]
    if isinstance(normalizer, normalizers.Sequence):
        parts = [normalizer[number] for number in range(len(normalizer))]
    if not any(isinstance(part, normalizers.Lowercase) for part in parts):
        tokenizer.backend_tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *parts])


def end_rows(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Makes a tokenizer append its end token to each text, unless a special token already ends the row.

    With causal attention only the vector of the last token depends on the whole text. Source: Wang et al. 2024,
    "Improving Text Embeddings with Large Language Models" (https://arxiv.org/abs/2401.00368), section 3.2. The
    post-processor in ``tokenizer.json`` adds the end token, so every loader of a saved model adds it, too.

    Args:
        tokenizer: A fast tokenizer, which is changed.

    Returns:
        The end token; None if rows end with a special token already.

    Raises:
        ValueError: The tokenizer has no end token, or doesn't accept the step.

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
            "encoder.append_eos: expected a tokenizer with an end token for the ends of rows, got no eos_token; "
            "set eos_token in its tokenizer_config.json, or append_eos: false to read the last token of texts"
        )
    begin = tokenizer.convert_ids_to_tokens(ids[: texts.index(0)])
    backend = tokenizer.backend_tokenizer
    template = processors.TemplateProcessing(
        single=[*begin, "$A", end],
        pair=[*begin, "$A", end, *(f"{token}:1" for token in begin), "$B:1", f"{end}:1"],
        special_tokens=[(token, tokenizer.convert_tokens_to_ids(token)) for token in {*begin, end}],
    )
    # Two templates in a sequence ignore each other, so the new template replaces the tokenizer's own.
    post_processor = backend.post_processor
    parts = list(post_processor) if isinstance(post_processor, processors.Sequence) else [post_processor]  # type: ignore[call-overload]  # it has items
    byte_level = [part for part in parts if isinstance(part, processors.ByteLevel)]
    backend.post_processor = processors.Sequence([*byte_level, template]) if byte_level else template
    if short_row()[0] != [*ids, tokenizer.eos_token_id]:
        raise InvalidValueError(
            f"encoder.append_eos: expected a tokenizer that can end rows with {end}, got "
            f"{type(tokenizer).__name__}, which doesn't; save it with such a post-processor, or set append_eos: "
            "false"
        )
    return end
