"""What to say of a part that isn't there: module, class or argument, and the nearest name."""

from __future__ import annotations

import sys
import traceback
from argparse import ArgumentError
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path

from contrastive_text.core.errors import ContrastiveTextError, InvalidValueError, cause_of
from contrastive_text.core.libraries import is_failure

_LISTED = 30
"""Names that an answer lists at most."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns ``; did you mean ...?``, or nothing if no name is near.

    Example:
        >>> nearest("ft", ["fit", "test"])
        '; did you mean fit?'
    """
    near = get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def nearest_folder(path: str | Path) -> str:
    """Returns ``; did you mean ...?`` with the folder beside it that has the nearest name, or nothing.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as place:
        ...     Path(place, "encoder").mkdir()
        ...     nearest_folder(Path(place, "encodr")).endswith("/encoder?")
        True
    """
    around = Path(path).parent
    if not around.is_dir():
        return ""
    folders = {each.name: str(each) for each in around.iterdir() if each.is_dir()}
    near = get_close_matches(Path(path).name, folders, n=1)
    return f"; did you mean {folders[near[0]]}?" if near else ""


def no_class(path: str, kinds: tuple[type, ...], known: Iterable[str], where: str) -> InvalidValueError:
    """Returns the answer to the path of a class that can't be found, after its module was looked for.

    Args:
        path: ``module.Class``, or a name alone.
        kinds: Base classes of the place.
        known: The classes that can be named without a path.
        where: The place.
    """
    said = " or ".join(kind.__name__ for kind in kinds)
    said = f"{'an' if said[0] in 'AEIOU' else 'a'} {said}"
    names = path.split(".")
    if len(names) == 1:
        every = sorted({*known} - {kind.__name__ for kind in kinds})
        near = nearest(path, every) or (f"; there are {', '.join(every)}" if len(every) <= _LISTED else "")
        return InvalidValueError(f"{where}: expected {said} of this library, or module.Class, got {path}{near}")
    ends = [end for end in range(len(names) - 1, 0, -1) if ".".join(names[:end]) in sys.modules]
    if not ends:
        files = [file.stem for place in ("", *sys.path) for file in Path(place or ".").glob("*.py")]
        return InvalidValueError(
            f"{where}: expected {said}, got {path}; there is no module {names[0]}{nearest(names[0], files)}"
        )
    module = sys.modules[".".join(names[: ends[0]])]
    classes = [name for name, value in vars(module).items() if isinstance(value, type)]
    near = nearest(names[ends[0]], [name for name in classes if _is_one(vars(module)[name], kinds)] or classes)
    return InvalidValueError(
        f"{where}: expected {said}, got {path}; there is no {names[ends[0]]} in {module.__name__}{near}"
    )


def other_kind(
    path: str, found: type, kinds: tuple[type, ...], known: Mapping[str, type], where: str
) -> InvalidValueError:
    """Returns the answer to a class that no place of this kind may hold; a part may be there that wraps it."""
    said = " or ".join(kind.__name__ for kind in kinds)
    near = nearest(path.rpartition(".")[2], known)
    for name, cls in known.items():
        if issubclass(found, vars(cls).get("wraps", ())):
            near = f"; give {name} for class_path, and in init_args name: {path}, its other arguments as options"
    return InvalidValueError(f"{where}: expected a subclass of {said}, got {path}, which is none{near}")


def no_argument(name: str, cls: type, known: Iterable[str], where: str) -> InvalidValueError:
    """Returns the answer to an argument that a class doesn't take."""
    names = list(known)
    near = get_close_matches(name, names, n=1)
    todo = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(names) or 'none'}"
    return InvalidValueError(f"{where}: expected an argument of {cls.__name__}, got {name!r}; {todo}")


def broken_module(path: str, error: ImportError | SyntaxError, where: str) -> InvalidValueError:
    """Returns the answer to a module that can't be imported, with the file and line that say so."""
    if isinstance(error, SyntaxError):
        place = f"{error.filename}:{error.lineno}"
        said = error.msg
    else:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename[0] != "<"]
        place = f"{frames[-1].filename}:{frames[-1].lineno}"
        said = str(error)
    return InvalidValueError(
        f"{where}: expected {path}, got an error when its module was imported: {place}: "
        f"{type(error).__name__}: {said}"
    )


@contextmanager
def parsing(
    where: object,
    expected: str = "arguments that the parts of this version take",
    errors: tuple[type[Exception], ...] = (ArgumentError, ValueError),
) -> Iterator[None]:
    """Makes an answer of what the parser of arguments says while parts are made, or another library of its own.

    Args:
        where: What the arguments are of, for the error.
        expected: What is wanted, for the error.
        errors: What is answered.

    Raises:
        ValueError: Arguments that a part refuses, with the part's own words where it has some.
    """
    try:
        yield
    except ContrastiveTextError:
        raise
    except errors as error:
        if not is_failure(error):
            raise
        if (known := cause_of(error, ContrastiveTextError)) is not None:
            raise known from error
        message = " ".join(str(error).split())[:300]
        raise InvalidValueError(f"{where}: expected {expected}, got others: {message}") from error


def _is_one(cls: type, kinds: tuple[type, ...]) -> bool:
    try:
        return issubclass(cls, kinds)
    except TypeError:  # a protocol with attributes
        return False
