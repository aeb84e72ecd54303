"""Pairings: which texts of a row belong together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import ClassVar, Self, overload

import numpy as np

from contrastive_text.core.checks import at_least
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.targets import Target
from contrastive_text.core.types import Example, Row, TextPair


class Documents(Sequence[Sequence[Row]]):
    """The rows of each document, in its order, as ``Pairing.arrange`` takes them.

    Args:
        rows: Those of all documents, one after another; they may be mapped and need not be in memory.
        sizes: Rows of each.

    Attributes:
        ends: Where each document ends, (N,), int64.

    Example:
        >>> documents = Documents([{"text": "a"}, {"text": "b"}, {"text": "c"}], sizes=[2, 1])
        >>> list(documents)
        [[{'text': 'a'}, {'text': 'b'}], [{'text': 'c'}]]
    """

    def __init__(self, rows: Sequence[Row], sizes: Iterable[int]) -> None:
        self.rows = rows
        self.ends = np.cumsum(np.fromiter(sizes, np.int64))

    @classmethod
    def of(cls, documents: Sequence[Sequence[Row]]) -> Self:
        """Takes documents of another form."""
        if isinstance(documents, cls):
            return documents
        return cls(list(chain.from_iterable(documents)), map(len, documents))

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, index: int) -> Sequence[Row]: ...

    @overload
    def __getitem__(self, index: slice) -> list[Sequence[Row]]: ...

    def __getitem__(self, index: int | slice) -> Sequence[Row] | list[Sequence[Row]]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        return self.rows[int(self.ends[place - 1]) if place else 0 : int(self.ends[place])]


class Pairing(ABC):
    """Base class of pairings.

    Every row must give the same number of examples with the same number of positives and negatives. They have the
    row's label or score as their target, unless the pairing gives them another.

    Attributes:
        reads: The columns that a file must have.
        target: How the pairing itself understands the labels of a file; None where it reads none.
        reads_tokens: Whether the texts come tokenised, as ``Tokens`` without special tokens and uncut.
        joins: Whether it puts texts into one sequence, which is then done with held-out rows too.

    Example:
        >>> class Halves(Pairing):
        ...     def __call__(self, row, rng):
        ...         words = row["text"].split()
        ...         middle = len(words) // 2
        ...         return [Example(" ".join(words[:middle]), (" ".join(words[middle:]),))]
        >>> Halves()({"text": "a bird sings aloud"}, np.random.default_rng(0))[0].positives
        ('sings aloud',)
    """

    reads: tuple[str, ...] = ("text",)
    target: Target | None = None
    reads_tokens: ClassVar[bool] = False
    joins: ClassVar[bool] = False

    def arrange(self, documents: Sequence[Sequence[Row]]) -> tuple[Sequence[Row], str]:
        """Returns the rows to draw batches from, and what there is to say of them; asked once, before sampling.

        Args:
            documents: The rows of each document, in its order: of a file, or what a blank line of it ends. They
                may be mapped, and a list of all of them more than the memory.

        Returns:
            The rows for ``__call__``, here all of them; and a line that says how they were made, what was left
            out and why, empty where nothing was done.

        Raises:
            ValueError: No row is left.
        """
        return Documents.of(documents).rows, ""

    def serves(self, tokens: int) -> bool:  # noqa: ARG002  # the contract
        """Whether a text of so many tokens can be paired; those that can't are left out and counted.

        Asked only with ``reads_tokens``.
        """
        return True

    def shrinks(self, tokens: int) -> bool:  # noqa: ARG002  # the contract
        """Whether a text of so many tokens is served with less than was asked for; these are counted."""
        return False

    def check_room(self, room: int) -> None:  # noqa: B027  # the contract: what is longer is cut
        """Checks that a row of the encoder has room for the texts of the pairing.

        Asked only with ``reads_tokens``.

        Args:
            room: Tokens of a row beside the special ones, at most.

        Raises:
            ValueError: They may be longer, and the pairing was not told to have them cut.
        """

    @abstractmethod
    def __call__(self, row: Row, rng: np.random.Generator) -> list[Example]:
        """Returns the examples of a row; all randomness comes from ``rng``."""


class SameText(Pairing):
    """The text is its own positive: what differs is dropout, or the views (SimCSE, ConSERT, CLEAR).

    Example:
        >>> example, = SameText()({"text": "hello"}, np.random.default_rng(0))
        >>> example.anchor, example.positives
        ('hello', ('hello',))
    """

    def __call__(self, row: Row, rng: np.random.Generator) -> list[Example]:  # noqa: ARG002  # the contract
        """Returns one example, the text twice."""
        text = str(row["text"])
        return [Example(anchor=text, positives=(text,))]


class Given(Pairing):
    """The data file names the texts: columns ``anchor`` and ``positive``, hard negatives if there are any.

    Rows may have different numbers of hard negatives. A row with fewer has empty texts in their place, which are
    masked for every row of a step.

    Args:
        views_per_text: How often each text stands in the batch, each time altered anew: 2 for the joint training
            of ConSERT (Yan et al. 2021), which has two views of the premise and two of the hypothesis.
        negatives: Hard negatives of a row that an epoch takes, drawn again each time; None for all.

    Raises:
        ValueError: No view of a text, or a negative number of hard negatives.

    Example:
        >>> example, = Given()({"anchor": "a", "positive": "b", "negative": "c"}, np.random.default_rng(0))
        >>> example.anchor, example.positives, example.negatives
        ('a', ('b',), ('c',))
    """

    reads = ("anchor", "positive")

    def __init__(self, views_per_text: int = 1, negatives: int | None = None) -> None:
        self.views_per_text = at_least("Given.views_per_text", views_per_text, 1, "2 in ConSERT")
        self.negatives = at_least("Given.negatives", negatives, 0, "leave it out for all")

    def __call__(self, row: Row, rng: np.random.Generator) -> list[Example]:
        """Returns one example: the row's texts in their columns' roles."""
        negatives = [str(text) for name, text in row.items() if name.startswith("negative")]
        if self.negatives is not None and self.negatives < len(negatives):
            there = [text for text in negatives if text]
            drawn = sorted(rng.permutation(len(there))[: self.negatives])
            negatives = [*(there[place] for place in drawn), *[""] * self.negatives][: self.negatives]
        return [
            Example(
                anchor=str(row["anchor"]),
                positives=(str(row["positive"]),),
                negatives=tuple(negatives),
                views_per_text=self.views_per_text,
            )
        ]


class OneSequence(Pairing):
    """Two texts of a row in one sequence, as BERT is fine-tuned on pairs: attention sees both.

    Special tokens and token types are those of the tokenizer for pairs: ``[CLS] first [SEP] second [SEP]`` for
    BERT (Devlin et al. 2019, https://arxiv.org/abs/1810.04805, section 3.2), ``<s> first </s></s> second </s>``
    for RoBERTa. What is too long is cut from the longer text. It gives anchors alone, for ``TextClassification``
    and ``TextRegression``.

    Example:
        >>> example, = OneSequence()({"anchor": "It rains.", "positive": "Is it wet?"}, np.random.default_rng(0))
        >>> example.anchor, example.positives
        (TextPair(first='It rains.', second='Is it wet?'), ())
    """

    reads = ("anchor", "positive")
    joins = True

    def __call__(self, row: Row, rng: np.random.Generator) -> list[Example]:  # noqa: ARG002  # the contract
        """Returns one example, a pair of texts as its anchor."""
        return [Example(anchor=TextPair(str(row["anchor"]), str(row["positive"])))]


class Neighbours(Pairing):
    """A text and one that follows it in its document: the next-sentence positives of SimCSE's ablation.

    Gao et al. 2021, SimCSE, section 3, table 2 ("next sentence"; with ``reach: 3`` "next 3 sentences"). The file
    holds one text a line, in the order of a running document, which a blank line ends; its last line has no
    successor and is no anchor.

    Differs: the authors' code for these rows is not published. Of the next three one is drawn, anew each epoch;
    the last texts of a document draw among those that are left.

    Args:
        reach: How many texts further on the positive may stand, all equally likely.

    Raises:
        ValueError: Less than one.

    Example:
        >>> lines = [{"text": "It rains."}, {"text": "We stay."}, {"text": "We read."}]
        >>> Neighbours().arrange([lines])[0][1]
        {'text': 'We stay.', 'next': 'We read.'}
    """

    def __init__(self, reach: int = 1) -> None:
        self.reach = at_least("Neighbours.reach", reach, 1, "3 in SimCSE's other row")

    def arrange(self, documents: Sequence[Sequence[Row]]) -> tuple[Sequence[Row], str]:
        """Returns every row with its successors in the document: ``next``, ``next_2``, ...; the last has none."""
        rows = _Followed(Documents.of(documents), self.reach)
        if not rows:
            raise InvalidValueError(
                "data.train: expected two texts or more, one after the other, got one; give more text"
            )
        return rows, f"{len(rows):,} texts with their successor{'s' if self.reach > 1 else ''}"

    def __call__(self, row: Row, rng: np.random.Generator) -> list[Example]:
        """Returns one example: the text and one of its successors."""
        following = [str(text) for name, text in row.items() if name.startswith("next")]
        return [Example(anchor=str(row["text"]), positives=(following[int(rng.integers(len(following)))],))]


class _Followed(Sequence[Row]):
    """Every row but the last of each document, with its successors, made when it is asked for."""

    def __init__(self, documents: Documents, reach: int) -> None:
        self._documents = documents
        self._names = ["next", *(f"next_{number}" for number in range(2, reach + 1))]
        sizes = np.diff(documents.ends, prepend=0)
        self._ends = np.cumsum(np.maximum(sizes - 1, 0))

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...

    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        document = int(np.searchsorted(self._ends, place, side="right"))
        rows, ends = self._documents.rows, self._documents.ends
        # Of the documents before, each with a row has one more there than here.
        end = int(ends[document])
        at = end - 1 - (int(self._ends[document]) - place)
        after = [rows[number]["text"] for number in range(at + 1, min(at + 1 + len(self._names), end))]
        return {**rows[at], **dict(zip(self._names, after, strict=False))}
