"""Views that the network itself makes: a step along the gradient of an objective, and its dropout."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.random import RowRandom
from contrastive_text.views.base import GradientView, View

EPSILON = 1e-10
"""Added to the norm of a gradient, from ConSERT's code: no gradient gives no perturbation."""


def fgv_perturbation(gradient: Tensor, norm: float) -> Tensor:
    """Returns ``norm * g / (|g| + EPSILON)`` of the gradient g of each token.

    Args:
        gradient: (..., D).
        norm: Euclidean length of the perturbation.

    Returns:
        (..., D), float32, or float64 where the gradient is.

    Example:
        >>> fgv_perturbation(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), norm=1.0)
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """
    # In half precision squares vanish, and so does EPSILON.
    gradient = gradient.to(torch.promote_types(gradient.dtype, torch.float32))
    length: Tensor = torch.linalg.vector_norm(gradient, dim=-1, keepdim=True)
    return norm * gradient / (length + EPSILON)


class Adversarial(GradientView):
    """Moves each token's embedding uphill: where the objective's loss grows fastest.

        e + norm * g / (|g| + 1e-10),   g = d loss / d e of the token

    Source: the fast gradient value of Rozsa et al. 2016 (https://arxiv.org/abs/1605.01775) on embeddings, as
    Miyato et al. 2017 (https://arxiv.org/abs/1605.07725, section 3) train on it; the view "adversarial attack"
    of Yan et al. 2021, ConSERT (https://arxiv.org/abs/2105.11741), section 3.2, and its authors' code. Miyato et
    al. divide by the norm over the whole text, ConSERT and this view by each token's own.

    Differs: ConSERT's code follows the supervised objective only; here any one, by name.

    Args:
        norm: Euclidean length of the step of each token; 1.0 is ConSERT's code's.
        objective: Name of the objective to follow; None for the only one.
        same_dropout: Whether the pass that finds the gradient has the dropout masks of the one trained on. In
            the authors' code it hasn't.

    Raises:
        ValueError: A norm that is negative or not finite.

    Example:
        >>> embeddings, gradient = torch.zeros(1, 2, 2), torch.tensor([[[0.0, 5.0], [3.0, 4.0]]])
        >>> mask, rng = torch.tensor([[True, False]]), RowRandom(torch.tensor([1]))
        >>> Adversarial(norm=2.0)(embeddings, gradient, mask, rng).tolist()
        [[[0.0, 2.0], [0.0, 0.0]]]
    """

    def __init__(self, norm: float = 1.0, objective: str | None = None, same_dropout: bool = False) -> None:
        if not 0 <= norm < math.inf:
            raise InvalidValueError(
                f"Adversarial.norm: expected a finite length of 0 or more, got {norm}; 1.0 is ConSERT's"
            )
        self.norm = norm
        self.objective = objective
        self.same_dropout = same_dropout

    def __call__(self, embeddings: Tensor, gradient: Tensor, mask: Tensor, rng: RowRandom) -> Tensor:  # noqa: ARG002  # the contract
        """Returns the embeddings one step uphill, (n, L, D)."""
        step = fgv_perturbation(gradient, self.norm).to(embeddings.dtype)
        return torch.where(mask.unsqueeze(2), embeddings + step, embeddings)


class FixedDropout(View):
    """Repeats the anchor's dropout masks for a role: dropout then makes no difference between the views.

    A marker: the module encodes each slot by itself and gives those of the role the anchor's masks. A mask is
    laid over places, so every text of the role must be as long as its anchor: use it with ``SameText`` and no
    view that changes a text's length. It stands last in a chain, never on the anchor, and needs an encoder
    with dropout. Source: "Fixed 0.1" of Gao et al. 2021, SimCSE (https://arxiv.org/abs/2104.08821), section 3,
    in the table of dropout probabilities: without a second mask the method fails.

    Example:
        >>> from contrastive_text.views import ViewPlan
        >>> ViewPlan({"positive": [FixedDropout()]}).fixed_dropout
        ('positive',)
    """
