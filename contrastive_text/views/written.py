"""View that replaces a text by an alternative from a file: a back-translation, a negation, a paraphrase."""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
import numpy.typing as npt

from contrastive_text.core.checks import one_of
from contrastive_text.core.errors import DiskError, InvalidValueError, first_line
from contrastive_text.core.random import text_id
from contrastive_text.core.storage.records import shown
from contrastive_text.core.storage.text_files import decoded_lines, is_blank, opened
from contrastive_text.core.types import Vocabulary
from contrastive_text.views.base import TextView
from contrastive_text.views.text import tab_fields

Missing = Literal["error", "keep"]
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class TextsFromFile(TextView):
    """Puts a text that was written elsewhere in the place of a text: the one of a file that belongs to it.

    A file has a text and an alternative on each line: a back-translation, a negation, a paraphrase. Where a text
    has several, on lines of its own or in a list, one is drawn, all equally likely. Put it first in its chain:
    what another text view has altered isn't in the file. Memory holds 16 bytes for each line: where it stands, by
    the text's 64-bit id; the line itself is read when it is asked for.

    Args:
        path: ``.tsv`` whose first line names the columns, or ``.jsonl``; not packed, for lines are read singly.
        text: Column of the texts, written as the training data has them after ``clean``.
        alternative: Column of the alternatives; in ``.jsonl`` one text or a list of them.
        missing: What to do with a text that isn't in the file: ``error``, or ``keep`` it as it is.

    Raises:
        ValueError: Another format; before the first batch a column that isn't there, a line that can't be read,
            or a text without an alternative, unless ``missing`` is ``keep``.
        OSError: Before the first batch no such file; while training one that was changed.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder, "back.tsv")
        ...     _ = path.write_text("text\\talternative\\na big dog\\ta large dog\\n")
        ...     TextsFromFile(str(path))("a big dog", np.random.default_rng(0))
        'a large dog'
    """

    def __init__(
        self, path: str, text: str = "text", alternative: str = "alternative", missing: Missing = "error"
    ) -> None:
        if Path(path).suffix not in (".tsv", ".jsonl"):
            raise InvalidValueError(
                f"TextsFromFile.path: expected a .tsv or a .jsonl that isn't packed, got {path!r}; write it so"
            )
        self.path = path
        self.text = text
        self.alternative = alternative
        self.missing: Missing = one_of("TextsFromFile.missing", missing, Missing)
        self.checks_texts = missing == "error"
        self._header: list[str] = []
        self._lines: npt.NDArray[np.int64] | None = (
            None  # ids in rising order, and the place of each line, (2, N)
        )
        self._seen: tuple[int, int] | None = None

    def build(self, vocabulary: Vocabulary) -> None:  # noqa: ARG002  # the contract
        """Looks where each text stands, so that workers get it ready-made."""
        self._places("")

    def __call__(self, text: str, rng: np.random.Generator) -> str:
        """Returns one of the text's alternatives."""
        found = self.alternatives(text)
        if found:
            return found[int(rng.integers(len(found)))]
        if self.missing == "keep":
            return text
        raise self._lacking(text)

    def check(self, text: str) -> None:
        """Checks that a text is in the file (ValueError)."""
        if not self._places(text):
            raise self._lacking(text)

    def _lacking(self, text: str) -> InvalidValueError:
        return InvalidValueError(
            f"{self.path}: expected an alternative of every text, got none of {shown(text)}; write one there, "
            "put TextsFromFile first in its chain, or set missing: keep"
        )

    def alternatives(self, text: str) -> list[str]:
        """Returns the alternatives of a text, in the file's order; none where it isn't in the file."""
        places = self._places(text)
        if not places:
            return []
        found: list[str] = []
        with opened(Path(self.path)) as file:
            if _state(file) != self._seen:
                raise DiskError(
                    f"{self.path}: expected the file as it was when the run began, got a changed one; start anew"
                )
            for place in places:
                file.seek(place)
                line = file.readline().decode()
                written, alternatives = self._parsed(line, f"{self.path}, at byte {place:,}")
                found += alternatives if written == text else []
        return found

    def _places(self, text: str) -> list[int]:
        """Returns the places of the lines of a text in bytes, in the file's order."""
        if self._lines is None:
            with opened(Path(self.path)) as file:
                self._seen = _state(file)
            pairs = array("q", chain.from_iterable((text_id(each), place) for each, place in self._texts()))
            lines = np.array(pairs, dtype=np.int64).reshape(-1, 2)
            self._lines = lines[np.argsort(lines[:, 0], kind="stable")].T
        ids, places = self._lines
        begin, end = (np.searchsorted(ids, text_id(text), side=side) for side in ("left", "right"))
        return [int(place) for place in places[begin:end]]

    def _texts(self) -> Iterator[tuple[str, int]]:
        """Yields the text of each line and the line's place, in bytes."""
        with opened(Path(self.path)) as file:
            place = len(_BYTE_ORDER_MARK) if file.read(3) == _BYTE_ORDER_MARK else 0
        lines, begin = decoded_lines(Path(self.path)), 1
        if self._is_table:
            first = next(lines, "")
            self._header, begin = tab_fields(first), 2
            place += len(first.encode())
            for name in (self.text, self.alternative):
                if self._header.count(name) != 1:
                    raise InvalidValueError(
                        f"{self.path}:1: expected one column {name}, got {', '.join(self._header) or 'nothing'}; "
                        "name the columns under text and alternative"
                    )
        for number, line in enumerate(lines, start=begin):
            if line.strip():
                yield self._parsed(line, f"{self.path}:{number}")[0], place
            place += len(line.encode())

    @property
    def _is_table(self) -> bool:
        return self.path.endswith(".tsv")

    def _parsed(self, line: str, where: str) -> tuple[str, list[str]]:
        """Returns the text of a line and its alternatives."""
        if self._is_table:
            fields = tab_fields(line)
            if len(fields) != len(self._header):
                raise InvalidValueError(
                    f"{where}: expected {len(self._header)} fields ({', '.join(self._header)}), got "
                    f"{len(fields)}; look for a tab too many or too few"
                )
            cells: dict[str, object] = dict(zip(self._header, fields, strict=True))
        else:
            try:
                cells = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InvalidValueError(
                    f"{where}: expected a JSON object, got invalid JSON ({first_line(error)}); write one a line"
                ) from None
        text = cells.get(self.text) if isinstance(cells, dict) else None
        given = cells.get(self.alternative) if isinstance(cells, dict) else None
        alternatives = given if isinstance(given, list) else [given]
        for name, cell in ((self.text, text), *((self.alternative, each) for each in alternatives)):
            if not isinstance(cell, str) or is_blank(cell):
                raise InvalidValueError(
                    f"{where}: expected a text under {name}, got {cell!r}; write one there, or leave the line out"
                )
        return str(text), [str(each) for each in alternatives]


def _state(file: BinaryIO) -> tuple[int, int]:
    """Returns size and time of change of an open file."""
    found = os.fstat(file.fileno())
    return found.st_size, found.st_mtime_ns
