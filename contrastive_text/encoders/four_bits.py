"""Weights of 4 bits under adapters, by bitsandbytes: as a network is loaded, and made plain again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from transformers import BitsAndBytesConfig, PreTrainedModel

from contrastive_text.core.libraries import require

_WHERE = "encoder.weights_dtype"


def loading_options() -> dict[str, Any]:  # Any: Transformers' options
    """Returns with which options Transformers loads linear layers as NormalFloat of 4 bits.

    Their scales are quantised too, and products are computed in bfloat16 (Dettmers et al. 2023, QLoRA,
    https://arxiv.org/abs/2305.14314, sections 3 and 4).

    Raises:
        ImportError: bitsandbytes isn't installed.
    """
    require("bitsandbytes", _WHERE)
    settings = BitsAndBytesConfig(  # type: ignore[no-untyped-call]  # theirs
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
        llm_int8_skip_modules=["pooler"],  # which is kept for saving alone
    )
    # Lightning moves a module to its rank's device later; a GPU quantises faster, and holds it once.
    device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"
    return {"quantization_config": settings, "device_map": {"": device}}


def prepare(model: PreTrainedModel) -> None:
    """Makes a network that was loaded so ready for training, and its configuration that of a plain one."""
    del model.config.quantization_config
    for part in model.modules():
        if in_four_bits(part):
            # On some CPUs evaluation would pack weights once more, in a form through which no gradient goes.
            vars(part)["support_avx512bf16_for_cpu"] = False


def in_four_bits(layer: object) -> TypeGuard[nn.Linear]:
    """Whether a layer is a linear one with a packed weight."""
    return isinstance(layer, nn.Linear) and hasattr(layer.weight, "quant_state")


def plain_layer(layer: nn.Linear) -> nn.Linear:
    """Returns a float32 layer with the values that a packed weight stands for."""
    functional = require("bitsandbytes.functional", _WHERE)
    weight: Any = layer.weight  # Any: the library's
    values: Tensor = functional.dequantize_4bit(weight.data, weight.quant_state)
    plain = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None, device="meta")
    plain.weight = nn.Parameter(values.float())
    if layer.bias is not None:
        plain.bias = nn.Parameter(layer.bias.detach().float())
    return plain


def make_plain(model: PreTrainedModel) -> None:
    """Puts plain layers in the places of packed ones."""
    for name, part in [*model.named_modules()]:
        if in_four_bits(part):
            model.set_submodule(name, plain_layer(part))
    for name in ("is_loaded_in_4bit", "is_quantized", "quantization_method", "hf_quantizer"):
        vars(model).pop(name, None)


def unpacked(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns a network's state with empty weights of their own shapes in the places of packed ones."""
    packed = ((name, part) for name, part in model.named_modules() if in_four_bits(part))
    shapes = {f"{name}.weight": (part.out_features, part.in_features) for name, part in packed}
    plain = {name: value for name, value in state.items() if not is_part_of_packed(name, shapes)}
    return {
        name: torch.empty(shapes[name], device="meta") if name in shapes else value
        for name, value in plain.items()
    }


def is_part_of_packed(name: str, packed: Mapping[str, object] | frozenset[str]) -> bool:
    """Whether a name of a state is of what is kept beside a packed weight: scales, and the like.

    Example:
        >>> is_part_of_packed("up.weight.absmax", {"up.weight": None})
        True
    """
    before, found, _ = name.rpartition(".weight.")
    return bool(found) and f"{before}.weight" in packed
