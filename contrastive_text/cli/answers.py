"""From an exception to an answer in a few lines; None is for bugs, which keep their traceback."""

from __future__ import annotations

import re

from contrastive_text.core.errors import ContrastiveTextError, cause_of, causes
from contrastive_text.core.libraries import is_out_of_memory, is_panic

_PARSER_S = re.compile(r"Does not validate against any|Problem with given class_path|Parser key ")
"""How the parser's errors begin, which are raised from those of a part's constructor."""
_IN_A_WORKER = re.compile(r"Caught (?P<error>\w+) in .*\nOriginal Traceback")
_LACKS = re.compile(r"Requirement '(?P<library>[\w-]+)[^']*' not met")
_OF_LIGHTNING = re.compile(r"class_path='pytorch_lightning\.[\w.]*?(\w+)'")
_REFUSED = re.compile(r"^\s*- (\S+: expected .*)$", flags=re.MULTILINE)


def answer(error: BaseException, command: str | None = None) -> str | None:
    """Returns what to print of an exception, if it is for the user to put right.

    Args:
        error: The exception.
        command: The command that raised it, whose options lack of memory is answered with.

    Example:
        >>> from contrastive_text.core.errors import InvalidValueError
        >>> answer(InvalidValueError("a: expected 1, got 2")), answer(KeyError("prompts"))
        ('a: expected 1, got 2', None)
    """
    if is_out_of_memory(error):
        said = next(each for each in causes(error) if not isinstance(each, ContrastiveTextError))
        return _memory_answer(said, command)
    if is_panic(error):
        return (
            f"tokenizer: expected one that takes these texts, got a panic of its library: {error}; take another "
            "tokenizer.json"
        )
    if isinstance(error, ContrastiveTextError):
        return _outside_its_worker(str(error))
    if "/gloo/transport/" in str(error):  # its own class is RuntimeError alone
        return "processes: expected all of the run to live, got one that has ended; what it said before is why"
    return constructor_answer(str(error), error.__cause__)


def constructor_answer(message: str, cause: BaseException | None = None) -> str | None:
    """Returns what a part's constructor said, from the parser's list of all types that it tried.

    Args:
        message: What the parser says.
        cause: What it was raised from.
    """
    if not _PARSER_S.match(message):
        return None
    if (known := cause_of(cause, ContrastiveTextError)) is not None:
        return str(known)
    if (lacks := _LACKS.search(message)) is not None:
        library = lacks["library"]
        return f"{_place(message)}expected the library {library}, got none; pip install {library}"
    if (refused := _REFUSED.search(message)) is not None:
        return refused[1]
    if (part := _OF_LIGHTNING.search(message)) is not None and cause is not None:
        *_, first = causes(cause, with_context=True)
        said = " ".join(str(first).split())[:300]
        return f"{part[1]}: expected arguments that it takes, got {type(first).__name__}: {said}"
    return None


def _place(message: str) -> str:
    found = re.search(r"class_path '[\w.]*?(\w+)'", message)
    return f"{found[1]}: " if found else ""


def _outside_its_worker(message: str) -> str:
    """Returns the message of an error that a worker process has passed on together with its traceback."""
    found = _IN_A_WORKER.match(message)
    return message if found is None else message.rpartition(f".{found['error']}: ")[2].strip()


_TRAINED = {"fit": "give a smaller --batch_size, or --chunk auto", "sweep": "give --chunk auto"}
_ON_BATCHES = ("embed", "search", "duplicates", "mine", "evaluate", "diagnose", "compare", "postprocess")
"""Commands with an option ``--batch_size`` of texts that are encoded at once."""


def _memory_answer(error: BaseException, command: str | None) -> str:
    """Returns what to do about lack of memory, with the options of a command."""
    said = " ".join(_outside_its_worker(str(error)).split(". ")[0].split())[:300]
    todo = _TRAINED.get(str(command))
    if todo is None:
        todo = "give a smaller --batch_size" if command in _ON_BATCHES else "make batches smaller"
    if "shared memory" in said:
        todo = "give --data.num_workers 0, or the system more shared memory"
    return f"memory: expected enough of it, got {type(error).__name__}: {said or 'no more'}; {todo}"
