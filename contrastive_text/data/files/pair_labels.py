"""Labels of pairs that no objective reads: they say whether the two texts belong together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from contrastive_text.core.targets import NLI, UNLABELLED, plain_label
from contrastive_text.data.files.columns import label_columns, plain
from contrastive_text.data.files.formats import Cells, listed, reading_error, short
from contrastive_text.data.files.forms import FileForm

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
        names: Label -> the word that it stands for, as ``data.labels`` has them.

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
