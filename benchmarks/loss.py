"""Times NT-Xent and InfoNCE, forward and backward, by tiles and whole, beside others; with their peaks of memory.

    python benchmarks/loss.py
    python benchmarks/loss.py --losses InfoNCE --rows 16384 --rounds 7
    python benchmarks/loss.py --device cuda --rows 1024 16384

Rows are texts of both sides, of 384 features: half as many pairs. Time: all forms take turns in one process.
Memory: the peak above the start of a fresh process per form and size, its input and their gradients included.
A form that would need more than the free memory is left out: the whole ones hold some matrices of cosines,
pytorch-metric-learning some that hold an entry for every row, positive and negative. A smoke run: ``--quick``.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import psutil
import torch
import torch.nn.functional as F
from gpu_work import peak_of
from machines import machine, needs, synchronize
from runs import RESULTS, markdown, publish
from timing import kept, parser, ratio_and_range, take_turns
from torch import Tensor, nn

from contrastive_text.losses import InfoNCE, NTXent

FEATURES = 384
TEMPERATURE = 0.05
ROWS = (128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 65_536)
STREAMED_ONLY = 16_384
"""Rows above which only the streamed form is measured on a CPU."""
STREAMED = {"automatic": None, "streamed": True, "dense": False}
"""Our forms, by the option of the losses; the rest is others'."""
PEERS = {"NT-Xent": "pytorch-metric-learning", "InfoNCE": "sentence-transformers"}

Loss = Callable[[Tensor, Tensor], Tensor]


def by_hand(name: str, anchor: Tensor, positive: Tensor) -> Tensor:
    """Returns a loss as one writes it for texts that all differ.

    Example:
        >>> anchor, positive = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[0.8, 0.6], [-0.6, 0.8]])
        >>> torch.allclose(by_hand("InfoNCE", anchor, positive), InfoNCE(TEMPERATURE)(anchor, positive))
        True
        >>> torch.allclose(by_hand("NT-Xent", anchor, positive), NTXent(TEMPERATURE)(anchor, positive))
        True
    """
    n = len(anchor)
    if name == "InfoNCE":
        logits = F.normalize(anchor, dim=-1) @ F.normalize(positive, dim=-1).T / TEMPERATURE
        return F.cross_entropy(logits, torch.arange(n, device=anchor.device))
    unit = F.normalize(torch.cat([anchor, positive]), dim=-1)
    logits = unit @ unit.T / TEMPERATURE
    logits.fill_diagonal_(-torch.inf)
    return F.cross_entropy(logits, torch.arange(2 * n, device=anchor.device).roll(n))


def metric_learning() -> Loss:
    """Returns pytorch-metric-learning's NTXentLoss on both sides, each pair a class of its own."""
    from pytorch_metric_learning.losses import NTXentLoss

    loss = NTXentLoss(temperature=TEMPERATURE)

    def value(anchor: Tensor, positive: Tensor) -> Tensor:
        pairs = torch.arange(len(anchor), device=anchor.device).repeat(2)
        result: Tensor = loss(torch.cat([anchor, positive]), pairs)
        return result

    return value


def sentence_transformers() -> Loss:
    """Returns sentence-transformers' MultipleNegativesRankingLoss of vectors that are there already."""
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    loss = MultipleNegativesRankingLoss(nn.Identity(), scale=1 / TEMPERATURE)

    def value(anchor: Tensor, positive: Tensor) -> Tensor:
        result: Tensor = loss.compute_loss_from_embeddings([anchor, positive], None)
        return result

    return value


def make(name: str, form: str) -> Loss:
    """Returns a form of a loss."""
    if form in STREAMED:
        return (NTXent if name == "NT-Xent" else InfoNCE)(TEMPERATURE, streamed=STREAMED[form])
    if form == "by hand":
        return partial(by_hand, name)
    return metric_learning() if name == "NT-Xent" else sentence_transformers()


