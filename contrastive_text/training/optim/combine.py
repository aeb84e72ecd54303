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

from contrastive_text.core.distributed import sum_over_ranks, world_size
from contrastive_text.core.errors import InvalidValueError, one_of
from contrastive_text.core.random import fold_key, generator
from contrastive_text.core.similarity import full_precision

SumReduction = Literal["sum", "mean"]
"""Name of the reduction of a step's losses to one: their sum or their mean."""


class Combine(nn.Module, ABC):
    """Base class of combiners: computes one scalar for ``backward`` from the losses of a step.

    A combiner may have learned weights: ``build`` creates them and the module's optimizer trains them.

    To write a combiner, override ``forward``:

    Example:
        >>> class Doubled(Combine):
        ...     def forward(self, values, parameters, key):
        ...         return 2 * torch.stack(list(values.values())).sum()
        >>> Doubled()({"a": torch.tensor(1.0), "b": torch.tensor(3.0)}, [], key=0)
        tensor(8.)
    """

    def build(self, names: Sequence[str]) -> None:  # most combiners have nothing to build
        """Creates the parameters that depend on the names of the objectives. The module calls it once."""

    def logs(self) -> dict[str, Tensor]:
        """Returns metrics to log in addition to the losses: scalars without a gradient. Default: empty."""
        return {}

    @abstractmethod
    def forward(self, values: Mapping[str, Tensor], parameters: Sequence[nn.Parameter], key: int) -> Tensor:
        """Returns a scalar whose gradient, averaged over ranks, is the gradient of the step.

        Args:
            values: Name -> this rank's weighted loss, a scalar with its graph, whose mean over ranks is the
                loss of the whole batch. Only objectives of this step; the same names, in the same order, on
                every rank.
            parameters: All parameters that require a gradient.
            key: Key of the step's random draws: equal on every rank, different for every micro-batch.

        Returns:
            A scalar; its mean over ranks is the combined loss of the whole batch.
        """


@final
class WeightedSum(Combine):
    """Combiner that returns the sum or the mean of the weighted losses.

    The module has already applied its weights to the losses. With ``mean`` three objectives give (a + b + c) / 3.
    Only the objectives of the step are counted: a single objective is not divided.

    Args:
        reduction: ``sum`` or ``mean``.

    Raises:
        ValueError: The reduction is unknown.

    Example:
        >>> losses = {"a": torch.tensor(1.0), "b": torch.tensor(3.0)}
        >>> WeightedSum()(losses, [], key=0), WeightedSum(reduction="mean")(losses, [], key=0)
        (tensor(4.), tensor(2.))
    """

    def __init__(self, reduction: SumReduction = "sum") -> None:
        super().__init__()
        self.reduction = one_of("WeightedSum.reduction", reduction, SumReduction)

    def forward(self, values: Mapping[str, Tensor], parameters: Sequence[nn.Parameter], key: int) -> Tensor:  # noqa: ARG002  # the base's signature
        """Returns the sum or the mean of the weighted losses."""
        return reduce_losses(values, mean=self.reduction == "mean")


@final
class Uncertainty(Combine):
    """Combiner that weights each loss by a learned variance: the sum of ``exp(-s) L + s / 2``.

    Kendall, Gal, Cipolla 2018, https://arxiv.org/abs/1705.07115, section 3.2, equations 7 to 10, with
    s = log sigma^2 for each objective. s starts at 0, which is weight 1. Under a constant loss L the weight
    converges to 1 / (2 L), so losses of any scale contribute equally. If an objective isn't in the step, its s
    stays unchanged. ``AdamW`` excludes scalars from weight decay, which would pull the weights to 1.

    The value includes ``s / 2``, so it can fall below 0.

    Differs: equation 7 halves the loss of a regression, and equation 10 does not halve the loss of a
    classification. Here no loss is halved; give a regression the weight 0.5 for the paper's form.

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
        """Creates one log variance per objective, initialized to 0."""
        self.log_variances = nn.ParameterDict({name: nn.Parameter(torch.zeros(())) for name in names})

    def logs(self) -> dict[str, Tensor]:
        """Returns the weight ``exp(-s)`` of each objective as the metric ``weight/NAME``."""
        return {f"weight/{name}": (-s.detach()).exp() for name, s in self.log_variances.items()}

    def forward(self, values: Mapping[str, Tensor], parameters: Sequence[nn.Parameter], key: int) -> Tensor:  # noqa: ARG002  # the base's signature
        """Returns the weighted sum of the losses. Every rank adds ``s / 2``, so the mean over ranks has it once.

        Raises:
            ValueError: A loss has a name that was not given to ``build``.
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


