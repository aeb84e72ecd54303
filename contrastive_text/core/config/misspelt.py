"""Answers to misspelt names: of options, classes, arguments and folders, each with the nearest right name."""

from __future__ import annotations

import inspect
import re
import sys
from argparse import ArgumentError
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from itertools import takewhile
from pathlib import Path
from typing import NoReturn

from contrastive_text.core.errors import ContrastiveTextError, InvalidValueError, cause_of, causes
from contrastive_text.core.libraries import is_failure

_ELSEWHERE = {
    "learning_rate": "lr",
    "max_length": "model.encoder.max_length",
    "max_seq_length": "model.encoder.max_length",
    "model_name": "encoder",
    "model_name_or_path": "encoder",
    "num_epochs": "epochs",
    "num_train_epochs": "epochs",
    "output_dir": "export.dirpath",
    "per_device_train_batch_size": "batch_size",
    "seed": "seed_everything",
    "train_batch_size": "batch_size",
    "train_file": "train",
    "warmup_ratio": "model.schedule.warmup_ratio",
    "warmup_steps": "model.schedule.warmup_steps",
}
"""Name of an option in other libraries -> the option here."""
_PACKAGES = (__name__.partition(".")[0], "pytorch_lightning")
_OPTION = re.compile(
    r"unrecognized arguments: --?([\w.]+)|[Oo]ption '([\w.]+)' is not accepted|Key '([\w.]+)' is not expected"
    r"|[Nn]ested key \"([\w.]+)\"|does not accept option '([\w.]+)'"
)
_BARE = re.compile(r"Expected a dot import path string: (\w+)")
_TAKEN = "arguments that the parts of this version take"
_KEY = re.compile(r'Parser key "([\w.]+)"')
_PROBLEM = re.compile(r"Problem with given class_path '([\w.]+)':\n *(.*)")
_REQUIRED = "the following arguments are required: "
_REFUSED = re.compile(r"^\s*- (\S+: expected .*)$", flags=re.MULTILINE)
"""Answer of a part's constructor."""
_LACKS = re.compile(r"Requirement '(?P<library>[\w-]+)[^']*' not met")
_OF_LIGHTNING = re.compile(r"class_path='pytorch_lightning\.[\w.]*?(\w+)'")
_LISTED = 30
"""Names that an answer lists at most."""
_NOISE = re.compile(
    r"^\W*$|Expected a (path|<class|typing)|Does not validate|Subtypes:|Errors:|Given value|Not a valid subclass"
    r"|Subclass types expect|^\s*- a (class path|dict) "
)
"""Lines of the parser's messages that say what was tried."""


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


def parser_answer(message: str, options: Iterable[str] = ()) -> str:
    r"""Shortens a message of the parser of configurations: what it refused, with the nearest right name.

    Args:
        message: The message, which lists all types that were tried.
        options: Options of the parser, with dashes.

    Example:
        >>> parser_answer("unrecognized arguments: --model.poolr=MeanPooler", ["--model.pooler", "--folder"])
        "no option 'model.poolr'; did you mean --model.pooler?"
        >>> parser_answer("Parser key \"a\":\n  Expected a <class 'int'>. Got value: b")
        'a: expected int, got b'
    """
    place, message = _innermost(message)
    where = f"{place}: " if place else ""
    if (found := _OPTION.search(message)) is not None:
        name = next(filter(None, found.groups()))
        is_nested = "." not in name and "unrecognized" not in message  # of a part, whose options lack its place
        return _no_option(name, [] if is_nested else options)
    if (found := _BARE.search(message)) is not None:
        if message[found.end() :].startswith("("):
            return f"{where}expected a class; write class_path: {found[1]}, and its arguments under init_args"
        words = re.search(r"typing\.Literal\[(.+?)\]", message)
        known = "a class of this library, or module.Class" + (f", or one of {words[1]}" if words else "")
        return f"{where}expected {known}, got {found[1]}{_of_kind(found, message)}"
    if (refused := _REFUSED.search(message)) is not None:
        return refused[1]
    if (found := _PROBLEM.search(message)) is not None:
        if found[2].startswith(_REQUIRED):
            part = found[1].rpartition(".")[2]
            named = found[2].removeprefix(_REQUIRED)
            return f"{where}expected {named} for {part}, got none; write it under init_args"
        return f"{where}expected a class, got {found[1]}; {found[2]}{near_class(found[1])}"
    got = re.search(r"(?:Got|Given) value: (.*)", message)
    value = got[1] if got else ""
    if (
        found := re.search(r"Import path ([\w.]+)? ?does not correspond to a subclass of (\w+)", message)
    ) is not None:
        path = found[1] or value
        return f"{where}expected a subclass of {found[2]}, got {path}, which is none{_wrapper(path)}"
    if (found := re.search(r"an instantiatable class, but ?([\w.]*) is abstract", message)) is not None:
        return f"{where}expected a class that can be made, got {found[1] or value}, which is abstract"
    lines = [line.strip(" -") for line in message.splitlines()[1:] if not _NOISE.search(line)]
    kinds = re.findall(r"Expected an? (?:<class '(?:\w+\.)*(\w+)'>|typing\.Literal\[(.*)\])", message)
    others = [kind for kind in dict.fromkeys(map("".join, kinds)) if kind != "NoneType"]
    if others and not lines:
        return f"{where}expected {' or '.join(others)}, got {value}"
    return where + "; ".join(lines[:3] or [message.partition("\n")[0]])


