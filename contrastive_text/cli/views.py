"""The command that shows what the views of a configuration do to the user's own texts."""

from __future__ import annotations

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from contrastive_text.cli.training import ContrastiveCLI, quieten
from contrastive_text.data import Collator, KeyedRow, TrainingData
from contrastive_text.evaluation.edits import edit_rates, marked, unaltered
from contrastive_text.module import ContrastiveModule
from contrastive_text.specs import describe

_MEASURED = 200
"""Rows that the edit rates are measured on."""


def views(words: list[str]) -> None:
    """Prints some rows, role beside role, with what changed marked, and the edit rate of each view."""
    quieten()
    cli = ContrastiveCLI(words, show_views=True)
    module, data = cli.model, cli.datamodule
    data.attach(module)
    data.setup("fit")
    console = Console()
    for name, training in data.training.items():
        if data.tasks:
            console.rule(name)
        _show_task(console, module, training, data.collator(name), cli.config["n"])


def _show_task(
    console: Console, module: ContrastiveModule, training: TrainingData, collator: Collator, count: int
) -> None:
    tokenizer = collator.tokenizer.tokenizer
    facts = training.facts()
    for name in ("training data", "rows"):
        if name in facts:
            console.print(facts[name], highlight=False)
    known = range(min(_MEASURED, len(training.rows)))
    rows = [KeyedRow(epoch=0, number=i, row=training.rows[i], task=collator.task) for i in known]
    console.print(f"pairing: {describe(training.pairing)}", highlight=False)
    _print_rates(console, [_rate_line(*edit) for edit in edit_rates(collator, module.encoder, rows)], len(rows))
    shown = rows[:count]
    plain, altered = unaltered(collator)(shown), collator(shown)
    pairs = zip(*(torch.split(batch.ids, batch.lengths.tolist()) for batch in (plain, altered)), strict=True)
    texts = [marked(before.tolist(), after.tolist(), tokenizer) for before, after in pairs]
    examples = len(texts) // len(altered.slots)
    table = Table("", *(f"{slot.role} {slot.number}" for slot in altered.slots), show_lines=True)
    for example in range(examples):
        table.add_row(str(example), *map(_coloured, texts[example::examples]))
    console.print(table)
    if collator.plan.roles:
        console.print("[-gone-] and {+new+} mark what the text and token views changed", markup=False)


def _rate_line(place: str, view: object, rate: float | None, unit: str) -> tuple[str, str, str]:
    return place, describe(view), unit if rate is None else f"{rate:.1%} of {unit}"


def _print_rates(console: Console, lines: list[tuple[str, str, str]], rows: int) -> None:
    if not lines:
        console.print("views: none")
        return
    table = Table("place", "view", f"changed, on {rows} rows")
    for line in lines:
        table.add_row(*map(Text, line))
    console.print(table)


def _coloured(text: str) -> Text:
    coloured = Text(text)
    coloured.highlight_regex(r"\[-.*?-\]", style="red")
    coloured.highlight_regex(r"\{\+.*?\+\}", style="bold green")
    return coloured
