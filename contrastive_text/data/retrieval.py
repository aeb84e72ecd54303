"""Retrieval sets: queries, a corpus and relevance grades, from BEIR's layout or from files of pairs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from contrastive_text.core.checks import at_least
from contrastive_text.core.errors import InvalidValueError, MissingFileError
from contrastive_text.core.random import text_id
from contrastive_text.core.storage.text_files import USUAL, Bounds, is_blank
from contrastive_text.data.files.formats import (
    PYTHON,
    Content,
    FileForm,
    counted,
    listed,
    reading_error,
    short,
)
from contrastive_text.data.files.frames import PREFIX, hub_content
from contrastive_text.data.files.given import GIVEN, Source, source
from contrastive_text.data.files.parsing import parse
from contrastive_text.data.files.readers import read_rows
from contrastive_text.data.tasks import file_name, files_of


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
        at_least("documents", most, 1, "leave it out for all")
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
            f"{_queries(len(queries))}; look into its judgments"
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


def read_pair_corpus(
    path: str | Path,
    texts: str | Sequence[str] | None = None,
    columns: Mapping[str, str | Sequence[str]] | None = None,
    split: str | None = None,
    bounds: Bounds = USUAL,
    options: Mapping[str, str] = PYTHON,
) -> RetrievalSet:
    r"""Reads pairs as queries and a corpus: the distinct anchors, and the distinct positives of all of them.

    The positives of pairs labeled 0 are documents of the corpus that no query is to find by them.

    A list of positives, or several rows of one anchor, are so many relevant documents. An anchor that is also
    another's positive never finds itself. Documents have the order of the files; those of ``texts`` come last.

    Args:
        path: Pairs, as ``read_rows`` takes them.
        texts: Files of further texts that are ranked too; those that are positives count once.
        columns: As for ``read_rows``.
        split: As for ``read_rows``.
        bounds: How large what is in a file may be.
        options: Setting -> how the caller spells it, for messages.

    Raises:
        FileNotFoundError: A file that isn't there.
        ValueError: What ``read_rows`` refuses, with its line.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "pairs.tsv")
        ...     _ = path.write_text("query\tanswer\na cat?\ta pet\na cat?\tan animal\na dog?\ta pet\n")
        ...     data = read_pair_corpus(path)
        >>> data.queries, data.documents, data.relevance
        (('a cat?', 'a dog?'), ('a pet', 'an animal'), ({0: 1.0, 1: 1.0}, {0: 1.0}))
    """
    form = FileForm(pair_labels="hard", needs_label=False, options=options)
    table = read_rows(path, reads=("anchor", "positive"), columns=columns, split=split, bounds=bounds, form=form)
    alone = FileForm(options={})
    further = None if texts is None else read_rows(texts, reads=("text",), bounds=bounds, form=alone)
    grades: dict[str, dict[str, float]] = {}
    for row in table:
        if row.get("target") == 0.0:
            continue
        grades.setdefault(str(row["anchor"]), {})[str(row["positive"])] = 1.0
    positives = dict.fromkeys(str(row["positive"]) for row in table)
    corpus = positives | dict.fromkeys(str(row["text"]) for row in further or ())
    return judged(
        str(path),
        queries={text: text for text in grades},
        documents={text: text for text in corpus},
        grades=grades,
        own={text: text for text in grades},
        notes=[table.understood, *([] if further is None else [further.understood])],
    )


NANO_PLACE = "sentence-transformers/NanoBEIR-en"
"""Data set of the hub with NanoBEIR: configurations corpus, queries and qrels, whose splits are ``NANO_SETS``."""
NANO_SETS = tuple(
    f"Nano{name}"
    for name in (
        "ArguAna", "ClimateFEVER", "DBPedia", "FEVER", "FiQA2018", "HotpotQA", "MSMARCO", "NFCorpus", "NQ",
        "QuoraRetrieval", "SCIDOCS", "SciFact", "Touche2020",
    )
)  # fmt: skip
"""The thirteen sets of NanoBEIR: some 50 queries and 2,000 to 6,000 documents of each set of BEIR."""
_CORPUS, _QUERIES, _QRELS = "corpus", "queries", "qrels"


def holds_corpus(folder: Path) -> bool:
    """Whether a folder has a corpus in BEIR's layout."""
    return any((folder / f"{_CORPUS}.jsonl{packed}").is_file() for packed in ("", ".gz"))