def forms(name: str, rows: int, device: str) -> list[str]:
    """Returns those that take part at a size."""
    if rows > STREAMED_ONLY and device == "cpu":
        return ["streamed"]
    vectors, cosines = 8 * rows * FEATURES * 4, 4 * (rows if name == "NT-Xent" else rows // 2) ** 2
    needed = dict.fromkeys((*STREAMED, "by hand", PEERS[name]), vectors + 5 * cosines)
    needed["automatic"] = needed["streamed"] = vectors
    if name == "NT-Xent":
        needed[PEERS[name]] = vectors + 16 * rows**3  # 24 s and 17 GB at 1,024 rows
    free = psutil.virtual_memory().available if device == "cpu" else torch.cuda.mem_get_info()[0]
    return [form for form, size in needed.items() if size < 0.8 * free]


def sides(rows: int, device: str) -> tuple[Tensor, Tensor]:
    """Returns anchors and positives, half of the rows each."""
    noise = torch.Generator().manual_seed(rows)
    anchor = torch.randn(rows // 2, FEATURES, generator=noise)
    positive = anchor + torch.randn(rows // 2, FEATURES, generator=noise)
    return anchor.to(device).requires_grad_(), positive.to(device).requires_grad_()


def step(loss: Loss, anchor: Tensor, positive: Tensor) -> float:
    """Returns the seconds of a forward and a backward pass."""
    anchor.grad = positive.grad = None
    synchronize(anchor.device.type)
    begun = time.perf_counter()
    loss(anchor, positive).backward()
    synchronize(anchor.device.type)
    return time.perf_counter() - begun


def rounds_of(rows: int) -> int:
    """Returns the number of rounds: at least five, but for the largest sizes, whose passes take long.

    Example:
        >>> [rounds_of(rows) for rows in (128, 2048, 16_384, 65_536)]
        [100, 5, 3, 1]
    """
    if rows > STREAMED_ONLY:
        return 1
    return 3 if rows > 4096 else min(max(5, 2**24 // rows**2), 100)


def times(
    name: str, rows: int, device: str, rounds: int | None = None, wanted: Sequence[str] | None = None
) -> dict[str, list[float]]:
    """Returns the seconds of each form's rounds, after a step of each that doesn't count."""
    taking_part = [form for form in forms(name, rows, device) if wanted is None or form in wanted]
    pair = sides(rows, device)
    works = {form: partial(step, make(name, form), *pair) for form in taking_part}
    slow: dict[str, list[float]] = {}
    if rows <= STREAMED_ONLY or device != "cpu":  # beyond, a step takes a minute
        first = {form: work() for form, work in works.items()}
        # One that takes a hundred times as long, as pytorch-metric-learning may, has its one round behind it.
        slow = {form: [seconds] for form, seconds in first.items() if seconds > 10 and form not in STREAMED}
    steady = {form: work for form, work in works.items() if form not in slow}
    return take_turns(steady, rounds or rounds_of(rows)) | slow


def send_peak(name: str, form: str, rows: int, device: str, threads: int, pipe: Connection) -> None:
    """Sends the most memory that a pass takes above the start of it, in bytes; runs in a process of its own."""
    torch.set_num_threads(threads)
    loss = make(name, form)
    step(loss, *sides(16, device))  # loads what is loaded once
    pipe.send(peak_of(lambda: step(loss, *sides(rows, device)), device))


def fresh_peak(name: str, form: str, rows: int, device: str, threads: int) -> int:
    """Returns a form's peak of memory, in bytes."""
    fresh = multiprocessing.get_context("spawn")
    receiver, sender = fresh.Pipe(duplex=False)
    process = fresh.Process(target=send_peak, args=(name, form, rows, device, threads, sender))
    process.start()
    sender.close()
    try:
        return int(receiver.recv())
    except EOFError as error:
        raise SystemExit(f"expected a peak of {form} at {rows} rows, its process ended without one") from error
    finally:
        process.join()


def table(found: Sequence[Mapping[str, Any]]) -> list[str]:  # Any: of JSON
    """Returns a table of a loss: its forms, size by size, held against the automatic one."""
    cells = []
    for row in found:
        seconds = row["seconds"]
        of_ours = next(
            (each for each in found if each["rows"] == row["rows"] and each["form"] == "automatic"), row
        )
        comparable = row is not of_ours and len(of_ours["seconds"]) == len(seconds)
        milliseconds = [1e3 * each for each in (statistics.median(seconds), min(seconds), max(seconds))]
        cells.append(
            [
                f"{row['rows']:,}",
                str(row["form"]),
                "{:,.1f} ({:,.1f} to {:,.1f})".format(*milliseconds),
                str(len(seconds)),
                ratio_and_range(seconds, of_ours["seconds"]) if comparable else "",
                f"{row['peak'] / 2**20:,.0f}",
            ]
        )
    header = ["rows", "", "milliseconds (lowest to highest)", "rounds", "automatic is faster by", "peak MiB"]
    return markdown(header, cells)


def main() -> None:
    """Measures all and writes the dated table."""
    own = parser(__doc__)
    own.set_defaults(rounds=None)
    own.add_argument("--losses", choices=list(PEERS), nargs="+", default=list(PEERS))
    own.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    options = own.parse_args()
    needs(*(PEERS[name] for name in options.losses))
    if options.quick:
        options.rows = [64, 128]
    torch.set_num_threads(options.threads)
    device, threads = options.device, options.threads

    def measured(name: str, size: int) -> list[dict[str, Any]]:
        found = times(name, size, device, options.rounds)
        peaks = {form: fresh_peak(name, form, size, device, threads) for form in found}
        return [
            {"loss": name, "rows": size, "form": form, "seconds": found[form], "peak": peaks[form]}
            for form in found
        ]

    rows = []
    for name in options.losses:
        for size in options.rows:
            rows += kept(options.keep, f"{name}-{size}", partial(measured, name, size))
    lines = [
        "# Losses, forward and backward",
        "",
        f"{machine(threads, device)}. Vectors of {FEATURES} features, float32. Rows are texts of",
        "both sides, half as many pairs. Ratios are medians of the rounds' ratios (lowest to highest). The peak",
        "is that of a fresh process above its start, input and gradients included.",
        "Written by `benchmarks/loss.py`.",
    ]
    for name in options.losses:
        lines += ["", f"## {name}", "", *table([row for row in rows if row["loss"] == name])]
    if options.quick and options.out is None:
        print("\n".join(lines))
        return
    suffix = "" if device == "cpu" else f"-{device}"
    print(publish(f"loss{suffix}", lines, rows, vars(options), folder=options.out or RESULTS).name)


if __name__ == "__main__":
    main()
