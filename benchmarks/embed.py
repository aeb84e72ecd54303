"""Measures the embed command over a long file: texts a second, peak memory, and what kills do to the bytes.

    python benchmarks/embed.py --data TEXTS --lines 1000000

The lines are the sentences of a file, again and again, each time with two neighboring words exchanged and the
number of the time after them, so that no line stands twice. The command runs as a process of its own: over a
fifth of the lines and over all, where the peaks of memory should be alike; then over all once more, killed
several times (SIGKILL) and started again each time, after which the output must have the same bytes.

Over a fifth of the lines the command and a plain loop over sentence-transformers' ``encode`` take turns,
``--rounds`` rounds: whole processes, from the file to the file of vectors.

Without ``--encoder`` the model is a random BERT of 2 layers and 32 features, made here: the figures are then
those of reading, tokenizing and writing. A smoke run without data: ``--quick``.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from inputs import encoder_name, made_up_texts, tiny_encoder
from machines import machine, needs, read_status
from runs import RESULTS, markdown, publish
from timing import parser, ratio_and_range, take_turns

_MIB = 2**20


PLAIN_LOOP = """
import sys
import numpy
from sentence_transformers import SentenceTransformer

texts, out, model, device = sys.argv[1:]
encoder, parts = SentenceTransformer(model, device=device), []
with open(texts, encoding="utf-8") as file:
    lines = [line.rstrip("\\n") for line in file]
for start in range(0, len(lines), 10_000):
    parts.append(encoder.encode(lines[start : start + 10_000], batch_size=64, show_progress_bar=False))
