"""Adapters: small matrices that are trained in addition to frozen weights, which may have 4 bits (QLoRA).

peft adds them to a network and merges them into its weights. They are saved in a model folder in peft's format.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeGuard, cast

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import BitsAndBytesConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from contrastive_text.core.errors import InvalidValueError, above, at_least, fraction, one_of
from contrastive_text.core.libraries import read_errors_as, require
from contrastive_text.core.storage.manifests import MANIFEST_ADVICE
from contrastive_text.core.storage.records import Record
from contrastive_text.core.storage.weights import read_weights
from contrastive_text.encoders.networks import POOLER

if TYPE_CHECKING:
    from peft import PeftConfig

WeightsType: TypeAlias = Literal["float32", "bfloat16", "nf4"]
"""Names of the data types of weights under adapters; ``nf4`` has 4 bits (QLoRA)."""
NOT_BY_TRANSFORMERS = {"subfolder": "none of its adapters"}
"""Option that keeps Transformers from loading adapters: it wouldn't report missing weights or a missing peft."""
_WHERE = "encoder.adapters"
_SMALL = (torch.bfloat16, torch.float16)
_SETTINGS, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
"""Prefix of every weight name in peft's file."""
_NAME = re.compile(r"\.default(?=\.|$)")
"""Name of the adapters in a peft network, which peft's file omits."""
_FLAGS = ("use_rslora", "use_dora", "fan_in_fan_out")
_UNREAD = {
    "alora_invocation_tokens", "auto_mapping", "base_model_name_or_path", "inference_mode", "init_lora_weights",
    "lora_dropout", "megatron_core", "peft_type", "peft_version", "qalora_group_size", "revision", "task_type",
}  # fmt: skip
"""Settings of peft without an effect at inference, or with an effect only together with others."""


class Adapters(ABC):
    """Base class of adapters: a tuner of peft whose weights can be merged into those of the network.

    Attributes:
        dropout: Probability with which an input of an adapter is dropped.

    Example:
        >>> class Scales(Adapters):  # (IA)^3, Liu et al. 2022, https://arxiv.org/abs/2205.05638
        ...     def settings(self, layers):
        ...         import peft
        ...
        ...         return peft.IA3Config(target_modules=[*layers], feedforward_modules=[])
    """

    dropout: float = 0.0

    @abstractmethod
    def settings(self, layers: Sequence[str]) -> PeftConfig:
        """Returns the settings of peft for these adapters.

        Args:
            layers: Names of all linear layers of the network's blocks.
        """

    def add_to(self, model: PreTrainedModel) -> frozenset[str]:
        """Adds float32 adapters to a network in place, and freezes all other weights.

        Returns:
            The names of the adapters' weights.

        Raises:
            ImportError: peft isn't installed.
            ValueError: peft refuses the settings.
        """
        stacks = tuple(f"{name}." for name, part in model.named_modules() if isinstance(part, nn.ModuleList))
        kinds = (nn.Linear, Conv1D)
        layers = [n for n, part in model.named_modules() if isinstance(part, kinds) and n.startswith(stacks)]
        return _inject(model, self.settings(layers))