def reduce_losses(values: Mapping[str, Tensor], mean: bool) -> Tensor:
    """Returns the sum of the losses, or their mean."""
    losses = torch.stack(list(values.values()))
    return losses.mean() if mean else losses.sum()


Scope = Literal["shared", "all"]
"""Choice of the parameters over which two gradients are compared: shared parameters, or all parameters."""

GradientReduction = Literal["sum", "mean", "mixed"]
"""Reduction of projected gradients: their sum, their mean over the objectives that use a parameter, or the mean
for parameters that every objective uses and the sum for the rest."""


def project_conflicts(gradient: Tensor, others: Iterable[Tensor]) -> Tensor:
    """Projects a gradient onto the normal plane of each gradient that it conflicts with, in order.

    If the running gradient g and another gradient h have g . h < 0, g becomes g - (g . h) / (h . h) h. A dot
    product of exactly 0 is not a conflict (Yu et al. 2020, algorithm 1, lines 5 to 8). With two or more other
    gradients the result depends on their order.

    Args:
        gradient: (E,).
        others: Gradients before any projection, each (E,).

    Returns:
        (E,), a new tensor.

    Example:
        >>> project_conflicts(torch.tensor([1.0, 0.0]), [torch.tensor([-1.0, 1.0])])
        tensor([0.5000, 0.5000])
    """
    running = gradient.clone()
    for other in others:
        dot, square = (running * other).sum(), (other * other).sum()
        # Subtracts 0 times the other gradient if there is no conflict: an `if` would synchronize with the device.
        share = torch.where((dot < 0) & (square > 0), dot / square, 0.0)
        running -= share * other
    return running


