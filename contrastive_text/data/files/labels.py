"""Labels and teacher scores of the rows of data files, which are read and described over all rows."""

from __future__ import annotations

import difflib
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage.text_files import is_blank
from contrastive_text.core.targets import NLI, UNLABELED, Target, normalize_label, parse_number
from contrastive_text.core.types import Example, Row
from contrastive_text.data.files.formats import (
    Cells,
    FileForm,
    count_noun,
    join_names,
    library_name,
    normalize_name,
    reading_error,
    short,
)


class Labels:
    """Reads the cells of a label column, over all files of a table.

    Args:
        target: Target that parses labels; None for any number.
        names: Label in the files -> label of the target, or ``-`` to skip its rows.
        gold: Whether numbers are gold scores, which may be missing, if there is no target.

    Attributes:
        seen: Label -> its number, or None for a label that means that there is no gold label.

    Raises:
        ValueError: A label twice, or a name that the target doesn't have.
    """

    def __init__(self, target: Target | None, names: Mapping[str, str] | None = None, gold: bool = False) -> None:
        self.target = target
        self.gold = gold
        self.names = {normalize_label(label): str(name) for label, name in (names or {}).items()}
        if len(self.names) < len(names or {}):
            raise reading_error(
                "labels", "every label once", join_names(map(str, names or {})), "1 and 1.0 are one"
            )
        for label, name in self.names.items() if target is not None else ():
            self._parse(f"labels.{label}", name)
        self.seen: dict[str, float | None] = {}

    def read(self, where: str, column: str, cell: object) -> tuple[str, float | None]:
        """Returns the label of a cell and its number, or None if the cell says that there is no gold label.

        A gold score is missing if the cell is empty or a dash.

        Raises:
            ValueError: The cell isn't a label of the target or, without a target, not a number.
        """
        if self.gold and (cell is None or str(cell).strip() in ("", "-")):
            self.seen["-"] = None
            return "-", None
        if self.target is None:
            number = parse_number(cell)
            if math.isfinite(number):
                return "", number
            todo = "give every row a number"
            raise reading_error(where, f"a number in {short(column)}", short(repr(cell)), todo)
        if cell is not None and not isinstance(cell, str | int | float):
            cell_text = short(json.dumps(cell, default=str))
            raise reading_error(where, f"a label in {short(column)}", cell_text, "write it as a text or a number")
        label = "" if cell is None else normalize_label(cell)
        if label not in self.seen:
            self.seen[label] = self._parse(where, self.names.get(label, label))
        return label, self.seen[label]

    def _parse(self, where: str, name: str) -> float | None:
        assert self.target is not None
        try:
            return self.target.parse(name)
        except ValueError as error:
            raise InvalidValueError(f"{where}: {error}") from None

    def drop_unscored(self, rows: Sequence[Row]) -> list[Row]:
        """Returns the rows of a file that have a gold score. -1 is missing unless other scores are negative.

        GLUE marks missing scores by -1. ``Scores`` treats -1 in the same way, because it knows its bounds.
        """
        scores = [float(str(row["target"])) for row in rows if row.get("target", -1.0) != -1.0]
        has_negatives = min(scores, default=0.0) < 0
        return [row for row in rows if has_negatives or row["target"] != -1.0]

    def describe(self, rows: Mapping[str, int]) -> str:
        """Describes how the labels of a file were read, given label -> number of rows; empty without a target."""
        numbers = {label: number for label in rows if (number := self.seen.get(label)) is not None}
        return self.target.describe_labels(numbers, rows) if self.target is not None and numbers else ""

    def check(self, every: bool) -> list[str]:
        """Lists labels of the mapping and classes that have no row. It is called after all files have been read.

        Raises:
            ValueError: A label of the mapping has no row, and ``every`` requires one.
        """
        unknown = [label for label in self.names if label not in self.seen]
        if unknown and every:
            labels = sorted(self.seen)
            matches = difflib.get_close_matches(unknown[0], labels, n=1)
            todo = f"did you mean {matches[0]}?" if matches else "name one of those"
            label_list = join_names(short(label) for label in labels[:12])
            raise reading_error(f"labels.{unknown[0]}", "a label of the files", label_list, todo)
        numbers = {number for number in self.seen.values() if number is not None}
        missing = self.target.missing_classes(numbers) if self.target is not None else []
        classes = [f"no row of {'class' if len(missing) == 1 else 'the classes'} {join_names(missing)}"]
        return [*(f"no row of label {label}" for label in unknown), *(classes if missing else [])]


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
"""Label -> 1 for texts that belong together, 0 for texts that don't, None for neutral."""
_NLI_COLUMNS = ("label", "labels", "goldlabel", "target")
"""Columns in which 0, 1 and 2 are classes of natural language inference; in other columns they may be scores."""