class LoRA(Adapters):
    """LoRA: adds a product of two thin matrices to each weight matrix, W + alpha / rank * B A; B starts at 0.

    Hu et al. 2021, https://arxiv.org/abs/2106.09685, by peft. The default values are those of their RoBERTa-base
    (table 9) and of peft, which adapt only the matrices of query and value. Here all linear layers of the blocks
    are adapted unless ``targets`` names layers, because that matches full training (Dettmers et al. 2023, QLoRA,
    https://arxiv.org/abs/2305.14314, section 4).

    Args:
        rank: Number of columns of B and of rows of A, 1 or more.
        alpha: Strength, positive; the product is multiplied by alpha / rank.
        dropout: Probability with which a feature that enters A is dropped, in [0, 1).
        targets: Ends of the names of layers to adapt, such as ``query``; None for all linear layers of blocks.

    Raises:
        ValueError: A value is out of its range.

    Example:
        >>> LoRA(rank=16, alpha=32, targets=["query", "value"]).targets
        ['query', 'value']
    """

    def __init__(
        self, rank: int = 8, alpha: float = 8.0, dropout: float = 0.0, targets: list[str] | None = None
    ) -> None:
        self.rank = at_least("LoRA.rank", rank, 1, "8 to 64 are usual")
        self.alpha = above("LoRA.alpha", alpha, advice="try the rank")
        self.dropout = fraction("LoRA.dropout", dropout, "0.1 is usual", with_one=False)
        if targets is not None and not targets:
            raise InvalidValueError(
                "LoRA.targets: expected names of layers, or null for all, got []; set it to null"
            )
        self.targets = targets

    def settings(self, layers: Sequence[str]) -> PeftConfig:
        """Returns peft's ``LoraConfig`` for the layers that ``targets`` names.

        Raises:
            ImportError: peft isn't installed.
            ValueError: A target that no linear layer has.
        """
        peft = require("peft", _WHERE)
        for target in self.targets or ():
            if not any(_ends(layer, target) for layer in layers):
                ends = dict.fromkeys(layer.rpartition(".")[2] for layer in layers)
                raise InvalidValueError(
                    f"LoRA.targets: expected ends of names of linear layers ({', '.join(ends)}), got {target!r}"
                )
        target_layers = [
            layer for layer in layers if any(_ends(layer, target) for target in self.targets or [layer])
        ]
        settings: PeftConfig = peft.LoraConfig(
            r=self.rank, lora_alpha=self.alpha, lora_dropout=self.dropout, target_modules=target_layers
        )
        return settings


def check_base(adapters: Adapters | None, config: object, weights_dtype: str) -> None:
    """Checks that type and origin of a network's weights suit its adapters, or training without adapters.

    Raises:
        ValueError: Random weights under adapters, or weights of a small type without adapters.
    """
    one_of("encoder.weights_dtype", weights_dtype, WeightsType)
    if adapters is None and weights_dtype != "float32":
        raise InvalidValueError(
            f"encoder.weights_dtype: expected float32 for trained weights, got {weights_dtype}; set "
            "encoder.adapters too. Smaller types round small updates away."
        )
    if adapters is not None and config is not None:
        raise InvalidValueError(
            f"{_WHERE}: expected a pretrained model (model_name_or_path), got a config: weights that start "
            "at random and are not trained would be in no checkpoint; name a model"
        )


def _ends(name: str, target: str) -> bool:
    return name == target or name.endswith(f".{target}")


def _inject(model: PreTrainedModel, settings: PeftConfig) -> frozenset[str]:
    """Adds the adapters of peft's settings to a network in place; see ``Adapters.add_to``."""
    peft = require("peft", _WHERE)
    names = {name for name, _ in model.named_parameters()}
    try:
        peft.inject_adapter_in_model(settings, model)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise InvalidValueError(f"{_WHERE}: expected settings that peft accepts, got {error}") from error
    adapter_weights = {name: weight for name, weight in model.named_parameters() if plain_name(name) not in names}
    for weight in adapter_weights.values():
        weight.data = weight.data.float()  # in any type of the network
    return frozenset(adapter_weights)


def plain_name(name: str) -> str:
    """Returns the name that a weight has in the network without adapters.

    Example:
        >>> plain_name("layer.0.query.base_layer.weight")
        'layer.0.query.weight'
    """
    return name.replace(".base_layer.", ".")


