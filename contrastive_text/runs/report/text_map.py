"""Map of the texts of each run, with groups and their words, and the nearest neighbors of some texts."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from contrastive_text.runs.report.charts import COLORS, WIDTH, Chart, color_of, draw
from contrastive_text.runs.report.material import Space
from contrastive_text.runs.report.runs import MOST_RUNS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_POINTS = 500
"""Largest number of texts on a map. On a phone, the points of more texts would overlap."""
_SAMPLES = 12
"""Number of sample texts with their neighbors, divided by the number of runs."""
NEIGHBORS = 3
"""Number of nearest neighbors that are listed for a sample text."""
_ROUNDS = 50
_WORDS = 3
_APART = math.log(2.5)
"""Smallest log ratio of a word's frequencies inside and outside of a group that the word describes."""


class TextMap(NamedTuple):
    """Maps of the same texts by the vectors of each run.

    Args:
        texts: Texts of the maps.
        charts: The map of each run.
        words: Words that are typical of each group.
        samples: Texts with their nearest neighbors.
    """

    texts: Sequence[str]
    charts: Sequence[Chart]
    words: Sequence[str]
    samples: Sequence[Sample]


class Sample(NamedTuple):
    """Sample text of the map with its nearest neighbors.

    Args:
        text: The text.
        group: Number of its group, from 0.
        neighbors: For each run cosines and texts, nearest first.
    """

    text: str
    group: int
    neighbors: Sequence[Sequence[tuple[float, str]]]


