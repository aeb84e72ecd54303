"""Readers of data files: rows of one table, scored pairs, and a stream of texts.

Texts are never altered. ``Table.description`` describes everything that is ignored or skipped.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from contrastive_text.core.config.specs import part_spec
from contrastive_text.core.storage.text_files import USUAL, SizeLimits
from contrastive_text.core.targets import Target
from contrastive_text.core.types import Row
from contrastive_text.data.files import mapped
from contrastive_text.data.files.formats import ALIASES, PAIR, FileForm, join_names, negative_names, reading_error
from contrastive_text.data.files.in_memory import InMemoryRows, wrap_rows
from contrastive_text.data.files.labels import Labels
from contrastive_text.data.files.mapped import (
    ArrowRows,
    ReadFile,
    cache_folder,
    get_cache_entry,
    hash_files,
    records_of,
    write_rows,
)
from contrastive_text.data.files.parsing import ColumnTable
from contrastive_text.data.files.rows import FileRows
from contrastive_text.pairings.base import Documents

_ROWS, _SIZES, _METADATA = "rows.arrow", "sizes", "table.json"
"""File names of the mapped rows in a cache entry."""


@dataclass(frozen=True)
class Table:
    """Rows of one or several files, and a description of how the files were read.

    Args:
        rows: Rows in the order of the files, all with the same columns: a tuple, or mapped rows.
        source: Paths of the files, as passed by the caller.
        description: A line for each file: use of its columns, ignored and skipped parts, number of rows.
        sizes: Number of rows of each document: a file, a file of a folder, or lines up to a blank line.
        files: Number of rows of each file; empty if rows are joined.
        digest: Digest of all rows if they are mapped; empty if they are in memory.
    """

    rows: Sequence[Row]
    source: tuple[str, ...]
    description: str
    sizes: Sequence[int]
    files: tuple[int, ...] = ()
    digest: str = ""

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Row:
        return self.rows[index]

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    @cached_property
    def content(self) -> str:
        """Digest of the rows, which doesn't depend on the path of their files."""
        digest = blake2b(digest_size=16)
        for row in () if self.digest else self.rows:  # row by row: one text of a million rows would be large
            digest.update(repr(row).encode(errors="surrogatepass"))
        return self.digest or digest.hexdigest()

    @property
    def documents(self) -> Documents:
        """Training rows, and the number of tokens of each row's document, as ``Pairing.arrange`` takes them."""
        return Documents(self.rows, self.sizes)


