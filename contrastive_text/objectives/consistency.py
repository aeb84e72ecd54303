"""Consistency: two views of a batch should see the same neighbourhoods."""

from __future__ import annotations

from torch import Tensor

from contrastive_text.core.batch import Encoded
from contrastive_text.core.similarity import full_precision, unit_vectors
from contrastive_text.heads import Head, build_head, check_train_only
from contrastive_text.losses.base import check_temperature
from contrastive_text.losses.by_rows import terms_by_rows
from contrastive_text.losses.ranking import jensen_shannon_terms
from contrastive_text.objectives.base import Objective
from contrastive_text.objectives.between import BetweenTexts, read_vectors
from contrastive_text.objectives.columns import gather_triples
from contrastive_text.objectives.terms import Terms, check_compared


class Consistency(Objective):
    """Jensen-Shannon divergence of how an anchor sees all positives and its positive all anchors.

    ``mean_i JS( softmax_j(cos(a_i, p_j) / T) || softmax_j(cos(p_i, a_j) / T) )``, over the columns of all ranks
    with an exact gradient. Anchors and positives are the two views of ``SameText``, or pairs. Vectors that are
    all equal have the value 0, so it stands beside ``Contrastive``. Above 2^22 rows times columns only the
    matrices of some rows are held at a time.

    Source: Liu et al. 2023, RankCSE (https://arxiv.org/abs/2305.16726), its ranking consistency.

    Differs: in the community code of RankCSE (perceptiveshawty/RankCSE) the logarithm of the mean distribution
    has the lower bound 1e-7, which no logarithm of a probability reaches: what remains is minus the mean entropy
    of the two softmaxes (-0.2600 on vectors whose divergence is 0.4167). It flattens both and holds nothing
    consistent. Results of that code belong to the other loss.

    Args:
        temperature: Divisor of the cosines.
        head: A train-only head before the cosines; None for none.
        task: The data set that it reads, where there are several; None for the only one.

    Raises:
        ValueError: A temperature of 0 or less, or a head that isn't train-only.

    Example:
        >>> from contrastive_text.core.types import Slot
        >>> import torch
        >>> slots = (Slot("anchor", 0), Slot("positive", 0))
        >>> same = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
        >>> other = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.8, 0.6], [1.0, 0.0]])
        >>> [Consistency()(Encoded(each, slots, torch.arange(4))).total for each in (same, other)]
        [tensor(0.), tensor(0.6031)]
    """

    reads = ("anchor", "positive")
    takes = ()
    has_negatives = False
    remedies = ("a Contrastive objective beside Consistency",)

    def __init__(self, temperature: float = 0.05, head: Head | None = None, task: str | None = None) -> None:
        super().__init__(task)
        check_temperature(temperature)
        check_train_only(head, "Consistency.head")
        self.temperature = temperature
        self.head = head

    def build(self, features: int) -> None:
        """Makes the head's layers."""
        build_head(self.head, features)

    def check_examples(self, examples: int, negatives: int) -> None:  # noqa: ARG002  # the base's signature
        """Checks that a step has two examples or more: one alone has a divergence of 0."""
        check_compared("Consistency", examples)

    def forward(self, encoded: Encoded) -> Terms:
        """Returns the divergences of the local rows; see ``Objective.forward``."""
        local = BetweenTexts().triples(encoded, read_vectors(encoded, self.reads, self.head))["texts"]
        (every,), _ = gather_triples([local], self.training, encoded.shares)
        anchor, positive, anchors, positives = (
            unit_vectors(each) for each in (local.anchor, local.positive, every.anchor, every.positive)
        )

        def terms(down: slice) -> Tensor:
            with full_precision(anchor.device):
                forwards = anchor[down] @ positives.T / self.temperature
                backwards = positive[down] @ anchors.T / self.temperature
                return jensen_shannon_terms(forwards, backwards)

        found = terms_by_rows(terms, len(anchor), len(anchors))
        return Terms(total=found.sum(), count=len(found))
