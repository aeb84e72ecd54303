"""Settings of a network that follows the trained one, whose vectors are keys."""

from __future__ import annotations

from typing import Literal, get_args

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.types import ROLES, Role

KeyHead = Literal["copied", "trained"]


class Momentum:
    """Settings of a copy of the network that follows the trained one, without a gradient; its vectors are keys.

    ``copy <- decay * copy + (1 - decay) * trained`` after each step of the optimiser

    The copy begins as the network itself when a run begins, however its weights came. It is part of checkpoints
    and of no saved model, and costs the memory of the weights once more. Objectives with settings of their own
    have a copy each. Sources: He et al. 2020, MoCo (https://arxiv.org/abs/1911.05722), section 3.2 (0.999, keys
    of positives, with dropout and views, head and all); Wu et al. 2022, ESimCSE
    (https://arxiv.org/abs/2109.04380), section 3.2 (0.995, keys of unaltered anchors without dropout, through the
    trained head).

    When in a step the copy follows makes no option: MoCo's code does so at the start of a step, ESimCSE's between
    the forward pass and the keys. Either way the keys of a step are of a copy that has taken in the very weights
    of that step, as they are when it follows right after the optimiser.

    Differs: under accumulation the authors' codes follow with every batch, here a step of the optimiser counts
    once; one that mixed precision skips doesn't count. ESimCSE's code takes its copy before it loads the
    pretrained weights, so that theirs begins at random ones.

    Args:
        decay: Share of itself that the copy keeps in a step, from 0 (the network itself) to below 1.
        of: The role whose texts it encodes, or several.
        views: Whether it sees embedding views, with the same draws. Text and token views are in the rows already:
            without views their role must have none. Gradient views and ``FixedDropout`` act on the trained
            network alone.
        dropout: Whether it has dropout.
        head: Whether keys go through a copy of the objective's train-only head, or through the ``trained`` one.

    Raises:
        ValueError: A decay out of its range, an unknown role or head.

    Example:
        >>> Momentum(0.995, of="anchor", views=False, dropout=False, head="trained").roles
        ('anchor',)
    """

    def __init__(
        self,
        decay: float = 0.999,
        of: Role | list[Role] = "positive",
        views: bool = True,
        dropout: bool = True,
        head: KeyHead = "copied",
    ) -> None:
        self.roles: tuple[Role, ...] = (of,) if isinstance(of, str) else tuple(of)
        if not 0 <= decay < 1:
            raise InvalidValueError(
                f"Momentum.decay: expected a share from 0 to below 1, got {decay}; MoCo's is 0.999, ESimCSE's "
                "0.995"
            )
        if not self.roles or not {*self.roles} <= {*ROLES}:
            raise InvalidValueError(f"Momentum.of: expected one or more of {', '.join(ROLES)}, got {of!r}")
        if head not in get_args(KeyHead):
            raise InvalidValueError(
                f"Momentum.head: expected one of {', '.join(get_args(KeyHead))}, got {head!r}"
            )
        self.decay = decay
        self.of = of
        self.views = views
        self.dropout = dropout
        self.head = head

    def __deepcopy__(self, memo: object) -> Momentum:
        """Returns itself: copies of an objective, as ``Matryoshka`` makes them, read the same keys."""
        return self
