"""Charts and metrics of the vectors of runs: cosines of pairs, gold scores, geometry, and a map of the texts."""

from __future__ import annotations

import math
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from contrastive_text.core.random import generator
from contrastive_text.data import Table
from contrastive_text.evaluation.diagnosis import Diagnosis
from contrastive_text.metrics import positive_pairs, spearman
from contrastive_text.runs.report.charts import (
    COLORS,
    TIMES_100,
    WIDTH,
    Chart,
    Note,
    color_of,
    draw,
    line_of,
    number,
)
from contrastive_text.runs.report.material import FILES_REMEDY, SEED, Material, Space, gold_scores
from contrastive_text.runs.report.runs import MOST_RUNS, RunRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BINS = 40
_BOXES = 5
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
Measured = Sequence[tuple[RunRecord, Diagnosis]]


def similarity(spaces: Sequence[Space], material: Material) -> list[Chart | Note]:
    """Draws charts of the vectors of runs: cosines of pairs, and cosines against gold scores."""
    if not spaces:
        return []
    histograms = _histograms(spaces, material.pairs)
    if material.pairs is not None and len(material.pairs) > 1:
        return [histograms, _boxes(spaces, material.pairs)]
    why = material.lacks or "no run names scored pairs"
    return [histograms, Note("Cosine against gold score", why, FILES_REMEDY)]


def geometry(measured: Measured) -> list[Chart | Note]:
    """Draws charts of the vectors of runs: spectrum, alignment and uniformity, effect of frequent tokens."""
    charts = [_spectrum, _plane, _frequency] if measured else []
    return [chart for draw_chart in charts if (chart := draw_chart(measured)) is not None]


def figures(measured: Measured) -> list[tuple[str, list[str]]]:
    """Returns the rows of a table of geometry metrics: name of the metric, and its value for each run."""
    diagnoses = [diagnosis for _, diagnosis in measured]
    return [
        ("texts", [f"{d.texts:,}" for d in diagnoses]),
        ("features", [f"{d.features:,}" for d in diagnoses]),
        (f"Spearman {TIMES_100}", [number(d.spearman, ".2f") for d in diagnoses]),
        ("alignment", [number(d.alignment, ".3f") for d in diagnoses]),
        ("uniformity", [number(d.uniformity, ".3f") for d in diagnoses]),
        ("mean cosine", [number(d.mean_cosine, ".3f") for d in diagnoses]),
        ("effective rank", [number(d.effective_rank, ".1f") for d in diagnoses]),
        ("isotropy (IsoScore)", [number(d.isotropy, ".3f") for d in diagnoses]),
        ("correlation of features", [number(d.off_diagonal, ".3f") for d in diagnoses]),
        ("hubness (skewness)", [number(d.hubness, ".2f") for d in diagnoses]),
        ("orphans", [f"{d.orphans:.1%}" for d in diagnoses]),
    ]


