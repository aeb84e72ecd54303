"""The plan: one chain of views per role, checked when it is built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from contrastive_text.random import RowRandom
from contrastive_text.types import ROLES, Alter, Batch, Role, Tokens
from contrastive_text.views.base import EmbeddingView, TextView, TokenView, View

_LEVELS = ("text views", "token views", "token views after special tokens", "embedding views")


def _level(view: View, where: str) -> int:
    if isinstance(view, TextView):
        return 0
    if isinstance(view, TokenView):
        return 2 if view.after_specials else 1
    if isinstance(view, EmbeddingView):
        return 3
    raise TypeError(
        f"{where}: expected a TextView, TokenView or EmbeddingView, got {type(view).__name__}; "
        "derive it from the base class of the level it alters"
    )


class ViewPlan:
    """Which views run on which role, in the written order.

    Args:
        views: Role -> chain. Text views come before token views, those before token views that see special
            tokens, and embedding views last; a role without a chain is left unaltered.

    Raises:
        ValueError: An unknown role, or a chain whose levels are out of order.
        TypeError: Something that is not a view.

    Example:
        >>> from contrastive_text.views import DeleteTokens, SwapWords
        >>> ViewPlan({"positive": [DeleteTokens(), SwapWords()]})
        Traceback (most recent call last):
        ValueError: views.positive: expected text views before token views, got SwapWords after ...
    """

    def __init__(self, views: Mapping[str, Sequence[View]] | None = None) -> None:
        self.chains: dict[Role, tuple[View, ...]] = {}
        for name, chain in (views or {}).items():
            role = next((role for role in ROLES if role == name), None)
            if role is None:
                raise ValueError(
                    f"views.{name}: expected one of the roles {', '.join(ROLES)}, got {name!r}; "
                    "a chain of views belongs to a role"
                )
            self._check_order(role, chain)
            self.chains[role] = tuple(chain)

    @staticmethod
    def _check_order(role: str, chain: Sequence[View]) -> None:
        levels = [_level(view, f"views.{role}[{i}]") for i, view in enumerate(chain)]
        for i in range(1, len(levels)):
            if levels[i] < levels[i - 1]:
                late, early = (type(chain[j]).__name__ for j in (i, i - 1))
                raise ValueError(
                    f"views.{role}: expected {_LEVELS[levels[i]]} before {_LEVELS[levels[i - 1]]}, "
                    f"got {late} after {early}; move {late} before {early}"
                )

    @property
    def roles(self) -> tuple[Role, ...]:
        """The roles that have a chain."""
        return tuple(self.chains)

    @property
    def has_embedding_views(self) -> bool:
        """Whether any role has an embedding view."""
        return any(isinstance(view, EmbeddingView) for chain in self.chains.values() for view in chain)

    def alter_text(self, role: Role, text: str, rng: np.random.Generator) -> str:
        """Gives the text after the role's text views."""
        for view in self.chains.get(role, ()):
            if isinstance(view, TextView):
                text = view(text, rng)
        return text

    def alter_tokens(
        self, role: Role, tokens: Tokens, rng: np.random.Generator, after_specials: bool = False
    ) -> Tokens:
        """Gives the tokens after the role's token views, those before or those after special tokens."""
        for view in self.chains.get(role, ()):
            if isinstance(view, TokenView) and view.after_specials == after_specials:
                tokens = view(tokens, rng)
        return tokens

    def alter_embeddings(self, batch: Batch) -> Alter | None:
        """Gives the alteration of a batch's embedding output, or None if no role has an embedding view."""
        chains = {
            role: found
            for role, chain in self.chains.items()
            if (found := [view for view in chain if isinstance(view, EmbeddingView)])
        }
        if not chains:
            return None

        def alter(embeddings: Tensor, mask: Tensor) -> Tensor:
            for role, chain in chains.items():
                rows = batch.by_role(role)
                part, part_mask, keys = embeddings[rows], mask[rows], batch.draw_keys[rows]
                for number, view in enumerate(chain):
                    part = view(part, part_mask, RowRandom(keys, view=number))
                embeddings = embeddings.index_copy(0, rows, part)
            return embeddings

        return alter
