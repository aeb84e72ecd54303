"""Readers of the data sets of semantic textual similarity (STS), from a folder or from the hub."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Self

import torch
from torch import Tensor

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage.text_files import read_text
from contrastive_text.core.targets import Scores
from contrastive_text.data import Table, read_rows
from contrastive_text.data.files.formats import FileForm, count_noun, join_names, reading_error
from contrastive_text.data.files.parsing import PREFIX
from contrastive_text.evaluation.senteval_data import SUFFIXES, find, naming, only

_HUB_COLUMNS = {"anchor": "sentence1", "positive": "sentence2", "target": "score"}


@dataclass(frozen=True, slots=True)
class STSPairs:
    """Pairs of texts of an STS data set, with gold scores.

    Args:
        first: First text of each of n pairs.
        second: Second text of each of n pairs.
        gold: Gold scores, (n,), float64; NaN if scores were not read.
        subsets: Name of each pair's subset; empty if it is unknown.
        description: Text that says how the files were understood, how many rows were skipped, and the published
            number of pairs if it differs.
        by_column: Whether first texts get the model's query prompt and second texts its document prompt, as in
            validation. Otherwise all texts get the default prompt, as in the STS tasks.
    """

    first: list[str]
    second: list[str]
    gold: Tensor
    subsets: list[str]
    description: str = ""
    by_column: bool = False

    @classmethod
    def of_table(cls, table: Table, by_column: bool = False) -> Self:
        """Converts a table of ``data.read_pairs`` to pairs."""
        return cls(
            first=[str(row["anchor"]) for row in table],
            second=[str(row["positive"]) for row in table],
            gold=torch.tensor([float(str(row.get("target", "nan"))) for row in table], dtype=torch.float64),
            subsets=[str(row.get("subset", "")) for row in table],
            description=table.description,
            by_column=by_column,
        )

    def __len__(self) -> int:
        return len(self.first)


class _DataSet(NamedTuple):
    table: str  # prefix of the names of plain tables
    hub: str  # name on the hub
    folder: str  # folder in SentEval's data
    files: Mapping[str, Sequence[str]]  # SentEval's files of each split; of a year, the files with scores
    pairs: Mapping[str, int]  # published number of scored pairs of each split
    columns: tuple[int, int, int] = (0, 1, 2)  # columns of score, first and second text in SentEval's files
    header: int = 0  # number of header lines in SentEval's files

    @property
    def is_year(self) -> bool:
        return "train" not in self.files


def _year(name: str, pairs: int, subsets: str) -> _DataSet:
    return _DataSet(
        table=name.lower(),
        hub=f"{name.lower()}-sts",
        folder=f"STS/{name}-en-test",
        files={"test": [f"STS.gs.{subset}.txt" for subset in subsets.split()]},
        pairs={"test": pairs},
    )


_DATA_SETS: Mapping[str, _DataSet] = {
    "STS12": _year("STS12", 3108, "MSRpar MSRvid SMTeuroparl surprise.OnWN surprise.SMTnews"),
    "STS13": _year("STS13", 1500, "FNWN headlines OnWN"),  # without SMT, which only LDC distributes
    "STS14": _year("STS14", 3750, "deft-forum deft-news headlines images OnWN tweet-news"),
    "STS15": _year("STS15", 3000, "answers-forums answers-students belief headlines images"),
    "STS16": _year("STS16", 1186, "answer-answer headlines plagiarism postediting question-question"),
    "STS-B": _DataSet(
        table="stsb",
        hub="stsbenchmark-sts",
        folder="STS/STSBenchmark",
        files={split: [f"sts-{split}.csv"] for split in ("train", "dev", "test")},
        pairs={"train": 5749, "dev": 1500, "test": 1379},
        columns=(4, 5, 6),
    ),
    "SICK-R": _DataSet(
        table="sick",
        hub="sickr-sts",
        folder="SICK",
        files={"train": ["SICK_train.txt"], "dev": ["SICK_trial.txt"], "test": ["SICK_test_annotated.txt"]},
        pairs={"train": 4500, "dev": 500, "test": 4927},
        columns=(3, 1, 2),
        header=1,
    ),
}
STS_TASKS = tuple(_DATA_SETS)
"""Names of the seven STS tasks, in the order of the papers."""


def find_sts(folder: str | Path) -> dict[str, STSPairs | str]:
    """Returns the test pairs of the seven STS tasks, or a text that names a task's missing files.

    Args:
        folder: Folder or hub; see ``find_pairs``.

    Returns:
        Pairs or text of each of the seven tasks, in the order of the papers.

    Raises:
        FileNotFoundError: The folder doesn't exist.
        ValueError: A file is damaged. The message names the line.
        ImportError: The folder is the hub, and the library ``datasets`` isn't installed.
    """
    return {task: find_pairs(task, folder) for task in STS_TASKS}


def find_pairs(task: str, folder: str | Path, split: str = "test", scored: bool = True) -> STSPairs | str:
    """Returns the pairs of a split of an STS task, or a text that names the missing files and their source.

    Searches the folder, its subfolders, its folder ``data`` and the subfolders of ``data`` for

    - a plain table, ``sts12.test.tsv`` to ``sts16.test.tsv``, ``stsb.test.tsv`` or ``sick.test.tsv``, with any
      suffix that ``data.read_pairs`` reads. Tables of STS12 to STS16 have a column ``subset``;
    - if there is no table, SentEval's own files (``STS/STS12-en-test/STS.input.MSRpar.txt``,
      ``STS/STSBenchmark``, ``SICK``).

    Pairs with an empty gold score are skipped and counted.

    Args:
        task: Name in ``STS_TASKS``.
        folder: Folder; or ``hub`` for MTEB's copies on the hub, which have no subsets; or ``hub:PLACE`` for
            copies of another user of the hub or in a folder.
        split: Split in ``sts_splits(task)``.
        scored: Whether to read gold scores. If False, pairs without a score are kept, and all scores are NaN.

    Raises:
        FileNotFoundError: The folder doesn't exist.
        ValueError: A file is damaged. The message names the line.
        ImportError: The folder is the hub, and the library ``datasets`` isn't installed.
    """
    data = _DATA_SETS[task]
    name, _, place = str(folder).partition(":")
    if name == "hub":
        return _on_hub(task, f"{place or 'mteb'}/{data.hub}", split, scored)
    tables = [f"{data.table}.{split}{suffix}" for suffix in SUFFIXES]
    with naming(task):
        if (table := only([path for name in tables for path in find(folder, name)])) is not None:
            return _read_table(task, str(table), split, scored)
        scores = [f"{data.folder}/{name}" for name in data.files[split]]
        files = {name: only(find(folder, name)) for name in (*scores, *map(_texts_of, scores))}
    missing = [name for name, path in files.items() if path is None]
    if not missing:
        return _read_senteval(task, [str(files[name]) for name in scores], split, scored)
    senteval = data.folder if data.is_year and len(missing) == len(files) else join_names(missing)
    return (
        f"expected {tables[0]} (.csv, .jsonl, .gz) or SentEval's {senteval} in {folder} or a folder in it, found "
        "none; fetch it with SentEval's data/downstream/get_transfer_data.bash "
        f"(https://github.com/facebookresearch/SentEval), or give hub for the folder, to read mteb/{data.hub}"
    )


def sts_splits(task: str) -> Sequence[str]:
    """Returns the names of the splits of an STS task. STS12 to STS16 have only ``test``.

    Example:
        >>> sts_splits("STS12"), sts_splits("SICK-R")
        (('test',), ('train', 'dev', 'test'))
    """
    return tuple(_DATA_SETS[task].files)


def _on_hub(task: str, name: str, split: str, scored: bool) -> STSPairs | str:
    path = f"{PREFIX}{name}:{'validation' if split == 'dev' else split}"
    try:
        return _read_table(task, path, split, scored, _HUB_COLUMNS)
    except ValueError as error:
        return f"{error}; or give a folder with the files"


def _read_table(
    task: str, path: str, split: str, scored: bool, columns: Mapping[str, str] | None = None
) -> STSPairs:
    reads = ("anchor", "positive", "target") if scored else ("anchor", "positive")
    read_columns = None if columns is None else {name: columns[name] for name in reads}
    form = FileForm(pair_labels="all", options={})  # without scores, pairs with any score are read
    table = read_rows(path, reads=reads, columns=read_columns, target=_Gold() if scored else None, form=form)
    pairs = STSPairs.of_table(table)
    return replace(
        pairs,
        subsets=pairs.subsets if _DATA_SETS[task].is_year else [task] * len(pairs),
        description=pairs.description + (_unpublished(task, split, len(pairs)) if scored else ""),
    )


def _read_senteval(task: str, files: Sequence[str], split: str, scored: bool) -> STSPairs:
    """Reads the pairs of an STS task from SentEval's files.

    The tokens of a text are joined by blanks, as in SimCSE's copy of SentEval.
    """
    data = _DATA_SETS[task]
    first, second, gold, subsets = [], [], [], []
    empty = 0
    for path in files:
        subset = re.sub(r"^STS\.gs\.(surprise\.)?|\.txt$", "", Path(path).name) if data.is_year else task
        for where, cells in list(_rows(path))[data.header :]:
            if len(cells) <= max(data.columns):
                raise reading_error(where, "two texts and a score", "fewer columns", "fetch the file again")
            score, *texts = (" ".join(cells[column].split()) for column in data.columns)
            try:
                number = _Gold().parse(score) if scored else math.nan
            except ValueError as error:
                raise InvalidValueError(f"{where}: {error}") from None
            if number is None:
                empty += 1
                continue
            first.append(texts[0])
            second.append(texts[1])
            gold.append(number)
            subsets.append(subset)
    source = str(Path(files[0]).parent)
    if not gold:
        raise reading_error(source, "pairs with a gold score", "no score", "fetch the files again")
    skipped = f"; {count_noun(empty, 'row')} without a gold label left out" if empty else ""
    unpublished = _unpublished(task, split, len(gold)) if scored else ""
    return STSPairs(
        first=first,
        second=second,
        gold=torch.tensor(gold, dtype=torch.float64),
        subsets=subsets,
        description=f"{source}: {count_noun(len(gold), 'row')}{skipped}{unpublished}",
    )


def _rows(path: str) -> Iterator[tuple[str, list[str]]]:
    """Yields the cells of each line of an STS file with ``FILE:LINE``. Joins a year's scores with its texts."""
    lines, text_lines = _lines(path), _lines(_texts_of(path))
    if len(lines) != len(text_lines):
        got = f"{len(lines):,} scores and {len(text_lines):,} pairs"
        raise reading_error(path, f"a score for each line of {_texts_of(path)}", got, "fetch both again")
    for number, (line, texts) in enumerate(zip(lines, text_lines, strict=True), start=1):
        yield f"{path}:{number}", [line, *texts.split("\t")] if path != _texts_of(path) else line.split("\t")


