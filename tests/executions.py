"""Training steps in every way in which they can be executed, for every objective of the library.

An execution is a choice of each axis below. It is compared with the plain one (padded, whole, dense, one process)
of the same objectives and views.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import tiny
import torch
from objective_cases import CASES, STEPS, Case
from processes import means
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from contrastive_text.core.batch import Batch, Context
from contrastive_text.core.distributed import full_tensor, rank, shard_like, sum_over_ranks, world_size
from contrastive_text.core.random import RowRandom
from contrastive_text.core.types import NO_LABEL, Slot
from contrastive_text.encoders import AsymmetricEncoder, Encoder, TransformerEncoder, packing
from contrastive_text.heads import StackHead
from contrastive_text.losses import base as losses_base
from contrastive_text.losses.comparison import MASKED_ID
from contrastive_text.objectives.momentum import Queue
from contrastive_text.poolers import CLSPooler
from contrastive_text.training import forward_pass as encoding
from contrastive_text.training.fsdp2 import average_gradients, split_weights
from contrastive_text.training.module import ContrastiveModule
from contrastive_text.training.optim import Uncertainty
from contrastive_text.views import (
    Adversarial,
    EmbeddingDropout,
    FeatureCutoff,
    GaussianNoise,
    GradientView,
    MaskTokens,
    ShufflePositions,
    SpanCutoff,
    TokenCutoff,
    View,
)

EXAMPLES = 12
LAYOUTS = ("padded", "bucketed", "packed")
PARTS = ("whole", "chunked")
FORMS = ("dense", "streamed")
RANKS: dict[str, tuple[int, ...]] = {
    "one process": (12,),
    "two ranks": (6, 6),
    "two uneven ranks": (8, 4),
    "three ranks": (4, 4, 4),
    "three uneven ranks": (5, 4, 3),
}
VIEWS = ("no views", "tokens", "embeddings", "every level")
"""Token views stand in the batch, with the text views before them: other tokens, places and hidden tokens."""

PROMISE = 1e-10
"""In float64: max |dg| <= 1e-10 max |g|, and as much of the loss."""

AFTER_STEPS = 1e-9
"""Largest difference of weights after some steps."""

ENTRIES = 100
"""Entries of a part of a streamed loss: there are several parts."""

MASK = 4
"""Id of the mask token; those of texts begin at 5."""


WIDER = [{"name": "Linear", "out_features": tiny.CONFIG["hidden_size"]}]
"""Head of the narrower of two encoders."""


class Execution(NamedTuple):
    """One choice of every axis, by name."""

    case: str
    views: str
    layout: str
    parts: str
    form: str
    ranks: str

    def __str__(self) -> str:
        return " · ".join(self)

    @property
    def plain(self) -> Execution:
        """The same objectives and views, executed plainly."""
        return Execution(self.case, self.views, "padded", "whole", "dense", "one process")


EVERY = [
    execution
    for names in itertools.product(CASES, VIEWS, LAYOUTS, PARTS, FORMS, RANKS)
    if (execution := Execution(*names)) != execution.plain
    and (names[4] == "dense" or CASES[names[0]].streams)
    and not (CASES[names[0]].in_context and names[1] != "no views")
]


class Along(GradientView):
    """Adds the gradient itself: one that knows a rank's part alone, or counts the ranks, shows."""

    def __init__(self, objective: str) -> None:
        self.objective = objective

    def __call__(self, embeddings: Tensor, gradient: Tensor, mask: Tensor, rng: RowRandom) -> Tensor:  # noqa: ARG002  # the base's signature
        return embeddings + gradient


def chains(case: Case, views: str, followed: str) -> dict[str, list[View]]:
    """Returns the chains of views of each role."""
    found: dict[str, list[View]] = {"anchor": [], "positive": []}
    if case.hidden is not None:
        found[case.hidden] = [MaskTokens()]
    if views != "no views":
        found["anchor"] += [ShufflePositions()]
    if views == "embeddings":
        found["anchor"] += [TokenCutoff(rate=0.3), GaussianNoise(0.1)]
        found["positive"] += [SpanCutoff(rate=0.3)]
    if views == "every level":
        # No whole tokens: erased ones are equal in every layer, and which of them MaxPooler takes, and a gradient
        # view then moves, is left to rounding.
        found["anchor"] += [EmbeddingDropout(), Along(followed)]
        found["positive"] += [FeatureCutoff(rate=0.3), Adversarial(norm=0.5, objective=followed)]
    return found