class PairLabels(NamedTuple):
    """Labels of a column that say which pairs belong together.

    Args:
        place: Index of the column.
        column: Name of the column.
        meaning: Label -> 1.0 (belong together), 0.0 (don't), or None for neither.
        rows: Label -> number of its rows.
    """

    place: int
    column: str
    meaning: Mapping[str, float | None]
    rows: Mapping[str, int]

    @property
    def counts_text(self) -> str:
        """Formats labels with their numbers of rows as text."""
        return join_names(f"{short(label) if label else 'none'} ({rows:,})" for label, rows in self.rows.items())

    def describe(self, pair_labels: str) -> str:
        """Describes the use of the rows by their labels, for the line about the file."""
        groups = Counter[str]()
        for label, rows in self.rows.items():
            value = self.meaning[label]
            is_hard = value == 0.0 and pair_labels == "hard"
            groups["positives" if value == 1.0 else "hard negatives" if is_hard else "left out"] += rows
        parts = join_names(f"{rows:,} {group}" for group, rows in groups.items())
        return f"{short(self.column)}: {self.counts_text} -> {parts}"


def label_of(cell: object) -> str:
    """Normalizes the label of a cell; empty for a cell without a label."""
    label = "" if cell is None or not isinstance(cell, str | int | float) else normalize_label(cell)
    return "" if label in UNLABELED else label


def meaning_of(column: str, labels: Iterable[str], names: Mapping[str, str]) -> Mapping[str, float | None] | None:
    """Returns label -> meaning for a column of pair labels; None if its labels aren't pair labels.

    Args:
        column: Name of the column.
        labels: Labels from ``label_of``.
        names: Label -> the word that it means, as in ``data.task.labels``.

    Example:
        >>> meaning_of("label", ["0", "1"], {}), meaning_of("score", ["0", "1", "4.5"], {})
        ({'0': 0.0, '1': 1.0}, None)
        >>> meaning_of("label", ["0", "1", "2"], {})
        {'0': 1.0, '1': None, '2': 0.0}
    """
    words = {label: label_of(names.get(label, label)).casefold() for label in labels}
    used_words = {word for word in words.values() if word}
    if "2" in used_words and used_words <= {"0", "1", "2"}:
        if normalize_name(column) not in _NLI_COLUMNS:
            return None
        words = {label: NLI[int(word)] if word else "" for label, word in words.items()}
    elif not used_words or not used_words <= {*_WORDS}:
        return None
    return {label: _WORDS.get(word) for label, word in words.items()}


def choose_pairs(
    where: str,
    header: Sequence[str],
    used: Iterable[str],
    columns: Mapping[str, Sequence[str]],
    names: Mapping[str, str],
    records: Iterable[Cells],
    form: FileForm,
) -> PairLabels | None:
    """Finds the column of pair labels by which rows are selected; None if all rows are used.

    Args:
        where: The file, for messages.
        header: Names of the columns.
        used: Columns that are read.
        columns: Library column -> columns of the file, as given by the user.
        names: As for ``meaning_of``.
        records: Rows that are read, which are iterated once.
        form: Settings, with the use of pairs whose label isn't read.

    Raises:
        ValueError: Pairs that don't belong together by labels that nothing reads, or a selection by labels in a
            file without labels.
    """
    label_columns = columns.get("target") or [column for column in header if library_name(column) == "target"]
    indices = [header.index(column) for column in label_columns if column in header and column not in used]
    rows = {index: Counter[str]() for index in indices}
    for cells in records if indices else ():
        for index, counts in rows.items():
            counts[label_of(cells[index])] += 1
    pair_labels = None
    for index, counts in rows.items():
        if (meaning := meaning_of(header[index], counts, names)) is not None:
            pair_labels = PairLabels(index, header[index], meaning, dict(sorted(counts.items(), reverse=True)))
            break
    option = form.options.get("pair_labels", "")
    if pair_labels is None:
        if form.pair_labels in ("positives", "hard") and form.needs_label:
            option = option or "pair_labels"
            rename = form.advice([("columns", "target=NAME")], "rename the column to label")
            expected = f"a column of labels 0 and 1, or of NLI's classes, for {option} {form.pair_labels}"
            raise reading_error(where, expected, "no such column", f"leave {option} out, or {rename}")
    elif form.pair_labels is None and any(value != 1.0 for value in pair_labels.meaning.values()):
        todo = (
            f"train on the pairs that belong together alone ({option} positives), take the others as hard "
            f"negatives ({option} hard), or take all pairs for positives ({option} all)"
            if option
            else "write the pairs that belong together to a file of their own"
        )
        expected = f"pairs that all belong together, or an objective that reads {short(pair_labels.column)}"
        raise reading_error(where, expected, pair_labels.counts_text, todo)
    return None if form.pair_labels is None else pair_labels


