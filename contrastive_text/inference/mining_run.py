"""Hard negatives mined into a file that training reads, with a report of the scores."""

from __future__ import annotations

import json
import re
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from torch import Tensor

from contrastive_text.core.checks import one_of
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage.disk import alone_with, replacing
from contrastive_text.data.prompts import DOCUMENT, QUERY
from contrastive_text.inference.embedding_run import UnfinishedVectors
from contrastive_text.inference.encoding import Encoding
from contrastive_text.inference.mining import Mined, Mining, PairTexts, Removed, Space, digest_of, mine
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.inference.vector_files import VectorRecord, differences, files_of
from contrastive_text.inference.vector_index import as_tensor

Form: TypeAlias = Literal["triples", "tuples", "pairs"]
"""A row for each negative; for each pair, with all of its negatives; or for each text, with a label."""
SUFFIXES = (".tsv", ".jsonl")
_BREAKS = re.compile(r"[\t\r\n]")
_ANEW = "begin anew with --restart (restart=True)"
_QUERIES = 4096
"""Queries whose negatives are mined together."""
_SPACES = ("queries", "corpus", "queries.rescored", "corpus.rescored")
_BARS = 16


class RowWriter:
    """Writes negatives as the lines of a ``.tsv`` or ``.jsonl`` file.

    - ``triples``: ``anchor``, ``positive``, ``negative``, ``positive_cosine``, ``negative_cosine``.
    - ``tuples``: the same with all negatives of a pair: ``negative``, ``negative_2``, ..., in ``.jsonl`` a list.
    - ``pairs``: ``sentence1``, ``sentence2``, ``label`` (1 for a positive, 0 for a negative), ``cosine``.

    Training recognizes the columns of texts and labels by these names, and ignores cosines.

    Args:
        texts: Queries, corpus and positives.
        mining: Number of negatives, and rule for queries with fewer.
        form: Content of a row.
        path: The file; its suffix decides the format.

    Raises:
        ValueError: Another suffix or form, or texts that a ``.tsv`` file can't hold.
    """

    def __init__(self, texts: PairTexts, mining: Mining, form: Form, path: Path) -> None:
        self.texts = texts
        self.mining = mining
        self.form = form
        self.lists = path.suffix == ".jsonl"
        if path.suffix not in SUFFIXES:
            raise InvalidValueError(
                f"{path}: expected a name that ends in {' or '.join(SUFFIXES)}, got {path.suffix!r}"
            )
        one_of("mine.form", form, Form)
        if form == "tuples" and mining.short == "keep" and not self.lists:
            raise InvalidValueError(
                f"{path}: expected a .jsonl file for tuples of different lengths, got .tsv; name such a file, or "
                "leave short: keep out"
            )
        broken = next((text for text in (*texts.queries, *texts.corpus) if _BREAKS.search(text)), None)
        if broken is not None and not self.lists:
            raise InvalidValueError(
                f"{path}: expected texts without tabs and newlines for .tsv, got {broken[:60]!r}; name a .jsonl "
                "file"
            )

    def header(self) -> str:
        """Returns the first line of a ``.tsv`` file; nothing for ``.jsonl``."""
        if self.lists:
            return ""
        names = _COLUMNS[self.form]
        if self.form == "tuples":
            texts = ["negative", *(f"negative_{number}" for number in range(2, self.mining.negatives + 1))]
            names = ("anchor", "positive", *texts, "positive_cosine", *(f"cosine_of_{text}" for text in texts))
        return "\t".join(names) + "\n"

    def lines(self, found: Mined) -> Iterator[str]:
        """Yields the lines of a query; none for a query that is left out."""
        for row in self._rows(found):
            if self.lists:
                yield json.dumps(dict(zip(_COLUMNS[self.form], row, strict=True)), ensure_ascii=False) + "\n"
            else:
                cells = chain.from_iterable(cell if isinstance(cell, list) else [cell] for cell in row)
                yield "\t".join(map(str, cells)) + "\n"

    def _rows(self, found: Mined) -> list[tuple[object, ...]]:
        """Returns the values of each column."""
        query = self.texts.queries[found.query]
        positives, negatives = (
            [(self.texts.corpus[place], round(score, 6)) for place, score in zip(places, scores, strict=True)]
            for places, scores in (
                (self.texts.positives[found.query], found.positives),
                (found.negatives, found.scores),
            )
        )
        if self.form == "triples":
            return [(query, text, other, one, score) for text, one in positives for other, score in negatives]
        if self.form == "pairs":
            labeled = [*((*each, 1) for each in positives), *((*each, 0) for each in negatives)]
            return [(query, text, label, score) for text, score, label in labeled]
        texts, scores = ([each[place] for each in negatives] for place in (0, 1))
        return [(query, text, texts, one, scores) for text, one in positives if negatives]