@final
class PCGrad(Combine):
    """Combiner that removes conflicts between the gradients of objectives before it adds them up (PCGrad).

    Yu et al. 2020, https://arxiv.org/abs/2001.06782, algorithm 1: each objective's gradient is projected
    against the other gradients in random order; see ``project_conflicts``. With three or more objectives the
    result depends on that order. The order is drawn from ``seed`` and the key of the step: it is the same on
    every rank, in every run and after a resume. A step with one objective uses its plain gradient, at no cost.

    Gradients are averaged over ranks before they are projected, so the result is the gradient of the whole
    batch. A parameter that no objective uses gets no gradient: neither weight decay nor moments change it. The
    returned scalar has the projected gradient and the value of the plain losses. Clipping, gradient accumulation
    (the sum of projected micro-batches) and DDP therefore work as usual. The module refuses ``16-mixed``: the
    gradients are computed before the loss is scaled, and small gradients would underflow in float16.
    ``bf16-mixed`` is supported.

    Memory: one gradient of all parameters per objective, and about four more during the projection, at least
    in float32. The graph is kept until the last objective's backward pass. Time: one backward pass and one
    all-reduce per objective.

    Differs: the repository WeiChengTseng/Pytorch-PCGrad (its formula is ``scope="all", reduction="mixed"``)
    ignores its ``reduction``. Among three tasks it uses the sum of gradients for a layer of two tasks, and the
    mean for a layer of all three; the default here is the paper's sum. It compares whole gradients, including
    heads: large heads weaken the projection of shared layers, and the gradients of heads change. The default
    here compares and changes only parameters that both objectives use. The repository also gives unused
    parameters a gradient of zero, so decay and moments still change them. Its order comes from Python's global
    random generator.

    Args:
        scope: ``shared`` compares two gradients over the parameters that both objectives use and leaves the
            others unchanged; ``all`` compares whole gradients, with zeros for unused parameters.
        reduction: ``sum``; ``mean`` over the objectives that use a parameter; ``mixed``, the mean for
            parameters that all objectives of the step use, and the sum for the rest. The value is the sum of the
            losses with ``sum``, and their mean with ``mean`` and ``mixed``.
        seed: Seed of the random orders.

    Raises:
        ValueError: The scope or the reduction is unknown.

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
        value = reduce_losses(values, mean=self.reduction != "sum").detach()
        return surrogate - surrogate.detach() + value

    def orders(self, count: int, key: int) -> list[list[int]]:
        """Draws a random order of the other objectives for each objective."""
        rng = generator(fold_key(self.seed, key))
        return [rng.permutation([j for j in range(count) if j != i]).tolist() for i in range(count)]

    def merge(self, gradients: Gradients, orders: Sequence[Sequence[int]]) -> Tensor:
        """Projects the gradients of n objectives and reduces them to one gradient, (E,).

        Args:
            gradients: The n gradients.
            orders: For each objective the numbers of the others, in the order of the projections.
        """
        rows, used = gradients.rows, gradients.used
        total = torch.zeros_like(rows[0])
        for row, order, is_used in zip(rows, orders, used, strict=True):
            common = gradients.repeat_by_parameter(is_used) if self.scope == "shared" else None
            total += project_conflicts(row, (rows[j] if common is None else rows[j] * common for j in order))
        if self.reduction == "sum":
            return total
        users = used.sum(dim=0)
        if self.reduction == "mixed":
            users = torch.where(users == len(rows), users, 1)
        return total / gradients.repeat_by_parameter(users.clamp(min=1).to(total.dtype))


@dataclass(frozen=True, slots=True)
class Gradients:
    """Gradients of n objectives, each with the E entries of all K parameters in a row.

    Args:
        rows: One gradient per objective, (E,), 0 for entries of unused parameters; at least float32.
        used: Whether an objective uses a parameter, on any rank, (n, K).
        sizes: Number of entries of each parameter, (K,).
    """

    rows: list[Tensor]
    used: Tensor
    sizes: Tensor

    def repeat_by_parameter(self, figures: Tensor) -> Tensor:
        """Repeats one value per parameter for each entry of the parameter, (K,) -> (E,)."""
        return figures.repeat_interleave(self.sizes, output_size=len(self.rows[0]))


def objective_gradients(
    values: Mapping[str, Tensor], parameters: Sequence[nn.Parameter], keep_graph: bool = False
) -> Gradients:
    """Computes the gradient of every objective on the whole batch; ``grad`` of the parameters stays unchanged.

    Each gradient costs one backward pass and one all-reduce. The all-reduce also collects which parameters are
    used. A rank without rows for an objective has a loss without a graph and contributes zeros. Autocast is
    off, as in an ordinary backward pass, so nothing that objectives compute in float32 is rounded.

    Args:
        values: Name -> this rank's loss, whose mean over ranks is the loss of the whole batch; the same names,
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
            gradients: Sequence[Tensor | None] = [None] * len(parameters)
            if value.requires_grad:
                retain = keep_graph or number < len(values)
                gradients = torch.autograd.grad(value, parameters, retain_graph=retain, allow_unused=True)
            reached = torch.tensor([gradient is not None for gradient in gradients], device=device)
            parts = [
                torch.zeros(size, dtype=dtype, device=device)
                if gradient is None
                else gradient.flatten().to(dtype)
                for gradient, size in zip(gradients, sizes, strict=True)
            ]
            total = sum_over_ranks(torch.cat([*parts, reached.to(dtype)]))
            rows.append(total[: -len(sizes)].div_(world_size()))
            used.append(total[-len(sizes) :] > 0)
    return Gradients(rows, torch.stack(used), torch.tensor(sizes, device=device))


def gradient_figures(values: Mapping[str, Tensor], parameters: Sequence[nn.Parameter]) -> dict[str, Tensor]:
    """Returns the norm of each objective's gradient and the cosine of each pair of gradients, for a log.

    The graph is kept, so call it before ``backward``. It costs one backward pass per objective, and memory for
    one gradient per objective. All ranks must call it together. They get the same values, of the whole batch.

    Args:
        values: Name -> this rank's weighted loss, as in ``Combine.forward``.
        parameters: All parameters that require a gradient.

    Returns:
        ``norm/NAME`` over all parameters; ``cosine/A/B`` over the parameters that both objectives use, 0 if one
        of the two gradients is 0. Two objectives without a common parameter have no cosine.

    Example:
        >>> weight = nn.Parameter(torch.tensor([3.0, 0.0]))
        >>> gradient_figures({"a": 2 * weight[0], "b": -weight.sum()}, [weight])
        {'norm/a': tensor(2.), 'norm/b': tensor(1.4142), 'cosine/a/b': tensor(-0.7071)}
    """
    gradients = objective_gradients(values, parameters, keep_graph=True)
    figures = {f"norm/{name}": row.norm() for name, row in zip(values, gradients.rows, strict=True)}
    for (i, a), (j, b) in combinations(enumerate(values), 2):
        is_shared = gradients.used[i] & gradients.used[j]
        if is_shared.any():
            mask = gradients.repeat_by_parameter(is_shared)
            first, second = gradients.rows[i] * mask, gradients.rows[j] * mask
            length = first.norm() * second.norm()
            figures[f"cosine/{a}/{b}"] = torch.where(length > 0, (first * second).sum() / length, 0.0)
    return figures
