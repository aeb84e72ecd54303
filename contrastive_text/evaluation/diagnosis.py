"""Diagnosis of a model's vectors, and bias of mean pooling towards frequent tokens."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from contrastive_text import metrics
from contrastive_text.core.errors import InvalidValueError, at_least
from contrastive_text.data import Table
from contrastive_text.data.batching import collate_texts
from contrastive_text.data.prompts import DOCUMENT, QUERY
from contrastive_text.encoders.base import Embedder, mask_unpooled, restore_order
from contrastive_text.encoders.packing import pad
from contrastive_text.encoders.shared_use import evaluating
from contrastive_text.evaluation.cached import CachedEncoder, sample_texts
from contrastive_text.evaluation.results import ScoreTable, TaskScore
from contrastive_text.evaluation.sts import Embed, pair_vectors, score_tasks
from contrastive_text.evaluation.sts_data import STSPairs
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.metrics.geometry import describe_collapse
from contrastive_text.metrics.neighbors import NEIGHBORS
from contrastive_text.poolers import FirstLastPooler, LastTwoPooler, MeanPooler

REMOVED = (0, 2, 4, 8, 16, 34, 64, 128)
"""Numbers of most frequent tokens that are removed from the mean.

BERT has 2 special tokens; 34 is best in the paper of ConSERT.
"""

_AT_ONCE = 8192
"""Largest number of tokens that the network encodes at a time."""

_COUNTED = 16_384
"""Number of texts whose tokens are counted at a time."""


def takes_mean(model: SentenceEncoder) -> bool:
    """Returns whether a model's vectors are means over tokens, from which tokens can be removed."""
    return not model.encoder.pools and isinstance(model.pooler, MeanPooler | LastTwoPooler | FirstLastPooler)


def frequency_bias(
    model: SentenceEncoder, pairs: Table, removed: Sequence[int] = REMOVED
) -> list[tuple[int, float]]:
    """Returns the correlation on scored pairs without the most frequent tokens in the mean.

    Yan et al. 2021 (ConSERT, https://arxiv.org/abs/2105.11741, section 5.1): without the 34 most frequent tokens,
    the mean of plain BERT gains 8 points of Spearman. A trained model should gain almost nothing. The network
    reads whole texts; only the mean excludes tokens. Frequencies are counted in the texts of the pairs as the
    network reads them, including special tokens. A text that would lose all tokens keeps all of them.

    Args:
        model: Model whose pooler takes a mean over tokens.
        pairs: Scored pairs, as ``data.read_pairs`` returns them.
        removed: Numbers of tokens to exclude. A number that would exclude all tokens is skipped.

    Returns:
        Each number with the Spearman correlation of cosine and gold score, times 100.

    Raises:
        ValueError: The pooler takes no mean over tokens.
    """
    scored_pairs = STSPairs.of_table(pairs)
    texts = [*scored_pairs.first, *scored_pairs.second]
    numbers = [number for number in removed if number < int((token_counts(model, texts) > 0).sum())]
    by_number = scores_without(model, {"pairs": scored_pairs}, numbers, corpus=texts)
    return [(number, score.score) for number, (score,) in by_number.items()]


