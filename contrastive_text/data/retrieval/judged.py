"""A corpus with queries, and the grades of the documents that answer them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.random import text_id
from contrastive_text.data.files.formats import counted


@dataclass(frozen=True, slots=True)
class RetrievalSet:
    """Queries that are answered by documents of a corpus.

    The order of the documents settles ties: see ``inference.retrieval.retrieved``. A query that stands in the
    corpus itself, under its own id and with its own text, never finds itself, as BEIR has it (Thakur et al.
    2021, https://arxiv.org/abs/2104.08663; ``ignore_identical_ids`` of its code).

    Args:
        queries: Their texts, Q.
        documents: Texts of the corpus, C.
        relevance: For each query the grades of its documents by their numbers, one above 0 at least.
        own: For each query the number of the document that is the query itself; -1 where there is none.
        understood: How the files were understood, and what was left out.
    """

    queries: tuple[str, ...]
    documents: tuple[str, ...]
    relevance: tuple[Mapping[int, float], ...]
    own: tuple[int, ...]
    understood: str = ""

    @property
    def identity(self) -> int:
        """A number that is the same for the same texts and grades, wherever their files lie."""
        return text_id(repr((self.queries, self.documents, self.relevance, self.own)))

    def bounded(self, most: int, seed: int = 42) -> RetrievalSet:
        """Returns the same with so many documents at most: all judged ones, and others as they are drawn.

        A smaller corpus is an easier one: scores compare with those of the same bound alone.

        Args:
            most: Documents; where more are judged, all of these and no others.
            seed: Of the draw.

        Raises:
            ValueError: No documents asked for.

        Example:
            >>> whole = RetrievalSet(("a?",), ("b", "a", "c", "d"), ({1: 1.0},), (-1,))
            >>> whole.bounded(2, seed=0).documents
            ('a', 'd')
        """
        if most < 1:
            raise InvalidValueError(f"documents: expected 1 or more, got {most}; leave it out for all")
        if len(self.documents) <= most:
            return self
        judged = {number for grades in self.relevance for number in grades}
        others = [number for number in range(len(self.documents)) if number not in judged]
        room = max(0, most - len(judged))
        drawn = np.random.default_rng(seed).choice(len(others), size=min(room, len(others)), replace=False)
        kept = sorted(judged.union(others[place] for place in drawn.tolist()))
        numbers = {old: new for new, old in enumerate(kept)}
        return replace(
            self,
            documents=tuple(self.documents[number] for number in kept),
            relevance=tuple({numbers[old]: grade for old, grade in each.items()} for each in self.relevance),
            own=tuple(numbers.get(number, -1) for number in self.own),
            understood=f"{self.understood}; {counted(len(kept), 'document')} of them ranked: "
            f"{len(judged):,} judged and {len(kept) - len(judged):,} drawn",
        )


def judged(
    source: str,
    queries: Mapping[str, str],
    documents: Mapping[str, str],
    grades: Mapping[str, Mapping[str, float]],
    own: Mapping[str, str],
    notes: Sequence[str] = (),
) -> RetrievalSet:
    """Returns the queries that have a relevant document, with all documents; others are left out and counted.

    Args:
        source: What was read, for messages.
        queries: Id -> text.
        documents: Id -> text, in the order that settles ties.
        grades: Id of a query -> ids of documents -> grades; all of them are known.
        own: Id of a query that stands in the corpus itself -> id of that document.
        notes: What else is to be said.

    Raises:
        ValueError: No query with a relevant document.
    """
    asked = [query for query in queries if any(grade > 0 for grade in grades.get(query, {}).values())]
    if not asked:
        raise InvalidValueError(
            f"{source}: expected a query with a document whose grade is above 0, got none of "
            f"{_queries(len(queries))}; look into its judgements"
        )
    numbers = {name: number for number, name in enumerate(documents)}
    relevance = tuple({numbers[name]: grade for name, grade in grades[query].items()} for query in asked)
    selves = tuple(numbers.get(own.get(query, ""), -1) for query in asked)
    # One that is judged to answer itself stays to be found.
    selves = tuple(-1 if number in each else number for number, each in zip(selves, relevance, strict=True))
    found = sum(grade > 0 for each in relevance for grade in each.values())
    said = [f"{source}: {_queries(len(asked))}, {counted(len(documents), 'document')}, {found:,} relevant"]
    if others := len(queries) - len(asked):
        said.append(f"{_queries(others)} without a relevant document left out")
    if inside := sum(number >= 0 for number in selves):
        said.append(f"{_queries(inside)} in the corpus, which never find themselves")
    return RetrievalSet(
        queries=tuple(queries[query] for query in asked),
        documents=tuple(documents.values()),
        relevance=relevance,
        own=selves,
        understood="; ".join([*said, *notes]),
    )


def _queries(number: int) -> str:
    return f"{number:,} {'query' if number == 1 else 'queries'}"
