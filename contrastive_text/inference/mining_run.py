"""Hard negatives on disk: mining into a training file, and scores of a reranker for the pairs of a file."""

from __future__ import annotations

import json
import re
import warnings
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from contrastive_text.core.errors import InvalidValueError, check_ending, one_of
from contrastive_text.core.storage.disk import atomic_file, lock_output
from contrastive_text.core.types import Row
from contrastive_text.data.prompts import DOCUMENT, QUERY, Kind
from contrastive_text.inference.embedding_run import finished_rows
from contrastive_text.inference.encoding import Encoding
from contrastive_text.inference.head_models import Reranker
from contrastive_text.inference.mining import (
    Mined,
    Mining,
    Nearest,
    PairScores,
    PairTexts,
    Removed,
    Space,
    candidate_pairs,
    digest_texts,
    mine,
    nearest,
)
from contrastive_text.inference.search import as_tensor
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.inference.vector_files import Array, all_paths

Form: TypeAlias = Literal["triples", "tuples", "pairs"]
"""Form of the rows of a training file of negatives: triples, tuples or labeled pairs."""
_BREAKS = re.compile(r"[\t\r\n]")
_QUERIES = 4096
"""Number of queries whose negatives are mined together."""
_BLOCK_SIZE = 4096
"""Number of pairs whose scores by a reranker are saved together."""
_RERANKED = "reranked"
_VECTORS = ("queries", "corpus", "queries.rescored", "corpus.rescored", _RERANKED)
"""Names of the temporary files of vectors in a mining run."""


class RowWriter:
    """Converts mined negatives to the lines of a ``.tsv`` or ``.jsonl`` file.

    The columns of each form are:

    - ``triples``: ``anchor``, ``positive``, ``negative``, ``positive_cosine``, ``negative_cosine``.
    - ``tuples``: ``anchor``, ``positive``, all negatives (``negative``, ``negative_2``, ...; in ``.jsonl`` a
      list) and their cosines.
    - ``pairs``: ``sentence1``, ``sentence2``, ``label`` (1 for a positive, 0 for a negative), ``cosine``.

    With a reranker, ``triples`` and ``tuples`` have the list ``scores`` in place of the cosines: the positive's
    score, then those of the negatives. ``pairs`` have ``score``. Training recognizes the columns of texts, labels
    and scores by these names, and ignores cosines.

    Args:
        texts: Queries, corpus and positives.
        mining: Rules for negatives, of which ``negatives`` and ``short`` are used.
        form: Form of a row: ``triples``, ``tuples`` or ``pairs``.
        path: Path of the file. Its suffix decides the format.
        reranked: Whether the scores are those of a reranker, and not cosines.

    Raises:
        ValueError: The suffix or form is unknown, or a ``.tsv`` file can't hold the texts.
    """

    def __init__(self, texts: PairTexts, mining: Mining, form: Form, path: Path, reranked: bool = False) -> None:
        self.texts = texts
        self.mining = mining
        self.form = form
        self.reranked = reranked
        self.lists = path.suffix == ".jsonl"
        check_ending(path, ".tsv", ".jsonl")
        one_of("mine.form", form, Form)
        if form == "tuples" and mining.short == "keep" and not self.lists:
            raise InvalidValueError(
                f"{path}: expected a .jsonl file for tuples of different lengths (short: keep), got .tsv; name a "
                ".jsonl file, or set short: drop"
            )
        text = next((text for text in (*texts.queries, *texts.corpus) if _BREAKS.search(text)), None)
        if text is not None and not self.lists:
            raise InvalidValueError(
                f"{path}: expected texts without tabs and newlines for .tsv, got {text[:60]!r}; name a .jsonl "
                "file"
            )

    def header(self) -> str:
        """Returns the header line of a ``.tsv`` file; an empty string for ``.jsonl``."""
        if self.lists:
            return ""
        names = self._columns
        if self.form == "tuples":
            texts = ["negative", *(f"negative_{number}" for number in range(2, self.mining.negatives + 1))]
            cosines = ["positive_cosine", *(f"cosine_of_{text}" for text in texts)]
            names = ("anchor", "positive", *texts, *(["scores"] if self.reranked else cosines))
        return "\t".join(names) + "\n"

    def lines(self, mined: Mined) -> Iterator[str]:
        """Yields the lines of a query's negatives. Without negatives, ``triples`` and ``tuples`` have no line."""
        for row in self._rows(mined):
            if self.lists:
                yield json.dumps(dict(zip(self._columns, row, strict=True)), ensure_ascii=False) + "\n"
            else:
                cells = chain.from_iterable(cell if isinstance(cell, list) else [cell] for cell in row)
                yield "\t".join(map(str, cells)) + "\n"

    @property
    def _columns(self) -> tuple[str, ...]:
        names = _COLUMNS[self.form]
        if not self.reranked:
            return names
        return (*names[:-1], "score") if self.form == "pairs" else (*names[:-2], "scores")

    def _rows(self, mined: Mined) -> list[tuple[object, ...]]:
        """Returns the values of the columns of each row of a query with its negatives."""
        query = self.texts.queries[mined.query]
        positives = self._scored(self.texts.positives[mined.query], mined.positives)
        negatives = self._scored(mined.negatives, mined.scores)
        if self.form == "triples":
            return [
                (query, positive, negative, *self._score_cells(positive_score, score))
                for positive, positive_score in positives
                for negative, score in negatives
            ]
        if self.form == "pairs":
            return [
                (query, text, label, score)
                for label, texts in ((1, positives), (0, negatives))
                for text, score in texts
            ]
        texts, scores = [text for text, _ in negatives], [score for _, score in negatives]
        return [
            (query, positive, texts, *(self._score_cells(score, *scores) if self.reranked else (score, scores)))
            for positive, score in positives
            if negatives
        ]

    def _score_cells(self, *scores: float) -> tuple[object, ...]:
        """Returns the cells of cosines, or the one cell of a reranker's scores. A list in a ``.tsv`` is JSON."""
        return ((list(scores) if self.lists else json.dumps(scores)),) if self.reranked else scores

    def _scored(self, ids: Sequence[int], scores: Sequence[float]) -> list[tuple[str, float]]:
        """Returns texts of the corpus with their rounded scores."""
        return [(self.texts.corpus[i], round(score, 6)) for i, score in zip(ids, scores, strict=True)]


