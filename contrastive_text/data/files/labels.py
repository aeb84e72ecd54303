"""Labels of data files: numbers for a target, and labels that say whether the texts of a pair belong together."""

from __future__ import annotations

import difflib
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from contrastive_text.core.config.specs import part_spec
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.targets import NLI, UNLABELLED, Target, number_of, plain_label
from contrastive_text.core.types import Row
from contrastive_text.data.files.columns import label_columns, plain
from contrastive_text.data.files.formats import Cells, FileForm, listed, reading_error, short


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


_WORDS: Mapping[str, float | None] = MappingProxyType(
    {
        "1": 1.0,
        "0": 0.0,
        "true": 1.0,
        "false": 0.0,
        "duplicate": 1.0,
        "not_duplicate": 0.0,
        "equivalent": 1.0,
        "not_equivalent": 0.0,
        "entailment": 1.0,
        "neutral": None,
        "contradiction": 0.0,
        "not_entailment": 0.0,
    }
)
"""Label -> 1 for texts that belong together, 0 for texts that don't, None for neither."""
_NLI_COLUMNS = ("label", "labels", "goldlabel", "target")
"""Columns in which 0, 1 and 2 are the classes of natural language inference; in others they may be scores."""


class PairLabels(NamedTuple):
    """Labels of a column, which say which pairs belong together.

    Args:
        place: Of the column.
        column: Its name.
        meaning: Label -> 1.0, 0.0, or None for neither.
        rows: Label -> its rows.
    """

    place: int
    column: str
    meaning: Mapping[str, float | None]
    rows: Mapping[str, int]

    def read(self, cells: Cells) -> float | None:
        """Returns 1.0 for a pair that belongs together, 0.0 for one that doesn't, None for neither."""
        return self.meaning[label_of(cells[self.place])]

    @property
    def said(self) -> str:
        """The labels with their rows."""
        return listed(f"{short(label) if label else 'none'} ({rows:,})" for label, rows in self.rows.items())

    def understood(self, pair_labels: str) -> str:
        """Returns what becomes of the rows, for the line about the file."""
        groups = Counter[str]()
        for label, rows in self.rows.items():
            value = self.meaning[label]
            is_hard = value == 0.0 and pair_labels == "hard"
            groups["positives" if value == 1.0 else "hard negatives" if is_hard else "left out"] += rows
        parts = listed(f"{rows:,} {group}" for group, rows in groups.items())
        return f"{short(self.column)}: {self.said} -> {parts}"


def label_of(cell: object) -> str:
    """Returns the label of a cell without blanks; an empty one for no label."""
    label = "" if cell is None or not isinstance(cell, str | int | float) else plain_label(cell)
    return "" if label in UNLABELLED else label


def meaning_of(column: str, labels: Iterable[str], names: Mapping[str, str]) -> Mapping[str, float | None] | None:
    """Returns the meaning of each label of a column; None where they aren't labels of pairs.

    Args:
        column: Name of the column.
        labels: As ``label_of`` gives them.
        names: Label -> the word that it stands for, as ``data.task.labels`` has them.

    Example:
        >>> meaning_of("label", ["0", "1"], {}), meaning_of("score", ["0", "1", "4.5"], {})
        ({'0': 0.0, '1': 1.0}, None)
        >>> meaning_of("label", ["0", "1", "2"], {})
        {'0': 1.0, '1': None, '2': 0.0}
    """
    words = {label: label_of(names.get(label, label)).casefold() for label in labels}
    known = {word for word in words.values() if word}
    if known == {"0", "1", "2"} or known == {"0", "2"} or known == {"1", "2"} or known == {"2"}:
        if plain(column) not in _NLI_COLUMNS:
            return None
        words = {label: NLI[int(word)] if word else "" for label, word in words.items()}
    elif not known or not known <= {*_WORDS}:
        return None
    return {label: _WORDS.get(word) for label, word in words.items()}


def find_pair_labels(
    header: Sequence[str],
    used: Iterable[str],
    columns: Mapping[str, Sequence[str]],
    names: Mapping[str, str],
    records: Iterable[Cells],
) -> PairLabels | None:
    """Returns the labels of the first column that says which pairs belong together; None if no column does.

    Args:
        header: Names of the columns.
        used: Columns that are read.
        columns: Library column -> columns of the file, as the user gives them.
        names: As for ``meaning_of``.
        records: The rows that are read, in one loop.
    """
    places = [header.index(column) for column in label_columns(header, used, columns)]
    if not places:
        return None
    rows = [Counter[str]() for _ in places]
    for cells in records:
        for counts, place in zip(rows, places, strict=True):
            counts[label_of(cells[place])] += 1
    for counts, place in zip(rows, places, strict=True):
        meaning = meaning_of(header[place], counts, names)
        if meaning is not None:
            ordered = dict(sorted(counts.items(), key=lambda item: item[0], reverse=True))
            return PairLabels(place, header[place], meaning, ordered)
    return None


def check_pair_labels(where: str, found: PairLabels | None, form: FileForm) -> None:
    """Checks that no pair is taken for one that belongs together although its label says otherwise.

    Raises:
        ValueError: Labels that nothing reads, or a choice of rows by labels that there are none of.
    """
    if form.pair_labels in ("positives", "hard") and found is None and form.needs_label:
        option = form.options.get("pair_labels", "pair_labels")
        todo = f"leave {option} out, or {form.advice([('columns', 'target=NAME')], 'rename the column to label')}"
        expected = f"a column of labels 0 and 1, or of NLI's classes, for {option} {form.pair_labels}"
        raise reading_error(where, expected, "no such column", todo)
    if found is None or form.pair_labels is not None or all(value == 1.0 for value in found.meaning.values()):
        return
    if option := form.options.get("pair_labels", ""):
        todo = (
            f"train on the pairs that belong together alone ({option} positives), take the others as hard "
            f"negatives ({option} hard), or take all pairs for positives ({option} all)"
        )
    else:
        todo = "write the pairs that belong together to a file of their own"
    expected = f"pairs that all belong together, or an objective that reads {short(found.column)}"
    raise reading_error(where, expected, found.said, todo)
