"""Columns of data files: usual names, missing headers, splits, and labels."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.targets import NLI, UNLABELED, Target, number_of, plain_label
from contrastive_text.core.types import Row
from contrastive_text.data.files.formats import SEPARATORS, Cells, Content, FileForm, listed, reading_error, short

ALIASES: Mapping[str, tuple[str, ...]] = {
    name: tuple(aliases.split())
    for name, aliases in {
        "text": "text texts sentence sentences content document body",
        "anchor": "anchor sentence1 sentence_a sent0 text1 text_a query query_text question question1 premise",
        "positive": "positive positives pos sentence2 sentence_b sent1 text2 text_b question2 hypothesis "
        "answer passage positive_passages positive_ctxs",
        "negative": "negative negatives neg hard_neg hard_negative negative_passages hard_negative_ctxs",
        "target": "target score scores label labels gold_label similarity is_duplicate",
        "subset": "subset genre",
    }.items()
}
"""Library column -> its names in files.

Case, spaces, ``_`` and ``-`` do not count, and the name of a negative may end in a number.
"""

_DIGITS = 18
"""Of the number after a negative's name: Python makes no number of a text of thousands."""
_SHOWN = 20
"""Columns that an error lists; a file may have any number."""

PAIR = ("anchor", "positive", "negative")


def negative_names(count: int) -> list[str]:
    """Returns the library's names of so many negatives.

    Example:
        >>> negative_names(3)
        ['negative', 'negative_2', 'negative_3']
    """
    return ["negative", *(f"negative_{number}" for number in range(2, count + 1))][:count]


def plain(name: str) -> str:
    """Returns a column's name without case, spaces, ``_`` and ``-``."""
    return re.sub(r"[\s_-]", "", name.lower())


_LIBRARY_NAMES = {plain(alias): name for name, aliases in ALIASES.items() for alias in aliases}


def _unnumbered(name: str) -> str:
    """Returns the alias of a negative without its number."""
    return plain(name).rstrip("0123456789")


def library_name(column: str) -> str | None:
    """Returns the library column that a column of a file stands for by its name; None for another name.

    Example:
        >>> library_name("Query"), library_name("neg_2"), library_name("frage")
        ('anchor', 'negative', None)
    """
    usual = _LIBRARY_NAMES.get(plain(column))
    return "negative" if _LIBRARY_NAMES.get(_unnumbered(column)) == "negative" else usual


def _advice(names: Sequence[str], column: str, form: FileForm) -> str:
    """Returns how to say which column is meant, by the options that the caller has."""
    alone = [("column", column)] if "text" in names else []
    several = ("columns", " ".join(f"{name}={column}" for name in names))
    return form.advice([several, *alone], f"rename the column to {listed(names)}")


def _lacking_advice(header: Sequence[str], lacking: Sequence[str], is_row: bool, form: FileForm) -> str:
    if is_row and len(header) > 1:
        roles = ",".join([*PAIR[:2], *(f"field{number}" for number in range(3, len(header) + 1))])
        named = roles if "anchor" in lacking or "positive" in lacking else "text,..."
        otherwise = "write the names of the columns into the first line"
        return f"the first line is a row: {form.advice([('header', named)], otherwise)}"
    todo = _advice(lacking, "NAME", form)
    if len(header) == 1:
        todo += "; if the first line is a text, call the file .txt"
        if other := next((each for each in SEPARATORS if each in header[0]), None):
            written = "tab" if other == "\t" else f"'{other}'"
            separated = form.advice([("separator", written)], "separate them by tabs in a .tsv")
            todo += f"; if its fields are separated by {SEPARATORS[other]}, {separated}"
    return todo


def plan_columns(
    where: str,
    header: list[str],
    reads: Sequence[str],
    columns: Mapping[str, list[str]],
    form: FileForm,
    is_row: bool = False,
) -> dict[str, list[str]]:
    """Returns for each library column that is read the columns of the file that hold it.

    Args:
        where: The file, for messages.
        header: Names of its columns.
        reads: Library columns.
        columns: Library column -> columns of the file, as the user gives them.
        form: Spells the caller's options.
        is_row: Whether the first line looks like a row.

    Raises:
        ValueError: A column is not there, or two could be meant.
    """
    there = listed(map(short, header[:_SHOWN]))
    there += f" and {len(header) - _SHOWN:,} more" if len(header) > _SHOWN else ""
    named = {column: name for name, sources in columns.items() for column in sources}
    for column, name in named.items():
        if column not in header:
            near = difflib.get_close_matches(column, header, n=1, cutoff=0.4)
            todo = f"did you mean {near[0]}?" if near else "name one of those"
            raise reading_error(where, f"the column {column} for columns.{name}", there, todo)
    found = {
        name: columns.get(name)
        or [column for column in header if column not in named and library_name(column) == name]
        for name in ALIASES
    }
    if "negative" not in columns:
        found["negative"].sort(key=lambda column: int(re.sub(r"\D", "", column)[:_DIGITS] or 1))
    taken = [name for name in ALIASES if name in reads or ("anchor" in reads and name in ("negative", "subset"))]
    for name in taken:
        # negative_1 and negative_2 are two texts under one alias; neg and hard_neg are two aliases.
        rivals = list({_unnumbered(c) if name == "negative" else c: c for c in found[name]}.values())
        if len(rivals) > 1 and name not in columns:
            todo = _advice([name], rivals[0], form)
            raise reading_error(where, f"one column for {name}", f"{rivals[0]} and {rivals[1]}", todo)
    if "text" in reads and not found["text"]:
        if "target" in reads and (pair := [name for name in ("anchor", "positive") if found[name]]):
            both = " ".join(f"text={column}" for name in pair for column in found[name])
            todo = (
                f"set `pairing: Given` for pairs, or {form.advice([('columns', both)], 'name one column text')}"
            )
            raise reading_error(where, "a column for text beside the target", there, todo)
        found["text"] = [column for column in header if any(column in found[name] for name in PAIR)]
    if lacking := [name for name in taken if name in reads and not found[name]]:
        todo = _lacking_advice(header, lacking, is_row, form)
        usual = " and ".join(f"a column for {name} ({listed(ALIASES[name])})" for name in lacking)
        raise reading_error(where, usual, there, todo)
    return {name: found[name] for name in taken if found[name]}


