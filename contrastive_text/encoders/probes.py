"""What a network does that its configuration doesn't say for certain: found by trying it out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal, TypeAlias, get_args

import torch
from torch import nn
from transformers import PreTrainedModel

from contrastive_text.core.errors import InvalidValueError, first_line
from contrastive_text.core.libraries import is_failure, quiet
from contrastive_text.encoders.layouts import natural_positions, pad, token_mask
from contrastive_text.encoders.network_classes import padding_id, text_config
from contrastive_text.encoders.packing import ATTENTION, Packing, packed

_LONGEST_TRIED = 2048
"""Limit up to which a longer packed row is tried: networks with larger ones name what they were trained with."""
Attention: TypeAlias = Literal["causal", "bidirectional"]


@contextmanager
def _trying(model: nn.Module) -> Iterator[None]:
    """Runs a network without dropout or gradient, and leaves each part of it in its own mode."""
    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, mode in modes:
            part.training = mode


def why_not_packed(model: PreTrainedModel, limit: int | None, first_position: int) -> str | None:
    """Returns the reason against packed rows; None if there is none.

    Some architectures ignore the attention function that they are given, or do more than it does: so the
    values of padded rows under their own are held against those of packed rows under ours.

    Args:
        model: The network, on the CPU; it has its own attention afterwards.
        limit: Longest row that it takes; None for no limit.
        first_position: Number of the first token's place.
    """
    name, own = model.config.model_type, model.config._attn_implementation
    if not model.is_backend_compatible():  # type: ignore[no-untyped-call]  # theirs
        return f"{name} takes no other attention function"
    try:  # a damaged limit, too, is refused with the first text
        lengths = torch.tensor([_trial_length(model, limit), 2, 2])
        ids = torch.arange(5, 5 + int(lengths.sum())) % text_config(model.config).vocab_size
        places, mask = natural_positions(lengths) + first_position, token_mask(lengths)
        padded = {"input_ids": pad(ids, mask, fill=padding_id(model.config)), "attention_mask": mask.long()}
        with _trying(model), quiet():
            expected = model(**padded).last_hidden_state[mask]
            model.set_attn_implementation(ATTENTION)
            with packed(Packing.of(lengths)):
                reached = model(input_ids=ids[None], position_ids=places[None]).last_hidden_state[0]
            _check_long_row(model, limit, first_position)
        if torch.allclose(reached, expected, rtol=0, atol=_near(expected)):
            return None
        return f"{name} gives other values with packed rows"
    except (RuntimeError, TypeError, ValueError) as error:
        if not is_failure(error):
            raise
        return f"{name} can't be called with packed rows ({first_line(error)})"
    finally:
        with quiet():
            model.set_attn_implementation(own)


class _Entered(Exception):
    """Ends a pass at the first block."""


def _check_long_row(model: PreTrainedModel, limit: int | None, first_position: int) -> None:
    """Runs packed rows of more tokens in all than one row may have up to the first block of a network.

    CLIP's text network, for one, compares the length of its input with its limit.

    Raises:
        ValueError: From a network that refuses the length.
    """
    block = next((stack[0] for stack in model.modules() if isinstance(stack, nn.ModuleList) and len(stack)), None)
    if block is None or limit is None or limit > _LONGEST_TRIED:
        return

    def enter(*_: object) -> None:
        raise _Entered

    lengths = torch.full((limit // 2 + 1,), 2)
    places = natural_positions(lengths) + first_position
    handle = block.register_forward_pre_hook(enter)
    try:
        with packed(Packing.of(lengths)), suppress(_Entered):
            model(input_ids=torch.full_like(places, 5)[None], position_ids=places[None])
    finally:
        handle.remove()


def _trial_length(model: PreTrainedModel, limit: int | None) -> int:
    """Returns the length of a row that shows what attention does: more than a window, where there is one."""
    settings = text_config(model.config).to_dict()
    windows = [settings.get(name) for name in ("sliding_window", "local_attention")]
    length = max([7, *(window + 3 for window in windows if isinstance(window, int))])
    return min(length, limit or length)


def heeds_positions(model: PreTrainedModel, first_position: int) -> bool:
    """Whether a network reads positions: relative ones (DeBERTa-v2, T5) would be silently ignored."""
    ids = torch.arange(4, device=model.device)[None]
    orders = [torch.tensor([order]).to(ids) + first_position for order in ([0, 1, 2, 3], [2, 0, 3, 1])]
    try:
        with _trying(model):
            natural, other = (
                model(input_ids=ids, attention_mask=torch.ones_like(ids), position_ids=order).last_hidden_state
                for order in orders
            )
    except TypeError:
        return False
    return not torch.equal(natural, other)


def is_causal(model: PreTrainedModel) -> bool:
    """Whether no token sees a later one, as in decoders; tried out, for settings can say otherwise.

    Of three texts the second differs from the first in its last token and the third in its first one: what
    that does to the token at the other end is compared.
    """
    a, b, c, d, other = [i for i in range(5, 12) if i != padding_id(model.config)][:5]
    texts = [[a, b, c, d], [a, b, c, other], [other, b, c, d]]
    ids = torch.tensor(texts, device=model.device) % text_config(model.config).vocab_size
    # A compiled network would be compiled once more, without a gradient, for this alone.
    with _trying(model), torch.compiler.set_stance("force_eager"):
        output = model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
    backward = (output[1, 0] - output[0, 0]).abs().max()
    forward = (output[2, -1] - output[0, -1]).abs().max()
    # Where tokens see each other both are of one size; where they don't, one is 0, or its rounding.
    return bool(backward < 1e-3 * forward)


def set_attention(model: PreTrainedModel, attention: Attention | None) -> None:
    """Makes each token of a network see all tokens of its row, or none after it.

    Since 5.2 Transformers reads ``is_causal`` of a configuration, for rows with and without padding. Older
    versions, and architectures with masks of their own, ignore it or obey it for some rows: so it is tried out.

    Args:
        model: The network; its configuration says so afterwards, where it wasn't so before.
        attention: None leaves it as it is.

    Raises:
        ValueError: Another name, or a network that can't be made so.
    """
    if attention is None:
        return
    if attention not in get_args(Attention):
        raise InvalidValueError(
            f"encoder.attention: expected {', '.join(get_args(Attention))} or null, got {attention!r}"
        )
    causal = attention == "causal"
    if is_causal(model) == causal:
        return
    model.config.is_causal = causal
    if is_causal(model) != causal or not ignores_padding(model):
        raise InvalidValueError(
            f"encoder.attention: expected an architecture that can be {attention}, got "
            f"{model.config.model_type}, which has its own in this version of Transformers; leave attention out, "
            "or take another encoder"
        )


def ignores_padding(model: PreTrainedModel, limit: int | None = None) -> bool:
    """Returns whether a row has the same vectors with padding after it as alone, by the two ways to make a mask.

    Args:
        model: The network.
        limit: Longest row that it takes; None for no limit.
    """
    length = min(5, limit or 5)
    short = -(-length // 2)
    ids = (
        torch.arange(5, 5 + length, device=model.device).expand(2, length) % text_config(model.config).vocab_size
    )
    mask = torch.ones_like(ids)
    mask[1, short:] = 0
    ids = torch.where(mask.bool(), ids, padding_id(model.config))  # MobileBERT reads a token's neighbors
    with _trying(model), torch.compiler.set_stance("force_eager"):
        beside = model(input_ids=ids, attention_mask=mask).last_hidden_state[1, :short]
        alone = model(input_ids=ids[1:, :short], attention_mask=mask[1:, :short]).last_hidden_state[0]
    return torch.allclose(beside, alone, rtol=0, atol=_near(alone))


def _near(values: torch.Tensor) -> float:
    """Returns the difference that rounding explains: some 1e-6 of the largest float32, 1e-2 of bfloat16."""
    return max(1e-4, 8 * torch.finfo(values.dtype).eps) * float(values.abs().max())
