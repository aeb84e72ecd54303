"""Models and tokenizers of Transformers: loaded whole, in float32, or refused with a reason."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.hub import quiet


def _not_found(what: str, name: str, error: Exception) -> ValueError:
    near = Path(name)
    if near.is_dir():
        found = ", ".join(sorted(path.name for path in near.iterdir())[:8]) or "nothing"
        return InvalidValueError(
            f"{what}: expected a whole model folder, got {name} with {found}; {_first_line(error)}"
        )
    return InvalidValueError(
        f"{what}: expected a local model folder or a name on the Hugging Face hub, got {name!r}; there is no "
        f"such folder, and the hub gave none: {_first_line(error)}"
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def load_architecture(name: str | None, config: dict[str, Any] | None, dropout: float | None) -> PreTrainedConfig:
    if config is not None:
        if "model_type" not in config:
            raise InvalidValueError(
                f"encoder.config: expected model_type (bert, roberta, ...), got {', '.join(config) or 'nothing'}"
            )
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
        try:
            with quiet():
                architecture = AutoConfig.from_pretrained(name)
        except (OSError, ValueError) as error:
            raise _not_found("encoder.model_name_or_path", name, error) from error
    if dropout is not None:
        for key in dropouts(architecture):
            setattr(architecture, key, dropout)  # the names differ by architecture: they come from its config
    return architecture


def dropouts(architecture: PreTrainedConfig) -> dict[str, float]:
    heads = ("classifier", "summary", "qa_", "seq_classif", "pooler")
    return {
        key: float(value)
        for key, value in architecture.to_dict().items()
        if ("drop" in key and isinstance(value, int | float) and not key.startswith(heads))
    }


def load_model(name: str | None, architecture: PreTrainedConfig) -> PreTrainedModel:
    """Gives the network without pooler and heads; every weight of it comes from the checkpoint."""
    # A BERT-like pooler would never get a gradient, which DDP refuses; other architectures have none.
    try:
        model, lacking = _load(AutoModel, name, architecture, add_pooling_layer=False)
    except TypeError:
        model, lacking = _load(AutoModel, name, architecture)
    if lacking:
        raise InvalidValueError(
            f"encoder.model_name_or_path: expected all weights of the encoder in {name}, but {len(lacking)} are "
            f"missing or of another shape ({', '.join(lacking[:3])}, ...); they would have started at random"
        )
    return model


def load_masked_lm(name: str | None, architecture: PreTrainedConfig) -> tuple[PreTrainedModel, bool]:
    """Gives the masked language model, and whether all of its head came from a checkpoint.

    Raises:
        ValueError: An architecture that has none, such as a decoder.
    """
    if type(architecture) not in MODEL_FOR_MASKED_LM_MAPPING:
        raise InvalidValueError(
            f"MaskedLM: expected an architecture with a masked-language-model head, got "
            f"{architecture.model_type}; use another encoder, or leave MaskedLM out"
        )
    model, lacking = _load(AutoModelForMaskedLM, name, architecture)
    return model, name is not None and not lacking


def _load(
    kind: type[AutoModel | AutoModelForMaskedLM],
    name: str | None,
    architecture: PreTrainedConfig,
    **options: bool,
) -> tuple[PreTrainedModel, list[str]]:
    """Gives the model, and the weights that were not in the checkpoint."""
    with quiet():
        if name is None:
            fresh: PreTrainedModel = kind.from_config(  # type: ignore[no-untyped-call]  # theirs
                architecture, dtype=torch.float32, **options
            )
            return fresh, []
        try:
            model, report = kind.from_pretrained(
                name,
                config=architecture,
                dtype=torch.float32,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # refused or told by name
                **options,
            )
        except (OSError, ValueError, SafetensorError) as error:
            raise _not_found("encoder.model_name_or_path", name, error) from error
    lacking = {*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])}
    return model, sorted(lacking)


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    try:
        with quiet():
            tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise _not_found("encoder.tokenizer_name_or_path", name, error) from error
    if not tokenizer.is_fast:
        raise InvalidValueError(f"encoder: expected a fast tokenizer, got {type(tokenizer).__name__} from {name}")
    return tokenizer
