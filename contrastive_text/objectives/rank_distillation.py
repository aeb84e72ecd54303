"""Distillation of rankings: a row's candidates scored as a larger model scores them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import torch
from torch import Tensor

from contrastive_text.core.batch import Encoded
from contrastive_text.core.distributed import rank
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.types import Role
from contrastive_text.heads import Head, build_head, check_train_only
from contrastive_text.losses import RankLoss
from contrastive_text.losses.by_rows import terms_by_rows
from contrastive_text.metrics import guide_agreement
from contrastive_text.objectives.base import Objective
from contrastive_text.objectives.between import read_vectors
from contrastive_text.objectives.candidates import Among, Candidates
from contrastive_text.objectives.health import LOGGED_ROWS
from contrastive_text.objectives.terms import Terms, check_compared


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
        if among not in get_args(Among):
            raise InvalidValueError(
                f"RankDistillation.among: expected {' or '.join(get_args(Among))}, got {among!r}; batch ranks "
                "positives and hard negatives of all rows, own those of the row"
            )
        self.loss = loss
        self.guides = tuple(guides)
        self.weights = weights
        self.among = among
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
