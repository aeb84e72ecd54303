"""Combines the losses of several objectives: a weighted sum, or gradients without conflict (PCGrad)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations
from typing import Literal, final

import torch
from torch import Tensor, nn

from contrastive_text.core.checks import one_of
from contrastive_text.core.distributed import sum_over_ranks, world_size
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.random import fold, generator
from contrastive_text.core.similarity import full_precision

SumReduction = Literal["sum", "mean"]
"""How the losses of a step make one: added up, or divided by their number too."""


class Combine(nn.Module, ABC):
    """Base class of combiners: from the losses of a step to one scalar for ``backward``.

    A combiner may learn weights of its own: it makes them in ``build`` and the module's optimiser trains them.

    One of your own:

    Example:
        >>> class Doubled(Combine):
        ...     def forward(self, values, parameters, key):
        ...         return 2 * torch.stack(list(values.values())).sum()
        >>> Doubled()({"a": torch.tensor(1.0), "b": torch.tensor(3.0)}, [], key=0)
        tensor(8.)
    """

    def build(self, names: Sequence[str]) -> None:  # most combiners have nothing to build
        """Makes what depends on the names of the objectives; the module calls it once."""

    def logs(self) -> dict[str, Tensor]:
        """Returns figures to log beside the losses, scalars without a gradient; none unless overridden."""
        return {}

    @abstractmethod
    def forward(self, values: Mapping[str, Tensor], parameters: Sequence[nn.Parameter], key: int) -> Tensor:
        """Returns a scalar whose gradient, averaged over ranks, is the gradient of the step.

        Args:
            values: Name -> this rank's weighted loss, a scalar with its graph, whose mean over ranks is the
                loss of the whole batch. Only objectives of this step; the same names, in the same order, on
                every rank.
            parameters: All parameters that require a gradient.
            key: Key of the step's draws: the same on every rank, another one for every micro-batch.

        Returns:
            A scalar; its mean over ranks is the combined loss of the whole batch.
        """


@final
class WeightedSum(Combine):
    """Adds the losses up, or takes their mean.

    Weights are the module's: the losses come weighted. With ``mean`` three tasks give (a + b + c) / 3; the
    number is that of the objectives in the step, so that a task on its own counts whole.

    Args:
        reduction: ``sum`` or ``mean``.

    Raises:
        ValueError: Another reduction.

    Example:
        >>> losses = {"a": torch.tensor(1.0), "b": torch.tensor(3.0)}
        >>> WeightedSum()(losses, [], key=0), WeightedSum(reduction="mean")(losses, [], key=0)
        (tensor(4.), tensor(2.))
    """

    def __init__(self, reduction: SumReduction = "sum") -> None:
        super().__init__()
        self.reduction = one_of("WeightedSum.reduction", reduction, SumReduction)

    def forward(self, values: Mapping[str, Tensor], parameters: Sequence[nn.Parameter], key: int) -> Tensor:  # noqa: ARG002  # the base's signature
        """Returns the sum or the mean of the losses."""
        return add_up(values, mean=self.reduction == "mean")


@final
class Uncertainty(Combine):
    """Weighs every loss by a learned variance: the sum of ``exp(-s) L + s / 2``.

    Kendall, Gal, Cipolla 2018, https://arxiv.org/abs/1705.07115, section 3.2, equations 7 to 10, with
    s = log sigma^2, one per objective. s starts at 0, that is weight 1; under a constant loss L the weight goes
    to 1 / (2 L), so that losses of any scale come to count alike. An objective that isn't in the step leaves
    its s as it is. ``AdamW`` spares scalars from weight decay, which would pull the weights to 1.

    Its value is the loss it minimises, ``s / 2`` included: it can fall below 0.

    Differs: equation 7 halves the loss of a regression and equation 10 not that of a classification. Here no
    loss is halved; give a regression the weight 0.5 for the paper's form.

    Example:
        >>> combine = Uncertainty()
        >>> combine.build(["a", "b"])
        >>> combine({"a": torch.tensor(1.0), "b": torch.tensor(3.0)}, [], key=0)
        tensor(4., grad_fn=<SumBackward0>)
        >>> combine.logs()
        {'weight/a': tensor(1.), 'weight/b': tensor(1.)}
    """

    def __init__(self) -> None:
        super().__init__()
        self.log_variances = nn.ParameterDict()

    def build(self, names: Sequence[str]) -> None:
        """Makes one log variance per objective, 0 at the start."""
        self.log_variances = nn.ParameterDict({name: nn.Parameter(torch.zeros(())) for name in names})

    def logs(self) -> dict[str, Tensor]:
        """Returns ``weight/NAME``, the weight ``exp(-s)`` of each objective."""
        return {f"weight/{name}": (-s.detach()).exp() for name, s in self.log_variances.items()}

    def forward(self, values: Mapping[str, Tensor], parameters: Sequence[nn.Parameter], key: int) -> Tensor:  # noqa: ARG002  # the base's signature
        """Returns the weighted sum. Every rank adds the whole ``s / 2``, which the mean over ranks keeps.

        Raises:
            ValueError: An objective that ``build`` wasn't told of.
        """
        terms = []
        for name, value in values.items():
            if name not in self.log_variances:
                raise InvalidValueError(
                    f"Uncertainty: expected objectives named in build, got {name!r} with "
                    f"{', '.join(self.log_variances) or 'none'} built; call build(names) first"
                )
            s = self.log_variances[name]
            s = s.to(torch.promote_types(s.dtype, torch.float32))
            terms.append((-s).exp() * value + s / 2)
        return torch.stack(terms).sum()


def add_up(values: Mapping[str, Tensor], mean: bool) -> Tensor:
    """Returns the sum of the losses, or their mean."""
    losses = torch.stack(list(values.values()))
    return losses.mean() if mean else losses.sum()


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
        self.scope = one_of("PCGrad.scope", scope, Scope)
        self.reduction = one_of("PCGrad.reduction", reduction, GradientReduction)
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
