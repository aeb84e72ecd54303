"""The errors that are answers: what a user can put right, told in a few lines.

Every error that the library raises on purpose for what it was given is a ``ContrastiveTextError``, and also the
built-in error that fits, so that ``except ValueError`` goes on working. The shell prints these, and nothing else,
as answers; any other exception is a bug, of the library or of a part of the user's own, and keeps its traceback.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator

_QUOTED = 60
"""Characters of a text that an error shows."""

_Error = typing.TypeVar("_Error", bound=BaseException)


class ContrastiveTextError(Exception):
    """Base class of all answers: the message says where, what was expected, what came and what to do.

    Example:
        >>> try:
        ...     raise InvalidValueError("batch_size: expected a number above 0, got 0; give another")
        ... except ContrastiveTextError as error:
        ...     isinstance(error, ValueError), str(error).partition(":")[0]
        (True, 'batch_size')
    """


class InvalidValueError(ContrastiveTextError, ValueError):
    """A value, an option, or the content of a file that can't be used."""


class InvalidTextError(InvalidValueError):
    """One of many texts that can't be used; who knows where these stand gives it another number.

    Args:
        what: What is wrong with it, and what to do.
        number: Of the text among those that are looked at.
        text: The text itself, where it is known.

    Example:
        >>> print(InvalidTextError("expected a word, got none", number=2).at(7, "!"))
        text 7 ('!'): expected a word, got none
    """

    def __init__(self, what: str, number: int, text: str = "") -> None:
        shown = f" ({text[:_QUOTED]!r})" if text else ""
        super().__init__(f"text {number}{shown}: {what}")
        self.what, self.number, self.text = what, number, text

    def __reduce__(self) -> tuple[type[InvalidTextError], tuple[str, int, str]]:
        return InvalidTextError, (self.what, self.number, self.text)  # it comes from other processes too

    def at(self, number: int, text: str = "") -> InvalidTextError:
        """Returns the same of another number."""
        return InvalidTextError(self.what, number, text)


class InvalidTypeError(ContrastiveTextError, TypeError):
    """A value of another type than is needed."""


class MissingFileError(ContrastiveTextError, FileNotFoundError):
    """A file or a folder that isn't there."""


class ExistingFileError(ContrastiveTextError, FileExistsError):
    """A file or a folder that is there already, and would be lost."""


class DiskError(ContrastiveTextError, OSError):
    """A disk that is full, a folder that can't be written to, a file that can't be read."""

    def __str__(self) -> str:
        return str(self.args[-1])  # Python puts the error's number before the message


class MissingLibraryError(ContrastiveTextError, ImportError):
    """A library that isn't installed; the message has the command that installs it."""


class RunError(ContrastiveTextError, RuntimeError):
    """A run that can't go on, such as one whose loss is no number any more."""


def cause_of(error: BaseException | None, kind: type[_Error]) -> _Error | None:
    """Returns an error of a kind: the error itself, or the nearest one that it was raised from; None without one.

    Example:
        >>> error = KeyError("a")
        >>> error.__cause__ = InvalidValueError("a: expected 1, got 2")
        >>> cause_of(error, ContrastiveTextError)
        InvalidValueError('a: expected 1, got 2')
    """
    found: _Error | None = next((each for each in causes(error) if isinstance(each, kind)), None)
    return found


def causes(error: BaseException | None, with_context: bool = False) -> Iterator[BaseException]:
    """Yields an error and those that it was raised from, each once: errors of a parser may be each other's cause.

    Args:
        error: The last one; None yields nothing.
        with_context: Whether an error without a cause goes on with the one that was being handled.

    Example:
        >>> first, second = ValueError("a"), KeyError("b")
        >>> first.__cause__, second.__cause__ = second, first
        >>> list(causes(first))
        [ValueError('a'), KeyError('b')]
    """
    seen: list[BaseException] = []
    while error is not None and not any(error is each for each in seen):
        seen.append(error)
        yield error
        error = error.__cause__ or (error.__context__ if with_context else None)


def first_line(error: BaseException) -> str:
    """Returns the first line of what an error says: other libraries go on with tracebacks and advice.

    Example:
        >>> first_line(ValueError("no such thing\\nTry another."))
        'no such thing'
    """
    return str(error).strip().partition("\n")[0]
