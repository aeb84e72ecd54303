"""Distillation: rankings and vectors that are those of a model trained before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

import torch
from torch import Tensor, nn

from contrastive_text.core.batch import Encoded
from contrastive_text.core.checks import at_least, one_of
from contrastive_text.core.distributed import rank
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.similarity import at_least_float32, full_precision, unit_vectors
from contrastive_text.core.types import Role
from contrastive_text.heads import Head, build_head, check_train_only, linear_exactly
from contrastive_text.losses import RankLoss
from contrastive_text.losses.by_rows import terms_by_rows
from contrastive_text.losses.comparison import HIDDEN_ID, SameId, Triples
from contrastive_text.metrics import guide_agreement
from contrastive_text.objectives.base import Objective
from contrastive_text.objectives.between import BetweenTexts, read_vectors
from contrastive_text.objectives.columns import gather_triples
from contrastive_text.objectives.health import LOGGED_ROWS
from contrastive_text.objectives.terms import Terms, check_compared

Among = Literal["batch", "own"]
VectorDistance = Literal["cosine", "squared"]


@dataclass(frozen=True, slots=True)
class Candidates:
    """Rows and their candidates: the columns of all rows, or each row's own columns.

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


class RankDistillation(Objective):
    """Holds the cosines of each anchor with its candidates against those of guides, models trained before.

    Candidates are the positives and hard negatives of the ``batch``, of all ranks and with an exact gradient, or
    those of a row's ``own``. None is the row's very text, by its id, so that with ``SameText`` the other view of
    a text is no candidate of it. The vectors of a guide may have any width: they are compared with each other.
    Cosines of several guides are averaged. Above 2^22 rows times columns only the matrices of some rows are held
    at a time.

    ``guide_agreement`` is logged (``metrics.guide_agreement``): the share of rows whose nearest candidate is the
    guides' nearest too. Of the ``batch`` a row's positive is no candidate there, for any model finds it.

    Source: Liu et al. 2023, RankCSE (https://arxiv.org/abs/2305.16726), which adds it to ``Contrastive`` and
    ``Consistency``; the losses have their own.

    Args:
        loss: The formula: ``ListNet``, ``ListMLE``, ``KLDivergence`` or ``MarginMSE``.
        guides: Names of guides, of ``model.guides``.
        weights: Weight of each guide's cosines in their mean; None for equal ones.
        among: Which candidates a row has: those of the ``batch`` or its ``own``.
        head: A train-only head before the student's cosines; None for none.
        task: The data set that it reads, where there are several; None for the only one.

    Raises:
        ValueError: No guides, a guide named twice, weights that don't fit them, unknown candidates, or a head
            that isn't train-only.

    Example:
        >>> from contrastive_text.core.types import Slot
        >>> from contrastive_text.losses import MarginMSE
        >>> vectors = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [0.8, 0.6]])
        >>> slots = (Slot("anchor", 0), Slot("positive", 0))
        >>> teacher = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
        >>> rows = Encoded(vectors, slots, text_ids=torch.arange(4), guides={"teacher": teacher})
        >>> RankDistillation(MarginMSE(), guides=["teacher"])(rows).total  # margins of -0.2, for 0 and 1
        tensor(1.4800)
    """

    def __init__(
        self,
        loss: RankLoss,
        guides: list[str],
        weights: list[float] | None = None,
        among: Among = "batch",
        head: Head | None = None,
        task: str | None = None,
    ) -> None:
        super().__init__(task)
        check_train_only(head, "RankDistillation.head")
        _check_guides(guides, weights)
        self.loss = loss
        self.guides = tuple(guides)
        self.weights = weights
        self.among: Among = one_of("RankDistillation.among", among, Among)
        self.head = head
        self.reads = ("anchor", "positive") if among == "batch" else ("anchor", "positive", "negative")
        self.takes = ("negative",) if among == "batch" else ()

    def build(self, features: int) -> None:
        """Makes the head's layers."""
        build_head(self.head, features)

    def check_examples(self, examples: int, negatives: int) -> None:
        """Checks that a row has two candidates or more: the order of one alone is constant."""
        if self.among == "batch" and not negatives:
            check_compared("RankDistillation among the batch", examples)

    def forward(self, encoded: Encoded) -> Terms:
        """Returns the terms of the local rows; see ``Objective.forward``."""
        roles: tuple[Role, ...] = (*self.reads, *self.takes)
        own = read_vectors(encoded, roles, self.head)
        known = [replace(encoded, embeddings=encoded.guides[name].to(own["anchor"])) for name in self.guides]
        of_models = [(encoded, own), *((each, read_vectors(each, roles, head=None)) for each in known)]
        if self.among == "own":
            student, *guides = (Candidates.of_own(*of_model) for of_model in of_models)
        else:
            student, *guides = Candidates.of_batch(of_models, over_ranks=self.training)
        weights = self.weights or [1.0] * len(guides)
        firsts = student.firsts

        def wanted(down: slice) -> Tensor:
            scores = [weight * guide.cosines(down) for weight, guide in zip(weights, guides, strict=True)]
            mean = torch.stack(scores).sum(dim=0) / sum(weights)
            # Equal texts are scored alike to the last bit, so that their order is always the same.
            return mean if firsts is None else mean[:, firsts]

        def terms(down: slice) -> Tensor:
            scores = student.cosines(down)
            return self.loss.terms(scores, wanted(down), student.target[down], student.hidden(down))

        rows, columns = student.shape
        found = terms_by_rows(terms, rows, columns)
        if not encoded.logged:
            return Terms(total=found.sum(), count=rows)
        most = max(LOGGED_ROWS - sum((encoded.shares or ())[: rank()]), 0)  # of all ranks the first rows
        first = slice(0, min(rows, max(most, 1)))
        hidden = student.hidden(first)
        if self.among == "batch":
            hidden = hidden.scatter(1, student.target[first].unsqueeze(1), True)
        agreement = guide_agreement(student.cosines(first).detach(), wanted(first), hidden)
        logs, weight = {"guide_agreement": agreement}, (~hidden.all(dim=1)).sum() * (most > 0)
        return Terms(total=found.sum(), count=rows, logs=logs, log_weights={"guide_agreement": weight})


