"""Readers of data files: rows of one table, scored pairs, and a stream of texts.

Texts are never altered. Everything that is ignored or left out is described in ``Table.understood``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from contrastive_text.core.documents import Documents
from contrastive_text.core.random import text_id
from contrastive_text.core.storage.text_files import USUAL, Bounds
from contrastive_text.core.targets import Target
from contrastive_text.core.types import Row
from contrastive_text.data.cache import cache_folder, cached
from contrastive_text.data.files import mapped
from contrastive_text.data.files.columns import ALIASES, PAIR, negative_names
from contrastive_text.data.files.formats import FileForm, listed, reading_error
from contrastive_text.data.files.frames import Frame
from contrastive_text.data.files.given import GivenRows, source
from contrastive_text.data.files.labels import Labels
from contrastive_text.data.files.mapped import (
    KNOWN,
    ROWS,
    SIZES,
    ArrowRows,
    RowWriter,
    can_map,
    key_of,
    records_of,
)
from contrastive_text.data.files.rows import FileRows


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of one or several files, and how the files were understood.

    Args:
        rows: The rows in file order, all with the same columns: a tuple, or mapped.
        source: The files, as they were given.
        understood: A line for each file: which column became what, what was ignored or left out, the rows.
        sizes: Number of rows of each document: a file, a file of a folder, or what a blank line ends.
        files: Number of rows of each file; none where rows of several are joined.
        digest: Of all rows where they are mapped; empty where they are in memory.
    """

    rows: Sequence[Row]
    source: tuple[str, ...]
    understood: str
    sizes: Sequence[int]
    files: tuple[int, ...] = ()
    digest: str = ""

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Row:
        return self.rows[index]

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    @property
    def identity(self) -> int:
        """A number that is the same for the same rows, wherever their files lie."""
        return text_id(self.digest or repr(self.rows))

    @property
    def documents(self) -> Documents:
        """The rows of each document, as ``Pairing.arrange`` takes them."""
        return Documents(self.rows, self.sizes)


def read_rows(
    paths: str | Path | Sequence[Any] | Frame,
    reads: Sequence[str],
    columns: Mapping[str, str | Sequence[str]] | None = None,
    target: Target | None = None,
    labels: Mapping[str, str] | None = None,
    split: str | None = None,
    every_label: bool = True,
    bounds: Bounds = USUAL,
    cache_dir: Path | None = None,
    form: FileForm | None = None,
) -> Table:
    r"""Reads data files, and folders of documents, into rows of one table.

    Files are ``.txt`` (a text a line), ``.tsv``, ``.csv``, ``.jsonl`` and ``.json``, each also as ``.gz``,
    ``.parquet`` and ``.arrow``, and data sets of the hub, as ``hub:NAME:SPLIT`` or ``hub:NAME:CONFIG:SPLIT``,
    where a name may be a folder. Rows from Python are understood as those of a file. In a folder, for ``text``
    alone, each ``.txt`` file in it or below it is one text with its newlines: BERT's tokenizers take those for
    blanks, byte-level ones such as RoBERTa's give them tokens of their own. Hidden files are not read.

    Several columns or a JSON list for ``text`` or ``positive`` give a row for each text, for ``negative``
    they give ``negative``, ``negative_2``, ... A file of pairs that is read for ``text`` gives all its texts.

    Rows may have different numbers of hard negatives: a row with fewer has an empty text in their place, which
    training masks. Other separators, quotes and tables without a header are recognized where that is unambiguous.

    Pairs with a label that isn't read are refused if the label says that some of them don't belong together;
    ``form.pair_labels`` says what to do with those.

    With a target, labels are read as it understands them, and rows without a gold label are left out. All else
    that is no label of it is refused with its line.

    Above 1,000,000 records (``MAPPED_ROWS``) the rows are written into a cache once, in Arrow's format, by the
    first of several processes, and mapped from there: memory doesn't hold them. That needs ``pyarrow``.

    Args:
        paths: One file or folder or several, which are joined in order; the files of a folder go by name. Or
            rows: a list of texts, dicts or tuples, a DataFrame, a ``datasets.Dataset``.
        reads: The library columns needed: ``text``, or ``anchor`` and ``positive``; ``target`` with either.
            Pairs take ``negative`` and ``subset`` along where a file has them.
        columns: Library column -> column or columns of the file; comes before ``ALIASES``.
        target: What the labels stand for; None for any numbers.
        labels: Label of the files -> what the target calls it, ``-`` to leave its rows out; 1.0 is 1.
        split: Rows to read of a file that has several splits in a column ``split``: ``train``, ``dev``,
            ``test``, or ``all``.
        every_label: Whether each of ``labels`` must have a row; False where the mapping was written for other
            files of the data set too.
        bounds: How large a line of a file may be, and what else may not grow without end.
        cache_dir: Where mapped rows are kept; None for ``contrastive_text/rows`` in the user's cache folder.
        form: Separator, header and labels of pairs, where the files leave them open; None for what they say.

    Raises:
        FileNotFoundError: A file is not there.
        ImportError: A data set of the hub without the library ``datasets``, an Arrow file without ``pyarrow``.
        ValueError: A file is not what its suffix says, lacks a column, has no rows, a label that the target
            doesn't know, labels of pairs that nothing reads, or several splits and none is chosen; a folder has
            no ``.txt`` file; ``labels`` names one that no file has.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "pairs.tsv")
        ...     _ = path.write_text("query\tanswer\na cat?\ta pet\n")
        ...     read_rows(path, reads=("anchor", "positive")).rows
        ({'anchor': 'a cat?', 'positive': 'a pet'},)
    """
    numbers = Labels(target if "target" in reads else None, labels)
    form = form or FileForm()
    if labels and numbers.is_unread and form.pair_labels not in ("positives", "hard"):
        todo = "leave labels out, add one, or say what to do with pairs that do not belong together"
        raise reading_error("labels", "an objective that learns a target", str(dict(labels)), todo)
    return _read(paths, reads, columns, numbers, split, every_label, bounds, cache_dir, form)