def remove_adapters(model: PreTrainedModel, merge: bool) -> None:
    """Removes the adapters from a network in place. All of its weights can then be trained again.

    Args:
        model: The network.
        merge: Whether the adapters are added to the weights, which become float32 if their type is smaller.
    """
    tuners = require("peft.tuners.tuners_utils", _WHERE)
    for name, layer in [*model.named_modules()]:
        if isinstance(layer, tuners.BaseTunerLayer):
            adapted = cast(Any, layer)  # classes of peft's layers differ, but have these methods
            plain = adapted.get_base_layer()
            if _in_four_bits(plain):
                plain = _plain_layer(plain)
                if merge:
                    plain.weight.data += adapted.get_delta_weight("default").float()
            elif merge:
                if plain.weight.dtype in _SMALL:
                    plain.float()
                adapted.merge(safe_merge=True)
            model.set_submodule(name, plain)
    for name, part in [*model.named_modules()]:
        if _in_four_bits(part):
            model.set_submodule(name, _plain_layer(part))
    for name in ("is_loaded_in_4bit", "is_quantized", "quantization_method", "hf_quantizer"):
        vars(model).pop(name, None)
    if merge and model.dtype in _SMALL:
        nn.Module.to(model, torch.float32)
    del model.peft_config
    model.requires_grad_(True)


def four_bit_options() -> dict[str, Any]:  # Any: Transformers' options
    """Returns the options with which Transformers loads linear layers as NormalFloat of 4 bits.

    Their scales are quantized too, and products are computed in bfloat16 (Dettmers et al. 2023, QLoRA,
    https://arxiv.org/abs/2305.14314, sections 3 and 4).

    Raises:
        ImportError: bitsandbytes isn't installed.
    """
    require("bitsandbytes", "encoder.weights_dtype")
    settings = BitsAndBytesConfig(  # type: ignore[no-untyped-call]  # theirs
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
        llm_int8_skip_modules=["pooler"],  # needed only for saving
    )
    # Lightning later moves a module to the device of its rank. A GPU quantizes faster, and then holds the weights
    # once.
    device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"
    return {"quantization_config": settings, "device_map": {"": device}}


def prepare_four_bits(model: PreTrainedModel) -> None:
    """Prepares a 4-bit network for training, and sets the configuration of a plain network."""
    del model.config.quantization_config
    for part in model.modules():
        if _in_four_bits(part):
            # On some CPUs evaluation would pack weights again, in a form without gradients.
            vars(part)["support_avx512bf16_for_cpu"] = False


def _in_four_bits(layer: object) -> TypeGuard[nn.Linear]:
    """Returns whether a layer is a linear layer with a packed weight."""
    return isinstance(layer, nn.Linear) and hasattr(layer.weight, "quant_state")


def _plain_layer(layer: nn.Linear) -> nn.Linear:
    """Returns a float32 layer with the values of a packed weight."""
    functional = require("bitsandbytes.functional", "encoder.weights_dtype")
    weight: Any = layer.weight  # Any: bitsandbytes' own class
    values: Tensor = functional.dequantize_4bit(weight.data, weight.quant_state)
    plain = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None, device="meta")
    plain.weight = nn.Parameter(values.float())
    if layer.bias is not None:
        plain.bias = nn.Parameter(layer.bias.detach().float())
    return plain


