"""Reads text files into rows under the library's column names.

Texts are never altered. What is ignored or left out of a file is said in ``Table.understood``.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from contrastive_text.data.formats import (
    FORMATS,
    Content,
    counted,
    decode,
    documents,
    listed,
    reading_error,
    short,
)
from contrastive_text.types import Row

__all__ = ["ALIASES", "Table", "read_pairs", "read_rows"]

ALIASES: Mapping[str, tuple[str, ...]] = {
    name: tuple(aliases.split())
    for name, aliases in {
        "text": "text texts sentence sentences content document body",
        "anchor": "anchor sentence1 sentence_a sent0 text1 text_a query query_text question question1 premise",
        "positive": "positive positives pos sentence2 sentence_b sent1 text2 text_b question2 hypothesis "
        "answer passage",
        "negative": "negative negatives neg hard_neg hard_negative",
        "target": "target score scores label labels similarity",
        "subset": "subset genre",
    }.items()
}
"""Library column -> its names in files.

Case, spaces, ``_`` and ``-`` do not count, and the name of a negative may end in a number.
"""

_PAIR = ("anchor", "positive", "negative")


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of one or several files, and how the files were understood.

    Args:
        rows: The rows in file order, all with the same columns.
        source: The files, as they were given.
        understood: A line for each file: which column became what, what was ignored or left out, the rows.
        sizes: Number of rows of each file.
    """

    rows: tuple[Row, ...]
    source: tuple[str, ...]
    understood: str
    sizes: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Row:
        return self.rows[index]

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)


def read_rows(
    paths: str | Path | Sequence[str | Path],
    reads: Sequence[str],
    columns: Mapping[str, str | Sequence[str]] | None = None,
) -> Table:
    r"""Reads data files, and folders of documents, into rows of one table.

    Files are ``.txt`` (a text a line), ``.tsv``, ``.csv`` and ``.jsonl``, each also as ``.gz``. In a folder, for
    ``text`` alone, each ``.txt`` file in it or below it is one text with its newlines: BERT's tokenizers take
    those for blanks, byte-level ones such as RoBERTa's give them tokens of their own. Hidden files are not read.

    Several columns or a JSON list for ``text`` or ``positive`` give a row for each text, for ``negative``
    they give ``negative``, ``negative_2``, ... A file of pairs that is read for ``text`` gives all its texts.

    Args:
        paths: One file or folder or several, which are joined in order; the files of a folder go by name.
        reads: The library columns needed: ``text``, or ``anchor`` and ``positive``; ``target`` with either.
            Pairs take ``negative`` and ``subset`` along where a file has them.
        columns: Library column -> column or columns of the file; comes before ``ALIASES``.

    Raises:
        FileNotFoundError: A file is not there.
        ValueError: A file is not what its suffix says, lacks a column, or has no rows; a folder has no
            ``.txt`` file.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "pairs.tsv")
        ...     _ = path.write_text("query\tanswer\na cat?\ta pet\n")
        ...     read_rows(path, reads=("anchor", "positive")).rows
        ({'anchor': 'a cat?', 'positive': 'a pet'},)
    """
    given = {name: [value] if isinstance(value, str) else list(value) for name, value in (columns or {}).items()}
    for where, names in (("reads", reads), ("columns", given)):
        if unknown := [name for name in names if name not in ALIASES]:
            todo = "use one of these; several negatives are a list under negative"
            raise reading_error(where, listed(ALIASES), repr(unknown[0]), todo)
    if ("text" in reads) == any(name in reads for name in _PAIR) or len({*reads} & {"anchor", "positive"}) == 1:
        raise reading_error("reads", "text, or anchor and positive", listed(reads), "ask for one of the two")
    for name, sources in given.items():
        if not sources or (len(sources) > 1 and name in ("anchor", "target", "subset")):
            raise reading_error(f"columns.{name}", "one column", str(len(sources)), "name one")
    files = [Path(paths)] if isinstance(paths, str | Path) else [Path(path) for path in paths]
    if not files:
        raise reading_error("paths", "at least one file", "none", "name one")
    parts = [_read_file(path, reads, given) for path in files]
    first = listed(parts[0][0][0])
    for path, (rows, _) in zip(files, parts, strict=True):
        if listed(rows[0]) != first:
            expected = f"the columns of {files[0]} ({first})"
            raise reading_error(str(path), expected, listed(rows[0]), "read the files as two data sets")
    return Table(
        rows=tuple(row for rows, _ in parts for row in rows),
        source=tuple(str(path) for path in files),
        understood="\n".join(understood for _, understood in parts),
        sizes=tuple(len(rows) for rows, _ in parts),
    )


