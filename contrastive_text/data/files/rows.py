"""The rows of one file, read one at a time, and what is said of it: what was taken, ignored and left out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from contrastive_text.core.storage.text_files import USUAL, Bounds, is_blank
from contrastive_text.data.files.columns import (
    PAIR,
    Labels,
    PairLabels,
    choose_pairs,
    choose_split,
    label_of,
    named_content,
    negative_names,
    plain,
    plan_columns,
)
from contrastive_text.data.files.formats import (
    Cells,
    Content,
    FileForm,
    Record,
    counted,
    listed,
    reading_error,
    short,
)
from contrastive_text.data.files.frames import PREFIX, hub_content
from contrastive_text.data.files.given import GivenRows, is_unread, missing_rows
from contrastive_text.data.files.parsing import BINARY, documents, is_folder, parse, suffix_of

_NAMED = 24
"""Ignored columns that are named; objects of differing keys can have thousands."""


@dataclass(eq=False)
class FileRows:
    r"""The rows of a file, a folder of documents, a data set of the hub, or from Python, for one loop over them.

    Memory holds one line at a time, one document of a folder, or one record of a ``.csv``. A ``.jsonl``,
    whose columns are those of all its lines, and a file with a column ``split`` are read once more beforehand.
    Rows are as they come: their number of negatives may differ.

    Args:
        path: The file, or rows given from Python.
        reads: The library columns needed, as for ``read_rows``.
        columns: Library column -> columns of the file.
        labels: Reads the cells of a label's column.
        split: Rows to read of a file that has several splits, as for ``read_rows``.
        bounds: How large a line of a file may be.
        form: Separator, header and labels of pairs, where the file leaves them open.

    Attributes:
        negatives: Number of hard negatives -> the rows that had as many, after a loop.
        document: Number of the document that the last row is of: what a blank line ends, or a file of a folder.

    Raises:
        FileNotFoundError: In a loop: no such file.
        ValueError: In a loop: what ``read_rows`` refuses, with its line, as soon as that is read.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "pairs.tsv")
        ...     _ = path.write_text("query\tanswer\na cat?\ta pet\n")
        ...     rows = FileRows(path, ["text"], {}, Labels(None))
        ...     list(rows)
        [(2, {'text': 'a cat?'}), (2, {'text': 'a pet'})]
        >>> rows.understood(2)
        'pairs.tsv: query, answer -> text (2 rows a line); 2 rows'
    """

    path: Path | GivenRows
    reads: Sequence[str]
    columns: Mapping[str, list[str]]
    labels: Labels
    split: str | None = None
    bounds: Bounds = USUAL
    form: FileForm = field(default_factory=FileForm)

    def __post_init__(self) -> None:
        self._where = self.path.name if isinstance(self.path, GivenRows) else str(self.path)
        self.negatives: Counter[int] = Counter()
        self.document = 0
        self._plan: Mapping[str, list[str]] = {}
        self._notes: list[str] = []  # on splits, and on what is ignored
        self._texts_a_line: set[int] = set()
        self._labeled: Counter[str] = Counter()  # rows of each label, those without a gold label too
        self._blank = self._empty = 0
        self._known: Content | None = None
        self._pairs: PairLabels | None = None

    def __iter__(self) -> Iterator[tuple[int, dict[str, str | float]]]:
        """Yields each row with the line that its record begins on, or its document's number in a folder."""
        content = named_content(self._content(), self.reads, self.columns)
        if content.is_row or any(content.records()):
            self._plan = plan_columns(
                self._where, content.header, self.reads, self.columns, self.form, content.is_row
            )
        places = [
            (name, column, content.header.index(column)) for name in self._plan for column in self._plan[name]
        ]
        textual = [place for place in places if place[0] in ("text", *PAIR)]
        others = [place for place in places if place[0] in ("target", "subset")]
        spread = "text" if "text" in self._plan else "positive"
        in_folder = self._is_folder
        for line, cells in self._records(content):
            self.document = line if in_folder else self._blank
            texts: dict[str, list[str]] = {}
            for name, column, place in textual:
                found = self._texts(line, name, column, cells[place])
                texts[name] = texts[name] + found if name in texts else found
            negatives = [text for text in texts.pop("negative", ()) if not is_blank(text)]
            kept = [text for text in texts[spread] if not is_blank(text)]
            if spread == "text":
                self._empty += len(texts["text"]) - len(kept)
            elif any(is_blank(text) for group in texts.values() for text in group):
                self._empty += 1
                continue
            row: dict[str, str | float] = {"anchor": texts["anchor"][0]} if "anchor" in texts else {}
            row[spread] = ""  # its place among the columns
            self._texts_a_line.add(len(texts[spread]))
            row.update(zip(negative_names(len(negatives)), negatives, strict=True))
            if others and kept and not self._add(row, others, line, cells, rows=len(kept)):
                continue
            if self._pairs is not None:
                value = self._pairs.meaning[label_of(cells[self._pairs.place])]
                if self.form.pair_labels == "hard" and value is not None:
                    row["target"] = value
                elif value != 1.0:
                    continue
            if "negative" in self._plan:
                self.negatives[len(negatives)] += len(kept)
            for text in kept:
                yield line, {**row, spread: text}

    def known_content(self) -> Content | None:
        """Returns what the source holds where it knows the number of its records; None for lines of text."""
        if self._known is None:
            if isinstance(self.path, GivenRows):
                self._known = self.path.content(self.reads)
            elif self._where.startswith(PREFIX):
                self._known = hub_content(self._where)
            elif is_unread(self._where):
                raise missing_rows("data", self._where)
            elif self.path.suffix.lower() in BINARY:
                self._known = parse(self.path, self.bounds, self.form)
        return self._known

    def _content(self) -> Content:
        if (known := self.known_content()) is not None:
            return known
        assert isinstance(self.path, Path)
        if self._is_folder:
            return documents(self.path, self.bounds)
        content = parse(self.path, self.bounds, self.form)
        if content.header == ["text"] and suffix_of(self.path) == ".txt" and set(self.reads) != {"text"}:
            header = "<TAB>".join("label" if name == "target" else name for name in self.reads)
            got = "a .txt file, which has one text a line and no columns"
            todo = f"write a .tsv with a header, such as {header}, or read single texts"
            raise reading_error(self._where, listed(self.reads), got, todo)
        return content

    @property
    def _is_folder(self) -> bool:
        return set(self.reads) == {"text"} and isinstance(self.path, Path) and is_folder(self.path)

    def _records(self, content: Content) -> Iterator[Record]:
        """Yields the records of one split, counts blank lines, and notes what is said of both."""
        used = {column for columns in self._plan.values() for column in columns}
        header = content.header
        place = next((i for i, name in enumerate(header) if plain(name) == "split" and name not in used), None)
        chosen: list[str] | None = None
        self._notes = []
        if place is not None:
            held = Counter(str(record[1][place]) for record in content.records() if record is not None)
            chosen, self._notes = choose_split(self._where, held, self.split, self.form)

        def of_split() -> Iterator[Record | None]:
            for record in content.records():
                if record is None or place is None or chosen is None or str(record[1][place]) in chosen:
                    yield record

        ignored = [name for name in header if name not in used and not (self._notes and plain(name) == "split")]
        self._pairs = None
        if "positive" in self._plan and "target" not in self._plan and self.form.pair_labels != "all":
            cells = (record[1] for record in of_split() if record is not None)
            names = self.labels.names
            self._pairs = choose_pairs(self._where, header, used, self.columns, names, cells, self.form)
        if self._pairs is not None:
            self.labels.seen.update(self._pairs.meaning)
            ignored.remove(self._pairs.column)
            self._notes.append(self._pairs.understood(str(self.form.pair_labels)))
        more = [f"{len(ignored) - _NAMED:,} more"] if len(ignored) > _NAMED else []
        named = listed([*map(short, ignored[:_NAMED]), *more])
        said = counted(content.unread, "other file") if content.unread else named
        self._notes += [*content.notes, *([f"{said} ignored"] if said else [])]
        for record in of_split():
            if record is None:
                self._blank += 1
            else:
                yield record

    def _texts(self, line: int, name: str, column: str, cell: object) -> list[str]:
        """Returns the texts of a cell, at least one: JSON's null and an empty list are an empty text."""
        if isinstance(cell, str) and "\0" not in cell:  # nearly always, and the rest takes three times as long
            return [cell]
        texts = [cell] if isinstance(cell, str) else [""] if cell is None or cell == [] else _passages(cell)
        may_be = texts is not cell or name != "anchor"
        if not may_be or not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            expected = f"a text{'' if name == 'anchor' else ' or a list of texts'} in {short(column)}"
            got = short(json.dumps(cell, default=str))
            raise reading_error(f"{self._where}:{line}", expected, got, "write it as JSON strings")
        if any("\0" in text for text in texts):
            got = "the character U+0000"
            raise reading_error(f"{self._where}:{line}", f"texts in {short(column)}", got, "take it out")
        return texts

    def _add(
        self,
        row: dict[str, str | float],
        places: Sequence[tuple[str, str, int]],
        line: int,
        cells: Cells,
        rows: int,
    ) -> bool:
        """Adds target and sub-set to a row, which stands for so many; whether it has a gold label."""
        for name, column, place in places:
            cell = cells[place]
            if name == "subset":
                row[name] = "" if cell is None else str(cell)
                continue
            label, number = self.labels.read(f"{self._where}:{line}", column, cell)
            self._labeled[label] += rows
            if number is None:
                return False
            row[name] = number
        return True

    def understood(self, count: int, unscored: int = 0, repeats: int = 0) -> str:
        """Says how the file was understood, after a loop.

        Args:
            count: Rows that were taken.
            unscored: Rows that have no gold score, as seen from the others.
            repeats: Texts that were left out because an earlier one equals them.

        Raises:
            ValueError: Not one row.
        """
        seen = self.labels.seen
        no_gold = unscored + sum(rows for label, rows in self._labeled.items() if seen.get(label, 0.0) is None)
        blank = counted(self._blank, "empty file" if self._is_folder else "blank line")
        left_out = [
            f"{what} left out"
            for number, what in (
                (self._blank, blank),
                (self._empty, f"{counted(self._empty, 'row')} with an empty text"),
                (no_gold, f"{counted(no_gold, 'row')} without a gold label"),
                (repeats, counted(repeats, "repeated text")),
            )
            if number
        ]
        if not count:
            expected = f"at least one row with text{' and a gold label' if no_gold else ''}"
            todo = "name a file that has labels" if no_gold else "check that the file was written to its end"
            raise reading_error(self._where, expected, listed(left_out) or "an empty file", todo)
        name = self._where if self._where.startswith(PREFIX) else self.path.name or self._where
        rest = [*self._notes, counted(count, "row"), *left_out]
        return f"{name}: {'; '.join([self._taken(), *rest])}"

    def _taken(self) -> str:
        """Says which columns became what, the target last."""
        most = max(self._texts_a_line)
        notes = {"text" if "text" in self._plan else "positive": f" ({_range(self._texts_a_line)} rows a line)"}
        notes = {"text": " (a .txt file each)"} if self._is_folder else notes if most > 1 else {}
        names = {}
        if self.negatives:
            names["negative"] = listed(negative_names(max(self.negatives))) or "no hard negatives"
            if len(self.negatives) > 1:
                notes["negative"] = f" ({_range(set(self.negatives))} a line)"
        columns = dict(self._plan)
        if labels := self.labels.understood(self._labeled):
            notes["target"] = f": {labels}"
            columns["target"] = columns.pop("target")
        return listed(
            f"{listed(columns[name])} -> {names.get(name, name)}{notes.get(name, '')}" for name in columns
        )


def _range(numbers: set[int]) -> str:
    return f"{min(numbers)}" if len(numbers) == 1 else f"{min(numbers)} to {max(numbers)}"


def _passages(cell: object) -> object:
    """Returns the texts of passages that are objects with ``text`` and ``title``, as Tevatron has them."""
    passages = cell if isinstance(cell, list) else [cell]
    objects = [each for each in passages if isinstance(each, dict) and isinstance(each.get("text"), str)]
    if not passages or len(objects) < len(passages):
        return cell
    return [f"{each.get('title') or ''} {each['text']}".strip() for each in objects]
