"""The contrastive objective: which roles are compared, over all ranks, and what stays out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from contrastive_text.core.distributed import gather_all, gather_sizes
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.targets import Classes, Target
from contrastive_text.core.types import Encoded
from contrastive_text.heads import Head, check_train_only
from contrastive_text.losses import InfoNCE, Loss
from contrastive_text.losses.comparison import Joined, Triples
from contrastive_text.objectives.base import Objective, Terms, check_compared
from contrastive_text.objectives.batch_pairs import BatchPairs, gather_triples
from contrastive_text.objectives.between import Between, named_between, read_vectors
from contrastive_text.objectives.false_negatives import FalseNegatives, check_bound
from contrastive_text.objectives.health import count_alike, health
from contrastive_text.objectives.keys import (
    check_in_batch,
    check_keys,
    columns_alone,
    read_keys,
    rows_and_columns,
)
from contrastive_text.objectives.momentum import Momentum
from contrastive_text.objectives.pair_labels import PairLabels
from contrastive_text.objectives.queue import Queue
from contrastive_text.objectives.siblings import Siblings, check_attracting, check_siblings


class Contrastive(Objective):
    """Anchors against positives, the rest of the batch of all ranks as negatives.

    Several positives of an example are averaged before normalisation (Giorgi et al. 2021, DeCLUTR,
    https://arxiv.org/abs/2006.03659, section 3.2). Rows stay local, columns come from every rank with an
    exact gradient. In evaluation mode no rank talks to another.

    What is compared is ``between``: ``texts`` (``BetweenTexts``) or ``views`` (``BetweenViews``, ConSERT's joint
    training). Where that is several things, as the two roles are there, their values are added.

    With a ``queue`` the columns of the last steps, of all ranks, as they were then and without a gradient, are
    negatives too; ``objectives/queue.py`` says how. Rows are kept from copies of their texts among them, unless
    ``mask_duplicates`` is off; with ``classes`` those of a row's class are pulled as the batch's are. Between
    ``views`` each role has a queue of its own. Checkpoints hold it, saved models don't; evaluation neither
    reads nor fills it.

    With ``keys`` columns of their roles are vectors of a network that follows the trained one (``Momentum``), and
    so is what enters the queue; rows are always the trained network's. Two methods are made of it. ESimCSE (Wu
    et al. 2022, https://arxiv.org/abs/2109.04380): keys of anchors, which are no columns, fill the queue beside
    trained positives. MoCo (He et al. 2020, https://arxiv.org/abs/1911.05722): positives are keys, and with
    ``in_batch: false`` the queue's columns the only negatives. Evaluation has neither keys nor queue: there
    vectors of the trained network are compared within the batch.

    Differs: MoCo's queue begins with random vectors, here it begins empty, and the first step without others has
    no loss. ESimCSE's queue is each rank's own, here all ranks hold the same one.

    Differs: a text that occurs twice in a batch is a false negative, which the authors' codes keep and
    dropout hides; here its columns are left out, unless ``mask_duplicates`` is off. So are those of other texts
    that views of text or tokens have made equal to it, such as two of which [DEL] and one word are left;
    ``edited_alike`` is logged: how many of the step's texts views made equal to another one.

    Siblings are other positives of the same query: columns whose partner's text is the row's own or its
    partner's. A row would push them away, though data say that they belong to it. ``hide`` leaves them out of the
    row's columns, past ones and hard negatives of such a text too. ``attract`` makes them targets as well: the
    ``mean`` of all log-probabilities (Khosla et al. 2020, https://arxiv.org/abs/2004.11362, eq. 2), or the
    logarithm of the ``sum`` of the probabilities (Miech et al. 2020, MIL-NCE, https://arxiv.org/abs/1912.06430,
    eq. 1; but for a constant eq. 3 of Khosla et al.). Where classes say what belongs together, or between
    ``views``, there are none; without ``mask_duplicates`` rows don't know equal texts, and siblings are kept.

    Args:
        loss: The formula; None for ``InfoNCE``.
        head: A train-only head between embeddings and loss; None for none.
        mask_duplicates: Whether texts equal to a row's own text or to its positive are no negatives of it.
        task: The data set that it reads, where there are several; None for the only one.
        between: What is compared: ``texts`` of an example, ``views`` of each of its texts, or a ``Between``.
        pair_labels: What to do with pairs whose target is 0: they don't belong together; None where all do.
        classes: Number or names of the classes that the target gives, for a loss that compares by them.
        queue: Number of past columns that are kept as further negatives; 0 for none.
        siblings: What other positives of a row's query are to it: left out (``hide``), targets too
            (``attract``) or negatives (``keep``).
        attract: What is taken of several targets: the ``mean`` of their log-probabilities, or the logarithm of
            the ``sum`` of their probabilities.
        false_negatives: By which guide candidates that are too near to a row are left out (GISTEmbed); None to
            leave none out.
        keys: Settings of a momentum network, whose vectors stand in the place of columns; None for none.
        in_batch: Whether positives of other examples of the batch are negatives. If False, the negatives are hard
            negatives of the batch and columns of the queue.

    Raises:
        ValueError: A head that isn't train-only, an unknown ``between``, labels of pairs that aren't compared
            or together with classes, classes without a loss that reads them, or such a loss without classes; a
            queue of less than 0, or with labels that don't take one; siblings that can't attract; a guide for
            negative pairs that are rows, or without a margin between views; keys that no row meets, or rows that
            meet nothing.

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
        mask_duplicates: bool = True,
        task: str | None = None,
        between: Between | Literal["texts", "views"] = "texts",
        pair_labels: PairLabels | None = None,
        classes: int | list[str] | None = None,
        queue: int = 0,
        siblings: Siblings = "hide",
        attract: Joined = "mean",
        false_negatives: FalseNegatives | None = None,
        keys: Momentum | None = None,
        in_batch: bool = True,
    ) -> None:
        super().__init__(task)
        check_train_only(head, "Contrastive.head")
        self.loss = loss or InfoNCE()
        self.head = head
        self.mask_duplicates = mask_duplicates
        self.between = between
        self.pair_labels = pair_labels
        self.classes = classes
        self.queue = queue
        self.siblings = siblings
        self.attract = attract
        self.false_negatives = false_negatives
        self.keys = keys
        self.in_batch = in_batch
        self.guides = () if false_negatives is None else (false_negatives.guide,)
        self._between = named_between(between, "Contrastive")
        self.reads, self.takes = self._between.reads, self._between.takes
        check_siblings(siblings, attract)
        if keys is not None:
            check_keys(keys, self._between, self.loss, queue)
            # A guide knows the texts that the trained network encodes.
            self.keyed = () if false_negatives is not None else columns_alone(keys, self.loss)
        self._check_pair_labels()
        compared, roles = self._between.compared if queue else (), () if keys is None else keys.roles
        self.queues = nn.ModuleDict({name: Queue(queue, mask_duplicates, keys=roles) for name in compared})

    def take_pair_labels(self, pair_labels: PairLabels) -> None:
        """Takes what to do with pairs whose target is 0, unless it was built with that.

        Raises:
            ValueError: Options that exclude it, such as ``classes``.
        """
        if self.pair_labels is None:
            self.pair_labels = pair_labels
            self._check_pair_labels()

    def _check_pair_labels(self) -> None:
        """Checks what depends on the labels of pairs."""
        self._check_target()
        self._check_queue()
        if self.siblings == "attract":
            check_attracting(self.loss, self._between, self.pair_labels, self.mask_duplicates)
        if self.false_negatives is not None:
            check_bound(self.false_negatives, self._between, self.pair_labels)
        if not self.in_batch:
            check_in_batch(self.loss, self.pair_labels)

    def _check_queue(self) -> None:
        if self.queue < 0:
            raise InvalidValueError(
                f"Contrastive.queue: expected 0 or more past columns, got {self.queue}; 0 keeps none"
            )
        if self.queue and self.pair_labels is not None and not self.pair_labels.takes_queue:
            name = type(self.pair_labels).__name__
            raise InvalidValueError(
                f"Contrastive.queue: expected pair_labels that take a queue, got {name}; arrange its pairs with "
                "pairs.comparisons(loss, ...) and set takes_queue = True, or leave the queue out"
            )

    def _check_target(self) -> None:
        if self.pair_labels is not None and not self._between.is_pairs:
            raise InvalidValueError(
                f"Contrastive.pair_labels: expected between: texts for {type(self.pair_labels).__name__}, got "
                f"{type(self._between).__name__}; two views of a text always belong together, so leave "
                "one of the two out"
            )
        name = type(self.loss).__name__
        if self.pair_labels is not None and self.loss.reads_labels:
            raise InvalidValueError(
                f"Contrastive.pair_labels: expected a loss that doesn't read the target itself, got {name}; use "
                "NTXent with pair_labels, or leave pair_labels out"
            )
        if self.pair_labels is not None and not (self.pair_labels.takes_targets or self.loss.signed):
            raise InvalidValueError(
                f"Contrastive.pair_labels: expected a loss whose terms can be maximised for "
                f"{type(self.pair_labels).__name__}, got {name}; "
                "take NegativesAsHard, or NTXent"
            )
        if self.loss.reads_labels and self.classes is None:
            raise InvalidValueError(
                f"Contrastive.classes: expected the number or the names of the target's classes for {name}, got "
                "none; set classes, or take NTXent, which needs none"
            )
        if self.classes is not None and not self.loss.reads_labels:
            raise InvalidValueError(
                f"Contrastive.classes: expected a loss that compares by classes, got {name}; take SupCon, or "
                "leave classes out"
            )
        if self.classes is not None:
            Classes.of(self.classes, "Contrastive.classes")  # refuses what isn't two classes or more

    @property
    def siblings_in_effect(self) -> Siblings | None:
        """What siblings are to a row; None where there are none, or classes decide."""
        if self.loss.reads_labels or not self._between.is_pairs:
            return None
        return self.siblings if self.mask_duplicates else "keep"

    @property
    def target(self) -> Target | None:
        """The label of a pair, 0 or 1, or the class of an example."""
        if self.pair_labels is not None:
            return Classes.of(2, "Contrastive.pair_labels")
        return None if self.classes is None else Classes.of(self.classes, "Contrastive.classes")

    @property
    def two_texts(self) -> str | None:
        """A guide without a margin: of one text twice its cosine is 1, which nothing is above."""
        without = self.false_negatives is not None and not self.false_negatives.has_margin
        return "false_negatives without absolute_margin or relative_margin" if without else None

    def build(self, features: int) -> None:
        """Makes the head's layers."""
        if self.head is not None:
            self.head.build(features)

    def forward(self, encoded: Encoded) -> Terms:
        """Returns the terms of the local rows; see ``Objective.forward``.

        Raises:
            ValueError: A role without its two views, or no target or no keys where they are read.
        """
        classes = self._classes(encoded)
        vectors = read_vectors(encoded, (*self.reads, *self.takes), self.head)
        keys = read_keys(encoded, self.keys) if self.keys is not None and self.training else None
        rows, columns = rows_and_columns(self._between, encoded, vectors, keys)
        if self.false_negatives is not None:
            known = replace(encoded, embeddings=encoded.guides[self.false_negatives.guide])
            guided = self._between.triples(known, read_vectors(known, (*self.reads, *self.takes), head=None))
            guides = {name: self.false_negatives.of(each) for name, each in guided.items()}
            columns = {name: replace(each, guide=guides[name]) for name, each in columns.items()}
        local = [replace(each, classes=classes) for each in columns.values()]
        gathered, offset = gather_triples(local, self.training, encoded.shares)
        every = dict(zip(columns, gathered, strict=True))
        sides = _trained_sides(rows, encoded) if keys is not None and encoded.logged else {}
        return Terms.added(
            [self._terms(name, rows[name], every[name], offset, encoded.logged, sides.get(name)) for name in rows]
        )

    def check_examples(self, examples: int, negatives: int) -> None:
        """Checks that anchors have negatives: other examples, hard negatives or a queue.

        Raises:
            ValueError: They have none.
        """
        if self.queue or (negatives and "negative" in self.takes):
            return
        if not self.in_batch:
            raise InvalidValueError(
                "Contrastive.in_batch: false expects rows with hard negatives, or a queue, got rows without a "
                "negative and queue: 0; give rows with negatives, set queue, or set in_batch: true"
            )
        check_compared("Contrastive without hard negatives or a queue", examples)

    def finish_step(self) -> None:
        """Lets the columns of the step enter the queue."""
        for queue in self.queues.values():
            assert isinstance(queue, Queue)
            queue.take_in()

    def describe_negatives(self, batch_size: int, positives: int, negatives: int) -> str:  # noqa: ARG002  # the base's signature
        """Returns how many negatives an anchor meets in a step; accumulation adds none but through the queue."""
        hard = batch_size * negatives if "negative" in self.takes else 0
        others = batch_size - 1 if self.in_batch else 0
        total = others * (1 + len(self.loss.others)) + hard + self.queue
        kinds = [f"other {self._between.others}", *self.loss.others] if self.in_batch else []
        parts = [f"{others} {kind}" for kind in kinds]
        parts += [f"{hard} hard negatives"] if hard else []
        parts += [self._described_past(batch_size, hard)] if self.queue else []
        notes = [] if self.pair_labels is None else [self.pair_labels.note]
        notes += ["texts of its class are none"] if self.loss.reads_labels else []
        notes += [f"those too near by {guide} are none" for guide in self.guides]
        most = "at most " if notes else ""
        notes.append(f"accumulate_grad_batches adds none{', but fills the queue sooner' if self.queue else ''}")
        once = " once the queue is full" if self.queue else ""
        return f"{most}{total:,} per anchor{once}: {', '.join(parts)}; {'; '.join(notes)}"

    def _described_past(self, batch_size: int, hard: int) -> str:
        sides = ("anchor", "positive") if self.loss.anchors_are_columns else ("positive",)
        past, roles = "past columns", (*sides, "negative")
        if self.keys is not None:
            past, roles = f"past keys of {' and '.join(self.keys.roles)}", self.keys.roles
        entering = sum(hard if role == "negative" else batch_size for role in roles)
        batches = self.queue / max(entering, 1)
        shown = f"{batches:.3g}" if batches < 100 else f"{batches:,.0f}"
        return f"{self.queue:,} {past} (of {shown} batches)"

    def _classes(self, encoded: Encoded) -> Tensor | None:
        if self.target is None:
            return None
        if encoded.target is None:
            raise InvalidValueError(
                "Contrastive: expected a batch with a target, for labels or classes, got one without; give a "
                "pairing that reads the column target"
            )
        return encoded.target.long()

    def _terms(
        self,
        name: str,
        rows: Triples,
        every: Triples,
        offset: int,
        logged: bool,
        sides: Sequence[Tensor] | None = None,
    ) -> Terms:
        texts = every.anchor_ids if every.anchor_ids.ndim == 1 else every.anchor_ids[:, 0]
        if not self.mask_duplicates:
            every = every.apart()
        if self.siblings_in_effect in ("hide", "attract"):
            every = every.with_partners(
                attract=self.attract if self.siblings == "attract" else None,
                paired=None if self.pair_labels is None or every.classes is None else every.classes == 1,
            )
        mine = every.map(lambda each: each[offset : offset + len(rows.anchor)])
        local = replace(mine, anchor=rows.anchor, positive=rows.positive, negative=rows.negative)
        queue = self.queues[name] if self.training and self.queue else None
        assert queue is None or isinstance(queue, Queue)
        in_batch = self.in_batch or not self.training
        pairs = BatchPairs(local, every, offset, texts=texts, queue=queue, in_batch=in_batch)
        if self.pair_labels is None:
            terms = pairs.terms(self.loss, local, every, offset)
        else:
            terms = self.pair_labels.terms(self.loss, pairs)
        if not logged:
            return replace(terms, logs={})
        if self.pair_labels is None:
            logs, weights = health(local, every, offset, by_class=self.loss.reads_labels, sides=sides)
        else:
            _, positives, _ = pairs.positives()
            logs, weights = health(positives, positives, 0)
        if every.anchor_ids.ndim == 2:
            every_ids = [every.anchor_ids, every.positive_ids]
            every_ids += [] if every.negative_ids is None else [every.negative_ids.flatten(0, 1)]
            logs["edited_alike"] = count_alike(torch.cat(every_ids)).to(local.anchor)
        return replace(terms, logs=logs | self.loss.figures, log_weights=weights)


def _trained_sides(rows: Mapping[str, Triples], encoded: Encoded) -> dict[str, list[Tensor]]:
    """Returns the trained anchors and positives of all ranks, (N, D) each, by the name of the comparison."""
    sizes = gather_sizes(len(next(iter(rows.values())).anchor), encoded.embeddings.device, encoded.shares)
    own = [side.detach() for each in rows.values() for side in (each.anchor, each.positive)]
    every = gather_all(own, sizes)
    return {name: every[2 * i : 2 * i + 2] for i, name in enumerate(rows)}
