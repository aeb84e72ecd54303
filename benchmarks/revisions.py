"""Measures encoding on one thread's calls by two revisions of the library, turn by turn, and their memory.

    git worktree add /tmp/before REVISION
    python benchmarks/revisions.py --before /tmp/before --data FOLDER

The folder has ``sts`` and ``documents``. Each revision has a process of its own for each kind of call: single
sentences, batches of 64 sentences, and paragraphs, for which weights are packed. ``--packed`` packs weights on a
processor that is slower with them, too. Memory is the highest above that of the loaded model.

A smoke run without data: ``--quick``.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import torch
from inputs import draw, encoder_name, installed_encoder, made_up_texts, sts_texts, tiny_encoder
from machines import machine
from runs import RESULTS, ROOT, markdown, publish
from runtimes import long_texts
from timing import Answer, Contender, Turn, parser, ratio_and_range, take_turns

REVISIONS = ("before", "after")


class Job(NamedTuple):
    """Calls of one revision.

    Args:
        source: Folder of the library.
        encoder: Folder of the model.
        backend: What runs the network.
        packed: Whether to pack weights on any processor.
        calls: Texts of each call.
    """

    source: str
    encoder: str
    backend: str
    packed: bool
    calls: list[list[str]]


def encode(job: Job, turn: Turn) -> None:
    """Encodes the texts of call after call with the library of a folder."""
    sys.path.insert(0, job.source)
    for name in [name for name in sys.modules if name.partition(".")[0] == "contrastive_text"]:
        del sys.modules[name]  # the parent's revision, which the scripts import
    import contrastive_text.core.machine

    assert Path(job.source) in Path(contrastive_text.__file__).parents, contrastive_text.__file__
    if job.packed:
        for name in ("has_fast_packed_layers", "has_fast_layers"):  # an older revision has the latter alone
            vars(contrastive_text.core.machine)[name] = lambda: True  # before the encoders import it
    model = contrastive_text.SentenceEncoder.from_pretrained(job.encoder, backend=job.backend, device="cpu")
    model.encode(job.calls[0])  # a graph is made by the first call
    turn.loaded()
    while True:
        for texts in job.calls:
            model.encode(texts)
            turn.ended_step(tokens=len(texts))


def measure(
    jobs: Mapping[tuple[str, str], Job], rounds: int, threads: int, repeats: int
) -> dict[tuple[str, str], list[Answer]]:
    """Returns the answers of each kind of call of each revision, round by round."""
    with ExitStack() as stack:
        contenders = {
            key: stack.enter_context(Contender(encode, job, threads, "cpu")) for key, job in jobs.items()
        }
        for key, contender in contenders.items():
            contender(len(jobs[key].calls))  # warms up
        answers = take_turns(
            {
                "|".join(key): lambda contender=contender, key=key: contender(repeats * len(jobs[key].calls))
                for key, contender in contenders.items()
            },
            rounds,
        )
    return {key: answers["|".join(key)] for key in jobs}


def calls_of(short: Sequence[str], long: Sequence[str]) -> dict[str, list[list[str]]]:
    """Returns the texts of each call, by the kind of call."""
    return {
        "one sentence": [[text] for text in short[:32]],
        "64 sentences": [list(short[:64])],
        f"{len(long)} paragraphs": [list(long)],
    }


def main() -> None:
    """Measures and writes the dated table."""
    own = parser(__doc__, rounds=9)
    own.add_argument("--before", type=Path, help="folder of the other revision; this one if left out")
    own.add_argument("--data", type=Path, help="folder with sts and documents")
    own.add_argument("--backend", choices=("torch", "onnx", "openvino"), default="torch")
    own.add_argument("--packed", action="store_true", help="pack weights on any processor")
    own.add_argument("--repeats", type=int, default=2, help="passes over the calls in a turn")
    options = own.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as made:
        if options.quick:
            options.rounds = min(options.rounds, 2)
            short = made_up_texts(64)
            long, encoder = [" ".join(short[:6])] * 16, tiny_encoder(Path(made), short)
        elif options.data is None:
            own.error("--data FOLDER is needed, or --quick")
        else:
            short, long = draw(sts_texts(options.data / "sts"), 64), long_texts(options.data, 16)
            encoder = options.encoder or installed_encoder()
        sources = dict(zip(REVISIONS, (str((options.before or ROOT).resolve()), str(ROOT)), strict=True))
        jobs = {
            (kind, revision): Job(source, encoder, options.backend, options.packed, calls)
            for kind, calls in calls_of(short, long).items()
            for revision, source in sources.items()
        }
        found = measure(jobs, options.rounds, options.threads, options.repeats)
    rows: list[dict[str, Any]] = []
    cells = []
    for kind in dict.fromkeys(kind for kind, _ in jobs):
        before, after = (found[kind, revision] for revision in REVISIONS)
        seconds = [[answer.seconds for answer in answers] for answers in (before, after)]
        memory = [max(answer.above for answer in answers) for answers in (before, after)]
        for revision, times, above in zip(REVISIONS, seconds, memory, strict=True):
            rows.append({"contender": revision, "kind": kind, "seconds": times, "memory": above})
        milliseconds = [
            1000 * statistics.median(each) / (options.repeats * len(jobs[kind, "after"].calls))
            for each in seconds
        ]
        cells.append(
            [
                kind,
                *(f"{each:.2f}" for each in milliseconds),
                ratio_and_range(seconds[0], seconds[1]),
                *(f"{each / 2**20:.1f}" for each in memory),
            ]
        )
    header = ["call", "before, ms", "after, ms", "after is faster by", "memory before, MiB", "memory after, MiB"]
    lines = [
        "# Encoding before and after a change",
        "",
        f"Encoder: {encoder_name(encoder)}, run by {options.backend}{', packed' if options.packed else ''}.",
        f"{machine(options.threads, 'cpu')}. {options.rounds} rounds, the revisions taking turns; ratios are",
        "medians of the rounds' ratios (lowest to highest). Written by `benchmarks/revisions.py`.",
        "",
        *markdown(header, cells),
    ]
    if options.quick and options.out is None:
        print("\n".join(lines))
        return
    what = "-".join(["revisions", options.backend, *(["packed"] if options.packed else [])])
    settings = vars(options) | {"before": "the other revision"}
    print(publish(what, lines, rows, settings, folder=options.out or RESULTS).name)


if __name__ == "__main__":
    main()
