"""Writing of an index: a new folder, new segments, removed documents, and the merge of segments."""

from __future__ import annotations

import json
import os
import re
import sqlite3
from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

import numpy as np
import numpy.typing as npt

from contrastive_text.core.errors import ExistingFileError, InvalidValueError
from contrastive_text.core.storage.disk import (
    TEMPORARIES,
    atomic_file,
    flush_folder,
    lock_output,
    remove_abandoned,
    temporary_in,
)
from contrastive_text.core.storage.manifests import FileDigest
from contrastive_text.inference.approximate import Graph
from contrastive_text.inference.index_documents import Document, parse_ids
from contrastive_text.inference.index_files import (
    DATABASE,
    FORMAT,
    SCHEMA,
    IndexFacts,
    IndexFolder,
    IndexState,
    Rows,
    connect,
    counters,
    is_index,
    naming_database_errors,
    vectors_path,
)
from contrastive_text.inference.vector_files import Array

WORKING = "build.npy"
"""File of vectors of an index that is being built."""
_OWN_FILES = re.compile(rf"vectors-(\d+)\.(npy|faiss)|{re.escape(WORKING)}.*")
_BLOCK = 16_384
"""Number of vectors that are copied together."""
_LARGEST_NUMBERS = (
    "SELECT max(CAST(id AS INTEGER)) FROM documents WHERE number >= ? AND length(id) < 16 "
    "AND id = CAST(CAST(id AS INTEGER) AS TEXT)"
)
"""Query for the largest id that is a number, among the documents from a number on."""


@contextmanager
def writing(files: IndexFolder) -> Iterator[IndexWriter]:
    """Locks the index against other writers, and yields the writer of this process.

    Raises:
        OSError: The folder can't be written to.
        ValueError: Another process or thread is writing the index.
    """
    with lock_output(files.path):
        remove_abandoned(files.path)
        with closing(connect(files.path)) as database:
            writer = IndexWriter(files.path, files.facts, database)
            writer.remove_orphans()
            try:
                yield writer
            finally:
                with suppress(sqlite3.Error, OSError):  # the next writer removes them
                    writer.remove_orphans()


def remove_documents(files: IndexFolder, ids: Iterable[str | int]) -> int:
    """Removes documents from an index; see ``Index.remove``. Returns their number."""
    names = parse_ids(ids)
    with writing(files) as writer:
        numbers = files.known(names)
        if missing := [name for name in names if name not in numbers]:
            more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
            raise InvalidValueError(
                f"ids: expected ids of the index, got {missing[0]!r}{more}, which it does not have; give ids "
                "that a search returns. No document was removed"
            )
        writer.remove(numbers.values())
        writer.merge(files.state())
    return len(names)