def read_beir(folder: str | Path, split: str, bounds: Bounds = USUAL) -> RetrievalSet:
    """Reads a data set of BEIR (Thakur et al. 2021, https://arxiv.org/abs/2104.08663), or one in its layout.

    ``corpus.jsonl`` has ``_id``, ``text`` and mostly ``title``, which is put before the text; ``queries.jsonl``
    has ``_id`` and ``text``; ``qrels/SPLIT.tsv`` has a header and the columns ``query-id``, ``corpus-id`` and
    ``score``, a grade, above 0 where the document is relevant. Each may be a ``.gz``.

    Args:
        folder: Where these lie.
        split: Which judgments: ``test``, ``dev`` or ``train``.
        bounds: How large what is in a file may be.

    Returns:
        The documents in the order of their ids, and the queries with a relevant document; those without one are
        counted in ``understood``, for ``queries.jsonl`` mostly has those of all splits.

    Raises:
        FileNotFoundError: A file that isn't there; the message says which splits are.
        ValueError: An id twice, an empty corpus, a blank query, judgments without a header, of an unknown query
            or document, with other grades than numbers or two of one document, or no query with a relevant one;
            the message names the line.

    Example:
        >>> data = read_beir("nfcorpus", "test")  # doctest: +SKIP
        >>> data.understood  # doctest: +SKIP
        'nfcorpus, test: 323 queries, 3,633 documents, 12,334 relevant; 2,914 queries without ... left out'
    """
    root = Path(folder)
    paths = [_file(root, part) for part in (_CORPUS, _QUERIES, f"{_QRELS}/{split}")]
    return _read(f"{root}, {split}", *((str(path), parse(path, bounds)) for path in paths))


def read_nano(name: str, place: str = NANO_PLACE) -> RetrievalSet:
    """Reads one of ``NANO_SETS`` from the hub, or from a folder in the same form.

    Args:
        name: Its name, which is the split of each configuration.
        place: Name on the hub, or a folder.

    Raises:
        ImportError: Without the library ``datasets``.
        ValueError: It can't be loaded, or is not what ``read_beir`` takes.
    """
    paths = [f"{PREFIX}{place}:{part}:{name}" for part in (_CORPUS, _QUERIES, _QRELS)]
    return _read(name, *((path, hub_content(path)) for path in paths))


def _file(root: Path, part: str) -> Path:
    suffix = ".tsv" if part.startswith(_QRELS) else ".jsonl"
    for packed in ("", ".gz"):
        if (path := root / f"{part}{suffix}{packed}").is_file():
            return path
    there = splits(root)
    got = f"judgments of {listed(there)} alone" if part.startswith(_QRELS) and there else "none"
    raise MissingFileError(
        f"{root}: expected {part}{suffix}, as BEIR's layout has it, got {got}; give a folder with corpus.jsonl, "
        "queries.jsonl and qrels/SPLIT.tsv"
    )


def splits(root: Path) -> Sequence[str]:
    """Returns the splits that have judgments, by name."""
    return sorted({path.name.split(".tsv")[0] for path in (root / _QRELS).glob("*.tsv*")})


def chosen_split(root: Path, usual: str) -> str:
    """Returns the only split that has judgments, or the usual one where there are several or none."""
    there = splits(root)
    return there[0] if len(there) == 1 else usual


_Source: TypeAlias = tuple[str, Content]
"""A file for messages, and what it holds."""


def _read(source: str, corpus: _Source, queries: _Source, qrels: _Source) -> RetrievalSet:
    documents, asked = _texts(corpus), _texts(queries)
    for (where, _), texts in ((corpus, documents), (queries, asked)):
        if not texts:
            raise reading_error(where, "a text with its id a line", "an empty file", "fetch it again")
    for name, (text, _) in asked.items():
        if is_blank(text):
            got = f"a blank one for {short(name)}"
            raise reading_error(queries[0], "a text for every query", got, "drop it")
    grades = _grades(qrels, asked, documents)
    return judged(
        source,
        queries={name: text for name, (text, _) in asked.items()},
        # The title and the text, as BEIR's code joins them.
        documents={name: "{1} {0}".format(*documents[name]).strip() for name in sorted(documents)},
        grades=grades,
        own={name: name for name in asked.keys() & documents.keys() if asked[name][0] == documents[name][0]},
    )


def _texts(source: _Source) -> dict[str, tuple[str, str]]:
    """Returns the text and the title of each id."""
    found: dict[str, tuple[str, str]] = {}
    for where, (cell, *texts) in _rows(source, ("_id", "text"), ("title",)):
        name = _id(where, "_id", cell)
        if wrong := [each for each in texts if not isinstance(each, str | None)]:
            raise reading_error(where, "a text", short(repr(wrong[0])), "write it as one string")
        if name in found:
            raise reading_error(where, "every id once", f"{short(name)} twice", "drop one, or rename it")
        text, title = (str(each or "") for each in texts)
        found[name] = text, title
    return found


def _grades(
    source: _Source, queries: Mapping[str, object], documents: Mapping[str, object]
) -> dict[str, dict[str, float]]:
    grades: dict[str, dict[str, float]] = {}
    for where, (asked, answer, score) in _rows(source, ("query-id", "corpus-id"), ("score",)):
        query, grade = _id(where, "query-id", asked), _grade(where, score)
        for each in answer if isinstance(answer, list) else [answer]:
            document = _id(where, "corpus-id", each)
            for kind, name, known in (("query", query, queries), ("document", document, documents)):
                if name not in known:
                    todo = "take files of one data set, or drop the line"
                    raise reading_error(where, f"the id of a {kind}", f"{short(name)}, which there is not", todo)
            earlier = grades.setdefault(query, {}).setdefault(document, grade)
            if earlier != grade:
                got = f"{earlier:g} and {grade:g} for {short(document)} and the query {short(query)}"
                raise reading_error(where, "one grade of a document for a query", got, "drop one of the lines")
    return grades


