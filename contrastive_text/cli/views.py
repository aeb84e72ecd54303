"""Command ``views``: prints training texts next to their views."""

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
from contrastive_text.core.terminal import make_console
from contrastive_text.data import Collator
from contrastive_text.data.preparation import TrainingData
from contrastive_text.data.prompts import NO_PROMPTS
from contrastive_text.data.training_set import words_without_blanks
from contrastive_text.evaluation.view_edits import Piece, RankedColumn, altered_rows, guide_order
from contrastive_text.objectives import Contrastive, FalseNegatives
from contrastive_text.training.guides import guide_vectors
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.training.run import Run

_SAMPLED = 200
"""Number of rows that are searched for languages without blanks between words."""
_NEAREST = 6
"""Number of texts that are listed per row in the order of a guide."""


def views(words: list[str]) -> None:
    """Prints some rows with the changes of each view marked, and the share of changed tokens of each view."""
    quieten()
    parser, config = configured("views", words)
    if (count := config["n"]) < 1:
        raise InvalidValueError(f"--n: expected 1 row or more, got {count}; leave it out for 3")
    _take_single_rows(config["data"])
    run = Run(parser, config)
    module, data = run.module, run.data
    data.set_module(module)
    data.setup("fit")
    screen = make_console()
    for name, training in data.training.tasks.items():
        if data.tasks:
            screen.rule(name)
        show_task(screen, module, training, data.collator(name), count)


def _take_single_rows(data: dict[str, Any]) -> None:  # Any: what YAML can hold
    """Sets the batch size to 1, because no step is trained and data sets may be smaller than a batch."""
    data["batch_size"] = 1
    for task in (data["tasks"] or {}).values():
        task["batch_size"] = None


def show_task(
    screen: Console, module: ContrastiveModule, training: TrainingData, collator: Collator, count: int
) -> None:
    """Prints the first rows of a data set next to their views, and the order in which guides rank them.

    Args:
        screen: Console to print to.
        module: Module with the views and guides.
        training: The data set.
        collator: Collator of the data set.
        count: Number of rows to print.
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
        screen.print("views: none; copies of a text differ by dropout only")
    for objective, part in module.by_task.objectives(training.name).items():
        if part.momentum is not None:
            screen.print(f"momentum columns of {objective}: {describe(part.momentum)}", markup=False)
    orders = _orders(module, training.name, altered.batch)
    table = Table("", *altered.slots, *(f"by {guide}" for guide in orders), show_lines=True)
    for number, texts in enumerate(altered.examples):
        table.add_row(
            str(number), *map(_marked, texts), *(_ordered(order[number], number) for order in orders.values())
        )
    screen.print(table)
    if orders:
        screen.print("by a guide: its cosines of the anchor with the texts of these rows, nearest first")
    if collator.plan.roles:
        screen.print("[-gone-] and {+new+} mark the changes of the text and token views")


def _orders(module: ContrastiveModule, task: str, batch: Batch) -> dict[str, list[list[RankedColumn]]]:
    """Returns the columns of each row in the order of each guide of a task, by guide."""
    parts = module.by_task.objectives(task)
    plain = {name: part.inner for name, part in parts.items()}
    filters = {
        name: column_filter
        for name, part in plain.items()
        if isinstance(part, Contrastive)
        and isinstance(column_filter := part.part(FalseNegatives), FalseNegatives)
        and "positive" in part.required_roles
    }
    orders = {
        name: guide_order(
            Encoded(vectors, batch.slots, batch.text_ids),
            {
                objective: column_filter
                for objective, column_filter in filters.items()
                if column_filter.guide == name
            },
        )
        for name, vectors in guide_vectors(module.by_task.guides, batch, parts.values()).items()
    }
    return {name: order for name, order in orders.items() if order is not None}


def _ordered(columns: Sequence[RankedColumn], row: int) -> Text:
    """Returns the nearest columns of a row, one per line. Texts of other rows have the row's number."""
    lines = [
        f"{column.cosine:.2f} {column.role}{'' if column.row == row else f' of {column.row}'}"
        + (f", masked by {' and '.join(column.masked_by)}" if column.masked_by else "")
        for column in columns[:_NEAREST]
    ]
    more = [f"and {len(columns) - _NEAREST} more"] if len(columns) > _NEAREST else []
    return Text("\n".join([*lines, *more]))


def _marked(text: Sequence[Piece]) -> Text:
    """Marks the changes of a text as wdiff does: ``[-gone-]`` and ``{+new+}``."""
    forms = {"kept": ("", "", ""), "gone": ("[-", "-]", "red"), "new": ("{+", "+}", "bold green")}
    marks = [(forms[piece.kind], piece.text) for piece in text]
    return Text(" ").join(Text(f"{start}{words}{end}", style) for (start, end, style), words in marks)
