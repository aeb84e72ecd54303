"""The command that shows what the views of a configuration do to the user's own texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from contrastive_text.cli.configuration import configured
from contrastive_text.cli.train import quieten
from contrastive_text.core.batch import Batch, Encoded
from contrastive_text.core.config.specs import describe
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.terminal import console
from contrastive_text.data import Collator
from contrastive_text.data.preparation import TrainingData
from contrastive_text.data.prompts import NO_PROMPTS
from contrastive_text.data.training_set import words_without_blanks
from contrastive_text.evaluation.view_edits import Ordered, Piece, altered_rows, guide_order
from contrastive_text.objectives import Contrastive, FalseNegatives, Matryoshka
from contrastive_text.training.guides import guide_vectors
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.training.run import Run

_SAMPLED = 200
"""Rows that are looked at for languages without blanks."""
_NEAREST = 6
"""Candidates of a row that a guide's order shows."""


def views(words: list[str]) -> None:
    """Prints some rows, role beside role, with what changed marked, and the edit rate of each view."""
    quieten()
    parser, config = configured("views", words)
    if (count := config["n"]) < 1:
        raise InvalidValueError(f"--n: expected 1 row or more, got {count}; leave it out for 3")
    _take_single_rows(config["data"])
    run = Run(parser, config)
    module, data = run.module, run.data
    data.attach(module)
    data.setup("fit")
    screen = console()
    for name, training in data.training.tasks.items():
        if data.tasks:
            screen.rule(name)
        show_task(screen, module, training, data.collator(name), count)


def _take_single_rows(data: dict[str, Any]) -> None:  # Any: what YAML can hold
    """Sets steps of one row in the configuration of the data: rows are shown, and no step is taken."""
    data["batch_size"] = 1
    for task in (data["tasks"] or {}).values():
        task["batch_size"] = None


def show_task(
    screen: Console, module: ContrastiveModule, training: TrainingData, collator: Collator, count: int
) -> None:
    """Prints what the views of a data set do to its first rows, and in which order guides put these.

    Args:
        screen: Where to print.
        module: Whose views and guides.
        training: The data set.
        collator: Its collator.
        count: Rows to show.
    """
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
        screen.print("views: none; copies of a text are told apart by dropout alone")
    for objective, part in module.by_task.objectives(training.name).items():
        if part.keys is not None:
            screen.print(f"momentum columns of {objective}: {describe(part.keys)}", markup=False)
    orders = _orders(module, training.name, altered.batch)
    table = Table("", *altered.slots, *(f"by {guide}" for guide in orders), show_lines=True)
    for number, texts in enumerate(altered.examples):
        table.add_row(
            str(number), *map(_marked, texts), *(_ordered(each[number], number) for each in orders.values())
        )
    screen.print(table)
    if orders:
        screen.print("by a guide: its cosines of the anchor with the texts of these rows, nearest first")
    if collator.plan.roles:
        screen.print("[-gone-] and {+new+} mark what the text and token views changed")


def _orders(module: ContrastiveModule, task: str, batch: Batch) -> dict[str, list[list[Ordered]]]:
    """Returns by name in which order each guide of a task puts the candidates of each row."""
    parts = module.by_task.objectives(task)
    plain = {name: part.objective if isinstance(part, Matryoshka) else part for name, part in parts.items()}
    removing = {
        name: found
        for name, part in plain.items()
        if isinstance(part, Contrastive)
        and isinstance(found := part.part(FalseNegatives), FalseNegatives)
        and "positive" in part.reads
    }
    orders = {
        name: guide_order(
            Encoded(vectors, batch.slots, batch.text_ids),
            {objective: each for objective, each in removing.items() if each.guide == name},
        )
        for name, vectors in guide_vectors(module.by_task.guides, batch, parts.values()).items()
    }
    return {name: order for name, order in orders.items() if order is not None}


def _ordered(candidates: Sequence[Ordered], row: int) -> Text:
    """Returns the nearest candidates of a row, a line each; its own positive without a number."""
    lines = [
        f"{each.cosine:.2f} {each.role}{'' if each.row == row else f' of {each.row}'}"
        + (f", left out by {' and '.join(each.left_out)}" if each.left_out else "")
        for each in candidates[:_NEAREST]
    ]
    more = [f"and {len(candidates) - _NEAREST} more"] if len(candidates) > _NEAREST else []
    return Text("\n".join([*lines, *more]))


def _marked(text: Sequence[Piece]) -> Text:
    """Returns a text with ``[-gone-]`` and ``{+new+}`` where it was changed, as wdiff writes it."""
    forms = {"kept": ("", "", ""), "gone": ("[-", "-]", "red"), "new": ("{+", "+}", "bold green")}
    marks = [(forms[piece.kind], piece.text) for piece in text]
    return Text(" ").join(Text(f"{left}{words}{right}", style) for (left, right, style), words in marks)
