"""Base class of pairings, and pairings for single texts, pairs of texts and neighboring texts."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import ClassVar, Self, cast, overload

import numpy as np

from contrastive_text.core.errors import InvalidValueError, at_least
from contrastive_text.core.targets import Target
from contrastive_text.core.types import Example, Row, TextPair


class Documents(Sequence[Sequence[Row]]):
    """Sequence of documents, each a sequence of rows in the order of the document, for ``Pairing.arrange``.

    Args:
        rows: Rows of all documents, concatenated. They may be read from a memory-mapped file.
        sizes: Number of rows of each document.

    Attributes:
        ends: Index after the last row of each document, (N,), int64.

    Example:
        >>> documents = Documents([{"text": "a"}, {"text": "b"}, {"text": "c"}], sizes=[2, 1])
        >>> list(documents)
        [[{'text': 'a'}, {'text': 'b'}], [{'text': 'c'}]]
    """

    def __init__(self, rows: Sequence[Row], sizes: Iterable[int]) -> None:
        self.rows = rows
        self.ends = np.cumsum(np.fromiter(sizes, np.int64))

    @classmethod
    def convert(cls, documents: Sequence[Sequence[Row]]) -> Self:
        """Converts documents of another sequence type; ``Documents`` are returned unchanged."""
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
            return [self[number] for number in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        return self.rows[int(self.ends[number - 1]) if number else 0 : int(self.ends[number])]


class Pairing(ABC):
    """Base class of pairings, which turn each row of a data file into training examples.

    A subclass implements ``__call__``. All rows must give the same number of examples, with the same number of
    positives and hard negatives. An example has the row's label or score as its target, unless the pairing sets
    another.

    Attributes:
        reads: Columns that a file must have.
        target: Kind of label that the pairing itself reads from a file; None if it reads no labels.
        token_roles: Whether texts are tokenized before, to ``Tokens`` without special tokens and without
            truncation.
        joins_texts: Whether the pairing joins texts into one sequence. Validation and test rows are then
            joined too.
        in_context: Whether the texts of an example are spans of one document, which is encoded in their place.

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
    token_roles: ClassVar[bool] = False
    joins_texts: ClassVar[bool] = False
    in_context: bool = False

    def arrange(self, documents: Sequence[Sequence[Row]]) -> tuple[Sequence[Row], str]:
        """Arranges the rows of all documents into rows for ``__call__``. Called once, before batches are drawn.

        Args:
            documents: Rows of each document, in order. A document is a file, or a part of a file that ends at a
                blank line. The rows may be memory-mapped; a list of all rows may exceed the memory.

        Returns:
            The rows for ``__call__`` (here all rows), and a line for the run's summary about new and skipped
            rows, which may be empty.

        Raises:
            ValueError: No rows remain.
        """
        return Documents.convert(documents).rows, ""

    def accepts_length(self, tokens: int) -> bool:  # noqa: ARG002  # the base's signature
        """Returns True if a text of a number of tokens can be paired. Other texts are skipped and counted.

        Called only if ``token_roles`` is true.
        """
        return True

    def shortens_spans(self, tokens: int) -> bool:  # noqa: ARG002  # the base's signature
        """Returns True if a text with a number of tokens gets shorter spans than requested. They are counted."""
        return False

    def check_length_limit(self, room: int) -> None:  # noqa: B027  # longer texts are truncated
        """Checks that the texts of the pairing fit into a row of the encoder.

        Called only if ``token_roles`` is true.

        Args:
            room: Largest number of tokens of a row without its special tokens.

        Raises:
            ValueError: Texts may be longer, and the pairing has no option to truncate them.
        """

    @abstractmethod
    def __call__(self, row: Row, rng: np.random.Generator) -> list[Example]:
        """Returns the training examples of a row.

        Args:
            row: Column -> value.
            rng: Generator of all random draws.
        """


class SameText(Pairing):
    """Pairs each text with itself; only dropout or views make the two vectors differ (SimCSE, ConSERT, CLEAR).

    Example:
        >>> example, = SameText()({"text": "hello"}, np.random.default_rng(0))
        >>> example.anchor, example.positives
        ('hello', ('hello',))
    """

    def __call__(self, row: Row, rng: np.random.Generator) -> list[Example]:  # noqa: ARG002  # the contract
        """Returns one example, whose anchor and positive are both the text of the row."""
        text = str(row["text"])
        return [Example(anchor=text, positives=(text,))]