def scores_without(
    model: SentenceEncoder,
    tasks: Mapping[str, STSPairs | str],
    removed: Sequence[int],
    corpus: Iterable[str] | None = None,
    setting: str = "all",
) -> dict[int, list[TaskScore]]:
    """Returns the scores of the STS tasks without the most frequent tokens in the mean.

    Yan et al. 2021 (ConSERT, https://arxiv.org/abs/2105.11741), figure 4, shows the average over the tasks
    against the number of tokens: plain BERT-base has 53.86 with all tokens and 61.66 without 34. The network
    reads the texts of the tasks once. See ``frequency_bias``.

    Args:
        model: Model whose pooler takes a mean over tokens.
        tasks: Tasks as ``find_sts`` returns them.
        removed: Numbers of tokens to exclude; 0 excludes no token.
        corpus: Texts whose tokens are counted; None for the texts of the tasks.
        setting: Way to combine the subsets of a year; see ``aggregate``.

    Returns:
        Score of each task, in the order of the tasks, by number of tokens.

    Raises:
        ValueError: The pooler takes no mean over tokens; or a number is negative, occurs twice, or excludes all
            tokens that occur.
    """
    if not takes_mean(model):
        raise InvalidValueError(
            f"frequency: expected a pooler that takes the mean over tokens, got {type(model.pooler).__name__}"
        )
    all_pairs = [pairs for pairs in tasks.values() if isinstance(pairs, STSPairs)]
    texts = list(dict.fromkeys(text for pairs in all_pairs for text in (*pairs.first, *pairs.second)))
    counts = token_counts(model, texts if corpus is None else corpus)
    different = int((counts > 0).sum())
    if len({*removed}) < len(removed) or not all(0 <= number < different for number in removed):
        raise InvalidValueError(
            f"frequency: expected different numbers of tokens from 0 to {different - 1:,}, of the {different:,} "
            f"that occur, got {', '.join(map(str, removed))}"
        )
    rows = {text: row for row, text in enumerate(texts)}

    def known(vectors: Tensor) -> Embed:
        return lambda batch: vectors[[rows[text] for text in batch]]

    return {
        number: score_tasks(known(vectors), tasks, setting)
        for number, vectors in vectors_without(model, texts, removed, counts).items()
    }


def frequency_table(
    embeds: Mapping[str, CachedEncoder],
    tasks: Mapping[str, STSPairs | str],
    removed: Sequence[int],
    corpus: Sequence[str] | None = None,
    setting: str = "all",
) -> ScoreTable:
    """Returns a table of the STS scores, with a row for each model and number of excluded tokens.

    See ``scores_without``.
    """
    rows = {
        f"{name} without {number}": scores
        for name, embed in embeds.items()
        for number, scores in scores_without(embed.model, tasks, removed, corpus, setting).items()
    }
    source = "the tasks' texts" if corpus is None else f"{len(corpus):,} texts"
    return ScoreTable(f"Spearman x 100, {setting}, without the most frequent tokens of {source}", rows)


def token_counts(model: SentenceEncoder, texts: Iterable[str]) -> Tensor:
    """Counts how often each token occurs in texts as the network reads them, including special tokens, (V,)."""
    counts, template = torch.zeros(0, dtype=torch.long), model.prompts.template(None, model.tokenizer)
    remaining = iter(texts)
    while chunk := list(islice(remaining, _COUNTED)):
        ids = collate_texts(model.tokenizer, model.tokenizer.tokenize_with_template(chunk, template)).ids
        chunk_counts = torch.bincount(ids, minlength=len(counts))
        counts = torch.cat([counts, counts.new_zeros(len(chunk_counts) - len(counts))]) + chunk_counts
    return counts