def _read(
    paths: str | Path | Sequence[Any] | Frame,
    reads: Sequence[str],
    columns: Mapping[str, str | Sequence[str]] | None,
    labels: Labels,
    split: str | None,
    every_label: bool,
    bounds: Bounds,
    cache_dir: Path | None,
    form: FileForm,
) -> Table:
    given = {name: [value] if isinstance(value, str) else list(value) for name, value in (columns or {}).items()}
    for where, names in (("reads", reads), ("columns", given)):
        if unknown := [name for name in names if name not in ALIASES]:
            todo = "use one of these; several negatives are a list under negative"
            raise reading_error(where, listed(ALIASES), repr(unknown[0]), todo)
    if ("text" in reads) == any(name in reads for name in PAIR) or len({*reads} & {"anchor", "positive"}) == 1:
        raise reading_error("reads", "text, or anchor and positive", listed(reads), "ask for one of the two")
    for name, sources in given.items():
        if not sources or (len(sources) > 1 and name in ("anchor", "target", "subset")):
            raise reading_error(f"columns.{name}", "one column", str(len(sources)), "name one")
    files = _sources(paths)
    if not files:
        raise reading_error("paths", "at least one file", "none", "name one")
    each = [FileRows(path, reads, given, labels, split, bounds, form) for path in files]
    total = 0 if labels.gold else sum(map(records_of, each))
    if total > mapped.MAPPED_ROWS and can_map():
        key = key_of(each, (reads, given, split, every_label, labels.asked, form.settings))
        return _mapped(each, labels, every_label, cache_folder(cache_dir, "rows"), key, total)
    parts = [_read_file(rows) for rows in each]
    dropped, notes = _agreed(each, [list(rows[0]) for rows, _, _ in parts])
    negatives = negative_names(max(max(rows.negatives, default=0) for rows in each))
    parts = [([_filled(row, dropped, negatives) for row in rows], note, sizes) for rows, note, sizes in parts]
    notes = [*(understood for _, understood, _ in parts), *notes, *labels.check(every_label)]
    if total > mapped.MAPPED_ROWS:
        notes.append("rows in memory: pip install 'contrastive-text[parquet]' maps so many")
    return Table(
        rows=tuple(row for rows, _, _ in parts for row in rows),
        source=tuple(str(path) for path in files),
        understood="\n".join(notes),
        files=tuple(sum(sizes) for _, _, sizes in parts),
        sizes=tuple(size for _, _, sizes in parts for size in sizes),
    )


