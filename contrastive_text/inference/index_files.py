"""Files of an index: immutable segments of vectors, and a database whose transactions commit every change.

Readers see the state before or after a transaction. A killed writer loses nothing that was committed.
"""

from __future__ import annotations

import errno
import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from contrastive_text.core.errors import DiskError, InvalidValueError, MissingFileError, one_of
from contrastive_text.core.storage.manifests import READ_WHOLE, FileDigest
from contrastive_text.core.storage.records import Record
from contrastive_text.inference.approximate import Graph, GraphKind
from contrastive_text.inference.index_documents import Document
from contrastive_text.inference.search import SimilarityName
from contrastive_text.inference.vector_files import Array, map_vectors

Rows: TypeAlias = npt.NDArray[np.int64]
"""Number of the document of each vector, first character and end of its passage, (N, 3)."""
DATABASE = "index.sqlite"
"""File by which the folder of an index is recognized."""
FORMAT = 1
"""Version of the tables and files of an index."""
SCHEMA = (
    "CREATE TABLE facts (content TEXT NOT NULL)",
    "CREATE TABLE counters (version INTEGER, document INTEGER, segment INTEGER)",
    "CREATE TABLE documents (number INTEGER PRIMARY KEY, id TEXT UNIQUE, text TEXT, metadata TEXT)",
    "CREATE TABLE segments (number INTEGER PRIMARY KEY, record TEXT, rows BLOB)",
    "CREATE TABLE removed (document INTEGER PRIMARY KEY)",
)
"""Tables of the database. ``rows`` has document, first character and end of each vector; -1 for whole texts."""
_REBUILD = "restore it from a copy, or build the index again"
_WAIT = 60.0
"""Seconds that a process waits for another process's transaction, which takes milliseconds."""
_DISK = ("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_BUSY")
"""Names of database errors whose cause is the disk, not the content of the database."""


@dataclass(frozen=True, slots=True)
class IndexFacts:
    """Facts of an index that never change.

    Args:
        identity: Fingerprint of the model, as ``SentenceEncoder.identity``.
        model: Folder or hub name of the model; None if it is unknown.
        features: Number of features of a vector.
        similarity: Name of the model's similarity.
        passages: Window of the passages, such as ``128/32``; None if each text has one vector.
        approximate: Kind of the approximate search; None for exact search.
        id_column: Column of the ids in the file that ``index build`` has read; None for ids that are numbers.
        metadata_columns: Columns of the metadata in that file.
    """

    identity: str
    model: str | None
    features: int
    similarity: SimilarityName
    passages: str | None = None
    approximate: GraphKind | None = None
    id_column: str | None = None
    metadata_columns: Sequence[str] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Immutable part of an index.

    Args:
        number: Number of the segment, which is part of the names of its files. Numbers are never reused.
        vectors: Vectors (N, D), float32, memory-mapped.
        rows: Number of the document of each vector, first character and end of the passage, (N, 3).
        graph: Approximate search in the vectors; None for exact search.
    """

    number: int
    vectors: Array
    rows: Rows
    graph: Graph | None = None


@dataclass(frozen=True, eq=False)
class IndexState:
    """State of an index after a transaction.

    Args:
        version: Number of transactions so far.
        segments: All segments, in the order in which they were written.
        removed: Numbers of removed documents that still have vectors, sorted.
        documents: Number of documents.
    """

    version: int
    segments: tuple[Segment, ...] = ()
    removed: Rows = field(default_factory=lambda: np.empty(0, np.int64))
    documents: int = 0

    def is_removed(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Returns a mask of the rows whose document was removed, (N, 3) -> (N,)."""
        return np.isin(rows[:, 0], self.removed)

    @cached_property
    def rows(self) -> Rows:
        """Rows of the vectors of all segments, (N, 3). The document of a removed row is -1."""
        rows = np.concatenate([np.empty((0, 3), np.int64), *(segment.rows for segment in self.segments)])
        rows[self.is_removed(rows), 0] = -1
        return rows


