"""Retrieval sets: queries, a corpus and relevance grades, from BEIR's layout or from files of pairs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from contrastive_text.core.errors import InvalidValueError, MissingFileError, at_least
from contrastive_text.core.random import text_id
from contrastive_text.core.storage.text_files import USUAL, SizeLimits, is_blank
from contrastive_text.data.files.formats import (
    PYTHON,
    Content,
    FileForm,
    count_noun,
    join_names,
    reading_error,
    short,
)
from contrastive_text.data.files.in_memory import GIVEN, Source, wrap_rows
from contrastive_text.data.files.parsing import PREFIX, hub_content, parse
from contrastive_text.data.files.readers import read_rows
from contrastive_text.data.tasks import file_name, files_of


@dataclass(frozen=True, slots=True)
class RetrievalSet:
    """Queries and the corpus of documents in which they are searched, with relevance grades.

    The order of the documents settles ties: see ``inference.search.rank_documents``. A query that is also a
    document of the corpus, with the same id and text, is excluded from its own results, as in BEIR (Thakur et al.
    2021, https://arxiv.org/abs/2104.08663; ``ignore_identical_ids`` of its code).

    Args:
        queries: Texts of the queries, Q.
        documents: Texts of the corpus, C.
        relevance: For each query document number -> grade, with at least one grade above 0.
        own_documents: For each query the number of the document that is the query itself, or -1.
        description: Description of how the files were read, and of skipped queries.
    """

    queries: tuple[str, ...]
    documents: tuple[str, ...]
    relevance: tuple[Mapping[int, float], ...]
    own_documents: tuple[int, ...]
    description: str = ""

    @property
    def identity(self) -> int:
        """Hash of the texts and grades, which doesn't depend on the path of their files."""
        return text_id(repr((self.queries, self.documents, self.relevance, self.own_documents)))

    def limit_documents(self, most: int, seed: int = 42) -> RetrievalSet:
        """Limits the corpus to a number of documents: all judged documents, and a random sample of the rest.

        A smaller corpus is easier, so scores are comparable only with scores for the same limit.

        Args:
            most: Largest number of documents. If more are judged, the judged documents are kept and no others.
            seed: Seed of the sample.

        Raises:
            ValueError: A limit below 1.

        Example:
            >>> whole = RetrievalSet(("a?",), ("b", "a", "c", "d"), ({1: 1.0},), (-1,))
            >>> whole.limit_documents(2, seed=0).documents
            ('a', 'd')
        """
        at_least("documents", most, 1, "leave it out for all")
        if len(self.documents) <= most:
            return self
        judged_numbers = {number for grades in self.relevance for number in grades}
        unjudged = [number for number in range(len(self.documents)) if number not in judged_numbers]
        room = max(0, most - len(judged_numbers))
        draws = np.random.default_rng(seed).choice(len(unjudged), size=min(room, len(unjudged)), replace=False)
        numbers = sorted(judged_numbers.union(unjudged[place] for place in draws.tolist()))
        new_numbers = {number: new_number for new_number, number in enumerate(numbers)}
        return replace(
            self,
            documents=tuple(self.documents[number] for number in numbers),
            relevance=tuple(
                {new_numbers[number]: grade for number, grade in grades.items()} for grades in self.relevance
            ),
            own_documents=tuple(new_numbers.get(number, -1) for number in self.own_documents),
            description=f"{self.description}; {count_noun(len(numbers), 'document')} of them ranked: "
            f"{len(judged_numbers):,} judged and {len(numbers) - len(judged_numbers):,} drawn",
        )


def build_retrieval_set(
    source: str,
    queries: Mapping[str, str],
    documents: Mapping[str, str],
    grades: Mapping[str, Mapping[str, float]],
    own: Mapping[str, str],
    notes: Sequence[str] = (),
) -> RetrievalSet:
    """Builds a retrieval set from the queries that have a relevant document. Other queries are only counted.

    Args:
        source: File or data set that was read, for messages.
        queries: Id -> text.
        documents: Id -> text, in the order that settles ties.
        grades: Id of a query -> id of a document -> grade. All ids must be known.
        own: Id of a query that is also a document -> id of that document.
        notes: Further facts for the description.

    Raises:
        ValueError: No query has a relevant document.
    """
    query_ids = [query for query in queries if any(grade > 0 for grade in grades.get(query, {}).values())]
    if not query_ids:
        raise InvalidValueError(
            f"{source}: expected a query with a document whose grade is above 0, got "
            f"{_queries(len(queries))} without one; check the relevance grades"
        )
    numbers = {name: number for number, name in enumerate(documents)}
    relevance = tuple({numbers[name]: grade for name, grade in grades[query].items()} for query in query_ids)
    own_numbers = tuple(numbers.get(own.get(query, ""), -1) for query in query_ids)
    # A query that is judged relevant to itself is not excluded from its results.
    own_numbers = tuple(
        -1 if number in grades else number for number, grades in zip(own_numbers, relevance, strict=True)
    )
    relevant = sum(grade > 0 for grades in relevance for grade in grades.values())
    facts = [
        f"{source}: {_queries(len(query_ids))}, {count_noun(len(documents), 'document')}, {relevant:,} relevant"
    ]
    if skipped_count := len(queries) - len(query_ids):
        facts.append(f"{_queries(skipped_count)} without a relevant document left out")
    if own_count := sum(number >= 0 for number in own_numbers):
        facts.append(f"{_queries(own_count)} in the corpus, which never find themselves")
    return RetrievalSet(
        queries=tuple(queries[query] for query in query_ids),
        documents=tuple(documents.values()),
        relevance=relevance,
        own_documents=own_numbers,
        description="; ".join([*facts, *notes]),
    )


def _queries(number: int) -> str:
    return f"{number:,} {'query' if number == 1 else 'queries'}"


def read_pair_corpus(
    path: str | Path,
    texts: str | Sequence[str] | None = None,
    columns: Mapping[str, str | Sequence[str]] | None = None,
    split: str | None = None,
    bounds: SizeLimits = USUAL,
    options: Mapping[str, str] = PYTHON,
) -> RetrievalSet:
    r"""Reads pairs as a retrieval set: distinct anchors are the queries, distinct positives the documents.

    Positives of pairs labeled 0 are documents that aren't relevant to their anchor.

    A list of positives, or several rows with the same anchor, are several relevant documents. An anchor that is
    also the positive of another anchor is excluded from its own results. Documents have the order of the files;
    those of ``texts`` come last.

    Args:
        path: Pairs, as for ``read_rows``.
        texts: Files of further documents. Texts that are also positives count once.
        columns: As for ``read_rows``; ``text`` is the column of the files of further documents.
        split: As for ``read_rows``.
        bounds: Size limits of the files.
        options: Setting -> name of the caller's option for it, for messages.

    Raises:
        FileNotFoundError: A file doesn't exist.
        ValueError: A line that ``read_rows`` refuses.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "pairs.tsv")
        ...     _ = path.write_text("query\tanswer\na cat?\ta pet\na cat?\tan animal\na dog?\ta pet\n")
        ...     data = read_pair_corpus(path)
        >>> data.queries, data.documents, data.relevance
        (('a cat?', 'a dog?'), ('a pet', 'an animal'), ({0: 1.0, 1: 1.0}, {0: 1.0}))
    """
    columns = dict(columns or {})
    text_columns = {name: columns.pop(name) for name in ("text",) if name in columns and texts is not None}
    form = FileForm(pair_labels="hard", needs_label=False, options=options)
    table = read_rows(path, reads=("anchor", "positive"), columns=columns, split=split, bounds=bounds, form=form)
    text_form = FileForm(options={name: option for name, option in options.items() if name == "columns"})
    extra_texts = (
        None
        if texts is None
        else read_rows(texts, reads=("text",), columns=text_columns, bounds=bounds, form=text_form)
    )
    grades: dict[str, dict[str, float]] = {}
    for row in table:
        if row.get("target") == 0.0:
            continue
        grades.setdefault(str(row["anchor"]), {})[str(row["positive"])] = 1.0
    positives = dict.fromkeys(str(row["positive"]) for row in table)
    corpus = positives | dict.fromkeys(str(row["text"]) for row in extra_texts or ())
    return build_retrieval_set(
        str(path),
        queries={text: text for text in grades},
        documents={text: text for text in corpus},
        grades=grades,
        own={text: text for text in grades},
        notes=[table.description, *([] if extra_texts is None else [extra_texts.description])],
    )


NANO_PLACE = "sentence-transformers/NanoBEIR-en"
"""Data set of NanoBEIR on the hub, with configurations corpus, queries and qrels, and ``NANO_SETS`` as splits."""
NANO_SETS = tuple(
    f"Nano{name}"
    for name in (
        "ArguAna", "ClimateFEVER", "DBPedia", "FEVER", "FiQA2018", "HotpotQA", "MSMARCO", "NFCorpus", "NQ",
        "QuoraRetrieval", "SCIDOCS", "SciFact", "Touche2020",
    )
)  # fmt: skip
"""The thirteen sets of NanoBEIR: about 50 queries and 2,000 to 6,000 documents of each set of BEIR."""
_CORPUS, _QUERIES, _QRELS = "corpus", "queries", "qrels"


def holds_corpus(folder: Path) -> bool:
    """Returns whether a folder has a corpus in BEIR's layout."""
    return any((folder / f"{_CORPUS}.jsonl{suffix}").is_file() for suffix in ("", ".gz"))


def read_beir(folder: str | Path, split: str, bounds: SizeLimits = USUAL) -> RetrievalSet:
    """Reads a data set of BEIR (Thakur et al. 2021, https://arxiv.org/abs/2104.08663), or a set in its layout.

    ``corpus.jsonl`` has ``_id``, ``text`` and usually ``title``, which is put before the text. ``queries.jsonl``
    has ``_id`` and ``text``. ``qrels/SPLIT.tsv`` has a header and the columns ``query-id``, ``corpus-id`` and
    ``score``, a grade above 0 if the document is relevant. Each file may be a ``.gz``.

    Args:
        folder: Folder of these files.
        split: Split of the judgments: ``test``, ``dev`` or ``train``.
        bounds: Size limits of the files.

    Returns:
        The documents in the order of their ids, and the queries with a relevant document. Other queries are
        counted in ``description``, because ``queries.jsonl`` usually has the queries of all splits.

    Raises:
        FileNotFoundError: A file doesn't exist; the message lists the splits that do.
        ValueError: An id twice, an empty corpus, a blank query, judgments without a header, judgments of an
            unknown query or document, a grade that isn't a number, two grades of one document, or no query with a
            relevant document. The message names the line.

    Example:
        >>> data = read_beir("nfcorpus", "test")  # doctest: +SKIP
        >>> data.description  # doctest: +SKIP
        'nfcorpus, test: 323 queries, 3,633 documents, 12,334 relevant; 2,914 queries without ... left out'
    """
    root = Path(folder)
    paths = [_file(root, part) for part in (_CORPUS, _QUERIES, f"{_QRELS}/{split}")]
    return _read(f"{root}, {split}", *((str(path), parse(path, bounds)) for path in paths))


def read_nano(name: str, place: str = NANO_PLACE) -> RetrievalSet:
    """Reads a set of ``NANO_SETS`` from the hub, or from a folder of the same form.

    Args:
        name: Name of the set, which is the split of each configuration.
        place: Name on the hub, or a folder.

    Raises:
        ImportError: The library ``datasets`` isn't installed.
        ValueError: The set can't be loaded, or ``read_beir`` would refuse it.
    """
    paths = [f"{PREFIX}{place}:{part}:{name}" for part in (_CORPUS, _QUERIES, _QRELS)]
    return _read(name, *((path, hub_content(path)) for path in paths))


def _file(root: Path, part: str) -> Path:
    suffix = ".tsv" if part.startswith(_QRELS) else ".jsonl"
    for compression in ("", ".gz"):
        if (path := root / f"{part}{suffix}{compression}").is_file():
            return path
    split_names = splits(root) if part.startswith(_QRELS) else []
    got = f"only judgments of {join_names(split_names)}" if split_names else "no such file"
    raise MissingFileError(
        f"{root}: expected {part}{suffix}, as BEIR's layout has it, got {got}; give a folder with corpus.jsonl, "
        "queries.jsonl and qrels/SPLIT.tsv"
    )


def splits(root: Path) -> Sequence[str]:
    """Returns the names of the splits that have judgments."""
    return sorted({path.name.split(".tsv")[0] for path in (root / _QRELS).glob("*.tsv*")})


def chosen_split(root: Path, usual: str) -> str:
    """Returns the only split that has judgments, or ``usual`` if there are several or none."""
    split_names = splits(root)
    return split_names[0] if len(split_names) == 1 else usual


_Source: TypeAlias = tuple[str, Content]
"""Source of a retrieval set's rows: path of a file, for messages, and its content."""


def _read(source: str, corpus: _Source, queries: _Source, qrels: _Source) -> RetrievalSet:
    documents, query_texts = _texts(corpus), _texts(queries)
    for (where, _), texts in ((corpus, documents), (queries, query_texts)):
        if not texts:
            raise reading_error(where, "a text with its id on each line", "an empty file", "download it again")
    for name, (text, _) in query_texts.items():
        if is_blank(text):
            got = f"a blank one for {short(name)}"
            raise reading_error(queries[0], "a text for every query", got, "drop it")
    grades = _grades(qrels, query_texts, documents)
    return build_retrieval_set(
        source,
        queries={name: text for name, (text, _) in query_texts.items()},
        # Title and text are joined as in BEIR's code.
        documents={name: "{1} {0}".format(*documents[name]).strip() for name in sorted(documents)},
        grades=grades,
        own={
            name: name
            for name in query_texts.keys() & documents.keys()
            if query_texts[name][0] == documents[name][0]
        },
    )


def _texts(source: _Source) -> dict[str, tuple[str, str]]:
    """Reads the texts of BEIR's queries or corpus: id -> (text, title)."""
    texts_by_id: dict[str, tuple[str, str]] = {}
    for where, (cell, *texts) in _rows(source, ("_id", "text"), ("title",)):
        name = _id(where, "_id", cell)
        if non_texts := [text for text in texts if not isinstance(text, str | None)]:
            raise reading_error(where, "a text", short(repr(non_texts[0])), "write it as one string")
        if name in texts_by_id:
            raise reading_error(where, "every id once", f"{short(name)} twice", "drop one, or rename it")
        text, title = (str(text or "") for text in texts)
        texts_by_id[name] = text, title
    return texts_by_id


def _grades(
    source: _Source, queries: Mapping[str, object], documents: Mapping[str, object]
) -> dict[str, dict[str, float]]:
    grades: dict[str, dict[str, float]] = {}
    for where, (query_cell, document_cells, score) in _rows(source, ("query-id", "corpus-id"), ("score",)):
        query, grade = _id(where, "query-id", query_cell), _grade(where, score)
        for cell in document_cells if isinstance(document_cells, list) else [document_cells]:
            document = _id(where, "corpus-id", cell)
            for kind, name, ids in (("query", query, queries), ("document", document, documents)):
                if name not in ids:
                    todo = "take files of one data set, or drop the line"
                    raise reading_error(where, f"the id of a {kind}", f"{short(name)}, which doesn't exist", todo)
            earlier_grade = grades.setdefault(query, {}).setdefault(document, grade)
            if earlier_grade != grade:
                got = f"{earlier_grade:g} and {grade:g} for {short(document)} and the query {short(query)}"
                raise reading_error(where, "one grade of a document for a query", got, "drop one of the lines")
    return grades


def _rows(source: _Source, needed: Sequence[str], optional: Sequence[str]) -> Iterator[tuple[str, list[object]]]:
    """Yields file and line of each row, and its cells of the given columns; None for a missing column."""
    where, content = source
    header = content.header
    if header and (missing_columns := [name for name in needed if name not in header]):
        got = f"{join_names(map(short, header[:6]))}, without {missing_columns[0]}"
        raise reading_error(where, f"the columns {join_names(needed)} in its header", got, "write the header")
    indices = [header.index(name) if name in header else None for name in (*needed, *optional)]
    for record in content.records():
        if record is not None:
            line, cells = record
            yield f"{where}:{line}", [None if index is None else cells[index] for index in indices]


def _id(where: str, column: str, cell: object) -> str:
    if not isinstance(cell, str | int) or isinstance(cell, bool) or cell == "":
        raise reading_error(where, f"an id in {column}", repr(cell), "give every line one")
    return str(cell)


def _grade(where: str, cell: object) -> float:
    if cell is None:
        return 1.0  # NanoBEIR lists only relevant documents
    try:
        grade = float(str(cell))
    except ValueError:
        grade = math.nan
    if not math.isfinite(grade):
        raise reading_error(where, "a number as score", short(repr(cell)), "0 is for an irrelevant document")
    return grade


MOST_DOCUMENTS = 10_000
"""Default number of documents that a validation ranks: some seconds of encoding on a GPU."""


@dataclass(frozen=True)
class Retrieval:
    """Queries and corpora that a run ranks in validation.

    Each file or folder gives ``val/NAME/ndcg@10`` and other metrics.

    Args:
        files: Folders in BEIR's layout, with ``qrels/dev.tsv`` or a single other file of judgments; files of
            pairs; or rows.
        corpus: Files of further documents, ranked together with the positives of a file of pairs.
        columns: Library column -> column of each file of pairs; None for their usual names.
        documents: Largest number of documents of a corpus: all judged documents, and a sample of the rest that is
            the same in every run. None for all documents.

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
            object.__setattr__(self, name, wrap_rows(f"data.retrieval.{name}", vars(self)[name]))
        at_least("data.retrieval.documents", self.documents, 1)

    def read(self, taken: Collection[str] = (), bounds: SizeLimits = USUAL) -> dict[str, RetrievalSet]:
        """Returns name -> retrieval set for each file and folder, limited to ``documents``; equal for all seeds.

        Args:
            taken: Names of the run's other tables.
            bounds: Size limits of the files.

        Raises:
            FileNotFoundError: A folder or file doesn't exist.
            ValueError: ``read_beir`` or ``read_pair_corpus`` refuses a file, two sets have one name, or there are
                further documents without a file of pairs.
        """
        sources = files_of(self.files)
        names = [file_name(Path(path).resolve().name if _is_dir(path) else path) for path in sources]
        if repeated := [name for i, name in enumerate(names) if name in {*names[:i], *taken}]:
            raise InvalidValueError(
                f"data.retrieval.files: expected folders and files of different names, got {repeated[0]} twice "
                "or as the name of a task or a validation file; rename one"
            )
        for option, value in (("corpus", self.corpus), ("columns", self.columns)):
            if value and all(map(_is_dir, sources)):
                raise InvalidValueError(
                    f"data.retrieval.{option}: expected a file of pairs in data.retrieval.files, got "
                    f"{', '.join(sources) or None}; remove the option, because a folder has its own corpus"
                )
        return {name: self._read(source, bounds) for name, source in zip(names, sources, strict=True)}

    def _read(self, source: str, bounds: SizeLimits) -> RetrievalSet:
        if _is_dir(source):
            data = read_beir(Path(source), chosen_split(Path(source), "dev"), bounds)
        else:
            options = {"columns": "--data.retrieval.columns"}
            corpus = files_of(self.corpus) or None
            data = read_pair_corpus(source, corpus, self.columns, bounds=bounds, options=options)
        return data if self.documents is None else data.limit_documents(self.documents)


def _is_dir(source: str) -> bool:
    return not source.startswith(GIVEN) and Path(source).is_dir()


NO_RETRIEVAL = Retrieval()
"""Default of ``data.retrieval``: a run ranks no retrieval set."""
