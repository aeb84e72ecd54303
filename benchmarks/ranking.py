"""Times ranking by given vectors: ours beside sentence-transformers' ``InformationRetrievalEvaluator``.

    python benchmarks/ranking.py

Both get the same vectors of queries and documents and take turns; what is timed is similarities, the best 100 of
each query, and all figures. Vectors are of signs, so that many documents tie. The figures must agree to 1e-6. A
smoke run: ``--quick``.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from machines import machine, needs
from runs import RESULTS, markdown, publish
from timing import parser, ratio_and_range, take_turns
from torch import Tensor

from contrastive_text.data import RetrievalSet
from contrastive_text.inference import retrieval_scores
from contrastive_text.metrics import RETRIEVAL_METRICS

SIZES = ((50, 5_000), (500, 50_000), (1_000, 100_000))
"""Queries and documents: those of a set of NanoBEIR, and of middling ones of BEIR."""


def made_up(queries: int, documents: int, features: int) -> tuple[RetrievalSet, Tensor, Tensor]:
    """Returns a set without texts, and vectors of its queries and documents: signs, whose cosines are exact.

    Of 256 features cosines are multiples of 1/128, so that many documents tie.
    """
    generator = torch.Generator().manual_seed(0)
    corpus = torch.randint(0, 2, (documents, features), generator=generator).float() * 2 - 1
    answers = torch.randint(documents, (queries, 3), generator=generator)
    flipped = torch.rand(queries, features, generator=generator) < 0.4
    asked = torch.where(flipped, -1, 1) * corpus[answers[:, 0]]
    relevance = tuple(dict.fromkeys(row, 1.0) for row in answers.tolist())
    return RetrievalSet(("",) * queries, ("",) * documents, relevance, (-1,) * queries), asked, corpus


def contenders(data: RetrievalSet, asked: Tensor, corpus: Tensor) -> dict[str, Callable[[], dict[str, float]]]:
    """Returns what ranks, by name; each gives the means of all figures."""
    from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator
    from sentence_transformers.util import cos_sim

    ids = [f"{number:09}" for number in range(len(corpus))]  # whose order is that of the documents
    peer = InformationRetrievalEvaluator(
        {str(number): "" for number in range(len(asked))},
        dict.fromkeys(ids, ""),
        {str(number): {ids[place] for place in grades} for number, grades in enumerate(data.relevance)},
        precision_recall_at_k=[1, 10, 100],
    )
    peer.score_functions = {"cosine": cos_sim}
    model = SimpleNamespace(encode_query=lambda *_, **__: asked)

    def ours() -> dict[str, float]:
        return {name: float(each.mean()) for name, each in retrieval_scores(data, asked, corpus).items()}

    def theirs() -> dict[str, float]:
        found = peer.compute_all_metrics(model, corpus_embeddings=corpus)["cosine"]
        return {
            name: float(found[f"{name.split('@')[0]}@k"][int(name.split("@")[1])]) for name in RETRIEVAL_METRICS
        }

    return {"ours": ours, "sentence-transformers": theirs}


def timed(work: Callable[[], dict[str, float]]) -> Callable[[], tuple[float, dict[str, float]]]:
    """Returns what works and tells the seconds beside the figures."""

    def run() -> tuple[float, dict[str, float]]:
        start = time.perf_counter()
        figures = work()
        return time.perf_counter() - start, figures

    return run


def measure(queries: int, documents: int, features: int, rounds: int) -> dict[str, Any]:
    """Returns the seconds of each round, and how far the figures are apart at most."""
    works = contenders(*made_up(queries, documents, features))
    found = take_turns({name: timed(work) for name, work in works.items()}, rounds)
    ours, theirs = (each[-1][1] for each in found.values())
    apart = max(abs(ours[name] - theirs[name]) for name in RETRIEVAL_METRICS)
    assert apart <= 1e-6, (ours, theirs)
    seconds = {name: [second for second, _ in each] for name, each in found.items()}
    return {"queries": queries, "documents": documents, "seconds": seconds, "apart": apart}


def main() -> None:
    """Measures and writes the dated table."""
    own = parser(__doc__, rounds=7)
    own.add_argument("--features", type=int, default=256, help="a power of 4, of which cosines are exact")
    options = own.parse_args()
    needs("sentence-transformers")
    torch.set_num_threads(options.threads)
    sizes, rounds = (((20, 500),), 2) if options.quick else (SIZES, options.rounds)
    rows = [measure(*size, options.features, rounds) for size in sizes]
    cells = []
    for row in rows:
        ours, theirs = row["seconds"].values()
        medians = [f"{statistics.median(each):.2f}" for each in (ours, theirs)]
        size = [f"{row['queries']:,}", f"{row['documents']:,}"]
        cells.append([*size, *medians, ratio_and_range(ours, theirs), f"{row['apart']:.0e}"])
    lines = [
        "# Ranking",
        "",
        f"{machine(options.threads, options.device)}. {options.features} features; {rounds} rounds in turns;",
        "ratios are medians of the rounds' ratios (lowest to highest). Written by `benchmarks/ranking.py`.",
        "",
        *markdown(["queries", "documents", "ours, s", "peer, s", "ratio", "figures apart"], cells),
    ]
    if options.quick and options.out is None:
        print("\n".join(lines))
        return
    print(publish("ranking", lines, rows, vars(options), folder=options.out or RESULTS).name)


if __name__ == "__main__":
    main()
