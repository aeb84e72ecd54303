"""Measures memory and time of a training step against the batch: whole, in chunks, the peer's cached loss.

    python benchmarks/memory.py --sts FOLDER

Memory: a fresh process for each contender and batch size trains two steps; its figure is the highest resident
memory above what was in use when model, data and trainer stood ready, hence with gradients and AdamW's moments
(three times the weights, the same for all) and whatever the loop needs. Those processes make glibc return freed
memory at once (``machines.STEADY``), or the highest mark would count what lies unused. Time: other processes,
without that setting, the contenders taking turns. On a GPU memory is what tensors hold.

The peer's mini-batch times ``--max-length`` is our chunk. A smoke run without data: ``--quick``. One batch size
alone: ``--batches 2048``; with ``--keep FOLDER`` finished batch sizes aren't measured again.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from inputs import (
    describe_lengths,
    draw,
    encoder_name,
    installed_encoder,
    lengths_of,
    made_up_texts,
    sts_texts,
    tiny_encoder,
)
from machines import STEADY, machine, needs
from runs import RESULTS, markdown, publish
from timing import Answer, Contender, Turn, kept, parser, ratio_and_range, take_turns
from train_step import DTYPES, Job, train_ours, train_theirs, write_texts

WORKS: dict[str, Callable[[Job, Turn], None]] = {
    "ours, whole": train_ours,
    "ours, in chunks": train_ours,
    "sentence-transformers": train_theirs,
    "sentence-transformers, cached": train_theirs,
}
CHUNKED = ("ours, in chunks", "sentence-transformers, cached")
TWICE = 2
"""Steps of the processes whose memory is measured: the second one finds AdamW's moments in place."""


