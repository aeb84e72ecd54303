"""Measures forward and backward pass of NT-Xent, ours and others, at 128 to 65,536 rows of 384 features.

    python benchmarks/loss.py                       # on two threads
    python benchmarks/loss.py --device cuda --rows 1024 16384

Time: all forms take turns in one process, round by round; medians. Memory: the peak above the start of a fresh
process per form and size, its input and the gradient of it included. A form that would need more than the free
memory is left out: the dense forms hold some matrices of rows x rows, pytorch-metric-learning some that hold an
entry for every row, positive and negative. It is needed as well: pip install pytorch-metric-learning.
"""

from __future__ import annotations

import argparse
import datetime
import multiprocessing
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.nn.functional as F
from runs import publish
from torch import Tensor

from contrastive_text.losses import NTXent

FEATURES = 384
TEMPERATURE = 0.05
ROWS = (128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 65_536)
STREAMED_ONLY = 16_384
"""Rows above which only the streamed form is measured on a CPU."""
FORMS = ("automatic", "streamed", "dense", "plain", "pytorch-metric-learning")
MiB = 2**20

Loss = Callable[[Tensor, Tensor], Tensor]


def plain(anchor: Tensor, positive: Tensor) -> Tensor:
    """NT-Xent as one writes it by hand, for texts that all differ."""
    unit = F.normalize(torch.cat([anchor, positive]), dim=-1)
    logits = unit @ unit.T / TEMPERATURE
    logits.fill_diagonal_(-torch.inf)
    n = len(anchor)
    return F.cross_entropy(logits, torch.arange(2 * n, device=anchor.device).roll(n))


def metric_learning() -> Loss:
    """Returns pytorch-metric-learning's NTXentLoss on both sides, each pair a class of its own."""
    try:
        from pytorch_metric_learning.losses import NTXentLoss
    except ModuleNotFoundError as error:
        raise SystemExit("benchmarks/loss.py: pytorch-metric-learning is missing; pip install it") from error
    loss = NTXentLoss(temperature=TEMPERATURE)

    def value(anchor: Tensor, positive: Tensor) -> Tensor:
        pairs = torch.arange(len(anchor), device=anchor.device).repeat(2)
        result: Tensor = loss(torch.cat([anchor, positive]), pairs)
        return result

    return value


def make(form: str) -> Loss:
    """Returns a form by its name."""
    if form == "plain":
        return plain
    if form == "pytorch-metric-learning":
        return metric_learning()
    return NTXent(TEMPERATURE, streamed={"automatic": None, "streamed": True, "dense": False}[form])


def bytes_needed(form: str, rows: int) -> int:
    """Returns about how much a form holds at its peak."""
    vectors = 8 * rows * FEATURES * 4
    if form == "pytorch-metric-learning":
        return vectors + 16 * rows**3  # 24 s and 17 GB at 1,024 rows
    return vectors + (5 * rows**2 * 4 if form in ("dense", "plain") else 0)


def is_measured(form: str, rows: int, device: str) -> bool:
    """Whether a form takes part at a size."""
    if rows > STREAMED_ONLY and device == "cpu":
        return form == "streamed"
    free = psutil.virtual_memory().available if device == "cpu" else torch.cuda.mem_get_info()[0]
    return bytes_needed(form, rows) < 0.8 * free