def _texts_of(path: str) -> str:
    """Returns the path of the texts of a file of STS scores. Any other file has scores and texts."""
    return path.replace("STS.gs.", "STS.input.")


def _lines(path: str) -> list[str]:
    return read_text(Path(path)).removesuffix("\n").split("\n")


def _unpublished(task: str, split: str, pairs: int) -> str:
    published = _DATA_SETS[task].pairs[split]
    return "" if pairs == published else f"; {published:,} were published, so scores do not compare with papers'"


class _Gold(Scores):
    """Target that reads a gold score from 0 to 5 without scaling it, and None from an empty cell."""

    def parse(self, cell: str) -> float | None:
        return None if not cell.strip() or super().parse(cell) is None else float(cell)


PUBLISHED: Mapping[str, int] = {
    "STS12": 6216, "STS13": 3000, "STS14": 7500, "STS15": 17000, "STS16": 18366, "STS-B": 17256, "SICK-R": 19854,
}  # fmt: skip
"""Number of texts of each data set in table 1 of ConSERT, 89,192 in all."""


@dataclass(frozen=True, slots=True)
class CorpusPart:
    """Texts of one data set of ConSERT's training corpus.

    Args:
        texts: Both texts of each pair without line breaks, including repetitions.
        missing: Text for each missing split that names its files and their source.
    """

    texts: list[str]
    missing: list[str]