def module_of(execution: Execution, **options: Any) -> ContrastiveModule:
    """Returns the module of an execution, in float64; without chunks. Options are the encoder's."""
    case = CASES[execution.case]
    torch.manual_seed(0)
    own = options or {"config": {**tiny.CONFIG, "initializer_range": 0.3}}
    network = partial(
        TransformerEncoder,
        dropout=0.0,
        layout=execution.layout,  # type: ignore[arg-type]  # one of them
        gradient_checkpointing=case.layers_anew and execution != execution.plain,
    )
    encoder: Encoder = network(**own)
    if case.asymmetric:
        narrow = {"num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 16}
        small = network(config=own["config"] | narrow)
        own_sides = {"document_pooler": CLSPooler(), "query_head": StackHead(WIDER)}
        encoder = AsymmetricEncoder(query=small, document=encoder, **own_sides)
    objectives = case.objectives({"streamed": execution.form == "streamed"})
    views = chains(case, execution.views, followed=next(iter(objectives)))
    if case.template:
        encoder.tokenizer = SimpleNamespace(mask_token_id=MASK)  # type: ignore[assignment]  # all that is read of it
    return ContrastiveModule(encoder, views=dict(views), objectives=objectives, **case.parts()).double()


def batch_of(case: Case, views: str, step: int) -> Batch:
    """Returns the batch of all ranks: texts of four lengths, some of which recur; and siblings."""
    noise = torch.Generator().manual_seed(step)
    rows = len(case.slots) * EXAMPLES
    lengths = torch.tensor([4, 5, 7, 9])[torch.randint(4, (rows,), generator=noise)]
    ids = torch.randint(5, 300, (int(lengths.sum()),), generator=noise)
    starts = lengths.cumsum(0) - lengths
    if case.template:
        ids[starts + lengths - 2] = MASK
    row_slots = torch.arange(len(case.slots)).repeat_interleave(EXAMPLES)
    anchors = [i for i, slot in enumerate(case.slots) if slot.role == "anchor"]
    labels = positions = None
    if case.hidden is not None:
        role = [i for i, slot in enumerate(case.slots) if slot.role == case.hidden]
        # The last examples have no hidden token: a rank of them has none at all.
        hides = torch.isin(row_slots, torch.tensor(role)) & (torch.arange(rows) % EXAMPLES < EXAMPLES - 3)
        chosen = hides.repeat_interleave(lengths) & (torch.rand(len(ids), generator=noise) < 0.3)
        chosen[starts[role[0] * EXAMPLES]] = True
        labels = torch.where(chosen, ids.roll(7), NO_LABEL)
    if views != "no views":
        places = [
            torch.randperm(length, generator=noise) if slot in anchors else torch.arange(length)
            for length, slot in zip(lengths.tolist(), row_slots.tolist(), strict=True)
        ]
        positions = torch.cat(places)
    text_ids = torch.randint(3 * rows, (rows,), generator=noise)
    text_ids[:EXAMPLES] %= EXAMPLES // 2
    negatives = [i for i, slot in enumerate(case.slots) if slot.role == "negative"]
    lacking = torch.isin(row_slots, torch.tensor(negatives)) & (torch.arange(rows) % EXAMPLES % 3 == 1)
    text_ids[lacking] = MASKED_ID  # every third example lacks its hard negative
    return Batch(
        ids=ids,
        lengths=lengths,
        slots=case.slots,
        row_slots=row_slots,
        draw_keys=torch.randint(2**62, (rows,), generator=noise),
        text_ids=text_ids,
        seed=step,
        positions=positions,
        labels=labels,
        unpooled=torch.ones(rows, dtype=torch.long) if case.prompted else None,
        template_lengths=torch.tensor([[1, 2]]).expand(rows, 2) if case.template else None,
        target=torch.randint(case.classes, (EXAMPLES,), generator=noise).double() if case.classes else None,
        scores=scores_of(case.slots, text_ids, noise) if case.scores else None,
        context=context_of(lengths, noise) if case.in_context else None,
    )


def context_of(lengths: Tensor, noise: torch.Generator) -> Context:
    """Returns a longer text for each example, and the places of its spans of the given lengths in it."""
    sizes = torch.randint(14, 24, (EXAMPLES,), generator=noise)
    ids, keys = torch.randint(5, 300, (int(sizes.sum()),), generator=noise), torch.arange(EXAMPLES)
    numbers = torch.arange(len(lengths)) % EXAMPLES
    starts = (torch.rand(len(lengths), generator=noise) * (sizes[numbers] - lengths + 1)).long()
    return Context(Batch(ids, sizes, (Slot("anchor", 0),), keys * 0, keys, keys), numbers, starts, lengths)


def scores_of(slots: Sequence[Slot], text_ids: Tensor, noise: torch.Generator) -> Tensor:
    """Returns teacher scores of positives and hard negatives, NaN where an example lacks its hard negative."""
    ids = text_ids.reshape(len(slots), EXAMPLES).T[:, [slot.role in ("positive", "negative") for slot in slots]]
    scores = 2 * torch.randn(ids.shape, generator=noise, dtype=torch.float64)
    return scores.masked_fill(ids == MASKED_ID, torch.nan)


def part_of(batch: Batch, examples: slice) -> Batch:
    """Returns some examples of a whole batch."""
    rows = torch.arange(len(batch)).reshape(len(batch.slots), -1)[:, examples].flatten()
    target, scores = (None if each is None else each[examples] for each in (batch.target, batch.scores))
    return batch.split(rows).replace(target=target, scores=scores)


@dataclass
class Seen:
    """Record of the first step on this rank.

    Args:
        shapes: Of the token ids of each call of the network.
        masks: Whether each came with a mask of padding.
        padding: Places of padding in all of them.
        checkpoints: Parts whose activations were thrown away.
        layers: Calls of layers whose activations were.
        streamed: Parts of losses that were computed by rows, forward and backward.
        rows: Rows that were encoded.
        tokens: Tokens of these rows.
        queued: Columns in queues after the last step.
    """

    shapes: list[tuple[int, ...]] = field(default_factory=list)
    masks: list[bool] = field(default_factory=list)
    padding: int = 0
    checkpoints: int = 0
    layers: int = 0
    streamed: int = 0
    rows: int = 0
    tokens: int = 0
    queued: int = 0


@contextmanager
def watched(module: ContrastiveModule) -> Iterator[Seen]:
    """Notes the calls of the block."""
    seen = Seen()

    def note(model: torch.nn.Module, args: object, inputs: dict[str, Any]) -> None:  # noqa: ARG001  # torch's signature; Any: the model's
        if "input_ids" not in inputs:
            return  # the head that predicts tokens passes by the encoder
        ids, mask = inputs["input_ids"], inputs.get("attention_mask")
        seen.shapes.append(tuple(ids.shape))
        seen.masks.append(mask is not None)
        seen.padding += 0 if mask is None else ids.numel() - int(mask.sum())

    networks = [part.model for part in module.encoder.modules() if isinstance(part, TransformerEncoder)]
    handles = [network.register_forward_pre_hook(note, with_kwargs=True) for network in networks]
    with (
        mock.patch.object(encoding, "checkpoint", wraps=encoding.checkpoint) as checkpoint,
        mock.patch.object(packing, "checkpoint", wraps=packing.checkpoint) as layers,
        mock.patch.object(losses_base, "_ENTRIES", ENTRIES),
        mock.patch.object(losses_base, "_logits", wraps=losses_base._logits) as softmax,
        mock.patch.object(losses_base, "checkpoint", wraps=losses_base.checkpoint) as some_rows,
    ):
        yield seen
    for handle in handles:
        handle.remove()
    # Of the encoder: networks of objectives have groups of their own.
    seen.checkpoints = sum(call.args[0].func.__name__ == "encode" for call in checkpoint.call_args_list)
    seen.layers = layers.call_count
    seen.streamed = softmax.call_count + some_rows.call_count


@dataclass
class Found:
    """Results of an execution.

    Args:
        loss: Of the first step, the mean over ranks, and with it all gradients that are logged.
        gradients: Of the first step, by parameter, means over ranks.
        start: Weights before the first step.
        weights: Weights after the last step.
        seen: Record of the first step.
    """

    loss: dict[str, Tensor]
    gradients: dict[str, Tensor]
    start: dict[str, Tensor]
    weights: dict[str, Tensor]
    seen: Seen


def mean_gradients(parameters: dict[str, torch.nn.Parameter]) -> dict[str, Tensor]:
    """Returns the gradients that any rank has, averaged over the ranks, as DDP leaves them."""
    has = torch.tensor([p.grad is not None for p in parameters.values()], dtype=torch.float64)
    own = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in parameters.items()}
    *averaged, anywhere = means({**own, "": has}).values()
    return {name: mean for name, mean, some in zip(own, averaged, (anywhere > 0).tolist(), strict=True) if some}


