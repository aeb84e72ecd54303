"""One gradient out of many losses: a sum, and a sum with learned weights. ``pcgrad.py`` has the third way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Literal, final, get_args

import torch
from torch import Tensor, nn

from contrastive_text.core.errors import InvalidValueError

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
        check_choice("WeightedSum.reduction", reduction, get_args(SumReduction))
        self.reduction = reduction

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


def check_choice(where: str, choice: str, choices: Sequence[str]) -> None:
    """Checks that a word is one of the choices (ValueError)."""
    if choice not in choices:
        raise InvalidValueError(f"{where}: expected one of {', '.join(choices)}, got {choice!r}")