def consert_corpus(folder: str | Path) -> dict[str, CorpusPart]:
    """Returns the texts on which ConSERT trains, from the available files of the seven STS tasks.

    Source: Yan et al. 2021 (https://arxiv.org/abs/2105.11741), table 1. The texts are both texts of every line of
    STS12 to STS16, with or without a score, and of the training, development and test sets of STS-B and SICK:
    89,192 texts with duplicates. Test texts are included. SentEval's files have all texts. Tables for evaluation
    may lack the 13,497 lines of STS15 and STS16 without a score; compare the counts with ``PUBLISHED``.

    Args:
        folder: Folder or hub; see ``find_pairs``.

    Returns:
        Texts and missing splits of each data set.

    Raises:
        FileNotFoundError: The folder doesn't exist.
        ValueError: A file is damaged. The message names the line.
        ImportError: The folder is the hub, and the library ``datasets`` isn't installed.
    """
    return {task: _part(task, folder) for task in STS_TASKS}


def _part(task: str, folder: str | Path) -> CorpusPart:
    splits = [find_pairs(task, folder, split, scored=False) for split in sts_splits(task)]
    pairs = [
        pair
        for split in splits
        if isinstance(split, STSPairs)
        for pair in zip(split.first, split.second, strict=True)
    ]
    return CorpusPart(
        texts=[" ".join(text.split()) for pair in pairs for text in pair],
        missing=[split for split in splits if isinstance(split, str)],
    )
