"""Readers of data files: rows of one table, scored pairs, and a stream of texts.

Texts are never altered. Everything that is ignored or left out is described in ``Table.understood``.
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
from contrastive_text.core.storage.text_files import USUAL, Bounds
from contrastive_text.core.targets import Target
from contrastive_text.core.types import Row
from contrastive_text.data.cache import cache_folder, cached
from contrastive_text.data.files import mapped
from contrastive_text.data.files.columns import ALIASES, PAIR, Labels, negative_names
from contrastive_text.data.files.formats import FileForm, listed, reading_error
from contrastive_text.data.files.frames import Frame
from contrastive_text.data.files.given import GivenRows, source
from contrastive_text.data.files.mapped import ArrowRows, ReadFile, key_of, records_of, write_rows
from contrastive_text.data.files.rows import FileRows
from contrastive_text.pairings.base import Documents

_ROWS, _SIZES, _KNOWN = "rows.arrow", "sizes", "table.json"
"""Files of mapped rows."""


@dataclass(frozen=True)
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

    @cached_property
    def content(self) -> str:
        """A digest that is the same for the same rows, wherever their files lie."""
        digest = blake2b(digest_size=16)
        for row in () if self.digest else self.rows:  # row by row: of a million rows one text would be large
            digest.update(repr(row).encode(errors="surrogatepass"))
        return self.digest or digest.hexdigest()

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
        said = "rows in memory: pip install 'contrastive-text[parquet]' maps so many"
        return replace(table, understood=f"{table.understood}\n{said}")
    meaning = (read_labels.target and part_spec(read_labels.target, "labels"), sorted(read_labels.names.items()))
    settings = (form.names, form.character, form.pair_labels)
    key = key_of(files, (reads, files[0].columns, split, every_label, meaning, settings))
    return _mapped(files, every_label, cache_folder(cache_dir, "rows"), key, total)


def _files(
    paths: str | Path | Sequence[Any] | Frame,
    reads: Sequence[str],
    columns: Mapping[str, str | Sequence[str]] | None,
    labels: Labels,
    split: str | None,
    bounds: Bounds,
    form: FileForm,
) -> list[FileRows]:
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
    if not isinstance(paths, Path) and not (
        isinstance(paths, list | tuple) and any(isinstance(each, Path) for each in paths)
    ):
        paths = source("rows", paths)
    each: list[Any] = [paths] if isinstance(paths, str | Path) else list(cast("Sequence[Any]", paths))
    if not each:
        raise reading_error("paths", "at least one file", "none", "name one")
    files = [path if isinstance(path, GivenRows) else Path(path) for path in each]
    return [FileRows(path, reads, given, labels, split, bounds, form) for path in files]


def _in_memory(files: Sequence[FileRows], every_label: bool) -> Table:
    """Returns the rows of files, all with the same columns."""
    tables: list[list[Row]] = []
    read: list[ReadFile] = []
    for rows in files:
        every, documents = list[Row](), Counter[int]()
        for _, row in rows:
            every.append(row)
            documents[rows.document] += 1
        scored = rows.labels.scored(every) if rows.labels.gold else every
        understood = rows.understood(len(scored), unscored=len(every) - len(scored))
        # Pairs of which some have no score are no documents.
        sizes = list(documents.values()) if len(scored) == len(every) else [len(scored)]
        tables.append(scored)
        read.append(ReadFile(list(scored[0]), understood, sizes))
    names, notes = _agreed(files, read, every_label)
    filled = (
        row if list(row) == names else {name: row.get(name, "") for name in names}
        for table in tables
        for row in table
    )
    return Table(
        rows=tuple(filled),
        source=tuple(str(rows.path) for rows in files),
        understood="\n".join(notes),
        sizes=tuple(size for each in read for size in each.sizes),
        files=tuple(sum(each.sizes) for each in read),
    )


def _agreed(
    files: Sequence[FileRows], read: Sequence[ReadFile], every_label: bool
) -> tuple[list[str], list[str]]:
    """Returns the columns of the rows of all files, and how the files were understood.

    A column of sub-sets that only some files have is left out: MultiNLI has a genre, SNLI none.
    """
    subset = ["subset" in each.names for each in read]
    drops = any(subset) and not all(subset) and "subset" not in files[0].reads
    every = dict.fromkeys(name for each in read for name in each.names if not name.startswith("negative"))
    texts = [name for name in every if name in ("anchor", "positive")]
    others = [name for name in every if name not in texts and not (drops and name == "subset")]
    negatives = negative_names(max(max(rows.negatives, default=0) for rows in files))
    notes = ["subset left out: not every file has one"] if drops else []
    understood = [*(each.understood for each in read), *notes, *files[0].labels.check(every_label)]
    return [*texts, *negatives, *others], understood


def _mapped(files: Sequence[FileRows], every_label: bool, folder: Path, key: str, total: int) -> Table:
    """Returns the rows of files from the cache, where they are written first if they aren't there."""

    def make(entry: Path) -> None:
        read, digest = write_rows(entry / _ROWS, files, total)
        names, understood = _agreed(files, read, every_label)
        sizes = [size for each in read for size in each.sizes]
        counts = [sum(each.sizes) for each in read]
        known = {"names": names, "understood": understood, "files": counts, "digest": digest}
        np.array(sizes, np.int64).tofile(entry / _SIZES)
        (entry / _KNOWN).write_text(json.dumps(known), encoding="utf-8")

    entry, _ = cached(folder, key, "rows", (_ROWS, _SIZES, _KNOWN), make)
    known = json.loads((entry / _KNOWN).read_text(encoding="utf-8"))
    said = f"more than {mapped.MAPPED_ROWS:,} rows: mapped from {entry}; a vocabulary is learned from a sample"
    return Table(
        rows=ArrowRows(entry / _ROWS, known["names"]),
        source=tuple(str(rows.path) for rows in files),
        understood="\n".join([*known["understood"], said]),
        sizes=np.fromfile(entry / _SIZES, np.int64).tolist(),
        files=tuple(known["files"]),
        digest=known["digest"],
    )


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
    reads, labels = ("anchor", "positive", "target"), Labels(None, gold=True)
    files = _files(paths, reads, columns, labels, split, bounds, form or FileForm())
    return _in_memory(files, every_label=True)


class Repeat(NamedTuple):
    """A text that an earlier one equals to the letter.

    Args:
        place: Of the earlier one, among the distinct texts.
        line: Of this one.
    """

    place: int
    line: int


class Summary(NamedTuple):
    """Summary of one loop over all texts.

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
        self.form = form or FileForm()
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
