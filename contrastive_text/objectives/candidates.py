"""What a ranking ranks: the candidates of each row, those of the whole batch or the row's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Self

import torch
from torch import Tensor

from contrastive_text.core.batch import Encoded
from contrastive_text.core.similarity import full_precision, unit_vectors
from contrastive_text.core.types import Role
from contrastive_text.losses.comparison import HIDDEN_ID, SameId, Triples
from contrastive_text.objectives.between import BetweenTexts
from contrastive_text.objectives.columns import gather_triples

Among = Literal["batch", "own"]


@dataclass(frozen=True, slots=True)
class Candidates:
    """Rows, and what each is held against: the columns of all rows, or columns of its own.

    Args:
        rows: Unit vectors, (R, D).
        columns: Unit vectors, (C, D), or each row's own (R, C, D).
        row_ids: Id of each row's text, (R,), or of two kinds (R, 2).
        column_ids: Of each column's, (C,), or each row's own (R, C); of two kinds with a last dimension of 2.
        target: Which column is the row's positive, (R,).
    """

    rows: Tensor
    columns: Tensor
    row_ids: Tensor
    column_ids: Tensor
    target: Tensor

    @classmethod
    def of_batch(cls, of_models: Sequence[tuple[Encoded, Mapping[Role, Tensor]]], over_ranks: bool) -> list[Self]:
        """Returns local anchors against the positives and hard negatives of all rows, as each model has them.

        Args:
            of_models: The local batch, and the vectors of each role, (N, slots, D), by model.
            over_ranks: Whether they are those of all ranks too.
        """
        own = [BetweenTexts().triples(*of_model)["texts"] for of_model in of_models]
        gathered, offset = gather_triples(own, over_ranks, of_models[0][0].shares)
        return [cls._of_all(local, every, offset) for local, every in zip(own, gathered, strict=True)]

    @classmethod
    def _of_all(cls, local: Triples, every: Triples, offset: int) -> Self:
        columns, ids = [every.positive], [every.positive_ids]
        if every.negative is not None and every.negative_ids is not None:
            columns.append(every.negative.flatten(0, 1))
            ids.append(every.negative_ids.flatten(0, 1))
        rows, unit = unit_vectors(local.anchor), unit_vectors(torch.cat(columns))
        target = offset + torch.arange(len(rows), device=rows.device)
        return cls(rows, unit, local.anchor_ids, torch.cat(ids), target)

    @classmethod
    def of_own(cls, encoded: Encoded, vectors: Mapping[Role, Tensor]) -> Self:
        """Returns local anchors against their own positives and hard negatives."""
        columns = torch.cat([vectors["positive"], vectors["negative"]], dim=1)
        ids = torch.cat([encoded.role_ids("positive"), encoded.role_ids("negative")], dim=1)
        rows = unit_vectors(vectors["anchor"][:, 0])
        target = torch.zeros(len(rows), dtype=torch.long, device=rows.device)
        return cls(rows, unit_vectors(columns), encoded.role_ids("anchor")[:, 0], ids, target)

    @property
    def shape(self) -> tuple[int, int]:
        """R and C."""
        return len(self.rows), self.columns.shape[-2]

    def cosines(self, down: slice) -> Tensor:
        """Returns the cosines of some rows with their columns, (rows, C)."""
        with full_precision(self.rows.device):
            if self.columns.ndim == 2:
                return self.rows[down] @ self.columns.T
            return (self.rows[down].unsqueeze(1) * self.columns[down]).sum(dim=2)

    def hidden(self, down: slice) -> Tensor:
        """Returns True where a column is the row's own text, or a hard negative that is missing, (rows, C)."""
        if self.columns.ndim == 2:
            missing = (self.column_ids if self.column_ids.ndim == 1 else self.column_ids[:, 0]) == HIDDEN_ID
            return SameId(self.row_ids[down].unsqueeze(1), self.column_ids).mask() | missing
        same = (self.row_ids[down].unsqueeze(1) == self.column_ids[down]) | (self.column_ids[down] == HIDDEN_ID)
        return same if same.ndim == 2 else same.any(dim=2)

    @property
    def firsts(self) -> Tensor | None:
        """The first of the columns with the same text, for each, (C,); None for columns of a row's own."""
        if self.columns.ndim == 3:
            return None
        ids = (self.column_ids if self.column_ids.ndim == 1 else self.column_ids[:, 0]).contiguous()
        ordered, order = ids.sort(stable=True)
        return order[torch.searchsorted(ordered, ids)]
