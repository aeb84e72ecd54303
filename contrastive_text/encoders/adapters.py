"""Adapters: small matrices that are trained beside the weights of a network, which stay as they are."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, get_args

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.libraries import require
from contrastive_text.encoders.four_bits import in_four_bits, make_plain, plain_layer

if TYPE_CHECKING:
    from peft import PeftConfig

WeightsType: TypeAlias = Literal["float32", "bfloat16", "nf4"]
"""Types of weights under adapters; ``nf4`` has 4 bits (QLoRA)."""
_WHERE = "encoder.adapters"


class Adapters(ABC):
    """Base class of adapters: a tuner of peft's that can be merged into the weights.

    Args of a subclass are its own; what it adapts is what its ``settings`` name.

    Attributes:
        dropout: Probability with which the input of an adapter is dropped.

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
        """Returns peft's settings.

        Args:
            layers: Names of all linear layers of the network's blocks.
        """

    def put_into(self, model: PreTrainedModel) -> frozenset[str]:
        """Puts adapters into a network in place, float32, and freezes all other weights.

        Returns:
            The names of the adapters' weights.

        Raises:
            ImportError: peft isn't installed.
            ValueError: Settings that peft refuses.
        """
        settings = self.settings([*_linear_layers(model)])
        return inject(model, settings)


class LoRA(Adapters):
    """Adds a product of two thin matrices to each weight matrix: W + alpha / rank * B A, of which B begins as 0.

    Hu et al. 2021, https://arxiv.org/abs/2106.09685, by peft. The defaults are those of their RoBERTa-base (table
    9), and peft's; they adapt the query's and the value's matrices alone. Here all linear layers of the blocks
    are adapted unless ``targets`` names some: that is what reaches full training (Dettmers et al. 2023, QLoRA,
    https://arxiv.org/abs/2305.14314, section 4).

    Args:
        rank: Columns of B and rows of A, 1 or more.
        alpha: Strength, positive; the product is multiplied by alpha / rank.
        dropout: Probability with which a feature that enters A is dropped, in [0, 1).
        targets: How names of the layers to adapt end, such as ``query``; None for all linear layers of blocks.

    Raises:
        ValueError: A value is out of its range.

    Example:
        >>> LoRA(rank=16, alpha=32, targets=["query", "value"]).targets
        ['query', 'value']
    """

    def __init__(
        self, rank: int = 8, alpha: float = 8.0, dropout: float = 0.0, targets: list[str] | None = None
    ) -> None:
        if rank < 1:
            raise InvalidValueError(f"LoRA.rank: expected 1 or more, got {rank}; 8 to 64 are usual")
        if not 0 < alpha < math.inf:
            raise InvalidValueError(f"LoRA.alpha: expected a positive number, got {alpha}; try the rank")
        if not 0 <= dropout < 1:
            raise InvalidValueError(f"LoRA.dropout: expected a probability in [0, 1), got {dropout}")
        if targets is not None and not targets:
            raise InvalidValueError("LoRA.targets: expected names of layers, or null for all, got none")
        self.rank = rank
        self.alpha = alpha
        self.dropout = dropout
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
                known = dict.fromkeys(layer.rpartition(".")[2] for layer in layers)
                raise InvalidValueError(
                    f"LoRA.targets: expected ends of names of linear layers ({', '.join(known)}), got {target!r}"
                )
        chosen = [each for each in layers if any(_ends(each, target) for target in self.targets or [each])]
        settings: PeftConfig = peft.LoraConfig(
            r=self.rank, lora_alpha=self.alpha, lora_dropout=self.dropout, target_modules=chosen
        )
        return settings


def check_base(adapters: Adapters | None, config: object, weights_dtype: str) -> None:
    """Checks that the weights of a network go with its adapters, or with none.

    Raises:
        ValueError: Weights under adapters that start at random, or a type for which there are no adapters.
    """
    if weights_dtype not in get_args(WeightsType):
        raise InvalidValueError(
            f"encoder.weights_dtype: expected one of {', '.join(get_args(WeightsType))}, got {weights_dtype!r}"
        )
    if adapters is None and weights_dtype != "float32":
        raise InvalidValueError(
            "encoder.weights_dtype: expected float32 for weights that are trained, whose small steps would be "
            f"rounded away, got {weights_dtype}; set encoder.adapters too"
        )
    if adapters is not None and config is not None:
        raise InvalidValueError(
            f"{_WHERE}: expected a pretrained model (model_name_or_path), got a config: weights that start "
            "at random and are not trained would be in no checkpoint"
        )


def _ends(name: str, target: str) -> bool:
    return name == target or name.endswith(f".{target}")


def _linear_layers(model: nn.Module) -> Iterator[str]:
    """Yields the names of the linear layers of a network's blocks."""
    stacks = tuple(f"{name}." for name, part in model.named_modules() if isinstance(part, nn.ModuleList))
    for name, part in model.named_modules():
        if isinstance(part, nn.Linear | Conv1D) and name.startswith(stacks):
            yield name


def inject(model: PreTrainedModel, settings: PeftConfig) -> frozenset[str]:
    """Puts the adapters of peft's settings into a network in place; see ``Adapters.put_into``."""
    peft = require("peft", _WHERE)
    before = {name for name, _ in model.named_parameters()}
    try:
        peft.inject_adapter_in_model(settings, model)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise InvalidValueError(f"{_WHERE}: expected settings that peft takes, got {error}") from error
    added = {name: each for name, each in model.named_parameters() if plain_name(name) not in before}
    for weight in added.values():
        weight.data = weight.data.float()  # whatever the network's own are
    return frozenset(added)


def plain_name(name: str) -> str:
    """Returns the name that a weight has in the network without adapters.

    Example:
        >>> plain_name("layer.0.query.base_layer.weight")
        'layer.0.query.weight'
    """
    return name.replace(".base_layer.", ".")


def take_out(model: PreTrainedModel, merge: bool) -> None:
    """Takes the adapters out of a network in place; all its weights can be trained again.

    Args:
        model: The network.
        merge: Whether what they have learned is added to the weights, which become float32 where they are of a
            smaller type.
    """
    tuners = require("peft.tuners.tuners_utils", _WHERE)
    small = (torch.bfloat16, torch.float16)
    for name, layer in [*model.named_modules()]:
        if isinstance(layer, tuners.BaseTunerLayer):
            adapted = cast(Any, layer)  # peft's layers differ, and have these methods
            plain = adapted.get_base_layer()
            if in_four_bits(plain):
                plain = plain_layer(plain)
                if merge:
                    plain.weight.data += adapted.get_delta_weight("default").float()
            elif merge:
                if plain.weight.dtype in small:
                    plain.float()
                adapted.merge(safe_merge=True)
            model.set_submodule(name, plain)
    make_plain(model)
    if merge and model.dtype in small:
        nn.Module.to(model, torch.float32)
    del model.peft_config
    model.requires_grad_(True)
