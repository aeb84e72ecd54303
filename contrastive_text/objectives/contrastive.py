"""The contrastive objective: which roles are compared, over all ranks, and what stays out."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from contrastive_text import metrics
from contrastive_text.core.distributed import gather_rows, gather_sizes, rank
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.similarity import at_least_float32
from contrastive_text.core.targets import Classes, Target
from contrastive_text.core.types import Encoded, Role
from contrastive_text.heads import Head
from contrastive_text.losses import InfoNCE, Loss, Triples, cosine_similarity_matrix
from contrastive_text.objectives.base import Objective, Terms
from contrastive_text.objectives.pair_labels import LabelledPairs, PairLabels
from contrastive_text.objectives.queue import Queue, arrange

Between = Literal["texts", "views"]

_LOGGED_ROWS = 256
"""Rows that the logged figures look at: enough for two digits, and no cost beside a large batch's."""


class Contrastive(Objective):
    """Anchors against positives, the rest of the batch of all ranks as negatives.

    Several positives of an example are averaged before normalisation (Giorgi et al. 2021, DeCLUTR,
    https://arxiv.org/abs/2006.03659, section 3.2). Rows stay local, columns come from every rank with an
    exact gradient. In evaluation mode no rank talks to another.

    Between ``texts`` the anchor is its first view; all views of its positives are averaged. Between
    ``views`` the two views of each anchor are compared with each other among all anchors, those of each
    positive among all positives, and the values of the two roles added: ConSERT's joint training (Yan et
    al. 2021, https://arxiv.org/abs/2105.11741, section 3.3). Hard negatives then take no part.

    With a ``queue`` the columns of the last steps, of all ranks, as they were then and without a gradient, are
    negatives too; ``objectives/queue.py`` says how. Rows are kept from copies of their texts among them, unless
    ``mask_duplicates`` is off; with ``classes`` those of a row's class are pulled as the batch's are. Between
    ``views`` each role has a queue of its own. Checkpoints hold it, saved models don't; evaluation neither
    reads nor fills it.

    Differs: a text that occurs twice in a batch is a false negative, which the authors' codes keep and
    dropout hides; here its columns are left out, unless ``mask_duplicates`` is off.

    Args:
        loss: The formula; None for ``InfoNCE``.
        head: A train-only head between embeddings and loss; None for none.
        mask_duplicates: Whether texts equal to a row's own text or to its positive are no negatives of it.
        task: The data set that it reads, where there are several; None for the only one.
        between: What is compared, ``texts`` of an example or ``views`` of each of its texts.
        pair_labels: What to do with pairs whose target is 0: they don't belong together; None where all do.
        classes: Number or names of the classes that the target gives, for a loss that compares by them.
        queue: Number of past columns that are kept as further negatives; 0 for none.

    Raises:
        ValueError: A head that isn't train-only, an unknown ``between``, labels of pairs that aren't compared
            or together with classes, classes without a loss that reads them, or such a loss without classes; a
            queue of less than 0, or with labels that don't take one.

    Example:
        >>> from contrastive_text.core.types import Slot
        >>> vectors = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.8, 0.6], [-0.6, 0.8]])
        >>> slots = (Slot("anchor", 0), Slot("positive", 0))
        >>> terms = Contrastive(InfoNCE(temperature=0.5))(Encoded(vectors, slots, text_ids=torch.arange(4)))
        >>> terms.total / terms.count
        tensor(0.2860)
    """

    def __init__(
        self,
        loss: Loss | None = None,
        head: Head | None = None,
        mask_duplicates: bool = True,
        task: str | None = None,
        between: Between = "texts",
        pair_labels: PairLabels | None = None,
        classes: int | list[str] | None = None,
        queue: int = 0,
    ) -> None:
        super().__init__(task)
        if head is not None and not head.train_only:
            raise InvalidValueError(
                f"Contrastive.head: expected a head with train_only: true, got {type(head).__name__} with false; "
                "a head that inference keeps stands in the module: set --model.head instead"
            )
        self.loss = loss or InfoNCE()
        self.head = head
        self.mask_duplicates = mask_duplicates
        self.between = between
        self.pair_labels = pair_labels
        self.classes = classes
        self.reads = ("anchor",) if between == "views" else ("anchor", "positive")
        self.takes = ("positive",) if between == "views" else ("negative",)
        self.queue = queue
        self._check_between_and_target()
        self._check_queue()
        compared = ("anchor", "positive") if between == "views" else ("texts",)
        self.queues = nn.ModuleDict({each: Queue(queue, mask_duplicates) for each in compared} if queue else {})

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

    def _check_between_and_target(self) -> None:
        if self.between not in get_args(Between):
            raise InvalidValueError(
                f"Contrastive.between: expected {' or '.join(get_args(Between))}, got {self.between!r}; views "
                "compares the two views of each text, texts an example's texts"
            )
        if self.pair_labels is not None and self.between == "views":
            raise InvalidValueError(
                f"Contrastive.pair_labels: expected between: texts for {type(self.pair_labels).__name__}, got "
                "views; two views of a text always belong together, so leave one of the two out"
            )
        name = type(self.loss).__name__
        if self.pair_labels is not None and self.loss.reads_labels:
            raise InvalidValueError(
                f"Contrastive.pair_labels: expected a loss that doesn't read the target itself, got {name}; use "
                "NTXent with pair_labels, or leave pair_labels out"
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
    def target(self) -> Target | None:
        """The label of a pair, 0 or 1, or the class of an example."""
        if self.pair_labels is not None:
            return Classes.of(2, "Contrastive.pair_labels")
        return None if self.classes is None else Classes.of(self.classes, "Contrastive.classes")

    def build(self, features: int) -> None:
        """Makes the head's layers."""
        if self.head is not None:
            self.head.build(features)

    def forward(self, encoded: Encoded) -> Terms:
        """Returns the terms of the local rows; see ``Objective.forward``.

        Raises:
            ValueError: A role without its two views, or no target where it is read.
        """
        if self.between == "texts":
            return self._terms(self._texts(encoded), self._queue("texts"))
        roles: tuple[Role, ...] = ("anchor", "positive")
        parts = [
            self._terms(self._views(encoded, role), self._queue(role))
            for role in roles
            if encoded.role_ids(role).shape[1]
        ]
        return replace(
            parts[0],
            total=torch.stack([part.total for part in parts]).sum(),
            logs={name: torch.stack([part.logs[name] for part in parts]).mean() for name in parts[0].logs},
        )

    def finish_step(self) -> None:
        """Lets the columns of the step enter the queue."""
        for queue in self.queues.values():
            assert isinstance(queue, Queue)
            queue.take_in()

    def _queue(self, compared: str) -> Queue | None:
        """Returns the queue of what is compared, in training; None without one."""
        queue = self.queues[compared] if self.training and self.queue else None
        assert queue is None or isinstance(queue, Queue)
        return queue

    def describe_negatives(self, batch_size: int, positives: int, negatives: int) -> str:  # noqa: ARG002  # the base's signature
        """Says how many negatives an anchor meets in a step; accumulation adds none but through the queue."""
        same_side = batch_size - 1 if self.loss.same_side else 0
        hard = 0 if self.between == "views" else batch_size * negatives
        total = batch_size - 1 + same_side + hard + self.queue
        parts = [f"{batch_size - 1} other {'texts of its role' if self.between == 'views' else 'positives'}"]
        parts += [f"{same_side} texts of its own side"] if same_side else []
        parts += [f"{hard} hard negatives"] if hard else []
        parts += [f"{self.queue} past columns"] if self.queue else []
        notes = [] if self.pair_labels is None else [self.pair_labels.note]
        notes += ["texts of its class are none"] if self.loss.reads_labels else []
        most = "at most " if notes else ""
        notes.append(f"accumulate_grad_batches adds none{', but fills the queue sooner' if self.queue else ''}")
        once = " once the queue is full" if self.queue else ""
        return f"{most}{total} per anchor{once}: {', '.join(parts)}; {'; '.join(notes)}"

    def _project(self, vectors: Tensor) -> Tensor:
        return at_least_float32(vectors if self.head is None else self.head(vectors))

    def _texts(self, encoded: Encoded) -> Triples:
        has_negatives = encoded.role("negative").shape[1] > 0
        return Triples(
            anchor=self._project(encoded.role("anchor"))[:, 0],
            positive=self._project(encoded.role("positive")).mean(dim=1),
            negative=self._project(encoded.role("negative")) if has_negatives else None,
            anchor_ids=encoded.role_ids("anchor")[:, 0],
            positive_ids=_set_ids(encoded.role_ids("positive")),
            negative_ids=encoded.role_ids("negative") if has_negatives else None,
            classes=self._classes(encoded),
        )

    def _views(self, encoded: Encoded, role: Role) -> Triples:
        vectors, ids = self._project(encoded.role(role)), encoded.role_ids(role)
        if vectors.shape[1] != 2:
            raise InvalidValueError(
                f"Contrastive.between: expected two views of one text as {role}, got {vectors.shape[1]} slots; "
                "give a pairing with views_per_text: 2, or set between: texts"
            )
        return Triples(
            anchor=vectors[:, 0],
            positive=vectors[:, 1],
            negative=None,
            anchor_ids=ids[:, 0],
            positive_ids=ids[:, 1],
            negative_ids=None,
            classes=self._classes(encoded),
        )

    def _classes(self, encoded: Encoded) -> Tensor | None:
        if self.target is None:
            return None
        if encoded.target is None:
            raise InvalidValueError(
                "Contrastive: expected a batch with a target, for labels or classes, got one without; give a "
                "pairing that reads the column target"
            )
        return encoded.target.long()

    def _terms(self, local: Triples, queue: Queue | None) -> Terms:
        every, offset = self._gather(local)
        texts = every.anchor_ids
        if not self.mask_duplicates:
            distinct = Triples.distinct(every.anchor, every.positive, every.negative)
            every = replace(distinct, classes=every.classes)
        mine = every.map(lambda rows: rows[offset : offset + len(local.anchor)])
        local = replace(mine, anchor=local.anchor, positive=local.positive, negative=local.negative)
        if self.pair_labels is not None:
            pairs = LabelledPairs(local, every, offset, texts=texts, queue=queue)
            _, positives, _ = pairs.positives()
            return replace(
                self.pair_labels.terms(self.loss, pairs),
                logs=_health(positives, positives, 0) | self._temperature(),
            )
        terms = self.loss.compare(arrange(queue, self.loss, local, every, offset))
        return Terms(
            total=terms.sum(),
            count=len(terms),
            reduction=self.loss.reduction,
            logs=_health(local, every, offset) | self._temperature(),
        )

    def _temperature(self) -> dict[str, Tensor]:
        return {} if self.loss.learned is None else {"temperature": self.loss.learned().detach().squeeze()}

    def _gather(self, local: Triples) -> tuple[Triples, int]:
        """Returns the triples of all ranks, and the place of the first local one among them."""
        n = len(local.anchor)
        sizes = gather_sizes(n, device=local.anchor.device) if self.training else [n]
        offset = sum(sizes[: rank()]) if len(sizes) > 1 else 0
        return local.map(lambda rows: gather_rows(rows, sizes)), offset


def _set_ids(ids: Tensor) -> Tensor:
    """Returns one id for each row's texts in any order, (N, P) -> (N,): that of the text if there is but one."""
    return torch.where((ids == ids[:, :1]).all(dim=1), ids[:, 0], ids.sum(dim=1))


@torch.no_grad()
def _health(local: Triples, every: Triples, offset: int) -> dict[str, Tensor]:
    """What to watch of the compared vectors, on at most some hundred local rows."""
    if not len(every.anchor):
        return {}
    anchor, positive = local.anchor[:_LOGGED_ROWS], local.positive[:_LOGGED_ROWS]
    target = offset + torch.arange(len(anchor), device=anchor.device)
    cosines = cosine_similarity_matrix(anchor, every.positive)
    own = cosines.gather(1, target.unsqueeze(1))
    others = max(cosines.numel() - len(own), 1)
    return {
        "accuracy": metrics.in_batch_accuracy(anchor, every.positive, target=target),
        "positive_similarity": own.mean(),
        "negative_similarity": (cosines.sum() - own.sum()) / others,
        "alignment": metrics.alignment(anchor, positive),
        "uniformity": metrics.uniformity(torch.cat([anchor, positive])),
    }