def score(cosines: Tensor, gold: Tensor) -> float:
    """Returns Spearman's correlation of cosines and gold scores, times 100; 0 if all values are equal."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about values that are all equal
        return 100 * float(spearman(cosines, gold))


def _histograms(spaces: Sequence[Space], pairs: Table | None) -> Chart:
    """Draws histograms of the cosines of random, negative and positive pairs, below each other."""
    rows = [("random", [space.random for space in spaces])]
    kinds = "Random pairs of the texts; there are no scored pairs."
    if pairs is not None:
        gold = gold_scores(pairs)
        scored = (("negative", gold <= 0.2 * gold.max()), ("positive", positive_pairs(gold)))
        rows += [(name, [space.cosines[kind] for space in spaces]) for name, kind in scored if kind.any()]
        kinds = (
            "Positive pairs are those above four fifths of the highest gold score, negative ones have at most a "
            "fifth of it, random ones were drawn from the texts."
        )
    least = min(float(cosines.min()) for _, group in rows for cosines in group)
    edges = np.linspace(min(0.0, least), 1.0, _BINS + 1)

    def paint(axes: Axes) -> None:
        axes.grid(visible=False, axis="y")
        for height, (_, group) in enumerate(rows):
            shares = [np.histogram(cosines.numpy(), edges)[0] / len(cosines) for cosines in group]
            top = max(float(share.max()) for share in shares)
            for space, share, cosines in zip(spaces, shares, group, strict=True):
                line, color = height + 0.86 * share / top, color_of(space.run.number)
                axes.stairs(line, edges, baseline=height, fill=True, color=color, alpha=0.25)
                axes.stairs(line, edges, baseline=height, color=color, linewidth=1.4)
                axes.vlines(float(cosines.mean()), height - 0.08, height, color=color, linewidth=2.4)
        axes.set_yticks([height + 0.12 for height in range(len(rows))], [name for name, _ in rows])
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.set(xlabel="cosine similarity", ylim=(-0.15, len(rows)))

    means = [
        space.run.says(", ".join(f"{name} {number(float(g[i].mean()), '.2f')}" for name, g in reversed(rows)))
        for i, space in enumerate(spaces)
    ]
    note = f"{kinds} Means, marked below: {'; '.join(means)}."
    return draw("cosines", "Cosines of pairs", note, paint, [space.run for space in spaces], height=300)


def _boxes(spaces: Sequence[Space], pairs: Table) -> Chart:
    """Draws a box plot of the cosines of pairs in each fifth of the gold scale, with a box for each run."""
    gold = gold_scores(pairs)
    low, high = float(gold.min()), float(gold.max())
    width = (high - low) / _BOXES or 1.0
    fifths = ((gold - low) / width).long().clamp(max=_BOXES - 1)
    slot = 0.8 / len(spaces)

    def paint(axes: Axes) -> None:
        axes.grid(visible=False, axis="x")
        for turn, space in enumerate(spaces):
            color, shift = color_of(space.run.number), (turn + 0.5) * slot - 0.4
            groups = {i: space.cosines[fifths == i].numpy() for i in range(_BOXES) if (fifths == i).any()}
            for i, group in groups.items() if len(spaces) == 1 else ():
                spread = generator(SEED + i).uniform(-0.3, 0.3, size=len(group))
                axes.plot(i + spread[:150], group[:150], ".", color=color, alpha=0.3, markersize=3)
            axes.boxplot(
                list(groups.values()),
                positions=[i + shift for i in groups],
                widths=slot * 0.72,
                whis=(5, 95),
                showfliers=False,
                patch_artist=True,
                manage_ticks=False,
                boxprops={"facecolor": COLORS["paper"], "edgecolor": color, "linewidth": 1.4},
                whiskerprops={"color": color, "linewidth": 1.2},
                capprops={"color": color, "linewidth": 1.2},
                medianprops={"color": color, "linewidth": 2.6},
            )
        names = [f"{low + i * width:.3g}\u2013{low + (i + 1) * width:.3g}" for i in range(_BOXES)]
        axes.set_xticks(range(_BOXES), names)
        axes.set(xlabel="gold score", ylabel="cosine similarity")
        axes.margins(x=0.02)

    scores = [space.run.says(number(score(space.cosines, gold), ".2f")) for space in spaces]
    note = (
        f"Spearman {TIMES_100} over these {len(gold):,} pairs: {'; '.join(scores)}. Boxes hold the middle half "
        "of the pairs, whiskers nine tenths; the bar is the median."
    )
    return draw("gold", "Cosine against gold score", note, paint, [space.run for space in spaces], height=300)


def _spectrum(measured: Measured) -> Chart:
    def paint(axes: Axes) -> None:
        axes.set_yscale("log")
        for run, diagnosis in measured:
            values = np.asarray(diagnosis.spectrum)
            values = values[values > values[0] * 1e-7]  # below is rounding
            axes.plot(np.arange(1, len(values) + 1), values, **line_of(run))
            axes.axvline(diagnosis.effective_rank, color=color_of(run.number), linestyle=":", linewidth=1.3)
        axes.set(xlabel="singular value, by size", ylabel="share of their sum")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("")

    ranks = [run.says(f"{diagnosis.effective_rank:.1f} of {diagnosis.features}") for run, diagnosis in measured]
    note = (
        "A curve that falls at once means that a few directions hold everything. Dotted: the effective rank, "
        f"{'; '.join(ranks)}."
    )
    return draw("spectrum", "Spectrum", note, paint, [run for run, _ in measured], height=270)


def _plane(measured: Measured) -> Chart | None:
    """Draws alignment against uniformity as a point for each run, as in figure 3 of SimCSE.

    Gao et al. 2021, https://aclanthology.org/2021.emnlp-main.552. Alignment is measured on pairs above four
    fifths of the highest gold score (for STS-B, above 4), uniformity on all texts of the pairs.
    """
    points = [(run, d.uniformity, d.alignment, d.spearman) for run, d in measured if d.alignment is not None]
    if not points:
        return None

    def paint(axes: Axes) -> None:
        for run, uniformity, alignment, correlation in points:
            axes.plot(uniformity, alignment, "o", color=color_of(run.number), markersize=7)
            name = run.name if correlation is None else f"{run.name} ({correlation:.1f})"
            axes.text(uniformity, alignment, f"{name}\n", ha="center")
        axes.margins(0.25)
        axes.set(xlabel="uniformity (lower is more even)", ylabel="alignment (lower is nearer)")

    values = [
        run.says(
            f"alignment {number(alignment, '.3f')}, uniformity {number(uniformity, '.3f')}, "
            f"Spearman {TIMES_100} {number(correlation, '.1f')}"
        )
        for run, uniformity, alignment, correlation in points
    ]
    note = (
        "Down and left is better: positive pairs, above four fifths of the highest gold score, lie close"
        f" and texts are spread (Gao et al. 2021, figure 3). {'; '.join(values)}."
    )
    return draw("plane", "Alignment and uniformity", note, paint, height=300)


def _frequency(measured: Measured) -> Chart | None:
    curves = [(run, diagnosis.frequency) for run, diagnosis in measured if diagnosis.frequency]
    if not curves:
        return None

    def paint(axes: Axes) -> None:
        for run, points in curves:
            axes.plot([spearman for _, spearman in points], marker=".", markersize=6, **line_of(run))
        axes.set_xticks(range(len(curves[0][1])), [str(removed) for removed, _ in curves[0][1]])
        axes.set(xlabel="tokens left out", ylabel=f"Spearman {TIMES_100}")

    note = (
        "Correlation when the mean leaves out the most frequent tokens: a curve that rises means that tokens "
        "which say little pull the vectors (Yan et al. 2021, section 5.1)."
    )
    return draw("frequency", "Frequent tokens", note, paint, [run for run, _ in measured], height=270)


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
