"""Reads the texts of a file one at a time: what ``read_rows`` gives for ``text``, in the memory of one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from contrastive_text.core.text_files import USUAL, Bounds, is_blank
from contrastive_text.data.files.columns import plan_columns
from contrastive_text.data.files.formats import (
    Parsed,
    Record,
    counted,
    documents,
    is_folder,
    listed,
    parse,
    reading_error,
)
from contrastive_text.data.files.hub import PREFIX, hub_content
from contrastive_text.data.files.readers import texts_of_cell
from contrastive_text.data.files.splits import choose_split, split_place
from contrastive_text.data.files.understood import say_ignored, say_left_out, say_understood


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
        path: ``.txt``, ``.tsv``, ``.csv`` or ``.jsonl``, each also ``.gz``; a folder; ``hub:NAME:SPLIT``.
        column: Column of the text, where its name isn't a usual one.
        distinct: Whether to leave out texts that an earlier one equals; takes some 150 bytes for each.
        split: Rows to read of a file that has several splits in a column ``split``, as for ``read_rows``.
        bounds: As for ``read_rows``.

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
    ) -> None:
        self.path = Path(path)
        self.column = column
        self.distinct = distinct
        self.split = split
        self.bounds = bounds
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
        where = str(self.path)
        folder = is_folder(self.path)
        parsed = _parsed(self.path, self.bounds)
        places: list[tuple[str, int]] = []
        kept: tuple[int, list[str]] | None = None
        texts_a_line: set[int] = set()
        rest: list[str] = []
        first: dict[bytes, int] = {}
        repeats: list[Repeat] = []
        count = empty = blank = 0
        digest = blake2b(digest_size=16)
        for record in parsed.records:
            if record is None:
                blank += 1
                continue
            if not places:
                columns = {"text": [self.column]} if self.column else {}
                names = plan_columns(where, parsed.header, ["text"], columns)["text"]
                places = [(name, parsed.header.index(name)) for name in names]
                kept, rest = self._rows_of_split(parsed.header, names)
                rest += say_ignored(parsed.header, names, rest, parsed.unread)
            line, cells = record
            if kept is not None and str(cells[kept[0]]) not in kept[1]:
                continue
            found = [
                text for name, at in places for text in texts_of_cell(f"{where}:{line}", "text", name, cells[at])
            ]
            texts_a_line.add(len(found))
            for text in found:
                if is_blank(text):
                    empty += 1
                    continue
                encoded = text.encode()
                if self.distinct:
                    place = first.setdefault(blake2b(encoded, digest_size=16).digest(), count)
                    if place < count:
                        repeats.append(Repeat(place, line))
                        continue
                digest.update(b"%d " % len(encoded) + encoded)  # the length, or "ab", "c" would be "a", "bc"
                count += 1
                yield line, text
        left_out = say_left_out(blank, empty, folder)
        left_out += [f"{counted(len(repeats), 'repeated text')} left out"] if repeats else []
        if not count:
            todo = "check that the file was written to its end"
            raise reading_error(where, "at least one row with text", listed(left_out) or "an empty file", todo)
        fewest, most = min(texts_a_line), max(texts_a_line)
        several = f" ({fewest} rows a line)" if fewest == most else f" ({fewest} to {most} rows a line)"
        note = " (a .txt file each)" if folder else several if most > 1 else ""
        taken = f"{listed(name for name, _ in places)} -> text{note}"
        said = say_understood(self.path, [taken], [*rest, counted(count, "row"), *left_out])
        self.summary = Summary(count, digest.hexdigest(), said, tuple(repeats))

    def _rows_of_split(
        self, header: list[str], used: list[str]
    ) -> tuple[tuple[int, list[str]] | None, list[str]]:
        """Returns place and values of the column that chooses rows, None for all rows, and what to say of it."""
        place = split_place(header, used)
        if place is None:
            return None, []
        held = Counter(
            str(record[1][place]) for record in _parsed(self.path, self.bounds).records if record is not None
        )
        read, said = choose_split(str(self.path), held, self.split)
        return (None if read is None else (place, read)), said


def _parsed(path: Path, bounds: Bounds) -> Parsed:
    if is_folder(path):
        return documents(path, bounds)
    if str(path).startswith(PREFIX):
        content = hub_content(str(path))
        records: list[Record | None] = list(content.records)
        return Parsed(content.header, iter(records))
    return parse(path, bounds)
