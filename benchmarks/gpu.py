"""Measures on one GPU, in nine minutes, what other benchmarks measure on a CPU, and whether results hold there.

    python benchmarks/gpu.py

Each part is a process of its own with a share of the time (``--minutes``); what one leaves, the later ones have.
One that fails or runs out of time takes no other down: the table names the pieces that did not run, and why.
Weights are random and texts made up: nothing is downloaded. sentence-transformers is measured beside where it is
installed. Some parts alone: ``--parts gradients resume``. To try them without a GPU: ``--device cpu --quick``.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import torch
from gpu_work import Pieces, Row, Setting
from machines import machine
from runs import RESULTS, markdown, publish


class Part(NamedTuple):
    """A part: where its function stands, which gives the pieces, and its share of the time.

    Args:
        place: Module and name of the function.
        share: Weight of its seconds.
        about: Its title in the table.
    """

    place: str
    share: int
    about: str


PARTS = {
    "products": Part("gpu_speed.products", 30, "Speed of a large product"),
    "gradients": Part("gpu_exact.gradients", 40, "One gradient"),
    "resume": Part("gpu_exact.resumed", 60, "Killed and resumed"),
    "nccl": Part("gpu_exact.collectives", 30, "NCCL, one process"),
    "loss": Part("gpu_speed.losses", 30, "NT-Xent, forward and backward"),
    "chunks": Part("gpu_speed.chunks", 40, "Memory by `chunk_tokens`, BERT-base"),
    "compiled": Part("gpu_speed.compiled", 50, "Compiled blocks, MiniLM-L6"),
    "encode": Part("gpu_speed.encoding", 60, "Encoding, MiniLM-L6"),
    "step": Part("gpu_speed.steps", 180, "Training step"),
}
"""In the order in which they run: what tells whether results hold comes first."""
NOT_RUN = "not run"


def pieces_of(name: str, setting: Setting) -> Pieces:
    """Returns the pieces of a part."""
    module, _, function = PARTS[name].place.rpartition(".")
    made: Callable[[Setting], Pieces] = getattr(importlib.import_module(module), function)
    return made(setting)


def work_off(pieces: Pieces) -> Iterator[Row]:
    """Yields the names of all pieces, and then a row of each; an error is one too.

    Example:
        >>> list(work_off({"half": lambda: {"said": str(1 / 2)}, "none": lambda: {"said": str(1 / 0)}}))[1:]
        [{'piece': 'half', 'said': '0.5'}, {'piece': 'none', 'error': 'ZeroDivisionError: division by zero'}]
    """
    yield {"pieces": list(pieces)}
    for name, work in pieces.items():
        try:
            yield {"piece": name, **work()}
        except (
            Exception,
            SystemExit,
        ) as error:  # a contender that fails ends the script, which one piece mustn't
            traceback.print_exc()
            yield {"piece": name, "error": in_a_line(error)}


def in_a_line(error: BaseException) -> str:
    """Returns what an error says last, as a traceback within it does, without bars, which would end a cell."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    last = lines[-1] if "Traceback" in str(error) else lines[0]
    return f"{type(error).__name__}: {last[:200].replace('|', '/')}"


