"""Columns of data files: their usual names, missing headers, splits and labels."""

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
from contrastive_text.core.targets import NLI, UNLABELED, Target, normalize_label, parse_number
from contrastive_text.core.types import Row
from contrastive_text.data.files.formats import (
    SEPARATORS,
    Cells,
    Content,
    FileForm,
    join_names,
    reading_error,
    short,
)

ALIASES: Mapping[str, tuple[str, ...]] = {
    name: tuple(aliases.split())
    for name, aliases in {
        "text": "text texts sentence sentences content document body",
        "anchor": "anchor sentence1 sentence_a sent0 text1 text_a query query_text question question1 premise",
        "positive": "positive positives pos sentence2 sentence_b sent1 text2 text_b question2 hypothesis "
        "answer passage positive_passages positive_ctxs",
        "negative": "negative negatives neg hard_neg hard_negative negative_passages hard_negative_ctxs",
        "scores": "scores pos_scores neg_scores positive_scores negative_scores",
        "target": "target score scores label labels gold_label similarity is_duplicate",
        "subset": "subset genre",
    }.items()
}
"""Column of this library -> its usual names in data files.

Case, spaces, ``_`` and ``-`` are ignored, and the name of a negative may end in a number.
"""

_MAX_DIGITS = 18
"""Largest number of digits after a negative's name: Python refuses to convert thousands of digits."""
_MAX_COLUMNS = 20
"""Largest number of columns that an error lists."""

PAIR = ("anchor", "positive", "negative")


def negative_names(count: int) -> list[str]:
    """Returns the library's column names of a number of negatives.

    Example:
        >>> negative_names(3)
        ['negative', 'negative_2', 'negative_3']
    """
    return ["negative", *(f"negative_{number}" for number in range(2, count + 1))][:count]


def normalize_name(name: str) -> str:
    """Normalizes a column name: removes case, spaces, ``_`` and ``-``."""
    return re.sub(r"[\s_-]", "", name.lower())


_LIBRARY_NAMES = {normalize_name(alias): name for name, aliases in ALIASES.items() for alias in aliases}


def _unnumbered(name: str) -> str:
    """Returns the normalized column name of a negative without its number."""
    return normalize_name(name).rstrip("0123456789")


def library_name(column: str) -> str | None:
    """Returns the library column for a usual column name of a file; None for any other name.

    Example:
        >>> library_name("Query"), library_name("neg_2"), library_name("frage")
        ('anchor', 'negative', None)
    """
    name = _LIBRARY_NAMES.get(normalize_name(column))
    return "negative" if _LIBRARY_NAMES.get(_unnumbered(column)) == "negative" else name


def _advice(
    names: Sequence[str], chosen: Mapping[str, Sequence[str]], given: Mapping[str, Sequence[str]], form: FileForm
) -> str:
    """Returns advice for choosing columns, by the options that the caller has.

    Args:
        names: Library columns whose columns are missing or unclear.
        chosen: Library column -> columns of the file that are suggested for it. Default: the word NAME.
        given: The user's setting, which the advice repeats, because a new setting replaces it.
        form: Settings with the names of the caller's options.
    """
    columns = {**given, **{name: chosen.get(name, ["NAME"]) for name in names}}
    single = [("column", columns["text"][0])] if "text" in names else []
    several = ("columns", " ".join(f"{name}={column}" for name in columns for column in columns[name]))
    return form.advice([several, *single], f"rename the column to {join_names(names)}")


def _missing_advice(
    header: Sequence[str], missing: Sequence[str], todo: str, is_row: bool, form: FileForm
) -> str:
    """Extends the advice on missing columns by the causes that the first line suggests, such as no header."""
    if is_row and len(header) > 1:
        roles = ",".join([*PAIR[:2], *(f"field{number}" for number in range(3, len(header) + 1))])
        header_text = roles if "anchor" in missing or "positive" in missing else "text,..."
        advice = "write the names of the columns into the first line"
        return f"the first line is a row: {form.advice([('header', header_text)], advice)}"
    if len(header) == 1:
        todo += "; if the first line is a text, call the file .txt"
        if separator := next((character for character in SEPARATORS if character in header[0]), None):
            separator_name = "tab" if separator == "\t" else f"'{separator}'"
            separator_advice = form.advice([("separator", separator_name)], "separate them by tabs in a .tsv")
            todo += f"; if its fields are separated by {SEPARATORS[separator]}, {separator_advice}"
    return todo