def _agreed(files: Sequence[FileRows], names: Sequence[Sequence[str]]) -> tuple[set[str], list[str]]:
    """Returns columns that aren't taken because not every file has them, and what to say of that.

    MultiNLI has a genre, SNLI none.
    """
    subset = ["subset" in each for each in names]
    dropped = {"subset"} if any(subset) and not all(subset) and "subset" not in files[0].reads else set()
    return dropped, ["subset left out: not every file has one"] if dropped else []


def _mapped(
    files: Sequence[FileRows], labels: Labels, every_label: bool, folder: Path, key: str, total: int
) -> Table:
    """Returns the rows of files from the cache, where they are written first if they aren't there."""

    def make(entry: Path) -> None:
        writer = RowWriter(entry / ROWS, total)
        written = [writer.file(rows) for rows in files]
        dropped, notes = _agreed(files, [each.names for each in written])
        known = {
            "names": _with_negatives(
                [name for name in written[0].names if name not in dropped],
                negative_names(max(max(rows.negatives, default=0) for rows in files)),
            ),
            "understood": [*(each.understood for each in written), *notes, *labels.check(every_label)],
            "files": [sum(each.sizes) for each in written],
            "digest": writer.end(),
        }
        np.array([size for each in written for size in each.sizes], np.int64).tofile(entry / SIZES)
        (entry / KNOWN).write_text(json.dumps(known), encoding="utf-8")

    entry, _ = cached(folder, key, "rows", (ROWS, SIZES, KNOWN), make)
    known = json.loads((entry / KNOWN).read_text(encoding="utf-8"))
    said = f"more than {mapped.MAPPED_ROWS:,} rows: mapped from {entry}; a vocabulary is learned from a sample"
    return Table(
        rows=ArrowRows(entry / ROWS, known["names"]),
        source=tuple(str(rows.path) for rows in files),
        understood="\n".join([*known["understood"], said]),
        files=tuple(known["files"]),
        sizes=np.fromfile(entry / SIZES, np.int64).tolist(),
        digest=known["digest"],
    )


def _sources(given: Any) -> list[Path | GivenRows]:  # Any: names of files, or rows
    if not isinstance(given, str | Path) and not (
        isinstance(given, list | tuple) and any(isinstance(each, Path) for each in given)
    ):
        given = source("rows", given)
    each = [given] if isinstance(given, str | Path) else given
    return [path if isinstance(path, GivenRows) else Path(path) for path in each]


def read_pairs(
    paths: str | Path | Sequence[Any] | Frame,
    columns: Mapping[str, str | Sequence[str]] | None = None,
    split: str | None = None,
    bounds: Bounds = USUAL,
    form: FileForm | None = None,
) -> Table:
    """Reads files of two texts and a gold score, for evaluation; see ``read_rows``.

    Rows without a score are left out and counted: those with an empty cell, a dash or, in a file without another
    score below 0, -1 (GLUE's for none).

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "pairs.tsv")
        ...     _ = path.write_text("sentence1\\tsentence2\\tscore\\na cat\\ta pet\\t4.5\\na cat\\ta car\\t-\\n")
        ...     len(read_pairs(path))
        1
    """
    reads = ("anchor", "positive", "target")
    return _read(paths, reads, columns, Labels(None, gold=True), split, True, bounds, None, form or FileForm())


def _read_file(rows: FileRows) -> tuple[list[Row], str, list[int]]:
    """Returns the rows of a file, at least one, all of the same columns, how it was understood, and its sizes."""
    every, documents = [], Counter[int]()
    for _, row in rows:
        every.append(row)
        documents[rows.document] += 1
    scored = rows.labels.scored(every)
    understood = rows.understood(len(scored), unscored=len(every) - len(scored))
    # Pairs of which some have no score are no documents.
    return scored, understood, list(documents.values()) if len(scored) == len(every) else [len(scored)]


