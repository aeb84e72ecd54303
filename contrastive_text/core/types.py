"""Data types on the way from a text file to a gradient: tokens, examples, slots, templates.

Shape letters: see ``contrastive_text.core``.
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
"""Label of a token that masked language modeling doesn't predict (torch's ``ignore_index``)."""

NO_WORD = -1
"""Word number of a special token, which is part of no word."""


EmbeddingChange: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Function that alters the embedding output of a batch: embeddings (S, L, D), mask (S, L) -> (S, L, D)."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Token ids of a text before special tokens are added, with aligned lists of properties per token.

    Args:
        ids: Token ids.
        words: For each token the number of the word it belongs to, from 0.
        positions: For each token its index for the position embedding, or None for the natural order.
        labels: For each token the id to predict, or ``NO_LABEL``; None without masked language modeling.

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
            return  # fast path for nearly all texts
        for name, values in (("words", self.words), ("positions", self.positions), ("labels", self.labels)):
            if values is not None and len(values) != count:
                raise InvalidValueError(
                    f"Tokens.{name}: expected one value per token ({count}), got {len(values)}; "
                    "use tokens.take(order) to keep the lists aligned"
                )

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, order: Sequence[int]) -> Tokens:
        """Returns the tokens at the given indices, in that order, with all lists aligned."""
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
    """Two texts that are encoded as one sequence, one after the other.

    Example:
        >>> TextPair("A premise.", "A hypothesis.").second
        'A hypothesis.'
    """

    first: str
    second: str


class Template(NamedTuple):
    """Strings before and after a text: a prompt or template. No view alters them; truncation cuts only the text.

    Args:
        before: String before the text.
        after: String after the text.
        apart: Whether before, text and after are tokenized separately, so that no token spans two of them. If
            False, they are joined to one string.
        counted: Whether the length limit includes the tokens of the template. If False, the limit applies to the
            text alone, as far as the network takes longer rows.
        unpooled: Number of tokens at the start of a row that poolers skip.
    """

    before: str = ""
    after: str = ""
    tokenized_apart: bool = False
    counts_to_limit: bool = True
    unpooled: int = 0

    @classmethod
    def parse(cls, template: str, where: str, apart: bool = False, counted: bool = True) -> Template:
        """Parses a prompt, which comes before a text, or a template with ``{text}`` in it.

        Args:
            template: May contain ``{mask}`` for the mask token; other braces are ordinary characters.
            where: Place of the option, for the error.
            apart: See the class.
            counted: See the class.

        Raises:
            ValueError: ``{text}`` more than once.

        Example:
            >>> Template.parse("It says: {text}!", "prompt")[:2], Template.parse("query: ", "prompt")[:2]
            (('It says: ', '!'), ('query: ', ''))
        """
        if (count := template.count(TEXT_PLACEHOLDER)) > 1:
            raise InvalidValueError(
                f"{where}: expected {TEXT_PLACEHOLDER} once at most, got {template!r}, which has it {count} "
                f"times; write {TEXT_PLACEHOLDER} once"
            )
        before, _, after = template.partition(TEXT_PLACEHOLDER)
        return cls(before, after, apart, counted)

    def __bool__(self) -> bool:
        return bool(self.before or self.after)

    def wrap(self, inner: Template) -> Template:
        """Combines two templates: this one outside, the other one next to the text.

        Example:
            >>> Template("so: ").wrap(Template("a ", " b"))[:2]
            ('so: a ', ' b')
        """
        apart, counted = (
            self.tokenized_apart or inner.tokenized_apart,
            self.counts_to_limit and inner.counts_to_limit,
        )
        return Template(self.before + inner.before, inner.after + self.after, apart, counted, self.unpooled)


NO_TEMPLATE = Template()
"""Empty template, which adds nothing to a text."""

TEXT_PLACEHOLDER = "{text}"
"""Placeholder of the text in a template."""

MASK_PLACEHOLDER = "{mask}"
"""Placeholder of the tokenizer's mask token in a prompt or a template."""

Text: TypeAlias = str | Tokens | TextPair
"""Text of an example: a string, a tokenized span, or two strings that become one sequence."""

Row: TypeAlias = Mapping[str, Text | float | tuple[float, ...]]
"""A record of a data file, under the library's column names (``text``, ``anchor``, ``target``, ...).

A text is a string; for a pairing with ``token_roles`` it is already tokenized. ``scores`` are teacher scores: the
positive's, then the scores of the row's hard negatives.
"""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Facts about the tokenizer that a view may use.

    Args:
        size: Number of entries of the token table.
        mask_id: Id of the mask token; None if the tokenizer has none.
        special_ids: Ids of the special tokens, including tokens that views have added.
        prefix: Number of special tokens before a text.
        suffix: Number of special tokens after it.
        added: Token that a view requested by ``View.new_tokens`` -> its id.

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
    """Example of a ``Pairing``: texts that are trained on together, such as an anchor and its positive.

    Args:
        anchor: Text that the others are compared with.
        positives: Texts of the same meaning.
        negatives: Hard negatives: texts that look similar and mean something else.
        target: Label or score, for supervised objectives.
        views_per_text: Number of views of each text in the batch. The views of text i of a role are the slots
            ``i * views_per_text`` up to ``(i + 1) * views_per_text - 1``.
        scores: Teacher scores of the positives, then of the hard negatives. The score of a missing hard negative
            is NaN. None without scores.
        context: Tokens of the document of which all texts are spans, if the document is encoded in place of the
            texts. None if each text is encoded alone.
        spans: Places in ``context`` of the anchor, then of the positives, as ranges of tokens.

    Example:
        >>> Example("a dog runs", positives=("it runs",), negatives=("it sleeps",)).negatives
        ('it sleeps',)
    """

    anchor: Text
    positives: tuple[Text, ...] = ()
    negatives: tuple[Text, ...] = ()
    target: float | None = None
    views_per_text: int = 1
    scores: tuple[float, ...] | None = None
    context: Tokens | None = None
    spans: tuple[range, ...] = ()


class Slot(NamedTuple):
    """A text of every example, given by its role and its number within the role.

    Example:
        >>> Slot("positive", 1)
        Slot(role='positive', number=1)
    """

    role: Role
    number: int
