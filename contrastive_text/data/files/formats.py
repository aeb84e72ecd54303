"""Records of data files with their line numbers, settings for reading them, and the words of reading errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol, TypeAlias

from contrastive_text.core.checks import one_of
from contrastive_text.core.errors import InvalidValueError

PairRows: TypeAlias = Literal["positives", "hard", "all"]
"""Treatment of labeled pairs: keep those that belong together, take the others as hard negatives, or train on
all of them as if they belonged together."""

_NAMES = ("columns", "column", "labels", "header", "separator", "split", "pair_labels")
PYTHON: Mapping[str, str] = MappingProxyType({name: name for name in _NAMES})
"""Setting -> its spelling, for callers of ``read_rows``."""
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
_WRITTEN = {"tab": "\t", "\\t": "\t"}


def options_of(*names: str, prefix: str = "--") -> Mapping[str, str]:
    """Returns the spelling of each setting that a command has, all with one prefix.

    Example:
        >>> options_of("columns", "split")
        {'columns': '--columns', 'split': '--split'}
        >>> options_of("header", prefix="--data.")
        {'header': '--data.header'}
    """
    return {name: f"{prefix}{name}" for name in names}


@dataclass(frozen=True, slots=True)
class FileForm:
    r"""Settings that say how the files of a table are read, where their content leaves that open.

    Args:
        header: Names of the columns of a file whose first line is a row: a list, or one text with commas.
        separator: Character between the fields of a ``.tsv`` or ``.csv``; ``tab`` is a tab. None to recognize it.
        pair_labels: What to do with pairs whose label is not read as a target; None to refuse pairs that do not
            belong together by their label.
        needs_label: Whether a file without such a label is refused where ``pair_labels`` chooses rows by it.
        options: Setting -> how the caller spells it, for messages; a setting that it lacks is left out.

    Raises:
        ValueError: A separator of several characters, an empty or repeated name, or another word for
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
        spelled = self.options
        if self.separator is not None and len(self.character or "") != 1:
            raise InvalidValueError(
                f"{spelled.get('separator', 'separator')}: expected one character, or tab, got "
                f"{self.separator!r}; give ';', ',' or tab"
            )
        names = self.names or []
        if self.header is not None and (not all(names) or len({*names}) < len(names) or not names):
            raise InvalidValueError(
                f"{spelled.get('header', 'header')}: expected a different name for each column, got "
                f"{self.header!r}; give such as anchor,positive,score"
            )
        one_of(
            spelled.get("pair_labels", "pair_labels"),
            self.pair_labels,
            PairRows,
            "positives keeps the pairs that belong together",
        )

    @property
    def names(self) -> list[str] | None:
        """The names of ``header``; None where the first line has them."""
        if self.header is None:
            return None
        names = self.header.split(",") if isinstance(self.header, str) else self.header
        return [str(name).strip() for name in names]

    @property
    def character(self) -> str | None:
        """The character between fields; None where it is to be recognized."""
        return None if self.separator is None else _WRITTEN.get(self.separator, self.separator)

    def advice(self, choices: Iterable[tuple[str, str]], otherwise: str) -> str:
        """Returns what to do: the caller's options out of (setting, value), or else something that needs none.

        Example:
            >>> FileForm(options=options_of("split")).advice([("columns", "text=t"), ("split", "dev")], "rename")
            'give --split dev'
            >>> FileForm(options={}).advice([("split", "dev")], "write each split to a file of its own")
            'write each split to a file of its own'
        """
        given = [f"{self.options[name]} {value}" for name, value in choices if name in self.options]
        return f"give {' or '.join(given)}" if given else otherwise


class Cells(Protocol):
    """A cell for each name of a header, by the name's place."""

    def __getitem__(self, place: int, /) -> object: ...


Record: TypeAlias = tuple[int, Cells]
"""The line, and its cells."""


class Content(NamedTuple):
    """Header and records of a file.

    Args:
        header: A name for each cell of a record.
        records: Begins anew with each call; None is a blank line, or an empty file of a folder.
        unread: Other files of a folder.
        known: Number of records, where it is known without reading them.
        identity: What tells them from others, where no file's bytes do.
        notes: What was recognized beyond what the suffix says, for the line about the file.
        bare: Gives the content of a table whose first line is a row, under these names; None where every record
            has its own names.
        is_row: Whether the header is rather a row.
    """

    header: list[str]
    records: Callable[[], Iterable[Record | None]]
    unread: int = 0
    known: int | None = None
    identity: str = ""
    notes: tuple[str, ...] = ()
    bare: Callable[[Sequence[str]], Content] | None = None
    is_row: bool = False


def listed(names: Iterable[str]) -> str:
    """Returns names as they stand in a message."""
    return ", ".join(names)


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun, ``1 row`` or ``2 rows``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def short(text: str) -> str:
    """Returns a name that fits into a message: a file without a header has whole texts as names."""
    return (text if len(text) <= 40 else f"{text[:37]}...") or '""'


def reading_error(where: str, expected: str, got: str, todo: str) -> ValueError:
    """Returns the error that says where, what was expected, what came and what to do."""
    return InvalidValueError(f"{where}: expected {expected}, got {got}; {todo}")
