"""BEIR's layout: ``corpus.jsonl``, ``queries.jsonl`` and judgements in ``qrels``, in a folder or on the hub."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from contrastive_text.core.errors import MissingFileError
from contrastive_text.core.text_files import USUAL, Bounds, is_blank
from contrastive_text.data.files.formats import Cells, Content, listed, reading_error, short
from contrastive_text.data.files.hub import PREFIX, hub_content
from contrastive_text.data.files.parsing import parse
from contrastive_text.data.retrieval.judged import RetrievalSet, judged

NANO_PLACE = "sentence-transformers/NanoBEIR-en"
"""Where on the hub NanoBEIR is, by the parts of ``NANO_SETS``: configurations corpus, queries and qrels."""
NANO_SETS = tuple(
    f"Nano{name}"
    for name in (
        "ArguAna", "ClimateFEVER", "DBPedia", "FEVER", "FiQA2018", "HotpotQA", "MSMARCO", "NFCorpus", "NQ",
        "QuoraRetrieval", "SCIDOCS", "SciFact", "Touche2020",
    )
)  # fmt: skip
"""The thirteen sets of NanoBEIR: some 50 queries and 2,000 to 6,000 documents of each set of BEIR."""
_CORPUS, _QUERIES, _QRELS = "corpus", "queries", "qrels"
_IDS = ("_id", "text")
_JUDGED = ("query-id", "corpus-id")


class _Source(NamedTuple):
    where: str
    content: Content


@dataclass(frozen=True, slots=True)
class _Text:
    text: str
    title: str

    @property
    def joined(self) -> str:
        """The title and the text, as BEIR's code joins them."""
        return f"{self.title} {self.text}".strip()


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
        split: Which judgements: ``test``, ``dev`` or ``train``.
        bounds: How large what is in a file may be.

    Returns:
        The documents in the order of their ids, and the queries with a relevant document; those without one are
        counted in ``understood``, for ``queries.jsonl`` mostly has those of all splits.

    Raises:
        FileNotFoundError: A file that isn't there; the message says which splits are.
        ValueError: An id twice, an empty corpus, a blank query, judgements without a header, of an unknown query
            or document, with other grades than numbers or two of one document, or no query with a relevant one;
            the message names the line.

    Example:
        >>> data = read_beir("nfcorpus", "test")  # doctest: +SKIP
        >>> data.understood  # doctest: +SKIP
        'nfcorpus, test: 323 queries, 3,633 documents, 12,334 relevant; 2,914 queries without ... left out'
    """
    root = Path(folder)
    paths = {part: _file(root, part) for part in (_CORPUS, _QUERIES, f"{_QRELS}/{split}")}
    parts = {part: _Source(str(path), parse(path, bounds)) for part, path in paths.items()}
    return _read(f"{root}, {split}", parts[_CORPUS], parts[_QUERIES], parts[f"{_QRELS}/{split}"])


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
    return _read(name, *(_Source(path, hub_content(path)) for path in paths))


def _file(root: Path, part: str) -> Path:
    suffix = ".tsv" if part.startswith(_QRELS) else ".jsonl"
    for packed in ("", ".gz"):
        if (path := root / f"{part}{suffix}{packed}").is_file():
            return path
    there = splits(root)
    got = f"judgements of {listed(there)} alone" if part.startswith(_QRELS) and there else "none"
    raise MissingFileError(
        f"{root}: expected {part}{suffix}, as BEIR's layout has it, got {got}; give a folder with corpus.jsonl, "
        "queries.jsonl and qrels/SPLIT.tsv"
    )


def splits(root: Path) -> Sequence[str]:
    """Returns the splits that have judgements, by name."""
    return sorted({path.name.split(".tsv")[0] for path in (root / _QRELS).glob("*.tsv*")})


def chosen_split(root: Path, usual: str) -> str:
    """Returns the only split that has judgements, or the usual one where there are several or none."""
    there = splits(root)
    return there[0] if len(there) == 1 else usual


def _read(source: str, corpus: _Source, queries: _Source, qrels: _Source) -> RetrievalSet:
    documents, asked = _texts(corpus), _texts(queries)
    for where, found in ((corpus.where, documents), (queries.where, asked)):
        if not found:
            raise reading_error(where, "a text with its id a line", "an empty file", "fetch it again")
    for name, each in asked.items():
        if is_blank(each.text):
            raise reading_error(
                queries.where, "a text for every query", f"a blank one for {short(name)}", "drop it"
            )
    grades = _grades(qrels, asked, documents)
    return judged(
        source,
        queries={name: each.text for name, each in asked.items()},
        documents={name: documents[name].joined for name in sorted(documents)},
        grades=grades,
        own={name: name for name in asked.keys() & documents.keys() if asked[name].text == documents[name].text},
    )


def _texts(source: _Source) -> dict[str, _Text]:
    found: dict[str, _Text] = {}
    for where, cells in _rows(source, _IDS, ("title",)):
        name, text, title = _id(where, "_id", cells[0]), *(_string(where, cell) for cell in cells[1:])
        if name in found:
            raise reading_error(where, "every id once", f"{short(name)} twice", "drop one, or rename it")
        found[name] = _Text(text, title)
    return found


def _grades(
    source: _Source, queries: Mapping[str, object], documents: Mapping[str, object]
) -> dict[str, dict[str, float]]:
    grades: dict[str, dict[str, float]] = {}
    for where, (asked, answer, score) in _rows(source, _JUDGED, ("score",)):
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
    header = source.content.header
    if header and (lacking := [name for name in needed if name not in header]):
        got = f"{listed(map(short, header[:6]))}, without {lacking[0]}"
        raise reading_error(source.where, f"the columns {listed(needed)} in its header", got, "write the header")
    places = [header.index(name) if name in header else None for name in (*needed, *optional)]
    for record in source.content.records():
        if record is not None:
            line, cells = record
            yield f"{source.where}:{line}", [_cell(cells, place) for place in places]


def _cell(cells: Cells, place: int | None) -> object:
    return None if place is None else cells[place]


def _id(where: str, column: str, cell: object) -> str:
    if not isinstance(cell, str | int) or isinstance(cell, bool) or cell == "":
        raise reading_error(where, f"an id in {column}", repr(cell), "give every line one")
    return str(cell)


def _string(where: str, cell: object) -> str:
    if cell is not None and not isinstance(cell, str):
        raise reading_error(where, "a text", short(repr(cell)), "write it as one string")
    return cell or ""


def _grade(where: str, cell: object) -> float:
    if cell is None:
        return 1.0  # NanoBEIR's judgements are those of relevant documents alone
    try:
        grade = float(str(cell))
    except ValueError:
        grade = math.nan
    if not math.isfinite(grade):
        raise reading_error(where, "a number as score", short(repr(cell)), "0 is for an irrelevant document")
    return grade
