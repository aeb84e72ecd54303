"""Data of the report page: texts, scored pairs and vectors of runs, and samples of their views."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from contrastive_text.core.config.class_paths import UntrustedError
from contrastive_text.core.config.specs import describe
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.libraries import is_read_error
from contrastive_text.core.random import generator
from contrastive_text.core.types import Row
from contrastive_text.data import Table, TextDataModule, read_pairs, read_rows
from contrastive_text.data.files.formats import FileForm
from contrastive_text.evaluation.cached import CachedEncoder
from contrastive_text.evaluation.diagnosis import Diagnosis, diagnose
from contrastive_text.evaluation.sts import pair_cosines as cosines_of_pairs
from contrastive_text.evaluation.sts_data import STSPairs
from contrastive_text.evaluation.view_edits import AlteredRows, altered_rows
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.metrics import pair_similarity
from contrastive_text.runs.report.charts import Note
from contrastive_text.runs.report.runs import MODEL, RunRecord
from contrastive_text.training.module import ContrastiveModule

SEED = 42
"""Seed of all random draws for the report page."""
FILES_REMEDY = "--pairs PAIRS.tsv and --texts TEXTS.txt name files that exist"
_TEXTS = ("text", "anchor", "positive", "negative")
_ALTERED_ROWS = 3
"""Number of rows of a task in the samples of its views."""


class TaskViews(NamedTuple):
    """Sample rows of a task with and without its views.

    Args:
        task: Name of the task.
        pairing: The pairing that chooses the texts of a row.
        rows: The first rows of the first epoch.
    """

    task: str
    pairing: str
    rows: AlteredRows


class RunFiles(NamedTuple):
    """Texts, scored pairs and view samples of a run, read through the data module of its checkpoint.

    Args:
        texts: Different texts of the training files.
        pairs: Name of a file of scored validation pairs -> its rows.
        views: Samples of the views of each task.
        lacks: Reason why data are missing; empty if nothing is missing.
    """

    texts: Sequence[str] = ()
    pairs: Mapping[str, Table] = {}
    views: Sequence[TaskViews] = ()
    lacks: str = ""


class Material(NamedTuple):
    """Texts and pairs on which all runs of a page are compared.

    Args:
        texts: Different texts, in the order of a seeded draw.
        pairs: Scored pairs, or None.
        pairs_source: Number and file of the pairs; empty without pairs.
        source: Numbers and files of pairs and texts.
        lacks: Reason why pairs or texts are missing; empty if nothing is missing.
    """

    texts: Sequence[str]
    pairs: Table | None
    pairs_source: str
    source: str
    lacks: str


class Space(NamedTuple):
    """Vectors of a run on the texts and pairs of the report page.

    Args:
        run: The run.
        texts: Vectors of the texts, normalized, (N, D).
        cosines: Cosines of the pairs, (P,); empty without pairs.
        random: Cosines of N random pairs of texts, (N,).
        diagnosis: Result of ``diagnose``; None if it couldn't be measured.
        lacks: Reason why there is no diagnosis.
    """

    run: RunRecord
    texts: Tensor
    cosines: Tensor
    random: Tensor
    diagnosis: Diagnosis | None
    lacks: str


def read_run_files(run: RunRecord) -> RunFiles:
    """Builds a run's module and data module from its checkpoint, and reads its data files.

    Relative paths in the configuration are relative to the working directory.

    Raises:
        UntrustedError: The checkpoint names a class of a module that isn't trusted.
    """
    if run.checkpoint is None:
        return RunFiles(lacks=run.lacks)
    data: TextDataModule | None = None
    try:
        module = ContrastiveModule.load_from_checkpoint(run.checkpoint.path, map_location="cpu").eval()
        data = TextDataModule.load_from_checkpoint(run.checkpoint.path, map_location="cpu", weights_only=True)
        data.set_module(module)
        data.setup("fit")
        views = [
            TaskViews(
                task=name,
                pairing=describe(task.pairing),
                rows=altered_rows(data.collator(name), module.encoder, task.rows, _ALTERED_ROWS),
            )
            for name, task in data.training.tasks.items()
        ]
        return _files_of(data, views)
    except UntrustedError:
        raise
    except Exception as error:  # a user's own part may raise anything; the page gives the reason
        if not is_read_error(error):
            raise
        lacks = " ".join(str(error).split())[:400] or type(error).__name__
    if data is None:
        return RunFiles(lacks=lacks)
    try:
        data.setup("validate")  # the pairs of a run whose training files can't be read
    except Exception as error:  # the reason is mostly the same
        if not is_read_error(error):
            raise
        return RunFiles(_training_texts(data), lacks=lacks)
    return _files_of(data, lacks=lacks)


def gather(
    files: Mapping[str, RunFiles], pairs: str | Path | None, texts: str | Path | None, limit: int
) -> Material:
    """Returns the texts and scored pairs of the report page, from named files or from the first run with some.

    Args:
        files: Name of a run -> its data.
        pairs: File of scored pairs, or None.
        texts: File of texts, or None.
        limit: Largest number of texts, and of pairs. From more, a random sample is drawn.

    Raises:
        FileNotFoundError: A named file doesn't exist.
        ValueError: A named file can't be read, or the limit is below 20.
    """
    if limit < 20:
        raise InvalidValueError(f"report.limit: expected 20 texts or more, got {limit}")
    table, pairs_file = _pairs_of(files) if pairs is None else (_read_pairs(pairs), Path(pairs).name)
    candidates, texts_file = _texts_of(files) if texts is None else (_read_texts(texts), Path(texts).name)
    if not candidates and table is not None:
        candidates, texts_file = row_texts(table.rows), pairs_file
    sources = []
    if table is not None:
        order = sorted(_drawn(len(table), limit))
        sources.append(f"{_share(len(order), len(table))} pairs of {pairs_file}")
        table = dataclasses.replace(table, rows=tuple(table[i] for i in order), sizes=(len(order),))
    pairs_source = "".join(sources)
    sample = [candidates[i] for i in _drawn(len(candidates), limit)]
    if sample:
        sources.append(f"{_share(len(sample), len(candidates))} different texts of {texts_file}")
    lacks = "; ".join(dict.fromkeys(run_files.lacks for run_files in files.values() if run_files.lacks))
    return Material(sample, table, pairs_source, " and ".join(sources), lacks)


def embed(run: RunRecord, material: Material, device: str | None = None) -> Space | Note:
    """Embeds texts and pairs with a run's saved model, or returns a note with the reason why it can't."""
    what = run.says("vectors")
    if run.model is None:
        return Note(what, f"there is no saved model in {run.folder / MODEL}", "fit saves it at its end")
    if len(material.texts) < 2:
        return Note(what, material.lacks or "no run names texts", FILES_REMEDY)
    try:
        encoder = CachedEncoder(SentenceEncoder.from_pretrained(run.model, device=device))
        texts = normalize(encoder(material.texts), dim=1)
        cosines = torch.empty(0) if material.pairs is None else pair_cosines(encoder, material.pairs)
    except ValueError as error:  # a damaged model, or one that diverged
        return Note(what, str(error), "train again, or use an earlier checkpoint")
    order = torch.from_numpy(generator(SEED).permutation(len(texts)))
    random = pair_similarity(texts[order], texts[order.roll(1)])
    try:
        return Space(run, texts, cosines, random, diagnose(encoder, material.texts, material.pairs), lacks="")
    except ValueError as error:
        return Space(run, texts, cosines, random, diagnosis=None, lacks=str(error))


def pair_cosines(encoder: CachedEncoder, pairs: Table) -> Tensor:
    """Encodes pairs of texts, with the prompts of their columns, and returns the cosine of each pair, (P,)."""
    return cosines_of_pairs(encoder, STSPairs.of_table(pairs, by_column=True))


def gold_scores(pairs: Table) -> Tensor:
    """Returns the gold scores in a table of pairs, (P,)."""
    return torch.tensor([float(str(row["target"])) for row in pairs])


def row_texts(rows: Sequence[Row]) -> list[str]:
    """Returns the distinct texts in the columns of rows, in order of occurrence.

    Example:
        >>> row_texts([{"anchor": "a", "positive": "b", "target": 1.0}, {"anchor": "b", "positive": "c"}])
        ['a', 'b', 'c']
    """
    return list(dict.fromkeys(str(row[name]) for row in rows for name in row if name.startswith(_TEXTS)))


def _files_of(data: TextDataModule, views: Sequence[TaskViews] = (), lacks: str = "") -> RunFiles:
    pairs = {name: rows for name, rows in data.table("validation").items() if name not in (data.tasks or {})}
    return RunFiles(_training_texts(data), pairs, views, lacks)


def _training_texts(data: TextDataModule) -> list[str]:
    return row_texts([row for table in data.table("train").values() for row in table])


def _read_pairs(path: str | Path) -> Table:
    return read_pairs(path, split="dev", form=FileForm(options={}))


def _read_texts(path: str | Path) -> list[str]:
    return row_texts(read_rows(path, reads=("text",), split="all", form=FileForm(options={})).rows)


def _pairs_of(files: Mapping[str, RunFiles]) -> tuple[Table | None, str]:
    for run_files in files.values():
        for name, table in run_files.pairs.items():
            count = len(run_files.pairs)
            several = f" (the first of {count} validation files)" if count > 1 else ""
            return table, f"{name}{several}"
    return None, ""


def _texts_of(files: Mapping[str, RunFiles]) -> tuple[Sequence[str], str]:
    for name, run_files in files.items():
        if run_files.texts:
            return run_files.texts, "the training files" + (f" of {name}" if len(files) > 1 else "")
    return [], ""


def _drawn(size: int, limit: int) -> list[int]:
    return [int(i) for i in generator(SEED).permutation(size)[:limit]]


def _share(drawn: int, size: int) -> str:
    return f"all {size:,}" if drawn == size else f"{drawn:,} of {size:,} (drawn with seed {SEED})"
