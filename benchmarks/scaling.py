"""Measures one global batch on 1, 2 and 3 processes against a cost model, and extrapolates that to 1,024.

    python benchmarks/scaling.py --sts FOLDER

The processes are ranks of Lightning's DDP over gloo on 127.0.0.1 and share ``--threads`` (each has one at
least); the global batches are the same whatever their number. What they send is counted at ``torch.distributed``,
by way of a hook for the parameters' gradients too, and held against ``cost``. Dropout is off, for its masks
depend on the rank: the losses of all numbers of ranks must then be the same. Ranks of one machine share its
memory and processors: bytes, FLOPs and losses are what is tested, not the time.

A smoke run without data: ``python benchmarks/scaling.py --quick``.
"""

from __future__ import annotations

import math
import socket
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from inputs import (
    Shape,
    describe_lengths,
    draw,
    encoder_name,
    forward_flops,
    installed_encoder,
    lengths_of,
    made_up_texts,
    sts_texts,
    tiny_encoder,
)
from machines import STEADY, machine
from runs import RESULTS, markdown, publish
from timing import Answer, Contender, Turn, parser, ratio_and_range, take_turns
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.flop_counter import FlopCounterMode
from train_step import Job, fit_ours, write_texts

FLOAT, ID = 4, 8
"""Bytes of a number and of a text's id."""
ON_PAPER = (1, 2, 3, 8, 64, 256, 1024)
"""Ranks of the table that is computed."""
DDP_BUCKETS = 1
"""Copies of the gradients that DDP keeps to send them."""


class Cost(NamedTuple):
    """Cost of a training step for one rank.

    Args:
        gathered: Bytes of vectors and ids that it receives for the loss.
        summed: Bytes of the vectors' gradients that are summed over ranks.
        gradients: Bytes of the parameters' gradients that are summed over ranks.
        sent: Bytes that it sends where both sums go round a ring.
        loss_flops: Of the products of the loss, forward and backward.
        states: Bytes of gradients, AdamW's moments and DDP's buckets, beside the weights.
        loss_memory: Bytes of the gathered vectors, their gradients and a dense loss's logits.
    """

    gathered: int
    summed: int
    gradients: int
    sent: int
    loss_flops: int
    states: int
    loss_memory: int


def cost(ranks: int, pairs: int, features: int, parameters: int, streamed: bool = False) -> Cost:
    """Returns what a step of SimCSE with InfoNCE costs one of W ranks, on paper.

    N pairs in all, n = ceil(N / W) of each rank (the gather pads to the largest), D features, P parameters,
    float32:

    - gathered: ``(W - 1) n (2 * 4 D + 2 * 8)``: anchors, positives and an id of each;
    - summed: ``4 W n D``, the gradient of all positives, of which each rank receives its rows; an anchor is
      compared on its own rank alone (with NT-Xent everywhere: twice as many);
    - gradients: ``4 P``; sent: a ring sends ``(W - 1) / W`` of what is summed for its rows' rank, twice that of
      what is summed for all, and n rows ``W - 1`` times;
    - loss FLOPs: ``3 * 2 n N D``: one product forward, two backward; a streamed loss one more;
    - states: ``4 P`` gradients, ``8 P`` moments, ``4 P`` DDP's buckets where W > 1;
    - loss memory: ``2 * 2 * 4 N D`` vectors and their gradients, ``3 * 4 n N`` logits, their softmax and
      gradient, which a streamed loss doesn't hold.

    Args:
        ranks: W.
        pairs: N.
        features: D.
        parameters: P.
        streamed: Whether the loss is computed tile by tile.

    Example:
        >>> cost(ranks=2, pairs=8, features=4, parameters=100)[:5]
        (192, 128, 400, 656, 768)
    """
    own = math.ceil(pairs / ranks)
    rows = own * 2 * (FLOAT * features + ID)
    gathered = (ranks - 1) * rows
    summed = FLOAT * ranks * own * features if ranks > 1 else 0
    gradients = FLOAT * parameters if ranks > 1 else 0
    return Cost(
        gathered=gathered,
        summed=summed,
        gradients=gradients,
        sent=(ranks - 1) * rows + (ranks - 1) * (summed + 2 * gradients) // ranks,
        loss_flops=(4 if streamed else 3) * 2 * own * pairs * features,
        states=(3 + (DDP_BUCKETS if ranks > 1 else 0)) * FLOAT * parameters,
        loss_memory=2 * 2 * FLOAT * pairs * features + (0 if streamed else 3 * FLOAT * own * pairs),
    )


