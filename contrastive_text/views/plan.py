"""The plan: one chain of views per role, checked when it is built."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from torch import Tensor

from contrastive_text.random import RowRandom
from contrastive_text.types import ROLES, Alter, Batch, Role, Tokens, Vocabulary
from contrastive_text.views.base import EmbeddingView, GradientView, TextView, TokenView, View
from contrastive_text.views.network import FixedDropout

_LEVELS = (
    "text views",
    "token views",
    "token views after special tokens",
    "embedding views",
    "gradient views",
    "FixedDropout",
)


def _level(view: View, where: str) -> int:
    if isinstance(view, TextView):
        return 0
    if isinstance(view, TokenView):
        return 2 if view.after_specials else 1
    if isinstance(view, EmbeddingView):
        return 3
    if isinstance(view, GradientView):
        return 4
    if isinstance(view, FixedDropout):
        return 5
    raise TypeError(
        f"{where}: expected a TextView, TokenView, EmbeddingView or GradientView, got {type(view).__name__}; "
        "derive it from the base class of the level it alters"
    )


def _may_change_length(view: View) -> bool:
    known = isinstance(view, TokenView) and (view.sets_labels or view.sets_positions)
    return isinstance(view, TextView | TokenView) and not known


class ViewPlan:
    """Which views run on which role, in the written order.

    Args:
        views: Role -> chain. Text views come before token views, those before token views that see special
            tokens, then embedding views, and last a gradient view; a role without a chain is left unaltered.

    Raises:
        ValueError: An unknown role, a chain whose levels are out of order, two gradient views on a role, or
            ``FixedDropout`` on the anchor, whose masks it repeats.
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
        for role in ("anchor", *self.fixed_dropout) if self.fixed_dropout else ():
            if any(map(_may_change_length, self.chains.get(role, ()))):
                raise ValueError(
                    f"views.{role}: expected no view that may change a text's length beside FixedDropout, got "
                    f"{', '.join(type(view).__name__ for view in self.chains[role])}; masks are laid over places"
                )
        if "anchor" in self.fixed_dropout:
            raise ValueError(
                "views.anchor: expected no FixedDropout, got one; it repeats the anchor's dropout masks, so put "
                "it on positive"
            )

    @staticmethod
    def _check_order(role: str, chain: Sequence[View]) -> None:
        levels = [_level(view, f"views.{role}[{i}]") for i, view in enumerate(chain)]
        for i in range(1, len(levels)):
            late, early = (type(chain[j]).__name__ for j in (i, i - 1))
            if levels[i] < levels[i - 1]:
                raise ValueError(
                    f"views.{role}: expected {_LEVELS[levels[i]]} before {_LEVELS[levels[i - 1]]}, "
                    f"got {late} after {early}; move {late} before {early}"
                )
            if levels[i] == levels[i - 1] >= 4:
                raise ValueError(f"views.{role}: expected one {early} at most, got {late} after it; drop one")

    @property
    def roles(self) -> tuple[Role, ...]:
        """The roles that have a chain."""
        return tuple(self.chains)

    @property
    def text_roles(self) -> tuple[Role, ...]:
        """The roles that have a text view."""
        return tuple(r for r, chain in self.chains.items() if any(isinstance(v, TextView) for v in chain))

    def each(self) -> Iterator[tuple[str, View]]:
        """Gives every view with its place in the configuration, such as ``views.anchor[0]``."""
        for role, chain in self.chains.items():
            for number, view in enumerate(chain):
                yield f"views.{role}[{number}]", view

    @property
    def gradient_views(self) -> dict[Role, GradientView]:
        """The gradient view of each role that has one."""
        each = ((role, view) for role, chain in self.chains.items() for view in chain)
        return {role: view for role, view in each if isinstance(view, GradientView)}

    @property
    def fixed_dropout(self) -> tuple[Role, ...]:
        """The roles that repeat the anchor's dropout masks."""
        return tuple(r for r, chain in self.chains.items() if any(isinstance(v, FixedDropout) for v in chain))

    @property
    def new_tokens(self) -> tuple[str, ...]:
        """The tokens that the views need in the vocabulary."""
        return tuple(dict.fromkeys(token for _, view in self.each() for token in view.new_tokens))

    def build(self, vocabulary: Vocabulary) -> None:
        """Gives every view what it needs of the tokenizer."""
        for _, view in self.each():
            view.build(vocabulary)

    def alter_texts(self, role: Role, texts: Sequence[str], rngs: Sequence[np.random.Generator]) -> list[str]:
        """Gives the texts after the role's text views, each with its own generator."""
        altered = list(texts)
        for view in self.chains.get(role, ()):
            if isinstance(view, TextView):
                altered = view.alter_all(altered, rngs)
        return altered

    def alter_tokens(
        self, role: Role, tokens: Tokens, rng: np.random.Generator, after_specials: bool = False
    ) -> Tokens:
        """Gives the tokens after the role's token views, those before or those after special tokens."""
        for view in self.chains.get(role, ()):
            if isinstance(view, TokenView) and view.after_specials == after_specials:
                tokens = view(tokens, rng)
        return tokens

    def alter_embeddings(self, batch: Batch, gradient: Tensor | None = None) -> Alter | None:
        """Gives the alteration of a batch's embedding output, or None if there is none.

        Args:
            batch: The rows that will be encoded.
            gradient: What gradient views follow, (S, L, D); None for the pass that finds it.
        """
        wanted = EmbeddingView if gradient is None else (EmbeddingView, GradientView)
        chains = {
            role: found
            for role, chain in self.chains.items()
            if (found := [(number, view) for number, view in enumerate(chain) if isinstance(view, wanted)])
        }
        if not chains:
            return None

        def alter(embeddings: Tensor, mask: Tensor) -> Tensor:
            for role, chain in chains.items():
                rows = batch.by_role(role)
                if not len(rows):  # rows of a role may all stand in other blocks
                    continue
                part, part_mask, keys = embeddings[rows], mask[rows], batch.draw_keys[rows]
                for number, view in chain:
                    rng = RowRandom(keys, view=number)
                    if isinstance(view, EmbeddingView):
                        part = view(part, part_mask, rng)
                    elif isinstance(view, GradientView) and gradient is not None:
                        part = view(part, gradient[rows], part_mask, rng)
                embeddings = embeddings.index_copy(0, rows, part.to(embeddings.dtype))
            return embeddings

        return alter
