"""How the vectors of texts lie in space, with a verdict in words where something is off."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from contrastive_text import metrics
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.data import Table
from contrastive_text.data.prompts import DOCUMENT, QUERY
from contrastive_text.evaluation.cached import CachedEncoder, drawn_texts
from contrastive_text.evaluation.frequency import frequency_bias, takes_mean
from contrastive_text.evaluation.sts.cosine import pair_vectors
from contrastive_text.evaluation.sts.data import STSPairs
from contrastive_text.metrics.spread import NEIGHBOURS
from contrastive_text.metrics.verdicts import collapse

LIMIT = 20_000
"""Texts that are measured at most: all pairs of them count, 20 seconds of one processor."""

ANISOTROPIC = 0.5
"""Mean cosine above which vectors lie in a cone: plain encoders have 0.5 and more (Ethayarajh 2019, figure 1),
trained ones less."""

HUBS = 4.0
"""Skewness of the k-occurrences above which few texts are neighbours of many; sentence encoders have 1 to 2."""

NEAR, NEAR_SHARE = 0.02, 0.05
"""Distance of near-duplicates, 1 - cosine, over that of any two texts; share of them from which on it is said."""

TRIVIAL = 0.02
"""Alignment below which positives have nearly the same vector: cosine above 0.99."""

NOT_ALIGNED = 0.8
"""Distance of positives over that of any two texts, above which they hardly lie together."""


FREQUENT = 2.0
"""Points of Spearman x 100 that leaving frequent tokens out must gain to be more than chance on 1,000 pairs; on
fewer more, as the spread of a correlation has it: one over the root of their number."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """How the vectors of some texts lie in space.

    Args:
        texts: Different texts that were measured.
        features: Width of a vector.
        mean_cosine: Of two different texts, in [-1, 1]; see ``metrics.mean_cosine``.
        uniformity: Of the pairs' texts, without pairs of the texts, from 0 to about -4; see
            ``metrics.uniformity``.
        alignment: Of the pairs that count as positives, 0 to 4, None without pairs; see ``metrics.alignment``,
            ``metrics.positive_pairs``.
        effective_rank: Directions that are filled, 1 to ``features``; see ``metrics.effective_rank``.
        isotropy: IsoScore, 0 to 1; see ``metrics.iso_score``.
        off_diagonal: Correlation of two features, 0 to 1; see ``metrics.off_diagonal``.
        hubness: Skewness of the 10-occurrences; see ``metrics.hubness``.
        orphans: Share of the texts that are among no other's 10 neighbours, 0 to 1.
        spectrum: Singular values as shares of their sum, largest first; see ``metrics.spectrum``.
        spearman: Correlation of cosine and gold score, times 100; None without pairs or if all have one score.
        frequency: The same without the k most frequent tokens in the mean, for several k; None where ``spearman``
            is, or for a pooler that takes no mean. See ``frequency_bias``.
        guide_agreement: Share of the texts whose nearest other one is the same by a guide, 0 to 1; None without a
            guide. See ``metrics.neighbour_overlap`` with k = 1, ``metrics.guide_agreement``.
        warnings: What is off, in words; empty where nothing is.
    """

    texts: int
    features: int
    mean_cosine: float
    uniformity: float
    alignment: float | None
    effective_rank: float
    isotropy: float
    off_diagonal: float
    hubness: float
    orphans: float
    spectrum: list[float]
    spearman: float | None
    frequency: list[tuple[int, float]] | None
    guide_agreement: float | None
    warnings: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON."""
        return dataclasses.asdict(self)


def diagnose(
    embed: CachedEncoder,
    texts: Sequence[str],
    pairs: Table | None = None,
    limit: int = LIMIT,
    seed: int = 42,
    guide: Callable[[Sequence[str]], Tensor] | None = None,
) -> Diagnosis:
    """Measures how texts lie in a model's space.

    A text that occurs several times is measured once.

    Args:
        embed: Gives the vectors of texts.
        texts: Texts as the model will meet them; several times as many as it has features.
        pairs: Scored pairs, as ``data.read_pairs`` gives them, for alignment and correlation.
        limit: Texts that are measured at most; of more some are drawn, and a warning says so.
        seed: Of the draw.
        guide: Gives the vectors of another model, of any width, to hold these against.

    Raises:
        ValueError: Fewer than two different texts, a limit below that, a model that gives NaN, or pairs of which
            none counts as a positive.
    """
    if limit < 2:
        raise InvalidValueError(f"diagnose.limit: expected 2 texts or more, got {limit}")
    distinct = list(dict.fromkeys(texts))
    if len(distinct) < 2:
        raise InvalidValueError(
            f"diagnose.texts: expected two different texts or more, got {len(distinct)} among {len(texts):,}; "
            "give some 1,000 texts as the model will meet them"
        )
    drawn = drawn_texts(distinct, limit, seed)
    vectors = embed(drawn)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="spearman: all")  # of vectors that are all equal: a verdict
        scored = None if pairs is None else _pair_figures(embed, pairs, limit, seed)
    hubs = metrics.hubness(vectors, k=min(NEIGHBOURS, len(vectors) - 1))
    diagnosis = Diagnosis(
        texts=len(vectors),
        features=vectors.shape[1],
        mean_cosine=float(metrics.mean_cosine(vectors)),
        uniformity=float(metrics.uniformity(vectors)) if scored is None else scored.uniformity,
        alignment=None if scored is None else scored.alignment,
        effective_rank=float(metrics.effective_rank(vectors)),
        isotropy=float(metrics.iso_score(vectors)),
        off_diagonal=float(metrics.off_diagonal(vectors)),
        hubness=hubs.skewness,
        orphans=hubs.orphans,
        spectrum=metrics.spectrum(vectors).tolist(),
        spearman=None if scored is None else scored.spearman,
        frequency=None if scored is None else scored.frequency,
        guide_agreement=None if guide is None else float(metrics.neighbour_overlap(vectors, guide(drawn), k=1)),
        warnings=[],
    )
    said = _verdicts(diagnosis, scored, metrics.nearest_similarity(vectors))
    if len(drawn) < len(distinct):
        said.append(f"{len(drawn):,} of {len(distinct):,} different texts were drawn, with seed {seed}")
    return dataclasses.replace(diagnosis, warnings=said)


