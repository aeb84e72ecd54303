"""The texts of a file one at a time: their rows, numbered, with the digest of all."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from contrastive_text.core.text_files import USUAL, Bounds
from contrastive_text.data.files.forms import FileForm
from contrastive_text.data.files.labels import Labels
from contrastive_text.data.files.rows import FileRows


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
