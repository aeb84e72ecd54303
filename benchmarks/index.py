"""Times an index that grows: adds and removals next to a new build, search, and approximate search by faiss.

    python benchmarks/index.py

The index has 200,000 random unit vectors of 384 features, as the width of all-MiniLM-L6-v2, which encodes the
queries and the added texts. Each round adds 1,000 texts, removes 100 documents, and searches. After each change
the ids of all hits must equal exact search over the vectors that are left. A new build writes the same documents
with their vectors; the time to encode them is computed from the speed of the added texts. Searches also run in a
thread while documents are added. A smoke run: ``--quick``.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from inputs import encoder_name, installed_encoder, made_up_texts
from machines import machine, needs
from runs import RESULTS, markdown, publish
from timing import parser

from contrastive_text import SentenceEncoder
from contrastive_text.inference import Index, approximate, top_k
from contrastive_text.inference.index import facts_of
from contrastive_text.inference.index_documents import Document
from contrastive_text.inference.index_writer import create_folder

HITS = 10
QUERIES = 100


class Left(NamedTuple):
    """Documents that an index must find: ids, and vectors in the same order.

    Args:
        ids: Ids of the documents.
        vectors: Vectors, (N, D).
    """

    ids: list[str]
    vectors: torch.Tensor

    def without(self, ids: set[str]) -> Left:
        """Returns the documents that are left after a removal."""
        places = [place for place, name in enumerate(self.ids) if name not in ids]
        return Left([self.ids[place] for place in places], self.vectors[places])

    def nearest(self, queries: torch.Tensor) -> list[list[str]]:
        """Returns the ids of the nearest documents by exact search."""
        return [[self.ids[place] for place in row] for row in top_k(queries, self.vectors, HITS)[1].tolist()]


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Returns the seconds and the result of a function."""
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def build(folder: Path, model: SentenceEncoder, vectors: np.ndarray[Any, Any], kind: Any = None) -> float:
    """Writes an index of given vectors. Returns the seconds."""
    documents = (Document(str(number), f"document {number}") for number in range(len(vectors)))
    facts = facts_of(model, None, approximate=kind)
    return timed(lambda: create_folder(folder, facts, documents, [vectors]))[0]


def share_found(found: Sequence[Sequence[str]], exact: Sequence[Sequence[str]]) -> float:
    """Returns the share of the exact hits that are found.

    Example:
        >>> share_found([["a", "b"]], [["b", "c"]])
        0.5
    """
    shares = [len({*ids} & {*others}) / len(others) for ids, others in zip(found, exact, strict=True)]
    return sum(shares) / len(shares)


def ids_of(index: Index, queries: torch.Tensor) -> list[list[str]]:
    """Returns the ids of the hits of each query."""
    return [[hit.id for hit in hits] for hits in index.search_vectors(queries, HITS)]


def while_adding(index: Index, query: torch.Tensor, add: Callable[[], Any]) -> tuple[float, Any, list[float]]:
    """Returns the seconds and the result of an add, and the seconds of each search in a thread meanwhile."""
    stop, seconds = threading.Event(), list[float]()

    def search() -> None:
        with closing(Index.open(index.folder, index.model)) as reader:
            while not stop.is_set():
                seconds.append(timed(lambda: ids_of(reader, query))[0])

    thread = threading.Thread(target=search)
    thread.start()
    added, result = timed(add)
    stop.set()
    thread.join()
    return added, result, seconds


def grow(index: Index, left: Left, options: Any) -> dict[str, list[float]]:
    """Adds, removes and searches in rounds. Returns the seconds of each step.

    Raises:
        SystemExit: Hits that are not those of exact search.
    """
    seconds: dict[str, list[float]] = {}
    draw, all_texts = np.random.default_rng(1), made_up_texts(options.rounds * options.added)
    for number in range(options.rounds):
        texts = all_texts[number * options.added : (number + 1) * options.added]
        queries = torch.nn.functional.normalize(torch.randn(QUERIES, left.vectors.shape[1]))
        steps = {}
        steps["encode"], encoded = timed(lambda texts=texts: index.model.encode_document(texts))
        if number < options.rounds - 1:
            steps["add"], ids = timed(lambda texts=texts: index.add(texts))
        else:
            steps["add, while a thread searches"], ids, searches = while_adding(
                index, queries[:1], lambda texts=texts: index.add(texts)
            )
            seconds["search 1, while documents are added"] = searches
        left = Left([*left.ids, *ids], torch.cat([left.vectors, torch.as_tensor(encoded)]))
        gone = [left.ids[place] for place in draw.permutation(len(left.ids))[: options.removed]]
        steps["remove"], _ = timed(lambda gone=gone: index.remove(gone))
        left = left.without({*gone})
        steps["open"], reader = timed(lambda: Index.open(index.folder, index.model))
        with closing(reader):
            asked = torch.cat([queries, torch.as_tensor(index.model.encode_query(texts[:QUERIES]))])
            if ids_of(reader, asked) != left.nearest(asked) or reader.ids != left.ids:
                raise SystemExit(f"round {number}: expected the hits of exact search, got others")
            steps["search 1"], _ = timed(partial(ids_of, reader, queries[:1]))
            steps[f"search {QUERIES}"], _ = timed(partial(ids_of, reader, queries))
        for name, value in steps.items():
            seconds.setdefault(name, []).append(value)
    return seconds


