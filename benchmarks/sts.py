"""Measures an evaluation on STS: our scores next to sentence-transformers' of the same pairs, turn by turn.

    python benchmarks/sts.py --data FOLDER

The folder has data sets as ``contrastive-text evaluate --suite sts`` finds them; those that it lacks are left
out. The peer is ``EmbeddingSimilarityEvaluator`` with the cosine, set by set, at the batch size at which it is
fastest; ours is the suite with a fresh encoder in memory at its default. Both start each turn without any
vectors; ours encodes a text that several pairs or sets share once. The run fails where the correlations differ.

A smoke run without data: ``--quick``. The scores alone, of a part of the pairs: ``--rounds 0 --pairs 200``.
"""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from encode import best_size
from inputs import draw, encoder_name, installed_encoder, made_up_texts, tiny_encoder
from machines import machine, needs, synchronize
from runs import RESULTS, markdown, publish
from timing import parser, ratio_and_range, take_turns

from contrastive_text import SentenceEncoder
from contrastive_text.evaluation.cached import CachedEncoder
from contrastive_text.evaluation.sts import score_tasks
from contrastive_text.evaluation.sts_data import STSPairs, find_sts

TOLERANCE = 1e-4
"""By how much correlations of the same pairs may differ: float32 orders a few nearly equal pairs anew."""
SAMPLE = 1500
"""Texts for choosing the peer's batch size."""

Scores = dict[str, float]


def first_pairs(pairs: STSPairs, count: int) -> STSPairs:
    """Returns the first pairs of a set."""
    return dataclasses.replace(
        pairs,
        first=pairs.first[:count],
        second=pairs.second[:count],
        gold=pairs.gold[:count],
        subsets=pairs.subsets[:count],
    )