class IndexWriter:
    """Writer of the folder of an index, while its lock is held.

    Args:
        path: The folder.
        facts: Facts of the index.
        database: Connection to the database.
    """

    def __init__(self, path: Path, facts: IndexFacts, database: sqlite3.Connection) -> None:
        self.path = path
        self.facts = facts
        self._database = database
        # EXTRA: a commit must be on the disk before the files of merged segments are deleted. Without spilling,
        # readers wait only for the commit.
        for pragma in ("synchronous = EXTRA", "cache_spill = OFF"):
            database.execute(f"PRAGMA {pragma}")

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Commits the changes of the block together; on an error it discards them."""
        with naming_database_errors(self.path):
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database
                self._database.execute("UPDATE counters SET version = version + 1")
                self._database.execute("COMMIT")
            finally:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")

    def free_ids(self, count: int) -> list[str]:
        """Returns ids for new documents: numbers that were never ids of this kind before."""
        number, ids = counters(self.path, self._database)[1], list[str]()
        while len(ids) < count:
            if self._database.execute("SELECT 1 FROM documents WHERE id = ?", (str(number),)).fetchone() is None:
                ids.append(str(number))
            number += 1
        return ids

    def add(self, documents: Iterable[Document], parts: Sequence[Array]) -> int:
        """Adds documents and their vectors as a new segment.

        Args:
            documents: The documents, with the spans of their passages.
            parts: Vectors of the passages in order, (n, D) each.

        Returns:
            Number of documents.

        Raises:
            ValueError: A vector is not finite, or an id is not new.
        """
        _, first, segment = counters(self.path, self._database)
        record = self._write_segment(segment, parts, [np.ones(len(part), bool) for part in parts])
        rows = array("q")
        number = first
        with self._transaction() as database:
            for document in documents:
                try:
                    database.execute("INSERT INTO documents VALUES (?, ?, ?, ?)", (number, *document[:3]))
                except sqlite3.IntegrityError as error:
                    raise InvalidValueError(
                        f"ids: expected each id once, got {document.id!r} twice; give another id, or remove the "
                        "older document first"
                    ) from error
                for span in document.spans:
                    rows.extend((number, *span))
                number += 1
            assert len(rows) == 3 * sum(map(len, parts))
            self._insert_segment(segment, record, np.array(rows))
            # Ids that are numbers are never used again.
            own = [int(row[0]) + 1 for row in database.execute(_LARGEST_NUMBERS, (first,)) if row[0] is not None]
            database.execute("UPDATE counters SET document = ?", (max([number, *own]),))
        return number - first

    def remove(self, numbers: Iterable[int]) -> None:
        """Removes documents by their numbers."""
        with self._transaction() as database:
            for number in numbers:
                database.execute("DELETE FROM documents WHERE number = ?", (number,))
                database.execute("INSERT INTO removed VALUES (?)", (number,))

    def merge(self, state: IndexState) -> None:
        """Merges the last segments without the vectors of removed documents, as ``first_to_merge`` says."""
        stays = [~state.is_removed(segment.rows) for segment in state.segments]
        start = first_to_merge([len(mask) for mask in stays], [int((~mask).sum()) for mask in stays])
        if start is None:
            return
        merged, masks = state.segments[start:], stays[start:]
        rows = np.concatenate([segment.rows[mask] for segment, mask in zip(merged, masks, strict=True)])
        number = counters(self.path, self._database)[2]
        record = (
            self._write_segment(number, [segment.vectors for segment in merged], masks) if len(rows) else None
        )
        with self._transaction() as database:
            for segment in merged:
                database.execute("DELETE FROM segments WHERE number = ?", (segment.number,))
            if record is not None:
                self._insert_segment(number, record, rows)
            earlier = [segment.rows[:, 0] for segment in state.segments[:start]]
            has_vectors = np.isin(state.removed, np.concatenate([np.empty(0, np.int64), *earlier]))
            for document in state.removed[~has_vectors].tolist():
                database.execute("DELETE FROM removed WHERE document = ?", (document,))

    def _insert_segment(self, number: int, record: str, rows: Rows) -> None:
        values = (number, record, rows.astype("<i8").tobytes())
        self._database.execute("INSERT INTO segments VALUES (?, ?, ?)", values)
        self._database.execute("UPDATE counters SET segment = ?", (number + 1,))

    def _write_segment(self, number: int, parts: Sequence[Array], masks: Sequence[npt.NDArray[np.bool_]]) -> str:
        """Writes the files of a segment: the vectors in ``masks``. Returns their record, as JSON."""
        path, features = vectors_path(self.path, number), self.facts.features
        shape = (sum(int(mask.sum()) for mask in masks), features)
        with atomic_file(path) as file:
            header = {"descr": "<f4", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            for part, mask in zip(parts, masks, strict=True):
                for start in range(0, len(part), _BLOCK):
                    block = part[start : start + _BLOCK][mask[start : start + _BLOCK]]
                    if block.shape[1] != features or not np.isfinite(block).all():
                        got = f"{block.shape[1]}" if block.shape[1] != features else "NaN or infinity"
                        raise InvalidValueError(
                            f"{self.path}: expected finite vectors of {features} features, got {got}; encode the "
                            "texts again"
                        )
                    file.write(np.ascontiguousarray(block, "<f4").data)
        record: dict[str, object] = {"vectors": asdict(FileDigest.of(path))}
        if self.facts.approximate is not None:
            vectors = np.load(path, mmap_mode="r")
            graph = Graph.build(self.facts.approximate, self.facts.similarity, vectors)
            if graph is not None:
                with atomic_file(path.with_suffix(".faiss")) as file:
                    file.write(graph.content())
                record |= {"graph": asdict(FileDigest.of(path.with_suffix(".faiss"))), "recall": graph.recall}
        return json.dumps(record)

    def remove_orphans(self) -> None:
        """Deletes files of segments that the database doesn't name, such as those of a killed writer."""
        _remove_orphans(self.path, {row[0] for row in self._database.execute("SELECT number FROM segments")})