def state_without_packing(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns a network's state in which packed weights are replaced by empty weights of their plain shapes."""
    packed = ((name, part) for name, part in model.named_modules() if _in_four_bits(part))
    shapes = {f"{name}.weight": (part.out_features, part.in_features) for name, part in packed}
    return {
        name: torch.empty(shapes[name], device="meta") if name in shapes else value
        for name, value in state.items()
        if not is_part_of_packed(name, shapes)
    }


def is_part_of_packed(name: str, packed: Mapping[str, object] | frozenset[str]) -> bool:
    """Returns whether a name in a state dict belongs to the data of a packed weight, such as its scales.

    Example:
        >>> is_part_of_packed("up.weight.absmax", {"up.weight": None})
        True
    """
    before, found, _ = name.rpartition(".weight.")
    return bool(found) and f"{before}.weight" in packed


def has_adapters(name: str) -> bool:
    """Returns whether a folder has adapters, with or without the weights under them."""
    return Path(name, _SETTINGS).is_file()


def weights_source(name: str) -> str:
    """Returns the folder or hub name of a model's weights; for a folder of adapters alone, of the base model.

    sentence-transformers and peft save a network with adapters without the weights under them. The file
    ``adapter_config.json`` names these weights.

    Raises:
        ValueError: The folder of adapters names no base model, or a folder that doesn't exist.
    """
    settings = Path(name, _SETTINGS)
    if not settings.is_file() or Path(name, "config.json").is_file():
        return name
    record = Record.read(settings, MANIFEST_ADVICE)
    base = record.text("base_model_name_or_path")
    if not base or Path(base).resolve() == Path(name).resolve():
        raise record.refusal("the folder or hub name of the base model", base, "base_model_name_or_path")
    if Path(base).is_absolute() and not Path(base).is_dir():
        raise InvalidValueError(
            f"{settings}: base_model_name_or_path: expected the folder of the base model, got {base}, which "
            f"doesn't exist; put the model there, or correct the path in the file"
        )
    return base


def write_adapters(folder: Path, model: PreTrainedModel, base: str | None) -> None:
    """Writes the adapters of a network to a model folder.

    Args:
        folder: The model folder.
        model: The network with adapters.
        base: Name of the weights under the adapters, for peft and sentence-transformers.

    Raises:
        ValueError: The adapters aren't LoRA, so they couldn't be read again.
    """
    settings = model.peft_config["default"]
    if settings.peft_type.value != "LORA":
        raise InvalidValueError(
            f"save_pretrained: expected LoRA adapters, got {settings.peft_type.value}; merge it"
        )
    is_local = base is not None and Path(base).is_dir()
    settings.base_model_name_or_path = str(Path(str(base)).resolve()) if is_local else base
    settings.save_pretrained(folder)
    weights = {name: weight.contiguous() for name, weight in model.state_dict().items()}
    adapter_weights = {key: weights[name] for key, name in _names_in_file(model).items()}
    save_file(adapter_weights, folder / _WEIGHTS, metadata={"format": "pt"})


def _names_in_file(model: nn.Module) -> dict[str, str]:
    """Returns name in peft's file -> name in the network, for the weights of adapters."""
    names = (name for name, _ in model.named_parameters() if _NAME.search(name))
    return {_PREFIX + _NAME.sub("", name): name for name in names}


def merge_adapters(folder: Path, model: PreTrainedModel) -> None:
    """Merges the adapters of a folder into the weights of a network, in place.

    Raises:
        ImportError: peft isn't installed.
        ValueError: Settings beyond plain LoRA, or weights that don't match them.
    """
    require("peft", str(folder))
    settings = Record.read(folder / _SETTINGS, MANIFEST_ADVICE)
    with read_errors_as(f"{folder}: expected adapters that fit the weights", MANIFEST_ADVICE):
        _inject(model, _lora(settings))
        weights = read_weights(folder / _WEIGHTS, MANIFEST_ADVICE)
        names = _names_in_file(model)
        # Either the saved or the loaded network may lack a pooler. Its layer doesn't affect any vector.
        differences = sorted(
            name for name in names.keys() ^ weights.keys() if not name.startswith(_PREFIX + POOLER)
        )
        if differences:
            raise InvalidValueError(
                f"{folder / _WEIGHTS}: expected the weights that {_SETTINGS} describes, got a difference "
                f"in {', '.join(differences[:2])}, ...; {MANIFEST_ADVICE}"
            )
        adapter_weights = {names[key]: weight for key, weight in weights.items() if key in names}
        model.load_state_dict(adapter_weights, strict=False)
    remove_adapters(model, merge=True)


def _lora(settings: Record) -> PeftConfig:
    """Converts the settings of a file with plain LoRA to peft's. Other settings could name code to import."""
    peft = require("peft", settings.where)
    if settings.text("peft_type") != "LORA":
        raise settings.refusal("LORA", settings.values["peft_type"], "peft_type")
    arguments = {
        "r": settings.integer("r", least=1),
        "lora_alpha": settings.number("lora_alpha"),
        "target_modules": settings.texts("target_modules"),
        **{name: settings.flag(name, False) for name in _FLAGS},
    }
    lora: PeftConfig = peft.LoraConfig(**arguments)
    defaults = peft.LoraConfig().to_dict()
    for name, value in settings.values.items():
        if name not in arguments and name not in _UNREAD and value and value != defaults.get(name):
            raise settings.refusal("plain LoRA", value, name)
    return lora
