"""The command that finds texts of a file which say nearly the same."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from torch import Tensor

from contrastive_text.cli.commands import Duplicates
from contrastive_text.cli.embed import index_of
from contrastive_text.cli.files import form_of, table_row
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage.disk import replacing
from contrastive_text.core.storage.text_files import Bounds
from contrastive_text.core.terminal import say
from contrastive_text.data.files.readers import TextStream
from contrastive_text.inference.duplicates import check_threshold, connected_groups, near_duplicates
from contrastive_text.inference.vector_files import record_of
from contrastive_text.inference.vector_index import as_tensor


def duplicates(options: Duplicates) -> None:
    """Writes all pairs of texts of a file that say nearly the same."""
    check_threshold(options.threshold)
    _check_name(options.output, (".tsv",))
    if options.keep is not None:
        _check_name(options.keep, (".txt", ".jsonl"))
    texts = TextStream(
        options.input,
        options.column,
        distinct=True,
        split=options.split,
        bounds=Bounds.of(options.bounds),
        form=form_of(options),
    )
    if options.keep is not None and options.keep.suffix == ".txt":
        _check_lines(texts, options.keep)
    summary = texts.scan()
    say(summary.understood)
    path = options.output.with_name(f"{options.output.name}.vectors.npy")  # until all is written
    index = index_of(options, texts, path)
    found = near_duplicates(as_tensor(index.vectors), options.threshold, device=index.model.device)
    pairs, cosines = (each.cpu() for each in found)
    _write(options.output, _pair_rows(texts, pairs, cosines))
    say(
        f"{len(pairs):,} pairs of a cosine from {options.threshold} and {len(summary.repeats):,} exact repeats "
        f"written to {options.output}"
    )
    if options.keep is not None:
        first = connected_groups(pairs, summary.texts).tolist()
        kept = (text for i, text in enumerate(texts) if first[i] == i)
        if options.keep.suffix == ".jsonl":
            kept = (json.dumps({"text": text}, ensure_ascii=False) for text in kept)
        count = _write(options.keep, kept)
        say(f"{count:,} of {summary.texts + len(summary.repeats):,} texts kept in {options.keep}")
    path.unlink()
    record_of(path).unlink()


def _pair_rows(texts: TextStream, pairs: Tensor, cosines: Tensor) -> Iterator[str]:
    """Yields the rows of the table: exact repeats in the file's order, then near ones by falling cosine."""
    assert texts.summary is not None
    repeats = texts.summary.repeats
    wanted = {*pairs.flatten().tolist(), *(repeat.place for repeat in repeats)}
    known = {place: found for place, found in enumerate(texts.numbered()) if place in wanted}
    yield table_row(["kind", "cosine", "line_1", "line_2", "text_1", "text_2"])
    for place, again in repeats:
        line, text = known[place]
        yield table_row(["exact", "1.000000", line, again, text, text])
    for nth in cosines.argsort(descending=True, stable=True).tolist():
        (line_1, text_1), (line_2, text_2) = (known[place] for place in pairs[nth].tolist())
        yield table_row(["near", f"{cosines[nth]:.6f}", line_1, line_2, text_1, text_2])


def _write(path: Path, lines: Iterable[str]) -> int:
    """Writes lines; gives their number."""
    with replacing(path) as file:
        return sum(file.write(f"{line}\n".encode()) > 0 for line in lines)


def _check_name(path: Path, suffixes: tuple[str, ...]) -> None:
    if path.suffix not in suffixes:
        raise InvalidValueError(
            f"{path}: expected a name that ends in {' or '.join(suffixes)}, got {path.suffix!r}"
        )


def _check_lines(texts: TextStream, keep: Path) -> None:
    """Checks that a line can hold each text, before any is encoded."""
    for line, text in texts.numbered():
        if re.search(r"[\r\n]", text):
            raise InvalidValueError(
                f"{texts.path}:{line}: expected texts of one line for {keep}, got one of several; "
                f"keep them in {keep.with_suffix('.jsonl')}"
            )