class Given(Pairing):
    """Reads pairs and hard negatives from the columns ``anchor``, ``positive``, ``negative``, ``negative_2``, ...

    Rows may have different numbers of hard negatives. Missing hard negatives are empty texts, which are masked
    for all rows of a step. If an objective reads teacher scores, each text keeps its score.

    Args:
        views_per_text: Number of copies of each text in a batch, each altered by the views separately. It is 2
            for the joint training of ConSERT (Yan et al. 2021), with two views of the premise and of the
            hypothesis.
        negatives: Number of hard negatives that are drawn for a row in each epoch; None for all.

    Raises:
        ValueError: ``views_per_text`` is below 1, or ``negatives`` is below 0.

    Example:
        >>> example, = Given()({"anchor": "a", "positive": "b", "negative": "c"}, np.random.default_rng(0))
        >>> example.anchor, example.positives, example.negatives
        ('a', ('b',), ('c',))
    """

    reads = ("anchor", "positive")

    def __init__(self, views_per_text: int = 1, negatives: int | None = None) -> None:
        self.views_per_text = at_least("Given.views_per_text", views_per_text, 1, "2 in ConSERT")
        self.negatives = at_least("Given.negatives", negatives, 0, "remove it for all hard negatives")

    def __call__(self, row: Row, rng: np.random.Generator) -> list[Example]:
        """Returns one example with the texts of the row's columns."""
        texts = [str(text) for name, text in row.items() if name.startswith("negative")]
        own = [index for index, text in enumerate(texts) if text]
        chosen = list(range(len(texts)))
        if self.negatives is not None and self.negatives < len(texts):
            drawn = [own[index] for index in sorted(rng.permutation(len(own))[: self.negatives])]
            chosen = [*drawn, *(index for index in chosen if not texts[index])][: self.negatives]
        scores: tuple[float, ...] | None = None
        if "scores" in row:
            first, *others = cast("tuple[float, ...]", row["scores"])
            score_of = dict(zip(own, others, strict=True))
            scores = (first, *(score_of.get(index, math.nan) for index in chosen))
        return [
            Example(
                anchor=str(row["anchor"]),
                positives=(str(row["positive"]),),
                negatives=tuple(texts[index] for index in chosen),
                views_per_text=self.views_per_text,
                scores=scores,
            )
        ]


class OneSequence(Pairing):
    """Joins the two texts of a row into one sequence, as in BERT's fine-tuning on pairs (cross-encoder input).

    The tokenizer adds its special tokens and token types for pairs: ``[CLS] first [SEP] second [SEP]`` for BERT
    (Devlin et al. 2019, https://arxiv.org/abs/1810.04805, section 3.2), ``<s> first </s></s> second </s>`` for
    RoBERTa. A sequence that is too long is truncated at the longer text.

    The anchor of an example is the first text with the second one, for ``TextClassification``, ``TextRegression``
    and ``Reranking``. Each hard negative follows the first text, too, for ``Reranking``. There are no positives.

    Args:
        negatives: Number of hard negatives that are drawn for a row in each epoch; None for all.

    Raises:
        ValueError: ``negatives`` is below 0.

    Example:
        >>> example, = OneSequence()({"anchor": "It rains.", "positive": "Is it wet?"}, np.random.default_rng(0))
        >>> example.anchor, example.positives
        (TextPair(first='It rains.', second='Is it wet?'), ())
    """

    reads = ("anchor", "positive")
    joins_texts = True

    def __init__(self, negatives: int | None = None) -> None:
        self.negatives = at_least("OneSequence.negatives", negatives, 0, "remove it for all hard negatives")
        self._texts = Given(negatives=negatives)

    def __call__(self, row: Row, rng: np.random.Generator) -> list[Example]:
        """Returns one example, whose anchor is the pair of texts."""
        (example,) = self._texts(row, rng)
        first = str(example.anchor)
        negatives = tuple(TextPair(first, str(text)) if text else "" for text in example.negatives)
        return [replace(example, anchor=TextPair(first, str(row["positive"])), positives=(), negatives=negatives)]


class Neighbors(Pairing):
    """Pairs a text with one of the texts that follow it in its document ("next sentence" in SimCSE's ablation).

    Source: Gao et al. 2021, SimCSE, section 3, table 2 ("next sentence"; with ``reach: 3`` "next 3 sentences").
    The file has one text a line, in the order of a document. A blank line ends a document. The last text of a
    document has no successor and is not an anchor.

    Differs: the authors' code for these rows is not published. Here one of the next three texts is drawn in each
    epoch. Near the end of a document fewer texts follow, and one of these is drawn.

    Args:
        reach: Largest distance of the positive from the anchor, in texts. All distances are equally likely.

    Raises:
        ValueError: ``reach`` is below 1.

    Example:
        >>> lines = [{"text": "It rains."}, {"text": "We stay."}, {"text": "We read."}]
        >>> Neighbors().arrange([lines])[0][1]
        {'text': 'We stay.', 'next': 'We read.'}
    """

    def __init__(self, reach: int = 1) -> None:
        self.reach = at_least("Neighbors.reach", reach, 1, "3 in SimCSE's other row")

    def arrange(self, documents: Sequence[Sequence[Row]]) -> tuple[Sequence[Row], str]:
        """Adds successors of each row as columns ``next``, ``next_2``, ..., and skips the last row of a document.

        Raises:
            ValueError: No document has two texts.
        """
        rows = _RowsWithSuccessors(Documents.convert(documents), self.reach)
        if not rows:
            raise InvalidValueError(
                "data.train: expected a document of two or more texts, got documents of one text; give more text"
            )
        return rows, f"{len(rows):,} texts with their successor{'s' if self.reach > 1 else ''}"

    def __call__(self, row: Row, rng: np.random.Generator) -> list[Example]:
        """Returns one example: the text of the row and one of its successors."""
        successors = [str(text) for name, text in row.items() if name.startswith("next")]
        return [Example(anchor=str(row["text"]), positives=(successors[int(rng.integers(len(successors)))],))]


class _RowsWithSuccessors(Sequence[Row]):
    """Sequence of rows with their successors in the document, built on access, without last rows."""

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
            return [self[number] for number in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        document = int(np.searchsorted(self._ends, number, side="right"))
        rows, ends = self._documents.rows, self._documents.ends
        # The document has one row more in ``rows`` than in this sequence.
        end = int(ends[document])
        row = end - 1 - (int(self._ends[document]) - number)
        successors = [rows[i]["text"] for i in range(row + 1, min(row + 1 + len(self._names), end))]
        return {**rows[row], **dict(zip(self._names, successors, strict=False))}
