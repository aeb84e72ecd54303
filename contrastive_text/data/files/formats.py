"""Contents of data files: records with line numbers, usual column names, settings for reading, and errors."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol, TypeAlias

from contrastive_text.core.errors import InvalidValueError, one_of
from contrastive_text.core.targets import NLI, UNLABELED, parse_number

PairRows: TypeAlias = Literal["positives", "hard", "all"]
"""Use of labeled pairs: keep pairs that belong together, use the others as hard negatives, or train on all."""

_SETTINGS = ("columns", "column", "labels", "header", "separator", "split", "pair_labels")
PYTHON: Mapping[str, str] = MappingProxyType({name: name for name in _SETTINGS})
"""Setting of a file reader -> name of the argument of ``read_rows`` that sets it, for messages."""
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
_SEPARATOR_NAMES = {"tab": "\t", "\\t": "\t"}


def options_of(*names: str, prefix: str = "--") -> Mapping[str, str]:
    """Returns setting of a file reader -> name of the command-line option that sets it, with a prefix.

    Example:
        >>> options_of("columns", "split")
        {'columns': '--columns', 'split': '--split'}
        >>> options_of("header", prefix="--data.")
        {'header': '--data.header'}
    """
    return {name: f"{prefix}{name}" for name in names}


@dataclass(frozen=True, slots=True)
class FileForm:
    r"""Settings for reading the files of a table, used if their content leaves a choice.

    Args:
        header: Names of the columns of files without a header line: a list, or one text with commas.
        separator: Character between the fields of a ``.tsv`` or ``.csv``; ``tab`` is a tab. None to recognize it.
        pair_labels: Use of pairs whose label is not read as a target. None to refuse pairs that, by their label,
            don't belong together.
        needs_label: Whether a file without such labels is refused if ``pair_labels`` selects rows by them.
        options: Setting -> name of the caller's option, for messages. Settings without an option are absent.

    Raises:
        ValueError: A separator of several characters, an empty or repeated name, or an unknown value of
            ``pair_labels``.

    Example:
        >>> FileForm(header="anchor,positive,score", separator="tab").names
        ['anchor', 'positive', 'score']
    """

    header: str | Sequence[str] | None = None
    separator: str | None = None
    pair_labels: PairRows | None = None
    needs_label: bool = True
    options: Mapping[str, str] = field(default_factory=lambda: PYTHON)

    def __post_init__(self) -> None:
        options = self.options
        if self.separator is not None and len(self.character or "") != 1:
            raise InvalidValueError(
                f"{options.get('separator', 'separator')}: expected one character, or tab, got "
                f"{self.separator!r}; give ';', ',' or tab"
            )
        names = self.names or []
        if self.header is not None and (not all(names) or len({*names}) < len(names) or not names):
            raise InvalidValueError(
                f"{options.get('header', 'header')}: expected a different name for each column, got "
                f"{self.header!r}; give such as anchor,positive,score"
            )
        one_of(
            options.get("pair_labels", "pair_labels"),
            self.pair_labels,
            PairRows,
            "positives keeps the pairs that belong together",
        )

    @property
    def names(self) -> list[str] | None:
        """Column names in ``header``; None if the first line has them."""
        if self.header is None:
            return None
        names = self.header.split(",") if isinstance(self.header, str) else self.header
        return [str(name).strip() for name in names]

    @property
    def character(self) -> str | None:
        """Character between the fields of a data file; None to recognize it."""
        return None if self.separator is None else _SEPARATOR_NAMES.get(self.separator, self.separator)

    def advice(self, choices: Iterable[tuple[str, str]], otherwise: str) -> str:
        """Returns advice to set one of the caller's options, from (setting, value), or else other advice.

        Example:
            >>> FileForm(options=options_of("split")).advice([("columns", "text=t"), ("split", "dev")], "rename")
            'give --split dev'
            >>> FileForm(options={}).advice([("split", "dev")], "write each split to a file of its own")
            'write each split to a file of its own'
        """
        options = [f"{self.options[name]} {value}" for name, value in choices if name in self.options]
        return f"give {' or '.join(options)}" if options else otherwise


class Cells(Protocol):
    """Cells of a record, by the index of a name in the header."""

    def __getitem__(self, index: int, /) -> object: ...


Record: TypeAlias = tuple[int, Cells]
"""Line number and cells of a record."""


class Content(NamedTuple):
    """Content of a data file: header and records.

    Args:
        header: A name for each cell of a record.
        records: Function that returns a new iterator of the records. None is a blank line, or for an
            empty file of a folder.
        unread: Number of other files in a folder.
        record_count: Number of records, if known without reading them.
        identity: Identity of the content, if it isn't determined by the bytes of a file.
        notes: Facts that were recognized in addition to the suffix, for the line about the file.
        with_names: For a table whose first line is a row, a function from column names to its content. None if
            every record has its own names.
        is_row: Whether the header looks like a row.
    """

    header: list[str]
    records: Callable[[], Iterable[Record | None]]
    unread: int = 0
    record_count: int | None = None
    identity: str = ""
    notes: tuple[str, ...] = ()
    with_names: Callable[[Sequence[str]], Content] | None = None
    is_row: bool = False


def join_names(names: Iterable[str]) -> str:
    """Joins names for a message."""
    return ", ".join(names)


def count_noun(number: int, noun: str) -> str:
    """Returns a number with its noun, ``1 row`` or ``2 rows``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def short(text: str) -> str:
    """Shortens a name for a message: in a file without a header, whole texts are names."""
    return (text if len(text) <= 40 else f"{text[:37]}...") or '""'


def reading_error(where: str, expected: str, got: str, todo: str) -> ValueError:
    """Returns an error with its place, the expected and the actual value, and advice."""
    return InvalidValueError(f"{where}: expected {expected}, got {got}; {todo}")


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
