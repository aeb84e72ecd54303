"""The records that flow from a text file to a gradient.

Letters of shapes: ``contrastive_text.core``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias, get_args

from torch import Tensor

from contrastive_text.core.errors import InvalidValueError

Role = Literal["anchor", "positive", "negative", "original"]
ROLES: tuple[Role, ...] = get_args(Role)
NO_LABEL = -100
"""Label of a token that masked language modelling does not predict (torch's ``ignore_index``)."""

NO_WORD = -1
"""Word number of a special token."""


Alter: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Alters the embedding output of a batch: embeddings (S, L, D) and mask (S, L) -> (S, L, D)."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """One text as token ids before special tokens; all lists stay aligned.

    Args:
        ids: Token ids.
        words: For each token the number of the word it belongs to, from 0.
        positions: For each token its place for the position embedding, or None for the natural order.
        labels: For each token the id to predict, ``NO_LABEL`` for none; None without masked modelling.

    Example:
        >>> Tokens(ids=(7, 8, 9), words=(0, 0, 1)).take([2, 0])
        Tokens(ids=(9, 7), words=(1, 0), positions=None, labels=None)
    """

    ids: tuple[int, ...]
    words: tuple[int, ...]
    positions: tuple[int, ...] | None = None
    labels: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        count = len(self.ids)
        if len(self.words) == count and self.positions is None and self.labels is None:
            return  # nearly all: there is one for each text
        for name, values in (("words", self.words), ("positions", self.positions), ("labels", self.labels)):
            if values is not None and len(values) != count:
                raise InvalidValueError(
                    f"Tokens.{name}: expected one value per token ({count}), got {len(values)}; "
                    "use tokens.take(order) to keep the lists aligned"
                )

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, order: Sequence[int]) -> Tokens:
        """Returns the tokens at the given places, in that order; every list follows."""
        if isinstance(order, range) and order.step == 1 and 0 <= order.start <= order.stop <= len(self):
            part = slice(order.start, order.stop)
            return Tokens(
                ids=self.ids[part],
                words=self.words[part],
                positions=self.positions and self.positions[part],
                labels=self.labels and self.labels[part],
            )
        return Tokens(
            ids=tuple([self.ids[i] for i in order]),
            words=tuple([self.words[i] for i in order]),
            positions=self.positions and tuple([self.positions[i] for i in order]),
            labels=self.labels and tuple([self.labels[i] for i in order]),
        )


class TextPair(NamedTuple):
    """Two texts that stand in one sequence, one after the other.

    Example:
        >>> TextPair("A premise.", "A hypothesis.").second
        'A hypothesis.'
    """

    first: str
    second: str


class Frame(NamedTuple):
    """What stands around a text: a prompt, a template. No view alters it, and of a long text the text is cut.

    Args:
        before: Stands before the text.
        after: Stands after it.
        apart: Whether both and the text are tokenised each by itself, so that no token has letters of two;
            otherwise they are one string.
        counted: Whether the length limit counts its tokens; otherwise it is the text's own, as far as the network
            takes longer rows.
        unpooled: Tokens at the start of a row that poolers leave out.
    """

    before: str = ""
    after: str = ""
    apart: bool = False
    counted: bool = True
    unpooled: int = 0

    @classmethod
    def of(cls, template: str, where: str, apart: bool = False, counted: bool = True) -> Frame:
        """Returns the frame of a prompt, which stands before a text, or of a template with ``{text}`` in it.

        Args:
            template: With the mask token where ``{mask}`` stands; other braces stand for themselves.
            where: What an error begins with.
            apart: As above.
            counted: As above.

        Raises:
            ValueError: ``{text}`` more than once.

        Example:
            >>> Frame.of("It says: {text}!", "prompt")[:2], Frame.of("query: ", "prompt")[:2]
            (('It says: ', '!'), ('query: ', ''))
        """
        if (found := template.count(SLOT)) > 1:
            raise InvalidValueError(
                f"{where}: expected {SLOT} once at most, got {template!r}, which has it {found} times; {SLOT} is "
                "where the text goes"
            )
        before, _, after = template.partition(SLOT)
        return cls(before, after, apart, counted)

    def __bool__(self) -> bool:
        return bool(self.before or self.after)

    def around(self, inner: Frame) -> Frame:
        """Returns both, the other one next to the text.

        Example:
            >>> Frame("so: ").around(Frame("a ", " b"))[:2]
            ('so: a ', ' b')
        """
        apart, counted = self.apart or inner.apart, self.counted and inner.counted
        return Frame(self.before + inner.before, inner.after + self.after, apart, counted, self.unpooled)


NO_FRAME = Frame()
"""Nothing around a text."""

SLOT = "{text}"
"""Where the text goes in a template."""

MASK = "{mask}"
"""Where the tokenizer's mask token goes in a prompt or a template."""

Text: TypeAlias = str | Tokens | TextPair
"""What a slot holds: a string, a span that is already tokenised, or two strings for one sequence."""

Row: TypeAlias = Mapping[str, Text | float]
"""One record of a data file, under the library's column names (``text``, ``anchor``, ``target``, ...).

A text is a string; for a pairing with ``reads_tokens`` it is tokenised already.
"""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a view may know of the tokenizer.

    Args:
        size: Number of entries of the token table.
        mask_id: Id of the mask token; None if the tokenizer has none.
        special_ids: Ids of the special tokens, those that views have added included.
        prefix: Number of special tokens before a text.
        suffix: Number of special tokens after it.
        added: Token that a view has asked for (``View.new_tokens``) -> its id.

    Example:
        >>> Vocabulary(size=30522, mask_id=103, prefix=1, suffix=1).mask_id
        103
    """

    size: int
    mask_id: int | None = None
    special_ids: frozenset[int] = frozenset()
    prefix: int = 0
    suffix: int = 0
    added: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Example:
    """Texts that belong together, as a ``Pairing`` returns them.

    Args:
        anchor: The text that the others are compared with.
        positives: Texts of the same meaning.
        negatives: Hard negatives: texts that look alike and mean something else.
        target: A label or a score, for supervised objectives.
        views_per_text: How often each text stands in the batch: the views of a text i of a role are the
            slots ``i * views_per_text`` and those that follow.

    Example:
        >>> Example("a dog runs", positives=("it runs",), negatives=("it sleeps",)).negatives
        ('it sleeps',)
    """

    anchor: Text
    positives: tuple[Text, ...] = ()
    negatives: tuple[Text, ...] = ()
    target: float | None = None
    views_per_text: int = 1


class Slot(NamedTuple):
    """One text of every example: its role and its number within the role.

    Example:
        >>> Slot("positive", 1)
        Slot(role='positive', number=1)
    """

    role: Role
    number: int
