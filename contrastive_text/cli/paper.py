"""Command ``paper``: prints the tables and figures of a paper, with the commands that reproduce them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from contrastive_text.core.terminal import print_message


@dataclass(frozen=True)
class Paper:
    """Print every table and figure of a paper, with the commands that reproduce it."""

    name: Annotated[str, "Paper to print: simcse, declutr, clear, consert or cs224n."]


def paper(options: Paper) -> None:
    """Prints the page of a paper.

    Raises:
        ValueError: The name is of no paper.
    """
    from contrastive_text.recipes.papers import read_paper

    print_message(read_paper(options.name).markdown())