def execute(execution: Execution, module: ContrastiveModule | None = None, split: bool = False) -> Found:
    """Takes some steps down the gradient, on this rank's part of each batch.

    Args:
        execution: What is executed.
        module: Its module; None for ``module_of``.
        split: Whether the weights are split over the ranks.
    """
    case = CASES[execution.case]
    module = module or module_of(execution)
    ranks = RANKS[execution.ranks]
    assert len(ranks) == world_size()
    examples = slice(sum(ranks[: rank()]), sum(ranks[: rank() + 1]))
    start = {name: p.detach().clone() for name, p in module.named_parameters()}
    numbers = split_weights(module, init_device_mesh("cpu", (len(ranks),))) if split else []
    parameters = dict(module.named_parameters())
    optimizer = torch.optim.SGD(parameters.values(), lr=0.05, momentum=0.9)
    found: Found | None = None
    for step in range(STEPS):
        batch = part_of(batch_of(case, execution.views, step), examples)
        read = encoding.read_slots(batch, module.plan, list(module.objective_parts().values()))
        source = read if read.context is None else read.context.keep(read.context.numbers.unique()).rows
        tokens = int(source.lengths.sum())
        # Three parts or more on every rank, each with a bound of its own; with split weights all have one bound,
        # and so other numbers of parts.
        bound = 50 if split else int(0.4 * tokens)
        module.chunk_tokens = bound if execution.parts == "chunked" else None
        module.logs_gradients = step == 0 and isinstance(module.combine, Uncertainty) and not split
        optimizer.zero_grad()
        with watched(module) as seen:
            loss = module.training_step(batch, step)
            loss.backward()
        if split:
            average_gradients(numbers)
            module.reshard()
            gradients = {name: full_tensor(p.grad) for name, p in parameters.items() if p.grad is not None}
        else:
            gradients = mean_gradients(parameters)
        if found is None:
            figures = {"loss": sum_over_ranks(loss.detach()) / world_size()}
            figures |= {name: value for name, value in module.figures.items() if "gradient/" in name}
            copies = {name: value.clone() for name, value in gradients.items()}
            seen.rows, seen.tokens = len(source), tokens
            found = Found(figures, copies, start, {}, seen)
        for name, gradient in gradients.items():
            parameters[name].grad = shard_like(gradient, parameters[name])
        optimizer.step()
        module.momentum.update_all()
    assert found is not None
    found.weights = {name: full_tensor(p.detach()) for name, p in parameters.items()}
    queues = [part for part in module.modules() if isinstance(part, Queue)]
    found.seen.queued = sum(len(past["ids"]) for part in queues for past in part.get_extra_state().values())
    return found


