"""Objectives that train another objective on variants of each vector: first features, or quantized features."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn

from contrastive_text.core.batch import Encoded
from contrastive_text.core.distributed import largest_over_ranks
from contrastive_text.core.errors import InvalidValueError, one_of
from contrastive_text.core.random import fold_key, generator, text_id
from contrastive_text.core.similarity import at_least_float32, quantized_values
from contrastive_text.core.targets import Target
from contrastive_text.objectives.base import Objective
from contrastive_text.objectives.terms import Terms, add_rows

_DRAWS = text_id("Matryoshka.per_step")
TrainedPrecision: TypeAlias = Literal["binary", "int8"]
"""Precisions that ``Quantized`` trains."""


class Variants(Objective):
    """Base class of objectives that sum another objective over variants of every vector.

    Each variant has a copy of the objective, with its own layers of a classifier, learned temperature and queue.
    The first variant has the objective itself.

    Args:
        objective: Objective that reads sentence vectors, without a train-only head.
        weights: Suffix of the logged values of a variant -> weight of its loss, the first variant first.

    Raises:
        ValueError: The objective predicts tokens or has a train-only head.
    """

    def __init__(self, objective: Objective, weights: Mapping[str, float]) -> None:
        super().__init__(objective.task)
        _check_objective(type(self).__name__, objective)
        self.objective = objective
        self.required_roles, self.optional_roles, self.view = (
            objective.required_roles,
            objective.optional_roles,
            objective.view,
        )
        self.predicts, self.guides = objective.predicts, objective.guides
        self.reads_scores = objective.reads_scores
        self.has_negatives, self.collapse_advice = objective.has_negatives, objective.collapse_advice
        self.momentum, self.momentum_only_roles = objective.momentum, objective.momentum_only_roles
        self._weights = dict(weights)
        self.copies = nn.ModuleDict({suffix.strip("@"): deepcopy(objective) for suffix in [*weights][1:]})

    @abstractmethod
    def change(self, encoded: Encoded, suffix: str) -> Callable[[Tensor], Tensor]:
        """Returns the function from vectors, (N, D), to a variant of them, for the vectors of a batch."""

    @property
    def inner(self) -> Objective:
        """The objective that is trained on variants of the vectors."""
        return self.objective.inner

    @property
    def target(self) -> Target | None:
        """Kind of target that the objective reads; None if it reads no target."""
        return self.objective.target

    @property
    def needs_two_texts(self) -> str | None:
        """Description of an option that needs anchor and positive to be different texts; None without any."""
        return self.objective.needs_two_texts

    def build(self, features: int) -> None:
        """Builds the layers of the objective's copies."""
        for objective in self._variants().values():
            objective.build(features)

    def check_guide_widths(self, features: Mapping[str, int]) -> None:
        """Checks the width of the vectors of each guide, for every copy of the objective."""
        for objective in self._variants().values():
            objective.check_guide_widths(features)

    def forward(self, encoded: Encoded) -> Terms:
        """Returns the weighted sum of the variants' terms. Logged values of all but the first have a suffix."""
        variants, drawn = self._variants(), self.draw()
        parts: dict[str, Terms] = {suffix: variants[suffix](self._changed(encoded, suffix)) for suffix in drawn}
        total = torch.stack([self._weights[suffix] * part.total for suffix, part in parts.items()]).sum()
        for suffix in variants.keys() - parts.keys():
            # All weights are part of every backward pass on every rank, for any draw.
            total = total + sum(0.0 * weight.sum() for weight in variants[suffix].parameters())
        values = [(f"{name}{suffix}", part, name) for suffix, part in parts.items() for name in part.logs]
        logs = {key: part.logs[name] for key, part, name in values}
        weights = {key: part.weight(name) for key, part, name in values}
        rows = add_rows(list(parts.values()), [self._weights[suffix] for suffix in parts])
        return replace(parts[drawn[0]], total=total, logs=logs, log_weights=weights, rows=rows)

    def draw(self) -> Sequence[str]:
        """Returns the suffixes of the variants of this step, in their order."""
        return [*self._weights]

    def check(self) -> None:
        """Checks the files that the objective reads."""
        self.objective.check()

    def check_examples(self, examples: int, negatives: int) -> None:
        """Checks that a step has enough examples to compare for the objective (ValueError)."""
        self.objective.check_examples(examples, negatives)

    def finish_step(self) -> None:
        """Updates the state of the objective's copies."""
        for objective in self._variants().values():
            objective.finish_step()

    def predict(self, encoded: Encoded) -> Tensor:
        """Returns the predictions of the objective for the first variant."""
        return self.objective.predict(self._changed(encoded, ""))

    def predictors(self) -> dict[str, Callable[[Encoded], Tensor]]:
        """Returns suffix -> prediction function of each variant, and of the variants inside it."""

        def predictor(suffix: str, predict: Callable[[Encoded], Tensor]) -> Callable[[Encoded], Tensor]:
            return lambda encoded: predict(self._changed(encoded, suffix))

        return {
            f"{inner}{suffix}": predictor(suffix, predict)
            for suffix, copy in self._variants().items()
            for inner, predict in copy.predictors().items()
        }

    def describe_negatives(self, batch_size: int, positives: int, negatives: int) -> str | None:
        """Returns the objective's description of its negatives, which is the same for each variant."""
        return self.objective.describe_negatives(batch_size, positives, negatives)

    def _changed(self, encoded: Encoded, suffix: str) -> Encoded:
        """Returns the batch with a variant of its vectors, and of the vectors of momentum encoders."""
        change = self.change(encoded, suffix)
        keys = {
            settings: replace(keys_of, embeddings=change(keys_of.embeddings))
            for settings, keys_of in encoded.keys.items()
        }
        return replace(encoded, embeddings=change(encoded.embeddings), keys=keys)

    def _variants(self) -> dict[str, Objective]:
        """Returns suffix -> objective of the variants."""
        copies = [self.objective, *(copy for copy in self.copies.values() if isinstance(copy, Objective))]
        return dict(zip(self._weights, copies, strict=True))


