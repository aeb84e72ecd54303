"""Errors that a user can correct, and checks of option values that raise them.

Every error that the library raises on purpose for its input is a ``ContrastiveTextError``. It is also the
matching built-in error, so ``except ValueError`` keeps working. The command line prints only the message of these
errors. Any other exception is a bug, of the library or of a user's part, and keeps its traceback.

A check, such as ``at_least``, names the option, the expected values and the value. It returns the value, so a
constructor checks and stores an option in one line. ``None`` passes every check: it means that an option isn't
set.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar, get_args

_MAX_QUOTED = 60
"""Largest number of characters of a text that an error quotes."""

_Error = TypeVar("_Error", bound=BaseException)
_Value = TypeVar("_Value")
_Number = TypeVar("_Number", int, float, int | None, float | None)


class ContrastiveTextError(Exception):
    """Base class of all errors that a user can correct.

    The message says the place, what was expected, what was found there, and what to do.

    Example:
        >>> try:
        ...     raise InvalidValueError("batch_size: expected a number above 0, got 0; give another")
        ... except ContrastiveTextError as error:
        ...     isinstance(error, ValueError), str(error).partition(":")[0]
        (True, 'batch_size')
    """


class InvalidValueError(ContrastiveTextError, ValueError):
    """Raised if a value, an option or the content of a file is invalid."""


class InvalidTextError(InvalidValueError):
    """Raised if one of several texts is invalid. ``renumbered`` changes the text's number for a larger set of
    texts.

    Args:
        what: What is wrong with the text, and what to do.
        number: Number of the text among the texts that are checked.
        text: The text itself, if it is known.

    Example:
        >>> print(InvalidTextError("expected a word, got only blanks", number=2).renumbered(7, "!"))
        text 7 ('!'): expected a word, got only blanks
    """

    def __init__(self, what: str, number: int, text: str = "") -> None:
        quote = f" ({text[:_MAX_QUOTED]!r})" if text else ""
        super().__init__(f"text {number}{quote}: {what}")
        self.what, self.number, self.text = what, number, text

    def __reduce__(self) -> tuple[type[InvalidTextError], tuple[str, int, str]]:
        return InvalidTextError, (self.what, self.number, self.text)  # other processes raise it too

    def renumbered(self, number: int, text: str = "") -> InvalidTextError:
        """Returns the same error with another number of the invalid text."""
        return InvalidTextError(self.what, number, text)


class InvalidTypeError(ContrastiveTextError, TypeError):
    """Raised if a value has the wrong type."""


class MissingFileError(ContrastiveTextError, FileNotFoundError):
    """Raised if a file or a folder doesn't exist."""


class ExistingFileError(ContrastiveTextError, FileExistsError):
    """Raised if a file or a folder exists already and would be overwritten."""


class DiskError(ContrastiveTextError, OSError):
    """Raised if a disk is full, a folder can't be written to, or a file can't be read."""

    def __str__(self) -> str:
        return str(self.args[-1])  # Python puts the error's number before the message


class MissingLibraryError(ContrastiveTextError, ImportError):
    """Raised if an optional library isn't installed; the message has the command that installs it."""


class RunError(ContrastiveTextError, RuntimeError):
    """Raised if a run can't continue, for example because its loss is NaN."""


def find_cause(error: BaseException | None, kind: type[_Error]) -> _Error | None:
    """Returns the first error of a class in a chain of causes: the error itself or a cause of it, else None.

    Example:
        >>> error = KeyError("a")
        >>> error.__cause__ = InvalidValueError("a: expected 1, got 2")
        >>> find_cause(error, ContrastiveTextError)
        InvalidValueError('a: expected 1, got 2')
    """
    match: _Error | None = next((cause for cause in iter_causes(error) if isinstance(cause, kind)), None)
    return match


