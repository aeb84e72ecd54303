"""View that replaces a text by an alternative from a file, such as a back-translation or a paraphrase."""

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

from contrastive_text.core.errors import DiskError, InvalidValueError, first_line, one_of
from contrastive_text.core.random import text_id
from contrastive_text.core.storage.records import describe_value
from contrastive_text.core.storage.text_files import decoded_lines, is_blank, open_regular_file
from contrastive_text.core.types import Vocabulary
from contrastive_text.views.base import TextView
from contrastive_text.views.text import tab_fields

Missing = Literal["error", "keep"]
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class TextsFromFile(TextView):
    """Replaces each text by an alternative from a file: a back-translation, a negation or a paraphrase.

    Each line of the file has a text and an alternative. If a text has several alternatives, on several lines or
    in a list, one is drawn; all are equally likely. Make this view the first of its chain, because the file
    doesn't have texts that another view has altered. Memory takes 16 bytes for each line, the text's 64-bit id
    and the offset of the line. Lines are read from the file when they are needed.

    Args:
        path: ``.tsv`` file with column names in its first line, or ``.jsonl`` file; not compressed, because lines
            are read by offset.
        text: Column of the texts, in the form that the training data have after ``clean``.
        alternative: Column of the alternatives; in ``.jsonl`` a text or a list of texts.
        missing: Treatment of a text that isn't in the file: ``error``, or ``keep`` for no change.

    Raises:
        ValueError: The file has another format. Raised before the first batch: a column is missing, a line can't
            be read, or a text has no alternative and ``missing`` is ``error``.
        OSError: Raised before the first batch: the file doesn't exist. Raised in training: the file has changed.

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
                f"TextsFromFile.path: expected an uncompressed .tsv or .jsonl file, got {path!r}; convert it"
            )
        self.path = path
        self.text = text
        self.alternative = alternative
        self.missing: Missing = one_of("TextsFromFile.missing", missing, Missing)
        self.checks_texts = missing == "error"
        self._header: list[str] = []
        self._lines: npt.NDArray[np.int64] | None = None  # sorted ids, and the offset of each line, (2, N)
        self._file_state: tuple[int, int] | None = None

    def build(self, vocabulary: Vocabulary) -> None:  # noqa: ARG002  # the base's signature
        """Finds the offset of each text in the file, before worker processes copy the view."""
        self._offsets("")

    def __call__(self, text: str, rng: np.random.Generator) -> str:
        """Returns one of the alternatives of a text, drawn at random."""
        texts = self.alternatives(text)
        if texts:
            return texts[int(rng.integers(len(texts)))]
        if self.missing == "keep":
            return text
        raise self._missing_error(text)

    def check(self, text: str) -> None:
        """Checks that the file of alternatives contains a text (ValueError)."""
        if not self._offsets(text):
            raise self._missing_error(text)

    def _missing_error(self, text: str) -> InvalidValueError:
        return InvalidValueError(
            f"{self.path}: expected an alternative of every text, got no alternative of {describe_value(text)}; "
            "add one to the file, make TextsFromFile the first view of its chain, or set missing: keep"
        )

    def alternatives(self, text: str) -> list[str]:
        """Returns the alternatives of a text, in the file's order; an empty list if the text isn't in the file.

        Raises:
            OSError: The file has changed since ``build``.
        """
        offsets = self._offsets(text)
        if not offsets:
            return []
        texts: list[str] = []
        with open_regular_file(Path(self.path)) as file:
            if _state(file) != self._file_state:
                raise DiskError(
                    f"{self.path}: expected the file of the start of the run, got a changed file; start the run "
                    "again"
                )
            for offset in offsets:
                file.seek(offset)
                line = file.readline().decode()
                line_text, alternatives = self._parse(line, f"{self.path}, at byte {offset:,}")
                texts += alternatives if line_text == text else []
        return texts

    def _offsets(self, text: str) -> list[int]:
        """Returns the offsets of the lines of a text in bytes, in the file's order."""
        if self._lines is None:
            with open_regular_file(Path(self.path)) as file:
                self._file_state = _state(file)
            pairs = array("q", chain.from_iterable((text_id(key), offset) for key, offset in self._texts()))
            lines = np.array(pairs, dtype=np.int64).reshape(-1, 2)
            self._lines = lines[np.argsort(lines[:, 0], kind="stable")].T
        ids, offsets = self._lines
        begin, end = (np.searchsorted(ids, text_id(text), side=side) for side in ("left", "right"))
        return [int(offset) for offset in offsets[begin:end]]

    def _texts(self) -> Iterator[tuple[str, int]]:
        """Yields the text of each line and the offset of the line in bytes."""
        with open_regular_file(Path(self.path)) as file:
            offset = len(_BYTE_ORDER_MARK) if file.read(3) == _BYTE_ORDER_MARK else 0
        lines, begin = decoded_lines(Path(self.path)), 1
        if self._is_table:
            first = next(lines, "")
            self._header, begin = tab_fields(first), 2
            offset += len(first.encode())
            for name in (self.text, self.alternative):
                if self._header.count(name) != 1:
                    raise InvalidValueError(
                        f"{self.path}:1: expected one column {name}, got "
                        f"{', '.join(self._header) or 'no columns'}; name the columns under text and alternative"
                    )
        for number, line in enumerate(lines, start=begin):
            if line.strip():
                yield self._parse(line, f"{self.path}:{number}")[0], offset
            offset += len(line.encode())

    @property
    def _is_table(self) -> bool:
        return self.path.endswith(".tsv")

    def _parse(self, line: str, where: str) -> tuple[str, list[str]]:
        """Returns the text of a line of the file and its alternatives."""
        if self._is_table:
            fields = tab_fields(line)
            if len(fields) != len(self._header):
                raise InvalidValueError(
                    f"{where}: expected {len(self._header)} fields ({', '.join(self._header)}), got "
                    f"{len(fields)}; look for an extra or a missing tab"
                )
            cells: dict[str, object] = dict(zip(self._header, fields, strict=True))
        else:
            try:
                cells = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InvalidValueError(
                    f"{where}: expected a JSON object, got invalid JSON ({first_line(error)}); write one object "
                    "per line"
                ) from None
        text = cells.get(self.text) if isinstance(cells, dict) else None
        value = cells.get(self.alternative) if isinstance(cells, dict) else None
        alternatives = value if isinstance(value, list) else [value]
        for name, cell in ((self.text, text), *((self.alternative, item) for item in alternatives)):
            if not isinstance(cell, str) or is_blank(cell):
                raise InvalidValueError(
                    f"{where}: expected a text under {name}, got {cell!r}; add a text, or remove the line"
                )
        return str(text), [str(item) for item in alternatives]


def _state(file: BinaryIO) -> tuple[int, int]:
    """Returns the size and the modification time of an open file."""
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns
