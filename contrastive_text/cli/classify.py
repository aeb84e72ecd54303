"""Command ``classify``: writes the class of each text or pair of a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from contrastive_text.cli.commands import Classify
from contrastive_text.cli.files import form_of, table_row
from contrastive_text.cli.models import check_device, warnings_as_notes
from contrastive_text.core.storage.disk import atomic_file
from contrastive_text.core.storage.text_files import SizeLimits
from contrastive_text.core.targets import Classes, Target
from contrastive_text.core.terminal import print_message
from contrastive_text.core.types import Row
from contrastive_text.data import read_rows
from contrastive_text.inference.head_models import Classifier


def classify(options: Classify) -> None:
    """Writes the class of each text or pair of a file, with its probability.

    Raises:
        ValueError: The model isn't a classifier, or with ``--score`` a label isn't a class of the model.
    """
    check_device(options.device)
    with warnings_as_notes():
        classifier = Classifier.from_pretrained(options.model, device=options.device)
    target = Classes(classifier.classes)
    texts = ("text",) if classifier.settings.reads == "text" else ("anchor", "positive")
    if classifier.settings.reads == "any" and not options.pairs:
        texts = ("text",)
    table = read_rows(
        options.input,
        (*texts, "target") if options.score else texts,
        options.columns,
        target=target if options.score else None,
        split=options.split,
        bounds=SizeLimits.of(options.bounds),
        form=replace(form_of(options), pair_labels="all"),  # labels don't select rows
    )
    print_message(table.description)
    rows = [{name: row[name] for name in texts} for row in table]
    inputs: list[Any] = [next(iter(row.values())) if len(texts) == 1 else tuple(row.values()) for row in rows]
    logits = classifier.logits(inputs, options.batch_size, show_progress_bar=True)
    if classifier.truncated:
        limit = classifier.tokenizer.max_length
        print_message(
            f"{classifier.truncated:,} of {len(rows):,} inputs exceed {limit} tokens and were truncated"
        )
    changed = write_predictions(options.output, rows, logits, target)
    note = f" (tabs and newlines of {changed:,} rows became spaces)" if changed else ""
    print_message(f"{len(rows):,} predictions written to {options.output}{note}")
    if options.score:
        hits = sum(int(best) == row["target"] for best, row in zip(logits.argmax(dim=1), table, strict=True))
        print_message(f"accuracy: {100 * hits / len(rows):.2f} ({hits:,} of {len(rows):,})")


def write_predictions(path: Path, rows: Sequence[Row], scores: Tensor, target: Target) -> int:
    """Writes a table of predictions: the texts of each row, ``prediction`` and, for classes, ``probability``.

    Tabs and newlines in a text become spaces.

    Args:
        path: The ``.tsv`` file to write; its folder is created.
        rows: The rows in file order.
        scores: Predictions of the objective, (N, classes) or (N,).
        target: Target of the objective, which names the classes.

    Returns:
        Number of rows with a replaced tab or newline.
    """
    words = target.format(scores)
    columns = [*rows[0], "prediction"]
    cells = [[*map(str, row.values()), word] for row, word in zip(rows, words, strict=True)]
    if isinstance(target, Classes):
        columns.append("probability")
        highest = scores.float().softmax(dim=1).amax(dim=1)
        cells = [[*row, f"{float(share):.6f}"] for row, share in zip(cells, highest, strict=True)]
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [table_row(row) for row in (columns, *cells)]
    with atomic_file(path) as file:
        file.write(("\n".join(lines) + "\n").encode())
    return sum(line != "\t".join(row) for line, row in zip(lines[1:], cells, strict=True))
