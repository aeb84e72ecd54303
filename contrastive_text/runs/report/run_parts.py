"""What only the parts of a run can tell: its texts and pairs as they were read, and what its views do to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from contrastive_text.core.class_paths import UntrustedError
from contrastive_text.core.libraries import is_failure
from contrastive_text.core.specs import describe
from contrastive_text.core.types import Row
from contrastive_text.data import Table, TextDataModule
from contrastive_text.evaluation.view_edits import AlteredRows, altered_rows
from contrastive_text.runs.report.runs import RunRecord
from contrastive_text.training.module import ContrastiveModule

_TEXTS = ("text", "anchor", "positive", "negative")
_SHOWN = 3
"""Rows of a task that are shown altered."""


class Altered(NamedTuple):
    """What the views of a data set do.

    Args:
        task: The data set.
        pairing: Which texts of a row belong together.
        rows: Its first rows.
    """

    task: str
    pairing: str
    rows: AlteredRows


class RunParts(NamedTuple):
    """What the parts of a run told.

    Args:
        texts: Texts of the training files.
        pairs: Name of a file of scored validation pairs -> its rows.
        altered: What the views do, for each data set.
        lacks: Why something is missing; empty where nothing is.
    """

    texts: Sequence[str]
    pairs: dict[str, Table]
    altered: Sequence[Altered]
    lacks: str


def read_run_parts(run: RunRecord) -> RunParts:
    """Builds a run's module and data from its checkpoint and reads its files.

    Args:
        run: The run; relative paths in its configuration are those from the working directory.
    """
    if run.checkpoint is None:
        return RunParts([], {}, [], run.lacks)
    try:
        module = ContrastiveModule.load_from_checkpoint(run.checkpoint.path, map_location="cpu").eval()
        data = TextDataModule.load_from_checkpoint(run.checkpoint.path, map_location="cpu", weights_only=True)
    except UntrustedError:
        raise  # its user may know better than the page
    except Exception as error:  # a user's own parts can fail in any way; the page goes without them and says why
        if not is_failure(error):
            raise
        return RunParts([], {}, [], _told(error))
    data.attach(module)
    try:
        data.setup("fit")
        altered = [
            Altered(
                task=name,
                pairing=describe(training.pairing),
                rows=altered_rows(data.collator(name), module.encoder, training.rows, _SHOWN),
            )
            for name, training in data.training.tasks.items()
        ]
        return RunParts(_texts(data), _pairs(data), altered, "")
    except Exception as error:  # as above
        if not is_failure(error):
            raise
        return RunParts(_texts(data), _validation(data), [], _told(error))


def row_texts(rows: Sequence[Row]) -> list[str]:
    """Returns the different texts of rows in their order.

    Example:
        >>> row_texts([{"anchor": "a", "positive": "b", "target": 1.0}, {"anchor": "b", "positive": "c"}])
        ['a', 'b', 'c']
    """
    texts = (str(row[name]) for row in rows for name in row if name.startswith(_TEXTS))
    return list(dict.fromkeys(texts))


def _texts(data: TextDataModule) -> list[str]:
    return row_texts([row for table in data.table("train").values() for row in table])


def _pairs(data: TextDataModule) -> dict[str, Table]:
    return {name: table for name, table in data.table("validation").items() if name not in (data.tasks or {})}


def _validation(data: TextDataModule) -> dict[str, Table]:
    """Returns the pairs of a run whose training files can't be used."""
    try:
        data.setup("validate")
    except Exception as error:  # what hinders the training files is said, and is mostly the same
        if not is_failure(error):
            raise
        return {}
    return _pairs(data)


def _told(error: Exception) -> str:
    return " ".join(str(error).split())[:400] or type(error).__name__
