"""Classification of texts, and what every supervised objective reads of an encoded batch."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.targets import Classes
from contrastive_text.core.types import Encoded, Role
from contrastive_text.heads import Head, apply_exactly, build_head, check_train_only, linear_exactly
from contrastive_text.objectives.base import Objective, Terms


class TextClassification(Objective):
    """Cross entropy of the classes of single texts.

    Source: the CS224N report (Chen, "Contrastive Learning for Generalizable Sentence Embeddings"), whose
    sentiment head is ``MLPHead(hidden_features=768, out_features=5, dropout=0.3)``.

    Args:
        classes: Number of classes, or their names in the order of the outputs.
        head: A train-only head whose outputs are the classes' scores; None for one linear layer.
        view: Which of several views of a text it reads, from 1.
        task: The data set that it reads, where there are several; None for the only one.

    Raises:
        ValueError: Fewer than two classes, a head that isn't train-only, or a view below 1.

    Example:
        >>> import torch
        >>> from contrastive_text.core.types import Slot
        >>> sentiment = TextClassification(["bad", "good"])
        >>> sentiment.build(features=4)
        >>> texts = Encoded(torch.eye(4), (Slot("anchor", 0),), torch.arange(4), target=torch.ones(4))
        >>> sentiment.predict(texts).shape
        torch.Size([4, 2])
    """

    reads: tuple[Role, ...] = ("anchor",)
    takes: tuple[Role, ...] = ()
    predicts: ClassVar[bool] = True

    def __init__(
        self,
        classes: int | list[str] | list[int],
        head: Head | None = None,
        view: int = 1,
        task: str | None = None,
    ) -> None:
        super().__init__(task)
        check_train_only(head, "TextClassification.head")
        check_view(view, "TextClassification.view")
        self.classes = classes
        self.head = head
        self.view: int = view
        self.linear: nn.Linear | None = None
        self._target = read_classes(classes, "TextClassification.classes")

    @property
    def target(self) -> Classes:
        """The classes."""
        return self._target

    def build(self, features: int) -> None:
        """Makes the head's layers, or the linear one.

        Raises:
            ValueError: A head with more or fewer outputs than classes.
        """
        wanted = len(self._target.names)
        if self.head is None:
            self.linear = nn.Linear(features, wanted)
        elif (width := build_head(self.head, features)) != wanted:
            raise InvalidValueError(
                f"TextClassification.head: expected out_features: {wanted}, one for each class, got {width}; set "
                f"out_features of {type(self.head).__name__}, or leave the head out for one linear layer"
            )

    def forward(self, encoded: Encoded) -> Terms:
        """Returns the summed cross entropy of the local texts."""
        return class_terms(self.predict(encoded), known_target(encoded, "TextClassification"))

    def predict(self, encoded: Encoded) -> Tensor:
        """Returns the classes' scores before the softmax, (N, classes)."""
        vectors = view_of(encoded, "anchor", self.view, "TextClassification.view")
        if self.head is not None:
            return apply_exactly(self.head, vectors)
        if self.linear is None:
            raise RuntimeError("TextClassification: expected build(features) before the first call")
        return linear_exactly(self.linear, vectors)


def read_classes(classes: int | list[str] | list[int], where: str) -> Classes:
    """Returns the classes of an argument that may name them by numbers, as YAML reads them."""
    return Classes.of(classes if isinstance(classes, int) else [str(name) for name in classes], where)


def check_view(view: int, where: str) -> None:
    """Refuses a number below 1 (ValueError)."""
    if view < 1:
        raise InvalidValueError(f"{where}: expected the number of a view, 1 or more, got {view}; 1 is the first")


def view_of(encoded: Encoded, role: Role, view: int, where: str) -> Tensor:
    """Returns the vectors of one view of a role's first text, (N, D).

    Raises:
        ValueError: The role has no such slot.
    """
    vectors = encoded.role(role)
    if view > (slots := vectors.shape[1]):
        raise InvalidValueError(
            f"{where}: expected one of the {slots} slots of {role}, got {view}; set view, or the pairing's "
            "views_per_text"
        )
    return vectors[:, view - 1]


def known_target(encoded: Encoded, where: str) -> Tensor:
    """Returns the target of every example, (N,).

    Raises:
        ValueError: The batch has none.
    """
    if encoded.target is None:
        raise InvalidValueError(
            f"{where}: expected a label or a score for every example, got a batch without; give a file with such "
            "a column, and a pairing that reads it"
        )
    return encoded.target


def class_terms(scores: Tensor, target: Tensor) -> Terms:
    """Returns the summed cross entropy of scores (N, classes) at the classes' numbers (N,), and the hits."""
    number = target.long()
    hits = (scores.detach().argmax(dim=1) == number).sum()
    return Terms(
        total=cross_entropy(scores, number, reduction="sum"),
        count=len(number),
        logs={"accuracy": hits / max(len(number), 1)},
    )
