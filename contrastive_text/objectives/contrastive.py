"""The contrastive objective: which roles are compared, over all ranks, with which columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeVar, get_args

import torch
from torch import Tensor, nn

from contrastive_text.core.batch import Encoded
from contrastive_text.core.distributed import gather_all, gather_sizes
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.similarity import unit_vectors
from contrastive_text.core.targets import Target
from contrastive_text.core.types import Role
from contrastive_text.heads import Head, check_train_only
from contrastive_text.losses import InfoNCE, Loss
from contrastive_text.losses.comparison import Triples
from contrastive_text.objectives.base import Objective
from contrastive_text.objectives.between import Between, named_between, read_vectors
from contrastive_text.objectives.column_rules import Duplicates, Siblings
from contrastive_text.objectives.columns import (
    HARD,
    ColumnPart,
    Negatives,
    Pairs,
    Setup,
    Stage,
    gather_triples,
    with_distinct_ids,
)
from contrastive_text.objectives.health import count_alike, health
from contrastive_text.objectives.momentum import Momentum, rows_and_columns
from contrastive_text.objectives.pair_labels import PairLabels
from contrastive_text.objectives.terms import Terms, check_compared

_Part = TypeVar("_Part", bound=ColumnPart)


class Contrastive(Objective):
    """Compares anchors with positives; other examples of the batch, of all ranks, are negatives.

    Several positives of an example are averaged before normalization (Giorgi et al. 2021, DeCLUTR,
    https://arxiv.org/abs/2006.03659, section 3.2). Rows stay local, columns come from every rank with an exact
    gradient. In evaluation mode no rank talks to another.

    ``between`` says what is compared: ``texts`` of an example (``BetweenTexts``) or ``views`` of each text
    (``BetweenViews``, ConSERT's joint training). Several comparisons, such as those of two roles, are added.

    ``columns`` is a chain of parts (``ColumnPart``) that change the columns of a row. They mask some
    (``Duplicates``, ``Siblings``, ``FalseNegatives``, ``MaskBatch``), make some positives (``SameClass``,
    ``Siblings``), add some (``Queue``, ``NegativesAsHard``), or take them from another network (``Momentum``).

    Args:
        loss: The formula; None for ``InfoNCE``.
        head: A train-only head between embeddings and loss; None for none.
        between: What is compared: ``texts`` of an example, ``views`` of each of its texts, or a ``Between``.
        columns: Parts that change the columns, each class once; None for ``Duplicates`` and, between texts, for
            ``Siblings``. An empty list leaves equal texts and siblings among the negatives.
        task: The data set that it reads, if there are several; None for the only one.

    Raises:
        ValueError: A head that isn't train-only, an unknown ``between``, a part twice or parts that exclude each
            other, or a loss that compares by classes without ``SameClass``.

    Example:
        >>> from contrastive_text.core.types import Slot
        >>> vectors = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.8, 0.6], [-0.6, 0.8]])
        >>> slots = (Slot("anchor", 0), Slot("positive", 0))
        >>> terms = Contrastive(InfoNCE(temperature=0.5))(Encoded(vectors, slots, text_ids=torch.arange(4)))
        >>> terms.total / terms.count
        tensor(0.2860)
    """

    remedies = ("a lower temperature",)

    def __init__(
        self,
        loss: Loss | None = None,
        head: Head | None = None,
        between: Between | Literal["texts", "views"] = "texts",
        columns: list[ColumnPart] | None = None,
        task: str | None = None,
    ) -> None:
        super().__init__(task)
        check_train_only(head, "Contrastive.head")
        self.loss = loss or InfoNCE()
        self.head = head
        self.between = between
        self._between = named_between(between, "Contrastive")
        self.reads, self.takes = self._between.reads, self._between.takes
        if columns is None:
            columns = [Duplicates()]
            if self._between.is_pairs and not self.loss.reads_labels:
                columns.append(Siblings())
        self.columns = list(columns)
        self.column_modules = nn.ModuleDict(
            {type(part).__name__: part for part in self.columns if isinstance(part, nn.Module)}
        )
        self._check_columns()

    def add_column_part(self, part: ColumnPart) -> None:
        """Adds a part to the chain.

        Raises:
            ValueError: A part that excludes it, or one of its class.
        """
        self.columns.append(part)
        self._check_columns()

    def part(self, kind: type[_Part]) -> _Part | None:
        """Returns the part of a class; None for none."""
        return next((part for part in self.columns if isinstance(part, kind)), None)

    def _check_columns(self) -> None:
        names = [type(part).__name__ for part in self.columns]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise InvalidValueError(
                f"Contrastive.columns: expected each part once, got {twice} twice; remove one"
            )
        targets = [type(part).__name__ for part in self.columns if part.target is not None]
        if len(targets) > 1:
            raise InvalidValueError(
                "Contrastive.columns: expected one part that reads labels, got "
                f"{' and '.join(targets)}; remove one"
            )
        if self.loss.reads_labels and not targets:
            raise InvalidValueError(
                f"Contrastive.columns: expected SameClass for {type(self.loss).__name__}, got "
                f"{', '.join(names) or 'none'}; add SameClass with the classes, or take NTXent, which needs none"
            )
        setup = Setup(self.loss, self._between, self.columns)
        for part in self.columns:
            part.check(setup)
        self.guides = tuple(dict.fromkeys(part.guide for part in self.columns if part.guide is not None))
        momentum = self.part(Momentum)
        self.keys = momentum
        # A guide knows the texts that the trained network encodes.
        self.keyed = () if momentum is None or self.guides else momentum.roles_alone(setup)

    @property
    def target(self) -> Target | None:
        """The label of a pair, 0 or 1, or the class of an example."""
        return next((part.target for part in self.columns if part.target is not None), None)

    @property
    def two_texts(self) -> str | None:
        """Name of an option that makes no sense if anchor and positive are the same text."""
        return next((part.two_texts for part in self.columns if part.two_texts is not None), None)

    def build(self, features: int) -> None:
        """Makes the head's layers."""
        if self.head is not None:
            self.head.build(features)

    def forward(self, encoded: Encoded) -> Terms:
        """Returns the terms of the local rows; see ``Objective.forward``.

        Raises:
            ValueError: A role without its two views, or no target or momentum vectors that a part reads.
        """
        roles = (*self.reads, *self.takes)
        vectors = read_vectors(encoded, roles, self.head)
        keys = self.keys.read_keys(encoded) if self.keys is not None and self.training else None
        rows, columns = rows_and_columns(self._between, encoded, vectors, keys)
        local = self._with_facts(encoded, columns)
        gathered, offset = gather_triples(list(local.values()), self.training, encoded.shares)
        every = dict(zip(local, gathered, strict=True))
        sides = _trained_sides(rows, encoded) if keys is not None and encoded.logged else {}
        return Terms.added(
            [self._terms(name, rows[name], every[name], offset, encoded.logged, sides.get(name)) for name in rows]
        )

    def _with_facts(self, encoded: Encoded, columns: Mapping[str, Triples]) -> dict[str, Triples]:
        """Returns the columns of each comparison with the targets and guide vectors that parts read."""
        target = None
        if self.target is not None:
            if encoded.target is None:
                raise InvalidValueError(
                    "Contrastive: expected a batch with a target, for labels or classes, got one without; give a "
                    "pairing that reads the column target"
                )
            target = encoded.target.long()
        guides: dict[str, tuple[Tensor, Tensor, Tensor | None]] = {}
        for guide in self.guides:
            known = replace(encoded, embeddings=encoded.guides[guide])
            roles: Sequence[Role] = (*self.reads, *self.takes)
            for name, texts in self._between.triples(known, read_vectors(known, roles, head=None)).items():
                negative = None if texts.negative is None else unit_vectors(texts.negative)
                guides[name] = unit_vectors(texts.anchor), unit_vectors(texts.positive), negative
        return {name: replace(each, target=target, guide=guides.get(name)) for name, each in columns.items()}

    def _in_order(self) -> list[ColumnPart]:
        """Returns the parts in the order of their stages."""
        return sorted(self.columns, key=lambda part: get_args(Stage).index(part.stage))

    def _terms(
        self,
        name: str,
        rows: Triples,
        every: Triples,
        offset: int,
        logged: bool,
        sides: Sequence[Tensor] | None = None,
    ) -> Terms:
        pairs = Pairs(name, self.loss, rows, with_distinct_ids(every), offset, texts=every)
        running = [part for part in self._in_order() if self.training or not part.trains_only]
        for part in running:
            pairs = part(pairs)
        terms = pairs.terms()
        for part in running:
            part.finish(pairs)
        if not logged:
            return replace(terms, logs={})
        if self.part(PairLabels) is None:
            logs, weights = health(pairs.local, pairs.every, offset, sides)
        else:
            positives = pairs.only_paired().every  # of all ranks, so that ranks log the same figures
            logs, weights = health(positives, positives, 0)
        if pairs.is_by_text and every.anchor_ids.ndim == 2:
            every_ids = [every.anchor_ids, every.positive_ids]
            every_ids += [] if every.negative_ids is None else [every.negative_ids.flatten(0, 1)]
            logs["edited_alike"] = count_alike(torch.cat(every_ids)).to(rows.anchor)
        return replace(terms, logs=logs | self.loss.figures, log_weights=weights)

    def check_examples(self, examples: int, negatives: int) -> None:
        """Checks that anchors have negatives: other examples, hard negatives or columns that a part adds.

        Raises:
            ValueError: They have none.
        """
        if any(part.adds_columns for part in self.columns) or (negatives and "negative" in self.takes):
            return
        if any(part.masks_batch for part in self.columns):
            raise InvalidValueError(
                "Contrastive.columns: MaskBatch expects rows with hard negatives, or a Queue, got rows without a "
                "negative and no Queue; give rows with negatives, add Queue, or leave MaskBatch out"
            )
        check_compared("Contrastive without hard negatives or a queue", examples)

    def finish_step(self) -> None:
        """Lets the parts keep what later steps are compared with."""
        for part in self.columns:
            part.finish_step()

    def describe_negatives(self, batch_size: int, positives: int, negatives: int) -> str:  # noqa: ARG002  # the base's signature
        """Returns the number of negatives of an anchor in a step; accumulation adds none but through a queue."""
        counts = {}
        if not any(part.masks_batch for part in self.columns):
            counts = dict.fromkeys([f"other {self._between.others}", *self.loss.others], batch_size - 1)
        if hard := batch_size * negatives if "negative" in self.takes else 0:
            counts[HARD] = hard
        sides: tuple[Role, ...] = ("anchor", "positive") if self.loss.anchors_are_columns else ("positive",)
        said = Negatives(batch_size, counts, roles=(*sides, "negative"))
        for part in self._in_order():
            said = part.describe(said)
        return str(said)


def _trained_sides(rows: Mapping[str, Triples], encoded: Encoded) -> dict[str, list[Tensor]]:
    """Returns the trained anchors and positives of all ranks, (N, D) each, by the name of the comparison."""
    sizes = gather_sizes(len(next(iter(rows.values())).anchor), encoded.embeddings.device, encoded.shares)
    own = [side.detach() for each in rows.values() for side in (each.anchor, each.positive)]
    every = gather_all(own, sizes)
    return {name: every[2 * i : 2 * i + 2] for i, name in enumerate(rows)}
