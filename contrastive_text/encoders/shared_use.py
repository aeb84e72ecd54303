"""Inference with a network that other threads use. It isn't changed, and changes by other threads are refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import nn

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.encoders.base import Encoder, training_threads

_OWN_DICTS = ("_buffers", "_forward_hooks", "_forward_pre_hooks")
"""Dictionaries of a module to which Transformers adds entries during a forward pass."""

_switching = threading.RLock()


def _is_trained_elsewhere(encoder: nn.Module) -> bool:
    """Returns whether another running thread trains an encoder."""
    thread = training_threads.get(encoder)
    if not encoder.training or thread is None or thread == threading.get_ident():
        return False
    return any(other.ident == thread for other in threading.enumerate())


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switches dropout off inside the block, and restores the mode of each module afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def shared_network(model: nn.Module) -> Iterator[nn.Module]:
    """Yields a network in evaluation mode that other threads may use at the same time.

    A network in evaluation mode is yielded itself. For any other network a copy of its modules with the same
    weights is yielded, so that a thread that trains the network keeps its dropout.

    Args:
        model: The network.

    Raises:
        ValueError: The network is in training in another thread, or its weights changed in the meantime.
    """
    parts = list(model.modules())
    versions = _weight_versions(parts)
    is_in_training = any(part.training for part in parts)
    if is_in_training and any(map(_is_bound, parts)):
        with _switching, evaluating(model):
            yield model
    elif is_in_training or any(map(_has_changing_frequencies, parts)):
        yield _evaluation_copy(model, {})
    else:
        yield model
    if versions != _weight_versions(parts):
        raise InvalidValueError(
            "encode: expected unchanged weights, got weights that another thread changed during the call; train "
            "a copy of the model instead (copy.deepcopy)"
        )


def _weight_versions(parts: Sequence[nn.Module]) -> list[tuple[int, int]]:
    """Returns identity and version of each weight. Raises ValueError if another thread trains the network."""
    for part in parts:
        if isinstance(part, Encoder) and _is_trained_elsewhere(part):
            raise InvalidValueError(
                f"encode: expected a model that no other thread trains, got a {type(part).__name__} in training; "
                "train a copy of the model instead (copy.deepcopy), or call model.eval() after the training"
            )
    weights = [weight for part in parts for weight in part._parameters.values() if weight is not None]
    return [(id(weight), 0 if weight.is_inference() else weight._version) for weight in weights]


def _is_bound(part: nn.Module) -> bool:
    """Returns whether a copy of a module can't run: its forward is compiled or replaced, or its weights split."""
    has_split_weights = isinstance(part, Encoder) and part.equalize_groups
    return has_split_weights or part._compiled_call_impl is not None or "forward" in vars(part)


def _has_changing_frequencies(part: nn.Module) -> bool:
    """Returns whether a module recomputes the frequencies of rotary positions from the rows of each pass."""
    rope_types = vars(part).get("rope_type")
    names = rope_types.values() if isinstance(rope_types, dict) else [rope_types]
    return any(isinstance(name, str) and (name == "longrope" or "dynamic" in name) for name in names)


def _evaluation_copy(part: nn.Module, copies: dict[int, nn.Module]) -> nn.Module:
    """Copies a module and its children in evaluation mode, sharing their weights.

    Args:
        part: The module.
        copies: Identity of a module -> its copy, for the copies made so far.
    """
    if id(part) in copies:
        return copies[id(part)]
    copy = copies[id(part)] = object.__new__(type(part))  # without calling ``__init__`` or unpickling
    dictionaries = {name: vars(part)[name].copy() for name in _OWN_DICTS}
    vars(copy).update(vars(part) | dictionaries | {"training": False})
    if _has_changing_frequencies(part):
        buffers = part._buffers.items()
        vars(copy)["_buffers"] = {name: None if buffer is None else buffer.clone() for name, buffer in buffers}
    vars(copy)["_modules"] = {
        name: None if child is None else _evaluation_copy(child, copies) for name, child in part._modules.items()
    }
    return copy
