"""Layers that heads of several objectives have in common."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.heads.base import Head


def share_layers(heads: Sequence[Head]) -> None:
    """Makes heads of one ``share`` name hold the very same first linear layers.

    Called once all heads are built: in the given order, the first head of a name keeps its layers, the later
    ones take those in place of their own. What lies between the linear layers stays each head's own.

    Raises:
        ValueError: Heads of one name that differ in class, in ``shared_layers`` or in the widths of the
            shared layers, or that have fewer linear layers than they share.

    Example:
        >>> from contrastive_text.heads import MLPHead
        >>> heads = [MLPHead(out_features=size, share="pairs", shared_layers=1) for size in (2, 3)]
        >>> for head in heads:
        ...     head.build(4)
        >>> share_layers(heads)
        >>> [one is other for one, other in zip(*(head.parameters() for head in heads))]
        [True, True, False, False]
    """
    first: dict[str, Head] = {}
    for head in heads:
        if head.share is not None:
            _take_layers(head, first.setdefault(head.share, head), f"share: {head.share}")


def _take_layers(head: Head, lender: Head, where: str) -> None:
    if head.network is None or lender.network is None:
        raise RuntimeError("share_layers: expected heads whose build(features) has run")
    if type(head) is not type(lender) or head.shared_layers != lender.shared_layers:
        described = [f"{type(one).__name__} with shared_layers: {one.shared_layers}" for one in (lender, head)]
        raise InvalidValueError(
            f"{where}: expected heads of one class that share as many layers, got {' and '.join(described)}; "
            "make them alike, or give them different names"
        )
    own, lent = _linear_layers(head.network), _linear_layers(lender.network)
    count = max(len(own), len(lent)) if head.shared_layers is None else head.shared_layers
    shapes = [[(layer.in_features, layer.out_features) for _, layer in one[:count]] for one in (lent, own)]
    if shapes[0] != shapes[1] or not 1 <= count <= len(own):
        raise InvalidValueError(
            f"{where}: expected {count} linear layers of equal widths at the start of each head, got "
            f"{' and '.join(map(str, shapes))} (inputs, outputs); set shared_layers or the widths, or give the "
            "heads different names"
        )
    for (place, _), (_, layer) in zip(own[:count], lent[:count], strict=True):
        head.network[place] = layer


def _linear_layers(network: nn.Sequential) -> list[tuple[int, nn.Linear]]:
    return [(place, layer) for place, layer in enumerate(network) if isinstance(layer, nn.Linear)]
