"""The command that shows what the views of a configuration do to the user's own texts."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from contrastive_text.cli.configuration import configured
from contrastive_text.cli.train import quieten
from contrastive_text.core.console import console
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.specs import describe
from contrastive_text.data import Collator
from contrastive_text.data.preparation import TrainingData
from contrastive_text.data.prompts import NO_PROMPTS
from contrastive_text.data.words import words_without_blanks
from contrastive_text.evaluation.view_edits import Piece, altered_rows
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.training.run import Run

_SAMPLED = 200
"""Rows that are looked at for languages without blanks."""


def views(words: list[str]) -> None:
    """Prints some rows, role beside role, with what changed marked, and the edit rate of each view."""
    quieten()
    parser, config = configured("views", words)
    if (count := config["n"]) < 1:
        raise InvalidValueError(f"--n: expected 1 row or more, got {count}; leave it out for 3")
    run = Run(parser, config)
    module, data = run.module, run.data
    data.attach(module)
    data.setup("fit")
    screen = console()
    for name, training in data.training.tasks.items():
        if data.tasks:
            screen.rule(name)
        _show_task(screen, module, training, data.collator(name), count)


def _show_task(
    screen: Console, module: ContrastiveModule, training: TrainingData, collator: Collator, count: int
) -> None:
    facts = training.facts()
    for name in ("training data", "rows"):
        if name in facts:
            screen.print(facts[name])
    screen.print(f"pairing: {describe(training.pairing)}")
    sampled = training.strings(range(min(_SAMPLED, len(training.texts))), NO_PROMPTS)
    strings = [text for _, text in sampled if isinstance(text, str)]
    if words := words_without_blanks([collator.plan], strings, collator.tokenizer):
        screen.print(f"words: {words}", markup=False)
    altered = altered_rows(collator, module.encoder, training.rows, count)
    if altered.rates:
        table = Table("place", "view", f"changed, on {altered.measured} rows")
        for line in altered.rates:
            table.add_row(*map(Text, line))
        screen.print(table)
    else:
        screen.print("views: none")
    table = Table("", *altered.slots, show_lines=True)
    for number, texts in enumerate(altered.examples):
        table.add_row(str(number), *map(_marked, texts))
    screen.print(table)
    if collator.plan.roles:
        screen.print("[-gone-] and {+new+} mark what the text and token views changed")


def _marked(text: Sequence[Piece]) -> Text:
    """Returns a text with ``[-gone-]`` and ``{+new+}`` where it was changed, as wdiff writes it."""
    forms = {"kept": ("", "", ""), "gone": ("[-", "-]", "red"), "new": ("{+", "+}", "bold green")}
    marks = [(forms[piece.kind], piece.text) for piece in text]
    return Text(" ").join(Text(f"{left}{words}{right}", style) for (left, right, style), words in marks)
