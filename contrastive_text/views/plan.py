"""View plan: the chain of views of each role or slot, with checks of their order."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from contrastive_text.core.batch import Batch, move_to_device
from contrastive_text.core.errors import InvalidTypeError, InvalidValueError
from contrastive_text.core.random import RowRandom
from contrastive_text.core.types import ROLES, EmbeddingChange, Role, Slot, Template, Tokens, Vocabulary
from contrastive_text.views.base import EmbeddingView, GradientView, TextView, TokenView, View, check_view_output
from contrastive_text.views.embeddings import FixedDropout

_LEVELS: tuple[tuple[str, type[View], bool], ...] = (
    ("text views", TextView, False),
    ("token views", TokenView, False),
    ("token views after special tokens", TokenView, True),
    ("embedding views", EmbeddingView, False),
    ("gradient views", GradientView, False),
    ("FixedDropout", FixedDropout, False),
)
"""Levels of views in the order of a chain: name, class, and whether the views receive special tokens."""


def _level(view: View, where: str) -> int:
    after_specials = isinstance(view, TokenView) and view.after_specials
    for level, (_, kind, is_after) in enumerate(_LEVELS):
        if isinstance(view, kind) and after_specials == is_after:
            return level
    raise InvalidTypeError(
        f"{where}: expected a TextView, TokenView, EmbeddingView or GradientView, got {type(view).__name__}; "
        "derive the class from the base class of the level that it alters"
    )


def role_of(name: str) -> Role | None:
    """Returns the role of a chain name, such as ``anchor`` or ``anchor_2``; None if the name is not valid."""
    match = re.fullmatch(r"([a-z]+)(_[1-9][0-9]*)?", name)
    return next((role for role in ROLES if match and role == match[1]), None)


class ViewPlan:
    """Assigns chains of views to roles and slots, and applies them to texts, tokens and embeddings.

    Args:
        views: Name -> chain. The name is a role, for all its slots, or a role with the number of a slot from 1,
            such as ``anchor_2``. A slot's chain replaces the chain of its role. In a chain, text views come
            first, then token views, token views that receive special tokens, embedding views, and one gradient
            view. Roles without a chain are not altered.

    Raises:
        ValueError: A role is unknown, a chain is out of order or has two gradient views, or ``FixedDropout`` is
            on the anchor, whose masks it uses.
        TypeError: An object in a chain is not a view.

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
                    f"views.{name}: expected one of the roles {', '.join(ROLES)}, or a slot such as anchor_2, "
                    f"got {name!r}"
                )
            self._check_order(name, chain)
            self.chains[name] = tuple(chain)
        self.text_chains = self._chains_with(TextView)
        """Names of the chains that have a text view."""
        self.token_chains = self._chains_with(TokenView)
        """Names of the chains that have a token view."""
        self.embedding_chains = self._chains_with(EmbeddingView)
        """Names of the chains that have an embedding view."""
        self.gradient_views = [view for _, view in self.named_views() if isinstance(view, GradientView)]
        """Gradient views of all chains, at most one of each chain."""
        self.fixed_dropout = self._chains_with(FixedDropout)
        """Names of the chains whose slots use the first anchor's dropout masks."""
        self._check_fixed_dropout()
        self._specials: tuple[int, int] | None = None
        # Cached, because it is read for every text of every batch, and isinstance with an abstract class is slow.
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
        names = self.fixed_dropout
        first = self.chain_name(Slot("anchor", 0)) or "anchor"
        if first in names:
            raise InvalidValueError(
                f"views.{first}: expected no FixedDropout on the anchor, whose dropout masks it uses, got "
                "FixedDropout; move it to positive"
            )
        for name in (first, *names) if names else ():
            chain = self.chains.get(name, ())
            if any(
                isinstance(view, TextView)
                or (isinstance(view, TokenView) and not (view.sets_labels or view.sets_positions))
                for view in chain
            ):
                raise InvalidValueError(
                    f"views.{name}: expected no view that may change a text's length with FixedDropout, whose "
                    f"masks apply to positions, got {', '.join(type(view).__name__ for view in chain)}; remove "
                    "one"
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
                    f"views.{role}: expected at most one {early}, got {late} after it; remove one"
                )

    @property
    def roles(self) -> tuple[Role, ...]:
        """Roles that have a chain of views, or whose slots have one."""
        return tuple(dict.fromkeys(role for name in self.chains if (role := role_of(name)) is not None))

    def chain_name(self, slot: Slot) -> str | None:
        """Returns the name of the chain that alters a slot; None if no chain does."""
        name = f"{slot.role}_{slot.number + 1}"
        return name if name in self.chains else slot.role if slot.role in self.chains else None

    def masks_tokens(self, name: str | None) -> bool:
        """Returns True if the chain of a name has a view that masks tokens, such as ``MaskTokens``."""
        return any(isinstance(view, TokenView) and view.sets_labels for view in self.chains.get(name or "", ()))

    def has_gradient_view(self, slot: Slot) -> bool:
        """Returns True if the chain of a slot has a gradient view."""
        return any(isinstance(view, GradientView) for view in self.chains.get(self.chain_name(slot) or "", ()))

    def rows(self, batch: Batch, name: str) -> Tensor:
        """Returns the indices of the rows that a chain alters, slot by slot, (rows,), on the host.

        Args:
            batch: Rows of the batch.
            name: Name of the chain.
        """
        slots = [i for i, slot in enumerate(batch.slots) if self.chain_name(slot) == name]
        return torch.cat([(batch.row_slots == i).nonzero().flatten() for i in slots] or [batch.lengths[:0]])

    def named_views(self) -> Iterator[tuple[str, View]]:
        """Yields every view with its name in the configuration, such as ``views.anchor[0]``."""
        for name, chain in self.chains.items():
            for number, view in enumerate(chain):
                yield f"views.{name}[{number}]", view

    @property
    def new_tokens(self) -> tuple[str, ...]:
        """Tokens that the views add to the vocabulary, such as ``[DEL]``."""
        return tuple(dict.fromkeys(token for _, view in self.named_views() for token in view.new_tokens))

    def build(self, vocabulary: Vocabulary) -> None:
        """Builds every view from facts about the vocabulary.

        Called in the main process, before the first batch.
        """
        self._specials = vocabulary.prefix, vocabulary.suffix
        for _, view in self.named_views():
            view.build(vocabulary)

    def alter_texts(self, name: str, texts: Sequence[str], rngs: Sequence[np.random.Generator]) -> list[str]:
        """Applies the text views of a chain to texts, except views that only put a template around texts.

        Templates are returned by ``around``, because no view alters them and no length limit truncates them.

        Args:
            name: Name of the chain.
            texts: Texts to alter.
            rngs: Generator of the random draws of each text.

        Raises:
            TypeError: A view returns something other than a string.
        """
        altered_texts = list(texts)
        for number, view in enumerate(self.chains.get(name, ())):
            if isinstance(view, TextView) and view.text_template is None:
                where = f"views.{name}[{number}]"
                try:
                    altered_texts = view.alter_all(altered_texts, rngs)
                except Exception as error:
                    error.add_note(f"raised by {where}, {type(view).__qualname__}")
                    raise
                for text in altered_texts:
                    check_view_output(where, view, text, str, "end its __call__ with return text")
        return altered_texts

    def combined_template(self, name: str | None) -> Template:
        """Returns the combined template that the views of a chain put around each text, the first view inside."""
        template = Template()
        for view in self.chains.get(name or "", ()):
            if isinstance(view, TextView) and view.text_template is not None:
                template = view.text_template.wrap(template)
        return template

    def alter_tokens(
        self, name: str, tokens: Tokens, rng: np.random.Generator, after_specials: bool = False
    ) -> Tokens:
        """Applies the token views of a chain to the tokens of a text.

        Args:
            name: Name of the chain.
            tokens: Tokens of the text.
            rng: Generator of all random draws.
            after_specials: Whether to apply the views that receive special tokens. If false, the others are
                applied.

        Raises:
            TypeError: A view returns something other than ``Tokens``.
        """
        for view in self._token_views.get((name, after_specials), ()):
            try:
                tokens = view(tokens, rng)
            except Exception as error:
                error.add_note(
                    f"raised by views.{name}, {type(view).__qualname__}, on the tokens {tokens.ids[:40]}"
                )
                raise
            check_view_output(f"views.{name}", view, tokens, Tokens, "return tokens.take(places)")
        return tokens

    def alterable_mask(self, view: EmbeddingView, mask: Tensor) -> Tensor:
        """Returns a mask of the tokens that a view may alter, with or without special tokens, (n, L).

        Args:
            view: The view.
            mask: True for tokens, False for padding, (n, L).

        Raises:
            RuntimeError: The view excludes special tokens, and ``build`` has not been called.

        Example:
            >>> from contrastive_text.views import TokenCutoff
            >>> plan = ViewPlan({"positive": [TokenCutoff(specials=False)]})
            >>> plan.build(Vocabulary(size=9, prefix=1, suffix=1))
            >>> mask = torch.tensor([[True, True, True, True, False]])
            >>> plan.alterable_mask(plan.chains["positive"][0], mask).int().tolist()
            [[0, 1, 1, 0, 0]]
        """
        if view.specials:
            return mask
        if self._specials is None:
            where = f"{type(view).__name__}.specials"
            raise RuntimeError(f"{where}: expected plan.build(vocabulary) before the first call")
        number, (before, after) = mask.cumsum(dim=1), self._specials
        return mask & (number > before) & (number <= mask.sum(dim=1, keepdim=True) - after)

    def alter_embeddings(self, batch: Batch, gradient: Tensor | None = None) -> EmbeddingChange | None:
        """Returns a function that applies embedding views and gradient views to a batch; None without such views.

        Args:
            batch: Rows that will be encoded.
            gradient: Gradient for gradient views, (S, L, D); None in the pass that computes it.
        """
        kinds = EmbeddingView if gradient is None else (EmbeddingView, GradientView)
        chains = {
            name: views
            for name, chain in self.chains.items()
            if (views := [(number, view) for number, view in enumerate(chain) if isinstance(view, kinds)])
        }
        if not chains:
            return None

        def alter(embeddings: Tensor, mask: Tensor) -> Tensor:
            for name, chain in chains.items():
                rows = self.rows(batch, name)
                if not len(rows):  # all rows of a chain may be in other chunks
                    continue
                rows = move_to_device(rows, embeddings.device)
                part, part_mask, keys = embeddings[rows], mask[rows], batch.draw_keys[rows]
                for number, view in chain:
                    rng, shape = RowRandom(keys, view=number), part.shape
                    if isinstance(view, EmbeddingView):
                        part = view(part, self.alterable_mask(view, part_mask), rng)
                    elif isinstance(view, GradientView) and gradient is not None:
                        part = view(part, gradient[rows], part_mask, rng)
                    where, size = f"views.{name}[{number}]", tuple(shape)
                    check_view_output(where, view, part, Tensor, f"return vectors of shape {size}")
                    if part.shape != shape:
                        raise InvalidValueError(
                            f"{where}: expected {type(view).__qualname__} to return vectors of shape {size}, got "
                            f"{tuple(part.shape)}; keep the number of rows, tokens and features"
                        )
                embeddings = embeddings.index_copy(0, rows, part.to(embeddings.dtype))
            return embeddings

        return alter
