"""The command that prints the tables and figures of a paper, with the commands that make them."""

from __future__ import annotations

from contrastive_text.cli.commands import Paper
from contrastive_text.core.terminal import say
from contrastive_text.recipes.papers import read_paper


def paper(options: Paper) -> None:
    """Prints the page of a paper.

    Raises:
        ValueError: No paper of that name.
    """
    say(read_paper(options.name).markdown())