def read_rows(
    paths: str | Path | Sequence[Any] | ColumnTable,
    reads: Sequence[str],
    columns: Mapping[str, str | Sequence[str]] | None = None,
    target: Target | None = None,
    labels: Mapping[str, str] | None = None,
    split: str | None = None,
    every_label: bool = True,
    bounds: SizeLimits = USUAL,
    cache_dir: Path | None = None,
    form: FileForm | None = None,
) -> Table:
    r"""Reads data files, and folders of documents, into rows of one table.

    Files are ``.txt`` (a text on each line), ``.tsv``, ``.csv``, ``.jsonl`` and ``.json``, each also as ``.gz``,
    ``.parquet`` and ``.arrow``, and data sets of the hub, as ``hub:NAME:SPLIT`` or ``hub:NAME:CONFIG:SPLIT``,
    where NAME may be a folder. Rows from Python are interpreted like rows of a file. In a folder, for ``text``
    alone, each ``.txt`` file in it or below it is one text with its newlines. BERT's tokenizers treat newlines as
    blanks; byte-level tokenizers such as RoBERTa's have tokens for them. Hidden files are skipped.

    Several columns or a JSON list for ``text`` or ``positive`` give a row for each text; for ``negative`` they
    give ``negative``, ``negative_2``, ... A file of pairs that is read for ``text`` gives all its texts.

    Rows may have different numbers of hard negatives. A row with fewer has empty texts in their place, which
    training masks. Other separators, quotes and tables without a header are recognized if they are unambiguous.

    Pairs with a label that isn't read are refused if, by the label, some of them don't belong together.
    ``form.pair_labels`` determines the use of such pairs.

    With a target, labels are parsed by it, and rows without a gold label are skipped. Any other cell that isn't a
    label of the target is refused with its line.

    More than 1,000,000 records (``MAPPED_ROWS``) are written to a cache once, in Arrow's format, by the first of
    several processes, and mapped from there. They don't take memory. This requires ``pyarrow``.

    Args:
        paths: One or several files or folders, which are joined in order; files of a folder are sorted by name.
            Or
            rows: a list of texts, dicts or tuples, a DataFrame, a ``datasets.Dataset``.
        reads: Library columns to read: ``text``, or ``anchor`` and ``positive``; ``target`` with either. Pairs
            also read ``negative`` and ``subset`` if a file has them.
        columns: Library column -> column or columns of the file; overrides ``ALIASES``.
        target: Target that parses the labels; None for any numbers.
        labels: Label in the files -> label of the target, or ``-`` to skip its rows; 1.0 is 1.
        split: Rows to read of a file that has several splits in a column ``split``: ``train``, ``dev``,
            ``test``, or ``all``.
        every_label: Whether each of ``labels`` must have a row. False if the mapping was written for other files
            of the data set, too.
        bounds: Size limits of the files.
        cache_dir: Folder of mapped rows; None for ``contrastive_text/rows`` in the user's cache folder.
        form: Separator, header and use of pair labels, if the files leave them open; None for defaults.

    Raises:
        FileNotFoundError: A file doesn't exist.
        ImportError: A data set of the hub without the library ``datasets``, or an Arrow file without ``pyarrow``.
        ValueError: A file that doesn't match its suffix, lacks a column, has no rows, a label that the target
            doesn't have, pair labels that nothing reads, or several splits without a choice; a folder without a
            ``.txt`` file; a label in ``labels`` that no file has.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "pairs.tsv")
        ...     _ = path.write_text("query\tanswer\na cat?\ta pet\n")
        ...     read_rows(path, reads=("anchor", "positive")).rows
        ({'anchor': 'a cat?', 'positive': 'a pet'},)
    """
    read_labels = Labels(target if "target" in reads else None, labels)
    form = form or FileForm()
    if labels and read_labels.target is None and form.pair_labels not in ("positives", "hard"):
        todo = "leave labels out, add one, or say what to do with pairs that do not belong together"
        raise reading_error("labels", "an objective that learns a target", str(dict(labels)), todo)
    files = _files(paths, reads, columns, read_labels, split, bounds, form)
    total = sum(map(records_of, files))
    if total <= mapped.MAPPED_ROWS:
        return _in_memory(files, every_label)
    if find_spec("pyarrow") is None:
        table = _in_memory(files, every_label)
        note = "rows are in memory; to map that many, pip install 'contrastive-text[parquet]'"
        return replace(table, description=f"{table.description}\n{note}")
    label_settings = (
        read_labels.target and part_spec(read_labels.target, "labels"),
        sorted(read_labels.names.items()),
    )
    settings = (form.names, form.character, form.pair_labels)
    key = hash_files(files, (reads, files[0].columns, split, every_label, label_settings, settings))
    return _mapped(files, every_label, cache_folder(cache_dir, "rows"), key, total)


def _files(
    paths: str | Path | Sequence[Any] | ColumnTable,
    reads: Sequence[str],
    columns: Mapping[str, str | Sequence[str]] | None,
    labels: Labels,
    split: str | None,
    bounds: SizeLimits,
    form: FileForm,
) -> list[FileRows]:
    column_lists = {
        name: [value] if isinstance(value, str) else list(value) for name, value in (columns or {}).items()
    }
    for where, names in (("reads", reads), ("columns", column_lists)):
        if unknown := [name for name in names if name not in ALIASES]:
            todo = "use one of these; several negatives are a list under negative"
            raise reading_error(where, join_names(ALIASES), repr(unknown[0]), todo)
    if ("text" in reads) == any(name in reads for name in PAIR) or len({*reads} & {"anchor", "positive"}) == 1:
        raise reading_error("reads", "text, or anchor and positive", join_names(reads), "ask for one of the two")
    for name, column_names in column_lists.items():
        if not column_names or (len(column_names) > 1 and name in ("anchor", "target", "subset")):
            raise reading_error(f"columns.{name}", "one column", str(len(column_names)), "name one")
    if not isinstance(paths, Path) and not (
        isinstance(paths, list | tuple) and any(isinstance(path, Path) for path in paths)
    ):
        paths = wrap_rows("rows", paths)
    sources: list[Any] = [paths] if isinstance(paths, str | Path) else list(cast("Sequence[Any]", paths))
    if not sources:
        raise reading_error("paths", "at least one file", "no file", "name one")
    files = [path if isinstance(path, InMemoryRows) else Path(path) for path in sources]
    return [FileRows(path, reads, column_lists, labels, split, bounds, form) for path in files]


