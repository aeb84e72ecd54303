"""Texts, names and options with escapes of terminals and markup."""

from __future__ import annotations

from hostile.case import answer, right
from hostile.commands import TABLE, embedded
from hostile.makers import vectors


def _in_subsets(name: str) -> str:
    """Returns a table of two sub-sets, one of this name."""
    rows = (f"a dog\tb\t1\t{name}", f"c\td\t2\t{name}", "e\tf\t1\tother", "g\th\t2\tother")
    return "\n".join(["sentence1\tsentence2\tscore\tgenre", *rows]) + "\n"


_ESCAPES = "x[/bold]y\n[red]a dog[/red]\n\x1b]0;title\x07\x1b[2Jclear\n\x1b[31mred\n\u202egnirts\n"

CASES = (
    right(
        "escapes and markup in the texts of duplicates",
        "duplicates in.txt d.tsv --model $bert",
        {"in.txt": _ESCAPES},
        "d.tsv",
    ),
    right(
        "escapes and markup in the texts of search",
        "search in.txt 'x[/bold]y' --model $bert --top_k 5",
        {"in.txt": _ESCAPES},
        "x[/bold]y",
        "[red]a dog[/red]",
    ),
    right("escapes in a query", "search $texts '\x1b]0;title\x07' --model $bert", {}, "title"),
    right(
        "escapes and markup in texts that are shown as JSON",
        "search in.txt q --model $bert --format json",
        {"in.txt": _ESCAPES},
        "x[/bold]y",
    ),
    right(
        "markup in the names of sub-sets", "evaluate $bert in.tsv", {"in.tsv": _in_subsets("[/red]x")}, "[/red]x"
    ),
    right(
        "escapes in the names of sub-sets", "evaluate $bert in.tsv", {"in.tsv": _in_subsets("\x1b[2Jx")}, "in.tsv"
    ),
    answer(
        "escapes in a column's name",
        "evaluate $bert in.tsv",
        {"in.tsv": "sentence1\t\x1b[2Jother\tscore\na\tb\t1\n"},
        "in.tsv",
        "other",
    ),
    answer("escapes in a value", "evaluate $bert in.tsv", {"in.tsv": TABLE + "a\tb\t\x1b[31mred\n"}, "in.tsv:5"),
    answer(
        "escapes in JSON that is broken",
        embedded("in.jsonl"),
        {"in.jsonl": '"\\u001b[2J\x1b[2J"\n'},
        "in.jsonl:1",
    ),
    answer("escapes in an option", "embed $texts v.npy --model $bert '--\x1b[2J' 1", {}, "no option"),
    answer("escapes in a command", "'em\x1b[2Jbed'", {}, "expected one of"),
    answer("escapes in a model's name", "embed $texts v.npy --model 'a\x1b]0;x\x07b'", {}, "model"),
    right(
        "a column's name of markup",
        embedded("in.tsv"),
        {"in.tsv": "text\t[/b]\na\t1\n"},
        "[/b]",
        check=vectors(1),
    ),
)
