"""Tables as notebooks show them: plain HTML that takes its looks from the notebook."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence


def html_table(caption: str, cells: Sequence[Sequence[str]], notes: Sequence[str] = ()) -> str:
    """Returns rows of cells as a table whose first row names the columns and whose first column the rows.

    Texts stay texts: markup in them is escaped, and lines of a cell stay lines.

    Args:
        caption: What the table shows.
        cells: The rows, all of the same number of cells.
        notes: Lines under the table.

    Example:
        >>> print(html_table("scores", [["model", "MR"], ["<mine>", "81.00"]], notes=["times 100"]))
        <table><caption>scores</caption>
        <thead><tr><th scope="col">model</th><th scope="col">MR</th></tr></thead>
        <tbody><tr><th scope="row">&lt;mine&gt;</th><td>81.00</td></tr></tbody></table>
        <ul><li>times 100</li></ul>
    """
    head, *rows = [[_lines(cell) for cell in row] for row in cells]
    names = "".join(f'<th scope="col">{name}</th>' for name in head)
    body = "\n".join(
        f'<tr><th scope="row">{name}</th>{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>'
        for name, *rest in rows
    )
    top = f"<caption>{_lines(caption)}</caption>\n<thead><tr>{names}</tr></thead>"
    return "\n".join([f"<table>{top}\n<tbody>{body}</tbody></table>", *([html_list(notes)] if notes else [])])


def html_list(notes: Sequence[str]) -> str:
    """Returns notes as a list."""
    return f"<ul>{''.join(f'<li>{_lines(note)}</li>' for note in notes)}</ul>"


def facts_table(caption: str, facts: Mapping[str, str]) -> str:
    """Returns facts by name as a table of two columns."""
    return html_table(caption, [["", "value"], *([name, fact] for name, fact in facts.items())])


def _lines(text: str) -> str:
    return html.escape(text).replace("\n", "<br>")
