"""Behavior of a network that its configuration doesn't tell for certain. It is found by running the network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal, TypeAlias

import torch
from torch import nn
from transformers import PreTrainedModel

from contrastive_text.core.checks import one_of
from contrastive_text.core.errors import InvalidValueError, first_line
from contrastive_text.core.libraries import is_failure, quiet
from contrastive_text.encoders.layouts import FixedLayout, Layout, natural_positions, pad, token_mask
from contrastive_text.encoders.networks import first_position, padding_id, text_config
from contrastive_text.encoders.packing import ATTENTION, Packing, checkpointed_by_others, packed
from contrastive_text.encoders.shared_use import evaluating

_LONGEST_TRIED = 2048
"""Limit up to which a longer packed row is tried: networks with a larger limit name their training length."""
Attention: TypeAlias = Literal["causal", "bidirectional"]


@contextmanager
def _trying(model: nn.Module) -> Iterator[None]:
    """Runs a network without dropout, gradient or compilation, which would start again for this alone."""
    with evaluating(model), torch.no_grad(), torch.compiler.set_stance("force_eager"):
        yield


def prepare_layout(model: PreTrainedModel, layout: Layout, compiled: bool, limit: int | None) -> str | None:
    """Gives a network our attention if its rows may be packed.

    Args:
        model: The network.
        layout: As ``encoder.layout``.
        compiled: Whether its blocks are compiled.
        limit: Longest row that it takes; None for no limit.

    Returns:
        The reason against packed rows; None if there is none.

    Raises:
        ValueError: Another name, ``packed`` for a network that can't have it, or a network whose vectors depend
            on padding.
    """
    one_of("encoder.layout", layout, Layout)
    reason = "a compiled network takes no packed rows" if compiled else _why_not_packed(model, limit)
    reads_padding = False
    with suppress(RuntimeError, TypeError, IndexError):  # a network that can't be called is refused with a text
        reads_padding = reason is not None and not ignores_padding(model, limit)
    if reads_padding:
        raise InvalidValueError(
            "encoder: expected a network whose vectors of a text are the same next to padding, got "
            f"{model.config.model_type}, whose vectors would depend on the other texts of the batch; take "
            "another encoder"
        )
    if layout == "packed" and reason:
        raise InvalidValueError(
            f"encoder.layout: expected bucketed, padded or auto, for {reason}, got packed; take auto"
        )
    if reason is None:
        with quiet():
            model.set_attn_implementation(ATTENTION)
    return reason


def choose_layout(
    model: PreTrainedModel, layout: Layout, why_not_packed: str | None, device: torch.device
) -> tuple[FixedLayout | None, str]:
    """Returns the layout of a network's rows on a device, and a reason for it, or against ``packed``.

    Args:
        model: The network.
        layout: As ``encoder.layout``.
        why_not_packed: From ``prepare_layout``.
        device: Where the rows are.

    Returns:
        None for the layout that any network takes there.

    Raises:
        ValueError: ``packed``, and another function checkpoints layers: it would recompute them unpacked.
    """
    by_others = checkpointed_by_others(model)
    if layout == "packed" and by_others:
        raise InvalidValueError(
            "encoder.layout: expected auto, bucketed or padded, for layers are checkpointed by another function, "
            "whose gradient would be another, got packed; or set encoder.gradient_checkpointing instead"
        )
    if layout != "auto":
        return layout, "as asked for"
    if by_others:
        return None, "layers are checkpointed by another function: encoder.gradient_checkpointing does it packed"
    if why_not_packed:
        return None, why_not_packed
    if device.type == "cpu":
        return "packed", "the fastest on a CPU: no padding in any layer"
    if device.type == "cuda" and torch.version.hip is None:
        return "packed", "torch's kernels take rows of any lengths: no padding in any layer"
    return None, ""


def _why_not_packed(model: PreTrainedModel, limit: int | None) -> str | None:
    """Returns the reason against packed rows; None if there is none.

    Some architectures ignore the attention function, or do more than it does. So the values of padded rows under
    their own attention are compared with those of packed rows under ours.

    Args:
        model: The network, on the CPU; it has its own attention afterwards.
        limit: Longest row that it takes; None for no limit.
    """
    name, own, start = model.config.model_type, model.config._attn_implementation, first_position(model)
    if not model.is_backend_compatible():  # type: ignore[no-untyped-call]  # theirs
        return f"{name} takes no other attention function"
    try:  # a damaged limit, too, is refused with the first text
        lengths = torch.tensor([_trial_length(model, limit), 2, 2])
        ids = torch.arange(5, 5 + int(lengths.sum())) % text_config(model.config).vocab_size
        places, mask = natural_positions(lengths) + start, token_mask(lengths)
        padded = {"input_ids": pad(ids, mask, fill=padding_id(model.config)), "attention_mask": mask.long()}
        with _trying(model), quiet():
            expected = model(**padded).last_hidden_state[mask]
            model.set_attn_implementation(ATTENTION)
            with packed(Packing.of(lengths)):
                reached = model(input_ids=ids[None], position_ids=places[None]).last_hidden_state[0]
            _check_long_row(model, limit, start)
        if torch.allclose(reached, expected, rtol=0, atol=_rounding(expected)):
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


def _check_long_row(model: PreTrainedModel, limit: int | None, start: int) -> None:
    """Runs packed rows of more tokens in all than one row may have, up to the first block of a network.

    CLIP's text network, for example, compares the length of its input with its limit.

    Raises:
        ValueError: From a network that refuses the length.
    """
    block = next((stack[0] for stack in model.modules() if isinstance(stack, nn.ModuleList) and len(stack)), None)
    if block is None or limit is None or limit > _LONGEST_TRIED:
        return

    def enter(*_: object) -> None:
        raise _Entered

    lengths = torch.full((limit // 2 + 1,), 2)
    places = natural_positions(lengths) + start
    handle = block.register_forward_pre_hook(enter)
    try:
        with packed(Packing.of(lengths)), suppress(_Entered):
            model(input_ids=torch.full_like(places, 5)[None], position_ids=places[None])
    finally:
        handle.remove()


def _trial_length(model: PreTrainedModel, limit: int | None) -> int:
    """Returns the length of a row that shows what attention does: longer than the window, if there is one."""
    settings = text_config(model.config).to_dict()
    windows = [settings.get(name) for name in ("sliding_window", "local_attention")]
    length = max([7, *(window + 3 for window in windows if isinstance(window, int))])
    return min(length, limit or length)


def heeds_positions(model: PreTrainedModel) -> bool:
    """Returns whether a network reads positions. Relative ones (DeBERTa-v2, T5) would be silently ignored."""
    ids = torch.arange(4, device=model.device)[None]
    orders = [torch.tensor([order]).to(ids) + first_position(model) for order in ([0, 1, 2, 3], [2, 0, 3, 1])]
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
    """Returns whether no token sees a later one, as in decoders. Settings can be wrong, so texts are run.

    Of three texts the second differs from the first in its last token, the third in its first token. The effect
    of each change on the token at the other end is compared.
    """
    a, b, c, d, other = [i for i in range(5, 12) if i != padding_id(model.config)][:5]
    texts = [[a, b, c, d], [a, b, c, other], [other, b, c, d]]
    ids = torch.tensor(texts, device=model.device) % text_config(model.config).vocab_size
    with _trying(model):
        output = model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
    backward = (output[1, 0] - output[0, 0]).abs().max()
    forward = (output[2, -1] - output[0, -1]).abs().max()
    # If tokens see each other, both effects are of one size; otherwise one is 0, or rounding.
    return bool(backward < 1e-3 * forward)


def set_attention(model: PreTrainedModel, attention: Attention | None) -> None:
    """Makes each token of a network see all tokens of its row, or none after it.

    From 5.2 on Transformers reads ``is_causal`` of a configuration, for rows with and without padding. Older
    versions, and architectures with masks of their own, ignore it or obey it for some rows. So texts are run.

    Args:
        model: The network; a change is written into its configuration.
        attention: None leaves it unchanged.

    Raises:
        ValueError: Another name, or a network that can't have this attention.
    """
    if attention is None:
        return
    one_of("encoder.attention", attention, Attention)
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
    """Returns whether a row has the same vectors with padding after it as alone.

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
    with _trying(model):
        beside = model(input_ids=ids, attention_mask=mask).last_hidden_state[1, :short]
        alone = model(input_ids=ids[1:, :short], attention_mask=mask[1:, :short]).last_hidden_state[0]
    return torch.allclose(beside, alone, rtol=0, atol=_rounding(alone))


def _rounding(values: torch.Tensor) -> float:
    """Returns the difference that rounding explains: some 1e-6 of the largest float32, 1e-2 of bfloat16."""
    return max(1e-4, 8 * torch.finfo(values.dtype).eps) * float(values.abs().max())