def distance(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    assert one.keys() == other.keys(), one.keys() ^ other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in other)


class Outcome(NamedTuple):
    """An execution next to the plain one, on one rank.

    Args:
        wrong: Where they differ by more than the promise; empty if they don't.
        seen: What happened in the first step, as plain data.
    """

    wrong: str
    seen: dict[str, Any]  # Any: a record as torch loads it


def compare(found: Found, plain: Found, moved: float = 1e-2) -> Outcome:
    """Compares an execution with the plain one; weights have to move by some length."""
    largest = max(float(value.abs().max()) for value in plain.gradients.values())
    assert largest > 1e-3
    assert distance(found.start, plain.start) == 0
    apart = {
        "loss": distance(found.loss, plain.loss) / max(1.0, *(float(v.abs()) for v in plain.loss.values())),
        "gradient": distance(found.gradients, plain.gradients) / largest,
        "weights": distance(found.weights, plain.weights) / (AFTER_STEPS / PROMISE),
    }
    wrong = [f"{name}: {value:.1e} apart" for name, value in apart.items() if not value <= PROMISE]
    wrong += ["weights that rest"] if distance(found.start, found.weights) <= moved else []
    return Outcome("; ".join(wrong), vars(found.seen))


@cache
def plainly(case: str, views: str) -> Found:
    """Returns what the plain execution of some objectives and views finds."""
    return execute(Execution(case, views, "padded", "whole", "dense", "one process"))
