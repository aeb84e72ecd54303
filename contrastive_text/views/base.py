"""Base classes of views, one for each level at which a view alters a text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from torch import Tensor

from contrastive_text.core.errors import InvalidTypeError
from contrastive_text.core.random import RowRandom
from contrastive_text.core.types import Frame, Tokens, Vocabulary


def check_returned(where: str, view: object, returned: object, wanted: type, advice: str) -> None:
    """Checks the kind of what a view has returned, which in a view of a user's own may be anything.

    Args:
        where: Place of the view in the configuration.
        view: The view.
        returned: What came back.
        wanted: What it should be.
        advice: What to do.

    Raises:
        TypeError: It is something else.

    Example:
        >>> check_returned("views.positive[0]", "a view", None, str, "end it with return")
        Traceback (most recent call last):
        contrastive_text.core.errors.InvalidTypeError: views.positive[0]: expected str to return a str, ... ...
    """
    if not isinstance(returned, wanted):
        got = "None" if returned is None else f"a {type(returned).__name__}"
        name = type(view).__qualname__
        raise InvalidTypeError(f"{where}: expected {name} to return a {wanted.__name__}, got {got}; {advice}")


Unit = Literal["token", "word"]
"""Unit that a view chooses: single tokens, or all tokens of a word."""

Words = Literal["blanks", "letters", "tokenizer"]
"""Definition of a word: a text between blanks, a run of letters and digits, or a word of the tokenizer."""


class View:
    """Anything that alters a text. Subclass one of the levels, not this.

    Attributes:
        new_tokens: Tokens that the encoder's vocabulary gets for this view, such as ``[DEL]``.
        words: What the view takes for a word; None for a view that knows no words. A token view whose ``unit`` is
            ``word`` takes the words of the tokenizer.
    """

    new_tokens: tuple[str, ...] = ()
    words: Words | None = None

    def build(self, vocabulary: Vocabulary) -> None:  # most views have nothing to build
        """Takes what the view needs of the tokenizer; called in the main process, before any batch."""


class TextView(View, ABC):
    """Alters the string, before tokenising.

    Attributes:
        around: What the view puts around a text and does no more, the same for each; None where it alters the
            text.
        checks_texts: Whether ``check`` asks something of each text: then every text that enters the view is
            looked at before the first step.

    Example:
        >>> class DropOneWord(TextView):
        ...     def __call__(self, text, rng):
        ...         words = text.split()
        ...         del words[rng.integers(len(words))]
        ...         return " ".join(words)
        >>> len(DropOneWord()("a dog runs", np.random.default_rng(0)).split())
        2
    """

    around: Frame | None = None
    checks_texts: bool = False

    def check(self, text: str) -> None:
        """Checks that the view can alter a text, and raises a ``ValueError`` where it can't."""

    @abstractmethod
    def __call__(self, text: str, rng: np.random.Generator) -> str:
        """Returns the altered text; all randomness comes from ``rng``."""

    def alter_all(self, texts: Sequence[str], rngs: Sequence[np.random.Generator]) -> list[str]:
        """Returns the altered texts of a batch; for views that are faster on many texts at once."""
        altered = []
        for text, rng in zip(texts, rngs, strict=True):
            try:
                altered.append(self(text, rng))
            except Exception as error:
                error.add_note(f"on the text {text[:200]!r}")
                raise
        return altered


class TokenView(View, ABC):
    """Alters the token ids.

    Attributes:
        after_specials: Whether the view sees the special tokens too.
        sets_positions: Whether it fills ``Tokens.positions``.
        sets_labels: Whether it fills ``Tokens.labels``, for masked language modelling.
        unit: What it chooses, single tokens or whole words: ``token`` or ``word``.

    Example:
        >>> class Reverse(TokenView):
        ...     def __call__(self, tokens, rng):
        ...         return tokens.take(range(len(tokens) - 1, -1, -1))
        >>> Reverse().unit
        'token'
    """

    after_specials: ClassVar[bool] = False
    sets_positions: ClassVar[bool] = False
    sets_labels: ClassVar[bool] = False
    unit: Unit = "token"

    @abstractmethod
    def __call__(self, tokens: Tokens, rng: np.random.Generator) -> Tokens:
        """Returns new tokens; ``tokens.take(order)`` keeps all lists aligned."""


class EmbeddingView(View, ABC):
    """Alters the encoder's embedding output, after its normalisation and dropout, before the first block.

    The mask is read only: an erased token still takes part in attention and in the mean.

    Attributes:
        specials: Whether it may alter special tokens too; if not, the mask that it gets leaves them out.

    Example:
        >>> class Noise(EmbeddingView):
        ...     def __call__(self, embeddings, mask, rng):
        ...         return embeddings + 0.1 * rng.randn(*embeddings.shape[1:]).to(embeddings)
        >>> Noise().specials
        True
    """

    specials: bool = True

    @abstractmethod
    def __call__(self, embeddings: Tensor, mask: Tensor, rng: RowRandom) -> Tensor:
        """Returns altered embeddings, (n, L, D), from embeddings and the mask of what may be altered (n, L)."""


class GradientView(View, ABC):
    """Alters the embedding output along the gradient of an objective, after all other views.

    The module runs a first pass without it, takes the gradient of the objective's loss over all ranks
    with respect to the embedding output, and gives it to the view in the pass that is trained on.

    Attributes:
        objective: Name of the objective whose gradient is taken; None for the only one.
        same_dropout: Whether both passes see the same dropout masks.

    Example:
        >>> class Uphill(GradientView):
        ...     def __call__(self, embeddings, gradient, mask, rng):
        ...         return embeddings + 0.1 * gradient
        >>> Uphill().same_dropout
        False
    """

    objective: str | None = None
    same_dropout: bool = False

    @abstractmethod
    def __call__(self, embeddings: Tensor, gradient: Tensor, mask: Tensor, rng: RowRandom) -> Tensor:
        """Returns altered embeddings, (n, L, D), from embeddings and gradient (n, L, D) and the mask (n, L)."""
