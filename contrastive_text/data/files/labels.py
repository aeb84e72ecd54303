"""Labels of files: through the user's mapping and a target to numbers, and what is said of them."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Mapping, Sequence

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.specs import part_spec
from contrastive_text.core.targets import Target, number_of, plain_label
from contrastive_text.core.types import Row
from contrastive_text.data.files.formats import listed, reading_error, short


class Labels:
    """Reads the cells of a label's column, over all files of a table.

    Args:
        target: Reads a label; None for any number.
        names: Label of the files -> what the target calls it; ``-`` leaves its rows out.
        gold: Whether any number, without a target, is a gold score, which can be missing.

    Raises:
        ValueError: Names without a target, a label twice, or a name that the target doesn't know.
    """

    def __init__(self, target: Target | None, names: Mapping[str, str] | None = None, gold: bool = False) -> None:
        self._target = target
        self._gold = gold
        self._names = {plain_label(label): str(name) for label, name in (names or {}).items()}
        if len(self._names) < len(names or {}):
            raise reading_error("labels", "every label once", listed(map(str, names or {})), "1 and 1.0 are one")
        for label, name in self._names.items() if target is not None else ():
            self._number(f"labels.{label}", name)
        self._seen: dict[str, float | None] = {}

    @property
    def is_unread(self) -> bool:
        """Whether no target reads the labels."""
        return self._target is None

    @property
    def gold(self) -> bool:
        """Whether any number is a gold score, which can be missing."""
        return self._gold

    @property
    def names(self) -> Mapping[str, str]:
        """Label of the files -> what the target calls it."""
        return self._names

    @property
    def asked(self) -> object:
        """What tells these labels from others that read the same cells."""
        target = None if self._target is None else part_spec(self._target, "labels")
        return target, sorted(self._names.items())

    def read(self, where: str, column: str, cell: object) -> tuple[str, float | None]:
        """Returns a cell's label and its number, None where it says that there is no gold label.

        A gold score is none where the cell is empty or a dash.

        Raises:
            ValueError: No label of the target, or without one no number.
        """
        if self._gold and (cell is None or str(cell).strip() in ("", "-")):
            self._seen["-"] = None
            return "-", None
        if self._target is None:
            return "", _number(where, column, cell)
        if cell is not None and not isinstance(cell, str | int | float):
            got = short(json.dumps(cell, default=str))
            raise reading_error(where, f"a label in {short(column)}", got, "write it as a text or a number")
        label = "" if cell is None else plain_label(cell)
        if label not in self._seen:
            self._seen[label] = self._number(where, self._names.get(label, label))
        return label, self._seen[label]

    def _number(self, where: str, name: str) -> float | None:
        assert self._target is not None
        try:
            return self._target.read(name)
        except ValueError as error:
            raise InvalidValueError(f"{where}: {error}") from None

    def add_pair_labels(self, meaning: Mapping[str, float | None]) -> None:
        """Adds labels of pairs that have been read without a target, for ``check``."""
        self._seen.update(meaning)

    def scored(self, rows: Sequence[Row]) -> list[Row]:
        """Returns the rows of a file that have a gold score: -1 is none where no other score is below 0.

        So GLUE marks a missing one, and ``Scores`` reads it where the bounds are known.
        """
        others = [float(str(row["target"])) for row in rows if row.get("target", -1.0) != -1.0]
        if not self._gold or min(others, default=0.0) < 0:
            return list(rows)
        return [row for row in rows if row["target"] != -1.0]

    def without_gold(self, rows: Mapping[str, int]) -> int:
        """Returns how many of so many rows of each label have no gold label."""
        return sum(count for label, count in rows.items() if label in self._seen and self._seen[label] is None)

    def understood(self, rows: Mapping[str, int]) -> str:
        """Says what the labels of a file, with so many rows of each, were understood as; "" without a target."""
        numbers = {label: number for label in rows if (number := self._seen.get(label)) is not None}
        return self._target.understood(numbers, rows) if self._target is not None and numbers else ""

    def check(self, every: bool) -> list[str]:
        """Says which labels of the mapping and which classes have no row, after all files have been read.

        Raises:
            ValueError: A label of the mapping has none, and every one should.
        """
        unknown = [label for label in self._names if label not in self._seen]
        if unknown and every:
            there = sorted(self._seen)
            near = difflib.get_close_matches(unknown[0], there, n=1)
            todo = f"did you mean {near[0]}?" if near else "name one of those"
            got = listed(short(label) for label in there[:12])
            raise reading_error(f"labels.{unknown[0]}", "a label of the files", got, todo)
        seen = {number for number in self._seen.values() if number is not None}
        unseen = self._target.unseen(seen) if self._target is not None else []
        classes = [f"no row of {'class' if len(unseen) == 1 else 'the classes'} {listed(unseen)}"]
        return [*(f"no row of label {label}" for label in unknown), *(classes if unseen else [])]


def _number(where: str, column: str, cell: object) -> float:
    number = number_of(cell)
    if not math.isfinite(number):
        raise reading_error(where, f"a number in {short(column)}", short(repr(cell)), "give every row a number")
    return number
