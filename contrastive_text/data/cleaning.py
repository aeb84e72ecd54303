"""White space and case of the texts that are trained on, altered before anything else where it is asked for."""

from __future__ import annotations

from dataclasses import dataclass, replace

from contrastive_text.core.types import Row
from contrastive_text.data.files.readers import Table


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
        rows = tuple(map(self._row, table.rows))
        changed = sum(row != before for row, before in zip(rows, table.rows, strict=True))
        done = {
            "white space collapsed": self.collapse,
            "lower case": self.lower,
            "a leading blank": self.leading_blank,
        }
        said = f"cleaned: {', '.join(what for what, is_done in done.items() if is_done) or 'nothing'}; "
        said += f"{changed:,} of {len(rows):,} rows changed, and no text that is scored or embedded"
        return replace(table, rows=rows, understood=f"{table.understood}\n{said}")

    def _row(self, row: Row) -> Row:
        return {
            name: self(value) if isinstance(value, str) and name != "subset" else value
            for name, value in row.items()
        }
