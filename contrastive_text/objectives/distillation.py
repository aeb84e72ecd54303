"""Distillation objectives: train a student to have the rankings or the vectors of a trained model (guide)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self, TypeAlias

import torch
from torch import Tensor, nn

from contrastive_text.core.batch import Encoded
from contrastive_text.core.distributed import rank
from contrastive_text.core.errors import InvalidValueError, at_least, one_of
from contrastive_text.core.similarity import (
    Similarity,
    at_least_float32,
    full_precision,
    prepare_vectors,
    unit_vectors,
)
from contrastive_text.core.types import Role
from contrastive_text.heads import Head, check_train_only, linear_in_full_precision
from contrastive_text.losses import RankLoss
from contrastive_text.losses.base import streamed_terms
from contrastive_text.losses.comparison import MASKED_ID, ExampleVectors
from contrastive_text.losses.rules import SameId
from contrastive_text.metrics import guide_agreement
from contrastive_text.objectives.base import Objective
from contrastive_text.objectives.columns import BetweenTexts, gather_triples, read_vectors
from contrastive_text.objectives.terms import LOGGED_ROWS, Terms, check_several_examples

Among = Literal["batch", "own"]
VectorDistance = Literal["cosine", "squared"]
Model: TypeAlias = tuple[Encoded, Mapping[Role, Tensor]]
"""Local batch as a student or a guide encodes it, with the vectors of each role, (N, slots, D)."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Rows and their candidates, which are common columns of all rows or separate columns of each row.

    Args:
        rows: Vectors of the rows, whose dot products with columns are similarities, (R, D).
        columns: Such vectors of the candidates: common (C, D), or separate (R, C, D).
        anchor_ids: Id of the anchor of each common column's example, (C,), or of two kinds (C, 2); None for
            separate columns.
        row_ids: Id of each row's text, (R,), or of two kinds (R, 2).
        column_ids: Id of each column's text: common (C,), or separate (R, C); of two kinds with a last dimension
            of 2.
        target: Column of each row's positive, (R,).
    """

    rows: Tensor
    columns: Tensor
    row_ids: Tensor
    column_ids: Tensor
    target: Tensor
    anchor_ids: Tensor | None = None

    @classmethod
    def from_batch(
        cls, models: Sequence[Model], similarities: Sequence[Similarity], over_ranks: bool
    ) -> list[Self]:
        """Returns rows with common candidates, for each model: positives and hard negatives of the whole batch.

        Args:
            models: The local batch and the vectors of each role, (N, slots, D), for each model.
            similarities: Similarity of each model's vectors.
            over_ranks: Whether candidates are gathered from all ranks.
        """
        local = [BetweenTexts().arrange(*model)["texts"] for model in models]
        gathered, offset = gather_triples(local, over_ranks, models[0][0].rank_sizes)
        return [cls._of_all(*pair, offset) for pair in zip(local, gathered, similarities, strict=True)]

    @classmethod
    def _of_all(cls, local: ExampleVectors, every: ExampleVectors, similarity: Similarity, offset: int) -> Self:
        columns, ids, anchor_ids = [every.positive], [every.positive_ids], [every.anchor_ids]
        if every.negative is not None and every.negative_ids is not None:
            columns.append(every.negative.flatten(0, 1))
            ids.append(every.negative_ids.flatten(0, 1))
            anchor_ids.append(every.anchor_ids.repeat_interleave(every.negative.shape[1], dim=0))
        rows, all_columns = (prepare_vectors(t, similarity) for t in (local.anchor, torch.cat(columns)))
        target = offset + torch.arange(len(rows), device=rows.device)
        return cls(rows, all_columns, local.anchor_ids, torch.cat(ids), target, torch.cat(anchor_ids))

    @classmethod
    def from_examples(cls, encoded: Encoded, vectors: Mapping[Role, Tensor], similarity: Similarity) -> Self:
        """Returns rows with separate candidates, for each model: each anchor's own positives and hard negatives.

        Args:
            encoded: The local batch.
            vectors: Vectors of each role, (N, slots, D).
            similarity: Similarity of the vectors.
        """
        columns = torch.cat([vectors["positive"], vectors["negative"]], dim=1)
        ids = torch.cat([encoded.role_ids("positive"), encoded.role_ids("negative")], dim=1)
        rows = prepare_vectors(vectors["anchor"][:, 0], similarity)
        target = torch.zeros(len(rows), dtype=torch.long, device=rows.device)
        return cls(rows, prepare_vectors(columns, similarity), encoded.role_ids("anchor")[:, 0], ids, target)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows R, and number of candidates C of each row."""
        return len(self.rows), self.columns.shape[-2]

    def similarities(self, down: slice) -> Tensor:
        """Returns the similarities of a range of rows with their candidates, (rows, C)."""
        with full_precision(self.rows.device):
            if self.columns.ndim == 2:
                return self.rows[down] @ self.columns.T
            return (self.rows[down].unsqueeze(1) * self.columns[down]).sum(dim=2)

    def mask(self, down: slice) -> Tensor:
        """Returns a mask of columns that are not candidates of the rows in a range, (rows, C).

        It is True for duplicates of the row and for missing hard negatives.
        """
        if self.columns.ndim == 2:
            missing = (self.column_ids if self.column_ids.ndim == 1 else self.column_ids[:, 0]) == MASKED_ID
            return SameId(self.row_ids[down].unsqueeze(1), self.column_ids).mask() | missing
        mask = (self.row_ids[down].unsqueeze(1) == self.column_ids[down]) | (self.column_ids[down] == MASKED_ID)
        return mask if mask.ndim == 2 else mask.any(dim=2)

    @property
    def first_duplicates(self) -> Tensor | None:
        """Index of the first column with the same text as each column, (C,); None for separate columns."""
        if self.columns.ndim == 3:
            return None
        ids = (self.column_ids if self.column_ids.ndim == 1 else self.column_ids[:, 0]).contiguous()
        sorted_ids, order = ids.sort(stable=True)
        return order[torch.searchsorted(sorted_ids, ids)]


