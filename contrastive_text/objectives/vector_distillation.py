"""Distillation of vectors: embeddings that are those of a model trained before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import torch
from torch import nn

from contrastive_text.core.batch import Encoded
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.similarity import at_least_float32, unit_vectors
from contrastive_text.core.types import Role
from contrastive_text.heads import linear_exactly
from contrastive_text.losses.comparison import HIDDEN_ID
from contrastive_text.objectives.base import Objective
from contrastive_text.objectives.terms import Terms

VectorDistance = Literal["cosine", "squared"]


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
        if distance not in get_args(VectorDistance):
            raise InvalidValueError(
                f"VectorDistillation.distance: expected {' or '.join(get_args(VectorDistance))}, got {distance!r}"
            )
        if guide_features is not None and guide_features < 1:
            raise InvalidValueError(
                f"VectorDistillation.guide_features: expected a width of 1 or more, got {guide_features}; leave "
                "it out where the guide's vectors are as wide as the student's"
            )
        self.guide = guide
        self.guides = (guide,)
        self.distance = distance
        self.guide_features = guide_features
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
