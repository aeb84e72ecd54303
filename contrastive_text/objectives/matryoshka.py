"""Matryoshka objective: trains another objective on the first features of each vector, at several widths."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace

import torch
from torch import Tensor, nn

from contrastive_text.core.batch import Encoded
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.random import fold_key, generator, text_id
from contrastive_text.core.targets import Target
from contrastive_text.objectives.base import Objective
from contrastive_text.objectives.terms import Terms, add_rows

_DRAWS = text_id("Matryoshka.per_step")


class Matryoshka(Objective):
    """Sums an objective over several widths m, each applied to the first m features of every vector.

    ``sum over m of weight_m * objective(first m features of every vector)``

    Vectors are truncated before the objective normalizes them. Source: Kusupati et al. 2022
    (https://arxiv.org/abs/2205.13147), equation 1. The authors' code (RAIVNLab/MRL, ``MRL.py``) and
    sentence-transformers' ``MatryoshkaLoss`` sum with weights of 1, as here. Each width has a copy of the
    objective, with separate layers of a classifier (as in the paper; its MRL-E ties them), learned temperature
    and queue. Widths are sorted from the widest to the narrowest.

    Validation scores are logged for each width, such as ``val/spearman@64``. If all objectives of a model are
    Matryoshka objectives without the full width, the saved model truncates vectors to their widest width
    (``truncate_dim``).

    Differs: FlagEmbedding takes the mean over widths, which equals weights of 1 / number of widths. The sum is
    larger than one loss by the number of widths. This matters next to other objectives and for gradient clipping.

    Args:
        objective: Objective that reads sentence vectors, without a train-only head.
        dims: Widths m. Without the full width, no loss trains the last features.
        weights: Weight of each width, in the order of ``dims``; None for 1 each.
        per_step: Number of widths that are drawn at random in each step, the same on all ranks; None for all
            widths. The sum is not rescaled, as in sentence-transformers (``n_dims_per_step``). Evaluation reads
            all widths.

    Raises:
        ValueError: The objective predicts tokens or has a train-only head. ``dims`` repeat or are below 1.
            ``weights`` or ``per_step`` don't fit ``dims``. Raised by ``build``: a width exceeds the width of the
            vectors.

    Example:
        >>> from contrastive_text.core.types import Slot
        >>> from contrastive_text.objectives import PairRegression
        >>> vectors = torch.tensor([[1.0, 0.0, 2.0], [1.0, 0.0, -2.0]])
        >>> slots = (Slot("anchor", 0), Slot("positive", 0))
        >>> pair = Encoded(vectors, slots, torch.arange(2), target=torch.tensor([1.0]))
        >>> Matryoshka(PairRegression(), dims=[3, 1])(pair).total  # cosines of -0.6 and 1, squared errors
        tensor(2.5600)
    """

    def __init__(
        self,
        objective: Objective,
        dims: list[int],
        weights: list[float] | None = None,
        per_step: int | None = None,
    ) -> None:
        super().__init__(objective.task)
        _check_objective(objective)
        _check_widths(dims, weights, per_step)
        self.objective = objective
        self.dims = dims
        self.weights = weights
        self.per_step = per_step
        self.required_roles, self.optional_roles, self.view = (
            objective.required_roles,
            objective.optional_roles,
            objective.view,
        )
        self.predicts, self.guides = objective.predicts, objective.guides
        self.reads_scores = objective.reads_scores
        self.has_negatives, self.collapse_advice = objective.has_negatives, objective.collapse_advice
        self.momentum, self.momentum_only_roles = objective.momentum, objective.momentum_only_roles
        self._weights = dict(sorted(zip(dims, weights or [1.0] * len(dims), strict=True), reverse=True))
        self.narrower = nn.ModuleDict({str(width): deepcopy(objective) for width in self.widths[1:]})
        self._steps = 0

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths to which vectors are truncated, from the widest to the narrowest."""
        return tuple(self._weights)

    @property
    def target(self) -> Target | None:
        """Kind of target that the objective reads; None if it reads no target."""
        return self.objective.target

    @property
    def needs_two_texts(self) -> str | None:
        """Description of an option that needs anchor and positive to be different texts; None without any."""
        return self.objective.needs_two_texts

    def build(self, features: int) -> None:
        """Builds the layers of the objective's copies, each for its width.

        Raises:
            ValueError: A width exceeds the width of the vectors.
        """
        if (widest := self.widths[0]) > features:
            raise InvalidValueError(
                f"Matryoshka.dims: expected widths of at most {features}, the width of the vectors, got "
                f"{widest}; remove {widest}"
            )
        for width, objective in self._copies().items():
            objective.build(width)

    def check_guide_widths(self, features: Mapping[str, int]) -> None:
        """Checks the width of the vectors of each guide, for every copy of the objective."""
        for objective in self._copies().values():
            objective.check_guide_widths(features)

    def forward(self, encoded: Encoded) -> Terms:
        """Returns the weighted sum of the widths' terms. Logged values of narrower widths are ``NAME@WIDTH``."""
        copies, widths = self._copies(), self._step_widths()
        parts: dict[int, Terms] = {width: copies[width](_truncate(encoded, width)) for width in widths}
        total = torch.stack([self._weights[width] * part.total for width, part in parts.items()]).sum()
        for width in set(copies) - set(widths):
            # All weights are part of every backward pass on every rank, for any draw.
            total = total + sum(0.0 * weight.sum() for weight in copies[width].parameters())
        values = [
            (f"{name}{self._suffix(width)}", part, name) for width, part in parts.items() for name in part.logs
        ]
        logs = {key: part.logs[name] for key, part, name in values}
        weights = {key: part.weight(name) for key, part, name in values}
        rows = add_rows(list(parts.values()), [self._weights[width] for width in parts])
        return replace(parts[widths[0]], total=total, logs=logs, log_weights=weights, rows=rows)

    def check(self) -> None:
        """Checks the files that the objective reads."""
        self.objective.check()

    def check_examples(self, examples: int, negatives: int) -> None:
        """Checks that a step has enough examples to compare for the objective (ValueError)."""
        self.objective.check_examples(examples, negatives)

    def finish_step(self) -> None:
        """Updates the state of the objective's copies, and counts the step for the next draw of widths."""
        for objective in self._copies().values():
            objective.finish_step()
        self._steps += 1

    def predict(self, encoded: Encoded) -> Tensor:
        """Returns the predictions of the objective at the widest width."""
        return self.objective.predict(_truncate(encoded, self.widths[0]))

    def predictors(self) -> dict[str, Callable[[Encoded], Tensor]]:
        """Returns the prediction function of each width; the suffix of a narrower width is ``@WIDTH``."""

        def predictor(width: int, objective: Objective) -> Callable[[Encoded], Tensor]:
            return lambda encoded: objective.predict(_truncate(encoded, width))

        return {self._suffix(width): predictor(width, copy) for width, copy in self._copies().items()}

    def describe_negatives(self, batch_size: int, positives: int, negatives: int) -> str | None:
        """Returns the objective's description of its negatives, which is the same for each width."""
        return self.objective.describe_negatives(batch_size, positives, negatives)

    def get_extra_state(self) -> dict[str, int]:
        """Returns the number of training steps for a state dict, from which widths are drawn."""
        return {"steps": self._steps}

    def set_extra_state(self, state: dict[str, int]) -> None:
        """Restores the number of training steps."""
        self._steps = state["steps"]

    def _copies(self) -> dict[int, Objective]:
        """Returns the copies of the objective by width. The widest width has the objective itself."""
        copies = [self.objective, *(copy for copy in self.narrower.values() if isinstance(copy, Objective))]
        return dict(zip(self.widths, copies, strict=True))

    def _suffix(self, width: int) -> str:
        return "" if width == self.widths[0] else f"@{width}"

    def _step_widths(self) -> Sequence[int]:
        """Returns the widths of this step, from the widest to the narrowest."""
        if self.per_step is None or not self.training:
            return self.widths
        indices = generator(fold_key(_DRAWS, self._steps)).permutation(len(self.widths))[: self.per_step]
        return [self.widths[index] for index in sorted(indices.tolist())]


def _truncate(encoded: Encoded, width: int) -> Encoded:
    keys = {settings: _truncate(vectors, width) for settings, vectors in encoded.keys.items()}
    return replace(encoded, embeddings=encoded.embeddings[:, :width], keys=keys)


def _check_objective(objective: Objective) -> None:
    name = type(objective).__name__
    has_network = type(objective).build_networks is not Objective.build_networks
    token_roles = objective.needs_token_logits or objective.token_roles
    if has_network or token_roles or isinstance(objective, Matryoshka):
        raise InvalidValueError(
            f"Matryoshka.objective: expected an objective that reads sentence vectors, got {name}; use "
            "Contrastive or a supervised objective"
        )
    # Applies to a user's objective too: the output of its head isn't the saved vector.
    if (head := getattr(objective, "head", None)) is not None:
        raise InvalidValueError(
            f"Matryoshka.objective.head: expected null, got {type(head).__name__}. The saved vector is "
            "truncated, not the output of a train-only head; remove the head, or set --model.head with "
            "train_only: false"
        )


def _check_widths(dims: Sequence[int], weights: Sequence[float] | None, per_step: int | None) -> None:
    if not dims or min(dims) < 1 or len(set(dims)) < len(dims):
        raise InvalidValueError(
            f"Matryoshka.dims: expected different widths of 1 or more, got {list(dims)}; give widths such as "
            "[384, 128, 32]"
        )
    if weights is not None and (
        len(weights) != len(dims) or not all(0 < weight < math.inf for weight in weights)
    ):
        raise InvalidValueError(
            f"Matryoshka.weights: expected a number above 0 for each of the {len(dims)} dims, got "
            f"{list(weights)}; remove weights for 1 each"
        )
    if per_step is not None and not 1 <= per_step <= len(dims):
        raise InvalidValueError(
            f"Matryoshka.per_step: expected 1 to {len(dims)}, the number of dims, got {per_step}; remove "
            "per_step to use all dims"
        )