@dataclass(frozen=True, slots=True)
class ScoredCandidates:
    """Teacher scores of each row's own texts among its candidates. Other candidates have no score.

    Args:
        candidates: Rows and their candidates.
        scores: Teacher scores of the row's positive and hard negatives, (R, K + 1).
        places: Column of each of these texts, (R, K + 1).
    """

    candidates: Candidates
    scores: Tensor
    places: Tensor

    @classmethod
    def of(cls, candidates: Candidates, scores: Tensor, positives: int) -> Self:
        """Finds the columns of the scored texts.

        Args:
            candidates: Rows and their candidates.
            scores: Teacher scores of the positive slots and of the negative slots, (R, slots).
            positives: Number of positive slots, which are one common column.
        """
        scores = scores.nan_to_num(nan=0.0)  # missing hard negatives, which are masked
        if candidates.anchor_ids is None:
            return cls(candidates, scores, torch.arange(scores.shape[1], device=scores.device).expand_as(scores))
        scores = torch.cat([scores[:, :positives].mean(dim=1, keepdim=True), scores[:, positives:]], dim=1)
        negatives = scores.shape[1] - 1
        first = candidates.shape[1] // (negatives + 1)  # the positives of all examples come first
        examples = candidates.target.unsqueeze(1)
        numbers = torch.arange(negatives, device=scores.device)
        return cls(candidates, scores, torch.cat([examples, first + examples * negatives + numbers], dim=1))

    def teacher(self, down: slice) -> Tensor:
        """Returns the teacher scores of a range of rows, (rows, C); -inf for candidates without a score."""
        scores = self.scores[down]
        matrix = scores.new_full((len(scores), self.candidates.shape[1]), -torch.inf)
        return matrix.scatter(1, self.places[down], scores)

    def mask(self, down: slice) -> Tensor:
        """Returns a mask of columns that are not candidates of the rows in a range, (rows, C).

        It is also True for texts of other rows with the same anchor (siblings and their hard negatives), and for
        texts of other rows that equal a text of the row. The teacher gave them no score for this row.
        """
        rows, mask = self.candidates, self.candidates.mask(down)
        if rows.anchor_ids is None:
            return mask
        siblings = SameId(rows.row_ids[down].unsqueeze(1), rows.anchor_ids).mask()
        duplicates = SameId(rows.column_ids[self.places[down]], rows.column_ids).mask()
        return mask | (siblings | duplicates).scatter(1, self.places[down], False)