def iter_causes(error: BaseException | None, with_context: bool = False) -> Iterator[BaseException]:
    """Yields an error and its chain of causes, each once: errors of a parser may be each other's cause.

    Args:
        error: The last error of the chain; None yields nothing.
        with_context: Whether the chain of an error without a cause continues with the error that was being
            handled.

    Example:
        >>> first, second = ValueError("a"), KeyError("b")
        >>> first.__cause__, second.__cause__ = second, first
        >>> list(iter_causes(first))
        [ValueError('a'), KeyError('b')]
    """
    earlier: list[BaseException] = []
    while error is not None and not any(error is cause for cause in earlier):
        earlier.append(error)
        yield error
        error = error.__cause__ or (error.__context__ if with_context else None)


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message; other libraries append tracebacks and advice.

    Example:
        >>> first_line(ValueError("no such thing\\nTry another."))
        'no such thing'
    """
    return str(error).strip().partition("\n")[0]


def one_of(
    name: str, value: _Value, choices: Any, advice: str = ""
) -> _Value:  # Any: mypy has no type for Literal
    """Checks that a value is one of some choices.

    Args:
        name: Place of the option, such as ``Spans.start``.
        value: Its value.
        choices: A ``Literal`` type, or the values themselves.
        advice: What to do; empty if the choices say it.

    Example:
        >>> one_of("Spans.start", "middle", ["grid", "uniform"])
        Traceback (most recent call last):
        contrastive_text.core.errors.InvalidValueError: Spans.start: expected grid or uniform, got 'middle'
    """
    values: Iterable[object] = get_args(choices) or choices
    if value is None or value in values:
        return value
    *first, last = map(str, values)
    expected = f"one of {', '.join(first)} or {last}" if len(first) > 1 else " or ".join([*first, last])
    raise _refusal(name, expected, repr(value), advice)


def at_least(name: str, value: _Number, least: float, advice: str = "") -> _Number:
    """Checks that a number is finite and at least ``least``.

    Args:
        name: Place of the option.
        value: Its value.
        least: Smallest value that is allowed.
        advice: What to do.

    Example:
        >>> at_least("NeighborProbe.k", 0, 1, "5 is usual")
        Traceback (most recent call last):
        contrastive_text.core.errors.InvalidValueError: NeighborProbe.k: expected 1 or more, got 0; 5 is usual
    """
    if value is None or least <= value < math.inf:
        return value
    expected = f"a finite number of {least:,} or more" if value == math.inf else f"{least:,} or more"
    raise _refusal(name, expected, f"{value:,}", advice)


def above(name: str, value: _Number, bound: float = 0, advice: str = "") -> _Number:
    """Checks that a number is finite and greater than a bound.

    Args:
        name: Place of the option.
        value: Its value.
        bound: The number that it must exceed.
        advice: What to do.

    Example:
        >>> above("LoRA.alpha", 0, advice="try 8")
        Traceback (most recent call last):
        contrastive_text.core.errors.InvalidValueError: LoRA.alpha: expected a finite number above 0, got 0; try 8
    """
    if value is None or bound < value < math.inf:
        return value
    raise _refusal(name, f"a finite number above {bound:,}", f"{value:,}", advice)


def fraction(
    name: str, value: _Number, advice: str = "", with_zero: bool = True, with_one: bool = True
) -> _Number:
    """Checks that a number is a share: between 0 and 1.

    Args:
        name: Place of the option.
        value: Its value.
        advice: What to do.
        with_zero: Whether 0 is allowed.
        with_one: Whether 1 is allowed.

    Example:
        >>> fraction("MLPHead.dropout", 1, with_one=False)
        Traceback (most recent call last):
        contrastive_text.core.errors.InvalidValueError: MLPHead.dropout: expected a share from 0 to below 1, ... 1
    """
    if value is None or (0 <= value <= 1 and (with_zero or value > 0) and (with_one or value < 1)):
        return value
    low, high = "from 0" if with_zero else "above 0", "to 1" if with_one else "to below 1"
    raise _refusal(name, f"a share {low} {high}", f"{value}", advice)


def check_ending(path: Path, *suffixes: str) -> None:
    """Checks that the name of a file ends in one of some suffixes.

    Raises:
        ValueError: The name has another suffix.

    Example:
        >>> check_ending(Path("v.txt"), ".tsv", ".jsonl")
        Traceback (most recent call last):
        contrastive_text.core.errors.InvalidValueError: v.txt: expected a name that ends in .tsv or .jsonl, got '.txt'
    """  # noqa: E501  # the error is in one line
    if path.suffix not in suffixes:
        *first, last = suffixes
        names = f"{', '.join(first)} or {last}" if first else last
        raise InvalidValueError(f"{path}: expected a name that ends in {names}, got {path.suffix!r}")


def two_numbers(expected: str, word: str) -> tuple[int, int]:
    """Parses two whole numbers with a slash between them.

    Args:
        expected: Beginning of the error: place of the option and its form.
        word: The text.

    Raises:
        ValueError: The text has another form, or a number has more than nine digits.

    Example:
        >>> two_numbers("shard: expected K/N", "3/16")
        (3, 16)
    """
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", word, flags=re.ASCII)
    if match is None:
        raise InvalidValueError(f"{expected}, got {word!r}; give two numbers")
    return int(match[1]), int(match[2])


def _refusal(name: str, expected: str, value: str, advice: str) -> InvalidValueError:
    ending = f"; {advice}" if advice else ""
    return InvalidValueError(f"{name}: expected {expected}, got {value}{ending}")
