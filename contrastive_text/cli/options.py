"""Parser of a command's arguments and options, built from the dataclass that is the command's record.

A positional field is an argument, a keyword-only field an option. A ``bool`` is a flag. A ``Sequence`` takes
several words, a ``Mapping`` several words NAME=VALUE, a ``Literal`` one of its choices. ``Annotated`` holds the
help, the role of a path (``cli/paths.py``) and further settings of ``argparse``. jsonargparse parses the options
of runs. It has no flags, no lists of words, and no arguments between options.

Types of options that several commands share are defined here. This module does not import torch.
"""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from contrastive_text.cli.paths import ReadPath, Role, WrittenFile, WrittenFolder, check_paths
from contrastive_text.core.config.suggestions import suggest_name
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage.text_files import USUAL

_T = TypeVar("_T")
UNPARSED = object()
"""Metadata of the record's field that collects unknown words, for another parser to read."""
_NO_OPTION = "\0"
"""Prefix of words after ``--``, so that argparse does not parse them as options. No shell word begins with it."""
FILES = "File of texts: .txt, .tsv, .csv, .jsonl or .json, each also as .gz."
_BOUNDS = (
    f"Limits on data files: line={USUAL.line} (bytes of a line), depth={USUAL.depth} (levels of JSON), "
    f"ratio={USUAL.ratio} (unpacked bytes per byte of a .gz). Raise them only for files that you trust."
)
Model = Annotated[str, ReadPath(model=True), "Model folder, or a name on the hub."]
Texts = Annotated[str, ReadPath(), FILES]
Column = Annotated[str | None, "Column that holds the text. Default: found by its usual name."]
Header = Annotated[
    str | None,
    {"metavar": "NAMES"},
    "Column names of a file without a header line, such as anchor,positive,score.",
]
Separator = Annotated[
    str | None,
    {"metavar": "CHARACTER"},
    "Field separator of a .tsv or .csv, such as ';' or tab. Default: read from the header line.",
]
Columns = Annotated[
    Mapping[str, str] | None,
    {"metavar": "NAME=COLUMN"},
    "Columns of the file, as text=NAME, anchor=NAME, positive=NAME, target=NAME. Default: the usual names.",
]
Split = Annotated[
    str | None, "Rows to read of a file with a column named split: train, dev, test, another value, or all."
]
Ranked = Annotated[
    str | None,
    ReadPath(),
    {"metavar": "FILE"},
    "Further texts to rank in the suite retrieval, if --data is a file of pairs. Column: --columns text=NAME.",
]
Output = Annotated[Path | None, WrittenFile(), "File to write to. Default: the terminal."]
Cache = Annotated[
    Path | None, WrittenFolder(), "Folder that stores vectors for later commands. Default: nothing is stored."
]
Backend = Annotated[
    Literal["torch", "onnx", "openvino"],
    "Library that runs the network. onnx and openvino run on the CPU, from a graph that is exported once.",
]
Dtype = Annotated[
    Literal["float32", "bfloat16", "float16", "int8"],
    "Number type of the network. int8 needs onnx or openvino, bfloat16 needs torch or openvino.",
]
Device = Annotated[str | None, "Device, such as cpu or cuda. Default: the GPU if there is one."]


@dataclass(frozen=True, kw_only=True)
class TextsCommand:
    """Options of the commands that read files of texts and encode them."""

    bounds: Annotated[Mapping[str, int] | None, {"metavar": "NAME=N"}, _BOUNDS] = None
    batch_size: Annotated[int, "Number of texts in a batch."] = 64
    device: Device = None


@dataclass(frozen=True, kw_only=True)
class EncodingCommand(TextsCommand):
    """Options of the commands that encode a file of texts and save vectors after each block."""

    model: Model
    column: Column = None
    header: Header = None
    separator: Separator = None
    split: Split = None
    block_size: Annotated[int, "Number of texts per block; vectors are saved after each block."] = 16_384
    device: Annotated[
        Device,
        "Device, or several separated by commas: cpu, cuda, cuda:0,cuda:1. Default: the GPU if there is one.",
    ] = None
    backend: Backend = "torch"
    dtype: Dtype = "float32"
    restart: Annotated[bool, "Delete the output of a stopped command and encode all texts again."] = False


