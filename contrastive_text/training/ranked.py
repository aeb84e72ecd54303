"""Validation by ranking: queries and documents are encoded once, gathered over the ranks, and ranked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from contrastive_text.core.batch import Batch
from contrastive_text.core.distributed import gather_rows, gather_sizes, sum_over_ranks
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.similarity import at_least_float32
from contrastive_text.data.evaluation_loaders import Ranked
from contrastive_text.data.retrieval import RetrievalSet
from contrastive_text.inference.retrieval import retrieval_scores
from contrastive_text.metrics import FIGURES

RANK_SCORE = FIGURES[0]
"""Name of the mean over the sets of the figure that chooses."""


class RankedScores:
    """Gathers the vectors of retrieval sets and scores them, times 100.

    Every rank encodes its part of the queries and of the documents; the documents' vectors are gathered, and each
    rank ranks them for its own queries.

    Args:
        sides: Number of a loader -> the queries or documents in it.
        widths: What a figure's name ends with -> of how many features it is; None for all.
    """

    def __init__(self, sides: Mapping[int, Ranked], widths: Mapping[str, int | None]) -> None:
        self.sides = dict(sides)
        self.widths = dict(widths)
        self._seen: dict[tuple[str, str], list[tuple[Tensor, Tensor]]] = {
            (side.name, side.side): [] for side in self.sides.values()
        }

    def add(self, batch: Batch, number: int, vectors: Tensor) -> None:
        """Adds the vectors of a batch, (N, D), of the loader of this number."""
        assert batch.target is not None
        side = self.sides[number]
        self._seen[side.name, side.side].append((batch.target.long(), at_least_float32(vectors.detach())))

    def figures(self, partial: bool = False) -> dict[str, Tensor]:
        """Returns ``NAME/ndcg@10``, the others of ``metrics.FIGURES``, and the mean ``ndcg@10`` over the sets.

        Args:
            partial: Whether a set of which not all texts came is left out, as in a trial run of some batches.

        Raises:
            ValueError: Not all texts came.
        """
        figures: dict[str, Tensor] = {}
        for side in self.sides.values():
            if side.side == "positive":
                figures |= self._scored(side.name, side.data, partial)
        for mark in self.widths:
            each = [score for name, score in figures.items() if name.endswith(f"/{RANK_SCORE}{mark}")]
            figures |= {f"{RANK_SCORE}{mark}": torch.stack(each).mean()} if each else {}
        return figures

    def _scored(self, name: str, data: RetrievalSet, partial: bool) -> dict[str, Tensor]:
        asked, queries = self._own(name, "anchor")
        numbers, vectors = self._own(name, "positive")
        sizes = gather_sizes(len(numbers), numbers.device)
        numbers, vectors = gather_rows(numbers, sizes), gather_rows(vectors, sizes)
        every = int(sum_over_ranks(torch.tensor(len(asked), device=asked.device)))
        if (every, len(numbers)) != (len(data.queries), len(data.documents)):
            if partial:
                return {}
            raise InvalidValueError(
                f"trainer.limit_val_batches: expected all {len(data.queries):,} queries and "
                f"{len(data.documents):,} documents of {name}, got {every:,} and {len(numbers):,}; leave the "
                "limit out, and bound the corpus with data.retrieval_documents"
            )
        documents = torch.empty_like(vectors).index_copy_(0, numbers, vectors)
        places = asked.tolist()
        own = replace(
            data,
            queries=tuple(data.queries[place] for place in places),
            relevance=tuple(data.relevance[place] for place in places),
            own=tuple(data.own[place] for place in places),
        )
        figures = {}
        for mark, width in self.widths.items():
            wanted = FIGURES if width is None else FIGURES[:1]
            found = retrieval_scores(own, queries[:, :width], documents[:, :width], wanted)
            for figure, values in found.items():
                total = sum_over_ranks(values.sum().to(queries))
                figures[f"{name}/{figure}{mark}"] = 100 * total / every
        return figures

    def _own(self, name: str, side: str) -> tuple[Tensor, Tensor]:
        """Returns the numbers and vectors of this rank's texts."""
        seen = self._seen[name, side]
        if not seen:
            raise InvalidValueError(f"{name}: expected texts on every process, got none; use fewer devices")
        return torch.cat([numbers for numbers, _ in seen]), torch.cat([vectors for _, vectors in seen])
