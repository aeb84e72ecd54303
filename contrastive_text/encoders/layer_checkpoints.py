"""Layers that keep their input alone, and are computed anew in the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.encoders.packing import in_packing_of_now


def checkpoint_layers(model: PreTrainedModel) -> None:
    """Lets each layer of a network keep its input alone in training; the gradient has the same bits.

    Chen et al. 2016, https://arxiv.org/abs/1604.06174. The layers are those that Transformers'
    ``gradient_checkpointing_enable`` finds, with another function: that one's second pass would not know of
    packed rows, and it makes embeddings require a gradient, which frozen ones under adapters needn't have here.

    Raises:
        ValueError: An architecture whose layers Transformers can't compute anew.
    """
    layers = [part for part in model.modules() if isinstance(part, GradientCheckpointingLayer)]
    if not layers:
        raise InvalidValueError(
            "encoder.gradient_checkpointing: expected an architecture whose layers Transformers can compute anew "
            f"(BERT, ModernBERT, Llama, Qwen, ...), got {model.config.model_type}; leave it out, and bound "
            "model.chunk_tokens"
        )
    for layer in layers:
        layer.gradient_checkpointing = True
        vars(layer)["_gradient_checkpointing_func"] = _computed_anew


def _computed_anew(layer: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Calls a layer, with the same masks of dropout and over the same rows in the backward pass."""
    output: Tensor = checkpoint(in_packing_of_now(layer), *inputs, use_reentrant=False)
    return output


def checkpointed_by_others(model: nn.Module) -> bool:
    """Whether a network has layers that another function computes anew, which knows nothing of packed rows."""
    functions = (vars(layer).get("_gradient_checkpointing_func") for layer in _checkpointed(model))
    return any(function is not _computed_anew for function in functions)


@contextmanager
def one_layer_kept(model: nn.Module) -> Iterator[None]:
    """Lets the last layer keep its activations, as each does in its turn of the backward pass."""
    last = _checkpointed(model)[-1:]
    for layer in last:
        vars(layer)["gradient_checkpointing"] = False
    try:
        yield
    finally:
        for layer in last:
            vars(layer)["gradient_checkpointing"] = True


def _checkpointed(model: nn.Module) -> list[nn.Module]:
    return [part for part in model.modules() if vars(part).get("gradient_checkpointing")]
