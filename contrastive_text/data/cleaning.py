"""White space and case of the texts that are trained on, altered before anything else where it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import overload

from contrastive_text.core.types import Row
from contrastive_text.data.files.mapped import ArrowRows
from contrastive_text.data.files.readers import Table
from contrastive_text.data.samples import sampled


@dataclass(frozen=True)
class Clean:
    """How the texts of training rows are cleaned, once, when they are read.

    DeCLUTR's authors collapse white space (``sanitize`` in declutr/common/data_utils.py) and mean to put a blank
    before each text. Texts that are scored or embedded stay as they are.

    Args:
        collapse: Whether each run of white space becomes one blank, and none is left at the ends. A byte-level
            tokenizer such as RoBERTa's has tokens for line breaks and runs of blanks, BERT's has none.
        leading_blank: Whether a text begins with a blank, so that a byte-level tokenizer writes its first word as
            it does any other.
        lower: Whether all is made lower case.

    Example:
        >>> Clean(collapse=True, leading_blank=True)("It  rains.\\n\\nWe stay.")
        ' It rains. We stay.'
    """

    collapse: bool = False
    leading_blank: bool = False
    lower: bool = False

    def __call__(self, text: str) -> str:
        """Returns the text, cleaned."""
        text = " ".join(text.split()) if self.collapse else text
        text = text.lower() if self.lower else text
        return f" {text}" if self.leading_blank and not text.startswith(" ") else text

    def table(self, table: Table) -> Table:
        """Returns a table with the texts of its rows cleaned, which it says."""
        mapped = isinstance(table.rows, ArrowRows)
        rows: Sequence[Row] = _Cleaned(table.rows, self) if mapped else tuple(map(self.row, table.rows))
        looked = sampled(rows, seed=0)
        changed = sum(row != before for row, before in zip(looked, sampled(table.rows, seed=0), strict=True))
        done = {
            "white space collapsed": self.collapse,
            "lower case": self.lower,
            "a leading blank": self.leading_blank,
        }
        of = f"a sample of {len(looked):,}" if len(looked) < len(rows) else f"{len(rows):,}"
        said = f"cleaned: {', '.join(what for what, is_done in done.items() if is_done) or 'nothing'}; "
        said += f"{changed:,} of {of} rows changed, and no text that is scored or embedded"
        digest = f"{table.digest} {self}" if mapped else ""
        return replace(table, rows=rows, understood=f"{table.understood}\n{said}", digest=digest)

    def row(self, row: Row) -> Row:
        """Returns a row with its texts cleaned."""
        return {
            name: self(value) if isinstance(value, str) and value and name != "subset" else value
            for name, value in row.items()
        }


class _Cleaned(Sequence[Row]):
    """Mapped rows, cleaned when they are asked for."""

    def __init__(self, rows: Sequence[Row], clean: Clean) -> None:
        self._rows = rows
        self._clean = clean

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> _Cleaned: ...

    def __getitem__(self, index: int | slice) -> Row | _Cleaned:
        if isinstance(index, slice):
            return _Cleaned(self._rows[index], self._clean)
        return self._clean.row(self._rows[index])

    def __iter__(self) -> Iterator[Row]:
        return map(self._clean.row, self._rows)
