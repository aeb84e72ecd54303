"""Adapters beside the weights of a model folder, in peft's format: written, and merged when they are read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from contrastive_text.core.errors import ContrastiveTextError, InvalidValueError, first_line
from contrastive_text.core.libraries import is_failure, require
from contrastive_text.core.storage.manifests import TODO
from contrastive_text.core.storage.records import Record
from contrastive_text.encoders.adapters import inject, take_out
from contrastive_text.encoders.network_classes import POOLER

if TYPE_CHECKING:
    from peft import PeftConfig

_SETTINGS, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
"""Before every name in peft's file."""
_NAME = re.compile(r"\.default(?=\.|$)")
"""That of the adapters, which peft's file leaves out."""
_FLAGS = ("use_rslora", "use_dora", "fan_in_fan_out")
_UNREAD = {
    "alora_invocation_tokens", "auto_mapping", "base_model_name_or_path", "inference_mode", "init_lora_weights",
    "lora_dropout", "megatron_core", "peft_type", "peft_version", "qalora_group_size", "revision", "task_type",
}  # fmt: skip
"""Settings that change nothing in use, or only together with others."""
NOT_BY_TRANSFORMERS = {"subfolder": "none of its adapters"}
"""Keeps Transformers from loading adapters: it doesn't say what is missing, or that peft is."""


def adapters_beside(name: str) -> bool:
    """Whether a folder has adapters beside its weights."""
    return Path(name, _SETTINGS).is_file()


def weights_source(name: str) -> str:
    """Returns the folder or hub name with the weights of a model: of a folder of adapters that of the base model.

    sentence-transformers and peft save a network with adapters without the weights under them, which
    ``adapter_config.json`` names.

    Raises:
        ValueError: A folder of adapters that names no base model, or one that is not there.
    """
    settings = Path(name, _SETTINGS)
    if not settings.is_file() or Path(name, "config.json").is_file():
        return name
    record = Record.read(settings, TODO)
    base = record.text("base_model_name_or_path")
    if not base or Path(base).resolve() == Path(name).resolve():
        raise record.refusal("the folder or hub name of the base model", base, "base_model_name_or_path")
    if Path(base).is_absolute() and not Path(base).is_dir():
        raise InvalidValueError(
            f"{settings}: base_model_name_or_path: expected the folder of the base model, got {base}, which is "
            "not there; put the model there, or write its place into the file"
        )
    return base


def write_adapters(folder: Path, model: PreTrainedModel, base: str | None) -> None:
    """Writes the adapters of a network.

    Args:
        folder: Of the model.
        model: With adapters.
        base: Name of the weights under them, for peft and sentence-transformers.

    Raises:
        ValueError: Adapters that are not LoRA, which couldn't be read again.
    """
    settings = model.peft_config["default"]
    if settings.peft_type.value != "LORA":
        raise InvalidValueError(
            f"save_pretrained: expected LoRA beside the weights, got {settings.peft_type.value}; merge it"
        )
    local = base is not None and Path(base).is_dir()
    settings.base_model_name_or_path = str(Path(str(base)).resolve()) if local else base
    settings.save_pretrained(folder)
    weights = {name: weight.contiguous() for name, weight in model.state_dict().items()}
    own = {key: weights[name] for key, name in _names(model).items()}
    save_file(own, folder / _WEIGHTS, metadata={"format": "pt"})


def _names(model: nn.Module) -> dict[str, str]:
    """Returns the names of adapters' weights in peft's file, each with that in the network."""
    named = (name for name, _ in model.named_parameters() if _NAME.search(name))
    return {_PREFIX + _NAME.sub("", name): name for name in named}


def merge_adapters(folder: Path, model: PreTrainedModel) -> None:
    """Merges the adapters that lie beside the weights of a network into them, in place.

    Raises:
        ImportError: peft isn't installed.
        ValueError: Settings of more than plain LoRA, or weights that don't fit them.
    """
    require("peft", str(folder))
    settings = Record.read(folder / _SETTINGS, TODO)
    try:
        inject(model, _lora(settings))
        weights: Mapping[str, Tensor] = load_file(folder / _WEIGHTS)
        names = _names(model)
        # Only one of the saved and the loaded network may have a pooler, whose layer no vector goes through.
        if other := sorted(
            name for name in names.keys() ^ weights.keys() if not name.startswith(_PREFIX + POOLER)
        ):
            raise InvalidValueError(
                f"{folder / _WEIGHTS}: expected the weights that {_SETTINGS} speaks of, got others "
                f"({', '.join(other[:2])}, ...); {TODO}"
            )
        own = {names[key]: weight for key, weight in weights.items() if key in names}
        model.load_state_dict(own, strict=False)
    except BaseException as error:
        if isinstance(error, ContrastiveTextError) or not is_failure(error):
            raise
        raise InvalidValueError(
            f"{folder}: expected adapters that fit the weights, got {type(error).__name__}: {first_line(error)}; "
            f"{TODO}"
        ) from error
    take_out(model, merge=True)


def _lora(settings: Record) -> PeftConfig:
    """Returns peft's settings of a file: of plain LoRA, for others could name code to import."""
    peft = require("peft", settings.where)
    if settings.text("peft_type") != "LORA":
        raise settings.refusal("LORA", settings.values["peft_type"], "peft_type")
    read = {
        "r": settings.integer("r", least=1),
        "lora_alpha": settings.number("lora_alpha"),
        "target_modules": settings.texts("target_modules"),
        **{name: settings.flag(name, False) for name in _FLAGS},
    }
    lora: PeftConfig = peft.LoraConfig(**read)
    usual = peft.LoraConfig().to_dict()
    for name, value in settings.values.items():
        if name not in read and name not in _UNREAD and value and value != usual.get(name):
            raise settings.refusal("plain LoRA", value, name)
    return lora
