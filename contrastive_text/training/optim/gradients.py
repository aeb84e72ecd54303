"""The gradient of each objective by itself, averaged over ranks; its length and how two of them agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations

import torch
from torch import Tensor, nn

from contrastive_text.core.distributed import sum_over_ranks, world_size
from contrastive_text.core.similarity import full_precision


@dataclass(frozen=True, slots=True)
class Gradients:
    """The gradients of n objectives, each with the E entries of all K parameters in a row.

    Args:
        rows: One gradient per objective, (E,), 0 where a parameter isn't used; float32 at least.
        used: Whether an objective uses a parameter, on any rank, (n, K).
        sizes: Number of entries of each parameter, (K,).
    """

    rows: list[Tensor]
    used: Tensor
    sizes: Tensor

    def spread(self, figures: Tensor) -> Tensor:
        """Returns one figure per entry from one per parameter, (K,) -> (E,)."""
        return figures.repeat_interleave(self.sizes, output_size=len(self.rows[0]))


def objective_gradients(
    values: Mapping[str, Tensor], parameters: Sequence[nn.Parameter], keep_graph: bool = False
) -> Gradients:
    """Returns the gradient of every objective on the whole batch; ``grad`` of the parameters stays as it is.

    Each costs one backward pass and one all-reduce, of the gradient and of which parameters it reaches. A
    rank without rows for an objective has a loss without a graph and counts as zero. Autocast is off, as in
    an ordinary backward pass: objectives compute in float32 what it would round.

    Args:
        values: Name -> this rank's loss, whose mean over ranks is that of the whole batch; the same names,
            in the same order, on every rank.
        parameters: Parameters that require a gradient, all on one device.
        keep_graph: Whether the graph is needed afterwards.
    """
    device = parameters[0].device
    sizes = [parameter.numel() for parameter in parameters]
    dtype = reduce(torch.promote_types, {parameter.dtype for parameter in parameters}, torch.float32)
    rows, used = [], []
    with full_precision(device):
        for number, value in enumerate(values.values(), start=1):
            found: Sequence[Tensor | None] = [None] * len(parameters)
            if value.requires_grad:
                retain = keep_graph or number < len(values)
                found = torch.autograd.grad(value, parameters, retain_graph=retain, allow_unused=True)
            reached = torch.tensor([gradient is not None for gradient in found], device=device)
            parts = [
                torch.zeros(size, dtype=dtype, device=device)
                if gradient is None
                else gradient.flatten().to(dtype)
                for gradient, size in zip(found, sizes, strict=True)
            ]
            total = sum_over_ranks(torch.cat([*parts, reached.to(dtype)]))
            rows.append(total[: -len(sizes)].div_(world_size()))
            used.append(total[-len(sizes) :] > 0)
    return Gradients(rows, torch.stack(used), torch.tensor(sizes, device=device))


def gradient_figures(values: Mapping[str, Tensor], parameters: Sequence[nn.Parameter]) -> dict[str, Tensor]:
    """Returns the length of each objective's gradient and the cosine of each two, to log now and then.

    The graph is kept, so call it before ``backward``. It costs one backward pass and, in memory, one gradient
    per objective. All ranks call it together and get the same figures: those of the whole batch.

    Args:
        values: Name -> this rank's weighted loss, as in ``Combine.forward``.
        parameters: All parameters that require a gradient.

    Returns:
        ``norm/NAME`` over all parameters; ``cosine/A/B`` over those that both use, 0 where one of the two
        gradients is. Two objectives without a common parameter have no cosine.

    Example:
        >>> weight = nn.Parameter(torch.tensor([3.0, 0.0]))
        >>> gradient_figures({"a": 2 * weight[0], "b": -weight.sum()}, [weight])
        {'norm/a': tensor(2.), 'norm/b': tensor(1.4142), 'cosine/a/b': tensor(-0.7071)}
    """
    gradients = objective_gradients(values, parameters, keep_graph=True)
    figures = {f"norm/{name}": row.norm() for name, row in zip(values, gradients.rows, strict=True)}
    for (i, a), (j, b) in combinations(enumerate(values), 2):
        both = gradients.used[i] & gradients.used[j]
        if both.any():
            shared = gradients.spread(both)
            one, other = gradients.rows[i] * shared, gradients.rows[j] * shared
            length = one.norm() * other.norm()
            figures[f"cosine/{a}/{b}"] = torch.where(length > 0, (one * other).sum() / length, 0.0)
    return figures
