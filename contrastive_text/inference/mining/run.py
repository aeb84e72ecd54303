"""Hard negatives mined into a file that training reads, with a report of the scores."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from torch import Tensor

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage.disk import alone_with, replacing
from contrastive_text.data.prompts import DOCUMENT, QUERY
from contrastive_text.inference.encoding import Encoding
from contrastive_text.inference.mining.nearest import Mined, Mining, PairTexts, Removed, Space, digest_of, mine
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.inference.vector_files import UnfinishedVectors, VectorRecord, as_tensor
from contrastive_text.inference.vector_files.files import differences, files_of

Form: TypeAlias = Literal["triples", "tuples", "pairs"]
"""A row for each negative; for each pair, with all of its negatives; or for each text, with a label."""
SUFFIXES = (".tsv", ".jsonl")
_BREAKS = re.compile(r"[\t\r\n]")
_ANEW = "begin anew with --restart (restart=True)"
_QUERIES = 4096
"""Queries whose negatives are mined together."""
_SPACES = ("queries", "corpus", "queries.rescored", "corpus.rescored")
_BIN = 0.001
"""Width of a bin of scores, within which a quantile is not told apart."""
_BARS = 16


class RowWriter:
    """Turns what was mined into the lines of a ``.tsv`` or ``.jsonl`` file.

    - ``triples``: ``anchor``, ``positive``, ``negative``, ``positive_cosine``, ``negative_cosine``.
    - ``tuples``: the same with all negatives of a pair: ``negative``, ``negative_2``, ..., in ``.jsonl`` a list.
    - ``pairs``: ``sentence1``, ``sentence2``, ``label`` (1 for a positive, 0 for a negative), ``cosine``.

    Columns are named so that training takes texts and labels, and no cosine for one.

    Args:
        texts: Queries, corpus and positives.
        mining: How many negatives, and what becomes of queries with fewer.
        form: What a row holds.
        path: The file, whose suffix counts.

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
        if form not in _ROWS:
            raise InvalidValueError(f"mine.form: expected one of {', '.join(_ROWS)}, got {form!r}")
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
        """Returns what stands before all lines."""
        if self.lists:
            return ""
        names = {"triples": _TRIPLE, "tuples": _tuple_names(self.mining.negatives), "pairs": _PAIR}[self.form]
        return "\t".join(names) + "\n"

    def lines(self, found: Mined) -> Iterator[str]:
        """Yields the lines of a query; none for one that is left out."""
        for row in _ROWS[self.form](self.texts, found):
            yield (json.dumps(row, ensure_ascii=False) if self.lists else "\t".join(_cells(row))) + "\n"


Row: TypeAlias = Mapping[str, str | float | Sequence[str] | Sequence[float]]
_TRIPLE = ("anchor", "positive", "negative", "positive_cosine", "negative_cosine")
_PAIR = ("sentence1", "sentence2", "label", "cosine")


def _tuple_names(count: int) -> list[str]:
    numbers = ["", *(f"_{number}" for number in range(2, count + 1))]
    texts = [f"negative{number}" for number in numbers]
    return ["anchor", "positive", *texts, "positive_cosine", *(f"cosine_of_{text}" for text in texts)]


def _cells(row: Row) -> Iterator[str]:
    for value in row.values():
        yield from map(str, value) if isinstance(value, list) else [str(value)]


def _pairs_of(texts: PairTexts, found: Mined) -> Iterator[tuple[str, str, float]]:
    for place, score in zip(texts.positives[found.query], found.positives, strict=True):
        yield texts.queries[found.query], texts.corpus[place], round(score, 6)


def _negatives_of(texts: PairTexts, found: Mined) -> list[tuple[str, float]]:
    return [
        (texts.corpus[place], round(score, 6)) for place, score in zip(found.negatives, found.scores, strict=True)
    ]


def _triples(texts: PairTexts, found: Mined) -> Iterator[Row]:
    for query, positive, cosine in _pairs_of(texts, found):
        for negative, score in _negatives_of(texts, found):
            yield dict(zip(_TRIPLE, (query, positive, negative, cosine, score), strict=True))