def read_options(record: type[_T], words: Sequence[str]) -> _T:
    """Parses the arguments and options of a command into its dataclass. After ``--`` no word is an option.

    Args:
        record: Dataclass with the name of the command. Its docstring is the description in the help.
        words: Words after the command.

    Raises:
        OSError: See ``check_paths``.
        SystemExit: The words ask for help, which is printed.
        ValueError: An option is unknown, missing or has a wrong value. An unknown option is reported before a
            missing one. See also ``check_paths``.
    """
    unfolded = _unfolded_fields(record)
    unknown_fields = [name for name, (*_, notes) in unfolded.items() if UNPARSED in notes]
    parser = _parser_of(record)
    if unknown_fields:
        namespace, unknown_words = parser.parse_known_args(words)
        return record(**vars(namespace), **dict.fromkeys(unknown_fields, unknown_words))
    values = {
        name: dict(value) if value and unfolded[name][1] is Mapping else _without_prefix(value)
        for name, value in vars(parser.understand(words)).items()
    }
    check_paths(paths_of(record), values)
    return record(**values)


def command_of(record: type) -> str:
    """Returns the name of a record's command: ``index build`` for ``IndexBuild``."""
    return re.sub(r"(?<!^)(?=[A-Z])", " ", record.__name__).lower()


def option_words(record: type) -> dict[str, Sequence[str]]:
    """Returns the choices of each option of a command. The key ``""`` has the choices of its arguments.

    Example:
        >>> from contrastive_text.cli.commands import New, Sweep
        >>> option_words(New)
        {'--help': (), '': ('view', 'text_view', 'embedding_view', 'pooler', 'loss', 'objective')}
        >>> option_words(Sweep)["--take"]
        ('best', 'last')
    """
    choices: dict[str, Sequence[str]] = {}
    for action in _parser_of(record)._actions:
        name = action.option_strings[-1] if action.option_strings else ""
        if name or action.choices:
            choices[name] = tuple(map(str, action.choices or ()))
    return choices


def paths_of(record: type) -> dict[str, Role]:
    """Returns the role of each option of a command whose value is a path."""
    hints = get_type_hints(record, include_extras=True)
    notes = [(name, note) for name, hint in hints.items() for note in _unfolded(hint)[2]]
    return {name: note for name, note in notes if isinstance(note, Role)}


def check_options_used(options: object, readers: Mapping[str, Sequence[str]], suites: Sequence[str]) -> None:
    """Checks that a suite of the command reads each option that the user set.

    Args:
        options: The record of the command.
        readers: Names of the suites that read an option, by the name of the option.
        suites: Names of the suites that the command runs.

    Raises:
        ValueError: No suite reads an option.
    """
    record_fields: Iterable[Field[Any]] = fields(options)  # type: ignore[arg-type]  # dataclasses have no type
    defaults = {field.name: field.default for field in record_fields}
    for name, reads in readers.items():
        value = vars(options)[name]
        if value and value != defaults[name] and not set(reads) & set(suites):
            todo = f"leave it out, or score {' or '.join(reads)}"
            raise InvalidValueError(f"--{name}: expected something that reads it, got {' '.join(suites)}; {todo}")


def _unfolded_fields(record: type) -> dict[str, tuple[object, object, list[object]]]:
    return {name: _unfolded(hint) for name, hint in get_type_hints(record, include_extras=True).items()}