def count_collectives(counts: dict[str, int]) -> None:
    """Makes ``torch.distributed`` count what a rank receives of others and what is summed, in bytes."""
    gather, gather_one = dist.all_gather, dist.all_gather_single
    reduce, scatter = dist.all_reduce, dist.reduce_scatter_single

    def all_gather(parts: list[torch.Tensor], own: torch.Tensor, *rest: Any, **named: Any) -> Any:  # Any: torch's
        counts["gathered"] = counts.get("gathered", 0) + sum(part.nbytes for part in parts) - own.nbytes
        return gather(parts, own, *rest, **named)

    def all_gather_single(
        every: torch.Tensor, own: torch.Tensor, *rest: Any, **named: Any
    ) -> Any:  # Any: torch's
        counts["gathered"] = counts.get("gathered", 0) + every.nbytes - own.nbytes
        return gather_one(every, own, *rest, **named)

    def all_reduce(values: torch.Tensor, *rest: Any, **named: Any) -> Any:  # Any: torch's
        kind = "gradients" if named.get("async_op") else "figures"
        counts[kind] = counts.get(kind, 0) + values.nbytes
        return reduce(values, *rest, **named)

    def reduce_scatter_single(
        own: torch.Tensor, every: torch.Tensor, *rest: Any, **named: Any
    ) -> Any:  # Any: torch's
        counts["summed"] = counts.get("summed", 0) + every.nbytes
        return scatter(own, every, *rest, **named)

    dist.all_gather, dist.all_gather_single = all_gather, all_gather_single
    dist.all_reduce, dist.reduce_scatter_single = all_reduce, reduce_scatter_single


def train_rank(job: Job, turn: Turn) -> None:
    """Trains one of several ranks, whose number and meeting place the environment tells."""
    from pytorch_lightning.strategies import DDPStrategy

    count_collectives(turn.counts)

    class Counted(DDPStrategy):
        def configure_ddp(self) -> None:
            super().configure_ddp()
            assert isinstance(self.model, DistributedDataParallel)
            # DDP's own reduction, but through torch.distributed, where it is counted; Lightning registers none.
            self.model.register_comm_hook(None, allreduce_hook)

    def ended(trainer: Any, batch: Any) -> None:  # Any: Lightning's trainer and our batch
        turn.ended_step(batch.ids.numel(), loss=float(trainer.callback_metrics["train/loss"]))

    settings = dict(job.options)
    ranks = settings.pop("ranks")
    options: dict[str, Any] = {}
    if ranks > 1:
        options = {"strategy": Counted(process_group_backend="gloo")}
    fit_ours(job._replace(options={"dropout": 0.0, **settings}), turn, ended, devices=ranks, **options)