def made_up_sets(count: int) -> dict[str, STSPairs]:
    """Returns three sets of which each shares half of its texts with the next.

    Example:
        >>> sets = made_up_sets(4)
        >>> [len(pairs) for pairs in sets.values()], sets["STS12"].first[2:] == sets["STS-B"].first[:2]
        ([4, 4, 4], True)
    """
    texts = made_up_texts(4 * count)
    gold = torch.rand(count, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 5
    starts = dict(zip(("STS12", "STS-B", "SICK-R"), range(0, 2 * count, count // 2), strict=False))
    return {
        task: STSPairs(texts[start : start + count], texts[2 * count + start :][:count], gold, [task] * count)
        for task, start in starts.items()
    }


def ours(folder: str, device: str) -> Callable[[Mapping[str, STSPairs]], Scores]:
    """Returns our suite, with a new encoder in memory at every call."""
    model = SentenceEncoder.from_pretrained(folder, device=device)
    return lambda sets: {score.task: score.score for score in score_tasks(CachedEncoder(model), sets, "all")}


def theirs(folder: str, device: str, batch_size: int) -> Callable[[Mapping[str, STSPairs]], Scores]:
    """Returns the peer's evaluator, set by set."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

    model = SentenceTransformer(folder, device=device)

    def score(pairs: STSPairs) -> float:
        evaluator = EmbeddingSimilarityEvaluator(
            pairs.first,
            pairs.second,
            pairs.gold.tolist(),
            batch_size=batch_size,
            main_similarity="cosine",
            similarity_fn_names=["cosine"],
            write_csv=False,
        )
        return 100 * float(evaluator(model)["spearman_cosine"])

    return lambda sets: {task: score(pairs) for task, pairs in sets.items()}


def seconds_of(
    evaluate: Callable[[Mapping[str, STSPairs]], Scores], sets: Mapping[str, STSPairs], device: str
) -> float:
    """Returns the seconds that an evaluation takes."""
    begun = time.perf_counter()
    evaluate(sets)
    synchronize(device)
    return time.perf_counter() - begun


def measure(
    options: Any, sets: Mapping[str, STSPairs], encoder: str
) -> dict[str, Any]:  # Any: argparse's; figures
    """Returns the scores of both, and their seconds on STS-B alone and on all sets.

    Raises:
        SystemExit: The correlations of a set differ.
    """
    texts = [text for pairs in sets.values() for text in (*pairs.first, *pairs.second)]
    distinct = list(dict.fromkeys(texts))
    size, speeds = best_size(encoder, "float32", draw(distinct, min(SAMPLE, len(distinct))), options.device)
    contenders = {
        "ours": ours(encoder, options.device),
        "sentence-transformers": theirs(encoder, options.device, size),
    }
    scores = {name: evaluate(sets) for name, evaluate in contenders.items()}  # also warms up
    for task, score in scores["ours"].items():
        if not abs(score - scores["sentence-transformers"][task]) <= 100 * TOLERANCE:
            raise SystemExit(
                f"{task}: ours {score}, sentence-transformers {scores['sentence-transformers'][task]}"
            )
    chosen = {"STS-B": {"STS-B": sets["STS-B"]}, "all sets": sets}
    works = {
        f"{name}, {what}": partial(seconds_of, evaluate, part, options.device)
        for what, part in chosen.items()
        for name, evaluate in contenders.items()
    }
    return {
        "scores": scores,
        "seconds": take_turns(works, options.rounds),
        "pairs": {task: len(pairs) for task, pairs in sets.items()},
        "texts": len(texts),
        "distinct texts": len(distinct),
        "batch size of the peer": size,
        "texts/s of the peer at batch sizes": speeds,
    }


def table_of_scores(found: Mapping[str, Any]) -> list[str]:  # Any: figures and names
    """Returns the correlations of both, and by how much they differ."""
    scores = found["scores"]
    tasks = list(found["pairs"])
    rows = [[name, *(f"{each[task]:.4f}" for task in tasks)] for name, each in scores.items()]
    one, other = scores.values()
    rows.append(["difference", *(f"{one[task] - other[task]:+.5f}" for task in tasks)])
    return markdown(["Spearman x 100, all", *(f"{task} ({found['pairs'][task]:,})" for task in tasks)], rows)


def table_of_seconds(found: Mapping[str, Any]) -> list[str]:  # Any: figures and names
    """Returns the medians of the seconds."""
    rows = []
    for what in ("STS-B", "all sets"):
        own, peer = (found["seconds"][f"{name}, {what}"] for name in found["scores"])
        medians = [f"{statistics.median(times):.2f} s" for times in (own, peer)]
        rows.append([what, *medians, ratio_and_range(peer, own)])
    return markdown(["evaluation of", *found["scores"], "ours is faster by"], rows)


def report(options: Any, found: Mapping[str, Any], encoder: str) -> Sequence[str]:  # Any: argparse's; figures
    """Returns the lines of the result."""
    lines = [
        "# Evaluation on STS",
        "",
        f"Encoder: {encoder_name(encoder)}. {machine(options.threads, options.device)}. Written by",
        "`benchmarks/sts.py`.",
        "",
        *table_of_scores(found),
        "",
        f"Every set's correlations are equal to {TOLERANCE:g}.",
    ]
    if options.rounds:
        lines += [
            "",
            *table_of_seconds(found),
            "",
            f"Medians of {options.rounds} rounds, the contenders taking turns; ratios are medians of the rounds'",
            f"ratios (lowest to highest). Each turn starts without vectors. Of {found['texts']:,} texts",
            f"{found['distinct texts']:,} are different: ours encodes these, in batches of 64; the peer",
            f"encodes all, in batches of {found['batch size of the peer']}, at which it is fastest.",
        ]
    return lines


def main() -> None:
    """Measures and writes the dated table."""
    own = parser(__doc__)
    own.add_argument("--data", type=Path, help="folder of the STS data sets")
    own.add_argument("--pairs", type=int, help="pairs of each set, the first; all if left out")
    options = own.parse_args()
    needs("sentence-transformers")
    torch.set_num_threads(options.threads)
    if options.quick:
        options.rounds = min(options.rounds, 2)
    with tempfile.TemporaryDirectory() as made:
        if options.quick:
            sets = made_up_sets(60)
            texts = [text for pairs in sets.values() for text in (*pairs.first, *pairs.second)]
            encoder = tiny_encoder(Path(made), texts)
        elif options.data is None:
            own.error("--data FOLDER is needed, or --quick")
        else:
            sets = {task: pairs for task, pairs in find_sts(options.data).items() if isinstance(pairs, STSPairs)}
            if "STS-B" not in sets:
                own.error(f"--data: expected STS-B among the data sets, got {', '.join(sets) or 'none'}")
            encoder = options.encoder or installed_encoder()
        if options.pairs is not None:
            sets = {task: first_pairs(pairs, options.pairs) for task, pairs in sets.items()}
        found = measure(options, sets, encoder)
    lines = report(options, found, encoder)
    if options.quick or not options.rounds:
        print("\n".join(lines))
        return
    print(publish("sts", lines, [found], vars(options), folder=options.out or RESULTS).name)


if __name__ == "__main__":
    main()
