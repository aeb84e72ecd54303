"""Base class of training objectives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor, nn

from contrastive_text.core.batch import Encoded
from contrastive_text.core.targets import Target
from contrastive_text.core.types import ROLES, Role
from contrastive_text.heads import Head, build_head
from contrastive_text.objectives.momentum import Momentum
from contrastive_text.objectives.terms import Terms

if TYPE_CHECKING:
    from contrastive_text.encoders.base import Embedder


class Objective(nn.Module, ABC):
    """Base class of training objectives, which compute a value to minimize from an encoded batch.

    A subclass implements ``forward``.

    Args:
        task: Name of the data set that the objective reads if there are several; None for the only one.

    Attributes:
        required_roles: Roles that every example must have.
        optional_roles: Roles that the objective reads if examples have them. Roles that no objective of a step
            reads or takes are not encoded.
        token_roles: Roles whose token ids the objective reads (``Encoded.tokens``) if examples have them,
            encoded or not.
        view: Number of the view of each text that the objective reads, from 1; None for all views.
        needs_token_logits: Whether the objective predicts tokens, with the head of the encoder's architecture.
        predicts: Whether ``predict`` returns predictions that are compared with the target.
        head_of: Name of the objective whose head is also applied to the vectors (``set_head``); None for none.
        guides: Names of the guides whose vectors the objective reads (``Encoded.guides``).
        reads_scores: Whether the objective reads the teacher scores of rows (``Encoded.scores``).
        has_negatives: Whether the objective pushes texts of different examples apart, if it compares texts.
        collapse_advice: Advice for collapsed vectors, in addition to a lower learning rate or a larger batch.
        momentum: Settings of a momentum encoder whose vectors the objective reads as ``Encoded.keys[keys]``;
            None for none.
        head: Train-only head between embeddings and loss; None for none. A subclass sets it.
        momentum_only_roles: Roles that only the momentum encoder encodes in training.

    Example:
        >>> import torch
        >>> from contrastive_text.core import Slot
        >>> class Length(Objective):
        ...     reads = ("anchor",)
        ...     def forward(self, encoded):
        ...         lengths = encoded.role("anchor")[:, 0].norm(dim=1)
        ...         return Terms(total=(lengths - 1).square().sum(), count=len(lengths))
        >>> encoded = Encoded(torch.tensor([[3.0, 4.0], [0.0, 1.0]]), (Slot("anchor", 0),), torch.arange(2))
        >>> Length()(encoded).loss()
        tensor(8.)
    """

    required_roles: tuple[Role, ...] = ()
    optional_roles: tuple[Role, ...] = ROLES
    token_roles: tuple[Role, ...] = ()
    view: int | None = None
    needs_token_logits: ClassVar[bool] = False
    predicts: bool = False
    guides: tuple[str, ...] = ()
    reads_scores: bool = False
    head_of: str | None = None
    has_negatives: bool = True
    collapse_advice: tuple[str, ...] = ()
    momentum: Momentum | None = None
    momentum_only_roles: tuple[Role, ...] = ()

    def __init__(self, task: str | None = None) -> None:
        super().__init__()
        self.task = task
        self.head: Head | None = None

    @property
    def inner(self) -> Objective:
        """This objective, or the objective that it trains on variants of the vectors."""
        return self

    @abstractmethod
    def forward(self, encoded: Encoded) -> Terms:
        """Returns the sum of the loss terms of this rank's rows and their number."""

    def build(self, features: int) -> None:
        """Builds the objective's layers, whose size depends on the width of the embeddings. Default: ``head``.

        Called once, before training.

        Args:
            features: Width D of the embeddings.
        """
        build_head(self.head, features)

    def build_networks(self, embedder: Embedder) -> None:  # most objectives have no further network
        """Builds the objective's further networks, which start as copies of the encoder. Called after ``build``.

        The networks are trained. Checkpoints have them; the saved model does not. A run that starts from the
        weights of another run calls this method again after it loads them.
        """

    def describe_networks(self) -> str | None:
        """Returns a description of the objective's further networks for the run's summary; None without any."""
        return None

    def set_head(self, head: Head) -> None:
        """Receives the head of the objective that ``head_of`` names. Called before ``build_networks``."""

    def check(self) -> None:  # most objectives read no files
        """Checks the files that the objective itself reads. Called before the first step of a run."""

    def check_examples(self, examples: int, negatives: int) -> None:  # most objectives need one example
        """Checks that a training step has enough examples to compare. Called before the first step.

        Args:
            examples: Number of examples of a step, over all ranks.
            negatives: Number of hard negatives of each example.

        Raises:
            ValueError: The loss would be constant.
        """

    def check_guide_widths(self, features: Mapping[str, int]) -> None:  # most compare a guide's with each other
        """Checks the width of the vectors of each guide. Called before the first step.

        Args:
            features: Name of a guide -> width Dg of its vectors.

        Raises:
            ValueError: The objective can't use vectors of this width.
        """

    def finish_step(self) -> None:  # most objectives keep no state between steps
        """Updates state that later steps read, from the last ``forward`` of a training step.

        The module calls it once per batch, on every rank, when all losses of the step are computed, for the
        objectives that the step trains. ``forward`` must not update this state: with gradient views it runs
        twice.
        """

    @property
    def target(self) -> Target | None:
        """Kind of target (classes or scores) that the objective reads; None if it reads no target."""
        return None

    @property
    def needs_two_texts(self) -> str | None:
        """Description of an option that needs anchor and positive to be different texts; None without any."""
        predicts_pairs = self.predicts and "positive" in self.required_roles
        return "an objective that predicts their label or score" if predicts_pairs else None

    def predict(self, encoded: Encoded) -> Tensor:
        """Returns the predictions of a supervised objective: scores of classes (N, classes), or 0 .. 1 (N,).

        ``target.metric()`` compares them with the target. Called only if ``predicts`` is true.

        Raises:
            NotImplementedError: The objective makes no predictions.
        """
        raise NotImplementedError(f"{type(self).__name__} makes no predictions: it has no predict method")

    def predictors(self) -> dict[str, Callable[[Encoded], Tensor]]:
        """Returns the prediction functions by the suffix of the score's name; ``predict`` has an empty suffix."""
        return {"": self.predict}

    def describe_negatives(self, batch_size: int, positives: int, negatives: int) -> str | None:  # noqa: ARG002  # the base's signature
        """Returns a description of the number of negatives of an anchor, for the run's summary.

        Args:
            batch_size: Number of examples of a step, over all ranks.
            positives: Number of positives of an example.
            negatives: Number of hard negatives of an example.

        Returns:
            The description; None if the objective has no negatives.
        """
        return None