def _rows(source: _Source, needed: Sequence[str], optional: Sequence[str]) -> Iterator[tuple[str, list[object]]]:
    """Yields the place of each row, and its cells of these columns; None for an optional one that isn't there."""
    where, content = source
    header = content.header
    if header and (lacking := [name for name in needed if name not in header]):
        got = f"{listed(map(short, header[:6]))}, without {lacking[0]}"
        raise reading_error(where, f"the columns {listed(needed)} in its header", got, "write the header")
    places = [header.index(name) if name in header else None for name in (*needed, *optional)]
    for record in content.records():
        if record is not None:
            line, cells = record
            yield f"{where}:{line}", [None if place is None else cells[place] for place in places]


def _id(where: str, column: str, cell: object) -> str:
    if not isinstance(cell, str | int) or isinstance(cell, bool) or cell == "":
        raise reading_error(where, f"an id in {column}", repr(cell), "give every line one")
    return str(cell)


def _grade(where: str, cell: object) -> float:
    if cell is None:
        return 1.0  # NanoBEIR's judgments are those of relevant documents alone
    try:
        grade = float(str(cell))
    except ValueError:
        grade = math.nan
    if not math.isfinite(grade):
        raise reading_error(where, "a number as score", short(repr(cell)), "0 is for an irrelevant document")
    return grade


MOST_DOCUMENTS = 10_000
"""Documents that a validation ranks where nothing else is said: some seconds of encoding on a GPU."""


@dataclass(frozen=True)
class Retrieval:
    """Queries and corpora that a run ranks in validation.

    Each file or folder gives ``val/NAME/ndcg@10`` and other figures.

    Args:
        files: Folders in BEIR's layout, with ``qrels/dev.tsv`` or one other file of judgments; and files of
            pairs, or rows.
        corpus: Files of further texts, which are ranked together with the positives of a file of pairs.
        columns: Library column -> column of each file of pairs; None for their usual names.
        documents: Most documents of a corpus that are ranked: all judged documents, and others, the same in every
            run. None for all.

    Raises:
        ValueError: Fewer than one document.

    Example:
        >>> Retrieval("scifact", documents=1000).files
        'scifact'
    """

    files: Source | None = None
    corpus: Source | None = None
    columns: dict[str, str] | None = None
    documents: int | None = MOST_DOCUMENTS

    def __post_init__(self) -> None:
        for name in ("files", "corpus"):
            object.__setattr__(self, name, source(f"data.retrieval.{name}", vars(self)[name]))
        at_least("data.retrieval.documents", self.documents, 1)

    def read(self, taken: Collection[str] = (), bounds: Bounds = USUAL) -> dict[str, RetrievalSet]:
        """Returns the sets by the names of their folders and files, bounded; the same for every seed of a run.

        Args:
            taken: Names that others of the run's tables have.
            bounds: How large what is in a file may be.

        Raises:
            FileNotFoundError: A folder or file that isn't there.
            ValueError: What ``read_beir`` and ``read_pair_corpus`` refuse, two sets of one name, or further texts
                without a file of pairs.
        """
        sources = files_of(self.files)
        names = [file_name(Path(each).resolve().name if _is_dir(each) else each) for each in sources]
        if twice := [name for i, name in enumerate(names) if name in {*names[:i], *taken}]:
            raise InvalidValueError(
                f"data.retrieval.files: expected folders and files of different names, got {twice[0]} twice "
                "or as the name of a task or a validation file; rename one"
            )
        for option, given in (("corpus", self.corpus), ("columns", self.columns)):
            if given and all(map(_is_dir, sources)):
                raise InvalidValueError(
                    f"data.retrieval.{option}: expected a file of pairs in data.retrieval.files, got "
                    f"{', '.join(sources) or None}; leave it out, because a folder has its own corpus"
                )
        return {name: self._read(source, bounds) for name, source in zip(names, sources, strict=True)}

    def _read(self, source: str, bounds: Bounds) -> RetrievalSet:
        if _is_dir(source):
            data = read_beir(Path(source), chosen_split(Path(source), "dev"), bounds)
        else:
            options = {"columns": "--data.retrieval.columns"}
            corpus = files_of(self.corpus) or None
            data = read_pair_corpus(source, corpus, self.columns, bounds=bounds, options=options)
        return data if self.documents is None else data.bounded(self.documents)


def _is_dir(source: str) -> bool:
    return not source.startswith(GIVEN) and Path(source).is_dir()


NO_RETRIEVAL = Retrieval()
"""Default of a run, which ranks nothing."""
