"""The plan: one chain of views per role, or per slot of a role, checked when it is built."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from contrastive_text.core.batch import Batch, sent
from contrastive_text.core.errors import InvalidTypeError, InvalidValueError
from contrastive_text.core.random import RowRandom
from contrastive_text.core.types import ROLES, Alter, Frame, Role, Slot, Tokens, Vocabulary
from contrastive_text.views.base import EmbeddingView, GradientView, TextView, TokenView, View, check_returned
from contrastive_text.views.embeddings import FixedDropout

_LEVELS: tuple[tuple[str, type[View], bool], ...] = (
    ("text views", TextView, False),
    ("token views", TokenView, False),
    ("token views after special tokens", TokenView, True),
    ("embedding views", EmbeddingView, False),
    ("gradient views", GradientView, False),
    ("FixedDropout", FixedDropout, False),
)
"""Levels in their order: name, class, and whether the views see special tokens."""


def _level(view: View, where: str) -> int:
    after_specials = isinstance(view, TokenView) and view.after_specials
    for level, (_, kind, is_after) in enumerate(_LEVELS):
        if isinstance(view, kind) and after_specials == is_after:
            return level
    raise InvalidTypeError(
        f"{where}: expected a TextView, TokenView, EmbeddingView or GradientView, got {type(view).__name__}; "
        "derive it from the base class of the level it alters"
    )


def role_of(name: str) -> Role | None:
    """Returns the role of a chain's name, such as ``anchor`` or ``anchor_2``; None for another name."""
    found = re.fullmatch(r"([a-z]+)(_[1-9][0-9]*)?", name)
    return next((role for role in ROLES if found and role == found[1]), None)