def _tuples(texts: PairTexts, found: Mined) -> Iterator[Row]:
    negatives = _negatives_of(texts, found)
    for query, positive, cosine in _pairs_of(texts, found) if negatives else ():
        yield {
            "anchor": query,
            "positive": positive,
            "negative": [text for text, _ in negatives],
            "positive_cosine": cosine,
            "negative_cosines": [score for _, score in negatives],
        }


def _labelled(texts: PairTexts, found: Mined) -> Iterator[Row]:
    positives = [(text, 1, cosine) for _, text, cosine in _pairs_of(texts, found)]
    negatives = [(text, 0, score) for text, score in _negatives_of(texts, found)]
    for text, label, cosine in (*positives, *negatives):
        yield dict(zip(_PAIR, (texts.queries[found.query], text, label, cosine), strict=True))


_ROWS = {"triples": _triples, "tuples": _tuples, "pairs": _labelled}


@dataclass(slots=True)
class ScoreCounts:
    """Counts of scores in bins of 0.001, so that memory doesn't grow with their number.

    Args:
        bins: Number of a bin, a thousandth of its middle -> scores in it.
        total: Sum of all scores.

    Example:
        >>> scores = ScoreCounts()
        >>> scores.add([0.1, 0.2, 0.3, 0.9])
        >>> scores.count, round(scores.mean, 3), scores.quantile(0.25), scores.quantile(1.0)
        (4, 0.375, 0.1, 0.9)
    """

    bins: Counter[int] = field(default_factory=Counter)
    total: float = 0.0

    @property
    def count(self) -> int:
        """Number of scores."""
        return self.bins.total()

    @property
    def mean(self) -> float:
        """Their mean."""
        return self.total / self.count

    def add(self, scores: Iterable[float]) -> None:
        """Counts scores."""
        for score in scores:
            self.bins[round(score / _BIN)] += 1
            self.total += score

    def quantile(self, share: float) -> float:
        """Returns the lowest score that a share of all are not above, to 0.001.

        Raises:
            ValueError: No score.
        """
        left = max(share * self.count, 1)
        for number, count in sorted(self.bins.items()):
            left -= count
            if left <= 0:
                return round(number * _BIN, 3)
        raise InvalidValueError("quantile: expected scores, got none")


def histogram(counts: Mapping[str, ScoreCounts]) -> str:
    """Returns a picture of scores: a line for each bin, a column of bars for each kind, all over the same bins.

    Example:
        >>> low, high = ScoreCounts(), ScoreCounts()
        >>> low.add([0.0, 0.0, 0.1]), high.add([0.7])
        (None, None)
        >>> print(histogram({"negative": low, "positive": high}).splitlines()[0])
                  negative          positive
    """
    numbers = [number for each in counts.values() for number in each.bins]
    low, high = min(numbers), max(numbers) + 1
    width = max(-(-(high - low) // _BARS), 1)
    sums = {name: Counter[int]() for name in counts}
    for name, each in counts.items():
        for number, count in each.bins.items():
            sums[name][(number - low) // width] += count
    most = {name: max(found.values(), default=1) for name, found in sums.items()}
    lines = [("          " + "".join(f"{name:<18}" for name in counts)).rstrip()]
    for place in range(-(-(high - low) // width)):
        bars = "".join(f"{'#' * -(-16 * sums[name][place] // most[name]):<18}" for name in counts)
        lines.append(f"{(low + place * width) * _BIN:>8.3f}  {bars}".rstrip())
    return "\n".join(lines)


@dataclass(slots=True)
class MiningReport:
    """What mining has found.

    Args:
        queries: How many were looked at.
        rows: Rows written.
        short: Queries with fewer negatives than asked for.
        none: Those of them without any.
        removed: Reason -> candidates that it removed; ``candidates`` -> how many were looked at.
        scores: Of ``positive`` pairs and ``negative`` ones, and their ``difference``: of each pair that was
            written with each of its negatives.
    """

    queries: int = 0
    rows: int = 0
    short: int = 0
    none: int = 0
    removed: Removed = field(default_factory=Counter)
    scores: dict[str, ScoreCounts] = field(
        default_factory=lambda: {name: ScoreCounts() for name in ("positive", "negative", "difference")}
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
        report.scores["positive"].add(mined.positives)
        report.scores["negative"].add(mined.scores)
        report.scores["difference"].add(p - n for p in mined.positives for n in mined.scores)
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
