"""Consistency objective, which compares two softmaxes of a pair: over positives and over anchors."""

from __future__ import annotations

from torch import Tensor

from contrastive_text.core.batch import Encoded
from contrastive_text.core.similarity import full_precision, unit_vectors
from contrastive_text.heads import Head, build_head, check_train_only
from contrastive_text.losses.base import check_temperature
from contrastive_text.losses.ranking import jensen_shannon_terms
from contrastive_text.losses.streaming import streamed_terms
from contrastive_text.objectives.base import Objective
from contrastive_text.objectives.between import BetweenTexts, read_vectors
from contrastive_text.objectives.columns import gather_triples
from contrastive_text.objectives.terms import Terms, check_several_examples


class Consistency(Objective):
    """Jensen-Shannon divergence between an anchor's softmax over positives and its positive's over anchors.

    ``mean_i JS( softmax_j(cos(a_i, p_j) / T) || softmax_j(cos(p_i, a_j) / T) )``, over the columns of all ranks
    with an exact gradient. Anchors and positives are the two views of ``SameText``, or pairs. The value is 0 if
    all vectors are equal, so use this objective together with ``Contrastive``. Above 2^22 matrix entries the loss
    is streamed.

    Source: Liu et al. 2023, RankCSE (https://arxiv.org/abs/2305.16726), ranking consistency.

    Differs: the community code of RankCSE (perceptiveshawty/RankCSE) bounds the logarithm of the mean
    distribution below by 1e-7, which is above every logarithm of a probability. The remaining value is minus the
    mean entropy of the two softmaxes (-0.2600 on vectors whose divergence is 0.4167). It flattens both
    distributions and compares nothing. Results of that code are results of that other loss.

    Args:
        temperature: Divisor of the cosines.
        head: Train-only head before the cosines; None for none.
        task: Name of the data set that the objective reads if there are several; None for the only one.

    Raises:
        ValueError: The temperature is 0 or less, or the head isn't train-only.

    Example:
        >>> from contrastive_text.core.types import Slot
        >>> import torch
        >>> slots = (Slot("anchor", 0), Slot("positive", 0))
        >>> same = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
        >>> other = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.8, 0.6], [1.0, 0.0]])
        >>> [Consistency()(Encoded(vectors, slots, torch.arange(4))).total for vectors in (same, other)]
        [tensor(0.), tensor(0.6031)]
    """

    required_roles = ("anchor", "positive")
    optional_roles = ()
    has_negatives = False
    collapse_advice = ("a Contrastive objective in addition to Consistency",)

    def __init__(self, temperature: float = 0.05, head: Head | None = None, task: str | None = None) -> None:
        super().__init__(task)
        check_temperature(temperature)
        check_train_only(head, "Consistency.head")
        self.temperature = temperature
        self.head = head

    def build(self, features: int) -> None:
        """Builds the layers of the objective's train-only head."""
        build_head(self.head, features)

    def check_examples(self, examples: int, negatives: int) -> None:  # noqa: ARG002  # the base's signature
        """Checks that a step has two or more examples (ValueError). One example has a divergence of 0."""
        check_several_examples("Consistency", examples)

    def forward(self, encoded: Encoded) -> Terms:
        """Returns the sum of the divergences of the local rows and their number; see ``Objective.forward``."""
        local = BetweenTexts().arrange(encoded, read_vectors(encoded, self.required_roles, self.head))["texts"]
        (gathered,), _ = gather_triples([local], self.training, encoded.rank_sizes)
        anchor, positive, anchors, positives = (
            unit_vectors(vectors)
            for vectors in (local.anchor, local.positive, gathered.anchor, gathered.positive)
        )

        def divergences(rows: slice) -> Tensor:
            with full_precision(anchor.device):
                forwards = anchor[rows] @ positives.T / self.temperature
                backwards = positive[rows] @ anchors.T / self.temperature
                return jensen_shannon_terms(forwards, backwards)

        terms = streamed_terms(divergences, len(anchor), len(anchors))
        return Terms(total=terms.sum(), count=len(terms), rows={"loss": terms.detach()})