class Matryoshka(Variants):
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
        _check_widths(dims, weights, per_step)
        of_widths = dict(sorted(zip(dims, weights or [1.0] * len(dims), strict=True), reverse=True))
        self._widths = {"" if width == max(dims) else f"@{width}": width for width in of_widths}
        super().__init__(objective, dict(zip(self._widths, of_widths.values(), strict=True)))
        self.dims = dims
        self.weights = weights
        self.per_step = per_step
        self._steps = 0

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths to which vectors are truncated, from the widest to the narrowest."""
        return tuple(self._widths.values())

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
        for suffix, objective in self._variants().items():
            objective.build(self._widths[suffix])

    def change(self, encoded: Encoded, suffix: str) -> Callable[[Tensor], Tensor]:  # noqa: ARG002  # of the base
        """Returns the function from vectors to their first features."""
        width = self._widths[suffix]
        return lambda vectors: vectors[:, :width]

    def draw(self) -> Sequence[str]:
        """Returns the suffixes of the widths of this step, from the widest to the narrowest."""
        if self.per_step is None or not self.training:
            return [*self._widths]
        indices = generator(fold_key(_DRAWS, self._steps)).permutation(len(self.widths))[: self.per_step]
        return [[*self._widths][index] for index in sorted(indices.tolist())]

    def finish_step(self) -> None:
        """Updates the state of the objective's copies, and counts the step for the next draw of widths."""
        super().finish_step()
        self._steps += 1

    def get_extra_state(self) -> dict[str, int]:
        """Returns the number of training steps for a state dict, from which widths are drawn."""
        return {"steps": self._steps}

    def set_extra_state(self, state: dict[str, int]) -> None:
        """Restores the number of training steps."""
        self._steps = state["steps"]


class Quantized(Variants):
    """Sums an objective over vectors and their quantized copies, so that bits or bytes lose less.

    ``objective(vectors) + sum over precisions p of weight_p * objective(vectors in precision p)``

    A bit stands for 1 above 0, and for -1 otherwise. A byte is one of 256 equal steps between the smallest and
    the largest value of its feature in the batch of all ranks. These are the values that ``quantize`` stores. The
    gradient passes through the rounding unchanged (straight-through estimator, Bengio, Léonard and Courville
    2013, https://arxiv.org/abs/1308.3432, section 5).

    The objective can be a ``Matryoshka`` objective: each width is then trained in each precision too. Validation
    scores of bits have the suffix ``@binary``, such as ``val/spearman@binary``.

    Args:
        objective: Objective that reads sentence vectors, without a train-only head.
        precisions: Precisions to train: ``binary``, ``int8``, or both.
        weights: Weight of each precision, in the order of ``precisions``; None for 1 each.

    Raises:
        ValueError: The objective predicts tokens or has a train-only head. ``precisions`` repeat or are unknown.
            ``weights`` don't fit ``precisions``. Raised by ``build``: ``binary`` with a width that isn't a
            multiple of 8.

    Example:
        >>> from contrastive_text.core.types import Slot
        >>> from contrastive_text.objectives import PairRegression
        >>> vectors = torch.tensor([[0.8, 0.1], [0.6, -0.8]])
        >>> slots = (Slot("anchor", 0), Slot("positive", 0))
        >>> pair = Encoded(vectors, slots, torch.arange(2), target=torch.tensor([1.0]))
        >>> float(PairRegression()(pair).total)  # the squared error of a cosine of 0.49
        0.2538...
        >>> float(Quantized(PairRegression(), ["binary"])(pair).total)  # and of bits (1, 1) and (1, -1): cosine 0
        1.2538...
    """

    def __init__(
        self,
        objective: Objective,
        precisions: list[TrainedPrecision],
        weights: list[float] | None = None,
    ) -> None:
        _check_precisions(precisions, weights)
        of_precisions = zip(precisions, weights or [1.0] * len(precisions), strict=True)
        super().__init__(objective, {"": 1.0, **{f"@{name}": weight for name, weight in of_precisions}})
        self.precisions = precisions
        self.weights = weights

    def build(self, features: int) -> None:
        """Builds the layers of the objective's copies.

        Raises:
            ValueError: ``binary`` is trained, and the width of the vectors isn't a multiple of 8.
        """
        widths = self.objective.widths if isinstance(self.objective, Matryoshka) else (features,)
        if "binary" in self.precisions and (wrong := [width for width in widths if width % 8]):
            raise InvalidValueError(
                f"Quantized.precisions: expected vectors of a multiple of 8 features for binary, got {wrong[0]}; "
                "set another width with model.head or dims, or remove binary"
            )
        super().build(features)

    def change(self, encoded: Encoded, suffix: str) -> Callable[[Tensor], Tensor]:
        """Returns the function from vectors to their quantized values, with the gradient of the vectors."""
        if not suffix:
            return lambda vectors: vectors
        ends = _feature_ends(encoded.embeddings, over_ranks=self.training) if suffix == "@int8" else None
        return lambda vectors: _straight_through(vectors, ends)

    def predictors(self) -> dict[str, Callable[[Encoded], Tensor]]:
        """Returns suffix -> prediction function; without ``int8``, whose steps depend on the other rows."""
        return {suffix: predict for suffix, predict in super().predictors().items() if "@int8" not in suffix}