def text_map(spaces: Sequence[Space], texts: Sequence[str]) -> TextMap:
    """Draws a map of the texts for each run, with groups and samples from the vectors of the first run.

    Args:
        spaces: Vectors of the same texts for each run, at least one.
        texts: The texts.
    """
    count = min(_POINTS, len(texts))
    first = spaces[0].texts[:count]
    groups = k_means(first, min(MOST_RUNS, max(1, count // 6)))
    planes = [principal_plane(first)]
    points = planes[0][0]
    planes += [principal_plane(space.texts[:count], like=points) for space in spaces[1:]]
    samples = central(points, k_means(points, min(max(4, _SAMPLES // len(spaces)), count)))
    samples.sort(key=lambda i: (int(groups[i]), i))
    nearest = [_nearest(space.texts, samples, texts) for space in spaces]
    return TextMap(
        texts=texts[:count],
        charts=[
            _map(space, *plane, groups, samples, turned=space is not spaces[0])
            for space, plane in zip(spaces, planes, strict=True)
        ],
        words=words_of(texts[:count], groups),
        samples=[
            Sample(texts[sample], int(groups[sample]), [lists[i] for lists in nearest])
            for i, sample in enumerate(samples)
        ],
    )


def k_means(points: Tensor, count: int) -> Tensor:
    """Clusters points by k-means. Returns the group of each point; groups are numbered by falling size.

    Lloyd's algorithm from a deterministic start: the point nearest the mean, then always the point furthest from
    those chosen (Gonzalez 1985). The same points give the same groups.

    Args:
        points: (N, D).
        count: Number of groups, at most N.

    Returns:
        Numbers of groups from 0, (N,), int64. A group may be empty if points coincide.

    Example:
        >>> k_means(torch.tensor([[0.0], [0.1], [0.2], [9.0], [9.1]]), 2)
        tensor([0, 0, 0, 1, 1])
    """
    starts = [int((points - points.mean(dim=0)).square().sum(dim=1).argmin())]
    for _ in range(count - 1):
        starts.append(int(torch.cdist(points, points[starts]).amin(dim=1).argmax()))
    centers, groups = points[starts], torch.full((len(points),), -1)
    for _ in range(_ROUNDS):
        nearest = torch.cdist(points, centers).argmin(dim=1)
        if torch.equal(nearest, groups):
            break
        groups = nearest
        members = one_hot(groups, count).to(points.dtype)
        sizes = members.sum(dim=0)[:, None]
        centers = torch.where(sizes > 0, members.T @ points / sizes.clamp_min(1), centers)
    ranks = torch.bincount(groups, minlength=count).argsort(descending=True, stable=True).argsort()
    return ranks[groups]


def central(points: Tensor, groups: Tensor) -> list[int]:
    """Returns for each group of points the index of the point nearest to the group's mean."""
    indices = []
    for group in sorted({*groups.tolist()}):
        members = (groups == group).nonzero().flatten()
        distances = (points[members] - points[members].mean(dim=0)).square().sum(dim=1)
        indices.append(int(members[distances.argmin()]))
    return indices


def words_of(texts: Sequence[str], groups: Tensor) -> list[str]:
    """Returns for each group of texts the words that are more frequent in it than in the other texts.

    Words are ranked by p log(p / q), their term of the divergence: p is the share of the group's texts with the
    word, and q the share of the other texts with the word, each share with one text added.

    Example:
        >>> words_of(["a red bird", "the red bird", "a cold river", "the cold river"], torch.tensor([0, 0, 1, 1]))
        ['bird, red', 'cold, river']
    """
    words_by_text = [set(re.findall(r"[^\W\d_]{3,}", text.lower())) for text in texts]
    numbers = groups.tolist()
    everywhere = Counter(word for words in words_by_text for word in words)
    names = []
    for group in range(max(numbers) + 1):
        group_words = [words for words, number in zip(words_by_text, numbers, strict=True) if number == group]
        other_count = len(texts) - len(group_words)
        parts = {}
        for word, many in Counter(word for words in group_words for word in words).items():
            share = (many + 1) / (len(group_words) + 2)
            ratio = math.log(share) - math.log((everywhere[word] - many + 1) / (other_count + 2))
            if ratio >= _APART:
                parts[word] = ratio * many
        best = sorted(parts, key=lambda word: (-parts[word], word))[:_WORDS]
        names.append(", ".join(best) or "other texts")
    return names


def principal_plane(points: Tensor, like: Tensor | None = None) -> tuple[Tensor, float]:
    """Projects points onto their first two principal components. Returns also the components' share of variance.

    The largest entry of each component is positive, so that the same points give the same picture.

    Args:
        points: (N, D), N at least 2.
        like: Projection of the same points in another picture, (N, 2). The result is turned or mirrored to be as
            near to it as possible (orthogonal Procrustes, Schönemann 1966).

    Returns:
        Projected points, (N, 2), and a share in [0, 1].

    Example:
        >>> square = torch.tensor([[0.0, 0.0, 1.0], [4.0, 0.0, 1.0], [0.0, 2.0, 1.0], [4.0, 2.0, 1.0]])
        >>> principal_plane(square)[1]
        1.0
    """
    centered = (points - points.mean(dim=0)).double()
    _, values, rows = torch.linalg.svd(centered, full_matrices=False)
    rows = rows[:2]
    largest = rows.gather(1, rows.abs().argmax(dim=1, keepdim=True))
    places = centered @ (rows * torch.where(largest < 0, -1.0, 1.0)).T
    if places.shape[1] < 2:
        places = torch.cat([places, torch.zeros_like(places)], dim=1)
    if like is not None:
        u, _, vh = torch.linalg.svd(places.T @ like.double())
        places = places @ u @ vh
    variances = values.square()
    total = float(variances.sum())
    return places.float(), float(variances[:2].sum()) / total if total else 1.0


def _map(
    space: Space, places: Tensor, share: float, groups: Tensor, samples: Sequence[int], turned: bool
) -> Chart:
    run = space.run
    x, y = places.T.tolist()
    colors = [color_of(group) for group in groups.tolist()]

    def paint(axes: Axes) -> None:
        axes.set_aspect("equal", adjustable="datalim")
        axes.set_axis_off()
        axes.margins(0.05)
        dots = axes.scatter(x, y, s=22, c=colors, edgecolors=COLORS["paper"], linewidths=0.5, alpha=0.85)
        dots.set(gid=f"dots-{run.number + 1}", clip_on=False)  # the page's script looks for this id
        for place, sample in enumerate(samples):
            at = (x[sample], y[sample])
            axes.plot(*at, "o", markersize=17, color=COLORS["paper"], markeredgecolor=colors[sample])
            axes.annotate(str(place + 1), at, ha="center", va="center_baseline", weight="bold")

    how = ", turned to lie like the first," if turned else ""
    note = f"{len(x):,} texts; these two directions{how} hold {share:.0%} of the variance."
    return draw(f"map-{run.number + 1}", "Texts" if run.alone else run.name, note, paint, height=WIDTH)


def _nearest(vectors: Tensor, samples: Sequence[int], texts: Sequence[str]) -> list[list[tuple[float, str]]]:
    cosines = vectors[list(samples)] @ vectors.T
    cosines[range(len(samples)), list(samples)] = -torch.inf  # not the text itself
    best = cosines.topk(min(NEIGHBORS, len(vectors) - 1), dim=1)
    return [
        [(cosine, texts[i]) for cosine, i in zip(values, places, strict=True)]
        for values, places in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]