_COLUMNS: Mapping[Form, tuple[str, ...]] = {
    "triples": ("anchor", "positive", "negative", "positive_cosine", "negative_cosine"),
    "tuples": ("anchor", "positive", "negative", "positive_cosine", "negative_cosines"),
    "pairs": ("sentence1", "sentence2", "label", "cosine"),
}


@dataclass(slots=True)
class MiningReport:
    """Counts and scores of a mining run.

    Args:
        queries: Number of queries.
        rows: Number of written rows.
        short: Number of queries with fewer negatives than requested.
        none: Number of queries without any negative.
        removed: Reason -> number of removed candidates; ``candidates`` -> number of all candidates.
        scores: ``positive`` and ``negative`` -> scores of the written pairs; ``difference`` -> score of each
            positive minus the score of each negative of its query.
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
    """Returns the paths of all files that may exist during a mining run, the output file first."""
    return [path, *(file for name in _VECTORS for file in all_paths(_vectors_path(path, name)))]


class MiningRun:
    """Mines the hard negatives of pairs and writes them to a training file.

    Queries and corpus are encoded with the model's prompts into files next to the output. A killed run resumes
    with the vectors in these files. Then each block of queries is searched and its rows are written. Memory holds
    the texts, and the vectors and cosines of one block. The output file appears only when it is complete. All
    other files are deleted at the end.

    Args:
        model: Model whose cosines find the candidates.
        texts: Queries, corpus and positives.
        path: Output file, ``.tsv`` or ``.jsonl``.
        mining: Rules for negatives; None for the defaults of ``Mining``.
        form: Form of a row; see ``RowWriter``.
        rescore: Another model, whose cosines score and order the candidates, or a reranker, which scores each
            query with its candidates; None for ``model``.
        encoding: Encoding options; None for the defaults.
        restart: Whether to discard the vectors of an earlier run.

    Raises:
        ValueError: The suffix or form is unknown, or a ``.tsv`` file can't hold the texts.

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
        rescore: SentenceEncoder | Reranker | None = None,
        encoding: Encoding | None = None,
        restart: bool = False,
    ) -> None:
        self.model = model
        self.texts = texts
        self.path = path
        self.mining = mining or Mining()
        self.rescore = rescore
        self.encoding = encoding or Encoding()
        self._writer = RowWriter(texts, self.mining, form, path, isinstance(rescore, Reranker))
        self._restart = restart

    def finish(self, show_progress_bar: bool = False) -> MiningReport:
        """Encodes the remaining texts, mines all queries and writes the training file. Returns the report.

        Raises:
            OSError: The disk is full.
            ValueError: Unfinished vectors have other texts, another model or other options, a vector is not
                finite, or another process is writing the file.
        """
        report = MiningReport()
        with lock_output(self.path):
            if self._restart:
                _remove(working_files(self.path)[1:])
            space = self._space(self.model, "", show_progress_bar)
            rescored = self._rescored(space, show_progress_bar)
            with atomic_file(self.path) as file:
                file.write(self._writer.header().encode())
                for places in self._blocks():
                    negatives, removed = mine(
                        self.texts, space, self.mining, places, rescored(places), self.model.device
                    )
                    report.removed += removed
                    for mined in negatives:
                        file.writelines(line.encode() for line in self._lines(mined, report))
            _remove(working_files(self.path)[1:])
        return report

    def _blocks(self) -> list[range]:
        """Returns the indices of the queries that are mined together, for each block of queries."""
        count = len(self.texts.queries)
        return [range(start, min(start + _QUERIES, count)) for start in range(0, count, _QUERIES)]

    def _rescored(self, space: Space, show_progress_bar: bool) -> Callable[[range], Space | PairScores | None]:
        """Returns a function from queries to what judges their candidates: vectors or scores of ``rescore``."""
        if isinstance(self.rescore, Reranker):
            scores = self._reranked(self.rescore, space, show_progress_bar)
            return lambda places: scores[places.start]
        vectors = None if self.rescore is None else self._space(self.rescore, ".rescored", show_progress_bar)
        return lambda _: vectors

    def _reranked(self, reranker: Reranker, space: Space, show_progress_bar: bool) -> dict[int, PairScores]:
        """Returns first query of a block -> scores of the block's candidates and positives by a reranker."""
        pairs: list[Array] = []
        masks: list[tuple[Tensor, Nearest]] = []
        for places in self._blocks():
            found = nearest(self.texts, space, self.mining, places, self.model.device)
            is_candidate, positives = candidate_pairs(self.texts, found, self.mining, places)
            ids = torch.cat([found.ids, positives], dim=1)
            is_scored = torch.cat([is_candidate, positives >= 0], dim=1)
            queries = is_scored.nonzero()[:, 0] + places.start
            pairs.append(torch.stack([queries, ids[is_scored]], dim=1).cpu().numpy())
            masks.append((is_scored.cpu(), found))
        path, texts = _vectors_path(self.path, _RERANKED), self.texts
        values = score_pairs(
            reranker,
            texts.queries,
            texts.corpus,
            np.concatenate(pairs),
            path,
            self.encoding.batch_size,
            show_progress_bar,
        )
        rest, scores = torch.from_numpy(np.array(values)), {}
        for places, (is_scored, found), block in zip(self._blocks(), masks, pairs, strict=True):
            matrix = torch.zeros(is_scored.shape).masked_scatter_(is_scored, rest[: len(block)])
            rest = rest[len(block) :]
            count = found.ids.shape[1]
            scores[places.start] = PairScores(found, matrix[:, :count], matrix[:, count:])
        return scores

    def _space(self, model: SentenceEncoder, suffix: str, show_progress_bar: bool) -> Space:
        """Returns the memory-mapped vectors of queries and corpus by a model. Encodes texts without a vector."""

        def vectors(name: str, kind: Kind, texts: Sequence[str]) -> Tensor:
            length = model.query_length if kind == QUERY else model.document_length
            given = ("prompt", "prompt_name", "max_length")
            options = {option: getattr(self.encoding, option) for option in given}
            options["max_length"] = options["max_length"] or length
            encoding = replace(self.encoding, **model.prompts.options(kind, options))
            names = ("batch_size", "block_size", "max_length", "truncate_dim")
            origin: dict[str, object] = {
                "model": model.identity,
                "texts": digest_texts(texts),
                "prompt": encoding.resolve_prompt(model.prompts),
                **{option: getattr(encoding, option) for option in names},
            }

            def blocks(done: int) -> Iterator[tuple[Array, int]]:
                for block in model.encode_blocks(texts[done:], encoding, show_progress_bar):
                    yield np.asarray(block), model.truncated

            return as_tensor(finished_rows(_vectors_path(self.path, name + suffix), origin, len(texts), blocks))

        return Space(
            vectors("queries", QUERY, self.texts.queries), vectors("corpus", DOCUMENT, self.texts.corpus)
        )

    def _lines(self, mined: Mined, report: MiningReport) -> list[str]:
        """Returns the lines of a query's negatives, and adds its counts and scores to the report."""
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