class RankDistillation(Objective):
    """Trains each anchor's similarities with its candidates towards the scores of a teacher.

    The teacher is one or several guides (trained models), whose cosines are the scores. Without guides, the
    teacher scores are read from the data: columns of scores of each row's own positive and hard negatives, such
    as a reranker's logits. ``losses.MarginMSE`` and ``losses.KLDivergence`` are usual for them.

    Candidates are the positives and hard negatives of the ``batch``, of all ranks and with an exact gradient, or
    the row's ``own`` positives and hard negatives. A duplicate of the row is no candidate. With ``SameText`` the
    other view of a text is therefore no candidate. The vectors of a guide may have any width, because they are
    compared with each other only. Cosines of several guides are averaged. Above 2^22 matrix entries the loss is
    streamed.

    Scores of the data are for the row's own texts. Among the ``batch``, texts of other rows have no score: they
    have probability 0 in ``ListNet`` and ``KLDivergence``, and the last ranks in ``ListMLE``. Texts of other rows
    with the same anchor, and texts that equal a text of the row, are then no candidates. If some rows lack hard
    negatives, their missing texts are masked.

    The logged value ``guide_agreement`` (``metrics.guide_agreement``) is the share of rows whose nearest
    candidate is the same for student and guides. With candidates of the ``batch`` it excludes the row's positive,
    which any model finds.

    Source: Liu et al. 2023, RankCSE (https://arxiv.org/abs/2305.16726), which adds this objective to
    ``Contrastive`` and ``Consistency``. The losses name their own sources.

    Args:
        loss: Loss that compares the cosines: ``ListNet``, ``ListMLE``, ``KLDivergence`` or ``MarginMSE``.
        guides: Names of guides in ``model.guides``; None or empty for the teacher scores of the data.
        weights: Weight of each guide's cosines in their mean; None for equal weights.
        among: Candidates of a row: all texts of the ``batch``, or the row's ``own`` texts. None for ``batch``
            with guides, and for ``own`` with scores of the data.
        head: Train-only head before the student's similarities; None for none.
        task: Name of the data set that the objective reads if there are several; None for the only one.
        similarity: Similarity of the student's vectors, ``cosine`` or ``dot``. A cosine can't reach the margins
            of a reranker's logits, a dot product can.

    Raises:
        ValueError: A guide is repeated, ``weights`` have another length than the guides or are not above 0,
            ``among`` or ``similarity`` is unknown, the head isn't train-only, or the loss needs a score of every
            text in the batch.

    Example:
        >>> from contrastive_text.core.types import Slot
        >>> from contrastive_text.losses import MarginMSE
        >>> vectors = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [0.8, 0.6]])
        >>> slots = (Slot("anchor", 0), Slot("positive", 0))
        >>> teacher = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
        >>> rows = Encoded(vectors, slots, text_ids=torch.arange(4), guides={"teacher": teacher})
        >>> RankDistillation(MarginMSE(), guides=["teacher"])(rows).total  # margins of -0.2, for 0 and 1
        tensor(1.4800)
        >>> scored = Encoded(
        ...     torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]]),
        ...     (*slots, Slot("negative", 0)),
        ...     text_ids=torch.arange(3),
        ...     scores=torch.tensor([[0.9, 0.5]]),
        ... )
        >>> RankDistillation(MarginMSE())(scored).total  # a margin of -0.2, for 0.4
        tensor(0.3600)
    """

    def __init__(
        self,
        loss: RankLoss,
        guides: list[str] | None = None,
        weights: list[float] | None = None,
        among: Among | None = None,
        head: Head | None = None,
        task: str | None = None,
        similarity: Similarity = "cosine",
    ) -> None:
        super().__init__(task)
        check_train_only(head, "RankDistillation.head")
        _check_guides(guides, weights)
        self.loss = loss
        self.guides = tuple(guides or ())
        self.weights = weights
        self.among = one_of("RankDistillation.among", among, Among)
        self.head = head
        self.similarity: Similarity = one_of("RankDistillation.similarity", similarity, Similarity)
        self.reads_scores = not guides
        self._among: Among = among or ("own" if self.reads_scores else "batch")
        if self.reads_scores and self._among == "batch" and not loss.accepts_unscored:
            raise InvalidValueError(
                f"RankDistillation.among: expected own for {type(loss).__name__} and scores of the data, got "
                f"{among}; the loss needs a score of every text, which the data have only for the row's own texts"
            )
        reads_negatives = self.reads_scores or self._among == "own"
        self.required_roles = ("anchor", "positive", "negative") if reads_negatives else ("anchor", "positive")
        self.optional_roles = () if reads_negatives else ("negative",)

    def check_examples(self, examples: int, negatives: int) -> None:
        """Checks that a row has two or more candidates (ValueError). The order of one candidate is constant."""
        if self._among == "batch" and not negatives:
            check_several_examples("RankDistillation among the batch", examples)

    def forward(self, encoded: Encoded) -> Terms:
        """Returns the sum and the number of the loss terms of the local rows; see ``Objective.forward``.

        Raises:
            ValueError: The objective has no guides, and the batch has no teacher scores.
        """
        roles: tuple[Role, ...] = (*self.required_roles, *self.optional_roles)
        vectors = read_vectors(encoded, roles, self.head)
        guided = [replace(encoded, embeddings=encoded.guides[name].to(vectors["anchor"])) for name in self.guides]
        models = [(encoded, vectors), *((batch, read_vectors(batch, roles, head=None)) for batch in guided)]
        of_guides: list[Similarity] = ["cosine"] * len(guided)
        similarities = [self.similarity, *of_guides]
        if self._among == "own":
            pairs = zip(models, similarities, strict=True)
            student, *guides = (Candidates.from_examples(*model, similarity) for model, similarity in pairs)
        else:
            student, *guides = Candidates.from_batch(models, similarities, over_ranks=self.training)
        if self.reads_scores:
            scored = ScoredCandidates.of(student, _scores(encoded), vectors["positive"].shape[1])
            return self._terms(encoded, student, scored.teacher, scored.mask)
        weights = self.weights or [1.0] * len(guides)
        firsts = student.first_duplicates

        def guide_cosines(down: slice) -> Tensor:
            scores = [weight * guide.similarities(down) for weight, guide in zip(weights, guides, strict=True)]
            mean = torch.stack(scores).sum(dim=0) / sum(weights)
            # Duplicates get equal scores to the last bit, so that their order is always the same.
            return mean if firsts is None else mean[:, firsts]

        return self._terms(encoded, student, guide_cosines, student.mask)

    def _terms(
        self,
        encoded: Encoded,
        student: Candidates,
        teacher: Callable[[slice], Tensor],
        mask: Callable[[slice], Tensor],
    ) -> Terms:
        """Returns the loss terms of the local rows and, in logged steps, the agreement with the teacher.

        Args:
            encoded: The local batch.
            student: The student's rows and candidates.
            teacher: Function from a range of rows to their scores by the teacher, (rows, C).
            mask: Function from a range of rows to the mask of columns that are not candidates, (rows, C).
        """

        def loss_terms(down: slice) -> Tensor:
            return self.loss.terms(student.similarities(down), teacher(down), student.target[down], mask(down))

        rows, columns = student.shape
        terms = streamed_terms(loss_terms, rows, columns)
        if not encoded.logged:
            return Terms(total=terms.sum(), count=rows, rows={"loss": terms.detach()})
        most = max(
            LOGGED_ROWS - sum((encoded.rank_sizes or ())[: rank()]), 0
        )  # this rank's part of the logged rows
        first = slice(0, min(rows, max(most, 1)))
        scores = teacher(first)
        hidden = mask(first) | scores.isneginf()
        if self._among == "batch" and not self.reads_scores:
            hidden = hidden.scatter(1, student.target[first].unsqueeze(1), True)
        agreement = guide_agreement(student.similarities(first).detach(), scores, hidden)
        logs, weight = {"guide_agreement": agreement}, (~hidden.all(dim=1)).sum() * (most > 0)
        if self.reads_scores:
            logs |= self.loss.target_figures(scores, hidden)
        return Terms(
            total=terms.sum(),
            count=rows,
            logs=logs,
            log_weights=dict.fromkeys(logs, weight),
            rows={"loss": terms.detach()},
        )


