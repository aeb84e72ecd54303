"""The formulas of the softmax losses, on a matrix of logits that is held as a whole."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from contrastive_text.core.similarity import Similarity, similarity_matrix
from contrastive_text.losses.relations import Alike, Forbid


def weighted_logits(
    rows: Tensor,
    columns: Tensor,
    temperature: Tensor | float,
    own: Tensor | None,
    own_log_weight: Tensor | float,
    similarity: Similarity = "cosine",
) -> Tensor:
    """Returns similarities over the temperature, plus the weight of each row's own hard negatives, (R, C)."""
    logits = similarity_matrix(rows, columns, temperature, similarity)
    if own is None:
        return logits
    if isinstance(own_log_weight, Tensor):
        weight = own_log_weight.to(logits)
    else:
        weight = logits.new_full((), own_log_weight)
    return logits.scatter_add(1, own.clamp(min=0), torch.where(own < 0, 0.0, weight))


def info_nce_terms(
    rows: Tensor,
    columns: Tensor,
    target: Tensor,
    temperature: Tensor | float,
    forbid: Forbid | None = None,
    own: Tensor | None = None,
    own_log_weight: Tensor | float = 0.0,
    similarity: Similarity = "cosine",
) -> Tensor:
    """Returns the cross-entropy of each row's target among the columns it may see.

    ``-log( exp(cos(r, c_t) / T) / sum_c exp(cos(r, c) / T + w * [c is r's own hard negative]) )``

    Args:
        rows: (R, D).
        columns: (C, D).
        target: Column that each row should find, (R,).
        temperature: Divisor of the cosine.
        forbid: Columns that rows must not see.
        own: Columns of each row's own hard negatives, (R, K), -1 where it has fewer.
        own_log_weight: Logarithm of the weight of those, added after the division by the temperature.
        similarity: What stands in the place of the cosine, if not that.

    Returns:
        (R,), in at least float32.

    Example:
        >>> eye = torch.eye(2)
        >>> info_nce_terms(eye, eye, torch.tensor([0, 1]), temperature=1.0)
        tensor([0.3133, 0.3133])
    """
    logits = weighted_logits(rows, columns, temperature, own, own_log_weight, similarity)
    if forbid is not None:
        logits = forbid.hide(logits, target)
    return F.cross_entropy(logits, target, reduction="none")


def sup_con_terms(
    rows: Tensor,
    columns: Tensor,
    target: Tensor,
    temperature: Tensor | float,
    forbid: Forbid | None = None,
    own: Tensor | None = None,
    own_log_weight: Tensor | float = 0.0,
    alike: Alike | None = None,
    similarity: Similarity = "cosine",
) -> Tensor:
    """Returns each row's cross-entropy over all columns that it is pulled to, among those that it may see.

    ``log sum_c exp(cos(r, c) / T) - mean_p cos(r, p) / T``, p over the columns alike; where those are joined by
    the ``sum``, ``log sum_p exp(cos(r, p) / T)`` takes the place of the mean.

    Args:
        rows: (R, D).
        columns: (C, D).
        target: Column that each row should find, (R,); always alike.
        temperature: Divisor of the cosine.
        forbid: Columns that rows must not see, alike or not.
        own: Columns of each row's own hard negatives, (R, K), -1 where it has fewer.
        own_log_weight: Added to the logits of those.
        alike: Columns that rows are pulled to; None for the target alone.
        similarity: What stands in the place of the cosine, if not that.

    Returns:
        (R,), in at least float32.

    Example:
        >>> eye, one_class = torch.eye(2), torch.tensor([0, 0])
        >>> alike = Alike(rows=one_class, columns=one_class)
        >>> sup_con_terms(eye, eye, torch.tensor([0, 1]), temperature=1.0, alike=alike)
        tensor([0.8133, 0.8133])
        >>> alike = Alike(one_class, one_class, joined="sum")
        >>> sup_con_terms(eye, eye, torch.tensor([0, 1]), temperature=1.0, alike=alike)
        tensor([0., 0.])
    """
    logits = weighted_logits(rows, columns, temperature, own, own_log_weight, similarity)
    if alike is None:
        alike = Alike(target, torch.arange(len(columns), device=target.device))
    pulled = alike.mask(target)
    seen = logits
    if forbid is not None:
        forbidden = forbid.mask(target)
        pulled = pulled & ~forbidden
        seen = logits.masked_fill(forbidden, -torch.inf)
    if alike.joined == "sum":
        return seen.logsumexp(dim=1) - logits.masked_fill(~pulled, -torch.inf).logsumexp(dim=1)
    return seen.logsumexp(dim=1) - logits.masked_fill(~pulled, 0.0).sum(dim=1) / pulled.sum(dim=1)
