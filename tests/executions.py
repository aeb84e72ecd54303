"""Training steps in every way in which they can be executed, for every objective of the library.

An execution is a choice of each axis below. What it finds is held against the plain one (padded, whole, dense,
one process) of the same objectives and views; one start of a few processes serves any number of executions.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import reference
import tiny
import torch
from objective_cases import CASES, PAIR, STEPS, Case
from processes import free_ports, means, meeting, start_all
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from contrastive_text.core.batch import Batch
from contrastive_text.core.distributed import rank, split_as, sum_over_ranks, whole, world_size
from contrastive_text.core.random import RowRandom
from contrastive_text.core.types import NO_LABEL
from contrastive_text.encoders import TransformerEncoder, packing
from contrastive_text.losses import by_rows
from contrastive_text.losses.comparison import HIDDEN_ID
from contrastive_text.objectives import (
    Contrastive,
)
from contrastive_text.objectives.queue import Queue
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

ENTRIES = 100
"""Entries of a part of a streamed loss: there are several parts."""

MASK = 4
"""Id of the mask token; those of texts begin at 5."""


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
    if (execution := Execution(*names)) != execution.plain and (names[4] == "dense" or CASES[names[0]].streams)
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
    encoder = TransformerEncoder(
        dropout=0.0,
        layout=execution.layout,  # type: ignore[arg-type]  # one of them
        gradient_checkpointing=case.layers_anew and execution != execution.plain,
        **own,
    )
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
    text_ids[lacking] = HIDDEN_ID  # every third example lacks its hard negative
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
        around=torch.tensor([[1, 2]]).expand(rows, 2) if case.template else None,
        target=torch.randint(case.classes, (EXAMPLES,), generator=noise).double() if case.classes else None,
    )


def part_of(batch: Batch, examples: slice) -> Batch:
    """Returns some examples of a whole batch."""
    rows = torch.arange(len(batch)).reshape(len(batch.slots), -1)[:, examples].flatten()
    target = None if batch.target is None else batch.target[examples]
    return batch.split(rows).replace(target=target)


@dataclass
class Seen:
    """What happened in a step.

    Args:
        shapes: Of the token ids of each call of the network.
        masks: Whether each came with a mask of padding.
        padding: Places of padding in all of them.
        checkpoints: Parts whose activations were thrown away.
        layers: Calls of layers whose activations were.
        streamed: Parts of losses that were computed by rows, forward and backward.
    """

    shapes: list[tuple[int, ...]] = field(default_factory=list)
    masks: list[bool] = field(default_factory=list)
    padding: int = 0
    checkpoints: int = 0
    layers: int = 0
    streamed: int = 0


@contextmanager
def watched(module: ContrastiveModule) -> Iterator[Seen]:
    """Notes what happens in the block."""
    seen = Seen()

    def note(model: torch.nn.Module, args: object, inputs: dict[str, Any]) -> None:  # noqa: ARG001  # torch's signature; Any: the model's
        if "input_ids" not in inputs:
            return  # the head that predicts tokens passes by the encoder
        ids, mask = inputs["input_ids"], inputs.get("attention_mask")
        seen.shapes.append(tuple(ids.shape))
        seen.masks.append(mask is not None)
        seen.padding += 0 if mask is None else ids.numel() - int(mask.sum())

    handle = module.encoder.model.register_forward_pre_hook(note, with_kwargs=True)
    with (
        mock.patch.object(encoding, "checkpoint", wraps=encoding.checkpoint) as checkpoint,
        mock.patch.object(packing, "checkpoint", wraps=packing.checkpoint) as layers,
        mock.patch.object(by_rows, "_ENTRIES", ENTRIES),
        mock.patch.object(by_rows, "_logits", wraps=by_rows._logits) as softmax,
        mock.patch.object(by_rows, "checkpoint", wraps=by_rows.checkpoint) as some_rows,
    ):
        yield seen
    handle.remove()
    # Of the encoder: networks of objectives have groups of their own.
    seen.checkpoints = sum(call.args[0].func.__name__ == "encode" for call in checkpoint.call_args_list)
    seen.layers = layers.call_count
    seen.streamed = softmax.call_count + some_rows.call_count


@dataclass
class Found:
    """What an execution found.

    Args:
        loss: Of the first step, the mean over ranks, and with it all gradients that are logged.
        gradients: Of the first step, by parameter, means over ranks.
        start: Weights before the first step.
        weights: Weights after the last step.
        seen: What happened in the first step.
        read: Rows and tokens of this rank that were encoded.
        queued: Columns in the queue of the first comparison at the end.
    """

    loss: dict[str, Tensor]
    gradients: dict[str, Tensor]
    start: dict[str, Tensor]
    weights: dict[str, Tensor]
    seen: Seen
    read: tuple[int, int]
    queued: int


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
        tokens = int(read.lengths.sum())
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
            gradients = {name: whole(p.grad) for name, p in parameters.items() if p.grad is not None}
        else:
            gradients = mean_gradients(parameters)
        if found is None:
            figures = {"loss": sum_over_ranks(loss.detach()) / world_size()}
            figures |= {name: value for name, value in module.figures.items() if "gradient/" in name}
            copies = {name: value.clone() for name, value in gradients.items()}
            found = Found(figures, copies, start, {}, seen, (len(read), tokens), queued=0)
        for name, gradient in gradients.items():
            parameters[name].grad = split_as(gradient, parameters[name])
        optimizer.step()
        module.momentum.follow()
    assert found is not None
    found.weights = {name: whole(p.detach()) for name, p in parameters.items()}
    queues = [part for part in module.modules() if isinstance(part, Queue)]
    found.queued = sum(len(past["ids"]) for part in queues for past in part.get_extra_state().values())
    return found


class Outcome(NamedTuple):
    """How far an execution is from the plain one, on one rank.

    Args:
        loss: Largest difference of the losses of the first step and of logged gradients, relative to 1 or more.
        gradient: Largest difference of the gradients, relative to the largest gradient.
        weights: Largest difference of the weights after the last step.
        moved: How far the weights came.
        seen: What happened in the first step.
        read: Rows and tokens of this rank that were encoded.
        queued: Columns in queues at the end.
    """

    loss: float
    gradient: float
    weights: float
    moved: float
    seen: dict[str, Any]  # Any: a record as plain data, which torch loads
    read: tuple[int, int]
    queued: int


def distance(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    assert one.keys() == other.keys(), one.keys() ^ other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in other)


def compare(found: Found, plain: Found) -> Outcome:
    """Holds what an execution found against the plain one."""
    largest = max(float(value.abs().max()) for value in plain.gradients.values())
    assert largest > 1e-3
    assert distance(found.start, plain.start) == 0
    return Outcome(
        loss=distance(found.loss, plain.loss) / max(1.0, *(float(v.abs()) for v in plain.loss.values())),
        gradient=distance(found.gradients, plain.gradients) / largest,
        weights=distance(found.weights, plain.weights),
        moved=distance(found.start, found.weights),
        seen=vars(found.seen),
        read=found.read,
        queued=found.queued,
    )


@cache
def plainly(case: str, views: str) -> Found:
    """Returns what the plain execution of some objectives and views finds."""
    return execute(Execution(case, views, "padded", "whole", "dense", "one process"))


# D19: what two objectives weigh on four ranks


def effective_weights() -> dict[str, dict[str, float]]:
    """Returns how much of the whole batch's gradient each of two objectives has on four ranks.

    ``own`` gathers with this rank's gradient alone and takes means of ranks' means, as the authors' codes do.
    """
    case = replace(CASES["NTXent and masked tokens"], hidden=None)
    batch = batch_of(case, "no views", step=0)
    labels = torch.full_like(batch.ids, NO_LABEL)
    firsts = (batch.lengths.cumsum(0) - batch.lengths)[batch.by_role("original")]
    labels[firsts] = batch.ids[firsts]  # one for each example: all ranks have as many
    batch = batch.replace(labels=labels)
    module = module_of(
        Execution("NTXent and masked tokens", "no views", "packed", "whole", "dense", "one process")
    )
    weights = list(module.encoder.parameters())

    def gradient(loss: Tensor) -> Tensor:
        parts = torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True)
        flat = [torch.zeros_like(w) if g is None else g for w, g in zip(weights, parts, strict=True)]
        return torch.cat([g.flatten() for g in flat])

    # In evaluation mode nothing is gathered: that is the whole batch's gradient.
    module.eval()
    encoded = module.encode(batch)
    whole = {}
    for name, objective in module.objective_parts().items():
        terms = objective(encoded)
        whole[name] = gradient(terms.total / terms.count)
    module.train()
    share = EXAMPLES // world_size()
    encoded = module.encode(part_of(batch, slice(share * rank(), share * (rank() + 1))))
    anchors, positives = (reference.own_gradient_gather(encoded.role(r)[:, 0]) for r in ("anchor", "positive"))
    every = compared_ids(batch)
    contrastive = module.objective_parts()["c"]
    assert isinstance(contrastive, Contrastive)
    gathered = replace(encoded, embeddings=torch.cat([anchors, positives]), slots=PAIR, text_ids=every)
    mlm = module.objective_parts()["mlm"](encoded)
    contrastive.eval()
    terms = contrastive(gathered)
    contrastive.train()
    losses = {
        "own": {"c": terms.total / terms.count, "mlm": mlm.total / mlm.count},
        "ours": {name: module.objective_value(encoded, name)[0] for name in ("c", "mlm")},
    }
    weights_found: dict[str, dict[str, float]] = {}
    for way, each in losses.items():
        weights_found[way] = {}
        for name, loss in each.items():
            mean = sum_over_ranks(gradient(loss)) / world_size()
            factor = float(mean @ whole[name] / (whole[name] @ whole[name]))
            off = float((mean - factor * whole[name]).abs().max() / whole[name].abs().max())
            weights_found[way] |= {name: factor, f"{name} off": off}
    return weights_found


def compared_ids(batch: Batch) -> Tensor:
    """Returns the ids of the anchors and positives of a whole batch."""
    return torch.cat([batch.text_ids[batch.by_role(role)] for role in ("anchor", "positive")])


# Processes

Results = dict[Execution, list[Outcome]]


def work(number: int, ports: dict[int, int], folder: str, executions: list[tuple[str, ...]]) -> None:
    """One of four processes: a rank among four, three and two; those left over take what needs one process."""
    plain: dict[tuple[str, str], Found] = torch.load(Path(folder) / "plain.pt", weights_only=False)
    wanted = [Execution(*names) for names in executions]
    results: dict[Any, Any] = {}  # Any: by execution its outcome, and the weights of D19

    def each(chosen: list[Execution]) -> None:
        for execution in chosen:
            try:
                results[tuple(execution)] = tuple(
                    compare(execute(execution), plain[execution.case, execution.views])
                )
            except Exception as error:
                raise RuntimeError(f"{execution}, rank {rank()} of {world_size()}") from error

    for world in (4, 3, 2):
        if number < world:
            with meeting(number, world=world, port=ports[world]):
                if world == 4:
                    results["weights"] = effective_weights()
                else:
                    each([execution for execution in wanted if len(RANKS[execution.ranks]) == world])
    alone = [execution for execution in wanted if len(RANKS[execution.ranks]) == 1]
    if number >= 2:
        each(alone[number - 2 :: 2])
    torch.save(results, Path(folder) / f"{number}.pt")


def run_all(executions: Sequence[Execution], folder: Path) -> tuple[Results, list[dict[str, dict[str, float]]]]:
    """Runs executions in four processes; gives each one's outcome on every rank, and D19's weights."""
    names = dict.fromkeys((each.case, each.views) for each in executions)
    torch.save({each: plainly(*each) for each in names}, folder / "plain.pt")
    ports = dict(zip((4, 3, 2), free_ports(3), strict=True))
    start_all(work, 4, ports, str(folder), [tuple(each) for each in executions])
    found = [torch.load(folder / f"{number}.pt", weights_only=True) for number in range(4)]
    outcomes = {each: [Outcome(*f[tuple(each)]) for f in found if tuple(each) in f] for each in executions}
    return outcomes, [f["weights"] for f in found]
