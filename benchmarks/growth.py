"""Measures time and memory of training, embedding and search as the work grows, and fits exponents.

    python benchmarks/growth.py --sts FOLDER --sentences TEXTS.tsv

| work | size |
| --- | --- |
| training step in chunks | texts of the batch |
| ``contrastive-text embed`` | texts, by a random BERT of 2 layers: it reads and writes most of the time |
| ``mine``, ``near_duplicates`` | vectors, which are compared with each other exactly |
| faiss index (``ivf``) | vectors; the time to build it, and to search 1,000 queries |

Each size has a process of its own. Memory is the highest resident memory above what was in use when model or
vectors were loaded; for ``embed`` it is that of the whole process. An exponent is the slope of a least-squares
line through the logarithms: with 1 the cost grows as the work does, with 2 as its square.

A smoke run without data: ``--quick``.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import embed
import mining
import numpy as np
import torch
from inputs import draw, encoder_name, installed_encoder, made_up_texts, sts_texts, tiny_encoder
from machines import machine, needs
from runs import RESULTS, markdown, publish
from timing import Contender, Turn, kept, parser
from train_step import Job, train_ours, write_texts

from contrastive_text.inference import Mining, PairTexts, Space
from contrastive_text.inference.approximate import Graph
from contrastive_text.inference.duplicates import near_duplicates

FEATURES, CLUSTERS, QUERIES = 384, 1000, 1000
THRESHOLD = 0.95
"""Lowest cosine of near-duplicates; no two of the vectors here reach it."""
LENGTH, CHUNK = 32, 1024
"""Length limit of a training text and size of a chunk, in tokens."""
SIZES = {
    "training step in chunks": (64, 256, 1024, 4096),
    "embed": (10_000, 100_000, 1_000_000),
    "mine": (10_000, 20_000, 50_000, 100_000, 200_000),
    "near_duplicates": (10_000, 20_000, 50_000, 100_000, 200_000),
    "faiss index, built": (10_000, 100_000, 1_000_000),
    "faiss index, searched": (10_000, 100_000, 1_000_000),
}
LARGE = 100_000
"""Number of vectors whose work takes so long that its first round may count."""
QUICK = dict.fromkeys(SIZES, (200, 800)) | dict.fromkeys(list(SIZES)[-2:], (10_000, 12_000))
"""Sizes of a smoke run; a smaller faiss index isn't built."""


class Cost(NamedTuple):
    """Cost of a piece of work.

    Args:
        seconds: Of each round.
        memory: In bytes.
    """

    seconds: Sequence[float]
    memory: int


def vectors_of(count: int) -> torch.Tensor:
    """Returns vectors around random centers, (count, D), as vectors of texts about some topics."""
    noise = torch.Generator().manual_seed(0)
    centers = torch.randn(CLUSTERS, FEATURES, generator=noise)
    return centers[torch.randint(CLUSTERS, (count,), generator=noise)] + torch.randn(
        count, FEATURES, generator=noise
    )


def repeat(work: Callable[[], object], turn: Turn) -> None:
    """Does a piece of work as often as it is asked to."""
    turn.loaded()
    while True:
        work()
        turn.ended_step(0)


def mine(count: int, turn: Turn) -> None:
    """Mines three hard negatives of each of so many queries among as many texts."""
    texts = PairTexts((f"query {place}", f"positive {place}") for place in range(count))
    queries = vectors_of(count)
    space = Space(queries, queries + 0.1)
    repeat(partial(mining.ours, texts, space, Mining(3, range_max=40, same=None, short="keep")), turn)


def duplicates(count: int, turn: Turn) -> None:
    """Finds the near-duplicates among so many vectors."""
    repeat(partial(near_duplicates, vectors_of(count), THRESHOLD), turn)


def build(count: int, turn: Turn) -> None:
    """Builds the index of so many vectors."""
    repeat(partial(Graph.build, "ivf", "cosine", vectors_of(count).numpy()), turn)


def search(count: int, turn: Turn) -> None:
    """Searches the index of so many vectors."""
    vectors = vectors_of(count)
    graph = Graph.build("ivf", "cosine", vectors.numpy())
    assert graph is not None
    repeat(partial(graph.search, "cosine", vectors[:QUERIES] + 0.1, vectors.numpy(), 10), turn)


WORKS = {
    "mine": mine,
    "near_duplicates": duplicates,
    "faiss index, built": build,
    "faiss index, searched": search,
}


