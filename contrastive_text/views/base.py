"""Base classes of views: one class for each level at which a view alters a text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from torch import Tensor

from contrastive_text.core.errors import InvalidTypeError
from contrastive_text.core.random import RowRandom
from contrastive_text.core.types import Template, Tokens, Vocabulary


def check_view_output(where: str, view: object, returned: object, expected_type: type, advice: str) -> None:
    """Checks that a view, which may be a user's class, has returned an object of the right type.

    Args:
        where: Name of the view in the configuration.
        view: The view.
        returned: Object that the view has returned.
        expected_type: Expected type.
        advice: Advice at the end of the error message.

    Raises:
        TypeError: The object has another type.

    Example:
        >>> check_view_output("views.positive[0]", "a view", None, str, "end it with return")
        Traceback (most recent call last):
        contrastive_text.core.errors.InvalidTypeError: views.positive[0]: expected str to return a str, ... ...
    """
    if not isinstance(returned, expected_type):
        got = "None" if returned is None else f"a {type(returned).__name__}"
        name = type(view).__qualname__
        raise InvalidTypeError(
            f"{where}: expected {name} to return a {expected_type.__name__}, got {got}; {advice}"
        )


Unit = Literal["token", "word"]
"""Names of the units that a token view selects: single tokens, or all tokens of a word."""

Words = Literal["blanks", "letters", "tokenizer"]
"""Names of the definitions of a word: text between blanks, letters and digits, or a word of the tokenizer."""


class View:
    """Base class of all views, which alter a text, its tokens or its embeddings.

    A new view subclasses one of the levels, such as ``TextView``, instead.

    Attributes:
        new_tokens: Tokens that are added to the encoder's vocabulary for the view, such as ``[DEL]``.
        words: Definition of a word that the view uses; None for a view without words. A token view whose ``unit``
            is ``word`` uses the words of the tokenizer.
    """

    new_tokens: tuple[str, ...] = ()
    words: Words | None = None

    def build(self, vocabulary: Vocabulary) -> None:  # most views have nothing to build
        """Receives facts about the vocabulary, such as the id of the mask token.

        Called in the main process, before the first batch.
        """


class TextView(View, ABC):
    """Base class of views that alter the string of a text before it is tokenized.

    A subclass implements ``__call__``.

    Attributes:
        text_template: Template that the view puts around every text without altering the text itself; None for
            a view that alters the text.
        checks_texts: Whether ``check`` examines texts. It is then called before the first step for every text
            that the view will alter.

    Example:
        >>> class DropOneWord(TextView):
        ...     def __call__(self, text, rng):
        ...         words = text.split()
        ...         del words[rng.integers(len(words))]
        ...         return " ".join(words)
        >>> len(DropOneWord()("a dog runs", np.random.default_rng(0)).split())
        2
    """

    text_template: Template | None = None
    checks_texts: bool = False

    def check(self, text: str) -> None:
        """Checks that the view can alter a text (ValueError)."""

    @abstractmethod
    def __call__(self, text: str, rng: np.random.Generator) -> str:
        """Returns the text after the alterations of the view.

        Args:
            text: Text to alter.
            rng: Generator of all random draws.
        """

    def alter_all(self, texts: Sequence[str], rngs: Sequence[np.random.Generator]) -> list[str]:
        """Returns the texts of a batch after the alterations of the view.

        Views that are faster on many texts at once override this method.

        Args:
            texts: Texts to alter.
            rngs: Generator of the random draws of each text.
        """
        altered_texts = []
        for text, rng in zip(texts, rngs, strict=True):
            try:
                altered_texts.append(self(text, rng))
            except Exception as error:
                error.add_note(f"on the text {text[:200]!r}")
                raise
        return altered_texts


class TokenView(View, ABC):
    """Base class of views that alter the token ids of a text.

    A subclass implements ``__call__``.

    Attributes:
        after_specials: Whether the view receives the special tokens too.
        sets_positions: Whether the view sets ``Tokens.positions``.
        sets_labels: Whether the view sets ``Tokens.labels``, for masked language modeling.
        unit: Unit that the view selects: ``token``, or ``word`` for all tokens of a word.

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
        """Returns the tokens after the alterations of the view.

        ``tokens.take(order)`` keeps ids, words, positions and labels aligned.

        Args:
            tokens: Tokens to alter.
            rng: Generator of all random draws.
        """


class EmbeddingView(View, ABC):
    """Base class of views that alter the encoder's embedding output, before its first block.

    The embedding output is taken after its normalization and dropout. A view can't change the mask: a token that
    is set to zero is still part of attention and of the mean. A subclass implements ``__call__``.

    Attributes:
        specials: Whether the view may alter special tokens. If false, they are False in the mask that it
            receives.

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
        """Returns the embeddings after the alterations of the view, (n, L, D).

        Args:
            embeddings: Embeddings of the tokens, (n, L, D).
            mask: True for tokens that may be altered, (n, L).
            rng: Generator of all random draws, with a key for each row.
        """


class GradientView(View, ABC):
    """Base class of views that move the embedding output along the gradient of an objective, after other views.

    The module runs a first pass without the view, and computes the gradient of the objective's loss over all
    ranks with respect to the embedding output. The view receives it in the second pass, which is trained. A
    subclass implements ``__call__``.

    Attributes:
        objective: Name of the objective whose gradient is used; None for the only one.
        same_dropout: Whether both passes use the same dropout masks.

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
        """Returns the embeddings after the alterations of the view, (n, L, D).

        Args:
            embeddings: Embeddings of the tokens, (n, L, D).
            gradient: Gradient of the loss with respect to the embeddings, (n, L, D).
            mask: True for tokens, False for padding, (n, L).
            rng: Generator of all random draws, with a key for each row.
        """
