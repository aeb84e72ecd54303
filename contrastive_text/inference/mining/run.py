"""Negatives mined into a file, block by block: what is on the disk is kept, whatever ends the process."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
from torch import Tensor

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.storage.disk import alone_with
from contrastive_text.core.storage.manifests import FileDigest, GrowingDigest, read_sealed, write_sealed
from contrastive_text.data.prompts import DOCUMENT, QUERY
from contrastive_text.inference.encoding import Encoding
from contrastive_text.inference.mining.nearest import Mined, Removed, Space, mine
from contrastive_text.inference.mining.options import Mining
from contrastive_text.inference.mining.rows import Form, RowWriter
from contrastive_text.inference.mining.score_counts import ScoreCounts
from contrastive_text.inference.mining.texts import PairTexts, digest_of
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.inference.vector_files import UnfinishedVectors, VectorRecord, as_tensor
from contrastive_text.inference.vector_files.formats import files_of
from contrastive_text.inference.vector_files.unfinished import differences

_ANEW = "begin anew with --restart (restart=True)"
_QUERIES = 4096
"""Queries whose negatives are mined and then saved together."""
_SPACES = ("queries", "corpus", "queries.rescored", "corpus.rescored")


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

    def to_json(self) -> dict[str, object]:
        """Returns it for a record."""
        numbers = {name: getattr(self, name) for name in ("queries", "rows", "short", "none")}
        scores = {name: each.to_json() for name, each in self.scores.items()}
        return {**numbers, "removed": dict(self.removed), "scores": scores}


def working_files(path: Path) -> list[Path]:
    """Returns all files that are there while negatives are mined into one, itself the first."""
    vectors = [file for name in _SPACES for file in files_of(_vectors_path(path, name))]
    return [path, _rows_path(path), _record_path(path), *vectors]


class MiningRun:
    """Writes the hard negatives of pairs into a file, and goes on where an earlier run was broken off.

    Queries and corpus are encoded, each with its prompt of the model, into files beside the output; then blocks
    of queries are searched, and their rows saved. Texts are in memory, and of vectors and cosines a block. All
    files but the output go at the end.

    Args:
        model: Whose cosines find the candidates.
        texts: Queries with their positives, and the corpus.
        path: ``.tsv`` or ``.jsonl``.
        mining: What becomes a negative; None for the usual.
        form: What a row holds; see ``RowWriter``.
        rescore: Another model, by whose cosines candidates are then scored and ordered; None for none.
        encoding: How texts are encoded; None for the usual.
        restart: Whether to throw away what an earlier run has left.

    Raises:
        ValueError: What ``RowWriter`` refuses.

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
        self.report = MiningReport()
        self._writer = RowWriter(texts, self.mining, form, path)
        self._digest = GrowingDigest()
        self._made_of: dict[str, object] = {
            **asdict(self.mining),
            "form": form,
            "model": model.identity,
            "rescore": None if rescore is None else rescore.identity,
            "texts": texts.digest,
        }
        self._restart = restart

    def finish(self, show_progress_bar: bool = False) -> MiningReport:
        """Encodes and mines what is left, gives the file its name, and returns what was found.

        Raises:
            OSError: No room on the disk.
            ValueError: An unfinished output of other texts, models or options, a vector that is not finite, or
                another process that is writing the same file.
        """
        with alone_with(self.path):
            if self._restart:
                self._remove()
            if _record_path(self.path).exists():
                self._take_up()
            space = self._space(self.model, "", show_progress_bar)
            rescored = None if self.rescore is None else self._space(self.rescore, ".rescored", show_progress_bar)
            for start in range(self.report.queries, len(self.texts.queries), _QUERIES):
                places = range(start, min(start + _QUERIES, len(self.texts.queries)))
                found, removed = mine(self.texts, space, self.mining, places, rescored, self.model.device)
                self._append(found, removed)
            os.replace(_rows_path(self.path), self.path)
            self._remove()
        return self.report

    def _space(self, model: SentenceEncoder, suffix: str, show_progress_bar: bool) -> Space:
        """Returns the vectors of a model, mapped; encodes what isn't there."""
        each = [
            _vectors(
                model,
                texts,
                _vectors_path(self.path, name + suffix),
                self._encoding(model, kind),
                show_progress_bar,
            )
            for name, kind, texts in (
                ("queries", QUERY, self.texts.queries),
                ("corpus", DOCUMENT, self.texts.corpus),
            )
        ]
        return Space(*each)

    def _encoding(self, model: SentenceEncoder, kind: str) -> Encoding:
        """Returns how texts of a kind are encoded: with the model's own prompt, where none is given."""
        asked = {"prompt": self.encoding.prompt, "prompt_name": self.encoding.prompt_name}
        return replace(self.encoding, **model.prompts.options(kind, asked))

    def _append(self, found: Sequence[Mined], removed: Removed) -> None:
        """Writes the rows of a block, and returns when they would outlive a loss of power."""
        report = self.report
        lines = [self._writer.header()] if report.queries == 0 else []
        for each in found:
            report.short += len(each.negatives) < self.mining.negatives
            report.none += not each.negatives
            if len(each.negatives) == self.mining.negatives or self.mining.short == "keep":
                rows = list(self._writer.lines(each))
                report.rows += len(rows)
                report.scores["positive"].add(each.positives)
                report.scores["negative"].add(each.scores)
                report.scores["difference"].add(p - n for p in each.positives for n in each.scores)
                lines += rows
        report.queries += len(found)
        report.removed += removed
        content = "".join(lines).encode()
        with _rows_path(self.path).open("rb+" if _record_path(self.path).exists() else "wb") as file:
            file.seek(self._digest.digest().size)
            file.write(content)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
        self._digest.update(content)
        kept = {"made_of": self._made_of, "report": report.to_json(), "rows": self._digest.digest().to_json()}
        write_sealed(_record_path(self.path), kept)

    def _take_up(self) -> None:
        record, rows = _record_path(self.path), _rows_path(self.path)
        kept = read_sealed(record, _ANEW)
        if said := differences(kept["made_of"], self._made_of):
            raise InvalidValueError(
                f"{rows}: expected negatives of these texts and options, got {said}; give what it was begun "
                f"with, or {_ANEW}"
            )
        digest = FileDigest.of_json(kept["rows"])
        if damage := digest.damage(rows, whole=None, grows=True):
            raise InvalidValueError(f"{rows}: expected rows as they were written, got others ({damage}); {_ANEW}")
        self._digest = GrowingDigest.after(digest, rows)
        scores = {
            name: ScoreCounts({int(number): count for number, count in each["bins"].items()}, each["total"])
            for name, each in kept["report"].pop("scores").items()
        }
        removed = Counter(kept["report"].pop("removed"))
        self.report = MiningReport(**kept["report"], removed=removed, scores=scores)

    def _remove(self) -> None:
        for path in (
            _record_path(self.path),
            *working_files(self.path)[1:],
        ):  # without its record, nothing counts
            path.unlink(missing_ok=True)


def _vectors(
    model: SentenceEncoder, texts: Sequence[str], path: Path, encoding: Encoding, show_progress_bar: bool
) -> Tensor:
    """Returns the vectors of texts, (N, D), mapped from a file that is made or finished first."""
    made_of: dict[str, object] = {"model": model.identity, "texts": digest_of(texts)}
    made_of |= {
        "prompt": encoding.prompt_in(model.prompts),
        "batch_size": encoding.batch_size,
        "block_size": encoding.block_size,
    }
    whole = path.exists() and VectorRecord.read(path, _ANEW)
    if not whole or differences(whole.made_of, {**made_of, "count": len(texts)}) or whole.damage(path):
        vectors = UnfinishedVectors(path, made_of, len(texts))
        before = vectors.truncated
        for block in model.encode_blocks(texts[vectors.done :], encoding, show_progress_bar):
            vectors.append(np.asarray(block), before + model.truncated)
        vectors.finish()
    return as_tensor(np.load(path, mmap_mode="r"))


def _vectors_path(path: Path, name: str) -> Path:
    return path.with_name(f"{path.name}.{name}.npy")


def _rows_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.unfinished")


def _record_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.unfinished.json")
