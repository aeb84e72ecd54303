"""Matryoshka: any objective on the first features of each vector too, at several widths at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace

import torch
from torch import Tensor, nn

from contrastive_text.core.batch import Encoded
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.random import fold, generator, text_id
from contrastive_text.core.targets import Target
from contrastive_text.objectives.base import Objective
from contrastive_text.objectives.terms import Terms

_DRAWS = text_id("Matryoshka.per_step")


class Matryoshka(Objective):
    """Sums an objective over several widths: of each vector it reads the first m features.

    ``sum over m of weight_m * objective(first m features of every vector)``

    Vectors are cut first and normalised afterwards, where the objective does that. Source: Kusupati et al. 2022
    (https://arxiv.org/abs/2205.13147), equation 1; the authors' code (RAIVNLab/MRL, ``MRL.py``) and
    sentence-transformers' ``MatryoshkaLoss`` sum with weights of 1, as here. Each width has a copy of the
    objective: layers of a classifier (as in the paper, whose MRL-E ties them), a learned temperature and a queue
    of its own. Widths run from the widest to the narrowest, in whatever order they are given.

    Held-out scores are logged for each width: ``val/spearman@64``. Where only such objectives train a model, and
    at fewer features than it has, the widest of their widths is what is saved (``truncate_dim``).

    Differs: FlagEmbedding takes the mean over widths: the same with weights of 1 / their number. A sum is as many
    times larger than one loss, which tells beside other objectives and the bound on the gradient's norm.

    Args:
        objective: Any one that reads sentence vectors as they are saved, so without a train-only head.
        dims: Widths m. The full one need not be among them; without it nothing trains the last features.
        weights: Weight of each width, in the order of ``dims``; None for 1 each.
        per_step: How many widths a step takes, drawn anew in each, the same on all ranks; None for all. Their sum
            is not rescaled, as in sentence-transformers (``n_dims_per_step``). Evaluation takes all of them.

    Raises:
        ValueError: An objective that predicts tokens or has a train-only head, widths that repeat or are below 1,
            or weights or ``per_step`` that don't fit them; from ``build`` a width above that of the vectors.

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
        self.reads, self.takes, self.view = objective.reads, objective.takes, objective.view
        self.predicts, self.guides = objective.predicts, objective.guides
        self.has_negatives, self.remedies = objective.has_negatives, objective.remedies
        self.keys, self.keyed = objective.keys, objective.keyed
        self._weights = dict(sorted(zip(dims, weights or [1.0] * len(dims), strict=True), reverse=True))
        self.narrower = nn.ModuleDict({str(width): deepcopy(objective) for width in self.widths[1:]})
        self._steps = 0

    @property
    def widths(self) -> tuple[int, ...]:
        """The widths, the widest first."""
        return tuple(self._weights)

    @property
    def target(self) -> Target | None:
        """What the objective reads of an example's target."""
        return self.objective.target

    @property
    def two_texts(self) -> str | None:
        """What of the objective makes no sense where anchor and positive are one text twice."""
        return self.objective.two_texts

    def build(self, features: int) -> None:
        """Makes the layers of the copies, each for its width.

        Raises:
            ValueError: A width above that of the vectors.
        """
        if (widest := self.widths[0]) > features:
            raise InvalidValueError(
                f"Matryoshka.dims: expected widths of at most {features}, the features of a vector here, got "
                f"{widest}; leave it out"
            )
        for width, objective in self._at_width().items():
            objective.build(width)

    def check_guide_widths(self, features: Mapping[str, int]) -> None:
        """Checks the width of each guide, for every copy."""
        for objective in self._at_width().values():
            objective.check_guide_widths(features)

    def forward(self, encoded: Encoded) -> Terms:
        """Returns the weighted sum of the widths' terms; figures of a narrower width are ``NAME@WIDTH``."""
        copies, drawn = self._at_width(), self._drawn()
        parts: dict[int, Terms] = {width: copies[width](_cut(encoded, width)) for width in drawn}
        total = torch.stack([self._weights[width] * part.total for width, part in parts.items()]).sum()
        for width in set(copies) - set(drawn):
            # Whatever is drawn, each rank and each backward pass has all weights.
            total = total + sum(0.0 * weight.sum() for weight in copies[width].parameters())
        named = [
            (f"{name}{self._mark(width)}", part, name) for width, part in parts.items() for name in part.logs
        ]
        logs = {whole: part.logs[name] for whole, part, name in named}
        weights = {whole: part.weight(name) for whole, part, name in named}
        return replace(parts[drawn[0]], total=total, logs=logs, log_weights=weights)

    def check(self) -> None:
        """Checks the objective's files."""
        self.objective.check()

    def check_examples(self, examples: int, negatives: int) -> None:
        """Checks that the examples of a step give the objective something to compare."""
        self.objective.check_examples(examples, negatives)

    def finish_step(self) -> None:
        """Lets the copies take over what they keep, and goes on to the next step's draw."""
        for objective in self._at_width().values():
            objective.finish_step()
        self._steps += 1

    def predict(self, encoded: Encoded) -> Tensor:
        """Returns what the objective predicts at the widest width."""
        return self.objective.predict(_cut(encoded, self.widths[0]))

    def predictors(self) -> dict[str, Callable[[Encoded], Tensor]]:
        """Returns what predicts at each width; the score of a narrower one ends with ``@WIDTH``."""

        def at(width: int, objective: Objective) -> Callable[[Encoded], Tensor]:
            return lambda encoded: objective.predict(_cut(encoded, width))

        return {self._mark(width): at(width, copy) for width, copy in self._at_width().items()}

    def describe_negatives(self, batch_size: int, positives: int, negatives: int) -> str | None:
        """Returns what the objective says; it holds at each width."""
        return self.objective.describe_negatives(batch_size, positives, negatives)

    def get_extra_state(self) -> dict[str, int]:
        """Returns the number of steps taken, by which widths are drawn, for a state dict."""
        return {"steps": self._steps}

    def set_extra_state(self, state: dict[str, int]) -> None:
        """Goes on after so many steps."""
        self._steps = state["steps"]

    def _at_width(self) -> dict[int, Objective]:
        """Returns the copies by width, the widest first, which is the objective itself."""
        copies = [self.objective, *(copy for copy in self.narrower.values() if isinstance(copy, Objective))]
        return dict(zip(self.widths, copies, strict=True))

    def _mark(self, width: int) -> str:
        return "" if width == self.widths[0] else f"@{width}"

    def _drawn(self) -> Sequence[int]:
        """Returns the widths of this step, the widest first."""
        if self.per_step is None or not self.training:
            return self.widths
        chosen = generator(fold(_DRAWS, self._steps)).permutation(len(self.widths))[: self.per_step]
        return [self.widths[place] for place in sorted(chosen.tolist())]


def _cut(encoded: Encoded, width: int) -> Encoded:
    keys = {settings: _cut(each, width) for settings, each in encoded.keys.items()}
    return replace(encoded, embeddings=encoded.embeddings[:, :width], keys=keys)


def _check_objective(objective: Objective) -> None:
    name = type(objective).__name__
    has_network = type(objective).build_networks is not Objective.build_networks
    reads_tokens = objective.needs_token_logits or objective.reads_tokens
    if has_network or reads_tokens or isinstance(objective, Matryoshka):
        raise InvalidValueError(
            f"Matryoshka.objective: expected an objective that reads sentence vectors, got {name}; put "
            "Contrastive or a supervised objective there"
        )
    # A head of any objective, a user's too: what it makes of a vector isn't what is saved.
    if (head := getattr(objective, "head", None)) is not None:
        raise InvalidValueError(
            f"Matryoshka.objective.head: expected none, got {type(head).__name__}; what is cut is the vector "
            "that is saved, and not what a train-only head makes of it: leave the head out, or set --model.head "
            "with train_only: false"
        )


def _check_widths(dims: Sequence[int], weights: Sequence[float] | None, per_step: int | None) -> None:
    if not dims or min(dims) < 1 or len(set(dims)) < len(dims):
        raise InvalidValueError(
            f"Matryoshka.dims: expected different widths of 1 or more, got {list(dims)}; such as [384, 128, 32]"
        )
    if weights is not None and (len(weights) != len(dims) or not all(0 < each < math.inf for each in weights)):
        raise InvalidValueError(
            f"Matryoshka.weights: expected a number above 0 for each of the {len(dims)} dims, got "
            f"{list(weights)}; leave them out for 1 each"
        )
    if per_step is not None and not 1 <= per_step <= len(dims):
        raise InvalidValueError(
            f"Matryoshka.per_step: expected 1 to {len(dims)} of the dims, got {per_step}; leave it out for all"
        )
