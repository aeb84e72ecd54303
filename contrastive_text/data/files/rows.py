"""Rows of one file, read one at a time, and a description of the parts that were used, ignored and skipped."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from contrastive_text.core.storage.text_files import USUAL, SizeLimits, is_blank
from contrastive_text.data.files.formats import (
    PAIR,
    Cells,
    Content,
    FileForm,
    Record,
    choose_split,
    count_noun,
    join_names,
    named_content,
    negative_names,
    normalize_name,
    plan_columns,
    reading_error,
    short,
)
from contrastive_text.data.files.in_memory import InMemoryRows, is_unread, missing_rows
from contrastive_text.data.files.labels import Labels, PairLabels, TeacherScores, choose_pairs, label_of
from contrastive_text.data.files.parsing import (
    BINARY,
    PREFIX,
    documents,
    hub_content,
    is_folder,
    parse,
    suffix_of,
)

Cell: TypeAlias = str | float | tuple[float, ...]
"""Cell of a row: a text, a label or score, or teacher scores."""
_MAX_NAMES = 24
"""Largest number of ignored columns that the description of a file names. JSON objects can have thousands."""


@dataclass(eq=False)
class FileRows:
    r"""Iterable over the rows of a file, a folder of documents, a data set of the hub, or rows from Python.

    Memory holds only one line, one document of a folder, or one record of a ``.csv`` at a time. A ``.jsonl``,
    whose columns are those of all its lines, and a file with a column ``split`` are read once more beforehand.
    Rows may have different numbers of negatives.

    Args:
        path: The file, or rows from Python.
        reads: Library columns to read, as for ``read_rows``.
        columns: Library column -> columns of the file.
        labels: Reader of the cells of a label column.
        split: Rows to read of a file that has several splits, as for ``read_rows``.
        bounds: Size limits of a line.
        form: Separator, header and use of pair labels, if the file leaves them open.
        further: Names of further columns of the file; see ``further_cells``.

    Attributes:
        further_cells: Cells of the further columns of the last row, unaltered.
        negatives: Number of hard negatives -> number of rows that have it, after a loop.
        document: Number of the document of the last row: lines up to a blank line, or a file of a folder.

    Raises:
        FileNotFoundError: During a loop: there is no such file.
        ValueError: During a loop: a line that ``read_rows`` refuses, when it is reached.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "pairs.tsv")
        ...     _ = path.write_text("query\tanswer\na cat?\ta pet\n")
        ...     rows = FileRows(path, ["text"], {}, Labels(None))
        ...     list(rows)
        [(2, {'text': 'a cat?'}), (2, {'text': 'a pet'})]
        >>> rows.describe(2)
        'pairs.tsv: query, answer -> text (2 rows a line); 2 rows'
    """

    path: Path | InMemoryRows
    reads: Sequence[str]
    columns: Mapping[str, list[str]]
    labels: Labels
    split: str | None = None
    bounds: SizeLimits = USUAL
    form: FileForm = field(default_factory=FileForm)
    further: Sequence[str] = ()

    def __post_init__(self) -> None:
        self._where = self.path.name if isinstance(self.path, InMemoryRows) else str(self.path)
        self.negatives: Counter[int] = Counter()
        self.document = 0
        self.further_cells: Sequence[object] = ()
        self._plan: Mapping[str, list[str]] = {}
        self._notes: list[str] = []  # on splits and on ignored columns
        self._text_counts: set[int] = set()
        self._label_rows: Counter[str] = Counter()  # label -> number of rows, including rows without a gold label
        self._blank_count = self._empty_count = 0
        self._known_content: Content | None = None
        self._pair_labels: PairLabels | None = None
        self._scores = TeacherScores((), ())

    def __iter__(self) -> Iterator[tuple[int, dict[str, Cell]]]:
        """Yields each row with the line on which its record begins, or with its document's number in a folder."""
        content = named_content(self._content(), self.reads, self.columns)
        if content.is_row or any(content.records()):
            self._plan = plan_columns(
                self._where, content.header, self.reads, self.columns, self.form, content.is_row
            )
        sources = [
            (name, column, content.header.index(column)) for name in self._plan for column in self._plan[name]
        ]
        text_sources = [source for source in sources if source[0] in ("text", *PAIR)]
        other_sources = [source for source in sources if source[0] in ("target", "subset")]
        spread_column = "text" if "text" in self._plan else "positive"
        further_places = [self._place(name, content.header) for name in self.further]
        in_folder = self._is_folder
        self._scores = TeacherScores(self._plan.get("scores", ()), content.header)
        for line, cells in self._records(content):
            self.document = line if in_folder else self._blank_count
            self.further_cells = [cells[place] for place in further_places]
            texts: dict[str, list[str]] = {}
            for name, column, index in text_sources:
                cell_texts = self._texts(line, name, column, cells[index])
                texts[name] = texts[name] + cell_texts if name in texts else cell_texts
            all_negatives = texts.pop("negative", [])
            negatives = [text for text in all_negatives if not is_blank(text)]
            visible = [text for text in texts[spread_column] if not is_blank(text)]
            if spread_column == "text":
                self._empty_count += len(texts["text"]) - len(visible)
            elif any(is_blank(text) for group in texts.values() for text in group):
                self._empty_count += 1
                continue
            row: dict[str, Cell] = {"anchor": texts["anchor"][0]} if "anchor" in texts else {}
            row[spread_column] = ""  # fixes its position among the columns
            self._text_counts.add(len(texts[spread_column]))
            row.update(zip(negative_names(len(negatives)), negatives, strict=True))
            if other_sources and visible and not self._add(row, other_sources, line, cells, rows=len(visible)):
                continue
            if self._pair_labels is not None:
                value = self._pair_labels.meaning[label_of(cells[self._pair_labels.place])]
                if self.form.pair_labels == "hard" and value is not None:
                    row["target"] = value
                elif value != 1.0:
                    continue
            if "negative" in self._plan:
                self.negatives[len(negatives)] += len(visible)
            if "scores" not in self._plan:
                for text in visible:
                    yield line, {**row, spread_column: text}
                continue
            scores = self._scores.read(f"{self._where}:{line}", cells, len(visible), all_negatives)
            for text, text_scores in zip(visible, scores, strict=True):
                yield line, {**row, spread_column: text, "scores": text_scores}

    def known_content(self) -> Content | None:
        """Returns the content of a source that knows its number of records; None for lines of text."""
        if self._known_content is None:
            if isinstance(self.path, InMemoryRows):
                self._known_content = self.path.content(self.reads)
            elif self._where.startswith(PREFIX):
                self._known_content = hub_content(self._where)
            elif is_unread(self._where):
                raise missing_rows("data", self._where)
            elif self.path.suffix.lower() in BINARY:
                self._known_content = parse(self.path, self.bounds, self.form)
        return self._known_content

    def _content(self) -> Content:
        if (content := self.known_content()) is not None:
            return content
        assert isinstance(self.path, Path)
        if self._is_folder:
            return documents(self.path, self.bounds)
        content = parse(self.path, self.bounds, self.form)
        if content.header == ["text"] and suffix_of(self.path) == ".txt" and set(self.reads) != {"text"}:
            header = "<TAB>".join("label" if name == "target" else name for name in self.reads)
            got = "a .txt file, which has one text a line and no columns"
            todo = f"write a .tsv with a header, such as {header}, or read single texts"
            raise reading_error(self._where, join_names(self.reads), got, todo)
        return content

    @property
    def _is_folder(self) -> bool:
        return set(self.reads) == {"text"} and isinstance(self.path, Path) and is_folder(self.path)

    def _records(self, content: Content) -> Iterator[Record]:
        """Yields the records of the chosen split, counts blank lines, and notes the split and ignored columns."""
        read_columns = {column for columns in self._plan.values() for column in columns} | {*self.further}
        header = content.header
        split_index = next(
            (i for i, name in enumerate(header) if normalize_name(name) == "split" and name not in read_columns),
            None,
        )
        split_values: list[str] | None = None
        self._notes = []
        if split_index is not None:
            split_rows = Counter(
                str(record[1][split_index]) for record in content.records() if record is not None
            )
            split_values, self._notes = choose_split(self._where, split_rows, self.split, self.form)

        def records_of_split() -> Iterator[Record | None]:
            for record in content.records():
                if (
                    record is None
                    or split_index is None
                    or split_values is None
                    or str(record[1][split_index]) in split_values
                ):
                    yield record

        ignored = [
            name
            for name in header
            if name not in read_columns and not (self._notes and normalize_name(name) == "split")
        ]
        self._pair_labels = None
        if "positive" in self._plan and "target" not in self._plan and self.form.pair_labels != "all":
            cells = (record[1] for record in records_of_split() if record is not None)
            names = self.labels.names
            self._pair_labels = choose_pairs(
                self._where, header, read_columns, self.columns, names, cells, self.form
            )
        if self._pair_labels is not None:
            self.labels.seen.update(self._pair_labels.meaning)
            ignored.remove(self._pair_labels.column)
            self._notes.append(self._pair_labels.describe(str(self.form.pair_labels)))
        extra = [f"{len(ignored) - _MAX_NAMES:,} more"] if len(ignored) > _MAX_NAMES else []
        names_text = join_names([*map(short, ignored[:_MAX_NAMES]), *extra])
        ignored_text = count_noun(content.unread, "other file") if content.unread else names_text
        self._notes += [*content.notes, *([f"{ignored_text} ignored"] if ignored_text else [])]
        for record in records_of_split():
            if record is None:
                self._blank_count += 1
            else:
                yield record

    def _place(self, name: str, header: Sequence[str]) -> int:
        """Returns the index of a further column in the header."""
        if name in header:
            return list(header).index(name)
        expected = f"one of its columns {join_names(map(short, header[:_MAX_NAMES]))}"
        raise reading_error(self._where, expected, repr(name), "name one of them")

    def _texts(self, line: int, name: str, column: str, cell: object) -> list[str]:
        """Returns the texts in a cell of a data file, at least one.

        JSON's null and an empty list become an empty text.
        """
        if isinstance(cell, str) and "\0" not in cell:  # fast path for nearly all cells
            return [cell]
        texts = [cell] if isinstance(cell, str) else [""] if cell is None or cell == [] else _passages(cell)
        is_allowed = texts is not cell or name != "anchor"
        if not is_allowed or not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            expected = f"a text{'' if name == 'anchor' else ' or a list of texts'} in {short(column)}"
            cell_text = short(json.dumps(cell, default=str))
            raise reading_error(f"{self._where}:{line}", expected, cell_text, "write it as JSON strings")
        if any("\0" in text for text in texts):
            cell_text = "the character U+0000"
            raise reading_error(f"{self._where}:{line}", f"texts in {short(column)}", cell_text, "remove it")
        return texts

    def _add(
        self,
        row: dict[str, Cell],
        sources: Sequence[tuple[str, str, int]],
        line: int,
        cells: Cells,
        rows: int,
    ) -> bool:
        """Adds target and subset to a row that represents ``rows`` rows. Returns whether it has a gold label."""
        for name, column, index in sources:
            cell = cells[index]
            if name == "subset":
                row[name] = "" if cell is None else str(cell)
                continue
            label, number = self.labels.read(f"{self._where}:{line}", column, cell)
            self._label_rows[label] += rows
            if number is None:
                return False
            row[name] = number
        return True

    def describe(self, count: int, unscored: int = 0, repeats: int = 0) -> str:
        """Describes how the file was read. Called after a loop over its rows.

        Args:
            count: Number of rows that were used.
            unscored: Number of rows without a gold score, which depends on the scores of other rows.
            repeats: Number of texts that were skipped because they equal an earlier text.

        Raises:
            ValueError: No row was used.
        """
        numbers = self.labels.seen
        missing_gold = unscored + sum(
            rows for label, rows in self._label_rows.items() if numbers.get(label, 0.0) is None
        )
        blank_text = count_noun(self._blank_count, "empty file" if self._is_folder else "blank line")
        skipped = [
            f"{noun} left out"
            for number, noun in (
                (self._blank_count, blank_text),
                (self._empty_count, f"{count_noun(self._empty_count, 'row')} with an empty text"),
                (missing_gold, f"{count_noun(missing_gold, 'row')} without a gold label"),
                (repeats, count_noun(repeats, "repeated text")),
            )
            if number
        ]
        self._scores.check(self._where)
        if not count:
            expected = f"at least one row with text{' and a gold label' if missing_gold else ''}"
            todo = "name a file that has labels" if missing_gold else "check that the file was written to its end"
            raise reading_error(self._where, expected, join_names(skipped) or "an empty file", todo)
        name = self._where if self._where.startswith(PREFIX) else self.path.name or self._where
        facts = [*self._notes, count_noun(count, "row"), *skipped]
        return f"{name}: {'; '.join([self._describe_columns(), *facts])}"

    def _describe_columns(self) -> str:
        """Describes the use of the file's columns, the target last."""
        most_texts = max(self._text_counts)
        notes = {"text" if "text" in self._plan else "positive": f" ({_range(self._text_counts)} rows a line)"}
        notes = {"text": " (a .txt file each)"} if self._is_folder else notes if most_texts > 1 else {}
        names = {}
        if self.negatives:
            names["negative"] = join_names(negative_names(max(self.negatives))) or "no hard negatives"
            if len(self.negatives) > 1:
                notes["negative"] = f" ({_range(set(self.negatives))} a line)"
        columns = dict(self._plan)
        notes |= {"scores": f": {self._scores.describe()}"} if "scores" in columns else {}
        if labels := self.labels.describe(self._label_rows):
            notes["target"] = f": {labels}"
            columns["target"] = columns.pop("target")
        return join_names(
            f"{join_names(columns[name])} -> {names.get(name, name)}{notes.get(name, '')}" for name in columns
        )


def _range(numbers: set[int]) -> str:
    return f"{min(numbers)}" if len(numbers) == 1 else f"{min(numbers)} to {max(numbers)}"


def _passages(cell: object) -> object:
    """Returns the texts of passages that are objects with ``text`` and ``title``, as in Tevatron's files."""
    passages = cell if isinstance(cell, list) else [cell]
    objects = [
        passage for passage in passages if isinstance(passage, dict) and isinstance(passage.get("text"), str)
    ]
    if not passages or len(objects) < len(passages):
        return cell
    return [f"{passage.get('title') or ''} {passage['text']}".strip() for passage in objects]
