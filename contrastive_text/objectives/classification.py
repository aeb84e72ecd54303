"""Classification of texts."""

from __future__ import annotations

from torch import Tensor, nn

from contrastive_text.core.batch import Encoded
from contrastive_text.core.targets import Classes
from contrastive_text.core.types import Role
from contrastive_text.heads import Head
from contrastive_text.objectives.supervised import Supervised, build_outputs, outputs, read_classes
from contrastive_text.objectives.terms import Terms


class TextClassification(Supervised[Classes]):
    """Cross entropy of the classes of single texts, or of two in one sequence.

    Source: the CS224N report (Chen, "Contrastive Learning for Generalizable Sentence Embeddings"), whose
    sentiment head is ``MLPHead(hidden_features=768, out_features=5, dropout=0.3)``. Over ``OneSequence``, with
    ``FineTuningHead``, it is BERT's fine-tuning on pairs (Devlin et al. 2019, https://arxiv.org/abs/1810.04805).

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

    def __init__(
        self,
        classes: int | list[str] | list[int],
        head: Head | None = None,
        view: int = 1,
        task: str | None = None,
    ) -> None:
        super().__init__(read_classes(classes, "TextClassification.classes"), head, view, task)
        self.classes = classes
        self.head = head
        self.linear: nn.Linear | None = None

    def build(self, features: int) -> None:
        """Makes the head's layers, or the linear one.

        Raises:
            ValueError: A head with more or fewer outputs than classes.
        """
        self.linear = build_outputs(self.head, features, len(self._target.names), where="TextClassification")

    def forward(self, encoded: Encoded) -> Terms:
        """Returns the summed cross entropy of the local texts."""
        return self.class_terms(encoded)

    def predict(self, encoded: Encoded) -> Tensor:
        """Returns the classes' scores before the softmax, (N, classes)."""
        return outputs(self.head, self.linear, self.texts(encoded, "anchor"), where="TextClassification")