def _remove_orphans(path: Path, segments: Collection[int]) -> None:
    for file in path.iterdir():
        match = _OWN_FILES.fullmatch(file.name)
        if match is not None and (match[1] is None or int(match[1]) not in segments):
            with suppress(PermissionError):  # Windows: a reader has mapped it
                file.unlink(missing_ok=True)


def first_to_merge(sizes: Sequence[int], removed: Sequence[int]) -> int | None:
    """Returns the first of the segments to merge with all later ones; None to merge nothing.

    A segment is merged if more than a third of its vectors are removed, or if the later segments together have
    as many vectors. There are then at most log2(N) segments, and a vector is copied log2(N) times.

    Args:
        sizes: Number of vectors of each segment.
        removed: Number of vectors of removed documents of each segment.

    Example:
        >>> first_to_merge([1000, 10, 4], [0, 0, 0]), first_to_merge([1000, 10, 10], [0, 0, 0])
        (None, 1)
        >>> first_to_merge([1000, 10], [400, 0])
        0
    """
    for place, size in enumerate(sizes):
        later = sum(sizes[place + 1 :])
        if 3 * removed[place] > size or later >= size:
            return place
    return None


def create_folder(
    path: Path, facts: IndexFacts, documents: Iterable[Document] = (), parts: Sequence[Array] = ()
) -> int:
    """Writes a new index. The database appears last, with all documents; see ``IndexWriter.add``.

    Args:
        path: New folder, apart from the files of an unfinished build, which are deleted.
        facts: Facts of the index.
        documents: The documents, with the spans of their passages.
        parts: Vectors of the passages in order, (n, D) each.

    Returns:
        Number of documents.

    Raises:
        FileExistsError: The folder has an index or other files.
        OSError: The folder can't be written to, or the disk is full.
        ValueError: A vector is not finite, or an id occurs twice.
    """
    check_new_folder(path)
    with lock_output(path):
        path.mkdir(parents=True, exist_ok=True)
        check_new_folder(path)
        remove_abandoned(path)
        with temporary_in(path) as temporary, naming_database_errors(path):
            with closing(sqlite3.connect(temporary, isolation_level=None)) as database:
                database.execute("PRAGMA journal_mode = OFF")  # an unfinished file is deleted
                for table in SCHEMA:
                    database.execute(table)
                content = json.dumps({"format": FORMAT, **asdict(facts)})
                database.execute("INSERT INTO facts VALUES (?)", (content,))
                database.execute("INSERT INTO counters VALUES (0, 0, 0)")
                count = IndexWriter(path, facts, database).add(documents, parts) if parts else 0
            with open(temporary, "rb+") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path / DATABASE)
            flush_folder(path)
        _remove_orphans(path, [0] if parts else [])
    return count


def check_new_folder(path: Path) -> None:
    """Checks that a folder is missing or empty, apart from files of an unfinished build.

    Raises:
        FileExistsError: The folder has an index or other files.
    """
    if is_index(path):
        raise ExistingFileError(f"{path}: expected a new folder, got an index; add to it, or name another folder")
    if path.exists() and not path.is_dir():
        raise ExistingFileError(f"{path}: expected a new folder, got a file; name another folder")
    others = [
        file.name
        for file in (path.iterdir() if path.is_dir() else ())
        if _OWN_FILES.fullmatch(file.name) is None
        and not file.match(TEMPORARIES)
        and not file.name.endswith(".lock")
    ]
    if others:
        raise ExistingFileError(f"{path}: expected a new folder, got one with {others[0]}; name another folder")
