"""Short errors for misspelt options, classes, arguments and folders, with the most similar valid name."""

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

from contrastive_text.core.errors import ContrastiveTextError, InvalidValueError, find_cause, iter_causes
from contrastive_text.core.libraries import is_read_error

_FOREIGN_OPTIONS = {
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
"""Name of an option in other libraries -> its name in this library."""
_PACKAGES = (__name__.partition(".")[0], "pytorch_lightning")
_OPTION = re.compile(
    r"unrecognized arguments: --?([\w.]+)|[Oo]ption '([\w.]+)' is not accepted|Key '([\w.]+)' is not expected"
    r"|[Nn]ested key \"([\w.]+)\"|does not accept option '([\w.]+)'"
)
_BARE = re.compile(r"Expected a dot import path string: (\w+)")
_EXPECTED_ARGUMENTS = "arguments that the parts of this version take"
_KEY = re.compile(r'Parser key "([\w.]+)"')
_PROBLEM = re.compile(r"Problem with given class_path '([\w.]+)':\n *(.*)")
_REQUIRED = "the following arguments are required: "
_CONSTRUCTOR_ERROR = re.compile(r"^\s*- (\S+: expected .*)$", flags=re.MULTILINE)
"""Error of a part's constructor, inside a message of the parser."""
_MISSING_LIBRARY = re.compile(r"Requirement '(?P<library>[\w-]+)[^']*' not met")
_LIGHTNING_CLASS = re.compile(r"class_path='pytorch_lightning\.[\w.]*?(\w+)'")
_MAX_NAMES = 30
"""Largest number of names that an error lists."""
_NOISE = re.compile(
    r"^\W*$|Expected a (path|<class|typing)|Does not validate|Subtypes:|Errors:|Given value|Not a valid subclass"
    r"|Subclass types expect|^\s*- a (class path|dict) "
)
"""Lines of the parser's messages that list the types it tried."""


def suggest_name(name: str, known: Iterable[str]) -> str:
    """Returns ``; did you mean NAME?`` with the most similar known name, or an empty text if none is similar.

    Example:
        >>> suggest_name("ft", ["fit", "test"])
        '; did you mean fit?'
    """
    matches = get_close_matches(name, list(known), n=1)
    return f"; did you mean {matches[0]}?" if matches else ""


def suggest_folder(path: str | Path) -> str:
    """Returns ``; did you mean FOLDER?`` with the most similar folder in the same place, or an empty text.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as place:
        ...     Path(place, "encoder").mkdir()
        ...     suggest_folder(Path(place, "encodr")).endswith("/encoder?")
        True
    """
    parent = Path(path).parent
    if not parent.is_dir():
        return ""
    folders = {folder.name: str(folder) for folder in parent.iterdir() if folder.is_dir()}
    matches = get_close_matches(Path(path).name, folders, n=1)
    return f"; did you mean {folders[matches[0]]}?" if matches else ""


def shorten_parser_error(message: str, options: Iterable[str] = ()) -> str:
    r"""Shortens an error of the configuration parser to the refused value and the most similar valid name.

    Args:
        message: Message of the parser, which lists all types that it tried.
        options: Options of the parser, with dashes.

    Example:
        >>> shorten_parser_error("unrecognized arguments: --model.poolr=MeanPooler", ["--model.pooler"])
        "no option 'model.poolr'; did you mean --model.pooler?"
        >>> shorten_parser_error("Parser key \"a\":\n  Expected a <class 'int'>. Got value: b")
        'a: expected int, got b'
    """
    place, message = _innermost(message)
    where = f"{place}: " if place else ""
    if (match := _OPTION.search(message)) is not None:
        name = next(filter(None, match.groups()))
        is_nested = "." not in name and "unrecognized" not in message  # an option of a part, without its prefix
        return _no_option(name, [] if is_nested else options)
    if (match := _BARE.search(message)) is not None:
        if message[match.end() :].startswith("("):
            return f"{where}expected a class; write class_path: {match[1]}, and its arguments under init_args"
        choices = re.search(r"typing\.Literal\[(.+?)\]", message)
        expected = "a class of this library, or module.Class" + (f", or one of {choices[1]}" if choices else "")
        return f"{where}expected {expected}, got {match[1]}{_suggest_subclass(match, message)}"
    if (answer := _CONSTRUCTOR_ERROR.search(message)) is not None:
        return answer[1]
    if (match := _PROBLEM.search(message)) is not None:
        if match[2].startswith(_REQUIRED):
            part = match[1].rpartition(".")[2]
            arguments = match[2].removeprefix(_REQUIRED)
            return f"{where}expected the argument {arguments} of {part}, got no value; write it under init_args"
        return f"{where}expected a class, got {match[1]}; {match[2]}{suggest_class(match[1])}"
    value_match = re.search(r"(?:Got|Given) value: (.*)", message)
    value = value_match[1] if value_match else ""
    if (
        match := re.search(r"Import path ([\w.]+)? ?does not correspond to a subclass of (\w+)", message)
    ) is not None:
        path = match[1] or value
        return (
            f"{where}expected a subclass of {match[2]}, got {path}, which is not a subclass of it{_wrapper(path)}"
        )
    if (match := re.search(r"an instantiatable class, but ?([\w.]*) is abstract", message)) is not None:
        abstract = f"{where}expected a class that can be made, got {match[1] or value}, which is abstract"
        return f"{abstract}; name a subclass under class_path, or start from a recipe"
    if (match := re.search(r"Not a valid subclass of (\w+)\. Got value: None", message)) is not None:
        return (
            f"{where}expected a class of {match[1]} under each name, got null; remove the name: the names in a "
            "file replace all names of the recipe"
        )
    lines = [line.strip(" -") for line in message.splitlines()[1:] if not _NOISE.search(line)]
    kinds = re.findall(r"Expected an? (?:<class '(?:\w+\.)*(\w+)'>|typing\.Literal\[(.*)\])", message)
    types = [kind for kind in dict.fromkeys(map("".join, kinds)) if kind != "NoneType"]
    if types and not lines:
        return f"{where}expected {' or '.join(types)}, got {value}"
    return where + "; ".join(lines[:3] or [message.partition("\n")[0]])


def _innermost(message: str) -> tuple[str, str]:
    """Returns the innermost configuration key in a parser's message, dotted, and the message about the key."""
    keys: dict[int, str] = {}  # column -> key
    column = end = 0
    for match in _KEY.finditer(message):
        column, end = match.start() - message.rfind("\n", 0, match.start()), match.end()
        keys = {outer: key for outer, key in keys.items() if outer < column} | {column: match[1]}
    lines = takewhile(lambda line: not line[:column].strip(), message[end:].split("\n")[1:])
    return ".".join(keys.values()), "\n".join([message[end:].partition("\n")[0], *lines])


def find_constructor_error(error: BaseException) -> str | None:
    """Returns the error of a part's constructor from the parser's error, which lists all types that it tried.

    Args:
        error: Error of the parser, raised from the constructor's error.

    Returns:
        None for any other error.
    """
    message = str(error)
    if not re.match("Does not validate against any|Problem with given class_path|Parser key ", message):
        return None
    if (cause := find_cause(error.__cause__, ContrastiveTextError)) is not None:
        return str(cause)
    if (requirement := _MISSING_LIBRARY.search(message)) is not None:
        names = re.search(r"class_path '[\w.]*?(\w+)'", message)
        place, library = f"{names[1]}: " if names else "", requirement["library"]
        return f"{place}expected the library {library}, got no such library; pip install {library}"
    if (answer := _CONSTRUCTOR_ERROR.search(message)) is not None:
        return answer[1]
    if (match := _LIGHTNING_CLASS.search(message)) is not None and error.__cause__ is not None:
        *_, first = iter_causes(error.__cause__, with_context=True)
        reason = " ".join(str(first).split())[:300]
        return f"{match[1]}: expected arguments that it takes, got {type(first).__name__}: {reason}"
    return None


def _no_option(name: str, options: Iterable[str]) -> str:
    """Describes an unknown option, or an unknown argument of a part, with the most similar valid name."""
    if name in _FOREIGN_OPTIONS:
        return f"no option {name!r}; did you mean --{_FOREIGN_OPTIONS[name]}?"
    last = name.rpartition(".")[2]
    matches = [option for option in options if option.endswith(f".{last}")]
    if suggestions := matches[:1] or get_close_matches(f"--{name}", list(options), n=1, cutoff=0.8):
        return f"no option {name!r}; did you mean {suggestions[0]}?"
    owners: dict[str, list[str]] = {}
    for owner, part in _parts().items():
        if any(inspect.isfunction(vars(base).get("__init__")) for base in part.__mro__):
            for argument in inspect.signature(part).parameters:
                owners.setdefault(argument, []).append(owner)
    if suggestions := get_close_matches(last, owners, n=1):
        hint = "it is" if suggestions[0] == last else f"did you mean {suggestions[0]!r},"
        classes = ", ".join(owners[suggestions[0]][:3])
        return f"no option {name!r} at this place; {hint} an argument of {classes}; --print_config shows all"
    return f"no option {name!r} at this place; --print_config shows all"


def _suggest_subclass(match: re.Match[str], message: str) -> str:
    """Suggests the most similar subclass that an argument accepts, or lists all subclasses if they are few."""
    parts = _parts()
    types = message[: match.start()].rpartition("Subtypes:")[2] or message
    kinds = tuple(cls for name, cls in parts.items() if re.search(rf"\.{name}\b", types))
    names = sorted(name for name, cls in parts.items() if issubclass(cls, kinds) and cls not in kinds)
    listing = f"; there are {', '.join(names)}" if 0 < len(names) <= _MAX_NAMES else ""
    return suggest_name(match[1], names) or listing


def _parts() -> dict[str, type]:
    """Returns name -> class of all imported classes of this library and of Lightning."""
    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] in _PACKAGES]
    classes = [cls for module in modules for cls in vars(module).values() if inspect.isclass(cls)]
    return {
        cls.__name__: cls
        for cls in classes
        if cls.__module__.startswith(_PACKAGES) and cls.__name__[0] != "_" and not issubclass(cls, Exception)
    }


