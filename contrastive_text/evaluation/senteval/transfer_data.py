"""The data sets of SentEval's transfer tasks: found as plain tables or in SentEval's own layout, and read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from contrastive_text.data.files.formats import listed, reading_error, short
from contrastive_text.data.files.parsing import parse
from contrastive_text.evaluation.senteval.labelled_texts import (
    DEV,
    TEST,
    TRAIN,
    WHERE_TO_GET,
    LabelledTexts,
    Row,
    find,
    lines_of,
    naming,
    only,
    row_of,
)

_SUFFIXES = [f"{suffix}{packed}" for suffix in (".tsv", ".csv", ".jsonl") for packed in ("", ".gz")]


class _Layout(NamedTuple):
    files: Mapping[str, Sequence[Sequence[str]]]
    """Part -> its files; of each the names that it may have."""
    read: Callable[[Sequence[Path]], list[Row]]
    """Reads the files of a part."""


def transfer_data(task: str, folder: str | Path) -> LabelledTexts | str:
    """Returns the rows of a transfer task, or what is missing and where to get it.

    They are looked for in the folder, in the folders in it, and in those of ``data`` in it, as

    - plain tables (``mr.tsv``, ``trec.train.tsv``, ...; also ``.csv``, ``.jsonl`` and ``.gz``) with the columns
      ``label`` and ``text``; of pairs ``sentence1`` and ``sentence2`` (``premise`` and ``hypothesis`` for SNLI);
      the label of SICK is ``entailment``;
    - SentEval's files (``MR/rt-polarity.pos``, ``TREC/train_5500.label``, ...), whose texts are their tokens
      joined by blanks.

    Args:
        task: One of ``TRANSFER_TASKS``.
        folder: Where to look.

    Raises:
        FileNotFoundError: No such folder.
        ValueError: A file that is not what it should be, or two copies of a task.
    """
    complete: list[tuple[_Layout, dict[str, list[Path]]]] = []
    missing: list[str] = []
    with naming(task):
        for layout in _TASKS[task]:
            found: dict[str, list[Path]] = {part: [] for part in layout.files}
            gone = []
            for part, file in ((part, file) for part, files in layout.files.items() for file in files):
                path = only([path for name in file for path in find(folder, name)])
                if path is None:
                    gone.append(file[0])
                else:
                    found[part].append(path)
            if gone:
                missing.append(listed(gone))
            else:
                complete.append((layout, found))
        if not complete:
            return f"expected {', or '.join(missing)}, in {folder} or a folder in it, found none; {WHERE_TO_GET}"
        only([next(iter(found.values()))[0] for _, found in complete])
        layout, found = complete[0]
        source = listed(str(path) for paths in found.values() for path in paths)
        texts = LabelledTexts.of(task, source, {part: layout.read(paths) for part, paths in found.items()})
        if task == "MRPC" and (labels := sorted(set(texts.labels))) != ["0", "1"]:
            raise reading_error(
                source, "the labels 0 and 1", listed(map(short, labels)), "write 1 for a paraphrase"
            )
        return texts


def _table(paths: Sequence[Path], columns: Sequence[str]) -> list[Row]:
    (path,) = paths
    content = parse(path)
    if lacking := [name for name in columns if name not in content.header]:
        got = listed(map(short, content.header)) or "an empty file"
        raise reading_error(str(path), f"the columns {listed(columns)}", got, f"name a column {lacking[0]}")
    places = [content.header.index(name) for name in columns]
    return [
        row_of(f"{path}:{line}", ["" if cells[place] is None else str(cells[place]) for place in places])
        for line, cells in filter(None, content.records())
    ]


def _negative_and_positive(paths: Sequence[Path]) -> list[Row]:
    return [
        row_of(where, (str(label), line))
        for label, path in enumerate(paths)
        for where, line in lines_of(path, "latin-1")
    ]


def _tabbed(places: Sequence[int], header: int) -> Callable[[Sequence[Path]], list[Row]]:
    def read(paths: Sequence[Path]) -> list[Row]:
        rows = [(where, line.split("\t")) for path in paths for where, line in lines_of(path)[header:]]
        for where, cells in rows:
            if len(cells) <= max(places):
                expected = f"{max(places) + 1} columns or more"
                raise reading_error(where, expected, str(len(cells)), "fetch the file again")
        return [row_of(where, (cells[place] for place in places)) for where, cells in rows]

    return read


def _label_first(mark: str, encoding: str) -> Callable[[Sequence[Path]], list[Row]]:
    """Reads ``LABEL text``, or TREC's ``LABEL:fine text``, whose fine label is left out."""

    def read(paths: Sequence[Path]) -> list[Row]:
        rows = []
        for where, line in ((where, line) for path in paths for where, line in lines_of(path, encoding)):
            label, found, rest = line.strip().partition(mark)
            if not found:
                raise reading_error(where, f"a label and {mark!r}", short(line), "fetch the file again")
            rows.append(row_of(where, (label, rest if mark == " " else rest.partition(" ")[2])))
        return rows

    return read