numpy.save(out, numpy.concatenate(parts))
"""
"""Script to embed texts without the command: all vectors are in memory, and a kill loses them."""


class Measured(NamedTuple):
    """One run of the command, or what a kill left of it.

    Args:
        seconds: Of the process, loading included.
        speed: Texts a second, as the command says it, without loading; 0 where it was killed.
        peak: Highest memory of the process, in bytes.
        size: Of the output, in bytes.
    """

    seconds: float
    speed: float
    peak: int
    size: int


def edited(sentence: str, time: int) -> str:
    """Returns a sentence as it stands the n-th time: two neighboring words exchanged, and the number after.

    Example:
        >>> edited("a bird sings here", 0), edited("a bird sings here", 5)
        ('a bird sings here 0', 'a bird here sings 5')
    """
    words = sentence.split()
    if time and len(words) > 1:
        at = time % (len(words) - 1)
        words[at : at + 2] = reversed(words[at : at + 2])
    return " ".join([*words, str(time)])


def write_lines(path: Path, sentences: Sequence[str], lines: int) -> None:
    """Writes so many lines, each another one."""
    every = (edited(sentence, time) for time in count() for sentence in sentences)
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{line}\n" for line in islice(every, lines))


def sentences_of(path: Path) -> list[str]:
    """Returns the distinct texts of a file."""
    from contrastive_text.data.files.readers import TextStream

    return list(dict.fromkeys(" ".join(text.split()) for text in TextStream(path)))


def run(words: Sequence[str], out: Path, options: Any, kill_at: int | None = None) -> Measured:  # Any: argparse's
    """Runs the command, and kills it when so many rows are on the disk.

    Raises:
        SystemExit: It failed.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads), "HF_HUB_OFFLINE": "1"}
    begun, peak = time.perf_counter(), 0
    process = subprocess.Popen(
        [sys.executable, *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    while process.poll() is None:
        peak = max(peak, peak_of(process.pid))
        if kill_at is not None and rows_in(out) >= kill_at:
            process.kill()
            break
        time.sleep(0.01)
    said, error = process.communicate()
    if process.returncode not in (0, -9):
        raise SystemExit(f"embed failed:\n{error}")
    found = re.search(r"\(([\d,]+) texts/s\)", said)
    speed = float(found[1].replace(",", "")) if found else 0.0
    return Measured(time.perf_counter() - begun, speed, peak, out.stat().st_size if out.exists() else 0)


def peak_of(process: int) -> int:
    """Returns the highest memory of a process so far, in bytes; 0 when it has ended."""
    try:
        return read_status(Path(f"/proc/{process}/status").read_text(), "VmHWM")
    except (FileNotFoundError, ProcessLookupError, StopIteration):
        return 0


def rows_in(out: Path) -> int:
    """Returns how many rows of an unfinished output are on the disk."""
    record = out.with_name(f"{out.name}.unfinished.json")
    return int(json.loads(record.read_text())["rows"]) if record.exists() else 0


def digest(path: Path) -> str:
    """Returns the SHA-256 of a file."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(_MIB):
            found.update(part)
    return found.hexdigest()


def command(texts: Path, out: Path, encoder: str, options: Any) -> list[str]:  # Any: argparse's
    """Returns the words of the command, after ``python``."""
    words = ["-m", "contrastive_text", "embed", str(texts), str(out), "--model", encoder]
    return [*words, "--device", options.device, "--block_size", str(options.block_size)]


def beside_a_loop(options: Any, folder: Path, encoder: str) -> dict[str, list[float]]:  # Any: as above
    """Returns the seconds of the command's and of a plain loop's turns.

    Raises:
        SystemExit: They give other vectors.
    """
    texts = folder / f"{options.lines // 5}.txt"
    outs = {name: folder / f"{name}.npy" for name in ("command", "loop")}
    words = {
        "command": command(texts, outs["command"], encoder, options),
        "loop": ["-c", PLAIN_LOOP, str(texts), str(outs["loop"]), encoder, options.device],
    }

    def turn(name: str) -> float:
        for path in folder.glob(f"{name}.npy*"):
            path.unlink()  # what is there would be taken up
        return run(words[name], outs[name], options).seconds

    found = take_turns({name: partial(turn, name) for name in words}, options.rounds)
    apart = float(abs(np.load(outs["command"]) - np.load(outs["loop"])).max())
    if not apart < 1e-4:  # both round in float32, in batches of other rows
        raise SystemExit(f"expected the same vectors of command and loop, got some that are {apart} apart")
    return found


def measure(
    options: Any, folder: Path, sentences: Sequence[str], encoder: str
) -> dict[str, Any]:  # Any: as above
    """Measures the three runs."""
    rows = []
    for lines in (options.lines // 5, options.lines):
        write_lines(folder / f"{lines}.txt", sentences, lines)
        out = folder / f"{lines}.npy"
        words = command(folder / f"{lines}.txt", out, encoder, options)
        measured = run(words, out, options)
        print(f"{lines:,} lines: {measured}", file=sys.stderr, flush=True)
        rows.append(
            {"lines": lines, "text bytes": (folder / f"{lines}.txt").stat().st_size, **measured._asdict()}
        )
    again = folder / "killed.npy"
    words = command(folder / f"{options.lines}.txt", again, encoder, options)
    draws, kept, seconds, peak = random.Random(0), [], 0.0, 0
    last = max(options.lines - 2 * options.block_size, 1)  # after it a run could end before it is killed
    for kill_at in [*sorted(draws.randint(1, last) for _ in range(options.kills)), None]:
        part = run(words, again, options, kill_at)
        seconds, peak = seconds + part.seconds, max(peak, part.peak)
        kept.append(rows_in(again))
        print(f"killed at {kill_at}: {kept[-1]:,} rows kept", file=sys.stderr, flush=True)
    same = digest(again) == digest(out)
    turns = beside_a_loop(options, folder, encoder) if options.rounds else {}
    return {
        "rows": rows,
        "loop": turns,
        "killed": {"kept": kept[:-1], "seconds": seconds, "peak": peak, "same bytes": same},
    }


def main() -> None:
    """Measures and writes the dated table."""
    own = parser(__doc__, rounds=3)
    own.add_argument("--data", type=Path, help="file whose texts the lines are made of")
    own.add_argument("--lines", type=int, default=1_000_000)
    own.add_argument("--kills", type=int, default=5)
    own.add_argument("--block_size", type=int, default=16_384)
    options = own.parse_args()
    if options.rounds:
        needs("sentence-transformers")
    torch.set_num_threads(options.threads)
    if options.quick:
        options.lines, options.kills, options.block_size = 4_000, 2, 200
    elif options.data is None:
        own.error("--data FILE is needed, or --quick")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        sentences = made_up_texts(400) if options.quick else sentences_of(options.data)
        encoder = options.encoder or tiny_encoder(folder, sentences[:10_000])
        found = measure(options, folder, sentences, encoder)
    named = encoder_name(encoder) if options.encoder else "a random BERT of 2 layers and 32 features"
    killed = found["killed"]
    kept = ", ".join(f"{rows:,}" for rows in killed["kept"])
    lines = [
        "# The embed command",
        "",
        f"Encoder: {named}. {machine(options.threads, options.device)}.",
        f"Lines: {len(sentences):,} sentences again and again with small edits. Blocks of {options.block_size:,}",
        "texts. Written by `benchmarks/embed.py`.",
        "",
        *markdown(
            ["lines", "text MiB", "vectors MiB", "seconds", "texts/s without loading", "peak MiB"],
            [
                [
                    f"{row['lines']:,}",
                    f"{row['text bytes'] / _MIB:.1f}",
                    f"{row['size'] / _MIB:.1f}",
                    f"{row['seconds']:.1f}",
                    f"{row['speed']:,.0f}",
                    f"{row['peak'] / _MIB:.0f}",
                ]
                for row in found["rows"]
            ],
        ),
        "",
        f"Killed {len(killed['kept'])} times and started again each time: {killed['seconds']:.1f} s in all, at",
        f"most {killed['peak'] / _MIB:.0f} MiB. Rows on the disk after each kill: {kept}.",
        f"The bytes are {'those of the run that nobody killed' if killed['same bytes'] else 'NOT the same'}.",
    ]
    if turns := found["loop"]:
        medians = {name: statistics.median(each) for name, each in turns.items()}
        lines += [
            "",
            f"Over {options.lines // 5:,} lines, {options.rounds} rounds in turns, whole processes: the command",
            f"takes {medians['command']:.1f} s, a plain loop over sentence-transformers' `encode`",
            f"{medians['loop']:.1f} s; it is faster by {ratio_and_range(turns['loop'], turns['command'])}.",
        ]
    if options.quick and options.out is None:
        print("\n".join(lines))
    else:
        print(publish("embed", lines, [found], vars(options), folder=options.out or RESULTS).name)
    if not killed["same bytes"]:
        raise SystemExit("the output of the killed runs differs")


if __name__ == "__main__":
    main()