def suggest_class(path: str) -> str:
    """Returns ``; did you mean NAME?`` with the most similar class of an imported module, or a similar module."""
    module, _, name = path.rpartition(".")
    if module in sys.modules:
        return suggest_name(
            name, [key for key, value in vars(sys.modules[module]).items() if inspect.isclass(value)]
        )
    files = [file.stem for file in Path().glob("*.py")]
    return "" if module in files else suggest_name(module, files)


def _wrapper(path: str) -> str:
    """Suggests the part that wraps a class of another library, such as an optimizer of torch."""
    module, _, name = path.rpartition(".")
    target = vars(sys.modules[module]).get(name) if module in sys.modules else None
    for part, cls in _parts().items():
        if inspect.isclass(target) and issubclass(target, vars(cls).get("wraps", ())):
            return f"; give {part} for class_path, and in init_args name: {path}, its other arguments as options"
    return ""


@contextmanager
def short_parser_errors(
    where: object,
    expected: str = _EXPECTED_ARGUMENTS,
    errors: tuple[type[Exception], ...] = (ArgumentError, ValueError),
) -> Iterator[None]:
    """Converts errors of the argument parser, or of another library's constructor, to an ``InvalidValueError``.

    Args:
        where: Object that the arguments are for, for the error.
        expected: Expected arguments, for the error.
        errors: Classes of errors to convert.

    Raises:
        ValueError: A part refuses its arguments. The message is the part's own, if it has one.
    """
    try:
        yield
    except errors as error:
        refuse_arguments(error, where, expected)


def refuse_arguments(error: Exception, where: object, expected: str = _EXPECTED_ARGUMENTS) -> NoReturn:
    """Raises a short ``InvalidValueError`` for an error of the parser or of a part's constructor.

    Raises:
        Exception: The error itself, if it is clear already or isn't caused by the arguments.
        ValueError: See ``short_parser_errors``.
    """
    if isinstance(error, ContrastiveTextError) or not is_read_error(error):
        raise error
    if (cause := find_cause(error, ContrastiveTextError)) is not None:
        raise cause from error
    message = " ".join(shorten_parser_error(str(error)).split())[:300]
    raise InvalidValueError(f"{where}: expected {expected}, got invalid arguments: {message}") from error
