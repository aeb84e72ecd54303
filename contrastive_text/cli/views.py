"""The command that shows what the views of a configuration do to the user's own texts."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from contrastive_text.cli.training import ContrastiveCLI, quieten
from contrastive_text.data import KeyedRow
from contrastive_text.evaluation.edits import edit_rates, marked, unaltered
from contrastive_text.specs import describe

_MEASURED = 200
"""Rows that the edit rates are measured on."""


def show_views(words: list[str]) -> None:
    """Prints some rows, role beside role, with what changed marked, and the edit rate of each view."""
    quieten()
    cli = ContrastiveCLI(words, show_views=True)
    module, data = cli.model, cli.datamodule
    data.attach(module)
    data.setup("fit")
    collator = data.collator()
    tokenizer = collator.tokenizer.tokenizer
    console = Console()
    facts = data.facts()
    for name in ("training data", "rows"):
        if name in facts:
            console.print(facts[name], highlight=False)
    rows = [KeyedRow(epoch=0, number=i, row=data.rows[i]) for i in range(min(_MEASURED, len(data.rows)))]
    console.print(f"pairing: {describe(data.pairing)}", highlight=False)
    _print_rates(console, [_rate_line(*edit) for edit in edit_rates(collator, module.encoder, rows)], len(rows))
    shown = rows[: cli.config["n"]]
    plain, altered = unaltered(collator)(shown), collator(shown)
    pairs = zip(*(batch.ids.split(batch.lengths.tolist()) for batch in (plain, altered)), strict=True)
    texts = [marked(before.tolist(), after.tolist(), tokenizer) for before, after in pairs]
    examples = len(texts) // len(altered.slots)
    table = Table("", *(f"{slot.role} {slot.number}" for slot in altered.slots), show_lines=True)
    for example in range(examples):
        table.add_row(str(example), *map(_coloured, texts[example::examples]))
    console.print(table)
    if module.plan.roles:
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
