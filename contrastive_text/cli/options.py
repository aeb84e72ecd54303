"""What the commands over a saved model share: their parser, and how the model is loaded."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from typing import NoReturn

from contrastive_text.cli.suggestions import nearest
from contrastive_text.sentence_encoder import SentenceEncoder


class Parser(argparse.ArgumentParser):
    """Answers a wrong option in a few lines."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False)

    def understand(self, words: Sequence[str]) -> argparse.Namespace:
        """Parses the words; an unknown option is named before a missing one."""
        known = [option for action in self._actions for option in action.option_strings]
        for word in words:
            if word.startswith("--") and (option := word.partition("=")[0]) not in known:
                self.error(f"no option {option}{nearest(option, known)}")
        return self.parse_args(words)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}\n{self.format_usage()}")


def load_model(path: str, device: str | None) -> SentenceEncoder:
    """Loads a model and prints what is to be known of it, such as a pooler that its folder doesn't name."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model = SentenceEncoder.from_pretrained(path, device=device)
    for warning in said:
        if issubclass(warning.category, UserWarning):
            print(f"note: {warning.message}")
    return model


def say_truncated(model: SentenceEncoder, texts: int) -> None:
    """Prints how many of so many texts the last call of ``encode`` has cut, if any."""
    if model.truncated:
        print(f"{model.truncated:,} of {texts:,} texts are longer than {model.max_length} tokens and were cut")
