"""What the commands over a saved model share: their parser, their checks, and how the model is loaded."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import torch

from contrastive_text.cli.paths import check_paths
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.misspelt import nearest
from contrastive_text.core.terminal import say
from contrastive_text.inference.sentence_encoder import SentenceEncoder


class Parser(argparse.ArgumentParser):
    """Answers a wrong option in a few lines. Behind ``--`` nothing is an option."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False)

    def understand(self, words: Sequence[str]) -> argparse.Namespace:
        """Parses the words; an unknown option is named before a missing one, and what is read is kept apart.

        Raises:
            OSError: As ``check_paths``.
            ValueError: As ``check_paths``.
        """
        known = [option for action in self._actions for option in action.option_strings]
        end = words.index("--") if "--" in words else len(words)
        before, behind = words[:end], words[end + 1 :]
        for word in before:
            if word.startswith("--") and (option := word.partition("=")[0]) not in known:
                self.error(f"no option {option}{nearest(option, known)}")
        # argparse takes "--" for the end of options, but then loses the words behind it if there are some before.
        hidden = ["--", *(f"{_NO_OPTION}{word}" for word in behind)] if behind else []
        found = self.parse_intermixed_args([*before, *hidden])
        options = argparse.Namespace(**{name: _uncovered(value) for name, value in vars(found).items()})
        check_paths(self.prog.split()[-1], vars(options))
        return options

    def error(self, message: str) -> NoReturn:
        say(f"error: {message}\n{self.format_usage()}", file=sys.stderr, end="")
        raise SystemExit(2)

    def check_read(
        self, options: argparse.Namespace, readers: Mapping[str, Sequence[str]], asked: Sequence[str]
    ) -> None:
        """Refuses an option that nothing of what is asked for would read; in ``readers`` is what reads it."""
        for name, reads in readers.items():
            if vars(options)[name] and not set(reads) & set(asked):
                todo = f"leave it out, or score {' or '.join(reads)}"
                self.error(f"--{name}: expected something that reads it, got {' '.join(asked)}; {todo}")


_NO_OPTION = "\0"
"""What no word of a shell begins with: before a word that isn't to be taken for an option."""


def _uncovered(value: object) -> object:
    if isinstance(value, list):
        return [_uncovered(each) for each in value]
    return type(value)(str(value).removeprefix(_NO_OPTION)) if isinstance(value, str | Path) else value


def check_device(name: str | None) -> None:
    """Refuses a device that this machine doesn't have, before a model is loaded; None is left to the model.

    Raises:
        ValueError: Such a name.
    """
    try:
        torch.empty(0, device="cpu" if name is None else name)
    except (AssertionError, RuntimeError) as error:  # a build of torch without CUDA asserts it
        raise InvalidValueError(
            f"--device: expected a device of this machine, such as cpu, got {name!r}"
        ) from error


@contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Prints what users are warned of as notes, each once, also before an error."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            yield
        finally:
            notes = [str(each.message) for each in said if issubclass(each.category, UserWarning)]
            for note in dict.fromkeys(notes):
                say(f"note: {note}")


def load_model(path: str, device: str | None) -> SentenceEncoder:
    """Loads a model and prints what is to be known of it, such as a pooler that its folder doesn't name."""
    check_device(device)
    with warnings_as_notes():
        return SentenceEncoder.from_pretrained(path, device=device)


def say_truncated(model: SentenceEncoder, texts: int) -> None:
    """Prints how many of so many texts the last call of ``encode`` has cut, if any."""
    if model.truncated:
        say(f"{model.truncated:,} of {texts:,} texts are longer than {model.max_length} tokens and were cut")