def settings(name: str, options: Any) -> dict[str, Any]:  # Any: argparse's; each contender has its own
    """Returns the settings of a contender."""
    if name == "ours, in chunks":
        return {"chunk_tokens": options.chunk_tokens}
    if name == "sentence-transformers, cached":
        return {"mini_batch": max(options.chunk_tokens // options.max_length, 1)}
    return {}


def measure(
    batch: int, options: Any, texts: Sequence[str], encoder: str
) -> list[dict[str, Any]]:  # Any: argparse's
    """Returns a row for each contender at a batch of so many texts, half of them distinct."""
    rows = batch // 2
    fits = [name for name in WORKS if name in CHUNKED or batch <= options.whole_up_to]
    wanted = [name for name in fits if name in options.only]
    with tempfile.TemporaryDirectory() as made, ExitStack() as stack:
        folder = Path(made)
        own = texts[: rows * (2 + max(TWICE, 1 + options.rounds))]
        given, ordered = write_texts(folder, own, rows)
        job = Job(
            encoder, given, ordered, rows, options.max_length, options.precision, options.device, str(folder)
        )
        above: dict[str, int] = {}
        for name in wanted:
            each = job._replace(options=settings(name, options))
            with Contender(WORKS[name], each, options.threads, options.device, STEADY) as contender:
                above[name] = contender(TWICE).above
        timed: dict[str, list[Answer]] = {}
        if options.rounds:
            works: dict[str, Callable[[], Answer]] = {}
            for name in wanted:
                each = job._replace(options=settings(name, options))
                contender = stack.enter_context(Contender(WORKS[name], each, options.threads, options.device))
                contender(1)
                works[name] = partial(contender, 1)
            timed = take_turns(works, options.rounds)
        return [
            {
                "texts": batch,
                "contender": name,
                "bytes above the model": above[name],
                "seconds": [answer.seconds for answer in timed.get(name, [])],
                "tokens": [answer.tokens for answer in timed.get(name, [])],
            }
            for name in wanted
        ]


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:  # Any: figures and names
    """Returns the table of all rows."""
    at = {(row["texts"], row["contender"]): row for row in rows}
    smallest = min((row["texts"] for row in rows), default=0)
    lines = []
    for row in rows:
        first = at.get((smallest, row["contender"]))
        beside = [at.get((row["texts"], name)) for name in ("ours, whole", "ours, in chunks")]
        growth = "" if first is None else f"{row['bytes above the model'] / first['bytes above the model']:.2f}"
        per_text = f"{statistics.median(row['seconds']) / row['texts'] * 1e3:.2f}" if row["seconds"] else ""
        ratios = [
            "" if other is None or not row["seconds"] else ratio_and_range(row["seconds"], other["seconds"])
            for other in beside
        ]
        memory = f"{row['bytes above the model'] / 2**20:,.0f}"
        lines.append([f"{row['texts']:,}", row["contender"], memory, growth, per_text, *ratios])
    header = ["texts", "contender", "MiB above the model", f"of that at {smallest:,} texts", "ms a text"]
    return markdown([*header, "time, of ours whole", "time, of ours in chunks"], lines)


def main() -> None:
    """Measures every batch size and writes the dated table."""
    own = parser(__doc__, rounds=5)
    own.add_argument("--sts", type=Path, help="folder with sts*.tsv")
    own.add_argument("--batches", type=int, nargs="+", default=[256, 512, 1024, 2048], help="texts of a step")
    own.add_argument("--whole-up-to", type=int, default=2048, help="largest batch that is also tried whole")
    own.add_argument("--chunk-tokens", type=int, default=1024)
    own.add_argument("--max-length", type=int, default=32)
    own.add_argument("--precision", choices=tuple(DTYPES), default="float32")
    own.add_argument("--only", nargs="+", choices=tuple(WORKS), default=list(WORKS), help="contenders")
    options = own.parse_args()
    needs("sentence-transformers", "accelerate", "datasets")
    if options.quick:
        options.batches, options.rounds, options.chunk_tokens = [16, 32], min(options.rounds, 2), 64
    count = max(options.batches) // 2 * (2 + max(TWICE, 1 + options.rounds))
    with tempfile.TemporaryDirectory() as made:
        if options.quick:
            texts = made_up_texts(count)
            encoder = tiny_encoder(Path(made), texts)
        elif options.sts is None:
            own.error("--sts FOLDER is needed, or --quick")
        else:
            texts, encoder = draw(sts_texts(options.sts), count), options.encoder or installed_encoder()
        lengths = lengths_of(texts, encoder, options.max_length)
        rows: list[dict[str, Any]] = []
        for batch in options.batches:
            rows += kept(options.keep, str(batch), partial(measure, batch, options, texts, encoder))
            print("\n".join(table(rows)), flush=True)
    small = settings("sentence-transformers, cached", options)["mini_batch"]
    source = "made-up texts" if options.quick else "sentences of STS12, 14, 15 and STS-B"
    lines = [
        "# Memory of a training step against the batch",
        "",
        f"Encoder: {encoder_name(encoder)}. {machine(options.threads, options.device)}.",
        f"{options.precision}, texts cut at {options.max_length} tokens, chunks of {options.chunk_tokens:,}",
        f"tokens, the peer's mini-batches of {small} texts. {options.rounds} rounds of a step, the contenders",
        "taking turns; ratios are medians of the rounds' ratios (lowest to highest). Written by",
        "`benchmarks/memory.py`.",
        "",
        *table(rows),
        "",
        f"Distinct {source}, each twice in its step: {describe_lengths(lengths, min(options.batches) // 2)}.",
        "",
        "MiB above the model: the highest resident memory of a process of its own in two steps, above what was",
        "in use when model, data and trainer stood ready: gradients, AdamW's moments, activations, all else.",
        f"There glibc was made to return freed memory at once: {', '.join(map('='.join, STEADY.items()))}.",
        "Times are from processes without that.",
    ]
    if options.quick and options.out is None:
        print("\n".join(lines))
        return
    print(publish("memory", lines, rows, vars(options), folder=options.out or RESULTS).name)


if __name__ == "__main__":
    main()
