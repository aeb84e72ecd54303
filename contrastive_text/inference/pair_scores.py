"""Scores of pairs of texts by a reranker, saved block by block, and the command's file of scored rows."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage.disk import atomic_file, lock_output
from contrastive_text.core.types import Row
from contrastive_text.inference.embedding_run import finished_rows
from contrastive_text.inference.head_models import Reranker
from contrastive_text.inference.mining import digest_texts
from contrastive_text.inference.vector_files import Array, all_paths

_BLOCK_SIZE = 4096
"""Number of pairs whose scores are saved together."""


def working_files(path: Path) -> list[Path]:
    """Returns the paths of all files that may exist while rows are scored, the output file first."""
    return [path, *all_paths(_scores_path(path))]


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


class ScoringRun:
    """Writes the rows of pairs and hard negatives with the scores of a reranker, as teacher scores for ``fit``.

    A row of the ``.jsonl`` file has ``anchor``, ``positive``, the list ``negative``, and the list ``scores`` of
    the positive and the negatives. Without hard negatives it has ``anchor``, ``positive`` and ``score``. Each
    distinct pair is scored once. A killed run resumes with the scores that are saved. The output appears when it
    is complete.

    Args:
        reranker: The model.
        rows: Rows with ``anchor``, ``positive`` and hard negatives in ``negative``, ``negative_2``, ...
        path: Output file, ``.jsonl``.
        batch_size: Number of pairs in a batch.
        restart: Whether to discard the scores of an earlier run.

    Raises:
        ValueError: The suffix isn't ``.jsonl``.
    """

    def __init__(
        self, reranker: Reranker, rows: Sequence[Row], path: Path, batch_size: int = 32, restart: bool = False
    ) -> None:
        if path.suffix != ".jsonl":
            raise InvalidValueError(f"{path}: expected a name that ends in .jsonl, got {path.suffix!r}")
        self.reranker, self.rows, self.path = reranker, rows, path
        self.batch_size, self._restart = batch_size, restart

    def finish(self, show_progress_bar: bool = False) -> tuple[int, int]:
        """Scores the remaining pairs and writes the rows. Returns the numbers of rows and of distinct pairs.

        Raises:
            OSError: The disk is full.
            ValueError: Unfinished scores have other pairs or another model, or another process is writing the
                file.
        """
        queries: dict[str, int] = {}
        documents: dict[str, int] = {}
        pairs: dict[tuple[int, int], int] = {}
        for row in self.rows:
            query = queries.setdefault(str(row["anchor"]), len(queries))
            for text in _texts(row):
                document = documents.setdefault(text, len(documents))
                pairs.setdefault((query, document), len(pairs))
        path = _scores_path(self.path)
        with lock_output(self.path):
            if self._restart:
                self._remove_scores()
            numbers = np.array(list(pairs), dtype=np.int64).reshape(-1, 2)
            texts = list(queries), list(documents)
            scores = score_pairs(self.reranker, *texts, numbers, path, self.batch_size, show_progress_bar)
            with atomic_file(self.path) as file:
                for row in self.rows:
                    query = queries[str(row["anchor"])]
                    values = [round(float(scores[pairs[query, documents[text]]]), 6) for text in _texts(row)]
                    file.write(_line(row, values).encode())
            self._remove_scores()
        return len(self.rows), len(pairs)

    def _remove_scores(self) -> None:
        for path in working_files(self.path)[1:]:
            path.unlink(missing_ok=True)


def _texts(row: Row) -> list[str]:
    """Returns the positive of a row, and its hard negatives without missing ones."""
    negatives = (str(text) for name, text in row.items() if name.startswith("negative"))
    return [str(row["positive"]), *filter(None, negatives)]


def _line(row: Row, scores: list[float]) -> str:
    positive, *negatives = _texts(row)
    labels: dict[str, object] = {"negative": negatives, "scores": scores} if negatives else {"score": scores[0]}
    content = {"anchor": str(row["anchor"]), "positive": positive, **labels}
    return json.dumps(content, ensure_ascii=False) + "\n"


def _scores_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.scores.npy")