def _scores(encoded: Encoded) -> Tensor:
    if encoded.scores is None:
        raise InvalidValueError(
            "RankDistillation: expected teacher scores of every example, got a batch without scores; give a file "
            "with a column scores, and pairing: Given"
        )
    return encoded.scores


def _check_guides(guides: Sequence[str] | None, weights: Sequence[float] | None) -> None:
    if not guides and weights is None:
        return
    if not guides or isinstance(guides, str) or len(set(guides)) < len(guides):
        raise InvalidValueError(
            f"RankDistillation.guides: expected a list of different names of model.guides, got {guides!r}; give "
            "names such as [teacher], or leave guides and weights out for the scores of the data"
        )
    if weights is not None and (len(weights) != len(guides) or not all(weight > 0 for weight in weights)):
        raise InvalidValueError(
            f"RankDistillation.weights: expected a number above 0 for each of the {len(guides)} guides, got "
            f"{list(weights)}; remove weights for equal weights"
        )


class VectorDistillation(Objective):
    """Trains the vector of each text towards the vector of a guide (a trained model).

    ``1 - cos(W u, t)``, or the mean over features of ``(W u - t)^2``, where u is the vector of the student and t
    the vector of the guide. The loss is the mean over anchors, positives and hard negatives. If the guide's
    vectors have another width, W is a linear map that is trained with the student and not part of the saved
    model. Otherwise there is no map. Source: Reimers & Gurevych 2020 (https://arxiv.org/abs/2004.09813), section
    3, for the squared error without a map.

    The logged value ``guide_cosine`` is the mean cosine of ``W u`` and t.

    Args:
        guide: Name of a guide in ``model.guides``.
        distance: ``cosine``, or ``squared`` to train the length of the vectors too.
        guide_features: Width of the guide's vectors; None for the width of the student's vectors.
        task: Name of the data set that the objective reads if there are several; None for the only one.

    Raises:
        ValueError: ``distance`` is unknown or ``guide_features`` is below 1. Raised by ``check_guide_widths``:
            the guide's vectors have another width.

    Example:
        >>> from contrastive_text.core.types import Slot
        >>> vectors, teacher = torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 0.0]])
        >>> rows = Encoded(vectors, (Slot("anchor", 0),), text_ids=torch.arange(1), guides={"teacher": teacher})
        >>> VectorDistillation("teacher")(rows).total, VectorDistillation("teacher", "squared")(rows).total
        (tensor(0.4000), tensor(10.))
    """

    required_roles = ("anchor",)
    optional_roles = ("positive", "negative")

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
        advice = "remove it if the guide's vectors are as wide as the student's"
        self.guide_features = at_least("VectorDistillation.guide_features", guide_features, 1, advice)
        self.map: nn.Linear | None = None
        self._features = guide_features

    def build(self, features: int) -> None:
        """Builds the linear map if the guide's vectors have another width."""
        self._features = self.guide_features or features
        if self._features != features:
            self.map = nn.Linear(features, self._features)

    def check_guide_widths(self, features: Mapping[str, int]) -> None:
        """Checks the width of the guide's vectors against the map's output or the student (ValueError)."""
        self._check_width(features[self.guide])

    def _check_width(self, width: int) -> None:
        if self._features not in (None, width):
            raise InvalidValueError(
                f"VectorDistillation.guide_features: expected {width}, the width of the vectors of {self.guide}, "
                f"got {self._features}; set guide_features: {width}"
            )

    def forward(self, encoded: Encoded) -> Terms:
        """Returns the sum of the distances of the local texts and the number of texts.

        Raises:
            ValueError: The guide's vectors have another width than the output of the map, or of the student.
        """
        roles: tuple[Role, ...] = ("anchor", "positive", "negative")
        students = torch.cat([encoded.role(role).flatten(0, 1) for role in roles])
        guides = torch.cat([encoded.role_guide(self.guide, role).flatten(0, 1) for role in roles])
        students = (
            at_least_float32(students) if self.map is None else linear_in_full_precision(self.map, students)
        )
        self._check_width(guides.shape[1])
        guides = guides.to(students)
        cosines = (unit_vectors(students) * unit_vectors(guides)).sum(dim=1)
        terms = 1 - cosines if self.distance == "cosine" else (students - guides).square().mean(dim=1)
        weights = torch.ones_like(cosines.detach())
        if (negatives := encoded.role_ids("negative")).numel():
            ids = (negatives if negatives.ndim == 2 else negatives[..., 0]).flatten()
            missing = torch.cat([ids.new_zeros(len(terms) - len(ids)), ids]) == MASKED_ID
            terms, weights = terms.masked_fill(missing, 0.0), weights.masked_fill(missing, 0.0)
        texts = weights.sum()
        cosine = (cosines.detach() * weights).sum() / texts.clamp(min=1)
        return Terms(total=terms.sum(), count=texts, logs={"guide_cosine": cosine})
