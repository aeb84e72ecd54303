"""Batches of a training step: rows of token ids, token vectors, and the row vectors that objectives read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.core.types import Role, Slot


def move_to_device(values: Tensor, device: torch.device) -> Tensor:
    """Copies a tensor to a device without making the host wait. Returns the tensor itself if it is there already.

    A GPU works through its queue while the host prepares the next step. A copy from ordinary memory would make
    the host wait for that queue. The copy therefore uses page-locked memory, which torch caches.

    Example:
        >>> values = torch.arange(2)
        >>> move_to_device(values, torch.device("cpu")) is values
        True
    """
    if values.device.type != "cpu" or device.type == "mps":  # MPS doesn't keep the source memory of a queued copy
        return values.to(device)
    if device.type == "cuda":
        values = values.pin_memory()
    return values.to(device, non_blocking=True)


def select_tokens(rows: Tensor, mask: Tensor) -> Tensor:
    """Returns the entries of a tensor where a mask is True, row by row, (S, L, ...) and (S, L) -> (tokens, ...).

    Args:
        rows: On any device.
        mask: On the host if the rows are on a GPU: the host would wait for a mask on the GPU.

    Example:
        >>> select_tokens(torch.tensor([[7, 0], [8, 9]]), torch.tensor([[True, False], [True, True]]))
        tensor([7, 8, 9])
    """
    if mask.device == rows.device:
        return rows[mask]
    return rows.flatten(0, 1)[move_to_device(mask.flatten().nonzero().flatten(), rows.device)]


def select_slots(rows: Tensor, slots: Sequence[int]) -> Tensor:
    """Returns the given slots of a batch, (slots, N, ...) -> (given slots, N, ...), without copying an index.

    Example:
        >>> select_slots(torch.tensor([[1], [2], [3]]), [2, 0]).tolist()
        [[3], [1]]
    """
    first = slots[0] if slots else 0
    if list(slots) == list(range(first, first + len(slots))):
        return rows[first : first + len(slots)]
    return torch.stack([rows[slot] for slot in slots])


class HostCopies(NamedTuple):
    """Copies on the host of the token ids and text ids of a batch whose tensors are on a device.

    Args:
        ids: As ``Batch.ids``, (T,).
        text_ids: As ``Batch.text_ids``.
    """

    ids: Tensor
    text_ids: Tensor


class Context(NamedTuple):
    """Longer rows that the network encodes in place of a batch's rows, each of which is a span of one of them.

    Args:
        rows: The longer rows, C of them, such as documents.
        numbers: Number of the longer row of each row of the batch, (S,), on the host.
        starts: First token of each row in its longer row, special tokens counted, (S,), on the host.
        lengths: Number of tokens of each row, (S,), on the host.
    """

    rows: Batch
    numbers: Tensor
    starts: Tensor
    lengths: Tensor

    def split(self, rows: Tensor) -> Context:
        """Returns the spans of the given rows of the batch, with all longer rows."""
        return self._replace(numbers=self.numbers[rows], starts=self.starts[rows], lengths=self.lengths[rows])

    def keep(self, numbers: Tensor) -> Context:
        """Returns the context with only the given longer rows, to which all its spans must belong."""
        place = torch.zeros(len(self.rows), dtype=torch.long).scatter(0, numbers, torch.arange(len(numbers)))
        return self._replace(rows=self.rows.split(numbers), numbers=place[self.numbers])

    def cut(self, blocks: Sequence[Hidden]) -> Hidden:
        """Returns the token vectors of the spans, from those of the longer rows in blocks, in order."""
        device = blocks[0].mask.device
        ends = self.rows.lengths.cumsum(0)
        firsts = (ends - self.rows.lengths)[self.numbers] + self.starts
        places = torch.arange(int(self.lengths.max()))
        mask = places < self.lengths.unsqueeze(1)
        index = torch.where(mask, firsts.unsqueeze(1) + places, 0)
        here = move_to_device(index, device)
        layers = {layer: torch.cat([block.tokens(layer) for block in blocks])[here] for layer in blocks[0].layers}
        host_ids = self.rows.host_ids.ids[index]
        copies = None if device.type == "cpu" else PaddedHostCopies(mask, host_ids)
        return Hidden(layers, move_to_device(mask, device), self.rows.ids[here], blocks[0].mask_id, copies)


class Batch:
    """N examples as S rows of different lengths, without padding.

    ``lengths``, ``row_slots``, ``labels``, ``unpooled`` and ``template_lengths`` stay on the host, whatever
    device the
    batch is on. Shapes and indices are computed from them, and the host would have to wait to read them from a
    GPU.

    A whole batch has its rows slot by slot: row = slot * N + example. A part of a batch (``split``) keeps the
    slots of its rows in ``row_slots``.

    Not a dataclass: under ``bf16-true`` Lightning converts every float field of a dataclass to the precision of
    the weights. That rounds the targets: 3,000 classes become 700.

    Args:
        ids: Token ids of all rows with special tokens, (T,).
        lengths: Tokens of each row, (S,), on the host.
        slots: The slots, in row order.
        row_slots: Index into ``slots`` of each row, (S,), on the host.
        draw_keys: Key of every random draw for the row, (S,), int64.
        text_ids: 64-bit hash of each text before any view, (S,): equal texts have equal ids. If views edit texts,
            also the hash of the token ids after them, (S, 2).
        seed: Seed of the step's dropout masks.
        positions: Positions of the tokens, (T,), or None for the natural order.
        types: Token type of each token (first or second text of a pair), (T,), as the tokenizer numbers them.
            None if rows hold one text, or the tokenizer has no types.
        labels: Labels for masked language modeling, (T,), on the host, or None.
        target: Label or score of each example, (N,), float64, or None.
        unpooled: Tokens at the start of each row that the pooler skips, (S,), on the host, or None.
        template_lengths: Number of prompt, template and special tokens before and after the text of each row,
            (S, 2), on the host. None if only special tokens surround every text.
        truncated: Number of rows that were cut to the length limit.
        texts: The S texts before any view and without prompts, or None if no part of the run reads them.
        rank_sizes: Number of examples of each rank in the step, in rank order, including this rank's N. None if
            unknown: ranks then exchange them.
        host_copies: Host copies of ids. None if the batch is on the host, or if its ids were created on a device.
        scores: Teacher scores of the positive slots, then of the negative slots, (N, slots), float64. NaN for a
            missing hard negative. None without scores.
        context: Longer rows that are encoded in place of the rows. None if each row is encoded alone.
    """

    def __init__(
        self,
        ids: Tensor,
        lengths: Tensor,
        slots: tuple[Slot, ...],
        row_slots: Tensor,
        draw_keys: Tensor,
        text_ids: Tensor,
        seed: int = 0,
        positions: Tensor | None = None,
        types: Tensor | None = None,
        labels: Tensor | None = None,
        target: Tensor | None = None,
        unpooled: Tensor | None = None,
        template_lengths: Tensor | None = None,
        truncated: int = 0,
        texts: tuple[str, ...] | None = None,
        rank_sizes: tuple[int, ...] | None = None,
        host_copies: HostCopies | None = None,
        scores: Tensor | None = None,
        context: Context | None = None,
    ) -> None:
        self.ids = ids
        self.lengths = lengths
        self.slots = slots
        self.row_slots = row_slots
        self.draw_keys = draw_keys
        self.text_ids = text_ids
        self.seed = seed
        self.positions = positions
        self.types = types
        self.labels = labels
        self.target = target
        self.unpooled = unpooled
        self.template_lengths = template_lengths
        self.truncated = truncated
        self.texts = texts
        self.rank_sizes = rank_sizes
        self.host_copies = host_copies
        self.scores = scores
        self.context = context

    def __len__(self) -> int:
        """Number of rows of the batch, S."""
        return len(self.lengths)

    def replace(self, **changes: Any) -> Batch:  # Any: of the arguments above
        """Returns a copy of the batch with other values of some arguments."""
        if not changes.keys().isdisjoint(HostCopies._fields):
            changes = {"host_copies": None, **changes}  # the host copies are of the previous ids
        return Batch(**{**vars(self), **changes})

    @property
    def host_ids(self) -> HostCopies:
        """Copies of token ids and text ids on the host; reading them never waits for a device."""
        return self.host_copies or HostCopies(self.ids, self.text_ids)

    def target_for(self, vectors: Tensor) -> Tensor | None:
        """Returns the targets in the precision of the vectors, in at least float32, (N,), or None."""
        return None if self.target is None else self.target.to(_widened(vectors))

    def scores_for(self, vectors: Tensor) -> Tensor | None:
        """Returns the teacher scores in the precision of the vectors, at least float32, (N, slots), or None."""
        return None if self.scores is None else self.scores.to(_widened(vectors))

    def by_role(self, role: Role) -> Tensor:
        """Returns the indices of the batch rows that have a role, ordered by slot, (rows,), on the host."""
        slots = [i for i, slot in enumerate(self.slots) if slot.role == role]
        return torch.cat([(self.row_slots == i).nonzero().flatten() for i in slots] or [self.lengths[:0]])

    def split(self, rows: Tensor) -> Batch:
        """Returns the part of the batch that has the given rows (indices, on the host), in that order."""
        starts = (self.lengths.cumsum(0) - self.lengths)[rows]
        lengths = self.lengths[rows]
        ends = lengths.cumsum(0)
        tokens = torch.arange(int(ends[-1]) if len(ends) else 0)
        tokens += torch.repeat_interleave(starts - (ends - lengths), lengths)
        device, host_copies = self.ids.device, self.host_copies
        here, of_rows = move_to_device(tokens, device), move_to_device(rows, device)
        return self.replace(
            ids=self.ids[here],
            lengths=lengths,
            row_slots=self.row_slots[rows],
            draw_keys=self.draw_keys[of_rows],
            text_ids=self.text_ids[of_rows],
            host_copies=None
            if host_copies is None
            else HostCopies(host_copies.ids[tokens], host_copies.text_ids[rows]),
            positions=None if self.positions is None else self.positions[here],
            types=None if self.types is None else self.types[here],
            labels=None if self.labels is None else self.labels[tokens],
            unpooled=None if self.unpooled is None else self.unpooled[rows],
            template_lengths=None if self.template_lengths is None else self.template_lengths[rows],
            texts=None if self.texts is None else tuple(self.texts[row] for row in rows.tolist()),
            rank_sizes=None,  # other ranks may select other rows
            context=None if self.context is None else self.context.split(rows),
        )

    def keep(self, slots: Sequence[Slot]) -> Batch:
        """Returns the whole batch with only the rows of the given slots."""
        if tuple(slots) == self.slots:
            return self
        numbers = [i for i, slot in enumerate(self.slots) if slot in slots]
        rows = [(self.row_slots == i).nonzero().flatten() for i in numbers]
        part = self.split(torch.cat(rows or [self.lengths[:0]]))
        counts = torch.tensor([len(row_numbers) for row_numbers in rows])
        row_slots = torch.arange(len(numbers)).repeat_interleave(counts)
        return part.replace(
            slots=tuple(self.slots[i] for i in numbers), row_slots=row_slots, rank_sizes=self.rank_sizes
        )

    def to(self, device: torch.device | str) -> Batch:
        """Returns the batch on a device, without waiting for a GPU (``move_to_device``)."""
        place = torch.device(device)
        batch = self
        if place.type == "mps":  # Apple's GPUs have no float64
            target, scores = (None if t is None else t.float() for t in (self.target, self.scores))
            batch = self.replace(target=target, scores=scores)
        host_copies = None
        if place.type != "cpu":
            host_copies = self.host_ids if self.ids.device.type == "cpu" else self.host_copies
        context = None if self.context is None else self.context._replace(rows=self.context.rows.to(place))
        moved = batch._map_tensors(lambda t: move_to_device(t, place))
        return moved.replace(host_copies=host_copies, context=context)

    def pin_memory(self) -> Batch:
        """Returns the batch with the tensors that are copied to a device in page-locked memory."""
        context = self.context and self.context._replace(rows=self.context.rows.pin_memory())
        return self._map_tensors(lambda t: t.pin_memory()).replace(context=context)

    def _map_tensors(self, move: Callable[[Tensor], Tensor]) -> Batch:
        return self.replace(
            ids=move(self.ids),
            draw_keys=move(self.draw_keys),
            text_ids=move(self.text_ids),
            positions=None if self.positions is None else move(self.positions),
            types=None if self.types is None else move(self.types),
            target=None if self.target is None else move(self.target),
            scores=None if self.scores is None else move(self.scores),
        )


def _widened(vectors: Tensor) -> torch.dtype:
    return torch.promote_types(vectors.dtype, torch.float32)


class StepKind(NamedTuple):
    """Kind of a training step: the tasks it trains, and the objectives that run (None: all of these tasks)."""

    tasks: tuple[str | None, ...]
    objectives: tuple[str, ...] | None = None


@dataclass(slots=True)
class StepBatch:
    """Batches of the tasks that one training step trains.

    Not frozen, unlike the dataclasses below: under ``64-true`` Lightning copies it field by field.

    Args:
        batches: Task -> its batch. Tasks that the step doesn't train are absent.
        objectives: Names of the objectives that run; None for all objectives of these tasks.
    """

    batches: dict[str, Batch]
    objectives: tuple[str, ...] | None = None

    def to(self, device: torch.device | str) -> StepBatch:
        """Returns the step with its batches on a device."""
        return self._map_tensors(lambda batch: batch.to(device))

    def pin_memory(self) -> StepBatch:
        """Returns the step with its batches in page-locked memory."""
        return self._map_tensors(lambda batch: batch.pin_memory())

    def _map_tensors(self, move: Callable[[Batch], Batch]) -> StepBatch:
        return replace(self, batches={task: move(batch) for task, batch in self.batches.items()})


class PaddedHostCopies(NamedTuple):
    """Host copies of the mask and the token ids of padded rows whose vectors are on a device.

    Args:
        mask: As ``Hidden.mask``, (n, L).
        ids: As ``Hidden.ids``, (n, L).
    """

    mask: Tensor
    ids: Tensor


@dataclass(frozen=True, slots=True)
class Hidden:
    """Token vectors of the layers that a pooler reads.

    Args:
        layers: Layer number -> (n, L, D). Numbers count as in Transformers' ``hidden_states``: 0 is the
            embedding output, 1 the first block, -1 the last block.
        mask: True on tokens, False on padding, (n, L).
        ids: Token ids, of any value on padding, (n, L). None for a custom encoder that doesn't return them.
        mask_id: Id of the mask token; None if the tokenizer has none.
        host_copies: Host copies of mask and ids for vectors on a device; None otherwise.
        token_logits: Maps vectors of the last layer to the logits of all tokens of the vocabulary, (M, D) -> (M,
            V). None if the pooler doesn't read logits.

    Example:
        >>> hidden = Hidden({-1: torch.tensor([[[1.0], [3.0], [9.0]]])}, mask=torch.tensor([[True, True, False]]))
        >>> hidden.tokens(-1)
        tensor([[1.],
                [3.]])
    """

    layers: Mapping[int, Tensor]
    mask: Tensor
    ids: Tensor | None = None
    mask_id: int | None = None
    host_copies: PaddedHostCopies | None = None
    token_logits: Callable[[Tensor], Tensor] | None = None

    def tokens(self, layer: int) -> Tensor:
        """Returns the token vectors of a layer without padding, one row after another, (tokens, D)."""
        return select_tokens(self.layers[layer], self.mask if self.host_copies is None else self.host_copies.mask)


OwnPass: TypeAlias = Callable[
    ["Batch", Callable[["Batch", Tensor], Tensor]], "list[tuple[Batch, Tensor, Tensor]]"
]
"""Runs a network on a batch chunk by chunk, so that memory stays bounded.