_COLUMNS: Mapping[Form, tuple[str, ...]] = {
    "triples": ("anchor", "positive", "negative", "positive_cosine", "negative_cosine"),
    "tuples": ("anchor", "positive", "negative", "positive_cosine", "negative_cosines"),
    "pairs": ("sentence1", "sentence2", "label", "cosine"),
}


def histogram(scores: Mapping[str, Sequence[float]]) -> str:
    """Returns a picture of scores: a line for each bin, a column of bars for each kind, all over the same bins.

    Example:
        >>> print(histogram({"negative": [0.0, 0.0, 0.1], "positive": [0.7]}).splitlines()[1])
           0.000  ################
    """
    ends = [end for each in scores.values() if each for end in (min(each), max(each))]
    counts, edges = {}, np.empty(0)
    for name, each in scores.items():
        counts[name], edges = np.histogram(each, bins=_BARS, range=(min(ends), max(ends)))
    lines = ["          " + "".join(f"{name:<18}" for name in counts)]
    for place in range(_BARS):
        bars = "".join(f"{'#' * -(-16 * each[place] // max(each.max(), 1)):<18}" for each in counts.values())
        lines.append(f"{edges[place]:>8.3f}  {bars}")
    return "\n".join(line.rstrip() for line in lines)


@dataclass(slots=True)
class MiningReport:
    """Counts and scores of a mining run.

    Args:
        queries: Number of queries.
        rows: Number of written rows.
        short: Number of queries with fewer negatives than requested.
        none: Number of queries without any negative.
        removed: Reason -> number of candidates that it removed; ``candidates`` -> number of all candidates.
        scores: Scores of ``positive`` and of ``negative`` pairs, and the ``difference`` of each written pair to
            each of its negatives.
    """

    queries: int = 0
    rows: int = 0
    short: int = 0
    none: int = 0
    removed: Removed = field(default_factory=Counter)
    scores: dict[str, array[float]] = field(
        default_factory=lambda: {name: array("f") for name in ("positive", "negative", "difference")}
    )


def working_files(path: Path) -> list[Path]:
    """Returns all files that exist while negatives are mined into a file, itself first."""
    return [path, *(file for name in _SPACES for file in files_of(_vectors_path(path, name)))]