def _beside(paths: Sequence[Path]) -> list[Row]:
    """Reads SNLI's three files of labels and texts, line by line."""
    labels, *texts = (lines_of(path, "latin-1") for path in paths)
    if len({len(labels), *map(len, texts)}) > 1:
        got = listed(f"{len(lines):,}" for lines in (labels, *texts))
        raise reading_error(listed(map(str, paths)), "as many lines in each", got, "fetch them again")
    return [
        row_of(where, (label, *(line for _, line in sides)))
        for (where, label), *sides in zip(labels, *texts, strict=True)
    ]


_THREE = (TRAIN, DEV, TEST)


def _tables(*columns: str, **names: str) -> _Layout:
    """Returns the layout of a plain table for each part; the columns are those of label and texts."""
    files = {part: [[f"{name}{suffix}" for suffix in _SUFFIXES]] for part, name in names.items()}
    return _Layout(files, partial(_table, columns=columns))


def _three_tables(name: str, *columns: str) -> _Layout:
    return _tables(*columns, **{part: f"{name}.{part}" for part in _THREE})


def _theirs(read: Callable[[Sequence[Path]], list[Row]], **names: str | Sequence[str]) -> _Layout:
    """Returns SentEval's layout, a file or several for each part."""
    listed_names = {part: [each] if isinstance(each, str) else each for part, each in names.items()}
    return _Layout({part: [[name] for name in each] for part, each in listed_names.items()}, read)


def _opposites(task: str, negative: str, positive: str) -> tuple[_Layout, _Layout]:
    theirs = _theirs(_negative_and_positive, all=(f"{task}/{negative}", f"{task}/{positive}"))
    return _tables("label", "text", all=task.lower()), theirs


_TASKS: Mapping[str, tuple[_Layout, _Layout]] = {
    "MR": _opposites("MR", "rt-polarity.neg", "rt-polarity.pos"),
    "CR": _opposites("CR", "custrev.neg", "custrev.pos"),
    "SUBJ": _opposites("SUBJ", "subj.subjective", "subj.objective"),
    "MPQA": _opposites("MPQA", "mpqa.neg", "mpqa.pos"),
    "SST2": (
        _three_tables("sst2", "label", "text"),
        _theirs(_tabbed((1, 0), header=0), **{part: f"SST/binary/sentiment-{part}" for part in _THREE}),
    ),
    "SST5": (
        _three_tables("sst5", "label", "text"),
        _theirs(_label_first(" ", "utf-8"), **{part: f"SST/fine/sentiment-{part}" for part in _THREE}),
    ),
    "TREC": (
        _tables("label", "text", train="trec.train", test="trec.test"),
        _theirs(_label_first(":", "latin-1"), train="TREC/train_5500.label", test="TREC/TREC_10.label"),
    ),
    "MRPC": (
        _tables("label", "sentence1", "sentence2", train="mrpc.train", test="mrpc.test"),
        _theirs(
            _tabbed((0, 3, 4), header=1),
            train="MRPC/msr_paraphrase_train.txt",
            test="MRPC/msr_paraphrase_test.txt",
        ),
    ),
    "SICK-E": (
        _three_tables("sick", "entailment", "sentence1", "sentence2"),
        _theirs(
            _tabbed((4, 1, 2), header=1),
            train="SICK/SICK_train.txt",
            dev="SICK/SICK_trial.txt",
            test="SICK/SICK_test_annotated.txt",
        ),
    ),
    "SNLI": (
        _three_tables("snli", "label", "premise", "hypothesis"),
        _theirs(_beside, **{part: [f"SNLI/{file}.{part}" for file in ("labels", "s1", "s2")] for part in _THREE}),
    ),
}
TRANSFER_TASKS = tuple(_TASKS)
"""Ten tasks in the order of the papers."""
