"""Records of data files with their line numbers, settings for reading them, and the form of reading errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol, TypeAlias

from contrastive_text.core.errors import InvalidValueError, one_of

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
