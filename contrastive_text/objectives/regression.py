"""Regression of texts."""

from __future__ import annotations

from torch import Tensor, nn

from contrastive_text.core.batch import Encoded
from contrastive_text.core.targets import Scores
from contrastive_text.core.types import Role
from contrastive_text.heads import Head
from contrastive_text.objectives.supervised import Supervised, build_outputs, outputs
from contrastive_text.objectives.terms import Terms


class TextRegression(Supervised[Scores]):
    """Squared error of a score that is predicted of a text, or of two in one sequence.

    Source: BERT's fine-tuning on STS-B (Devlin et al. 2019, https://arxiv.org/abs/1810.04805); RoBERTa's, whose
    code divides the scores by 5 (fairseq, ``examples/roberta/preprocess_GLUE_tasks.sh``), as here.

    Args:
        low: The score of texts that have nothing in common; it becomes 0.
        high: The score of texts that mean the same; it becomes 1.
        head: A train-only head with one output; None for one linear layer.
        view: Which of several views of a text it reads, from 1.
        task: The data set that it reads, where there are several; None for the only one.

    Raises:
        ValueError: Bounds out of order, a head that isn't train-only, or a view below 1.

    Example:
        >>> import torch
        >>> from contrastive_text.core.types import Slot
        >>> similarity = TextRegression()
        >>> similarity.build(features=4)
        >>> texts = Encoded(torch.eye(4), (Slot("anchor", 0),), torch.arange(4), target=torch.ones(4))
        >>> similarity.predict(texts).shape
        torch.Size([4])
    """

    reads: tuple[Role, ...] = ("anchor",)

    def __init__(
        self,
        low: float = 0.0,
        high: float = 5.0,
        head: Head | None = None,
        view: int = 1,
        task: str | None = None,
    ) -> None:
        super().__init__(Scores(low=low, high=high), head, view, task)
        self.low = low
        self.high = high
        self.head = head
        self.linear: nn.Linear | None = None

    def build(self, features: int) -> None:
        """Makes the head's layers, or the linear one.

        Raises:
            ValueError: A head with more outputs than one.
        """
        self.linear = build_outputs(self.head, features, 1, where="TextRegression")

    def forward(self, encoded: Encoded) -> Terms:
        """Returns the summed squared errors of the local texts."""
        errors = (self.predict(encoded) - self.known_target(encoded)).square()
        return Terms(total=errors.sum(), count=len(errors))

    def predict(self, encoded: Encoded) -> Tensor:
        """Returns a score for each text, 0 for ``low`` and 1 for ``high``, (N,)."""
        return outputs(self.head, self.linear, self.texts(encoded, "anchor"), where="TextRegression").squeeze(1)