def read_pairs(
    paths: str | Path | Sequence[str | Path], columns: Mapping[str, str | Sequence[str]] | None = None
) -> Table:
    """Reads files of two texts and a gold score, for evaluation; see ``read_rows``."""
    return read_rows(paths, reads=("anchor", "positive", "target"), columns=columns)


def _read_file(path: Path, reads: Sequence[str], columns: Mapping[str, list[str]]) -> tuple[list[Row], str]:
    """Gives the rows of a file, at least one, and the line that says how it was understood."""
    folder = path.is_dir() and set(reads) == {"text"}
    content = documents(path) if folder else _content(path, reads)
    plan = _plan(str(path), content.header, reads, columns) if content.records else {}
    rows, notes, empty = _rows(str(path), content, plan) if plan else ([], {}, 0)
    blank = counted(content.blank, "empty file" if folder else "blank line")
    left_out = [f"{blank} left out"] if content.blank else []
    left_out += [f"{counted(empty, 'row')} with an empty text left out"] if empty else []
    if not rows:
        got = listed(left_out) or "an empty file"
        raise reading_error(
            str(path), "at least one row with text", got, "check that the file was written to its end"
        )
    into = {"negative": listed(name for name in rows[0] if name.startswith("negative"))}
    notes = {"text": " (a .txt file each)"} if folder else notes
    taken = listed(f"{listed(plan[name])} -> {into.get(name, name)}{notes.get(name, '')}" for name in plan)
    used = {column for sources in plan.values() for column in sources}
    ignored = listed(short(column) for column in content.header if column not in used)
    ignored = counted(content.unread, "other file") if content.unread else ignored
    parts = [taken, *([f"{ignored} ignored"] if ignored else []), counted(len(rows), "row"), *left_out]
    return rows, f"{path.name or path}: {'; '.join(parts)}"


def _content(path: Path, reads: Sequence[str]) -> Content:
    text, suffix = decode(path)
    if suffix == ".txt" and set(reads) != {"text"}:
        todo = "write a .tsv with a header, such as anchor<TAB>positive, or read single texts"
        raise reading_error(
            str(path), listed(reads), "a .txt file, which has one text a line and no columns", todo
        )
    return FORMATS[suffix](str(path), text)


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]", "", name.lower())


_LIBRARY_NAMES = {_plain(alias): name for name, aliases in ALIASES.items() for alias in aliases}


def _unnumbered(name: str) -> str:
    """Gives the alias of a negative without its number."""
    return _plain(name).rstrip("0123456789")


def _stands_for(column: str, name: str) -> bool:
    numbered = name == "negative" and _LIBRARY_NAMES.get(_unnumbered(column)) == name
    return numbered or _LIBRARY_NAMES.get(_plain(column)) == name


def _plan(
    where: str, header: list[str], reads: Sequence[str], columns: Mapping[str, list[str]]
) -> dict[str, list[str]]:
    """Gives for each library column that is read the columns of the file that hold it."""
    there = listed(short(column) for column in header)
    named = {column: name for name, sources in columns.items() for column in sources}
    for column, name in named.items():
        if column not in header:
            near = difflib.get_close_matches(column, header, n=1, cutoff=0.4)
            todo = f"did you mean {near[0]}?" if near else "name one of those"
            raise reading_error(where, f"the column {column} for columns.{name}", there, todo)
    found = {
        name: columns.get(name)
        or [column for column in header if column not in named and _stands_for(column, name)]
        for name in ALIASES
    }
    if "negative" not in columns:
        found["negative"].sort(key=lambda column: int(re.sub(r"\D", "", column) or 1))
    taken = [name for name in ALIASES if name in reads or ("anchor" in reads and name in ("negative", "subset"))]
    for name in taken:
        # negative_1 and negative_2 are two texts under one alias; neg and hard_neg are two aliases.
        rivals = list({_unnumbered(c) if name == "negative" else c: c for c in found[name]}.values())
        if len(rivals) > 1 and name not in columns:
            todo = f"give `columns: {{{name}: {rivals[0]}}}`"
            raise reading_error(where, f"one column for {name}", f"{rivals[0]} and {rivals[1]}", todo)
    if "text" in reads and not found["text"]:
        found["text"] = [column for column in header if any(column in found[name] for name in _PAIR)]
    for name in taken:
        if name in reads and not found[name]:
            todo = f"give `columns: {{{name}: NAME}}`"
            todo += "; if the first line is a text, call the file .txt" if len(header) == 1 else ""
            raise reading_error(where, f"a column for {name} ({listed(ALIASES[name])})", there, todo)
    return {name: found[name] for name in taken if found[name]}


