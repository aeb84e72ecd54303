"""Reads text files into rows under the library's column names.

Texts are never altered. What is ignored or left out of a file is said in ``Table.understood``.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from contrastive_text.core.random import text_id
from contrastive_text.core.targets import Target
from contrastive_text.core.text_files import USUAL, Bounds, is_blank
from contrastive_text.core.types import Row
from contrastive_text.data.files.columns import ALIASES, PAIR, plan_columns
from contrastive_text.data.files.formats import (
    Content,
    collected,
    counted,
    documents,
    is_folder,
    listed,
    parse,
    reading_error,
    short,
    suffix_of,
)
from contrastive_text.data.files.hub import PREFIX, hub_content
from contrastive_text.data.files.labels import Labels
from contrastive_text.data.files.splits import of_split
from contrastive_text.data.files.understood import say_ignored, say_left_out, say_understood

__all__ = ["ALIASES", "Table", "read_pairs", "read_rows"]


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

    @property
    def identity(self) -> int:
        """A number that is the same for the same rows, wherever their files lie."""
        return text_id(repr(self.rows))

    @property
    def files(self) -> list[tuple[Row, ...]]:
        """The rows of each file, as ``Pairing.arrange`` takes them."""
        ends = itertools.accumulate(self.sizes)
        return [self.rows[end - size : end] for end, size in zip(ends, self.sizes, strict=True)]


def read_rows(
    paths: str | Path | Sequence[str | Path],
    reads: Sequence[str],
    columns: Mapping[str, str | Sequence[str]] | None = None,
    target: Target | None = None,
    labels: Mapping[str, str] | None = None,
    split: str | None = None,
    every_label: bool = True,
    bounds: Bounds = USUAL,
) -> Table:
    r"""Reads data files, and folders of documents, into rows of one table.

    Files are ``.txt`` (a text a line), ``.tsv``, ``.csv`` and ``.jsonl``, each also as ``.gz``, and data sets of
    the hub, as ``hub:NAME:SPLIT`` or ``hub:NAME:CONFIG:SPLIT``, where a name may be a folder. In a folder, for
    ``text`` alone, each ``.txt`` file in it or below it is one text with its newlines: BERT's tokenizers take
    those for blanks, byte-level ones such as RoBERTa's give them tokens of their own. Hidden files are not read.

    Several columns or a JSON list for ``text`` or ``positive`` give a row for each text, for ``negative``
    they give ``negative``, ``negative_2``, ... A file of pairs that is read for ``text`` gives all its texts.

    With a target, labels are read as it understands them, and rows without a gold label are left out. All else
    that is no label of it is refused with its line.

    Args:
        paths: One file or folder or several, which are joined in order; the files of a folder go by name.
        reads: The library columns needed: ``text``, or ``anchor`` and ``positive``; ``target`` with either.
            Pairs take ``negative`` and ``subset`` along where a file has them.
        columns: Library column -> column or columns of the file; comes before ``ALIASES``.
        target: What the labels stand for; None for any numbers.
        labels: Label of the files -> what the target calls it, ``-`` to leave its rows out; 1.0 is 1.
        split: Rows to read of a file that has several splits in a column ``split``: ``train``, ``dev``,
            ``test``, or ``all``.
        every_label: Whether each of ``labels`` must have a row; False where the mapping was written for other
            files of the data set too.
        bounds: How large a line of a file may be, and what else may not grow without end.

    Raises:
        FileNotFoundError: A file is not there.
        ImportError: A data set of the hub without the library ``datasets``.
        ValueError: A file is not what its suffix says, lacks a column, has no rows, a label that the target
            doesn't know, or several splits and none is chosen; a folder has no ``.txt`` file; ``labels`` names
            one that no file has.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "pairs.tsv")
        ...     _ = path.write_text("query\tanswer\na cat?\ta pet\n")
        ...     read_rows(path, reads=("anchor", "positive")).rows
        ({'anchor': 'a cat?', 'positive': 'a pet'},)
    """
    numbers = Labels(target if "target" in reads else None, labels)
    return _read(paths, reads, columns, numbers, split, every_label, bounds)


def _read(
    paths: str | Path | Sequence[str | Path],
    reads: Sequence[str],
    columns: Mapping[str, str | Sequence[str]] | None,
    labels: Labels,
    split: str | None,
    every_label: bool,
    bounds: Bounds,
) -> Table:
    given = {name: [value] if isinstance(value, str) else list(value) for name, value in (columns or {}).items()}
    for where, names in (("reads", reads), ("columns", given)):
        if unknown := [name for name in names if name not in ALIASES]:
            todo = "use one of these; several negatives are a list under negative"
            raise reading_error(where, listed(ALIASES), repr(unknown[0]), todo)
    if ("text" in reads) == any(name in reads for name in PAIR) or len({*reads} & {"anchor", "positive"}) == 1:
        raise reading_error("reads", "text, or anchor and positive", listed(reads), "ask for one of the two")
    for name, sources in given.items():
        if not sources or (len(sources) > 1 and name in ("anchor", "target", "subset")):
            raise reading_error(f"columns.{name}", "one column", str(len(sources)), "name one")
    files = [Path(paths)] if isinstance(paths, str | Path) else [Path(path) for path in paths]
    if not files:
        raise reading_error("paths", "at least one file", "none", "name one")
    parts = [_read_file(path, reads, given, labels, split, bounds) for path in files]
    notes = [understood for _, understood in parts]
    subset = ["subset" in rows[0] for rows, _ in parts]
    if any(subset) and not all(subset) and "subset" not in reads:
        # MultiNLI has a genre, SNLI none.
        parts = [([_without(row, "subset") for row in rows], note) for rows, note in parts]
        notes.append("subset left out: not every file has one")
    first = listed(parts[0][0][0])
    for path, (rows, _) in zip(files, parts, strict=True):
        if listed(rows[0]) != first:
            expected = f"the columns of {files[0]} ({first})"
            raise reading_error(str(path), expected, listed(rows[0]), "read the files as two data sets")
    notes += labels.check(every_label)
    return Table(
        rows=tuple(row for rows, _ in parts for row in rows),
        source=tuple(str(path) for path in files),
        understood="\n".join(notes),
        sizes=tuple(len(rows) for rows, _ in parts),
    )


def read_pairs(
    paths: str | Path | Sequence[str | Path],
    columns: Mapping[str, str | Sequence[str]] | None = None,
    split: str | None = None,
    bounds: Bounds = USUAL,
) -> Table:
    """Reads files of two texts and a gold score, for evaluation; see ``read_rows``.

    Rows without a score are left out and counted: those with an empty cell, a dash or, in a file without another
    score below 0, -1 (GLUE's for none).
    """
    reads = ("anchor", "positive", "target")
    return _read(paths, reads, columns, Labels(None, gold=True), split, every_label=True, bounds=bounds)


def _read_file(
    path: Path,
    reads: Sequence[str],
    columns: Mapping[str, list[str]],
    labels: Labels,
    split: str | None,
    bounds: Bounds,
) -> tuple[list[Row], str]:
    """Returns the rows of a file, at least one, and the line that says how it was understood."""
    folder = is_folder(path) and set(reads) == {"text"}
    content = collected(documents(path, bounds)) if folder else _content(path, reads, bounds)
    plan = plan_columns(str(path), content.header, reads, columns) if content.records else {}
    used = {column for sources in plan.values() for column in sources}
    content, splits = of_split(str(path), content, split, used)
    counts: Counter[str] = Counter()
    rows, notes, empty = _rows(str(path), content, plan, labels, counts) if plan else ([], {}, 0)
    left_out = say_left_out(content.blank, empty, folder)
    every, rows = len(rows), labels.scored(rows)
    no_gold = labels.without_gold(counts) + every - len(rows)
    left_out += [f"{counted(no_gold, 'row')} without a gold label left out"] if no_gold else []
    if not rows:
        got = listed(left_out) or "an empty file"
        todo = "name a file that has labels" if no_gold else "check that the file was written to its end"
        expected = f"at least one row with text{' and a gold label' if no_gold else ''}"
        raise reading_error(str(path), expected, got, todo)
    into = {"negative": listed(name for name in rows[0] if name.startswith("negative"))}
    notes = {"text": " (a .txt file each)"} if folder else notes
    if understood := labels.understood(counts):
        notes["target"] = f": {understood}"
        plan = {name: plan[name] for name in sorted(plan, key="target".__eq__)}
    taken = [f"{listed(plan[name])} -> {into.get(name, name)}{notes.get(name, '')}" for name in plan]
    ignored = say_ignored(content.header, used, splits, content.unread)
    return rows, say_understood(path, taken, [*splits, *ignored, counted(len(rows), "row"), *left_out])


def _content(path: Path, reads: Sequence[str], bounds: Bounds) -> Content:
    if str(path).startswith(PREFIX):
        return hub_content(str(path))
    content = collected(parse(path, bounds))
    if suffix_of(path) == ".txt" and content.header == ["text"] and set(reads) != {"text"}:
        header = "<TAB>".join("label" if name == "target" else name for name in reads)
        todo = f"write a .tsv with a header, such as {header}, or read single texts"
        raise reading_error(
            str(path), listed(reads), "a .txt file, which has one text a line and no columns", todo
        )
    return content


def _without(row: Row, column: str) -> Row:
    return {name: value for name, value in row.items() if name != column}


def _rows(
    where: str, content: Content, plan: Mapping[str, list[str]], labels: Labels, counts: Counter[str]
) -> tuple[list[Row], dict[str, str], int]:
    """Returns the rows, notes on some of their columns, and how many rows had an empty text.

    ``counts`` gets the rows of each label, those without a gold label too.
    """
    places = [(name, column, content.header.index(column)) for name in plan for column in plan[name]]
    textual = [place for place in places if place[0] in ("text", *PAIR)]
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
            found = texts_of_cell(f"{where}:{line}", name, column, cell)
            texts[name] = texts[name] + found if name in texts else found
        kept = [text for text in texts[spread] if not is_blank(text)]
        if spread == "text":
            empty += len(texts[spread]) - len(kept)
        elif any(is_blank(text) for group in texts.values() for text in group):
            empty += 1
            continue
        spreads.add(len(texts[spread]))
        row: dict[str, str | float] = {"anchor": texts["anchor"][0]} if "anchor" in texts else {}
        row[spread] = ""
        if "negative" in texts:
            negatives.add(len(texts["negative"]))
            row.update(zip(_negatives(len(texts["negative"])), texts["negative"], strict=True))
        for name, column, place in others if kept else ():
            cell = cells[place]
            if name == "target":
                label, number = labels.read(f"{where}:{line}", column, cell)
                counts[label] += len(kept)
                if number is None:
                    kept = []
                else:
                    row[name] = number
            else:
                row[name] = "" if cell is None else str(cell)
        rows += [{**row, spread: text} for text in kept]
    notes = {spread: f" ({_range(spreads)} rows a line)"} if max(spreads, default=1) > 1 else {}
    if len(negatives) > 1:
        # Every row must have the same slots; only lists can differ in length.
        fewest, most = min(negatives), max(negatives)
        notes["negative"] = f" ({_range(negatives)} a line, the first {fewest} kept)"
        surplus = set(_negatives(most)[fewest:])
        rows = [{name: row[name] for name in row if name not in surplus} for row in rows]
    return list(rows), notes, empty


def texts_of_cell(where: str, name: str, column: str, cell: object) -> list[str]:
    """Returns the texts of a cell, at least one: JSON's null and an empty list are an empty text."""
    texts = [cell] if isinstance(cell, str) else [""] if cell is None or cell == [] else cell
    may_be = texts is not cell or name != "anchor"
    if may_be and isinstance(texts, list) and all(isinstance(text, str) for text in texts):
        if any("\0" in text for text in texts):
            raise reading_error(where, f"texts in {short(column)}", "the character U+0000", "take it out")
        return texts
    expected = f"a text{'' if name == 'anchor' else ' or a list of texts'} in {short(column)}"
    raise reading_error(where, expected, short(json.dumps(cell, default=str)), "write it as JSON strings")


def _negatives(count: int) -> list[str]:
    """Returns the library's names of so many negatives."""
    return ["negative", *(f"negative_{number}" for number in range(2, count + 1))][:count]


def _range(numbers: set[int]) -> str:
    return f"{min(numbers)}" if len(numbers) == 1 else f"{min(numbers)} to {max(numbers)}"
