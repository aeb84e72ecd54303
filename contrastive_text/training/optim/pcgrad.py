"""PCGrad: objectives whose gradients conflict don't undo each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, final, get_args

import torch
from torch import Tensor, nn

from contrastive_text.core.random import fold, generator
from contrastive_text.core.similarity import full_precision
from contrastive_text.training.optim.combine import Combine, add_up, check_choice
from contrastive_text.training.optim.gradients import Gradients, objective_gradients

Scope = Literal["shared", "all"]
"""Over which parameters two gradients are compared: those that both objectives use, or all."""

GradientReduction = Literal["sum", "mean", "mixed"]
"""How projected gradients make one: their sum, their mean over the users of a parameter, or the mean on
parameters that every objective uses and the sum on others."""


def without_conflicts(gradient: Tensor, others: Iterable[Tensor]) -> Tensor:
    """Takes out of a gradient what points against the others, one after another.

    Where the running gradient g and another one h have g . h < 0, g becomes g - (g . h) / (h . h) h; a dot
    product of exactly 0 is no conflict (Yu et al. 2020, algorithm 1, lines 5 to 8). The order counts from
    two others on.

    Args:
        gradient: (E,).
        others: Gradients as they were before any projection, each (E,).

    Returns:
        (E,), a new tensor.

    Example:
        >>> without_conflicts(torch.tensor([1.0, 0.0]), [torch.tensor([-1.0, 1.0])])
        tensor([0.5000, 0.5000])
    """
    running = gradient.clone()
    for other in others:
        dot, square = (running * other).sum(), (other * other).sum()
        # 0 times the other where there is no conflict: an if would make the CPU wait for the device.
        share = torch.where((dot < 0) & (square > 0), dot / square, 0.0)
        running -= share * other
    return running


@final
class PCGrad(Combine):
    """Projects each objective's gradient off those it conflicts with, and adds them up.

    Yu et al. 2020, https://arxiv.org/abs/2001.06782, algorithm 1: for each objective, the others in random
    order; see ``without_conflicts``. With three and more objectives the result depends on that order, which
    is drawn from ``seed`` and the key of the step: the same on every rank, in every run and after a resume.
    A step with one objective takes its plain gradient, at no cost.

    Gradients are averaged over ranks before they are projected, so the result is that of the whole batch; a
    parameter of no objective gets no gradient, and neither decay nor moments move it. What it returns has
    the projected gradient and the value of the plain losses, so clipping, accumulation (the sum of projected
    micro-batches) and DDP stay as they are. The module refuses ``16-mixed``: these gradients are taken before
    the loss is scaled, and small ones would vanish in float16. ``bf16-mixed`` is fine.

    Memory: one gradient of all parameters per objective at once, and about four more while they are
    projected, in float32 at least; the graph is kept until the last objective's backward pass. Time: one
    backward pass and one all-reduce per objective.

    Differs: the repository WeiChengTseng/Pytorch-PCGrad, of which ``scope="all", reduction="mixed"`` is the
    formula, ignores its ``reduction``, and gives a layer of two among three tasks the sum of gradients where
    a layer of all three gets the mean; the default is the paper's sum. It compares whole gradients, heads
    included, so that the size of a head weakens the projection of shared layers and heads change; the
    default compares and changes only what both objectives use. It gives parameters of no task a gradient
    of zero, which decay and moments still move. Its order comes from Python's global generator.

    Args:
        scope: ``shared`` compares two gradients over the parameters that both objectives use and leaves
            others as they are; ``all`` compares them whole, with zeros where an objective uses nothing.
        reduction: ``sum``; ``mean`` over the objectives that use a parameter; ``mixed``, the mean on
            parameters that all objectives of the step use, the sum on others. The value is the sum of the
            losses with ``sum``, their mean with the other two.
        seed: Seed of the orders.

    Raises:
        ValueError: Another scope or reduction.

    Example:
        >>> weight = nn.Parameter(torch.tensor([2.0, 3.0]))
        >>> loss = PCGrad()({"a": weight[0], "b": weight[1] - weight[0]}, [weight], key=0)
        >>> loss.backward()
        >>> loss.item(), weight.grad
        (3.0, tensor([0.5000, 1.5000]))
    """

    def __init__(self, scope: Scope = "shared", reduction: GradientReduction = "sum", seed: int = 42) -> None:
        super().__init__()
        check_choice("PCGrad.scope", scope, get_args(Scope))
        check_choice("PCGrad.reduction", reduction, get_args(GradientReduction))
        self.scope = scope
        self.reduction = reduction
        self.seed = seed

    def forward(self, values: Mapping[str, Tensor], parameters: Sequence[nn.Parameter], key: int) -> Tensor:
        """Returns a scalar with the value of the plain losses and the projected gradient."""
        if len(values) == 1:
            return next(iter(values.values()))
        gradients = objective_gradients(values, parameters)
        with full_precision(gradients.used.device):
            merged = self.merge(gradients, self.orders(len(values), key))
            parts = torch.split(merged, gradients.sizes.tolist())
            surrogate = merged.new_zeros(())
            for parameter, part, used in zip(parameters, parts, gradients.used.any(dim=0).tolist(), strict=True):
                if used:
                    surrogate = surrogate + (parameter * part.view_as(parameter)).sum()
        value = add_up(values, mean=self.reduction != "sum").detach()
        return surrogate - surrogate.detach() + value

    def orders(self, count: int, key: int) -> list[list[int]]:
        """Draws for each of the objectives an order of the others."""
        rng = generator(fold(self.seed, key))
        return [rng.permutation([j for j in range(count) if j != i]).tolist() for i in range(count)]

    def merge(self, gradients: Gradients, orders: Sequence[Sequence[int]]) -> Tensor:
        """Returns one gradient, (E,), out of n.

        Args:
            gradients: The n gradients.
            orders: For each objective the others, in the order of their projections.
        """
        rows, used = gradients.rows, gradients.used
        total = torch.zeros_like(rows[0])
        for row, order, own in zip(rows, orders, used, strict=True):
            common = gradients.spread(own) if self.scope == "shared" else None
            total += without_conflicts(row, (rows[j] if common is None else rows[j] * common for j in order))
        if self.reduction == "sum":
            return total
        users = used.sum(dim=0)
        if self.reduction == "mixed":
            users = torch.where(users == len(rows), users, 1)
        return total / gradients.spread(users.clamp(min=1).to(total.dtype))