class _PairFigures(NamedTuple):
    pairs: int
    apart: float  # mean squared distance of any two of their texts
    uniformity: float
    alignment: float
    spearman: float | None
    frequency: list[tuple[int, float]] | None


def _pair_figures(embed: CachedEncoder, pairs: Table, limit: int, seed: int) -> _PairFigures:
    both = STSPairs.of_table(pairs, by_column=True)
    u, v = pair_vectors(embed, both)
    target = torch.tensor([float(str(row["target"])) for row in pairs])
    positive = metrics.positive_pairs(target)
    if not positive.any():
        raise InvalidValueError(
            "diagnose.pairs: expected scores above 0, of which those above four fifths of the largest make a "
            f"positive, got scores up to {float(target.max()):g}; move the scale, or leave the pairs out"
        )
    prompts = embed.model.prompts
    kinds = [(prompts.of_kind(kind), side) for kind, side in ((QUERY, both.first), (DOCUMENT, both.second))]
    # A text is another with another prompt.
    places = {(prompt, text): None for prompt, side in kinds for text in side}
    every = [(prompt, text) for prompt, side in kinds for text in side]
    place = {each: number for number, each in reversed([*enumerate(every)])}
    spread = torch.cat([u, v])[drawn_texts([place[each] for each in places], limit, seed)]
    ordered = bool((target != target[0]).any())
    return _PairFigures(
        pairs=len(pairs),
        apart=2 - 2 * float(metrics.mean_cosine(spread)),
        uniformity=float(metrics.uniformity(spread)),
        alignment=float(metrics.alignment(u[positive], v[positive])),
        spearman=100 * float(metrics.spearman(metrics.exact_similarity(u, v), target)) if ordered else None,
        frequency=frequency_bias(embed.model, pairs) if ordered and takes_mean(embed.model) else None,
    )


def _verdicts(found: Diagnosis, of_pairs: _PairFigures | None, nearest: Tensor) -> list[str]:
    """Returns what is off; of collapsed vectors nothing else, for all the rest follows from it."""
    most = min(found.texts, found.features)
    if collapsed := collapse(found.mean_cosine, found.effective_rank, most):
        return [collapsed]
    near = 1 - NEAR * (1 - found.mean_cosine)
    duplicates = float((nearest >= near).double().mean())
    verdicts = []
    if found.mean_cosine >= ANISOTROPIC:
        verdicts.append(
            f"the space is anisotropic: two texts have cosine {found.mean_cosine:.2f} on average, so a cosine "
            "by itself tells little, though rankings may be right; contrastive training spreads the vectors, and "
            "so does contrastive-text postprocess"
        )
    if found.hubness >= HUBS:
        verdicts.append(
            f"hubs: the skewness of neighbourhoods is {found.hubness:.1f}, and {found.orphans:.0%} of the texts "
            "are among no other's neighbours; a search gives a few texts again and again"
        )
    verdicts += [] if of_pairs is None else _pair_verdicts(of_pairs)
    if duplicates >= NEAR_SHARE:
        verdicts.append(
            f"near-duplicates: {duplicates:.0%} of the texts have another with cosine {near:.3f} or more; in "
            "training they count as each other's negatives"
        )
    if found.texts < found.features:
        verdicts.append(
            f"few texts: {found.texts:,} of them can't fill {found.features:,} directions, so that effective "
            "rank and isotropy are low for want of texts; give several times as many"
        )
    return verdicts


def _pair_verdicts(found: _PairFigures) -> list[str]:
    verdicts = []
    if found.alignment < TRIVIAL:
        verdicts.append(
            f"positives are trivial: alignment {found.alignment:.4f}, so that both texts of a pair have "
            "nearly one vector; they may be copies of each other"
        )
    if found.alignment >= NOT_ALIGNED * found.apart:
        verdicts.append(
            f"positives are hardly nearer than any two texts of the pairs: alignment {found.alignment:.2f} "
            f"against {found.apart:.2f}; the model doesn't know what makes these pairs alike"
        )
    if found.frequency is not None:
        number, best = max(found.frequency, key=lambda pair: pair[1])
        whole = found.frequency[0][1]
        if best >= whole + FREQUENT * max(1.0, math.sqrt(1000 / found.pairs)):
            verdicts.append(
                f"frequent tokens pull the mean: without the {number} most frequent ones Spearman x 100 is "
                f"{best:.1f} in place of {whole:.1f}"
            )
    return verdicts
