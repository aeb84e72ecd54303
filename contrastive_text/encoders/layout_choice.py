"""Which layout the rows of a network have on a device, and what it needs for that."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, get_args

import torch
from transformers import PreTrainedModel

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.libraries import quiet
from contrastive_text.encoders.layer_checkpoints import checkpointed_by_others
from contrastive_text.encoders.layouts import FixedLayout, Layout
from contrastive_text.encoders.packing import ATTENTION
from contrastive_text.encoders.probes import ignores_padding, why_not_packed


class LayoutChoice(NamedTuple):
    """What was asked for, and what a network can have.

    Args:
        asked: By the user.
        why_not_packed: The reason against packed rows; None if there is none.
    """

    asked: Layout
    why_not_packed: str | None

    @classmethod
    def of(
        cls, model: PreTrainedModel, asked: Layout, compiled: bool, limit: int | None, first_position: int
    ) -> LayoutChoice:
        """Gives a network our attention where its rows may be packed.

        Args:
            model: The network.
            asked: As ``encoder.layout``.
            compiled: Whether its blocks are.
            limit: Longest row that it takes; None for no limit.
            first_position: Number of the first token's place.

        Raises:
            ValueError: Another name, ``packed`` for a network that can't have it, or a network whose vectors
                depend on padding.
        """
        if asked not in get_args(Layout):
            raise InvalidValueError(
                f"encoder.layout: expected one of {', '.join(get_args(Layout))}, got {asked!r}"
            )
        reason = (
            "a compiled network takes no packed rows"
            if compiled
            else why_not_packed(model, limit, first_position)
        )
        heeds_padding = False
        with suppress(
            RuntimeError, TypeError, IndexError
        ):  # a network that can't be called is refused with a text
            heeds_padding = reason is not None and not ignores_padding(model, limit)
        if heeds_padding:
            raise InvalidValueError(
                "encoder: expected a network whose vectors of a text are the same next to padding, got "
                f"{model.config.model_type}, whose vectors would depend on the other texts of the batch; take "
                "another encoder"
            )
        if asked == "packed" and reason:
            raise InvalidValueError(
                f"encoder.layout: expected bucketed, padded or auto, for {reason}, got packed"
            )
        if reason is None:
            with quiet():
                model.set_attn_implementation(ATTENTION)
        return cls(asked, reason if asked in ("auto", "packed") else "another was asked for")

    def on(
        self,
        device: torch.device,
        model: PreTrainedModel,
        of_any: Callable[[torch.device], tuple[FixedLayout, str]],
    ) -> tuple[FixedLayout, str]:
        """Returns the layout on a device, and why.

        Args:
            device: Where the rows are.
            model: The network.
            of_any: Gives the layout that any network has there, and why.

        Raises:
            ValueError: ``packed``, and layers are checkpointed by others: they would be computed anew unpacked.
        """
        by_others = checkpointed_by_others(model)
        if self.asked == "packed" and by_others:
            raise InvalidValueError(
                "encoder.layout: expected auto, bucketed or padded, for layers are checkpointed by another "
                "function, whose gradient would be another, got packed; or set encoder.gradient_checkpointing "
                "instead"
            )
        if self.asked != "auto":
            return self.asked, "as asked for"
        reason = self.why_not_packed
        if by_others:
            reason = "layers are checkpointed by another function: encoder.gradient_checkpointing does it packed"
        if reason:
            layout, why = of_any(device)
            return layout, f"{why}; not packed, for {reason}"
        if device.type == "cpu":
            return "packed", "the fastest on a CPU: no padding in any layer"
        if device.type == "cuda" and torch.version.hip is None:
            return "packed", "torch's kernels take rows of any lengths: no padding in any layer"
        return of_any(device)
