"""Times mining of hard negatives beside sentence-transformers' ``mine_hard_negatives``, in alternated rounds.

    python benchmarks/mining.py

Vectors are random and are there already, so that what is timed is the search, what is removed, and the rows: ours
as ``mine`` gives them, theirs as the list of a ``Dataset``'s rows. Options are those under which both have one
result, which is compared; ours is timed once more with near-duplicates of positives removed, for which theirs has
no option. A smoke run: ``--quick``.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from datasets import Dataset
from machines import machine
from runs import RESULTS, markdown, publish
from sentence_transformers.util import cos_sim, mine_hard_negatives, pairwise_cos_sim
from timing import parser, ratio_and_range, take_turns

from contrastive_text.inference import Mining, PairTexts, Space, mine

_BLOCK = 4096
"""Queries at once, as ``MiningRun`` has them."""
Triples = list[tuple[str, str, str]]


def ours(texts: PairTexts, space: Space, mining: Mining) -> Triples:
    """Returns the triples of ``mine``, block by block."""
    found: Triples = []
    for start in range(0, len(texts.queries), _BLOCK):
        mined, _ = mine(texts, space, mining, range(start, min(start + _BLOCK, len(texts.queries))))
        found += [
            (texts.queries[each.query], texts.corpus[positive], texts.corpus[negative])
            for each in mined
            for positive in texts.positives[each.query]
            for negative in each.negatives
        ]
    return found


def theirs(texts: PairTexts, space: Space, mining: Mining) -> Triples:
    """Returns the triples of sentence-transformers, whose model gives the same vectors."""
    model = SimpleNamespace(
        device="cpu", similarity=cos_sim, similarity_pairwise=pairwise_cos_sim,
        encode_query=lambda *_, **__: space.queries.numpy(),
        encode_document=lambda *_, **__: space.corpus.numpy(),
    )  # fmt: skip
    pairs = {"anchor": texts.queries, "positive": [texts.corpus[place] for place, *_ in texts.positives]}
    rows = mine_hard_negatives(
        Dataset.from_dict(pairs), model, num_negatives=mining.negatives, range_max=mining.depth,
        relative_margin=mining.relative_margin, verbose=False,
    )  # fmt: skip
    return [(row["anchor"], row["positive"], row["negative"]) for row in rows]


def seconds(work: Callable[[], object]) -> float:
    """Returns what a call takes."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def main() -> None:
    """Measures, compares the results, and writes the table."""
    words = parser(__doc__)
    words.add_argument("--rows", type=int, default=20_000)
    words.add_argument("--features", type=int, default=384)
    options = words.parse_args()
    rows = 500 if options.quick else options.rows
    torch.set_num_threads(options.threads)
    noise = torch.Generator().manual_seed(0)
    texts = PairTexts((f"query {place}", f"positive {place}") for place in range(rows))
    queries = torch.randn(rows, options.features, generator=noise)
    space = Space(queries, queries + 2 * torch.randn(rows, options.features, generator=noise))
    alike = Mining(3, range_max=40, ranks="after", relative_margin=0.05, same=None, short="keep")
    near = Mining(3, range_max=40, ranks="after", relative_margin=0.05, short="keep")
    one, other = ours(texts, space, alike), theirs(texts, space, alike)
    same = sorted(one) == sorted(other)
    moved = sum(mine != its for mine, its in zip(one, other, strict=False))
    works: dict[str, Callable[[], float]] = {
        "sentence-transformers": lambda: seconds(lambda: theirs(texts, space, alike)),
        "ours": lambda: seconds(lambda: ours(texts, space, alike)),
        "ours, no near-duplicates": lambda: seconds(lambda: ours(texts, space, near)),
    }
    found: dict[str, list[float]] = take_turns(works, options.rounds)
    peer = found["sentence-transformers"]
    table = [
        [name, f"{statistics.median(each):.2f}", ratio_and_range(each, peer)] for name, each in found.items()
    ]
    lines = [
        f"# Hard negatives of {rows:,} queries among {rows:,} texts", "",
        f"Random vectors of {options.features} features; margin 0.05, {alike.depth} candidates, 3 negatives.",
        f"{options.rounds} alternated rounds; the triples of both are {'the same' if same else 'NOT the same'}; "
        f"{moved} stand elsewhere, for cosines that rounding orders.", "",
        *markdown(["", "seconds (median)", "of the peer's"], table), "", machine(options.threads, "cpu"),
    ]  # fmt: skip
    print("\n".join(lines))
    if not options.quick:
        kept: Any = {name: [round(each, 3) for each in times] for name, times in found.items()}
        print(
            publish(
                "mining", lines, {"seconds": kept, "same": same}, vars(options), folder=options.out or RESULTS
            )
        )


if __name__ == "__main__":
    main()