def _vectors_path(path: Path, name: str) -> Path:
    return path.with_name(f"{path.name}.{name}.npy")


def score_files(path: Path) -> list[Path]:
    """Returns the paths of all files that may exist while rows are scored, the output file first."""
    return [path, *all_paths(_vectors_path(path, "scores"))]


def score_pairs(
    reranker: Reranker,
    queries: Sequence[str],
    documents: Sequence[str],
    pairs: Array,
    path: Path,
    batch_size: int = 32,
    show_progress_bar: bool = False,
) -> Array:
    """Scores pairs of queries and documents. A stopped call resumes with the scores in its file.

    Args:
        reranker: The model.
        queries: Texts of the queries.
        documents: Texts of the documents.
        pairs: Number of the query and of the document of each pair, (N, 2).
        path: File of the scores, ``.npy``. Scores of other pairs or of another model are refused or replaced.
        batch_size: Number of pairs in a batch.
        show_progress_bar: Whether to show a progress bar.

    Returns:
        Score of each pair, (N,), float32, memory-mapped.

    Raises:
        OSError: The disk is full.
        ValueError: Unfinished scores have other pairs or another model.
    """
    origin: dict[str, object] = {
        "model": reranker.identity,
        "texts": digest_texts([digest_texts(queries), digest_texts(documents)]),
        "pairs": blake2b(np.ascontiguousarray(pairs, dtype=np.int64).data, digest_size=16).hexdigest(),
        "batch_size": batch_size,
    }

    def blocks(done: int) -> Iterator[tuple[Array, int]]:
        truncated = 0
        for start in range(done, len(pairs), _BLOCK_SIZE):
            texts = [(queries[q], documents[d]) for q, d in pairs[start : start + _BLOCK_SIZE].tolist()]
            scores = reranker.predict(texts, batch_size=batch_size, show_progress_bar=show_progress_bar)
            truncated += reranker.truncated
            yield np.asarray(scores, dtype=np.float32)[:, None], truncated
        warn_truncated(truncated, len(pairs) - done, reranker)

    return finished_rows(path, origin, len(pairs), blocks)[:, 0]


