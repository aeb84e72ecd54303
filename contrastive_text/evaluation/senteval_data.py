"""Readers of SentEval's transfer and probing tasks, from plain tables or SentEval's own files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from contrastive_text.core.errors import InvalidValueError, MissingFileError
from contrastive_text.core.storage.text_files import decoded_lines, is_blank
from contrastive_text.data.files.formats import join_names, reading_error, short
from contrastive_text.data.files.parsing import parse

ALL, TRAIN, DEV, TEST = "all", "train", "dev", "test"
"""Names of the parts of a SentEval task, such as ``train``."""
FULL_STOP = "."
"""Text that replaces an empty text, as in the code of SentEval and DeCLUTR."""
WHERE_TO_GET = (
    "fetch SentEval's data with its get_transfer_data.bash (https://github.com/facebookresearch/SentEval)"
)

Row = tuple[str, ...]
"""Row of a SentEval task: its label, and its text or its two texts."""


@dataclass(frozen=True, slots=True)
class LabeledTexts:
    """Rows of a SentEval task, with the rows of all parts in one sequence.

    Args:
        task: Name of the task.
        source: Names of the files.
        labels: Label of each of N rows.
        sides: N texts of the rows. For pairs, N first texts and N second texts.
        sizes: Number of rows of each part, in the order of the rows: ``all``, or ``train``, ``dev`` and ``test``.
        empty: Number of empty texts that a full stop replaces.
    """

    task: str
    source: str
    labels: list[str]
    sides: list[list[str]]
    sizes: Mapping[str, int]
    empty: int

    @classmethod
    def of(cls, task: str, source: str, parts: Mapping[str, Sequence[Row]]) -> LabeledTexts:
        """Joins the rows of all parts of a SentEval task.

        Raises:
            ValueError: A part has no rows, all labels are equal, or no training row has the label of a row.
        """
        names = join_names(parts)
        for part, rows in parts.items():
            if not rows:
                raise reading_error(source, f"rows in {names}", f"no rows in {part}", "fetch it again")
        classes = {row[0] for row in next(iter(parts.values()))}
        if len(classes) < 2:
            got = f"{short(next(iter(classes)))} alone"
            raise reading_error(source, "two classes or more", got, "check the labels")
        rows = [row for part in parts.values() for row in part]
        if unknown := sorted({row[0] for row in rows} - classes):
            got = short(unknown[0])
            raise reading_error(
                source, f"a label of the training rows, {join_names(sorted(classes))}", got, "check it"
            )
        columns = [list(texts) for texts in zip(*(row[1:] for row in rows), strict=True)]
        sides = [[FULL_STOP if is_blank(text) else text for text in texts] for texts in columns]
        empty = sum(is_blank(text) for texts in columns for text in texts)
        sizes = {part: len(rows) for part, rows in parts.items()}
        return cls(task, source, [row[0] for row in rows], sides, sizes, empty)


@contextmanager
def naming(task: str) -> Iterator[None]:
    """Puts the name of a task before the message of an error."""
    try:
        yield
    except InvalidValueError as error:
        raise InvalidValueError(f"{task}: {error}") from error


def only(paths: Sequence[Path]) -> Path | None:
    """Returns the only path of a list of paths, or None if the list is empty.

    Raises:
        ValueError: There are several paths.
    """
    if len(paths) > 1:
        todo = "name the folder of one of them"
        raise reading_error(str(paths[0]), "one copy of the data", f"{paths[1]} too", todo)
    return paths[0] if paths else None


def find(folder: str | Path, name: str) -> list[Path]:
    """Finds the files of a name in a folder, its subfolders, its folder ``data`` and the subfolders of ``data``.

    Raises:
        FileNotFoundError: The folder doesn't exist.
    """
    root = Path(folder)
    if not root.is_dir():
        raise MissingFileError(f"{root}: expected a folder of data sets, found none; check its name")
    inside = [path for place in (root, root / "data") if place.is_dir() for path in sorted(place.iterdir())]
    places = dict.fromkeys([root, *(path for path in inside if path.is_dir())])
    return [path for place in places if (path := place / name).is_file()]


def lines_of(path: Path, encoding: str = "utf-8") -> list[tuple[str, str]]:
    """Returns the lines of a file, each with file name and line number as ``FILE:LINE``.

    Raises:
        ValueError: The bytes are not in the encoding.
    """
    # A single carriage return ends a line too, as in SentEval's code.
    text = "".join(decoded_lines(path, encoding=encoding)).replace("\r\n", "\n").replace("\r", "\n")
    lines = text.removesuffix("\n").split("\n") if text else []
    return [(f"{path}:{number}", line) for number, line in enumerate(lines, start=1)]


def row_of(where: str, cells: Iterable[str]) -> Row:
    """Returns a row of a SentEval task from a label and texts.

    Any white space in a text becomes a single blank, as in SentEval.
    """
    label, *texts = cells
    if not label.strip():
        raise reading_error(where, "a label", "no label", "fetch the file again")
    return (label.strip(), *(" ".join(text.split()) for text in texts))


_FILES = {
    "Length": "sentence_length.txt",
    "WordContent": "word_content.txt",
    "Depth": "tree_depth.txt",
    "TopConstituents": "top_constituents.txt",
    "BigramShift": "bigram_shift.txt",
    "Tense": "past_present.txt",
    "SubjNumber": "subj_number.txt",
    "ObjNumber": "obj_number.txt",
    "OddManOut": "odd_man_out.txt",
    "CoordinationInversion": "coordination_inversion.txt",
}
PROBING_TASKS = tuple(_FILES)
"""Names of the ten probing tasks, as in the papers (Conneau et al., 2018, https://arxiv.org/abs/1805.01070)."""
_PARTS = {"tr": TRAIN, "va": DEV, "te": TEST}


def probing_data(task: str, folder: str | Path) -> LabeledTexts | str:
    """Returns the rows of a probing task, or a text that names the missing file and its source.

    The file, such as ``sentence_length.txt``, is searched in the folder, its subfolders, its folder ``data`` and
    the subfolders of ``data``. Each line has ``tr``, ``va`` or ``te``, a label and a text, separated by tabs.

    Args:
        task: Name in ``PROBING_TASKS``.
        folder: Folder to search.

    Raises:
        FileNotFoundError: The folder doesn't exist.
        ValueError: The file is damaged, or there are two copies of it.
    """
    name = _FILES[task]
    with naming(task):
        path = only(find(folder, name))
        if path is None:
            return (
                f"expected {name} in {folder} or a folder in it, found none; fetch data/probing of SentEval "
                "(https://github.com/facebookresearch/SentEval)"
            )
        parts: dict[str, list[Row]] = {part: [] for part in _PARTS.values()}
        for where, line in lines_of(path):
            part, *cells = line.split("\t")
            if part not in _PARTS or len(cells) != 2:
                raise reading_error(
                    where, "tr, va or te, a label and a text", short(line), "fetch the file again"
                )
            parts[_PARTS[part]].append(row_of(where, cells))
        return LabeledTexts.of(task, str(path), parts)


SUFFIXES = [f"{suffix}{packed}" for suffix in (".tsv", ".csv", ".jsonl") for packed in ("", ".gz")]
"""Suffixes of the file names of plain tables."""


class _Layout(NamedTuple):
    files: Mapping[str, Sequence[Sequence[str]]]
    """Name of a part of a task -> the part's files, each as a list of the names that it may have."""
    read: Callable[[Sequence[Path]], list[Row]]
    """Function that reads the files of a part of a SentEval task."""


def transfer_data(task: str, folder: str | Path) -> LabeledTexts | str:
    """Returns the rows of a transfer task, or a text that names the missing files and their source.

    The folder, its subfolders, its folder ``data`` and the subfolders of ``data`` are searched for

    - plain tables (``mr.tsv``, ``trec.train.tsv``, ...; also ``.csv``, ``.jsonl`` and ``.gz``) with the columns
      ``label`` and ``text``. Pairs have ``sentence1`` and ``sentence2`` (``premise`` and ``hypothesis`` for
      SNLI). The label of SICK is ``entailment``;
    - SentEval's files (``MR/rt-polarity.pos``, ``TREC/train_5500.label``, ...), whose tokens are joined by
      blanks.

    Args:
        task: Name in ``TRANSFER_TASKS``.
        folder: Folder to search.

    Raises:
        FileNotFoundError: The folder doesn't exist.
        ValueError: A file is damaged, or there are two copies of a task.
    """
    complete: list[tuple[_Layout, dict[str, list[Path]]]] = []
    missing: list[str] = []
    with naming(task):
        for layout in _TASKS[task]:
            paths_of: dict[str, list[Path]] = {part: [] for part in layout.files}
            absent = []
            for part, file in ((part, file) for part, files in layout.files.items() for file in files):
                path = only([path for name in file for path in find(folder, name)])
                if path is None:
                    absent.append(file[0])
                else:
                    paths_of[part].append(path)
            if absent:
                missing.append(join_names(absent))
            else:
                complete.append((layout, paths_of))
        if not complete:
            return f"expected {', or '.join(missing)}, in {folder} or a folder in it, found none; {WHERE_TO_GET}"
        only([next(iter(paths_of.values()))[0] for _, paths_of in complete])
        layout, paths_of = complete[0]
        source = join_names(str(path) for paths in paths_of.values() for path in paths)
        texts = LabeledTexts.of(task, source, {part: layout.read(paths) for part, paths in paths_of.items()})
        if task == "MRPC" and (labels := sorted(set(texts.labels))) != ["0", "1"]:
            raise reading_error(
                source, "the labels 0 and 1", join_names(map(short, labels)), "write 1 for a paraphrase"
            )
        return texts


def _table(paths: Sequence[Path], columns: Sequence[str]) -> list[Row]:
    """Reads columns of a plain table as rows of labels and texts."""
    (path,) = paths
    content = parse(path)
    if missing := [name for name in columns if name not in content.header]:
        got = join_names(map(short, content.header)) or "an empty file"
        raise reading_error(str(path), f"the columns {join_names(columns)}", got, f"name a column {missing[0]}")
    indices = [content.header.index(name) for name in columns]
    return [
        row_of(f"{path}:{line}", ["" if cells[i] is None else str(cells[i]) for i in indices])
        for line, cells in filter(None, content.records())
    ]


def _negative_and_positive(paths: Sequence[Path]) -> list[Row]:
    """Reads a file of texts with label 0 and a file of texts with label 1."""
    return [
        row_of(where, (str(label), line))
        for label, path in enumerate(paths)
        for where, line in lines_of(path, "latin-1")
    ]


def _tabbed(columns: Sequence[int], header: int) -> Callable[[Sequence[Path]], list[Row]]:
    """Returns a reader of files with tabs between columns and some header lines."""

    def read(paths: Sequence[Path]) -> list[Row]:
        rows = [(where, line.split("\t")) for path in paths for where, line in lines_of(path)[header:]]
        for where, cells in rows:
            if len(cells) <= max(columns):
                expected = f"{max(columns) + 1} columns or more"
                raise reading_error(where, expected, str(len(cells)), "fetch the file again")
        return [row_of(where, (cells[column] for column in columns)) for where, cells in rows]

    return read


def _label_first(mark: str, encoding: str) -> Callable[[Sequence[Path]], list[Row]]:
    """Returns a reader of lines ``LABEL text``, or of TREC's ``LABEL:fine text``, whose fine label is omitted."""

    def read(paths: Sequence[Path]) -> list[Row]:
        rows = []
        for where, line in ((where, line) for path in paths for where, line in lines_of(path, encoding)):
            label, separator, rest = line.strip().partition(mark)
            if not separator:
                raise reading_error(where, f"a label and {mark!r}", short(line), "fetch the file again")
            rows.append(row_of(where, (label, rest if mark == " " else rest.partition(" ")[2])))
        return rows

    return read


def _parallel_files(paths: Sequence[Path]) -> list[Row]:
    """Reads the files of SNLI: labels, first texts and second texts, with the same line numbers."""
    labels, *texts = (lines_of(path, "latin-1") for path in paths)
    if len({len(labels), *map(len, texts)}) > 1:
        got = join_names(f"{len(lines):,}" for lines in (labels, *texts))
        raise reading_error(join_names(map(str, paths)), "as many lines in each", got, "fetch them again")
    return [
        row_of(where, (label, *(line for _, line in sides)))
        for (where, label), *sides in zip(labels, *texts, strict=True)
    ]


_THREE = (TRAIN, DEV, TEST)


def _tables(*columns: str, **names: str) -> _Layout:
    """Returns the layout of a plain table for each part, with the columns of label and texts."""
    files = {part: [[f"{name}{suffix}" for suffix in SUFFIXES]] for part, name in names.items()}
    return _Layout(files, partial(_table, columns=columns))


def _three_tables(name: str, *columns: str) -> _Layout:
    return _tables(*columns, **{part: f"{name}.{part}" for part in _THREE})


def _senteval(read: Callable[[Sequence[Path]], list[Row]], **names: str | Sequence[str]) -> _Layout:
    """Returns the layout of SentEval's own files, with one or several files for each part."""
    names_of = {part: [files] if isinstance(files, str) else files for part, files in names.items()}
    return _Layout({part: [[name] for name in files] for part, files in names_of.items()}, read)


def _two_classes(task: str, negative: str, positive: str) -> tuple[_Layout, _Layout]:
    """Returns the layouts of a task whose SentEval files have one class each."""
    senteval = _senteval(_negative_and_positive, all=(f"{task}/{negative}", f"{task}/{positive}"))
    return _tables("label", "text", all=task.lower()), senteval


_TASKS: Mapping[str, tuple[_Layout, _Layout]] = {
    "MR": _two_classes("MR", "rt-polarity.neg", "rt-polarity.pos"),
    "CR": _two_classes("CR", "custrev.neg", "custrev.pos"),
    "SUBJ": _two_classes("SUBJ", "subj.subjective", "subj.objective"),
    "MPQA": _two_classes("MPQA", "mpqa.neg", "mpqa.pos"),
    "SST2": (
        _three_tables("sst2", "label", "text"),
        _senteval(_tabbed((1, 0), header=0), **{part: f"SST/binary/sentiment-{part}" for part in _THREE}),
    ),
    "SST5": (
        _three_tables("sst5", "label", "text"),
        _senteval(_label_first(" ", "utf-8"), **{part: f"SST/fine/sentiment-{part}" for part in _THREE}),
    ),
    "TREC": (
        _tables("label", "text", train="trec.train", test="trec.test"),
        _senteval(_label_first(":", "latin-1"), train="TREC/train_5500.label", test="TREC/TREC_10.label"),
    ),
    "MRPC": (
        _tables("label", "sentence1", "sentence2", train="mrpc.train", test="mrpc.test"),
        _senteval(
            _tabbed((0, 3, 4), header=1),
            train="MRPC/msr_paraphrase_train.txt",
            test="MRPC/msr_paraphrase_test.txt",
        ),
    ),
    "SICK-E": (
        _three_tables("sick", "entailment", "sentence1", "sentence2"),
        _senteval(
            _tabbed((4, 1, 2), header=1),
            train="SICK/SICK_train.txt",
            dev="SICK/SICK_trial.txt",
            test="SICK/SICK_test_annotated.txt",
        ),
    ),
    "SNLI": (
        _three_tables("snli", "label", "premise", "hypothesis"),
        _senteval(
            _parallel_files,
            **{part: [f"SNLI/{file}.{part}" for file in ("labels", "s1", "s2")] for part in _THREE},
        ),
    ),
}
TRANSFER_TASKS = tuple(_TASKS)
"""Names of the ten transfer tasks, in the order of the papers."""