def repeated(
    work: Callable[[Any, Turn], object],  # Any: each work has its own job
    job: object,
    options: Any,  # Any: argparse's
) -> Cost:
    """Returns the cost of a piece of work in a process of its own.

    Of work below ``LARGE`` a first round doesn't count.
    """
    with Contender(work, job, options.threads, "cpu") as contender:
        if not isinstance(job, int) or job < LARGE:
            contender(1)
        answers = [contender(1) for _ in range(options.rounds)]
    return Cost([answer.seconds for answer in answers], max(answer.above for answer in answers))


def cost(
    name: str, size: int, options: Any, sentences: Sequence[str], encoder: str, tiny: str
) -> Cost:  # Any: argparse's
    """Returns the cost of a piece of work of a size."""
    if name in WORKS:
        return repeated(WORKS[name], size, options)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        if name == "embed":
            texts, out = folder / "texts.txt", folder / "vectors.npy"
            embed.write_lines(texts, sentences, size)
            words = ["-m", "contrastive_text", "embed", str(texts), str(out), "--model", tiny]
            measured = embed.run(words, out, options)
            return Cost([size / measured.speed], measured.peak)
        rows = size // 2
        texts = list(sentences) * (-(-rows * (options.rounds + 4) // len(sentences)))
        given, ordered = write_texts(folder, texts[: rows * (options.rounds + 4)], rows)
        job = Job(encoder, given, ordered, rows, LENGTH, "float32", "cpu", made, {"chunk_tokens": CHUNK})
        return repeated(train_ours, job, options)


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Returns the slope of the least-squares line through the logarithms.

    Example:
        >>> round(exponent([10, 100, 1000], [3, 300, 30_000]), 3)
        2.0
    """
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def main() -> None:
    """Measures every piece of work at every size and writes the dated table."""
    own = parser(__doc__, rounds=3)
    own.add_argument("--sts", type=Path, help="folder with sts*.tsv")
    own.add_argument("--sentences", type=Path, help="file of sentences, which embed reads")
    own.add_argument("--only", nargs="+", choices=tuple(SIZES), default=list(SIZES))
    options = own.parse_args()
    needs("faiss-cpu", "datasets", "sentence-transformers")
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as made:
        if options.quick:
            short = sentences = made_up_texts(2000)
        elif options.sts is None or options.sentences is None:
            own.error("--sts FOLDER and --sentences FILE are needed, or --quick")
        else:
            short, sentences = draw(sts_texts(options.sts), 10_000), embed.sentences_of(options.sentences)
        tiny = tiny_encoder(Path(made), sentences[:10_000])
        encoder = tiny if options.quick else options.encoder or installed_encoder()
        rows = []
        for name in options.only:
            texts = sentences if name == "embed" else short
            for size in (QUICK if options.quick else SIZES)[name]:

                def measured(
                    name: str = name, size: int = size, texts: Sequence[str] = texts
                ) -> list[dict[str, Any]]:
                    print(name, f"{size:,}", time.strftime("%H:%M:%S"), file=sys.stderr, flush=True)
                    found = cost(name, size, options, texts, encoder, tiny)
                    return [{"work": name, "size": size, **found._asdict()}]

                rows += kept(options.keep, f"{name}-{size}", measured)
    cells = []
    for name in options.only:
        own_rows = [row for row in rows if row["work"] == name]
        sizes = [row["size"] for row in own_rows]
        seconds = [statistics.median(row["seconds"]) for row in own_rows]
        memory = [max(row["memory"], 1) for row in own_rows]
        for place, row in enumerate(own_rows):
            fits = [""] * 3
            if place == len(own_rows) - 1:
                ends = exponent(sizes[-2:], seconds[-2:])
                fits = [f"{value:.2f}" for value in (exponent(sizes, seconds), ends, exponent(sizes, memory))]
            cells.append(
                [name, f"{row['size']:,}", f"{seconds[place]:.3g}", f"{memory[place] / 2**20:,.0f}", *fits]
            )
    lines = [
        "# Cost as the work grows",
        "",
        f"Encoder of the training step: {encoder_name(encoder)}. {machine(options.threads, 'cpu')}.",
        f"float32; training texts cut at {LENGTH} tokens, chunks of {CHUNK:,} tokens; {FEATURES} features around",
        f"{CLUSTERS:,} centers; searches of {QUERIES:,} queries.",
        f"Medians of {options.rounds} rounds after one that doesn't count; `embed` runs once.",
        "Exponents are fitted to all sizes, and to the two largest. Written by `benchmarks/growth.py`.",
        "",
        *markdown(
            ["work", "size", "seconds", "MiB", "exponent of time", "of the two largest", "of memory"], cells
        ),
    ]
    if options.quick and options.out is None:
        print("\n".join(lines))
        return
    print(publish("growth", lines, rows, vars(options), folder=options.out or RESULTS).name)


if __name__ == "__main__":
    main()