def _parser_of(record: type) -> _Parser:
    command = f"contrastive-text {command_of(record)}"
    parser = _Parser(prog=command, description=record.__doc__, allow_abbrev=False)
    unfolded = _unfolded_fields(record)
    own_fields = inspect.get_annotations(record)  # listed before inherited fields
    all_fields: Iterable[Field[Any]] = fields(record)
    for field in sorted(all_fields, key=lambda field: field.name not in own_fields):
        if UNPARSED not in unfolded[field.name][2]:
            _add(parser, field, *unfolded[field.name])
    parser.shorten_usage()
    return parser


class _Parser(argparse.ArgumentParser):
    def shorten_usage(self) -> None:
        """Removes optional options from the usage line, which ends error messages. The help lists all options."""
        required = [action for action in self._actions if action.required or not action.option_strings]
        formatter = argparse.HelpFormatter(f"{self.prog} [options]")
        formatter.add_usage(None, required, [])
        self.usage = formatter.format_help().removeprefix("usage: ").rstrip().replace("%", "%%")

    def understand(self, words: Sequence[str]) -> argparse.Namespace:
        options = [option for action in self._actions for option in action.option_strings]
        end = words.index("--") if "--" in words else len(words)
        for word in words[:end]:
            if word.startswith("--") and (option := word.partition("=")[0]) not in options:
                self.error(f"no option {option}{suggest_name(option, options)}")
        # argparse ends the options at "--", but loses the words after it if there are words before it.
        arguments = [f"{_NO_OPTION}{word}" for word in words[end + 1 :]]
        return self.parse_intermixed_args([*words[:end], *(["--", *arguments] if arguments else [])])

    def error(self, message: str) -> NoReturn:
        raise InvalidValueError(f"{message}\n{self.format_usage().rstrip()}")


def _add(parser: _Parser, field: Field[Any], kind: Any, outer: object, notes: list[object]) -> None:
    """Adds the argument or option of a record's field to the parser; see ``_unfolded`` for the type hint."""
    settings: dict[str, Any] = {}
    if field.default is not MISSING:
        settings["default"] = [*field.default] if outer is Sequence else field.default  # argparse appends to it
    if outer is not None:
        settings["nargs"] = "*" if settings and not field.kw_only else "+"
    if kind is bool:
        settings["action"] = "store_true"
    else:
        settings |= {"choices": get_args(kind)} if get_origin(kind) is Literal else {"type": kind}
    for note in notes:
        settings |= {"help": note} if isinstance(note, str) else note if isinstance(note, dict) else {}
    if field.kw_only and (default := settings.get("default")) not in (None, []) and kind is not bool:
        text = " ".join(map(str, default)) if outer is Sequence else str(default)
        settings["help"] = f"{settings.get('help', '')} Default: {text}.".strip()
    if outer is Mapping:
        settings["type"] = partial(_pair, kind, settings["metavar"])
    if field.kw_only:
        settings |= {"required": "default" not in settings, "dest": field.name}
        parser.add_argument(f"--{field.name.removesuffix('_')}", **settings)  # such as as_, a word of Python
    else:
        parser.add_argument(field.name, **settings)


def _pair(kind: Callable[[str], object], form: str, word: str) -> tuple[str, object]:
    try:
        name, value = word.split("=", 1)
        return name, kind(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected {form}, got {word}") from None


def _unfolded(hint: object) -> tuple[object, object, list[object]]:
    """Returns the type of an option's value, its container (Sequence, Mapping or None), and a hint's notes."""
    outer: object = None
    notes: list[object] = []
    while (form := get_origin(hint)) not in (None, Literal):
        parts = [part for part in get_args(hint) if part is not NoneType]
        if form is Annotated:
            notes = [*parts[1:], *notes]  # outer notes override inner notes
        elif form in (Sequence, Mapping):
            outer = form
        hint = parts[-1] if form is Mapping else parts[0]
    return hint, outer, notes


def _without_prefix(value: object) -> object:
    """Removes ``_NO_OPTION`` from the texts and paths of a value."""
    if isinstance(value, list):
        return [_without_prefix(item) for item in value]
    return type(value)(str(value).removeprefix(_NO_OPTION)) if isinstance(value, str | Path) else value