def _in_memory(files: Sequence[FileRows], every_label: bool) -> Table:
    """Reads the rows of files into memory, all with the same columns."""
    tables: list[list[Row]] = []
    summaries: list[ReadFile] = []
    for rows in files:
        file_rows, documents = list[Row](), Counter[int]()
        for _, row in rows:
            file_rows.append(row)
            documents[rows.document] += 1
        scored_rows = rows.labels.drop_unscored(file_rows) if rows.labels.gold else file_rows
        description = rows.describe(len(scored_rows), unscored=len(file_rows) - len(scored_rows))
        # If some pairs have no score, the rows of a file are one document.
        sizes = list(documents.values()) if len(scored_rows) == len(file_rows) else [len(scored_rows)]
        tables.append(scored_rows)
        summaries.append(ReadFile(list(scored_rows[0]), description, sizes))
    names, notes = _merge_columns(files, summaries, every_label)
    filled_rows = (
        row if list(row) == names else {name: row.get(name, "") for name in names}
        for table in tables
        for row in table
    )
    return Table(
        rows=tuple(filled_rows),
        source=tuple(str(rows.path) for rows in files),
        description="\n".join(notes),
        sizes=tuple(size for summary in summaries for size in summary.sizes),
        files=tuple(sum(summary.sizes) for summary in summaries),
    )


def _merge_columns(
    files: Sequence[FileRows], summaries: Sequence[ReadFile], every_label: bool
) -> tuple[list[str], list[str]]:
    """Returns the columns of the rows of all files, and a description of each file.

    A subset column that only some files have is dropped: MultiNLI has a genre, SNLI has none.
    """
    has_subset = ["subset" in summary.names for summary in summaries]
    drops_subset = any(has_subset) and not all(has_subset) and "subset" not in files[0].reads
    names = dict.fromkeys(
        name for summary in summaries for name in summary.names if not name.startswith("negative")
    )
    text_names = [name for name in names if name in ("anchor", "positive")]
    other_names = [name for name in names if name not in text_names and not (drops_subset and name == "subset")]
    negatives = negative_names(max(max(rows.negatives, default=0) for rows in files))
    notes = ["subset left out: not every file has one"] if drops_subset else []
    descriptions = [*(summary.description for summary in summaries), *notes, *files[0].labels.check(every_label)]
    return [*text_names, *negatives, *other_names], descriptions


def _mapped(files: Sequence[FileRows], every_label: bool, folder: Path, key: str, total: int) -> Table:
    """Returns the mapped rows of files from the cache, after writing them if they aren't there."""

    def make(entry: Path) -> None:
        summaries, digest = write_rows(entry / _ROWS, files, total)
        names, descriptions = _merge_columns(files, summaries, every_label)
        sizes = [size for summary in summaries for size in summary.sizes]
        counts = [sum(summary.sizes) for summary in summaries]
        metadata = {"names": names, "understood": descriptions, "files": counts, "digest": digest}
        np.array(sizes, np.int64).tofile(entry / _SIZES)
        (entry / _METADATA).write_text(json.dumps(metadata), encoding="utf-8")

    entry, _ = get_cache_entry(folder, key, "rows", (_ROWS, _SIZES, _METADATA), make)
    metadata = json.loads((entry / _METADATA).read_text(encoding="utf-8"))
    note = f"more than {mapped.MAPPED_ROWS:,} rows: mapped from {entry}; a vocabulary is learned from a sample"
    return Table(
        rows=ArrowRows(entry / _ROWS, metadata["names"]),
        source=tuple(str(rows.path) for rows in files),
        description="\n".join([*metadata["understood"], note]),
        sizes=np.fromfile(entry / _SIZES, np.int64).tolist(),
        files=tuple(metadata["files"]),
        digest=metadata["digest"],
    )


def read_pairs(
    paths: str | Path | Sequence[Any] | ColumnTable,
    columns: Mapping[str, str | Sequence[str]] | None = None,
    split: str | None = None,
    bounds: SizeLimits = USUAL,
    form: FileForm | None = None,
) -> Table:
    """Reads files of two texts and a gold score, for evaluation; see ``read_rows``.

    Rows without a score are skipped and counted. Their cell is empty or a dash or, in a file without another
    negative score, -1 (GLUE's mark for no score).

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "pairs.tsv")
        ...     _ = path.write_text("sentence1\\tsentence2\\tscore\\na cat\\ta pet\\t4.5\\na cat\\ta car\\t-\\n")
        ...     len(read_pairs(path))
        1
    """
    reads, labels = ("anchor", "positive", "target"), Labels(None, gold=True)
    files = _files(paths, reads, columns, labels, split, bounds, form or FileForm())
    return _in_memory(files, every_label=True)


class Repeat(NamedTuple):
    """Duplicate in a stream of texts: a text that equals an earlier text.

    Args:
        place: Index of the earlier text, among the distinct texts.
        line: Line of the repeated text.
    """

    place: int
    line: int


