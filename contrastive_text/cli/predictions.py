"""What ``predict`` writes: tables of texts and answers, and vectors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytorch_lightning as pl
import torch
from torch import Tensor

from contrastive_text.cli.files import table_row
from contrastive_text.core.storage.disk import replacing
from contrastive_text.core.targets import Classes, Target
from contrastive_text.core.terminal import say
from contrastive_text.core.types import Row
from contrastive_text.inference.vector_files import write_vectors
from contrastive_text.training.held_out import predicting
from contrastive_text.training.run import RUNS, Run


def write_outputs(run: Run, folder: Path | None = None) -> Path:
    """Writes what tasks predict, and the vectors of ``--data.predict``, and says where.

    Args:
        run: The run whose model predicts.
        folder: Where to; None for the run's folder.

    Returns:
        The folder.
    """
    parts = run.call(pl.Trainer.predict) or []
    folder = folder or Path(run.trainer.log_dir or RUNS)  # all ranks ask for the folder
    tables = run.data.table("predict")
    outputs = [parts] if len(tables) == 1 else parts
    if not run.trainer.is_global_zero:
        return folder
    for (name, table), batches in zip(tables.items(), outputs, strict=True):
        result = torch.cat([part.cpu() for part in batches if isinstance(part, Tensor)])
        if name not in (run.data.tasks or {}):
            path = folder / "predictions.npy"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_vectors(path, result.numpy())
            say(f"{len(result):,} vectors of {result.shape[1]} features written to {path}")
            continue
        path = folder / "predictions" / f"{name}.tsv"
        target = predicting(run.module.by_task.objectives(name)).target
        assert target is not None
        changed = write_predictions(path, table.rows, result, target)
        note = f" (tabs and newlines of {changed:,} rows became blanks)" if changed else ""
        say(f"{len(result):,} predictions of {name} written to {path}{note}")
    return folder


def write_predictions(path: Path, rows: Sequence[Row], scores: Tensor, target: Target) -> int:
    """Writes a line for each row: its texts as they were read, ``prediction``, and ``probability`` of a class.

    A tab or a newline in a text, which would break the table, becomes a blank.

    Args:
        path: A ``.tsv`` file; its folder is made.
        rows: The rows in file order.
        scores: What the objective predicts of them, (N, classes) or (N,).
        target: Gives predictions their names.

    Returns:
        In how many rows a text was changed for the table.
    """
    words = target.write(scores)
    columns = [*rows[0], "prediction"]
    cells = [[*map(str, row.values()), word] for row, word in zip(rows, words, strict=True)]
    if isinstance(target, Classes):
        columns.append("probability")
        highest = scores.float().softmax(dim=1).amax(dim=1)
        cells = [[*row, f"{float(share):.6f}"] for row, share in zip(cells, highest, strict=True)]
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [table_row(row) for row in (columns, *cells)]
    with replacing(path) as file:
        file.write(("\n".join(lines) + "\n").encode())
    return sum(line != "\t".join(row) for line, row in zip(lines[1:], cells, strict=True))