_SPLITS = ({"train", "training"}, {"dev", "development", "val", "valid", "validation"}, {"test"})
"""The usual names of the parts of a data set; those of one part mean the same."""


def choose_split(
    where: str, held: Mapping[str, int], split: str | None, form: FileForm
) -> tuple[list[str] | None, list[str]]:
    """Returns the values of the column whose rows are read, None for all rows, and what to say of it.

    Args:
        where: The file, for messages.
        held: Rows of each value of the column.
        split: ``train``, ``dev``, ``test`` or another value of the column; ``all`` for all rows.
        form: Spells the caller's options.

    Raises:
        ValueError: Several splits, and none or another one chosen.
    """
    if len(held) < 2 or not set().union(*_SPLITS) & {name.lower() for name in held}:
        return None, []
    told = {name: f"{name} ({number:,})" for name, number in held.items()}
    if split == "all":
        return None, [f"split: all of {listed(told.values())}"]
    wanted = (split or "").lower()
    same = next((names for names in _SPLITS if wanted in names), {wanted})
    read = [name for name in held if name.lower() in same]
    if not read:
        expected = f"rows of the split {split}" if split else "rows of one split"
        todo = form.advice([("split", next(iter(held)))], "write each split to a file of its own")
        raise reading_error(where, expected, listed(told.values()), todo)
    rest = listed(told[name] for name in held if name not in read)
    return read, [f"split: {listed(told[name] for name in read)}; {rest} left out"]


_LOOKED_AT = 1000
"""Rows whose cells say what a column holds."""


def named_content(content: Content, reads: Sequence[str], columns: Mapping[str, Sequence[str]]) -> Content:
    """Returns a table whose first line is a row under names, or unchanged where these aren't clear.

    Clear are one column of texts; and two columns of texts, hard negatives after them, and a label or score last.

    Args:
        content: Of a file.
        reads: Library columns.
        columns: Library column -> columns of the file, as the user gives them: then the first line has names.
    """
    if content.bare is None or not content.is_row or columns:
        return content
    sample = [record[1] for record in islice(content.bare(content.header).records(), _LOOKED_AT) if record]
    is_label = [all(_is_label(cells[place]) for cells in sample) for place in range(len(content.header))]
    ends = ["target"] if len(is_label) > 1 and is_label[-1] else []
    texts = len(is_label) - len(ends)
    names: list[str] = []
    if any(is_label[:texts]) or ("target" in reads and not ends):
        pass
    elif "text" not in reads:
        names = ["anchor", "positive", *negative_names(texts - 2), *ends] if texts >= 2 else []
    elif texts == 1 and bool(ends) == ("target" in reads):
        names = ["text", *ends]
    return content.bare(names) if names else content


def _is_label(cell: object) -> bool:
    word = str(cell).strip()
    return not math.isnan(number_of(word)) or word in UNLABELED or word in NLI