def _rows(where: str, content: Content, plan: Mapping[str, list[str]]) -> tuple[list[Row], dict[str, str], int]:
    """Gives the rows, notes on some of their columns, and how many rows had an empty text."""
    places = [(name, column, content.header.index(column)) for name in plan for column in plan[name]]
    textual = [place for place in places if place[0] in ("text", *_PAIR)]
    others = [place for place in places if place[0] in ("target", "subset")]
    spread = "text" if "text" in plan else "positive"
    rows: list[dict[str, str | float]] = []
    spreads: set[int] = set()
    negatives: set[int] = set()
    empty = 0
    for line, cells in content.records:
        texts: dict[str, list[str]] = {}
        for name, column, place in textual:
            cell = cells[place]
            found = [cell] if isinstance(cell, str) else _texts(f"{where}:{line}", name, column, cell)
            texts[name] = texts[name] + found if name in texts else found
        kept = [text for text in texts[spread] if text.strip()]
        if spread == "text":
            empty += len(texts[spread]) - len(kept)
        elif not all(text.strip() for group in texts.values() for text in group):
            empty += 1
            continue
        spreads.add(len(texts[spread]))
        row: dict[str, str | float] = {"anchor": texts["anchor"][0]} if "anchor" in texts else {}
        row[spread] = ""
        if "negative" in texts:
            negatives.add(len(texts["negative"]))
            row.update(zip(_negatives(len(texts["negative"])), texts["negative"], strict=True))
        for name, column, place in others:
            cell = cells[place]
            label = "" if cell is None else str(cell)
            row[name] = _number(f"{where}:{line}", column, cell) if name == "target" else label
        rows += [{**row, spread: text} for text in kept]
    notes = {spread: f" ({_range(spreads)} rows a line)"} if max(spreads, default=1) > 1 else {}
    if len(negatives) > 1:
        # Every row must have the same slots; only lists can differ in length.
        fewest, most = min(negatives), max(negatives)
        notes["negative"] = f" ({_range(negatives)} a line, the first {fewest} kept)"
        surplus = set(_negatives(most)[fewest:])
        rows = [{name: row[name] for name in row if name not in surplus} for row in rows]
    return list(rows), notes, empty


def _texts(where: str, name: str, column: str, cell: object) -> list[str]:
    """Gives the texts of a JSON value, at least one: null and an empty list are an empty text."""
    if cell is None or cell == []:
        return [""]
    if isinstance(cell, list) and name != "anchor" and all(isinstance(text, str) for text in cell):
        return cell
    expected = f"a text{'' if name == 'anchor' else ' or a list of texts'} in {short(column)}"
    raise reading_error(where, expected, short(json.dumps(cell)), "write it as JSON strings")


def _number(where: str, column: str, cell: object) -> float:
    try:
        number = float(cell) if isinstance(cell, str | int | float) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise reading_error(where, f"a number in {short(column)}", short(repr(cell)), "give every row a number")
    return number


def _negatives(count: int) -> list[str]:
    """Gives the library's names of so many negatives."""
    return ["negative", *(f"negative_{number}" for number in range(2, count + 1))][:count]


def _range(numbers: set[int]) -> str:
    return f"{min(numbers)}" if len(numbers) == 1 else f"{min(numbers)} to {max(numbers)}"
