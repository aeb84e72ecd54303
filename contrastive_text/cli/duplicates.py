"""Command ``duplicates``: finds pairs of near-duplicate texts in a file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from torch import Tensor

from contrastive_text.cli.commands import Duplicates
from contrastive_text.cli.files import table_row, text_stream
from contrastive_text.cli.models import document_vectors, encoder_of
from contrastive_text.core.errors import InvalidValueError, check_ending
from contrastive_text.core.storage.disk import atomic_file
from contrastive_text.core.terminal import print_message
from contrastive_text.data.files.readers import TextStream
from contrastive_text.inference.duplicates import check_threshold, connected_groups, near_duplicates
from contrastive_text.inference.search import as_tensor
from contrastive_text.inference.vector_files import record_path


def duplicates(options: Duplicates) -> None:
    """Writes all pairs of texts of a file whose cosine reaches a threshold."""
    check_threshold(options.threshold)
    check_ending(options.output, ".tsv")
    if options.keep is not None:
        check_ending(options.keep, ".txt", ".jsonl")
    texts = text_stream(options, options.input, distinct=True)
    if options.keep is not None and options.keep.suffix == ".txt":
        _check_lines(texts, options.keep)
    summary = texts.scan()
    print_message(summary.description)
    path = options.output.with_name(f"{options.output.name}.vectors.npy")  # deleted when the output is complete
    model, devices = encoder_of(options)
    (vectors,) = document_vectors(options, model, devices, texts, path)
    near_pairs = near_duplicates(as_tensor(vectors), options.threshold, device=model.device)
    pairs, cosines = (tensor.cpu() for tensor in near_pairs)
    _write(options.output, _pair_rows(texts, pairs, cosines))
    print_message(
        f"{len(pairs):,} pairs of a cosine from {options.threshold} and {len(summary.repeats):,} exact repeats "
        f"written to {options.output}"
    )
    if options.keep is not None:
        first = connected_groups(pairs, summary.texts).tolist()
        lines = (text for i, text in enumerate(texts) if first[i] == i)
        if options.keep.suffix == ".jsonl":
            lines = (json.dumps({"text": text}, ensure_ascii=False) for text in lines)
        count = _write(options.keep, lines)
        print_message(f"{count:,} of {summary.texts + len(summary.repeats):,} texts kept in {options.keep}")
    path.unlink()
    record_path(path).unlink()


def _pair_rows(texts: TextStream, pairs: Tensor, cosines: Tensor) -> Iterator[str]:
    """Yields the rows of the table: exact repeats in file order, then near-duplicates by falling cosine."""
    assert texts.summary is not None
    repeats = texts.summary.repeats
    numbers = {*pairs.flatten().tolist(), *(repeat.place for repeat in repeats)}
    lines = {number: line for number, line in enumerate(texts.numbered()) if number in numbers}
    yield table_row(["kind", "cosine", "line_1", "line_2", "text_1", "text_2"])
    for number, repeated_line in repeats:
        line, text = lines[number]
        yield table_row(["exact", "1.000000", line, repeated_line, text, text])
    for nth in cosines.argsort(descending=True, stable=True).tolist():
        (line_1, text_1), (line_2, text_2) = (lines[number] for number in pairs[nth].tolist())
        yield table_row(["near", f"{cosines[nth]:.6f}", line_1, line_2, text_1, text_2])


def _write(path: Path, lines: Iterable[str]) -> int:
    """Writes lines to a file and returns their number."""
    with atomic_file(path) as file:
        return sum(file.write(f"{line}\n".encode()) > 0 for line in lines)


def _check_lines(texts: TextStream, keep: Path) -> None:
    """Checks that no text has a line break, because ``--keep`` writes one text per line."""
    for line, text in texts.numbered():
        if re.search(r"[\r\n]", text):
            raise InvalidValueError(
                f"{texts.path}:{line}: expected texts of one line for {keep}, got a text of several lines; "
                f"keep them in {keep.with_suffix('.jsonl')}"
            )