@torch.inference_mode()
def vectors_without(
    model: SentenceEncoder, texts: Sequence[str], removed: Sequence[int], counts: Tensor
) -> dict[int, Tensor]:
    """Returns the vectors of texts without the most frequent tokens, (N, D), for each number of excluded tokens.

    The network reads the texts once; see ``frequency_bias``.

    Args:
        model: Model whose pooler takes a mean over tokens.
        texts: N texts.
        removed: Numbers of tokens to exclude.
        counts: Number of occurrences of each token, as ``token_counts`` returns it, (V,).
    """
    template = model.prompts.template(None, model.tokenizer)
    batch = collate_texts(
        model.tokenizer, model.tokenizer.tokenize_with_template(texts, template), template.unpooled
    )
    counts = torch.cat([counts, counts.new_zeros(max(int(batch.ids.max()) + 1 - len(counts), 0))])
    ranks = counts.argsort(descending=True, stable=True).argsort().to(model.device)  # ties: lowest id first
    groups = Embedder(model.encoder, model.pooler, chunk_tokens=_AT_ONCE).groups(batch)
    vectors: dict[int, list[Tensor]] = {number: [] for number in removed}
    with evaluating(model):
        for group in groups:
            rows = group.batch.to(model.device)
            hidden = model.encoder(rows, layers=model.pooler.layers)
            token_ranks = pad(ranks[rows.ids], hidden.mask, fill=0)
            (hidden,) = [hidden] if rows.unpooled is None else mask_unpooled([hidden], rows.unpooled)
            for number, blocks in vectors.items():
                mask = hidden.mask & (token_ranks >= number)
                mask = torch.where(mask.any(dim=1, keepdim=True), mask, hidden.mask)
                pooled = model.pooler(replace(hidden, mask=mask))
                blocks.append(model.from_pooled(pooled)[:, : model.truncate_dim])
    return {number: restore_order(blocks, groups).cpu() for number, blocks in vectors.items()}


LIMIT = 20_000
"""Largest number of texts whose vectors are measured.

All pairs of these texts are compared, in 20 seconds of one processor.
"""

ANISOTROPIC = 0.5
"""Mean cosine above which vectors form a cone. Plain encoders reach 0.5 (Ethayarajh 2019, figure 1), trained
encoders don't."""

HUBS = 4.0
"""Skewness of the k-occurrences above which few texts are neighbors of many. Sentence encoders have 1 to 2."""

NEAR, NEAR_SHARE = 0.02, 0.05
"""Largest distance of near-duplicates (1 - cosine), relative to the mean distance of texts; and smallest share
of texts with a near-duplicate that causes a warning."""

TRIVIAL = 0.02
"""Alignment below which positives have nearly the same vector, which is a cosine above 0.99."""

NOT_ALIGNED = 0.8
"""Distance of positives, relative to the mean distance of two texts, above which positives are hardly closer."""


