"""Comparisons of a contrastive objective: between the texts of an example, or between views of the same text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from contrastive_text.core.batch import Encoded
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.similarity import at_least_float32
from contrastive_text.core.types import Role
from contrastive_text.heads import Head, project_roles
from contrastive_text.losses.comparison import ExampleVectors


class Between(ABC):
    """Base class of comparisons, which arrange the roles of a batch as anchors, positives and hard negatives.

    A subclass implements ``arrange``.

    Attributes:
        reads: Roles that every example must have.
        takes: Roles that are read if examples have them.
        comparison_names: Names of the comparisons. Each has its own queue.
        column_kind: Name of the columns of other examples, for the run's summary.
        is_pairs: Whether anchor and positive are two texts, so that a label can mark the pair as negative.
    """

    reads: ClassVar[tuple[Role, ...]]
    takes: ClassVar[tuple[Role, ...]]
    comparison_names: ClassVar[tuple[str, ...]]
    column_kind: ClassVar[str]
    is_pairs: ClassVar[bool]

    @abstractmethod
    def arrange(self, encoded: Encoded, vectors: Mapping[Role, Tensor]) -> dict[str, ExampleVectors]:
        """Returns the vectors to compare, by the name of the comparison (a name from ``compared``).

        Args:
            encoded: The local batch.
            vectors: Vectors of each role that the loss reads and examples have, (N, slots, D).

        Raises:
            ValueError: A role has the wrong number of slots.
        """


class BetweenTexts(Between):
    """Compares the first view of each anchor with the mean of all views of its positives.

    Example:
        >>> from contrastive_text.core.types import Slot
        >>> slots = (Slot("anchor", 0), Slot("positive", 0))
        >>> rows = Encoded(torch.eye(4), slots, text_ids=torch.arange(4))
        >>> vectors = {slot.role: rows.role(slot.role) for slot in slots}
        >>> [(name, len(texts.anchor)) for name, texts in BetweenTexts().arrange(rows, vectors).items()]
        [('texts', 2)]
    """

    reads = ("anchor", "positive")
    takes = ("negative",)
    comparison_names = ("texts",)
    column_kind = "positives"
    is_pairs = True

    def arrange(self, encoded: Encoded, vectors: Mapping[Role, Tensor]) -> dict[str, ExampleVectors]:
        """Returns the vectors of anchors, averaged positives and hard negatives under the name ``texts``."""
        texts = ExampleVectors(
            anchor=vectors["anchor"][:, 0],
            positive=vectors["positive"].mean(dim=1),
            negative=vectors.get("negative"),
            anchor_ids=encoded.role_ids("anchor")[:, 0],
            positive_ids=_set_ids(encoded.role_ids("positive")),
            negative_ids=encoded.role_ids("negative") if "negative" in vectors else None,
        )
        return {"texts": texts}


class BetweenViews(Between):
    """Compares the two views of each text with the views of all other texts of its role.

    Anchors are compared with anchors, and positives with positives. Hard negatives are not read. Source:
    ConSERT's joint training (Yan et al. 2021, https://arxiv.org/abs/2105.11741, section 3.3).

    Example:
        >>> from contrastive_text.core.types import Slot
        >>> slots = (Slot("anchor", 0), Slot("anchor", 1))
        >>> rows = Encoded(torch.eye(4), slots, text_ids=torch.arange(4))
        >>> vectors = {"anchor": rows.role("anchor")}
        >>> [(name, len(texts.anchor)) for name, texts in BetweenViews().arrange(rows, vectors).items()]
        [('anchor', 2)]
    """

    reads = ("anchor",)
    takes = ("positive",)
    comparison_names = ("anchor", "positive")
    column_kind = "texts of its role"
    is_pairs = False

    def arrange(self, encoded: Encoded, vectors: Mapping[Role, Tensor]) -> dict[str, ExampleVectors]:
        """Returns the vectors of the two views of each text, by the name of the text's role."""
        return {role: _two_views(role, views, encoded.role_ids(role)) for role, views in vectors.items()}


def read_vectors(encoded: Encoded, roles: Sequence[Role], head: Head | None) -> dict[Role, Tensor]:
    """Returns the vectors of roles after a head, by role, (N, slots, D) in at least float32.

    Roles that the batch lacks are skipped.

    Args:
        encoded: The local batch.
        roles: Roles to read, in the order in which the head receives them.
        head: Train-only head between embeddings and loss; None for none.
    """
    embeddings = {role: encoded.role(role) for role in roles if encoded.role_ids(role).shape[1]}

    def project(vectors: Tensor) -> Tensor:
        return at_least_float32(vectors if head is None else head(vectors))

    return dict(zip(embeddings, project_roles(head, list(embeddings.values()), project), strict=True))


_NAMED = {"texts": BetweenTexts, "views": BetweenViews}


def resolve_between(between: Between | str, where: str) -> Between:
    """Converts the option ``between`` to a comparison: looks up its name, or returns a comparison unchanged.

    Args:
        between: A comparison, or the name ``texts`` or ``views``.
        where: Name of the objective, for the error.

    Raises:
        ValueError: The name is not ``texts`` or ``views``.
    """
    if isinstance(between, Between):
        return between
    if between not in _NAMED:
        raise InvalidValueError(
            f"{where}.between: expected {' or '.join(_NAMED)}, got {between!r}; views compares the two views "
            "of each text, texts an example's texts"
        )
    return _NAMED[between]()


def _two_views(role: Role, vectors: Tensor, ids: Tensor) -> ExampleVectors:
    if vectors.shape[1] != 2:
        raise InvalidValueError(
            f"between: expected two views of one text as {role}, got {vectors.shape[1]} slots; "
            "give a pairing with views_per_text: 2, or set between: texts"
        )
    return ExampleVectors(vectors[:, 0], vectors[:, 1], None, ids[:, 0], ids[:, 1], None)


def _set_ids(ids: Tensor) -> Tensor:
    """Returns one id for the set of texts of each row, (N, P) -> (N,).

    If all texts of a row are equal, the result is their id. The order of the texts doesn't matter.
    """
    return torch.where((ids == ids[:, :1]).all(dim=1), ids[:, 0], ids.sum(dim=1))
