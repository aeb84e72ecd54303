"""Objective that makes vectors sparse: the FLOPS regularizer, with weights that grow over the first steps."""

from __future__ import annotations

import torch
from torch import Tensor

from contrastive_text.core.batch import Encoded
from contrastive_text.core.distributed import gather_rows, world_size
from contrastive_text.core.errors import at_least
from contrastive_text.core.similarity import at_least_float32
from contrastive_text.losses.comparison import MASKED_ID
from contrastive_text.objectives.base import Objective
from contrastive_text.objectives.terms import Terms


class FLOPS(Objective):
    """Sum over features of the squared mean activation of the batch, for queries and for documents.

    ``w_q * sum_j (mean_i |q_ij|)^2 + w_d * sum_j (mean_i |d_ij|)^2``. Queries q are the anchors, documents d are
    the positives and the hard negatives. The sum is the expected number of multiplications of a query with a
    document by an inverted index. The means are over the batch of all ranks, with an exact gradient. In
    evaluation mode ranks do not communicate.

    In step t, from 1, both weights are multiplied by min(1, t / T)^2, where T is ``warmup_steps``. Checkpoints
    have the number of steps. In evaluation mode the weights are the final ones.

    Use the objective together with ``Contrastive`` or ``RankDistillation``, and with ``SpladePooler``. The logged
    values ``query_nonzeros`` and ``document_nonzeros`` are the mean numbers of features above or below 0.

    Source: Paria et al. 2020 (https://arxiv.org/abs/2004.05665), equation 3, and its quadratic schedule; Formal
    et al. 2021, SPLADE v2 (https://arxiv.org/abs/2109.10086), section 3.1; naver/splade,
    ``losses/regularization.py``.

    Differs: the authors' code of SPLADE gives positives and hard negatives a mean each, and averages the two
    values. Here all documents have one mean, as in sentence-transformers.

    Args:
        query_weight: Weight of queries, w_q.
        document_weight: Weight of documents, w_d.
        warmup_steps: Number T of training batches until the weights are reached; 0 for constant weights.
        task: Name of the data set that the objective reads if there are several; None for the only one.

    Raises:
        ValueError: A weight or ``warmup_steps`` is below 0.

    Example:
        >>> from contrastive_text.core.types import Slot
        >>> vectors = torch.tensor([[1.0, 0.0], [3.0, 2.0], [0.0, 2.0], [0.0, 4.0]])
        >>> encoded = Encoded(vectors, (Slot("anchor", 0), Slot("positive", 0)), text_ids=torch.arange(4))
        >>> FLOPS(query_weight=1.0, document_weight=0.1)(encoded).total  # 2^2 + 1^2 and 0.1 * 3^2
        tensor(5.9000)
    """

    required_roles = ("anchor",)
    optional_roles = ("positive", "negative")
    has_negatives = False
    collapse_advice = ("smaller weights of FLOPS",)

    def __init__(
        self,
        query_weight: float = 3e-4,
        document_weight: float = 1e-4,
        warmup_steps: int = 0,
        task: str | None = None,
    ) -> None:
        super().__init__(task)
        self.query_weight = at_least("FLOPS.query_weight", query_weight, 0)
        self.document_weight = at_least("FLOPS.document_weight", document_weight, 0)
        self.warmup_steps = at_least("FLOPS.warmup_steps", warmup_steps, 0, "0 is no warm-up")
        self._steps = 0

    def forward(self, encoded: Encoded) -> Terms:
        """Returns the weighted sum of both terms, the same on every rank."""
        roles = [slot.role for slot in encoded.slots]
        documents = [role for role in self.optional_roles if role in roles]
        sides = [(encoded.role("anchor"), encoded.role_ids("anchor"))]
        if documents:
            vectors, ids = (
                torch.cat([read(role) for role in documents], dim=1) for read in (encoded.role, encoded.role_ids)
            )
            sides.append((vectors, ids))
        sums, counts, nonzeros = zip(*(self._sum(*side) for side in sides), strict=True)
        total, count = torch.stack(sums), torch.stack(counts)
        if self.training:
            # One row per rank: the gradient of the whole batch reaches every rank.
            rows = gather_rows(torch.cat([total, count.unsqueeze(1)], dim=1).unsqueeze(0), [1] * world_size())
            total, count = rows[..., :-1].sum(dim=0), rows[..., -1].sum(dim=0)
        means = total / count.clamp(min=1).unsqueeze(1)
        weights = [weight * self._share for weight in (self.query_weight, self.document_weight)]
        value = torch.stack([w * mean.square().sum() for w, mean in zip(weights, means, strict=False)]).sum()
        if not encoded.logged:
            return Terms(total=value, count=1)
        names = ("query_nonzeros", "document_nonzeros")
        logs = dict(zip(names, nonzeros, strict=False))
        return Terms(total=value, count=1, logs=logs, log_weights=dict(zip(logs, counts, strict=True)))

    def _sum(self, vectors: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the sum of the activations of texts, (D,), their number, and their mean number of non-zeros.

        Missing hard negatives don't count.
        """
        vectors, ids = at_least_float32(vectors.flatten(0, 1)).abs(), ids.flatten(0, 1)
        counts = (ids if ids.ndim == 1 else ids[:, 0]) != MASKED_ID
        count = counts.sum().to(vectors)
        nonzeros = (vectors.detach() > 0).sum(dim=1).to(vectors)
        return counts.to(vectors) @ vectors, count, (nonzeros * counts).sum() / count.clamp(min=1)

    @property
    def _share(self) -> float:
        """Share of the final weights in the current step."""
        if not self.training or self._steps >= self.warmup_steps:
            return 1.0
        return float(((self._steps + 1) / self.warmup_steps) ** 2)

    def finish_step(self) -> None:
        """Counts a training step."""
        self._steps += 1

    def get_extra_state(self) -> dict[str, int]:
        """Returns the number of training steps, for a state dict."""
        return {"steps": self._steps}

    def set_extra_state(self, state: dict[str, int]) -> None:
        """Restores the number of training steps."""
        self._steps = state["steps"]