def warn_truncated(truncated: int, pairs: int, reranker: Reranker) -> None:
    """Warns if a reranker has truncated pairs to its length limit.

    Args:
        truncated: Number of truncated pairs.
        pairs: Number of scored pairs.
        reranker: The model.
    """
    if truncated:
        warnings.warn(
            f"{truncated:,} of {pairs:,} pairs exceed {reranker.tokenizer.max_length} tokens and were truncated",
            stacklevel=2,
        )


def score_rows(
    reranker: Reranker,
    rows: Sequence[Row],
    path: Path,
    batch_size: int = 32,
    restart: bool = False,
    show_progress_bar: bool = False,
) -> int:
    """Writes the rows of pairs and hard negatives with the scores of a reranker, as teacher scores for ``fit``.

    A row of the ``.jsonl`` file has ``anchor``, ``positive``, the list ``negative``, and the list ``scores`` of
    the positive and the negatives. Without hard negatives it has ``anchor``, ``positive`` and ``score``. Each
    distinct pair is scored once. A killed call resumes with the scores that are saved. The output appears when it
    is complete.

    Args:
        reranker: The model.
        rows: Rows with ``anchor``, ``positive`` and hard negatives in ``negative``, ``negative_2``, ...
        path: Output file, ``.jsonl``.
        batch_size: Number of pairs in a batch.
        restart: Whether to discard the scores of an earlier call.
        show_progress_bar: Whether to show a progress bar.

    Returns:
        Number of distinct pairs.

    Raises:
        OSError: The disk is full.
        ValueError: The suffix isn't ``.jsonl``, unfinished scores have other pairs or another model, or another
            process is writing the file.
    """
    check_ending(path, ".jsonl")
    queries: dict[str, int] = {}
    documents: dict[str, int] = {}
    pairs: dict[tuple[int, int], int] = {}
    for row in rows:
        query = queries.setdefault(str(row["anchor"]), len(queries))
        for text in _texts(row):
            pairs.setdefault((query, documents.setdefault(text, len(documents))), len(pairs))
    numbers = np.array(list(pairs), dtype=np.int64).reshape(-1, 2)
    working = score_files(path)[1:]
    with lock_output(path):
        if restart:
            _remove(working)
        scores = score_pairs(
            reranker, list(queries), list(documents), numbers, working[0], batch_size, show_progress_bar
        )
        with atomic_file(path) as file:
            for row in rows:
                query = queries[str(row["anchor"])]
                values = [round(float(scores[pairs[query, documents[text]]]), 6) for text in _texts(row)]
                file.write(_line(row, values).encode())
        _remove(working)
    return len(pairs)


def _texts(row: Row) -> list[str]:
    """Returns the positive of a row, and its hard negatives without missing ones."""
    negatives = (str(text) for name, text in row.items() if name.startswith("negative"))
    return [str(row["positive"]), *filter(None, negatives)]


def _line(row: Row, scores: list[float]) -> str:
    positive, *negatives = _texts(row)
    labels: dict[str, object] = {"negative": negatives, "scores": scores} if negatives else {"score": scores[0]}
    content = {"anchor": str(row["anchor"]), "positive": positive, **labels}
    return json.dumps(content, ensure_ascii=False) + "\n"


def _remove(files: Sequence[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)