class Labels:
    """Reads the cells of a label's column, over all files of a table.

    Args:
        target: Reads a label; None for any number.
        names: Label of the files -> what the target calls it; ``-`` leaves its rows out.
        gold: Whether any number, without a target, is a gold score, which can be missing.

    Attributes:
        seen: Label -> its number, None where it says that there is no gold label.

    Raises:
        ValueError: A label twice, or a name that the target doesn't know.
    """

    def __init__(self, target: Target | None, names: Mapping[str, str] | None = None, gold: bool = False) -> None:
        self.target = target
        self.gold = gold
        self.names = {plain_label(label): str(name) for label, name in (names or {}).items()}
        if len(self.names) < len(names or {}):
            raise reading_error("labels", "every label once", listed(map(str, names or {})), "1 and 1.0 are one")
        for label, name in self.names.items() if target is not None else ():
            self._number(f"labels.{label}", name)
        self.seen: dict[str, float | None] = {}

    def read(self, where: str, column: str, cell: object) -> tuple[str, float | None]:
        """Returns a cell's label and its number, None where it says that there is no gold label.

        A gold score is none where the cell is empty or a dash.

        Raises:
            ValueError: No label of the target, or without one no number.
        """
        if self.gold and (cell is None or str(cell).strip() in ("", "-")):
            self.seen["-"] = None
            return "-", None
        if self.target is None:
            number = number_of(cell)
            if math.isfinite(number):
                return "", number
            todo = "give every row a number"
            raise reading_error(where, f"a number in {short(column)}", short(repr(cell)), todo)
        if cell is not None and not isinstance(cell, str | int | float):
            got = short(json.dumps(cell, default=str))
            raise reading_error(where, f"a label in {short(column)}", got, "write it as a text or a number")
        label = "" if cell is None else plain_label(cell)
        if label not in self.seen:
            self.seen[label] = self._number(where, self.names.get(label, label))
        return label, self.seen[label]

    def _number(self, where: str, name: str) -> float | None:
        assert self.target is not None
        try:
            return self.target.read(name)
        except ValueError as error:
            raise InvalidValueError(f"{where}: {error}") from None

    def scored(self, rows: Sequence[Row]) -> list[Row]:
        """Returns the rows of a file that have a gold score: -1 is none where no other score is below 0.

        So GLUE marks a missing one, and ``Scores`` reads it where the bounds are known.
        """
        others = [float(str(row["target"])) for row in rows if row.get("target", -1.0) != -1.0]
        keeps = min(others, default=0.0) < 0
        return [row for row in rows if keeps or row["target"] != -1.0]

    def understood(self, rows: Mapping[str, int]) -> str:
        """Says what the labels of a file, with so many rows of each, were understood as; "" without a target."""
        numbers = {label: number for label in rows if (number := self.seen.get(label)) is not None}
        return self.target.understood(numbers, rows) if self.target is not None and numbers else ""

    def check(self, every: bool) -> list[str]:
        """Says which labels of the mapping and which classes have no row, after all files have been read.

        Raises:
            ValueError: A label of the mapping has none, and every one should.
        """
        unknown = [label for label in self.names if label not in self.seen]
        if unknown and every:
            there = sorted(self.seen)
            near = difflib.get_close_matches(unknown[0], there, n=1)
            todo = f"did you mean {near[0]}?" if near else "name one of those"
            got = listed(short(label) for label in there[:12])
            raise reading_error(f"labels.{unknown[0]}", "a label of the files", got, todo)
        seen = {number for number in self.seen.values() if number is not None}
        unseen = self.target.unseen(seen) if self.target is not None else []
        classes = [f"no row of {'class' if len(unseen) == 1 else 'the classes'} {listed(unseen)}"]
        return [*(f"no row of label {label}" for label in unknown), *(classes if unseen else [])]


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
    return "" if label in UNLABELED else label


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
    if "2" in known and known <= {"0", "1", "2"}:
        if plain(column) not in _NLI_COLUMNS:
            return None
        words = {label: NLI[int(word)] if word else "" for label, word in words.items()}
    elif not known or not known <= {*_WORDS}:
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
    """Returns the labels by which pairs are chosen, of the first column that has some; None if all are taken.

    Args:
        where: The file, for messages.
        header: Names of the columns.
        used: Columns that are read.
        columns: Library column -> columns of the file, as the user gives them.
        names: As for ``meaning_of``.
        records: The rows that are read, in one loop.
        form: What to do with pairs whose label isn't read.

    Raises:
        ValueError: Labels of pairs that do not belong together and that nothing reads, or a choice of rows by
            labels that there are none of.
    """
    given = columns.get("target") or [column for column in header if library_name(column) == "target"]
    places = [header.index(column) for column in given if column in header and column not in used]
    rows = {place: Counter[str]() for place in places}
    for cells in records if places else ():
        for place, counts in rows.items():
            counts[label_of(cells[place])] += 1
    found = None
    for place, counts in rows.items():
        if (meaning := meaning_of(header[place], counts, names)) is not None:
            found = PairLabels(place, header[place], meaning, dict(sorted(counts.items(), reverse=True)))
            break
    option = form.options.get("pair_labels", "")
    if found is None:
        if form.pair_labels in ("positives", "hard") and form.needs_label:
            option = option or "pair_labels"
            rename = form.advice([("columns", "target=NAME")], "rename the column to label")
            expected = f"a column of labels 0 and 1, or of NLI's classes, for {option} {form.pair_labels}"
            raise reading_error(where, expected, "no such column", f"leave {option} out, or {rename}")
    elif form.pair_labels is None and any(value != 1.0 for value in found.meaning.values()):
        todo = (
            f"train on the pairs that belong together alone ({option} positives), take the others as hard "
            f"negatives ({option} hard), or take all pairs for positives ({option} all)"
            if option
            else "write the pairs that belong together to a file of their own"
        )
        expected = f"pairs that all belong together, or an objective that reads {short(found.column)}"
        raise reading_error(where, expected, found.said, todo)
    return None if form.pair_labels is None else found
