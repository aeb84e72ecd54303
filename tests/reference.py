"""The formulas, spelt as slow loops over Python numbers; and what the library must not do (own gradients)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

Vector = Sequence[float]
Vectors = Sequence[Vector]

_WORD = (1 << 64) - 1


def cosine(u: Vector, v: Vector) -> float:
    """cos(u, v) = u.v / (|u| |v|), 0 if a vector is zero."""
    dot, uu, vv = 0.0, 0.0, 0.0
    for a, b in zip(u, v, strict=True):
        dot += a * b
        uu += a * a
        vv += b * b
    return dot / math.sqrt(uu * vv) if uu > 0 and vv > 0 else 0.0


def cross_entropy(target: float, logits: Sequence[float]) -> float:
    """-log(exp(target) / sum exp(logit)), the largest logit taken out first."""
    largest = max(logits)
    total = 0.0
    for logit in logits:
        total += math.exp(logit - largest)
    return largest + math.log(total) - target


def _ids(count: int, given: Sequence[int] | None, start: int) -> Sequence[int]:
    return range(start, start + count) if given is None else given


def info_nce_terms(
    anchors: Vectors,
    positives: Vectors,
    negatives: Sequence[Vectors] = (),
    temperature: float = 0.05,
    log_weight: float = 0.0,
    anchor_ids: Sequence[int] | None = None,
    positive_ids: Sequence[int] | None = None,
    negative_ids: Sequence[Sequence[int]] | None = None,
) -> list[float]:
    """One term per anchor: its positive among all positives and all hard negatives.

    A text whose id is that of the anchor or of its positive is left out; without ids all texts differ.
    """
    n = len(anchors)
    anchor_ids, positive_ids = _ids(n, anchor_ids, 0), _ids(n, positive_ids, n)
    terms = []
    for i in range(n):
        own = {anchor_ids[i], positive_ids[i]}
        target = cosine(anchors[i], positives[i]) / temperature
        logits = []
        for j in range(n):
            if j == i or positive_ids[j] not in own:
                logits.append(cosine(anchors[i], positives[j]) / temperature)
        for j in range(len(negatives)):
            for k in range(len(negatives[j])):
                if negative_ids is None or negative_ids[j][k] not in own:
                    weight = log_weight if j == i else 0.0
                    logits.append(cosine(anchors[i], negatives[j][k]) / temperature + weight)
        terms.append(cross_entropy(target, logits))
    return terms


def info_nce(
    anchors: Vectors,
    positives: Vectors,
    negatives: Sequence[Vectors] = (),
    temperature: float = 0.05,
    log_weight: float = 0.0,
    reduction: str = "mean",
    anchor_ids: Sequence[int] | None = None,
    positive_ids: Sequence[int] | None = None,
    negative_ids: Sequence[Sequence[int]] | None = None,
) -> float:
    """Mean or sum over anchors; two-sided: mean over anchors + mean over positives looking for anchors."""
    forward = info_nce_terms(
        anchors, positives, negatives, temperature, log_weight, anchor_ids, positive_ids, negative_ids
    )
    if reduction == "sum":
        return sum(forward)
    if reduction == "mean":
        return sum(forward) / len(forward)
    backward = info_nce_terms(positives, anchors, (), temperature, 0.0, positive_ids, anchor_ids)
    return sum(forward) / len(forward) + sum(backward) / len(backward)


def nt_xent_terms(
    anchors: Vectors,
    positives: Vectors,
    negatives: Sequence[Vectors] = (),
    temperature: float = 0.05,
    anchor_ids: Sequence[int] | None = None,
    positive_ids: Sequence[int] | None = None,
    negative_ids: Sequence[Sequence[int]] | None = None,
) -> list[float]:
    """One term per text of both sides, anchors first: its partner among all other texts."""
    n = len(anchors)
    texts = [*anchors, *positives]
    ids = [*_ids(n, anchor_ids, 0), *_ids(n, positive_ids, n)]
    terms = []
    for i in range(2 * n):
        partner = i + n if i < n else i - n
        own = {ids[i], ids[partner]}
        logits = []
        for j in range(2 * n):
            if j == partner or (j != i and ids[j] not in own):
                logits.append(cosine(texts[i], texts[j]) / temperature)
        for j in range(len(negatives)):
            for k in range(len(negatives[j])):
                if negative_ids is None or negative_ids[j][k] not in own:
                    logits.append(cosine(texts[i], negatives[j][k]) / temperature)
        terms.append(cross_entropy(cosine(texts[i], texts[partner]) / temperature, logits))
    return terms


def nt_xent(
    anchors: Vectors,
    positives: Vectors,
    negatives: Sequence[Vectors] = (),
    temperature: float = 0.05,
    reduction: str = "mean",
    anchor_ids: Sequence[int] | None = None,
    positive_ids: Sequence[int] | None = None,
    negative_ids: Sequence[Sequence[int]] | None = None,
) -> float:
    """Mean over 2N, sum, or two-sided: the mean of the anchors' terms + the mean of the positives'."""
    terms = nt_xent_terms(anchors, positives, negatives, temperature, anchor_ids, positive_ids, negative_ids)
    n = len(anchors)
    if reduction == "sum":
        return sum(terms)
    if reduction == "mean":
        return sum(terms) / (2 * n)
    return sum(terms[:n]) / n + sum(terms[n:]) / n


def rows(
    anchors: Vectors,
    positives: Vectors,
    negatives: Sequence[Vectors] = (),
    same_side: bool = False,
    anchor_ids: Sequence[int] | None = None,
    positive_ids: Sequence[int] | None = None,
    negative_ids: Sequence[Sequence[int]] | None = None,
) -> list[tuple[float, list[float], list[float]]]:
    """Of each row the cosines with its target, with its own hard negatives and with all other columns seen.

    Rows are the anchors, or with ``same_side`` both sides, which then are columns too; texts of the row's or its
    target's id are left out.
    """
    n = len(anchors)
    texts = [*anchors, *positives]
    ids = [*_ids(n, anchor_ids, 0), *_ids(n, positive_ids, n)]
    found = []
    for i in range(2 * n if same_side else n):
        target = (i + n) % (2 * n)
        own = {ids[i], ids[target]}
        hard, others = [], []
        for j in range(0 if same_side else n, 2 * n):
            if j not in (i, target) and ids[j] not in own:
                others.append(cosine(texts[i], texts[j]))
        for j in range(len(negatives)):
            for k in range(len(negatives[j])):
                if negative_ids is None or negative_ids[j][k] not in own:
                    (hard if j == i % n else others).append(cosine(texts[i], negatives[j][k]))
        found.append((cosine(texts[i], texts[target]), hard, others))
    return found


def masked_mean(tokens: Vectors, mask: Sequence[bool]) -> list[float]:
    """Mean of the token vectors whose mask is set, feature by feature."""
    kept = [token for token, real in zip(tokens, mask, strict=True) if real]
    return [sum(token[d] for token in kept) / len(kept) for d in range(len(tokens[0]))]


def uncorrected_adamw(
    weight: float,
    gradients: Sequence[float],
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> float:
    """The weight after AdamW's steps without bias correction, each with its decay after it."""
    mean, square = 0.0, 0.0
    for gradient in gradients:
        mean = betas[0] * mean + (1 - betas[0]) * gradient
        square = betas[1] * square + (1 - betas[1]) * gradient * gradient
        weight = weight - lr * mean / (math.sqrt(square) + eps)
        weight = weight - lr * weight_decay * weight
    return weight


def slanted_triangle_of_unknown_length(
    t: int, epochs: int, cut_fraction: float = 0.1, ratio: float = 32.0
) -> float:
    """DeCLUTR's factor at step t of the first epoch while the epoch's length is unknown: t is taken for it."""
    total = epochs * t
    cut = int(total * cut_fraction)
    p = t / cut if t < cut else 1 - (t - cut) / (total - cut)
    return (1 + p * (ratio - 1)) / ratio


def split_mix(value: int) -> int:
    """One output of SplitMix64 from the state ``value`` (Steele, Lea, Flood 2014, figure 17), unsigned."""
    z = (value + 0x9E3779B97F4A7C15) & _WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _WORD
    return z ^ (z >> 31)


def finalise(z: int) -> int:
    """The finaliser of SplitMix64 alone, without the step of the state."""
    return split_mix((z - 0x9E3779B97F4A7C15) & _WORD)


def own_gradient_gather(rows: Tensor) -> Tensor:
    """Gathers equal numbers of rows with a gradient for this rank's own only: what SimCSE's code does.

    Here for comparison; its gradient is 1/W of the whole (L10).
    """
    parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, rows.detach().contiguous())
    parts[dist.get_rank()] = rows
    return torch.cat(parts)