FREQUENT = 2.0
"""Gain of Spearman x 100 without frequent tokens that is more than chance on 1,000 pairs. On n pairs the limit is
multiplied by sqrt(1000 / n), because the spread of a correlation is proportional to 1 / sqrt(n)."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Metrics of the geometry of a model's vectors of some texts.

    Args:
        texts: Number of different texts that were measured.
        features: Width of a vector.
        mean_cosine: Mean cosine of two different texts, in [-1, 1]; see ``metrics.mean_cosine``.
        uniformity: Uniformity of the texts of the pairs, or of the texts if there are no pairs, from 0 to about
            -4; see ``metrics.uniformity``.
        alignment: Alignment of the pairs that are positives, 0 to 4; None without pairs. See
            ``metrics.alignment`` and ``metrics.positive_pairs``.
        effective_rank: Number of directions that the vectors use, 1 to ``features``; see
            ``metrics.effective_rank``.
        isotropy: IsoScore, 0 to 1; see ``metrics.iso_score``.
        off_diagonal: Correlation of two features, 0 to 1; see ``metrics.off_diagonal``.
        hubness: Skewness of the 10-occurrences; see ``metrics.hubness``.
        orphans: Share of texts that are among the 10 nearest neighbors of no other text, 0 to 1.
        spectrum: Singular values as shares of their sum, largest first; see ``metrics.spectrum``.
        spearman: Spearman correlation of cosine and gold score, times 100; None without pairs or if all scores
            are equal.
        frequency: ``spearman`` without the k most frequent tokens in the mean, for several k; None if
            ``spearman`` is None or the pooler takes no mean. See ``frequency_bias``.
        guide_agreement: Share of texts whose nearest other text is the same for a guide, 0 to 1; None without a
            guide. See ``metrics.neighbor_overlap`` with k = 1, ``metrics.guide_agreement``.
        warnings: One sentence for each problem; empty without problems.
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
        """Returns all metrics of the geometry as a dict for JSON."""
        return dataclasses.asdict(self)


def diagnose(
    embed: CachedEncoder,
    texts: Sequence[str],
    pairs: Table | None = None,
    limit: int = LIMIT,
    seed: int = 42,
    guide: Callable[[Sequence[str]], Tensor] | None = None,
) -> Diagnosis:
    """Measures the geometry of a model's vectors of texts.

    A text that occurs several times is measured once.

    Args:
        embed: Encoder of the texts.
        texts: Texts of the kind that the model will encode, several times as many as the vectors have features.
        pairs: Scored pairs, as ``data.read_pairs`` returns them, for alignment and correlation.
        limit: Largest number of texts to measure. If there are more, a random sample is measured, and a warning
            names its size.
        seed: Seed of the sample.
        guide: Function from texts to the vectors of another model, of any width, to measure the agreement of
            both models.

    Raises:
        ValueError: There are fewer than two different texts, the limit is below 2, a vector has NaN, or no pair
            is a positive.
    """
    at_least("diagnose.limit", limit, 2)
    distinct = list(dict.fromkeys(texts))
    if len(distinct) < 2:
        raise InvalidValueError(
            f"diagnose.texts: expected two different texts or more, got {len(distinct)} among {len(texts):,}; "
            "give some 1,000 texts like those that the model will encode"
        )
    sample = sample_texts(distinct, limit, seed)
    vectors = embed(sample)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*spearman: all")  # the verdicts report equal vectors
        figures = None if pairs is None else _pair_figures(embed, pairs, limit, seed)
    hubs = metrics.hubness(vectors, k=min(NEIGHBORS, len(vectors) - 1))
    diagnosis = Diagnosis(
        texts=len(vectors),
        features=vectors.shape[1],
        mean_cosine=float(metrics.mean_cosine(vectors)),
        uniformity=float(metrics.uniformity(vectors)) if figures is None else figures.uniformity,
        alignment=None if figures is None else figures.alignment,
        effective_rank=float(metrics.effective_rank(vectors)),
        isotropy=float(metrics.iso_score(vectors)),
        off_diagonal=float(metrics.off_diagonal(vectors)),
        hubness=hubs.skewness,
        orphans=hubs.orphans,
        spectrum=metrics.spectrum(vectors).tolist(),
        spearman=None if figures is None else figures.spearman,
        frequency=None if figures is None else figures.frequency,
        guide_agreement=None if guide is None else float(metrics.neighbor_overlap(vectors, guide(sample), k=1)),
        warnings=[],
    )
    verdicts = _verdicts(diagnosis, figures, metrics.nearest_similarity(vectors))
    if len(sample) < len(distinct):
        verdicts.append(f"{len(sample):,} of {len(distinct):,} different texts were drawn, with seed {seed}")
    return dataclasses.replace(diagnosis, warnings=verdicts)


class _PairFigures(NamedTuple):
    pairs: int
    apart: float  # mean squared distance of two texts of the pairs
    uniformity: float
    alignment: float
    spearman: float | None
    frequency: list[tuple[int, float]] | None


def _pair_figures(embed: CachedEncoder, pairs: Table, limit: int, seed: int) -> _PairFigures:
    """Measures the metrics of scored pairs: correlation, alignment and the effect of frequent tokens."""
    scored_pairs = STSPairs.of_table(pairs, by_column=True)
    u, v = pair_vectors(embed, scored_pairs)
    target = torch.tensor([float(str(row["target"])) for row in pairs])
    positive = metrics.positive_pairs(target)
    if not positive.any():
        raise InvalidValueError(
            f"diagnose.pairs: expected positive scores, got scores up to {float(target.max()):g}; shift the "
            "scores, or remove the pairs. Pairs above four fifths of the largest score count as positives."
        )
    prompts, pools = embed.model.prompts, embed.model.encoder.pools
    sides = [
        (kind if pools else prompts.for_kind(kind), texts)
        for kind, texts in ((QUERY, scored_pairs.first), (DOCUMENT, scored_pairs.second))
    ]
    # Equal texts with different prompts or encoders are different texts.
    distinct = {(prompt, text): None for prompt, texts in sides for text in texts}
    inputs = [(prompt, text) for prompt, texts in sides for text in texts]
    first_rows = {pair: row for row, pair in reversed([*enumerate(inputs)])}
    spread = torch.cat([u, v])[sample_texts([first_rows[pair] for pair in distinct], limit, seed)]
    has_order = bool((target != target[0]).any())
    return _PairFigures(
        pairs=len(pairs),
        apart=2 - 2 * float(metrics.mean_cosine(spread)),
        uniformity=float(metrics.uniformity(spread)),
        alignment=float(metrics.alignment(u[positive], v[positive])),
        spearman=100 * float(metrics.spearman(metrics.exact_similarity(u, v), target)) if has_order else None,
        frequency=frequency_bias(embed.model, pairs) if has_order and takes_mean(embed.model) else None,
    )


def _verdicts(diagnosis: Diagnosis, pairs: _PairFigures | None, nearest: Tensor) -> list[str]:
    """Returns a sentence for each problem, or only the collapse of the vectors, which causes other problems."""
    if collapse_verdict := describe_collapse(
        diagnosis.mean_cosine, diagnosis.effective_rank, min(diagnosis.texts, diagnosis.features)
    ):
        return [collapse_verdict]
    near = 1 - NEAR * (1 - diagnosis.mean_cosine)
    duplicates = float((nearest >= near).double().mean())
    verdicts = [
        (
            diagnosis.mean_cosine >= ANISOTROPIC,
            f"the space is anisotropic: two texts have cosine {diagnosis.mean_cosine:.2f} on average, so a "
            "cosine by itself tells little, though rankings may be right; contrastive training spreads the "
            "vectors, and so does contrastive-text postprocess",
        ),
        (
            diagnosis.hubness >= HUBS,
            f"hubs: the skewness of neighborhoods is {diagnosis.hubness:.1f}, and {diagnosis.orphans:.0%} of the "
            "texts are among no other's neighbors; a search gives a few texts again and again",
        ),
        *([] if pairs is None else _pair_verdicts(pairs)),
        (
            duplicates >= NEAR_SHARE,
            f"near-duplicates: {duplicates:.0%} of the texts have another with cosine {near:.3f} or more; "
            "in training they count as each other's negatives",
        ),
        (
            diagnosis.texts < diagnosis.features,
            f"few texts: {diagnosis.texts:,} of them can't fill {diagnosis.features:,} directions, so that "
            "effective rank and isotropy are low for want of texts; give several times as many",
        ),
    ]
    return [sentence for applies, sentence in verdicts if applies]


def _pair_verdicts(pairs: _PairFigures) -> list[tuple[bool, str]]:
    """Returns sentences about problems of the scored pairs, each with whether it applies."""
    frequency = pairs.frequency or [(0, 0.0)]
    (_, with_all), (number, best) = frequency[0], max(frequency, key=lambda pair: pair[1])
    return [
        (
            pairs.alignment < TRIVIAL,
            f"positives are trivial: alignment {pairs.alignment:.4f}, so that both texts of a pair have nearly "
            "one vector; they may be copies of each other",
        ),
        (
            pairs.alignment >= NOT_ALIGNED * pairs.apart,
            "positives are hardly nearer than any two texts of the pairs: alignment "
            f"{pairs.alignment:.2f} against {pairs.apart:.2f}; the model doesn't know what makes these pairs "
            "alike",
        ),
        (
            best >= with_all + FREQUENT * max(1.0, math.sqrt(1000 / pairs.pairs)),
            f"frequent tokens pull the mean: without the {number} most frequent ones Spearman x 100 is "
            f"{best:.1f} in place of {with_all:.1f}",
        ),
    ]