def _innermost(message: str) -> tuple[str, str]:
    """Returns the keys of the innermost place that a message names, joined by points, and what it says of it."""
    keys: dict[int, str] = {}  # column -> key
    column = end = 0
    for found in _KEY.finditer(message):
        column, end = found.start() - message.rfind("\n", 0, found.start()), found.end()
        keys = {each: key for each, key in keys.items() if each < column} | {column: found[1]}
    lines = takewhile(lambda line: not line[:column].strip(), message[end:].split("\n")[1:])
    return ".".join(keys.values()), "\n".join([message[end:].partition("\n")[0], *lines])


def constructor_answer(error: BaseException) -> str | None:
    """Returns what a part's constructor reports, from the parser's list of all types that it tried.

    Args:
        error: The parser's error, which is raised from the constructor's. None is returned for other errors.
    """
    message = str(error)
    if not re.match("Does not validate against any|Problem with given class_path|Parser key ", message):
        return None
    if (known := cause_of(error.__cause__, ContrastiveTextError)) is not None:
        return str(known)
    if (lacks := _LACKS.search(message)) is not None:
        part = re.search(r"class_path '[\w.]*?(\w+)'", message)
        place, library = f"{part[1]}: " if part else "", lacks["library"]
        return f"{place}expected the library {library}, got none; pip install {library}"
    if (refused := _REFUSED.search(message)) is not None:
        return refused[1]
    if (part := _OF_LIGHTNING.search(message)) is not None and error.__cause__ is not None:
        *_, first = causes(error.__cause__, with_context=True)
        said = " ".join(str(first).split())[:300]
        return f"{part[1]}: expected arguments that it takes, got {type(first).__name__}: {said}"
    return None


def _no_option(name: str, options: Iterable[str]) -> str:
    """Answers an option, or an argument of a part, that isn't there."""
    if name in _ELSEWHERE:
        return f"no option {name!r}; did you mean --{_ELSEWHERE[name]}?"
    last = name.rpartition(".")[2]
    same = [option for option in options if option.endswith(f".{last}")]
    if near := same[:1] or get_close_matches(f"--{name}", list(options), n=1, cutoff=0.8):
        return f"no option {name!r}; did you mean {near[0]}?"
    owners: dict[str, list[str]] = {}
    for owner, part in _parts().items():
        if any(inspect.isfunction(vars(base).get("__init__")) for base in part.__mro__):
            for argument in inspect.signature(part).parameters:
                owners.setdefault(argument, []).append(owner)
    if near := get_close_matches(last, owners, n=1):
        said = "it is" if near[0] == last else f"did you mean {near[0]!r},"
        of = ", ".join(owners[near[0]][:3])
        return f"no option {name!r} at this place; {said} an argument of {of}; --print_config shows all"
    return f"no option {name!r} at this place; --print_config shows all"


def _of_kind(found: re.Match[str], message: str) -> str:
    """Returns the nearest name among the classes that an argument takes, or all of them if they are few."""
    parts = _parts()
    types = message[: found.start()].rpartition("Subtypes:")[2] or message
    kinds = tuple(cls for name, cls in parts.items() if re.search(rf"\.{name}\b", types))
    names = sorted(name for name, cls in parts.items() if issubclass(cls, kinds) and cls not in kinds)
    every = f"; there are {', '.join(names)}" if 0 < len(names) <= _LISTED else ""
    return nearest(found[1], names) or every


def _parts() -> dict[str, type]:
    """Returns the classes of this library and of Lightning by name, as far as they are imported."""
    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] in _PACKAGES]
    classes = [cls for module in modules for cls in vars(module).values() if inspect.isclass(cls)]
    return {
        cls.__name__: cls
        for cls in classes
        if cls.__module__.startswith(_PACKAGES) and cls.__name__[0] != "_" and not issubclass(cls, Exception)
    }


def near_class(path: str) -> str:
    """Returns ``; did you mean ...?`` with the nearest class of an imported module, or the nearest module."""
    module, _, name = path.rpartition(".")
    if module in sys.modules:
        return nearest(name, [key for key, value in vars(sys.modules[module]).items() if inspect.isclass(value)])
    files = [file.stem for file in Path().glob("*.py")]
    return "" if module in files else nearest(module, files)


def _wrapper(path: str) -> str:
    """Returns the part through which a class of another library is used, such as an optimizer of torch."""
    module, _, name = path.rpartition(".")
    given = vars(sys.modules[module]).get(name) if module in sys.modules else None
    for part, cls in _parts().items():
        if inspect.isclass(given) and issubclass(given, vars(cls).get("wraps", ())):
            return f"; give {part} for class_path, and in init_args name: {path}, its other arguments as options"
    return ""


@contextmanager
def parsing(
    where: object,
    expected: str = _TAKEN,
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
    except errors as error:
        refuse_arguments(error, where, expected)


def refuse_arguments(error: Exception, where: object, expected: str = _TAKEN) -> NoReturn:
    """Raises the answer to an error of the parser or of a part's constructor; arguments as of ``parsing``.

    Raises:
        Exception: The error itself if it is an answer already, or no fault of the arguments.
        ValueError: As ``parsing``.
    """
    if isinstance(error, ContrastiveTextError) or not is_failure(error):
        raise error
    if (known := cause_of(error, ContrastiveTextError)) is not None:
        raise known from error
    message = " ".join(parser_answer(str(error)).split())[:300]
    raise InvalidValueError(f"{where}: expected {expected}, got others: {message}") from error