def _with_negatives(names: Sequence[str], negatives: Sequence[str]) -> list[str]:
    """Returns the columns of a row with those of all hard negatives, after the texts that they belong to."""
    others = [name for name in names if not name.startswith("negative")]
    texts = [name for name in others if name in ("anchor", "positive")]
    return [*texts, *negatives, *(name for name in others if name not in texts)]


def _filled(row: Row, dropped: Collection[str], negatives: Sequence[str]) -> Row:
    """Returns a row without dropped columns, and with an empty text for each hard negative that it lacks."""
    if not dropped and all(name in row for name in negatives):
        return row
    return {name: row.get(name, "") for name in _with_negatives(list(row), negatives) if name not in dropped}


class Repeat(NamedTuple):
    """A text that an earlier one equals to the letter.

    Args:
        place: Of the earlier one, among the distinct texts.
        line: Of this one.
    """

    place: int
    line: int


class Summary(NamedTuple):
    """What a loop over all texts has seen.

    Args:
        texts: Their number.
        digest: 32 hex digits that are the same for the same texts in the same order, whatever their file.
        understood: Which column became what, what was ignored or left out, and the rows, as ``Table`` says it.
        repeats: What was left out of a ``distinct`` stream.
    """

    texts: int
    digest: str
    understood: str
    repeats: tuple[Repeat, ...] = ()


class TextStream:
    r"""The texts of a file or a folder of documents; every loop over them reads anew.

    The texts, their order, what is left out and what is refused are those of ``read_rows`` for ``text``, but
    memory holds one line at a time, one document of a folder, or one record of a ``.csv``. Only a data set of the
    hub is read whole. The columns of ``.jsonl`` are those of all its lines, for which it is read once more.

    Args:
        path: ``.txt``, ``.tsv``, ``.csv``, ``.jsonl`` or ``.json``, each also ``.gz``; a folder; or
            ``hub:NAME:SPLIT``.
        column: Column of the text, where its name isn't a usual one.
        distinct: Whether to leave out texts that an earlier one equals; takes some 150 bytes for each.
        split: Rows to read of a file that has several splits in a column ``split``, as for ``read_rows``.
        bounds: As for ``read_rows``.
        form: As for ``read_rows``.

    Attributes:
        summary: Of the last loop that came to its end; None before.

    Raises:
        FileNotFoundError: In a loop: no such file.
        ValueError: In a loop: what ``read_rows`` refuses, with the line, as soon as that is read.

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
        bounds: Bounds = USUAL,
        form: FileForm | None = None,
    ) -> None:
        self.path = Path(path)
        self.column = column
        self.distinct = distinct
        self.split = split
        self.bounds = bounds
        self.form = form
        self.summary: Summary | None = None

    def __iter__(self) -> Iterator[str]:
        return (text for _, text in self.numbered())

    def scan(self) -> Summary:
        """Reads to the end, which finds a broken line before any work is done, and gives the summary."""
        for _ in self.numbered():
            pass
        assert self.summary is not None
        return self.summary

    def numbered(self) -> Iterator[tuple[int, str]]:
        """Yields each text with the line that its record begins on, or its document's number in a folder."""
        columns = {"text": [self.column]} if self.column else {}
        rows = FileRows(self.path, ["text"], columns, Labels(None), self.split, self.bounds, self.form)
        first: dict[bytes, int] = {}
        repeats: list[Repeat] = []
        count = 0
        digest = blake2b(digest_size=16)
        for line, row in rows:
            text = str(row["text"])
            encoded = text.encode()
            if self.distinct:
                place = first.setdefault(blake2b(encoded, digest_size=16).digest(), count)
                if place < count:
                    repeats.append(Repeat(place, line))
                    continue
            digest.update(b"%d " % len(encoded) + encoded)  # the length, or "ab", "c" would be "a", "bc"
            count += 1
            yield line, text
        understood = rows.understood(count, repeats=len(repeats))
        self.summary = Summary(count, digest.hexdigest(), understood, tuple(repeats))