class ViewPlan:
    """Which views run on which role, in the written order.

    Args:
        views: Role -> chain, for all slots of the role; or role and number, counted from 1, such as ``anchor_2``
            -> chain, for that slot alone, in place of the role's. Text views come before token views, those
            before token views that see special tokens, then embedding views, and last a gradient view; a role
            without a chain is left unaltered.

    Raises:
        ValueError: An unknown role, a chain whose levels are out of order, two gradient views on a role, or
            ``FixedDropout`` on the anchor, whose masks it repeats.
        TypeError: Something that is not a view.

    Example:
        >>> from contrastive_text.views import DeleteTokens, SwapWords
        >>> ViewPlan({"positive": [DeleteTokens(), SwapWords()]})
        Traceback (most recent call last):
        contrastive_text.core.errors.InvalidValueError: views.positive: expected text views before ...
    """

    def __init__(self, views: Mapping[str, Sequence[View]] | None = None) -> None:
        self.chains: dict[str, tuple[View, ...]] = {}
        for name, chain in (views or {}).items():
            if role_of(name) is None:
                raise InvalidValueError(
                    f"views.{name}: expected one of the roles {', '.join(ROLES)}, got {name!r}; "
                    "a chain of views belongs to a role, or to one of its slots, such as anchor_2"
                )
            self._check_order(name, chain)
            self.chains[name] = tuple(chain)
        self.text_chains = self._chains_with(TextView)
        """Names of the chains with a text view."""
        self.token_chains = self._chains_with(TokenView)
        """Names of the chains with a token view."""
        self.embedding_chains = self._chains_with(EmbeddingView)
        """Names of the chains with an embedding view."""
        self.gradient_views = [view for _, view in self.views_with_places() if isinstance(view, GradientView)]
        """The gradient views, at most one of each chain."""
        self.fixed_dropout = self._chains_with(FixedDropout)
        """Names of the chains whose slots repeat the first anchor's dropout masks."""
        self._check_fixed_dropout()
        self._specials: tuple[int, int] | None = None
        # Read for every text of every batch, and isinstance with an abstract class is slow.
        self._token_views = {
            (name, after_specials): tuple(
                view for view in chain if isinstance(view, TokenView) and view.after_specials == after_specials
            )
            for name, chain in self.chains.items()
            for after_specials in (False, True)
        }

    def _chains_with(self, kind: type[View]) -> tuple[str, ...]:
        return tuple(name for name, chain in self.chains.items() if any(isinstance(v, kind) for v in chain))

    def _check_fixed_dropout(self) -> None:
        repeating = self.fixed_dropout
        first = self.chain_name(Slot("anchor", 0)) or "anchor"
        if first in repeating:
            raise InvalidValueError(
                f"views.{first}: expected no FixedDropout, got one; it repeats the anchor's dropout masks, so "
                "put it on positive"
            )
        for name in (first, *repeating) if repeating else ():
            chain = self.chains.get(name, ())
            if any(
                isinstance(view, TextView)
                or (isinstance(view, TokenView) and not (view.sets_labels or view.sets_positions))
                for view in chain
            ):
                raise InvalidValueError(
                    f"views.{name}: expected no view that may change a text's length beside FixedDropout, got "
                    f"{', '.join(type(view).__name__ for view in chain)}; masks are laid over places"
                )

    @staticmethod
    def _check_order(role: str, chain: Sequence[View]) -> None:
        levels = [_level(view, f"views.{role}[{i}]") for i, view in enumerate(chain)]
        for i in range(1, len(levels)):
            late, early = (type(chain[j]).__name__ for j in (i, i - 1))
            if levels[i] < levels[i - 1]:
                raise InvalidValueError(
                    f"views.{role}: expected {_LEVELS[levels[i]][0]} before {_LEVELS[levels[i - 1]][0]}, "
                    f"got {late} after {early}; move {late} before {early}"
                )
            if levels[i] == levels[i - 1] >= 4:
                raise InvalidValueError(
                    f"views.{role}: expected one {early} at most, got {late} after it; drop one"
                )

    @property
    def roles(self) -> tuple[Role, ...]:
        """The roles that have a chain."""
        return tuple(dict.fromkeys(role for name in self.chains if (role := role_of(name)) is not None))

    def chain_name(self, slot: Slot) -> str | None:
        """Returns the name of the chain that alters a slot; None if it is left unaltered."""
        own = f"{slot.role}_{slot.number + 1}"
        return own if own in self.chains else slot.role if slot.role in self.chains else None

    def hides(self, name: str | None) -> bool:
        """Returns whether a view of the chain of that name hides tokens, to be predicted."""
        return any(isinstance(view, TokenView) and view.sets_labels for view in self.chains.get(name or "", ()))

    def has_gradient_view(self, slot: Slot) -> bool:
        """Returns whether a slot has a gradient view."""
        return any(isinstance(view, GradientView) for view in self.chains.get(self.chain_name(slot) or "", ()))

    def rows(self, batch: Batch, name: str) -> Tensor:
        """Returns the indices of the rows that a chain alters, slot by slot, (rows,), on the host.

        Args:
            batch: Rows.
            name: Of the chain.
        """
        wanted = [i for i, slot in enumerate(batch.slots) if self.chain_name(slot) == name]
        return torch.cat([(batch.row_slots == i).nonzero().flatten() for i in wanted] or [batch.lengths[:0]])

    def views_with_places(self) -> Iterator[tuple[str, View]]:
        """Yields every view with its place in the configuration, such as ``views.anchor[0]``."""
        for name, chain in self.chains.items():
            for number, view in enumerate(chain):
                yield f"views.{name}[{number}]", view

    @property
    def new_tokens(self) -> tuple[str, ...]:
        """The tokens that the views need in the vocabulary."""
        return tuple(dict.fromkeys(token for _, view in self.views_with_places() for token in view.new_tokens))

    def build(self, vocabulary: Vocabulary) -> None:
        """Hands every view what it needs of the tokenizer; called in the main process, before any batch."""
        self._specials = vocabulary.prefix, vocabulary.suffix
        for _, view in self.views_with_places():
            view.build(vocabulary)

    def alter_texts(self, name: str, texts: Sequence[str], rngs: Sequence[np.random.Generator]) -> list[str]:
        """Returns the texts after the text views of the chain of that name, each with its own generator.

        Without what views put around texts, which ``around`` gives: nothing alters or cuts that.
        """
        altered = list(texts)
        for number, view in enumerate(self.chains.get(name, ())):
            if isinstance(view, TextView) and view.around is None:
                where = f"views.{name}[{number}]"
                try:
                    altered = view.alter_all(altered, rngs)
                except Exception as error:
                    error.add_note(f"raised by {where}, {type(view).__qualname__}")
                    raise
                for each in altered:
                    check_returned(where, view, each, str, "end its __call__ with return text")
        return altered

    def around(self, name: str | None) -> Frame:
        """Returns what the views of a chain put around each of its texts, the first of them next to it."""
        frame = Frame()
        for view in self.chains.get(name or "", ()):
            if isinstance(view, TextView) and view.around is not None:
                frame = view.around.around(frame)
        return frame

    def alter_tokens(
        self, name: str, tokens: Tokens, rng: np.random.Generator, after_specials: bool = False
    ) -> Tokens:
        """Returns the tokens after the token views of that chain, those before or those after special tokens."""
        for view in self._token_views.get((name, after_specials), ()):
            try:
                tokens = view(tokens, rng)
            except Exception as error:
                error.add_note(
                    f"raised by views.{name}, {type(view).__qualname__}, on the tokens {tokens.ids[:40]}"
                )
                raise
            check_returned(f"views.{name}", view, tokens, Tokens, "return tokens.take(places)")
        return tokens

    def alterable(self, view: EmbeddingView, mask: Tensor) -> Tensor:
        """Returns the tokens that a view may alter: the real ones, or those between the special ones, (n, L).

        Raises:
            RuntimeError: Special tokens are to be left out, and ``build`` hasn't told their number.

        Example:
            >>> from contrastive_text.views import TokenCutoff
            >>> plan = ViewPlan({"positive": [TokenCutoff(specials=False)]})
            >>> plan.build(Vocabulary(size=9, prefix=1, suffix=1))
            >>> mask = torch.tensor([[True, True, True, True, False]])
            >>> plan.alterable(plan.chains["positive"][0], mask).int().tolist()
            [[0, 1, 1, 0, 0]]
        """
        if view.specials:
            return mask
        if self._specials is None:
            where = f"{type(view).__name__}.specials"
            raise RuntimeError(f"{where}: expected plan.build(vocabulary) before the first call")
        place, (before, after) = mask.cumsum(dim=1), self._specials
        return mask & (place > before) & (place <= mask.sum(dim=1, keepdim=True) - after)

    def alter_embeddings(self, batch: Batch, gradient: Tensor | None = None) -> Alter | None:
        """Returns the alteration of a batch's embedding output, or None if there is none.

        Args:
            batch: The rows that will be encoded.
            gradient: What gradient views follow, (S, L, D); None for the pass that finds it.
        """
        wanted = EmbeddingView if gradient is None else (EmbeddingView, GradientView)
        chains = {
            name: found
            for name, chain in self.chains.items()
            if (found := [(number, view) for number, view in enumerate(chain) if isinstance(view, wanted)])
        }
        if not chains:
            return None

        def alter(embeddings: Tensor, mask: Tensor) -> Tensor:
            for name, chain in chains.items():
                rows = self.rows(batch, name)
                if not len(rows):  # rows of a chain may all stand in other blocks
                    continue
                rows = sent(rows, embeddings.device)
                part, part_mask, keys = embeddings[rows], mask[rows], batch.draw_keys[rows]
                for number, view in chain:
                    rng, shape = RowRandom(keys, view=number), part.shape
                    if isinstance(view, EmbeddingView):
                        part = view(part, self.alterable(view, part_mask), rng)
                    elif isinstance(view, GradientView) and gradient is not None:
                        part = view(part, gradient[rows], part_mask, rng)
                    where, wanted = f"views.{name}[{number}]", tuple(shape)
                    check_returned(where, view, part, Tensor, f"return vectors of {wanted}")
                    if part.shape != shape:
                        raise InvalidValueError(
                            f"{where}: expected {type(view).__qualname__} to return vectors of {wanted}, got "
                            f"{tuple(part.shape)}; rows, tokens and features stay as many"
                        )
                embeddings = embeddings.index_copy(0, rows, part.to(embeddings.dtype))
            return embeddings

        return alter