def plan_columns(
    where: str,
    header: list[str],
    reads: Sequence[str],
    columns: Mapping[str, list[str]],
    form: FileForm,
    is_row: bool = False,
) -> dict[str, list[str]]:
    """Returns library column -> columns of a file that hold it, for each column that is read.

    Args:
        where: The file, for messages.
        header: Names of its columns.
        reads: Library columns to read.
        columns: Library column -> columns of the file, as given by the user.
        form: Settings with the names of the caller's options.
        is_row: Whether the first line looks like a row.

    Raises:
        ValueError: A column is missing, or two columns could be meant.
    """
    header_names = join_names(map(short, header[:_MAX_COLUMNS]))
    header_names += f" and {len(header) - _MAX_COLUMNS:,} more" if len(header) > _MAX_COLUMNS else ""
    user_columns = {column: name for name, file_columns in columns.items() for column in file_columns}
    absent = {column: name for column, name in user_columns.items() if column not in header}
    matches = {column: difflib.get_close_matches(column, header, n=1, cutoff=0.4) for column in absent}
    sources = {
        name: columns.get(name)
        or [column for column in header if column not in user_columns and library_name(column) == name]
        for name in ALIASES
    }
    if "negative" not in columns:
        sources["negative"].sort(key=lambda column: int(re.sub(r"\D", "", column)[:_MAX_DIGITS] or 1))
    if "scores" in reads and "scores" not in columns:
        sources["scores"] = _score_columns(sources, reads)
        sources["target"] = [column for column in sources["target"] if column not in sources["scores"]]
    extra = ("negative", "subset") if "anchor" in reads else ()
    read_names = [name for name in ALIASES if name in reads or name in extra]
    rivals_by_name: dict[str, list[str]] = {}
    for name in read_names:
        # negative_1 and negative_2 are two texts under one alias; neg and hard_neg are two aliases.
        rivals = list({_unnumbered(c) if name == "negative" else c: c for c in sources[name]}.values())
        if name == "scores" and [normalize_name(c)[:3] for c in rivals] == ["pos", "neg"]:
            continue
        if len(rivals) > 1 and name not in columns:
            rivals_by_name[name] = rivals
    if "text" in reads and not sources["text"]:
        if "target" in reads and (pair := [name for name in ("anchor", "positive") if sources[name]]):
            pair_columns = " ".join(f"text={column}" for name in pair for column in sources[name])
            choices = [("pairs", "for pairs"), ("pairing", "Given for pairs"), ("columns", pair_columns)]
            todo = form.advice(choices, "name one column text")
            raise reading_error(where, "a column for text in addition to the target", header_names, todo)
        sources["text"] = [column for column in header if any(column in sources[name] for name in PAIR)]
    missing = [name for name in read_names if name in reads and not sources[name]]
    if not (absent or rivals_by_name or missing):
        return {name: sources[name] for name in read_names if sources[name]}
    if not absent and not missing and len(rivals_by_name) == 1:
        ((name, rivals),) = rivals_by_name.items()
        todo = _advice([name], {name: rivals[:1]}, columns, form)
        raise reading_error(where, f"one column for {name}", " and ".join(rivals[:2]), todo)
    expected = [
        *(f"the column {column} for columns.{name}" for column, name in absent.items()),
        *(f"one column for {name} instead of {' and '.join(rivals)}" for name, rivals in rivals_by_name.items()),
        *(f"a column for {name} ({join_names(ALIASES[name])})" for name in missing),
    ]
    corrected = {
        name: [found for column in names for found in matches.get(column, [column]) or ["NAME"]]
        for name, names in columns.items()
    }
    chosen = corrected | {name: rivals[:1] for name, rivals in rivals_by_name.items()}
    todo = _advice(list(dict.fromkeys([*absent.values(), *rivals_by_name, *missing])), chosen, corrected, form)
    if missing and not absent and not rivals_by_name:
        todo = _missing_advice(header, missing, todo, is_row, form)
    if absent:
        guesses = [column for found in matches.values() for column in found]
        todo = f"did you mean {' and '.join(guesses)}? If so, {todo}" if guesses else f"name one of those: {todo}"
    raise reading_error(where, ", and ".join(expected), header_names, todo)