def sides(rows: int, device: str) -> tuple[Tensor, Tensor]:
    """Returns anchors and positives, half of the rows each."""
    noise = torch.Generator().manual_seed(rows)
    anchor = torch.randn(rows // 2, FEATURES, generator=noise)
    positive = anchor + torch.randn(rows // 2, FEATURES, generator=noise)
    return anchor.to(device).requires_grad_(), positive.to(device).requires_grad_()


def step(loss: Loss, anchor: Tensor, positive: Tensor) -> None:
    """One forward and backward pass."""
    anchor.grad = positive.grad = None
    loss(anchor, positive).backward()
    if anchor.is_cuda:
        torch.cuda.synchronize()


def rounds_of(rows: int) -> int:
    """Returns the number of rounds: at least five, but for the largest sizes, whose passes take long."""
    if rows > STREAMED_ONLY:
        return 1
    return 3 if rows > 4096 else min(max(5, 2**24 // rows**2), 100)


def times(
    rows: int, device: str, rounds: int | None = None, forms: Sequence[str] = FORMS
) -> dict[str, list[float]]:
    """Returns the seconds of each form's rounds, the forms taking turns, after a round that doesn't count."""
    losses = {form: make(form) for form in forms if is_measured(form, rows, device)}
    anchor, positive = sides(rows, device)
    found: dict[str, list[float]] = {form: [] for form in losses}
    once = rows > STREAMED_ONLY and device == "cpu"  # such passes take long
    slow = set()  # one round is enough to know what takes a hundred times as long
    for turn in range((rounds or rounds_of(rows)) + (not once)):
        first = turn % len(losses)  # who comes after a form that fills the caches changes
        for form, loss in [*losses.items()][first:] + [*losses.items()][:first]:
            if form in slow and found[form]:
                continue
            begun = time.perf_counter()
            step(loss, anchor, positive)
            taken = time.perf_counter() - begun
            if taken > 10 and form == "pytorch-metric-learning":
                slow.add(form)
            if turn or once or form in slow:
                found[form].append(taken)
    return found


def peak(form: str, rows: int, device: str, pipe: Connection) -> None:
    """Sends the most memory that a pass takes above the start of it, in bytes; runs in a process of its own."""
    torch.set_num_threads(2)
    loss = make(form)
    step(loss, *sides(16, device))  # loads what is loaded once
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step(loss, *sides(rows, device))
        pipe.send(torch.cuda.max_memory_allocated() - before)
        return
    # Linux: sets the high-water mark back to what is held now; that of loading would hide a small pass.
    Path("/proc/self/clear_refs").write_text("5")
    before = high_water_mark()
    step(loss, *sides(rows, device))
    pipe.send(high_water_mark() - before)


def high_water_mark() -> int:
    """Returns the most memory that this process has held, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (kilobytes,) = (line.split()[1] for line in lines if line.startswith("VmHWM"))
    return int(kilobytes) * 1024


def peaks(rows: int, device: str) -> dict[str, int]:
    """Returns each form's peak memory in bytes."""
    fresh = multiprocessing.get_context("spawn")
    found = {}
    for form in FORMS:
        if not is_measured(form, rows, device):
            continue
        receiver, sender = fresh.Pipe(duplex=False)
        process = fresh.Process(target=peak, args=(form, rows, device, sender))
        process.start()
        sender.close()
        try:
            found[form] = int(receiver.recv())
        except EOFError:
            print(f"{form} at {rows} rows gave no peak: its process ended", flush=True)
        process.join()
    return found


def main() -> None:
    """Measures all and writes the dated table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    parser.add_argument("--rounds", type=int, help="of every size; by its size if left out")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dry", action="store_true", help="print only")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    metric_learning()  # refuses to start without it
    found: list[dict[str, Any]] = []
    for rows in options.rows:
        seconds, memory = times(rows, options.device, options.rounds), peaks(rows, options.device)
        for form, taken in seconds.items():
            found.append(
                {
                    "rows": rows,
                    "form": form,
                    "ms": statistics.median(taken) * 1000,
                    "fastest": min(taken) * 1000,
                    "slowest": max(taken) * 1000,
                    "rounds": len(taken),
                    "peak MB": memory.get(form, 0) / MiB,
                }
            )
            print(found[-1], flush=True)
    if not options.dry:
        write(found, options)


def write(found: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Writes the dated table and its JSON."""
    today = datetime.date.today().isoformat()
    suffix = "" if options.device == "cpu" else f"-{options.device}"
    where = f"CPU ({platform.machine()}), {options.threads} threads"
    if options.device == "cuda":
        where = torch.cuda.get_device_name()
    lines = [
        "# NT-Xent, forward and backward",
        "",
        f"{today}, torch {torch.__version__}, {where}, D = {FEATURES}, float32. Milliseconds: medians, the",
        "forms taking turns in one process; in brackets the number of rounds. MB: peak above the start of a",
        "fresh process, input and gradients included. Written by `benchmarks/loss.py`; each form's fastest and",
        "slowest round stands in the JSON.",
        "",
    ]
    for title, cell in (
        ("Milliseconds", lambda row: f"{row['ms']:,.1f} ({row['rounds']})"),
        ("Peak MB", lambda row: f"{row['peak MB']:,.0f}"),
    ):
        lines += [f"## {title}", "", f"| rows | {' | '.join(FORMS)} |", "| --- |" + " --- |" * len(FORMS)]
        for rows in options.rows:
            cells = {row["form"]: cell(row) for row in found if row["rows"] == rows}
            lines.append(f"| {rows:,} | {' | '.join(cells.get(form, '') for form in FORMS)} |")
        lines.append("")
    print(publish(f"loss{suffix}", lines[:-1], found, vars(options)).read_text())


if __name__ == "__main__":
    main()