def _check_guides(guides: Sequence[str], weights: Sequence[float] | None) -> None:
    if isinstance(guides, str) or not guides or len(set(guides)) < len(guides):
        raise InvalidValueError(
            f"RankDistillation.guides: expected different names of model.guides, got {guides!r}; such as "
            "[teacher]"
        )
    if weights is not None and (len(weights) != len(guides) or not all(each > 0 for each in weights)):
        raise InvalidValueError(
            f"RankDistillation.weights: expected a number above 0 for each of the {len(guides)} guides, got "
            f"{list(weights)}; leave them out for equal ones"
        )


class VectorDistillation(Objective):
    """Holds each text's vector against that of a guide, a model trained before.

    ``1 - cos(W u, t)``, or the mean over features of ``(W u - t)^2``, u the vector of the student and t that of
    the guide; the mean over anchors, positives and hard negatives. Where the guide's vectors have another width,
    W is a linear map that is trained with the student and left out of the saved model; else there is none.
    Source: Reimers & Gurevych 2020 (https://arxiv.org/abs/2004.09813), section 3, for the squared error without a
    map.

    ``guide_cosine`` is logged, the mean cosine of ``W u`` and t.

    Args:
        guide: Name of a guide, of ``model.guides``.
        distance: ``cosine``, or ``squared`` for vectors that should have the guide's length too.
        guide_features: Width of the guide's vectors; None for that of the student's.
        task: The data set that it reads, where there are several; None for the only one.

    Raises:
        ValueError: An unknown distance or a width below 1; before the first step vectors of another width.

    Example:
        >>> from contrastive_text.core.types import Slot
        >>> vectors, teacher = torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 0.0]])
        >>> rows = Encoded(vectors, (Slot("anchor", 0),), text_ids=torch.arange(1), guides={"teacher": teacher})
        >>> VectorDistillation("teacher")(rows).total, VectorDistillation("teacher", "squared")(rows).total
        (tensor(0.4000), tensor(10.))
    """

    reads = ("anchor",)
    takes = ("positive", "negative")

    def __init__(
        self,
        guide: str,
        distance: VectorDistance = "cosine",
        guide_features: int | None = None,
        task: str | None = None,
    ) -> None:
        super().__init__(task)
        self.guide = guide
        self.guides = (guide,)
        self.distance: VectorDistance = one_of("VectorDistillation.distance", distance, VectorDistance)
        advice = "leave it out if the guide's vectors are as wide as the student's"
        self.guide_features = at_least("VectorDistillation.guide_features", guide_features, 1, advice)
        self.map: nn.Linear | None = None
        self._features = guide_features

    def build(self, features: int) -> None:
        """Makes the map, where widths differ."""
        self._features = self.guide_features or features
        if self._features != features:
            self.map = nn.Linear(features, self._features)

    def check_guide_widths(self, features: Mapping[str, int]) -> None:
        """Checks that the guide's vectors are as wide as the student's, or as the map makes them (ValueError)."""
        self._check_width(features[self.guide])

    def _check_width(self, wanted: int) -> None:
        if self._features not in (None, wanted):
            raise InvalidValueError(
                "VectorDistillation.guide_features: expected the width of the vectors of "
                f"{self.guide}, {wanted}, got {self._features}; set guide_features: {wanted}"
            )

    def forward(self, encoded: Encoded) -> Terms:
        """Returns the distances of the local texts.

        Raises:
            ValueError: The guide's vectors are not as wide as the student's are, or as the map makes them.
        """
        roles: tuple[Role, ...] = ("anchor", "positive", "negative")
        found = torch.cat([encoded.role(role).flatten(0, 1) for role in roles])
        wanted = torch.cat([encoded.role_guide(self.guide, role).flatten(0, 1) for role in roles])
        found = at_least_float32(found) if self.map is None else linear_exactly(self.map, found)
        self._check_width(wanted.shape[1])
        wanted = wanted.to(found)
        cosines = (unit_vectors(found) * unit_vectors(wanted)).sum(dim=1)
        terms = 1 - cosines if self.distance == "cosine" else (found - wanted).square().mean(dim=1)
        weights = torch.ones_like(cosines.detach())
        if (negatives := encoded.role_ids("negative")).numel():
            ids = (negatives if negatives.ndim == 2 else negatives[..., 0]).flatten()
            missing = torch.cat([ids.new_zeros(len(terms) - len(ids)), ids]) == HIDDEN_ID
            terms, weights = terms.masked_fill(missing, 0.0), weights.masked_fill(missing, 0.0)
        texts = weights.sum()
        cosine = (cosines.detach() * weights).sum() / texts.clamp(min=1)
        return Terms(total=terms.sum(), count=texts, logs={"guide_cosine": cosine})