class Summary(NamedTuple):
    """Summary of one loop over all texts of a stream.

    Args:
        texts: Number of texts.
        digest: 32 hex digits that are equal for equal texts in equal order, in any file.
        description: Description of how the file was read, as in ``Table``.
        repeats: Texts that a ``distinct`` stream skipped.
    """

    texts: int
    digest: str
    description: str
    repeats: tuple[Repeat, ...] = ()


class TextsDigest:
    """Digest of a sequence of texts, for ``Summary``: equal for equal texts in equal order.

    Attributes:
        count: Number of texts.
    """

    def __init__(self) -> None:
        self.count = 0
        self._digest = blake2b(digest_size=16)

    def add(self, text: bytes) -> None:
        """Adds a text in UTF-8 to the digest."""
        self._digest.update(b"%d " % len(text) + text)  # with the length: "ab", "c" is not "a", "bc"
        self.count += 1

    def hexdigest(self) -> str:
        """Returns the digest of the texts so far, 32 hex digits."""
        return self._digest.hexdigest()


class TextStream:
    r"""Stream of the texts of a file or a folder of documents. Every loop over it reads the file again.

    Texts, order, skipped lines and errors are those of ``read_rows`` for ``text``, but memory holds only one
    line, one document of a folder, or one record of a ``.csv`` at a time. Only a data set of the hub is read as a
    whole. A ``.jsonl`` is read once more beforehand, because its columns are those of all its lines.

    Args:
        path: ``.txt``, ``.tsv``, ``.csv``, ``.jsonl`` or ``.json``, each also ``.gz``; a folder; or
            ``hub:NAME:SPLIT``.
        column: Column of the text, if its name isn't a usual one.
        distinct: Whether to skip texts that equal an earlier text. It takes about 150 bytes for each text.
        split: Rows to read of a file that has several splits in a column ``split``, as for ``read_rows``.
        bounds: As for ``read_rows``.
        form: As for ``read_rows``.
        columns: Further columns of the file, whose cells ``records`` yields with each text.

    Attributes:
        summary: Summary of the last loop that was completed; None before.

    Raises:
        FileNotFoundError: During a loop: there is no such file.
        ValueError: During a loop: a line that ``read_rows`` refuses, when it is reached.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "pairs.tsv")
        ...     _ = path.write_text("query\tanswer\na cat?\ta pet\n")
        ...     texts = TextStream(path)
        ...     list(texts), list(texts.numbered()), texts.summary.texts
        (['a cat?', 'a pet'], [(2, 'a cat?'), (2, 'a pet')], 2)
    """

    def __init__(
        self,
        path: str | Path,
        column: str | None = None,
        distinct: bool = False,
        split: str | None = None,
        bounds: SizeLimits = USUAL,
        form: FileForm | None = None,
        columns: Sequence[str] = (),
    ) -> None:
        self.path = Path(path)
        self.column = column
        self.distinct = distinct
        self.split = split
        self.bounds = bounds
        self.form = form or FileForm()
        self.columns = tuple(columns)
        self.summary: Summary | None = None

    def __iter__(self) -> Iterator[str]:
        return (text for _, text in self.numbered())

    def scan(self) -> Summary:
        """Reads all texts of the stream once, to find invalid lines before other work. Returns the summary."""
        for _ in self.numbered():
            pass
        assert self.summary is not None
        return self.summary

    def numbered(self) -> Iterator[tuple[int, str]]:
        """Yields each text with the line on which its record begins, or its document's number in a folder."""
        return ((line, text) for line, text, _ in self.records())

    def records(self) -> Iterator[tuple[int, str, Sequence[object]]]:
        """Yields each text as ``numbered`` does, with its cells of the further columns."""
        columns = {"text": [self.column]} if self.column else {}
        rows = FileRows(
            self.path, ["text"], columns, Labels(None), self.split, self.bounds, self.form, self.columns
        )
        first_places: dict[bytes, int] = {}
        repeats: list[Repeat] = []
        digest = TextsDigest()
        for line, row in rows:
            text = str(row["text"])
            encoded = text.encode()
            if self.distinct:
                place = first_places.setdefault(blake2b(encoded, digest_size=16).digest(), digest.count)
                if place < digest.count:
                    repeats.append(Repeat(place, line))
                    continue
            digest.add(encoded)
            yield line, text, rows.further_cells
        description = rows.describe(digest.count, repeats=len(repeats))
        self.summary = Summary(digest.count, digest.hexdigest(), description, tuple(repeats))