def start(
    ranks: int, job: Job, threads: int, stack: ExitStack, environment: Mapping[str, str]
) -> list[Contender]:
    """Starts the processes of a group."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(ranks), "NODE_RANK": "0"}
    own = job._replace(options={**job.options, "ranks": ranks})
    found = []
    for rank in range(ranks):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "GLOO_SOCKET_IFNAME": "lo"} if ranks > 1 else {}
        variables = {**environment, **(meeting if ranks > 1 else {}), **place}
        each = Contender(train_rank, own, max(threads // ranks, 1), "cpu", variables)
        found.append(stack.enter_context(each))
    return found


def counted_loss_flops(ranks: int, pairs: int, features: int) -> int:
    """Counts the FLOPs of the loss of the largest rank, forward and backward."""
    from contrastive_text.losses import Comparison, info_nce_terms

    own = math.ceil(pairs / ranks)
    rows, columns = (torch.randn(size, features, requires_grad=True) for size in (own, pairs))
    with FlopCounterMode(display=False) as counter:
        info_nce_terms(Comparison(rows, columns, torch.arange(own)), temperature=0.05).sum().backward()
    return counter.get_total_flops()


def together(ranks: Sequence[Contender], steps: int) -> list[Answer]:
    """Lets all ranks work off so many steps and gives their answers."""
    for rank in ranks:
        rank.begin(steps)
    return [rank.end() for rank in ranks]


def measure(options: Any, job: Job) -> list[dict[str, Any]]:  # Any: argparse's; figures
    """Returns a row for each number of ranks.

    Raises:
        SystemExit: Other tokens or other losses on other numbers of ranks.
    """
    above = {}
    for ranks in options.ranks:
        with ExitStack() as stack:
            group = start(ranks, job, options.threads, stack, STEADY)
            above[ranks] = max(answer.above for answer in together(group, 2))
    with ExitStack() as stack:
        works: dict[str, Callable[[], list[Answer]]] = {}
        for ranks in options.ranks:
            group = start(ranks, job, options.threads, stack, {})
            together(group, 1)
            works[str(ranks)] = partial(together, group, options.steps)
        found = take_turns(works, options.rounds)
    rows = []
    for ranks in options.ranks:
        rounds = found[str(ranks)]
        rows.append(
            {
                "ranks": ranks,
                "seconds": [max(answer.seconds for answer in each) for each in rounds],
                "tokens": [sum(answer.tokens for answer in each) for each in rounds],
                "losses": [loss for each in rounds for loss in each[0].losses],
                "bytes a step": {name: n / options.steps for name, n in rounds[0][0].counts.items()},
                "bytes above the model": above[ranks],
            }
        )
    for row in rows:
        if row["tokens"] != rows[0]["tokens"]:
            raise SystemExit(f"expected the same batches, got {row['tokens']} and {rows[0]['tokens']} tokens")
        if far(row["losses"], rows[0]["losses"]) > 1e-4:
            raise SystemExit(f"expected the same losses, got {row['losses']} and {rows[0]['losses']}")
    return rows


def far(one: Sequence[float], other: Sequence[float]) -> float:
    """Returns the greatest difference.

    Example:
        >>> far([1.0, 2.0], [1.0, 1.5])
        0.5
    """
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def measured_table(rows: Sequence[Mapping[str, Any]], pairs: int, features: int, parameters: int) -> list[str]:
    """Returns the table of measurement and model; activations are those of the fewest ranks, shared out."""
    fewest = rows[0]
    model = cost(fewest["ranks"], pairs, features, parameters)
    activations = fewest["ranks"] * (fewest["bytes above the model"] - model.states - model.loss_memory)
    lines = []
    for row in rows:
        paper, counted = cost(row["ranks"], pairs, features, parameters), row["bytes a step"]
        memory = paper.states + paper.loss_memory + activations / row["ranks"]
        lines.append(
            [
                str(row["ranks"]),
                f"{statistics.median(row['seconds']) / row['steps']:.2f}",
                ratio_and_range(row["seconds"], fewest["seconds"]),
                f"{counted.get('gathered', 0):,.0f} / {paper.gathered:,}",
                f"{counted.get('summed', 0):,.0f} / {paper.summed:,}",
                f"{counted.get('gradients', 0):,.0f} / {paper.gradients:,}",
                f"{counted.get('figures', 0):,.0f}",
                f"{counted_loss_flops(row['ranks'], pairs, features):,} / {paper.loss_flops:,}",
                f"{row['bytes above the model'] / 2**20:,.0f} / {memory / 2**20:,.0f}",
                f"{far(row['losses'], fewest['losses']):.1e}",
            ]
        )
    header = ["ranks", "s a step", "time", "bytes gathered", "summed back", "of gradients", "of figures"]
    return markdown([*header, "FLOPs of the loss", "MiB above the model", "loss differs by"], lines)


def paper_table(own: int, features: int, parameters: int, encoder_flops: float) -> list[str]:
    """Returns the table for up to 1,024 ranks with so many pairs each."""
    lines = []
    for ranks in ON_PAPER:
        dense, tiled = (cost(ranks, own * ranks, features, parameters, streamed=each) for each in (False, True))
        lines.append(
            [
                f"{ranks:,}",
                f"{own * ranks:,}",
                f"{dense.gathered / 1e6:,.2f}",
                f"{dense.summed / 1e6:,.2f}",
                f"{dense.gradients / 1e6:,.1f}",
                f"{dense.sent / 1e6:,.1f}",
                f"{dense.loss_flops / 1e9:,.2f}",
                f"{dense.loss_flops / encoder_flops:.2%}",
                f"{dense.loss_memory / 2**20:,.1f}",
                f"{tiled.loss_memory / 2**20:,.1f}",
            ]
        )
    header = ["ranks", "pairs in all", "MB gathered", "MB summed back", "MB of gradients", "MB sent, by rings"]
    header += ["GFLOPs of the loss", "of the encoder's", "MiB of the loss, dense", "MiB, streamed"]
    return markdown(header, lines)


def main() -> None:
    """Measures every number of ranks and writes the dated tables."""
    own = parser(__doc__)
    own.add_argument("--sts", type=Path, help="folder with sts*.tsv")
    own.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 3])
    own.add_argument("--rows", type=int, default=64, help="texts of a global step, each of them twice")
    own.add_argument("--steps", type=int, default=3, help="steps of a turn")
    own.add_argument("--max-length", type=int, default=32)
    options = own.parse_args()
    if options.device != "cpu":
        own.error("--device: expected cpu; ranks on GPUs need several of them")
    if options.quick:
        options.rows, options.steps, options.rounds = 8, 2, min(options.rounds, 2)
    count = options.rows * (3 + options.rounds * options.steps)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        if options.quick:
            texts = made_up_texts(count)
            encoder = tiny_encoder(folder, texts)
        elif options.sts is None:
            own.error("--sts FOLDER is needed, or --quick")
        else:
            texts, encoder = draw(sts_texts(options.sts), count), options.encoder or installed_encoder()
        given, ordered = write_texts(folder, texts, options.rows)
        job = Job(encoder, given, ordered, options.rows, options.max_length, "float32", "cpu", str(folder))
        rows = [{**row, "steps": options.steps} for row in measure(options, job)]
        lengths, shape = lengths_of(texts, encoder, options.max_length), Shape.of(encoder)
        parameters = trained_parameters(encoder)
    flops = 3 * 2 * forward_flops(shape, lengths) / len(texts) * options.rows
    lines = [
        "# Ranks",
        "",
        f"Encoder: {encoder_name(encoder)}, {parameters:,} parameters.",
        f"{machine(options.threads, 'cpu')}; the ranks share its threads. {options.rounds} rounds of",
        f"{options.steps} steps, the numbers of ranks taking turns. Written by `benchmarks/scaling.py`, whose",
        "`cost` has the formulas.",
        "",
        f"## {options.rows} pairs on {', '.join(map(str, options.ranks))} gloo ranks, measured / on paper",
        "",
        *measured_table(rows, options.rows, shape.features, parameters),
        "",
        "Bytes are of one rank and step; of figures: sums of counts and logged values. Memory: the highest of",
        "the ranks, measured as by `benchmarks/memory.py`; on paper the activations are those of the first row,",
        "shared out, and all else the formulas'. The loss: greatest difference in",
        f"{options.rounds * options.steps} steps of training. Texts: {describe_lengths(lengths, options.rows)};",
        "dropout 0.",
        "",
        f"## On paper: {options.rows} pairs of each rank",
        "",
        *paper_table(options.rows, shape.features, parameters, flops),
        "",
        f"The encoder's FLOPs are 3 x those of the forward pass of {2 * options.rows} texts like these,",
        f"{flops / 1e9:,.0f} GFLOPs. Beside them a rank holds weights, gradients and AdamW's moments,",
        f"{16 * parameters / 2**20:,.0f} MiB, and DDP's buckets, {4 * parameters / 2**20:,.0f} MiB.",
    ]
    if options.quick and options.out is None:
        print("\n".join(lines))
        return
    print(publish("scaling", lines, rows, vars(options), folder=options.out or RESULTS).name)


def trained_parameters(encoder: str) -> int:
    """Returns the number of parameters that are trained."""
    from contrastive_text.encoders import TransformerEncoder

    return sum(each.numel() for each in TransformerEncoder(encoder).parameters() if each.requires_grad)


if __name__ == "__main__":
    main()
