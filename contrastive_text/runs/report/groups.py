"""Groups of texts that lie together, what their words have in common, and where all texts lie in a plane."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import one_hot

_ROUNDS = 50
_WORDS = 3
_APART = math.log(2.5)
"""How many times as often a group has a word that sets it apart."""


def k_means(points: Tensor, count: int) -> Tensor:
    """Returns the group of each point, numbered by falling size.

    Lloyd's algorithm from a deterministic start: the point nearest the mean, then always the point furthest from
    those chosen (Gonzalez 1985). The same points give the same groups.

    Args:
        points: (N, D).
        count: Number of groups, at most N.

    Returns:
        Numbers of groups from 0, (N,), int64; a group may be empty where points coincide.

    Example:
        >>> k_means(torch.tensor([[0.0], [0.1], [0.2], [9.0], [9.1]]), 2)
        tensor([0, 0, 0, 1, 1])
    """
    chosen = [int((points - points.mean(dim=0)).square().sum(dim=1).argmin())]
    for _ in range(count - 1):
        chosen.append(int(torch.cdist(points, points[chosen]).amin(dim=1).argmax()))
    centres, groups = points[chosen], torch.full((len(points),), -1)
    for _ in range(_ROUNDS):
        nearest = torch.cdist(points, centres).argmin(dim=1)
        if torch.equal(nearest, groups):
            break
        groups = nearest
        members = one_hot(groups, count).to(points.dtype)
        sizes = members.sum(dim=0)[:, None]
        centres = torch.where(sizes > 0, members.T @ points / sizes.clamp_min(1), centres)
    ranks = torch.bincount(groups, minlength=count).argsort(descending=True, stable=True).argsort()
    return ranks[groups]


def central(points: Tensor, groups: Tensor) -> list[int]:
    """Returns for each group that has members the place of the point nearest its mean."""
    places = []
    for group in sorted(set(groups.tolist())):
        members = (groups == group).nonzero().flatten()
        distances = (points[members] - points[members].mean(dim=0)).square().sum(dim=1)
        places.append(int(members[distances.argmin()]))
    return places


def words_of(texts: Sequence[str], groups: Tensor) -> list[str]:
    """Returns for each group the words that set its texts apart from the others.

    A word that p of the group's texts and q of the others have, each share with one text added, counts
    p log(p / q), its part in the divergence of the two.

    Example:
        >>> words_of(["a red bird", "the red bird", "a cold river", "the cold river"], torch.tensor([0, 0, 1, 1]))
        ['bird, red', 'cold, river']
    """
    having = [set(re.findall(r"[^\W\d_]{3,}", text.lower())) for text in texts]
    numbers = groups.tolist()
    everywhere = Counter(word for words in having for word in words)
    named = []
    for group in range(max(numbers) + 1):
        own = [words for words, number in zip(having, numbers, strict=True) if number == group]
        counts = Counter(word for words in own for word in words)
        others = len(texts) - len(own)
        ratios = {
            word: math.log((many + 1) / (len(own) + 2)) - math.log((everywhere[word] - many + 1) / (others + 2))
            for word, many in counts.items()
        }
        parts = {word: ratio * counts[word] for word, ratio in ratios.items() if ratio >= _APART}
        best = sorted(parts, key=lambda word: (-parts[word], word))[:_WORDS]
        named.append(", ".join(best) or "other texts")
    return named


def plane_of(points: Tensor, like: Tensor | None = None) -> tuple[Tensor, float]:
    """Returns the two directions in which points vary most, and the share of the variance in them.

    Principal components; each has its largest entry positive, so that the same points give the same picture.

    Args:
        points: (N, D), two at least.
        like: Places of the same points in another picture, (N, 2): this one is turned, or mirrored, to lie as
            much like it as it can (orthogonal Procrustes, Schönemann 1966). None for the components as they are.

    Returns:
        Places, (N, 2), and a share in [0, 1].

    Example:
        >>> plane_of(torch.tensor([[0.0, 0.0, 1.0], [4.0, 0.0, 1.0], [0.0, 2.0, 1.0], [4.0, 2.0, 1.0]]))[1]
        1.0
    """
    centred = (points - points.mean(dim=0)).double()
    _, values, rows = torch.linalg.svd(centred, full_matrices=False)
    rows = rows[:2]
    largest = rows.gather(1, rows.abs().argmax(dim=1, keepdim=True))
    places = centred @ (rows * torch.where(largest < 0, -1.0, 1.0)).T
    if places.shape[1] < 2:
        places = torch.cat([places, torch.zeros_like(places)], dim=1)
    if like is not None:
        left, _, right = torch.linalg.svd(places.T @ like.double())
        places = places @ left @ right
    variances = values.square()
    total = float(variances.sum())
    return places.float(), float(variances[:2].sum()) / total if total else 1.0
