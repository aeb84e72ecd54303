"""The contrastive objective, which compares the rows of a rank with the columns of all ranks."""

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
from contrastive_text.losses.comparison import ExampleVectors
from contrastive_text.objectives.base import Objective
from contrastive_text.objectives.column_rules import Duplicates, Siblings
from contrastive_text.objectives.columns import (
    HARD_NEGATIVES,
    Between,
    ColumnPart,
    NegativeCount,
    ObjectiveOptions,
    RowsAndColumns,
    Stage,
    gather_triples,
    read_vectors,
    resolve_between,
    with_distinct_ids,
)
from contrastive_text.objectives.momentum import Momentum, arrange_with_keys
from contrastive_text.objectives.pair_labels import PairLabels
from contrastive_text.objectives.terms import (
    Terms,
    check_several_examples,
    count_view_duplicates,
    measure_vectors,
)

_Part = TypeVar("_Part", bound=ColumnPart)


class Contrastive(Objective):
    """Contrastive objective: compares anchors with their positives, against the other examples of all ranks.

    Several positives of an example are averaged before normalization (Giorgi et al. 2021, DeCLUTR,
    https://arxiv.org/abs/2006.03659, section 3.2). Each rank computes the loss of its rows. Columns are
    gathered from all ranks with an exact gradient. In evaluation mode ranks do not communicate.

    ``between`` selects the comparison: between the ``texts`` of an example (``BetweenTexts``), or between
    ``views`` of each text (``BetweenViews``, ConSERT's joint training). The losses of several comparisons are
    added.

    ``columns`` is a list of parts (``ColumnPart``) that change the columns of a row. ``Duplicates``,
    ``Siblings``, ``FalseNegatives``, ``MaskAbovePositive`` and ``MaskBatch`` mask columns. ``SameClass`` and
    ``Siblings`` make columns positives. ``Queue`` and ``NegativesAsHard`` add columns. ``Momentum`` takes columns
    from a momentum encoder.

    Args:
        loss: Loss that compares rows with columns; None for ``InfoNCE``.
        head: Train-only head between embeddings and loss; None for none.
        between: ``texts`` to compare the texts of an example, ``views`` to compare views of the same text, or a
            ``Between``.
        columns: Column parts, each class at most once. None: ``Duplicates``, and between texts also ``Siblings``.
            With an empty list, duplicates and siblings are negatives.
        task: Name of the data set that the objective reads if there are several; None for the only one.

    Raises:
        ValueError: The head isn't train-only, or ``between`` is unknown. A column part is repeated, or two parts
            are incompatible. The loss reads classes and there is no ``SameClass``.

    Example:
        >>> from contrastive_text.core.types import Slot
        >>> vectors = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.8, 0.6], [-0.6, 0.8]])
        >>> slots = (Slot("anchor", 0), Slot("positive", 0))
        >>> terms = Contrastive(InfoNCE(temperature=0.5))(Encoded(vectors, slots, text_ids=torch.arange(4)))
        >>> terms.total / terms.count
        tensor(0.2860)
    """

    collapse_advice = ("a lower temperature",)

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
        self._between = resolve_between(between, "Contrastive")
        self.required_roles, self.optional_roles = self._between.reads, self._between.takes
        if columns is None:
            columns = [Duplicates()]
            if self._between.is_pairs and not self.loss.reads_classes:
                columns.append(Siblings())
        self.columns = list(columns)
        self.column_modules = nn.ModuleDict(
            {type(part).__name__: part for part in self.columns if isinstance(part, nn.Module)}
        )
        self._check_columns()

    def add_column_part(self, part: ColumnPart) -> None:
        """Appends a column part to the objective.

        Raises:
            ValueError: There is a part of this class already, or a part that is incompatible with it.
        """
        self.columns.append(part)
        self._check_columns()

    def part(self, kind: type[_Part]) -> _Part | None:
        """Returns the part in ``columns`` of a given class, such as ``Queue``; None without such a part."""
        return next((part for part in self.columns if isinstance(part, kind)), None)

    def _check_columns(self) -> None:
        self.momentum = momentum = self.part(Momentum)
        names = [type(part).__name__ for part in self.columns]
        if repeat := next((name for name in names if names.count(name) > 1), None):
            raise InvalidValueError(
                f"Contrastive.columns: expected each part once, got {repeat} twice; remove one"
            )
        targets = [type(part).__name__ for part in self.columns if part.target is not None]
        if len(targets) > 1:
            raise InvalidValueError(
                "Contrastive.columns: expected one part that reads labels, got "
                f"{' and '.join(targets)}; remove one"
            )
        if self.loss.reads_classes and not targets:
            raise InvalidValueError(
                f"Contrastive.columns: expected SameClass for {type(self.loss).__name__}, got "
                f"{', '.join(names) or '[]'}; add SameClass with the classes, or use NTXent, which reads no "
                "classes"
            )
        setup = ObjectiveOptions(self.loss, self._between, self.columns)
        for part in self.columns:
            part.check(setup)
        self.guides = tuple(dict.fromkeys(part.guide for part in self.columns if part.guide is not None))
        # A guide has vectors only of texts that the trained network encodes.
        self.momentum_only_roles = () if momentum is None or self.guides else momentum.momentum_only_roles(setup)

    @property
    def target(self) -> Target | None:
        """Kind of target that a column part reads: labels of pairs, or classes of examples; None for none."""
        return next((part.target for part in self.columns if part.target is not None), None)

    @property
    def needs_two_texts(self) -> str | None:
        """Description of an option that needs anchor and positive to be different texts; None without any."""
        return next((part.needs_two_texts for part in self.columns if part.needs_two_texts is not None), None)

    def forward(self, encoded: Encoded) -> Terms:
        """Returns the sum and the number of the loss terms of the local rows; see ``Objective.forward``.

        Raises:
            ValueError: A role lacks its two views, or the batch lacks a target or momentum vectors that a part
                reads.
        """
        roles = (*self.required_roles, *self.optional_roles)
        vectors = read_vectors(encoded, roles, self.head)
        keys = self.momentum.read_keys(encoded) if self.momentum is not None and self.training else None
        if keys is None:
            rows = columns = self._between.arrange(encoded, vectors)
        else:
            rows, columns = arrange_with_keys(self._between, encoded, vectors, keys)
        local = self._add_targets_and_guides(encoded, columns)
        gathered, offset = gather_triples(list(local.values()), self.training, encoded.rank_sizes)
        examples = dict(zip(local, gathered, strict=True))
        sides = _trained_sides(rows, encoded) if keys is not None and encoded.logged else {}
        return Terms.sum(
            [
                self._terms(name, rows[name], examples[name], offset, encoded.logged, sides.get(name))
                for name in rows
            ]
        )

    def _add_targets_and_guides(
        self, encoded: Encoded, columns: Mapping[str, ExampleVectors]
    ) -> dict[str, ExampleVectors]:
        """Returns the columns of each comparison with the targets and guide vectors that parts read."""
        target = None
        if self.target is not None:
            if encoded.target is None:
                raise InvalidValueError(
                    "Contrastive: expected a batch with a target (labels or classes), got a batch without a "
                    "target; use a pairing that reads the column target"
                )
            target = encoded.target.long()
        guides: dict[str, tuple[Tensor, Tensor, Tensor | None]] = {}
        for guide in self.guides:
            guided = replace(encoded, embeddings=encoded.guides[guide])
            roles: Sequence[Role] = (*self.required_roles, *self.optional_roles)
            for name, texts in self._between.arrange(guided, read_vectors(guided, roles, head=None)).items():
                negative = None if texts.negative is None else unit_vectors(texts.negative)
                guides[name] = unit_vectors(texts.anchor), unit_vectors(texts.positive), negative
        return {
            name: replace(triples, target=target, guide=guides.get(name)) for name, triples in columns.items()
        }

    def _sorted_parts(self) -> list[ColumnPart]:
        """Returns the column parts in the order of their stages."""
        return sorted(self.columns, key=lambda part: get_args(Stage).index(part.stage))

    def _terms(
        self,
        name: str,
        rows: ExampleVectors,
        every: ExampleVectors,
        offset: int,
        logged: bool,
        sides: Sequence[Tensor] | None = None,
    ) -> Terms:
        pairs = RowsAndColumns(name, self.loss, rows, with_distinct_ids(every), offset, texts=every)
        parts = [part for part in self._sorted_parts() if self.training or not part.trains_only]
        for part in parts:
            pairs = part(pairs)
        terms = pairs.terms()
        for part in parts:
            part.receive_columns(pairs)
        if not logged:
            return replace(terms, logs={})
        if self.part(PairLabels) is None:
            logs, weights = measure_vectors(pairs.local, pairs.all_examples, offset, sides)
        else:
            positives = (
                pairs.remove_negative_pairs().all_examples
            )  # all ranks' pairs, so that all ranks log the same values
            logs, weights = measure_vectors(positives, positives, 0)
        if pairs.masks_duplicates and every.anchor_ids.ndim == 2:
            ids = [every.anchor_ids, every.positive_ids]
            ids += [] if every.negative_ids is None else [every.negative_ids.flatten(0, 1)]
            logs["edited_alike"] = count_view_duplicates(torch.cat(ids)).to(rows.anchor)
        return replace(terms, logs=logs | self.loss.logged_values, log_weights=weights)

    def check_examples(self, examples: int, negatives: int) -> None:
        """Checks that anchors have negatives: other examples, hard negatives or columns that a part adds.

        Args:
            examples: Number of examples of a step, over all ranks.
            negatives: Number of hard negatives of each example.

        Raises:
            ValueError: Anchors have no negatives.
        """
        if any(part.adds_columns for part in self.columns) or (negatives and "negative" in self.optional_roles):
            return
        if any(part.masks_batch for part in self.columns):
            raise InvalidValueError(
                "Contrastive.columns: MaskBatch expects examples with hard negatives, or a Queue, got neither; "
                "use data with hard negatives, add Queue, or remove MaskBatch"
            )
        check_several_examples("Contrastive without hard negatives or a queue", examples)

    def finish_step(self) -> None:
        """Updates the state of column parts that later steps read, such as a queue."""
        for part in self.columns:
            part.finish_step()

    def describe_negatives(self, batch_size: int, positives: int, negatives: int) -> str:  # noqa: ARG002  # the base's signature
        """Returns a description of the number of negatives of an anchor in a step, for the run's summary."""
        counts = {}
        if not any(part.masks_batch for part in self.columns):
            counts = dict.fromkeys(
                [f"other {self._between.column_kind}", *self.loss.column_kinds], batch_size - 1
            )
        if hard := batch_size * negatives if "negative" in self.optional_roles else 0:
            counts[HARD_NEGATIVES] = hard
        sides: tuple[Role, ...] = ("anchor", "positive") if self.loss.anchors_are_columns else ("positive",)
        count = NegativeCount(batch_size, counts, roles=(*sides, "negative"))
        for part in self._sorted_parts():
            count = part.describe(count)
        return str(count)


def _trained_sides(rows: Mapping[str, ExampleVectors], encoded: Encoded) -> dict[str, list[Tensor]]:
    """Returns the trained anchors and positives of all ranks, (N, D) each, by the name of the comparison."""
    sizes = gather_sizes(len(next(iter(rows.values())).anchor), encoded.embeddings.device, encoded.rank_sizes)
    local = [side.detach() for triples in rows.values() for side in (triples.anchor, triples.positive)]
    sides = gather_all(local, sizes)
    return {name: sides[2 * i : 2 * i + 2] for i, name in enumerate(rows)}
