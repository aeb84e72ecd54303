"""Semantic textual similarity: cosine of two texts against a gold score."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from contrastive_text.data import Table
from contrastive_text.metrics import SpearmanSimilarity
from contrastive_text.sentence_encoder import SentenceEncoder


class PairScore(NamedTuple):
    """The correlation over some pairs.

    Args:
        subset: Name of the sub-set, ``all`` for the whole file.
        pairs: Number of pairs.
        spearman: Spearman correlation of cosine and gold score, times 100; NaN for a single pair.
    """

    subset: str
    pairs: int
    spearman: float


def evaluate_pairs(
    model: SentenceEncoder, table: Table, batch_size: int = 64, show_progress_bar: bool = False
) -> list[PairScore]:
    """Gives the correlation over all pairs together, then over each sub-set if there are several.

    The first is the setting ``all`` of SBERT, SimCSE and ConSERT: one correlation over the sub-sets'
    concatenation, not a mean of theirs.

    Args:
        model: The encoder.
        table: Scored pairs, as ``data.read_pairs`` gives them.
        batch_size: Texts at once.
        show_progress_bar: Whether to draw a bar.
    """
    texts = [str(row[side]) for side in ("anchor", "positive") for row in table]
    vectors = torch.as_tensor(
        model.encode(texts, batch_size=batch_size, show_progress_bar=show_progress_bar, convert_to_tensor=True)
    ).cpu()
    u, v = vectors[: len(table)], vectors[len(table) :]
    target = torch.tensor([float(str(row["target"])) for row in table])
    subsets = [str(row.get("subset", "")) for row in table]
    names = list(dict.fromkeys(subsets))
    groups = {"all": list(range(len(table)))}
    if len(names) > 1:
        groups |= {name: [i for i, subset in enumerate(subsets) if subset == name] for name in names}
    scores = []
    for name, places in groups.items():
        if len(places) < 2:
            scores.append(PairScore(name, len(places), math.nan))
            continue
        metric = SpearmanSimilarity()
        metric.update(u[places], v[places], target=target[places])
        scores.append(PairScore(name, len(places), float(metric.compute())))
    return scores
