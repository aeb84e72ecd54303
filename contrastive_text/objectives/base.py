"""Base class of objectives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor, nn

from contrastive_text.core.batch import Encoded
from contrastive_text.core.targets import Target
from contrastive_text.core.types import ROLES, Role
from contrastive_text.objectives.momentum import Momentum
from contrastive_text.objectives.terms import Terms

if TYPE_CHECKING:
    from contrastive_text.encoders.embedder import Embedder
    from contrastive_text.heads import Head


class Objective(nn.Module, ABC):
    """Base class of objectives: what is minimised, read from the roles of an encoded batch.

    Args:
        task: The data set that it reads, where there are several; None for the only one.

    Attributes:
        reads: The roles that every example must have.
        takes: The roles that it reads if examples have them. Roles that no objective of a step reads or takes are
            not encoded.
        reads_tokens: The roles whose token ids it reads (``Encoded.tokens``) where there are any, encoded or not.
        view: Which of several views of each text it reads, from 1; None for all of them.
        needs_token_logits: Whether it predicts tokens, with the head of the encoder's architecture.
        predicts: Whether ``predict`` gives predictions that are compared with the target.
        head_of: The objective whose head it reads vectors through too (``take_head``); None for none.
        guides: Names of the module's guides whose vectors it reads, ``Encoded.guides``.
        has_negatives: Whether it pushes texts apart that don't belong together, if it compares texts at all.
        remedies: Advice if its vectors collapse, in addition to a lower learning rate or a larger batch.
        keys: Momentum encoder of its own, whose vectors it reads as ``Encoded.keys[keys]``; None for none.
        keyed: Roles of which it reads momentum vectors alone in training. The network need not encode them.

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

    reads: tuple[Role, ...] = ()
    takes: tuple[Role, ...] = ROLES
    reads_tokens: tuple[Role, ...] = ()
    view: int | None = None
    needs_token_logits: ClassVar[bool] = False
    predicts: bool = False
    guides: tuple[str, ...] = ()
    head_of: str | None = None
    has_negatives: bool = True
    remedies: tuple[str, ...] = ()
    keys: Momentum | None = None
    keyed: tuple[Role, ...] = ()

    def __init__(self, task: str | None = None) -> None:
        super().__init__()
        self.task = task

    @abstractmethod
    def forward(self, encoded: Encoded) -> Terms:
        """Returns the objective's terms on this rank's rows; never divides by a count of its own."""

    def build(self, features: int) -> None:  # most objectives have nothing to build
        """Makes what depends on the width D of the embeddings; the module calls it once."""

    def build_networks(self, embedder: Embedder) -> None:  # most objectives have no network of their own
        """Makes the networks of its own that begin as the encoder does; called after ``build``.

        They are trained, and are in checkpoints but not in the saved model. A run that starts from the weights of
        another calls it once more, when the encoder has them.
        """

    def describe_networks(self) -> str | None:
        """Returns its own networks as text, for the run's summary; None if there are none."""
        return None

    def take_head(self, head: Head) -> None:
        """Takes the head of the objective ``head_of``, before ``build_networks``."""

    def check(self) -> None:  # most objectives read no files
        """Checks, before the first step of a run, the files that it reads by itself."""

    def check_examples(self, examples: int, negatives: int) -> None:  # most objectives need one example
        """Checks that the examples of a training step give it something to compare, before the first step.

        Args:
            examples: Examples of a step, over all ranks together.
            negatives: Hard negatives of each example.

        Raises:
            ValueError: Its loss would be constant.
        """

    def check_guide_widths(self, features: Mapping[str, int]) -> None:  # most compare a guide's with each other
        """Checks the width Dg of each guide that it reads, by name, before the first step (ValueError)."""

    def finish_step(self) -> None:  # most objectives carry nothing from step to step
        """Takes over what the last ``forward`` of a training step leaves for later steps.

        The module calls it once per batch, on every rank, for the objectives whose losses the step has, as soon
        as all are known. ``forward`` alone must not touch later steps: with gradient views it runs twice.
        """

    @property
    def target(self) -> Target | None:
        """Kind of target that the objective reads; None if it reads none."""
        return None

    @property
    def two_texts(self) -> str | None:
        """Name of an option that makes no sense if anchor and positive are the same text; None for none."""
        is_of_pairs = self.predicts and "positive" in self.reads
        return "an objective that predicts their label or score" if is_of_pairs else None

    def predict(self, encoded: Encoded) -> Tensor:
        """Returns the predictions of a supervised objective: scores of classes (N, classes), or 0 .. 1 (N,).

        ``target.metric()`` compares them with the target. Called only if ``predicts`` is true.
        """
        raise NotImplementedError(f"{type(self).__name__} predicts nothing")

    def predictors(self) -> dict[str, Callable[[Encoded], Tensor]]:
        """Returns the functions that predict, by the suffix of the score's name; ``predict`` has none."""
        return {"": self.predict}

    def describe_negatives(self, batch_size: int, positives: int, negatives: int) -> str | None:  # noqa: ARG002  # the base's signature
        """Returns the number of negatives of an anchor as text, for the run's summary; None without negatives."""
        return None