def _straight_through(vectors: Tensor, ends: Tensor | None) -> Tensor:
    """Returns the quantized values of vectors, with the gradient of the vectors in the unit of the values."""
    vectors = at_least_float32(vectors)
    if ends is None:
        return quantized_values(vectors.detach()) + (vectors - vectors.detach())
    steps = (vectors - ends[0]) / ((ends[1] - ends[0]) / 255)
    return quantized_values(vectors.detach(), ends) - 128 + (steps - steps.detach())


def _feature_ends(vectors: Tensor, over_ranks: bool) -> Tensor:
    """Returns the smallest and largest value of each feature, (2, D), in this rank's batch or over all ranks."""
    values = at_least_float32(vectors.detach())
    nothing = values.new_full((1, values.shape[1]), -math.inf)  # a rank may have no rows
    ends = torch.stack([torch.cat([-values, nothing]).amax(dim=0), torch.cat([values, nothing]).amax(dim=0)])
    low, high = largest_over_ranks(ends) if over_ranks else ends
    # The largest value is below the end of its step: rounding can't move it to the next number.
    width = torch.where(high + low > 0, (high + low) * (1 + 2**-16), 1.0)
    return torch.stack([-low, width - low])


def _check_objective(name: str, objective: Objective) -> None:
    inner = type(objective).__name__
    has_network = type(objective).build_networks is not Objective.build_networks
    token_roles = objective.needs_token_logits or objective.token_roles
    is_nested = isinstance(objective, Variants) and (name, inner) != ("Quantized", "Matryoshka")
    if has_network or token_roles or is_nested:
        raise InvalidValueError(
            f"{name}.objective: expected an objective that reads sentence vectors, got {inner}; use "
            f"Contrastive or a supervised objective{' or Matryoshka' if name == 'Quantized' else ''}"
        )
    # Applies to a user's objective too: the output of its head isn't the saved vector.
    if (head := objective.head) is not None:
        raise InvalidValueError(
            f"{name}.objective.head: expected null, got {type(head).__name__}. The saved vector is "
            f"{'truncated' if name == 'Matryoshka' else 'quantized'}, not the output of a train-only head; "
            "remove the head, or set --model.head with train_only: false"
        )


def _check_weights(place: str, parts: Sequence[object], weights: Sequence[float] | None) -> None:
    name, _, option = place.partition(".")
    if weights is not None and (
        len(weights) != len(parts) or not all(0 < weight < math.inf for weight in weights)
    ):
        raise InvalidValueError(
            f"{name}.weights: expected a number above 0 for each of the {len(parts)} {option}, got "
            f"{list(weights)}; remove weights for 1 each"
        )


def _check_precisions(precisions: Sequence[str], weights: Sequence[float] | None) -> None:
    for precision in precisions:
        one_of("Quantized.precisions", precision, get_args(TrainedPrecision))
    if not precisions or len({*precisions}) < len(precisions):
        raise InvalidValueError(
            f"Quantized.precisions: expected binary, int8 or both, got {list(precisions)}; give [binary]"
        )
    _check_weights("Quantized.precisions", precisions, weights)


def _check_widths(dims: Sequence[int], weights: Sequence[float] | None, per_step: int | None) -> None:
    if not dims or min(dims) < 1 or len(set(dims)) < len(dims):
        raise InvalidValueError(
            f"Matryoshka.dims: expected different widths of 1 or more, got {list(dims)}; give widths such as "
            "[384, 128, 32]"
        )
    _check_weights("Matryoshka.dims", dims, weights)
    if per_step is not None and not 1 <= per_step <= len(dims):
        raise InvalidValueError(
            f"Matryoshka.per_step: expected 1 to {len(dims)}, the number of dims, got {per_step}; remove "
            "per_step to use all dims"
        )