class IndexFolder:
    """Folder of an index, open for reading by any number of threads; see ``IndexWriter`` for writing.

    Args:
        path: The folder.

    Raises:
        FileNotFoundError: The folder has no index.
        ValueError: The database or a segment is damaged, or is from another program.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._database = connect(path)
        self._state = IndexState(version=-1)
        with self._reading() as database:
            if (path / DATABASE).stat().st_size <= READ_WHOLE:
                (result,) = database.execute("PRAGMA quick_check(1)").fetchone()
                if result != "ok":
                    raise _damaged(path, str(result))
            (content,) = _only_row(path, database, "SELECT content FROM facts")
        self.facts = _read_facts(_parse_record(path, content))
        self.state()

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """Holds a read transaction: all queries of the block see one state."""
        with self._lock, naming_database_errors(self.path):
            self._database.execute("BEGIN")
            try:
                yield self._database
            finally:
                self._database.execute("ROLLBACK")

    def state(self) -> IndexState:
        """Returns the current state. Loads only the segments that are new since the last call."""
        while True:
            with self._reading() as database:
                version, _, _ = counters(self.path, database)
                if version == self._state.version:
                    return self._state
                segments = {segment.number: segment for segment in self._state.segments}
                numbers = [row[0] for row in database.execute("SELECT number FROM segments ORDER BY number")]
                query = "SELECT record, rows FROM segments WHERE number = ?"
                new = {n: database.execute(query, (n,)).fetchone() for n in numbers if n not in segments}
                removed = database.execute("SELECT document FROM removed ORDER BY document").fetchall()
                (documents,) = database.execute("SELECT count(*) FROM documents").fetchone()
            try:
                segments |= {number: self._load(number, *row) for number, row in new.items()}
            except (InvalidValueError, OSError):
                with self._reading() as database:
                    if counters(self.path, database)[0] == version:
                        raise
                continue  # a writer has merged the segment meanwhile
            ordered = tuple(segments[number] for number in numbers)
            # Another thread may have loaded the same state, or a later one.
            with self._lock:
                if self._state.version < version:
                    self._state = IndexState(version, ordered, np.array(removed, np.int64).reshape(-1), documents)
                return self._state

    def _load(self, number: int, content: object, blob: object) -> Segment:
        record = _parse_record(self.path, content)
        for file, digest in _digests(self.path, number, record).items():
            if (damage := digest.damage(file, whole=False)) is not None:
                raise InvalidValueError(f"{file}: expected an unchanged file, got {damage}; {_REBUILD}")
        path = vectors_path(self.path, number)
        graph = Graph.read(path.with_suffix(".faiss"), record.number("recall")) if "graph" in record else None
        vectors = map_vectors(path, _REBUILD)
        rows = np.frombuffer(blob if isinstance(blob, bytes) and len(blob) % 24 == 0 else b"", "<i8")
        shape = (len(rows) // 3, self.facts.features)
        if vectors.dtype != np.float32 or vectors.shape != shape:
            got = f"{vectors.dtype} of {vectors.shape}"
            raise InvalidValueError(f"{path}: expected float32 of {shape}, got {got}; {_REBUILD}")
        return Segment(number, vectors, rows.reshape(-1, 3), graph)

    def documents(self, numbers: Iterable[int]) -> dict[int, Document]:
        """Returns the documents of some numbers. A removed document is missing."""
        query = "SELECT id, text, metadata FROM documents WHERE number = ?"
        with self._reading() as database:
            rows = {number: database.execute(query, (number,)).fetchone() for number in set(numbers)}
        found = {number: Document(*row) for number, row in rows.items() if row is not None}
        for number, (name, text, metadata, _) in found.items():
            if not (isinstance(name, str) and isinstance(text, str) and isinstance(metadata, str | None)):
                raise _damaged(self.path, f"the document {number} of another form")
        return found

    def ids(self) -> list[str]:
        """Returns the ids of all documents, in the order in which they were added."""
        with self._reading() as database:
            return [row[0] for row in database.execute("SELECT id FROM documents ORDER BY number")]

    def known(self, ids: Iterable[str]) -> dict[str, int]:
        """Returns each of some ids that the index has -> number of its document."""
        query = "SELECT number FROM documents WHERE id = ?"
        with self._reading() as database:
            rows = {name: database.execute(query, (name,)).fetchone() for name in ids}
        return {name: row[0] for name, row in rows.items() if row is not None}

    def info(self) -> dict[str, object]:
        """Returns facts of the index; see ``Index.info``."""
        state, facts = self.state(), self.facts
        graphs = [(len(part.vectors), part.graph.recall) for part in state.segments if part.graph is not None]
        approximate = sum(count for count, _ in graphs)
        return {
            "documents": state.documents,
            "vectors": len(state.rows),
            "removed": int((state.rows[:, 0] < 0).sum()),
            "segments": len(state.segments),
            "features": facts.features,
            "similarity": facts.similarity,
            "model": facts.model,
            "identity": facts.identity,
            "passages": facts.passages,
            "approximate": facts.approximate,
            "id_column": facts.id_column,
            "metadata_columns": ", ".join(facts.metadata_columns) or None,
            "approximate_vectors": approximate,
            "recall": sum(count * recall for count, recall in graphs) / approximate if approximate else None,
            "bytes": sum(file.stat().st_size for file in self.path.iterdir() if file.is_file()),
        }

    def close(self) -> None:
        """Closes the database."""
        with self._lock:
            self._database.close()


def vectors_path(folder: Path, number: int) -> Path:
    """Returns the path of the vectors of a segment."""
    return folder / f"vectors-{number}.npy"


def is_index(path: Path) -> bool:
    """Returns whether a path is the folder of an index."""
    try:
        return (path / DATABASE).exists()
    except OSError:  # such as a name that is too long
        return False


def recorded_digests(path: Path) -> dict[Path, FileDigest]:
    """Returns the recorded digest of each file of vectors, and of each approximate index, of a folder.

    Raises:
        FileNotFoundError: The folder has no index.
        ValueError: The database is damaged, or is from another program.
    """
    digests: dict[Path, FileDigest] = {}
    with closing(connect(path)) as database, naming_database_errors(path):
        for number, content in database.execute("SELECT number, record FROM segments ORDER BY number"):
            digests |= _digests(path, number, _parse_record(path, content))
    return digests


def _digests(path: Path, number: int, record: Record) -> dict[Path, FileDigest]:
    """Returns the recorded digest of each file of a segment."""
    vectors = vectors_path(path, number)
    files = {"vectors": vectors, "graph": vectors.with_suffix(".faiss")}
    return {
        file: FileDigest.of_record(record.record(name))
        for name, file in files.items()
        if name == "vectors" or name in record
    }


def connect(path: Path) -> sqlite3.Connection:
    """Opens the database of an index. Tables of another form are refused, so a foreign file executes nothing."""
    file = path / DATABASE
    if not file.is_file():
        raise MissingFileError(
            f"{path}: expected the folder of an index, got a folder without {DATABASE}; build it with "
            "contrastive-text index build"
        )
    with naming_database_errors(path):
        uri = f"{file.resolve().as_uri()}?mode=rw"  # never creates a database; a read-only one is only read
        database = sqlite3.connect(uri, _WAIT, isolation_level=None, check_same_thread=False, uri=True)
        try:
            for pragma in ("trusted_schema = OFF", "cell_size_check = ON"):
                database.execute(f"PRAGMA {pragma}")
            tables = database.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid")
            if [row[0] for row in tables] != list(SCHEMA):
                raise _damaged(path, "other tables than this version of the library writes")
        except BaseException:
            database.close()
            raise
    return database


@contextmanager
def naming_database_errors(path: Path) -> Iterator[None]:
    """Converts errors of the database to errors that name it."""
    try:
        yield
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "")
        if not name.startswith(_DISK):
            raise _damaged(path, str(error)) from error
        code, expected, todo = errno.ENOSPC, "room for it", "make room"
        if name != "SQLITE_FULL":
            code, expected = errno.EIO, "a disk and a folder that can be read and written"
            todo = "check its permissions, or wait for other processes"
        raise DiskError(
            code, f"{path}: expected {expected}, got {error}; {todo}. The index is unchanged"
        ) from error


def _damaged(path: Path, got: str) -> InvalidValueError:
    return InvalidValueError(f"{path / DATABASE}: expected the database of an index, got {got}; {_REBUILD}")


def _only_row(path: Path, database: sqlite3.Connection, query: str) -> tuple[Any, ...]:  # Any: of any type
    rows: list[tuple[Any, ...]] = database.execute(query).fetchmany(2)
    if len(rows) != 1:
        raise _damaged(path, f"{len(rows)} rows of its facts")
    return rows[0]


def counters(path: Path, database: sqlite3.Connection) -> tuple[int, int, int]:
    """Returns the number of transactions, and the numbers of the next document and the next segment."""
    row = _only_row(path, database, "SELECT version, document, segment FROM counters")
    if not all(isinstance(number, int) and number >= 0 for number in row):
        raise _damaged(path, "counters that are no numbers")
    return row


def _parse_record(path: Path, content: object) -> Record:
    """Returns a JSON text of the database as a record."""
    try:
        values: object = json.loads(content) if isinstance(content, str) else None
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"no JSON: {error}") from error
    return Record(values, where=str(path / DATABASE), todo=_REBUILD)


def _read_facts(record: Record) -> IndexFacts:
    record.integer("format", least=FORMAT, most=FORMAT)
    similarity = cast("SimilarityName", record.text("similarity"))
    approximate = cast("GraphKind | None", record.text("approximate", None))
    return IndexFacts(
        identity=record.text("identity"),
        model=record.text("model", None),
        features=record.integer("features", least=1),
        similarity=one_of(f"{record.where}: similarity", similarity, SimilarityName, _REBUILD),
        passages=record.text("passages", None),
        approximate=one_of(f"{record.where}: approximate", approximate, GraphKind, _REBUILD),
        id_column=record.text("id_column", None),
        metadata_columns=record.texts("metadata_columns"),
    )