Takes rows, and a function from a chunk and the indices of its rows to an output. Returns (chunk, indices, output)
of each chunk.
"""


@dataclass(frozen=True, slots=True)
class Encoded:
    """Vectors of a batch, one per row and before any train-only head, with the values that objectives read.

    Args:
        embeddings: Sentence vectors, (S, D), row = slot * N + example.
        slots: The slots, in row order.
        text_ids: 64-bit hash of each text before any view, (S,). If views edit texts, also the hash of the token
            ids after them, (S, 2). Texts that agree in either hash are no negatives of each other.
        target: Label or score of each example, (N,), in at least float32, or None.
        masked_hidden: Last-layer vectors of the tokens that have a label, (M, D), or None.
        masked_labels: Labels of these tokens, (M,), or None.
        token_logits: Maps such vectors to a score for every entry of the vocabulary, (M, D) -> (M, V), or None.
        guides: Name of a guide -> its vectors of the texts of the rows, (S, Dg), without a gradient.
        batch: The rows, encoded or not, whose token ids an objective reads; None if no objective reads any.
        run_in_chunks: Runs a network over rows in the chunks of the encoder; see ``OwnPass``.
        keys: Settings of a momentum encoder, private to an objective -> its output for the slots that it encodes,
            after the objective's head and without a gradient. Empty outside training.
        rank_sizes: Number of examples of each rank, as ``Batch.rank_sizes``; None if unknown.
        logged: Whether metrics next to the loss are logged in this step; if not, an objective may skip them.
        scores: Teacher scores of the positive slots, then of the negative slots, as ``Batch.scores``, (N, slots),
            in at least float32, or None.
    """

    embeddings: Tensor
    slots: tuple[Slot, ...]
    text_ids: Tensor
    target: Tensor | None = None
    masked_hidden: Tensor | None = None
    masked_labels: Tensor | None = None
    token_logits: Callable[[Tensor], Tensor] | None = None
    guides: Mapping[str, Tensor] = field(default_factory=dict)
    batch: Batch | None = None
    run_in_chunks: OwnPass | None = None
    keys: Mapping[object, Encoded] = field(default_factory=dict)
    rank_sizes: tuple[int, ...] | None = None
    logged: bool = True
    scores: Tensor | None = None

    def role(self, role: Role) -> Tensor:
        """Returns the vectors of the texts with a role, (N, slots of the role, D).

        Example:
            >>> import torch
            >>> slots = (Slot("anchor", 0), Slot("positive", 0))
            >>> encoded = Encoded(torch.eye(4), slots, text_ids=torch.arange(4))
            >>> encoded.role("positive").shape
            torch.Size([2, 1, 4])
        """
        return self._of(role, self.embeddings)

    def role_ids(self, role: Role) -> Tensor:
        """Returns the ids of the texts with a role, (N, slots of the role), or with two hashes (..., 2)."""
        return self._of(role, self.text_ids)

    def role_guide(self, name: str, role: Role) -> Tensor:
        """Returns a guide's vectors of the texts with a role, (N, slots of the role, Dg)."""
        return self._of(role, self.guides[name])

    def tokens(self, *roles: Role) -> Batch:
        """Returns the rows of the given roles with their token ids, slot by slot.

        Raises:
            ValueError: No objective of the step lists these roles in ``token_roles``.
        """
        rows_by_role = [] if self.batch is None else [self.batch.by_role(role) for role in roles]
        if self.batch is None or not all(len(rows) for rows in rows_by_role):
            raise InvalidValueError(
                f"Encoded.tokens: expected roles whose tokens an objective reads, got {', '.join(roles)}; name "
                "them in token_roles of the objective"
            )
        return self.batch.split(torch.cat(rows_by_role))

    def _of(self, role: Role, rows: Tensor) -> Tensor:
        numbers = [i for i, slot in enumerate(self.slots) if slot.role == role]
        return select_slots(rows.reshape(len(self.slots), -1, *rows.shape[1:]), numbers).transpose(0, 1)