class TeacherScores:
    """Reads the teacher scores of a file, row by row, and describes them.

    Args:
        columns: Columns of the scores. One column has a list for each row: the scores of the positives, then of
            the hard negatives. Two columns have these separately. Of more columns, each has the next scores.
        header: Names of all columns of the file.

    Raises:
        ValueError: A cell that isn't a list of finite numbers, or another number of scores than texts.

    Example:
        >>> scores = TeacherScores(["pos_scores", "neg_scores"], ["query", "pos_scores", "neg_scores"])
        >>> scores.read("a.jsonl:1", ["a cat?", [9.5, 8.0], [1.5]], positives=2, negatives=["a car"])
        [(9.5, 1.5), (8.0, 1.5)]
        >>> scores.describe()
        '1.5 to 9.5'
    """

    def __init__(self, columns: Sequence[str], header: Sequence[str]) -> None:
        self._names = join_names(map(short, columns))
        self._places = [header.index(column) for column in columns]
        self._lowest, self._highest = math.inf, -math.inf
        self._rows = self._equal_rows = 0

    def read(self, where: str, cells: Cells, positives: int, negatives: Sequence[str]) -> list[tuple[float, ...]]:
        """Returns the scores of each positive of a row, followed by the scores of the row's hard negatives.

        Args:
            where: The file and line, for messages.
            cells: Cells of the row.
            positives: Number of positives.
            negatives: Hard negatives. A blank text is not a hard negative. Its score is null or missing.
        """
        lists = [_items(cells[place]) for place in self._places]
        if len(lists) != 2:
            together = [item for items in lists for item in items]
            lists = [together[:positives], together[positives:]]
        is_text = [not is_blank(text) for text in negatives]
        if len(lists[1]) == len(is_text):  # a blank text may have null as its score
            pairs = zip(lists[1], is_text, strict=True)
            lists[1] = [item for item, is_present in pairs if is_present or item is not None]
        counts, expected = [len(items) for items in lists], [positives, sum(is_text)]
        if counts != expected:
            nouns = zip(expected, ("positive", "hard negative"), strict=True)
            got = f"{counts[0]} and {counts[1]}" if len(self._places) == 2 else f"{sum(counts)}"
            raise reading_error(
                where,
                f"a score in {self._names} for each text ({' and '.join(count_noun(*noun) for noun in nouns)})",
                f"{got}",
                "write the positive's score first; write a margin m of one hard negative as [m, 0]",
            )
        numbers = [[parse_number(item) for item in items] for items in lists]
        for items, values in zip(lists, numbers, strict=True):
            for item, value in zip(items, values, strict=True):
                if not math.isfinite(value):
                    item_text = short(json.dumps(item, default=str))
                    todo = "score the text again, or remove the row"
                    raise reading_error(where, f"finite numbers in {self._names}", item_text, todo)
        scores = [(value, *numbers[1]) for value in numbers[0]]
        self._lowest = min(self._lowest, *map(min, scores))
        self._highest = max(self._highest, *map(max, scores))
        compared = [row for row in scores if len(row) > 1]
        self._rows += len(compared)
        self._equal_rows += sum(max(row) == min(row) for row in compared)
        return scores

    def check(self, where: str) -> None:
        """Checks that some row has different scores, after all rows were read.

        Args:
            where: The file, for the message.

        Raises:
            ValueError: In every row all scores are equal, so that no objective can learn an order.
        """
        if self._rows and self._rows == self._equal_rows:
            got = f"the same score for all texts of a row, {self.describe()}"
            todo = "write the scores of a teacher that orders the texts"
            raise reading_error(where, f"different scores for the texts of a row in {self._names}", got, todo)

    def describe(self) -> str:
        """Describes the range of the scores, and the number of rows whose scores are equal."""
        equal = f", equal in {count_noun(self._equal_rows, 'row')}" if self._equal_rows else ""
        return f"{self._lowest:g} to {self._highest:g}{equal}"


def collate_scores(examples: Sequence[Example], pairing: str) -> Tensor | None:
    """Returns the teacher scores of examples by slot, (N, positive and negative slots); None without scores.

    Without positives, the first score is the anchor's: a query and its positive in one sequence.

    Args:
        examples: Examples with equal numbers of texts.
        pairing: Name of their pairing, for the error.

    Raises:
        ValueError: An example has another number of scores than positives and hard negatives.
    """
    if all(example.scores is None for example in examples):
        return None
    texts = max(len(examples[0].positives), 1) + len(examples[0].negatives)
    counts = [len(example.scores or ()) for example in examples]
    if other := [count for count in counts if count != texts]:
        raise InvalidValueError(
            f"pairing {pairing}: expected {texts} scores, one for each positive and hard negative of an example, "
            f"got {other[0]}; give the positives' scores first, then the scores of the hard negatives"
        )
    scores = torch.tensor([example.scores for example in examples], dtype=torch.float64)
    return scores.repeat_interleave(examples[0].views_per_text, dim=1)


def _items(cell: object) -> list[object]:
    """Returns the items of a list, which may be written as JSON in a text; a single value is a list of one."""
    if isinstance(cell, str) and cell.lstrip().startswith("["):
        try:
            cell = json.loads(cell)
        except (ValueError, RecursionError):
            return [cell]
    if isinstance(cell, list | tuple):
        return list(cell)
    return [] if cell is None or (isinstance(cell, str) and is_blank(cell)) else [cell]