def run_part(name: str, setting: Setting, seconds: float) -> list[Row]:
    """Runs a part in a process of its own for so long at the most; gives a row for each piece."""
    lines, seconds = setting.folder / f"{name}.jsonl", max(seconds, 0.0)
    words = ["--part", name, "--folder", str(setting.folder), "--device", setting.device]
    words += ["--threads", str(setting.threads), "--rounds", str(setting.rounds)]
    process = subprocess.Popen(
        [sys.executable, __file__, *words, *(["--quick"] if setting.quick else [])],
        start_new_session=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    try:
        process.wait(timeout=seconds)
        why = f"its process ended with status {process.returncode}"
    except subprocess.TimeoutExpired:
        why = f"the {seconds:.0f} s for this part were over"
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # its contenders too
    process.wait()
    first, *found = [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else [{}]
    missing = [piece for piece in first.get("pieces", ["all"]) if piece not in {row["piece"] for row in found}]
    return [*found, *({"piece": piece, "error": f"{NOT_RUN}: {why}"} for piece in missing)]


def write_part(name: str, setting: Setting) -> None:
    """Works off a part and writes a line for each piece as soon as it has ended."""
    torch.set_num_threads(setting.threads)
    with (setting.folder / f"{name}.jsonl").open("w") as file:
        for row in work_off(pieces_of(name, setting)):
            file.write(f"{json.dumps(row)}\n")
            file.flush()


def where(device: str, threads: int) -> str:
    """Returns device, memory, driver and versions."""
    said = f"{machine(threads, device)}; Python {sys.version.split()[0]}"
    if device == "cuda":
        told = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        try:
            driver = subprocess.run(told, capture_output=True, text=True, timeout=20).stdout.split("\n")[0]
        except (OSError, subprocess.TimeoutExpired):
            driver = "unknown"
        memory = torch.cuda.get_device_properties(0).total_memory / 2**30
        nccl = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]  # torch's
        said += f"; {memory:.0f} GiB, {os.cpu_count()} cores, driver {driver}, CUDA {torch.version.cuda}, "
        said += f"cuDNN {torch.backends.cudnn.version()}, NCCL {nccl}"
    return said


def report(found: dict[str, list[Row]], said: str, minutes: float) -> list[str]:
    """Returns the lines of the result."""
    lines = ["# One GPU", "", f"{said}.", ""]
    lines += [
        f"{minutes:.1f} minutes in all. Random weights, made-up texts. Ratios are medians of rounds in which the",
        "contenders take turns (lowest to highest). FLOPs are those of products of tokens without padding, three",
        "times those of the forward pass for a step (`inputs.forward_flops`). Written by `benchmarks/gpu.py`.",
    ]
    for name, rows in found.items():
        cells = [[row["piece"], row.get("said") or row["error"]] for row in rows]
        lines += ["", f"## {PARTS[name].about}", "", *markdown(["", "found"], cells)]
    return lines


def measure(names: Sequence[str], setting: Setting, seconds: float) -> dict[str, list[Row]]:
    """Runs the parts one after the other, each until its share of the time and of what was left is over."""
    begun = time.monotonic()
    shares = [PARTS[name].share for name in names]
    ends = [begun + seconds * share / sum(shares) for share in accumulate(shares)]
    found = {}
    for name, end in zip(names, ends, strict=True):
        print(f"{name}: until {end - begun:.0f} s of {seconds:.0f}", file=sys.stderr, flush=True)
        found[name] = run_part(name, setting, end - time.monotonic())
    return found


def main() -> None:
    """Runs all parts and writes the dated table."""
    own = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    own.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    own.add_argument("--quick", action="store_true", help="a smoke run: all is tiny")
    own.add_argument("--minutes", type=float, default=8.7, help="for all parts together")
    own.add_argument("--parts", nargs="+", choices=tuple(PARTS), default=list(PARTS))
    own.add_argument("--rounds", type=int, default=3)
    own.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    own.add_argument("--out", type=Path, help="folder of the result; benchmarks/results if left out")
    for hidden in ("--part", "--folder"):
        own.add_argument(hidden, help=argparse.SUPPRESS)
    options = own.parse_args()
    if options.device == "cpu" and not options.quick:
        own.error("--device cpu: expected --quick beside it; a processor has its own benchmarks")
    if options.part:
        place = Path(options.folder)
        write_part(options.part, Setting(options.device, options.quick, place, options.threads, options.rounds))
        return
    if options.device == "cuda" and not torch.cuda.is_available():
        own.error("expected a CUDA device, found none; --device cpu --quick tries the parts")
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made:  # a part may have been killed
        setting = Setting(options.device, options.quick, Path(made), options.threads, options.rounds)
        found = measure(options.parts, setting, 60 * options.minutes)
    lines = report(found, where(options.device, options.threads), (time.monotonic() - begun) / 60)
    print("\n".join(lines))
    if not options.quick or options.out is not None:
        rows: list[dict[str, Any]] = [  # Any: as in Row
            {"part": name, **row} for name, part in found.items() for row in part
        ]
        said = {name: each for name, each in vars(options).items() if name not in ("part", "folder")}
        print(publish("gpu", lines, rows, said, folder=options.out or RESULTS).name)


if __name__ == "__main__":
    main()
