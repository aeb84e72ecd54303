"""Times exact search of stored vectors beside faiss and sentence-transformers, in turns.

    python benchmarks/search.py

The nearest ten of 200,000 random unit vectors of 384 features, for 1 query and for 1,000: by vectors made ready
once (``UnitVectors``), by plain tensors, by faiss' ``IndexFlatIP`` and by sentence-transformers'
``semantic_search``. All must find what faiss finds. Indexes are made before the clock starts. A smoke run:
``--quick``.
"""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from machines import machine, needs, synchronize
from runs import RESULTS, markdown, publish
from timing import parser, ratio_and_range, take_turns
from torch import Tensor

from contrastive_text.inference.search import UnitVectors, top_k

Found = tuple[Tensor, Tensor]
HITS = 10
CLOSE = 1e-6
"""Largest difference of equal cosines that are rounded in another order, in float32."""
READY, PLAIN, FAISS, PEER = "ours, made ready", "ours, plain tensors", "faiss IndexFlatIP", "semantic_search"


def unlike(ours: Found, theirs: Found) -> int:
    """Returns how many scores differ, or ids where no neighbor has nearly that score; (Q, k) each.

    Example:
        >>> scores = torch.tensor([[0.9, 0.5, 0.5, 0.1]])
        >>> unlike((scores, torch.tensor([[4, 2, 3, 0]])), (scores, torch.tensor([[6, 3, 2, 0]])))
        1
    """
    scores, ids = (each.cpu() for each in ours)
    gaps = (theirs[0][:, 1:] - theirs[0][:, :-1]).abs() > CLOSE
    edge = gaps.new_ones(len(gaps), 1)
    # A vector like the last one may come after it.
    alone = torch.cat([edge, gaps], dim=1) & torch.cat([gaps, ~edge], dim=1)
    return int((((scores - theirs[0]).abs() > CLOSE) | ((ids != theirs[1]) & alone)).sum())


def of_lists(found: Sequence[Sequence[Mapping[str, Any]]]) -> Found:  # Any: a number of either kind
    """Returns scores and ids of what ``semantic_search`` gives.

    Example:
        >>> of_lists([[{"corpus_id": 3, "score": 0.5}]])
        (tensor([[0.5000]]), tensor([[3]]))
    """
    scores = [[hit["score"] for hit in row] for row in found]
    return torch.tensor(scores), torch.tensor([[hit["corpus_id"] for hit in row] for row in found])


def measured(ways: Mapping[str, Callable[[], Found]], rounds: int, device: str) -> dict[str, list[float]]:
    """Returns the seconds of every way, round by round.

    Raises:
        SystemExit: One that finds other vectors than faiss.
    """

    def turn(way: Callable[[], Found]) -> float:
        synchronize(device)
        begun = time.perf_counter()
        way()
        synchronize(device)
        return time.perf_counter() - begun

    found = {name: way() for name, way in ways.items()}  # not timed: memory is taken, threads start
    if apart := {name: number for name, hits in found.items() if (number := unlike(hits, found[FAISS]))}:
        raise SystemExit(f"expected the hits of faiss, got others: {apart}")
    return take_turns({name: partial(turn, way) for name, way in ways.items()}, rounds)


def main() -> None:
    """Measures, compares the hits, and writes the table."""
    own = parser(__doc__, rounds=11)
    own.add_argument("--count", type=int, default=200_000, help="of vectors")
    own.add_argument("--features", type=int, default=384)
    own.add_argument("--queries", type=int, nargs="+", default=[1, 1000])
    options = own.parse_args()
    needs("sentence-transformers", "faiss-cpu")
    from sentence_transformers.util import semantic_search

    faiss = importlib.import_module("faiss")  # which has no types
    if options.quick:
        options.count, options.rounds, options.queries = 3000, min(options.rounds, 2), [1, 20]
    torch.set_num_threads(options.threads)
    faiss.omp_set_num_threads(options.threads)
    torch.manual_seed(0)
    most = max(options.queries)
    vectors = torch.nn.functional.normalize(torch.randn(options.count + most, options.features))
    index = faiss.IndexFlatIP(options.features)
    index.add(vectors[most:].numpy())
    corpus = vectors[most:].to(options.device)
    ready = UnitVectors.of(corpus)

    def by_faiss(queries: Tensor) -> Found:
        scores, ids = index.search(queries.numpy(), HITS)
        return torch.from_numpy(scores), torch.from_numpy(ids)

    def by_peer(queries: Tensor) -> Found:
        return of_lists(semantic_search(queries, corpus, top_k=HITS))

    seconds = {}
    for number in options.queries:
        queries = vectors[:number].to(options.device)
        ways: dict[str, Callable[[], Found]] = {
            READY: partial(top_k, queries, ready, HITS),
            PLAIN: partial(top_k, queries, corpus, HITS),
            FAISS: partial(by_faiss, vectors[:number]),
            PEER: partial(by_peer, queries),
        }
        seconds[number] = measured(ways, options.rounds, options.device)
    cells = [
        [
            f"{number:,}",
            name,
            f"{1e3 * statistics.median(each):.1f} ({1e3 * min(each):.1f} to {1e3 * max(each):.1f})",
            "" if name in (READY, PLAIN) else ratio_and_range(each, ways_seconds[READY]),
        ]
        for number, ways_seconds in seconds.items()
        for name, each in ways_seconds.items()
    ]
    lines = [
        f"# Exact search in {options.count:,} vectors of {options.features} features",
        "",
        f"{machine(options.threads, options.device)}; faiss {faiss.__version__}, on the CPU.",
        f"The nearest {HITS} of random unit vectors; {options.rounds} rounds in turns, ratios are medians of the",
        "rounds' ratios (lowest to highest). All find the same, but for rounding.",
        "Written by `benchmarks/search.py`.",
        "",
        *markdown(["queries", "", "milliseconds (lowest to highest)", f"{READY}, is faster by"], cells),
    ]
    if options.quick and options.out is None:
        print("\n".join(lines))
        return
    rows = [
        {"queries": number, "way": name, "seconds": each}
        for number, ways_seconds in seconds.items()
        for name, each in ways_seconds.items()
    ]
    print(publish("search", lines, rows, vars(options), folder=options.out or RESULTS).name)


if __name__ == "__main__":
    main()