def _score_columns(sources: Mapping[str, list[str]], reads: Sequence[str]) -> list[str]:
    """Returns columns of teacher scores: of positives and of negatives, or one column with a list for each row.

    The list may have any usual name of a target, as in sentence-transformers' files, if no target is read.
    """
    named = [column for column in sources["target"] if normalize_name(column) == "scores"]
    named += sorted(sources["scores"], key=normalize_name, reverse=True)  # positives first
    return named or (list(sources["target"]) if "target" not in reads else [])


_SPLITS = ({"train", "training"}, {"dev", "development", "val", "valid", "validation"}, {"test"})
"""Usual names of the splits of a data set, with synonyms in one set."""


def choose_split(
    where: str, held: Mapping[str, int], split: str | None, form: FileForm
) -> tuple[list[str] | None, list[str]]:
    """Chooses the rows of a split by the values of a column.

    Args:
        where: The file, for messages.
        held: Value of the column -> number of its rows.
        split: ``train``, ``dev``, ``test`` or another value of the column; ``all`` for all rows.
        form: Settings with the names of the caller's options.

    Returns:
        Values of the column whose rows are read, or None for all rows; and notes for the run's summary.

    Raises:
        ValueError: There are several splits, and ``split`` is None or none of them.
    """
    if len(held) < 2 or not set().union(*_SPLITS) & {name.lower() for name in held}:
        return None, []
    labels = {name: f"{name} ({number:,})" for name, number in held.items()}
    if split == "all":
        return None, [f"split: all of {join_names(labels.values())}"]
    lowered = (split or "").lower()
    synonyms = next((names for names in _SPLITS if lowered in names), {lowered})
    chosen = [name for name in held if name.lower() in synonyms]
    if not chosen:
        expected = f"rows of the split {split}" if split else "rows of one split"
        todo = form.advice([("split", next(iter(held)))], "write each split to a file of its own")
        raise reading_error(where, expected, join_names(labels.values()), todo)
    skipped = join_names(labels[name] for name in held if name not in chosen)
    return chosen, [f"split: {join_names(labels[name] for name in chosen)}; {skipped} left out"]


_SAMPLED_ROWS = 1000
"""Number of rows from which the type of a column is recognized."""


def named_content(content: Content, reads: Sequence[str], columns: Mapping[str, Sequence[str]]) -> Content:
    """Names the columns of a table whose first line is a row, if their types are clear.

    Clear are one column of texts; or two columns of texts, optionally followed by hard negatives, and by a label
    or score as the last column. Any other table is returned unchanged.

    Args:
        content: Content of a file.
        reads: Library columns to read.
        columns: Library column -> columns of the file, as given by the user. Then the first line is a header.
    """
    if content.with_names is None or not content.is_row or columns:
        return content
    sample = [
        record[1] for record in islice(content.with_names(content.header).records(), _SAMPLED_ROWS) if record
    ]
    is_label = [all(_is_label(cells[i]) for cells in sample) for i in range(len(content.header))]
    target_names = ["target"] if len(is_label) > 1 and is_label[-1] else []
    texts = len(is_label) - len(target_names)
    names: list[str] = []
    if any(is_label[:texts]) or ("target" in reads and not target_names):
        pass
    elif "text" not in reads:
        names = ["anchor", "positive", *negative_names(texts - 2), *target_names] if texts >= 2 else []
    elif texts == 1 and bool(target_names) == ("target" in reads):
        names = ["text", *target_names]
    return content.with_names(names) if names else content


def _is_label(cell: object) -> bool:
    word = str(cell).strip()
    return not math.isnan(parse_number(word)) or word in UNLABELED or word in NLI


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