class MiningRun:
    """Writes the hard negatives of pairs into a file.

    Queries and corpus are encoded, each with its prompt of the model, into files next to the output. A killed run
    resumes after the vectors in these files. Then blocks of queries are searched, and their rows written; memory
    holds the texts, and vectors and cosines of one block. The output is whole or not there. All other files are
    removed at the end.

    Args:
        model: Model whose cosines find the candidates.
        texts: Queries with their positives, and the corpus.
        path: ``.tsv`` or ``.jsonl``.
        mining: Rules for negatives; None for the usual.
        form: Content of a row; see ``RowWriter``.
        rescore: Another model, by whose cosines candidates are then scored and ordered; None for none.
        encoding: How texts are encoded; None for the usual.
        restart: Whether to discard the vectors of an earlier run.

    Raises:
        ValueError: An error of ``RowWriter``.

    Example:
        >>> run = MiningRun(model, PairTexts([("who?", "me")]), Path("triples.tsv"))  # doctest: +SKIP
        >>> run.finish().rows  # doctest: +SKIP
        30000
    """

    def __init__(
        self,
        model: SentenceEncoder,
        texts: PairTexts,
        path: Path,
        mining: Mining | None = None,
        form: Form = "triples",
        rescore: SentenceEncoder | None = None,
        encoding: Encoding | None = None,
        restart: bool = False,
    ) -> None:
        self.model = model
        self.texts = texts
        self.path = path
        self.mining = mining or Mining()
        self.rescore = rescore
        self.encoding = encoding or Encoding()
        self._writer = RowWriter(texts, self.mining, form, path)
        self._restart = restart

    def finish(self, show_progress_bar: bool = False) -> MiningReport:
        """Encodes the texts without vectors, mines all queries, writes the file, and returns the report.

        Raises:
            OSError: The disk is full.
            ValueError: Vectors of other texts, models or options, a vector that is not finite, or another process
                that is writing the same file.
        """
        report, count = MiningReport(), len(self.texts.queries)
        with alone_with(self.path):
            if self._restart:
                self._remove_vectors()
            space = self._space(self.model, "", show_progress_bar)
            rescored = None if self.rescore is None else self._space(self.rescore, ".rescored", show_progress_bar)
            with replacing(self.path) as file:
                file.write(self._writer.header().encode())
                for start in range(0, count, _QUERIES):
                    places = range(start, min(start + _QUERIES, count))
                    found, removed = mine(self.texts, space, self.mining, places, rescored, self.model.device)
                    report.removed += removed
                    for mined in found:
                        file.writelines(line.encode() for line in self._lines(mined, report))
            self._remove_vectors()
        return report

    def _space(self, model: SentenceEncoder, suffix: str, show_progress_bar: bool) -> Space:
        """Returns the memory-mapped vectors of a model, after encoding the missing ones."""
        kinds = (("queries", QUERY, self.texts.queries), ("corpus", DOCUMENT, self.texts.corpus))
        return Space(
            *(
                _vectors(
                    model,
                    texts,
                    _vectors_path(self.path, name + suffix),
                    self._encoding(model, kind),
                    show_progress_bar,
                )
                for name, kind, texts in kinds
            )
        )

    def _encoding(self, model: SentenceEncoder, kind: str) -> Encoding:
        """Returns the encoding of texts of a kind, with the model's prompt if none is given."""
        asked = {"prompt": self.encoding.prompt, "prompt_name": self.encoding.prompt_name}
        return replace(self.encoding, **model.prompts.options(kind, asked))

    def _lines(self, mined: Mined, report: MiningReport) -> list[str]:
        """Returns the rows of a query, and adds them to the report."""
        report.queries += 1
        report.short += len(mined.negatives) < self.mining.negatives
        report.none += not mined.negatives
        if len(mined.negatives) < self.mining.negatives and self.mining.short == "drop":
            return []
        lines = list(self._writer.lines(mined))
        report.rows += len(lines)
        report.scores["positive"].extend(mined.positives)
        report.scores["negative"].extend(mined.scores)
        report.scores["difference"].extend(p - n for p in mined.positives for n in mined.scores)
        return lines

    def _remove_vectors(self) -> None:
        for path in working_files(self.path)[1:]:
            path.unlink(missing_ok=True)


def _vectors(
    model: SentenceEncoder, texts: Sequence[str], path: Path, encoding: Encoding, show_progress_bar: bool
) -> Tensor:
    """Returns the vectors of texts, (N, D), mapped from a file that is written or finished first."""
    made_of: dict[str, object] = {"model": model.identity, "texts": digest_of(texts)}
    made_of |= {
        "prompt": encoding.prompt_in(model.prompts),
        "batch_size": encoding.batch_size,
        "block_size": encoding.block_size,
    }
    whole = path.exists() and VectorRecord.read(path, _ANEW)
    if not whole or differences(whole.made_of, {**made_of, "count": len(texts)}) or whole.damage(path):
        vectors = UnfinishedVectors(path, made_of, len(texts))
        with vectors.alone():
            before = vectors.truncated
            for block in model.encode_blocks(texts[vectors.done :], encoding, show_progress_bar):
                vectors.append(np.asarray(block), before + model.truncated)
            vectors.finish()
    return as_tensor(np.load(path, mmap_mode="r"))


def _vectors_path(path: Path, name: str) -> Path:
    return path.with_name(f"{path.name}.{name}.npy")