def main() -> None:
    """Measures, compares the hits, and writes the tables."""
    own = parser(__doc__, rounds=6)
    own.add_argument("--count", type=int, default=200_000, help="of vectors")
    own.add_argument("--added", type=int, default=1000, help="of texts a round")
    own.add_argument("--removed", type=int, default=100, help="of documents a round")
    own.add_argument("--approximate", type=int, help="of vectors of the approximate indexes; all if left out")
    options = own.parse_args()
    needs("faiss-cpu")
    if options.quick:
        options.count, options.added, options.removed, options.rounds = 3000, 20, 10, 2
        approximate.APPROXIMATE_FROM = 1000
    options.approximate = min(options.approximate or options.count, options.count)
    torch.set_num_threads(options.threads)
    approximate.require("faiss", "benchmark").omp_set_num_threads(options.threads)
    torch.manual_seed(0)
    encoder = installed_encoder()
    model = SentenceEncoder.from_pretrained(encoder, device="cpu")
    vectors = torch.nn.functional.normalize(torch.randn(options.count, model.features))
    left = Left(list(map(str, range(options.count))), vectors)
    queries = torch.nn.functional.normalize(torch.randn(QUERIES, model.features))
    part = Left(left.ids[: options.approximate], vectors[: options.approximate])
    exact = part.nearest(queries)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place:
        built = [build(Path(place, f"exact-{number}"), model, vectors.numpy()) for number in range(2)]
        with closing(Index.open(Path(place, "exact-0"), model)) as index:
            seconds = grow(index, left, options)
        print({name: statistics.median(each) for name, each in seconds.items()}, built, flush=True)
        kinds = []
        for kind in ("hnsw", "ivf"):
            folder = Path(place, kind)
            took = build(folder, model, part.vectors.numpy(), kind)
            with closing(Index.open(folder, model)) as index:
                info = index.info()
                one = [
                    timed(lambda i=i, index=index: ids_of(index, queries[i : i + 1]))[0] for i in range(QUERIES)
                ]
                recall = share_found(ids_of(index, queries), exact)
                index.remove([ids[0] for ids in exact[:5]])
                added = index.add(["one more text"])
                is_valid = added[0] in {hit.id for hit in index.search("one more text", top_k=1)[0]}
                is_valid &= not {ids[0] for ids in exact[:5]} & {
                    name for ids in ids_of(index, queries) for name in ids
                }
            if not is_valid:
                raise SystemExit(f"{kind}: expected the documents that are left, got others")
            kinds.append(
                [
                    kind,
                    f"{took:.1f}",
                    f"{info['recall']:.3f}",
                    f"{recall:.3f}",
                    f"{1e3 * statistics.median(one):.1f}",
                ]
            )
            rows.append(
                {"kind": kind, "build": took, "recall_printed": info["recall"], "recall": recall, "search": one}
            )
    speed = options.added / statistics.median(seconds["encode"])
    rows += [{"step": name, "seconds": values} for name, values in seconds.items()]
    rows.append({"step": "build", "seconds": built})
    anew = options.count / speed + statistics.median(built)
    cells = [
        [
            name,
            f"{1e3 * statistics.median(each):,.0f} ({1e3 * min(each):,.0f} to {1e3 * max(each):,.0f})",
            str(len(each)),
        ]
        for name, each in [*seconds.items(), ("write a new index, vectors given", built)]
    ]
    lines = [
        f"# An index of {options.count:,} vectors of {model.features} features that grows",
        "",
        f"{machine(options.threads, 'cpu')}. Encoder: {encoder_name(encoder)}.",
        f"Each round adds {options.added:,} texts, removes {options.removed:,} documents, opens the index and",
        f"searches the nearest {HITS}. After each round the hits of {QUERIES} random vectors and of {QUERIES}",
        "texts, and the ids of the index, equal exact search over the vectors that are left. Other work ran on",
        "the machine meanwhile. Written by `benchmarks/index.py`.",
        "",
        *markdown(["", "milliseconds, median (lowest to highest)", "times"], cells),
        "",
        f"A new build takes {anew:,.0f} s with the encoding of all texts, computed at {speed:,.0f} texts/s, and",
        f"{statistics.median(built):.1f} s with given vectors. An add of {options.added:,} texts takes "
        f"{statistics.median(seconds['add']):.2f} s, {anew / statistics.median(seconds['add']):,.0f} times less.",
        "",
        f"Approximate search in {options.approximate:,} vectors. Random vectors have no",
        "clusters, which is the hardest case.",
        "",
        *markdown(["", "build, s", "recall@10 printed", "recall@10, new queries", "one query, ms"], kinds),
    ]
    if options.quick and options.out is None:
        print("\n".join(lines))
        return
    print(publish("index", lines, rows, vars(options), folder=options.out or RESULTS).name)


if __name__ == "__main__":
    main()
