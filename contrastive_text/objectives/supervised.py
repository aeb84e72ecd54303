"""What supervised objectives share: a target, a head, and the view of each text that they read."""

from __future__ import annotations

from typing import Generic, TypeVar

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from contrastive_text.core.batch import Encoded
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.targets import Classes, Target
from contrastive_text.core.types import Role
from contrastive_text.heads import (
    Head,
    apply_exactly,
    build_head,
    check_train_only,
    linear_exactly,
    project_parts,
)
from contrastive_text.objectives.base import Objective
from contrastive_text.objectives.terms import Terms

_T = TypeVar("_T", bound=Target)


class Supervised(Objective, Generic[_T]):
    """Base class of objectives that hold what they predict of one view of each text against a target.

    Args:
        target: What it reads of an example's target.
        head: A train-only head; None for none. It is checked here, and kept by the objective itself: the order of
            its parts is that of their weights in checkpoints.
        view: Which of several views of each text it reads, from 1.
        task: The data set that it reads, where there are several; None for the only one.

    Raises:
        ValueError: A head that isn't train-only, or a view below 1.
    """

    takes: tuple[Role, ...] = ()
    predicts: bool = True

    def __init__(self, target: _T, head: Head | None, view: int, task: str | None) -> None:
        super().__init__(task)
        where = type(self).__name__
        check_train_only(head, f"{where}.head")
        if view < 1:
            raise InvalidValueError(
                f"{where}.view: expected the number of a view, 1 or more, got {view}; 1 is the first"
            )
        self.view: int = view
        self._target = target

    @property
    def target(self) -> _T:
        """The classes, or the scores and their bounds."""
        return self._target

    def texts(self, encoded: Encoded, role: Role) -> Tensor:
        """Returns the vectors of its view of a role's first text, (N, D).

        Raises:
            ValueError: The role has no such slot.
        """
        vectors = encoded.role(role)
        if self.view > (slots := vectors.shape[1]):
            raise InvalidValueError(
                f"{type(self).__name__}.view: expected one of the {slots} slots of {role}, got {self.view}; set "
                "view, or the pairing's views_per_text"
            )
        return vectors[:, self.view - 1]

    def projected(self, encoded: Encoded, head: Head | None) -> list[Tensor]:
        """Returns what a head makes of its view of each role's first text, (N, D'), outside autocast."""
        texts = [self.texts(encoded, role) for role in self.reads]
        return project_parts(head, texts, lambda vectors: apply_exactly(head, vectors))

    def known_target(self, encoded: Encoded) -> Tensor:
        """Returns the target of every example, (N,).

        Raises:
            ValueError: The batch has none.
        """
        if encoded.target is None:
            raise InvalidValueError(
                f"{type(self).__name__}: expected a label or a score for every example, got a batch without; "
                "give a file with such a column, and a pairing that reads it"
            )
        return encoded.target

    def class_terms(self, encoded: Encoded) -> Terms:
        """Returns the summed cross entropy of the predicted scores (N, classes), and the hits."""
        scores, number = self.predict(encoded), self.known_target(encoded).long()
        hits = (scores.detach().argmax(dim=1) == number).sum()
        return Terms(
            total=cross_entropy(scores, number, reduction="sum"),
            count=len(number),
            logs={"accuracy": hits / max(len(number), 1)},
        )


def build_outputs(head: Head | None, features: int, count: int, where: str) -> nn.Linear | None:
    """Makes the layers of a head with so many outputs; without a head it returns one linear layer.

    Raises:
        ValueError: A head with more or fewer outputs.
    """
    if head is None:
        return nn.Linear(features, count)
    if (width := build_head(head, features)) != count:
        raise InvalidValueError(
            f"{where}.head: expected out_features: {count}, one for each {'score' if count == 1 else 'class'}, "
            f"got {width}; set out_features of {type(head).__name__}, or leave the head out for one linear layer"
        )
    return None


def outputs(head: Head | None, linear: nn.Linear | None, vectors: Tensor, where: str) -> Tensor:
    """Returns what head or linear layer make of vectors, (N, D) -> (N, outputs), in at least float32."""
    if head is not None:
        return apply_exactly(head, vectors)
    if linear is None:
        raise RuntimeError(f"{where}: expected build(features) before the first call")
    return linear_exactly(linear, vectors)


def read_classes(classes: int | list[str] | list[int], where: str) -> Classes:
    """Returns the classes of an argument that may name them by numbers, as YAML reads them."""
    return Classes.of(classes if isinstance(classes, int) else [str(name) for name in classes], where)
