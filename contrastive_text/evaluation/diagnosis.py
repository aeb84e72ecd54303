"""Diagnosis of a vector space, and the bias of means towards frequent tokens."""

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
from contrastive_text.core.checks import at_least
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.data import Table
from contrastive_text.data.collator import collate_texts
from contrastive_text.data.prompts import DOCUMENT, QUERY
from contrastive_text.encoders.embedder import Embedder, in_order, pooled_part
from contrastive_text.encoders.packing import pad
from contrastive_text.encoders.shared_use import evaluating
from contrastive_text.evaluation.cached import CachedEncoder, drawn_texts
from contrastive_text.evaluation.results import ScoreTable, TaskScore
from contrastive_text.evaluation.sts import Embed, pair_vectors, score_tasks
from contrastive_text.evaluation.sts_data import STSPairs
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.metrics.neighbors import NEIGHBORS
from contrastive_text.metrics.verdicts import collapse
from contrastive_text.poolers import FirstLastPooler, LastTwoPooler, MeanPooler

REMOVED = (0, 2, 4, 8, 16, 34, 64, 128)
"""Numbers of the most frequent tokens to remove. Two are BERT's special tokens; 34 was the best in the paper."""

_AT_ONCE = 8192
"""Tokens that go through the network together."""

_COUNTED = 16_384
"""Texts whose tokens are counted together."""


def takes_mean(model: SentenceEncoder) -> bool:
    """Returns whether a model's vectors are means over tokens, so that tokens can be removed from the mean."""
    return isinstance(model.pooler, MeanPooler | LastTwoPooler | FirstLastPooler)


def frequency_bias(
    model: SentenceEncoder, pairs: Table, removed: Sequence[int] = REMOVED
) -> list[tuple[int, float]]:
    """Returns the correlation on scored pairs without the most frequent tokens in the mean.

    Yan et al. 2021 (ConSERT, https://arxiv.org/abs/2105.11741, section 5.1): without the 34 most
    frequent tokens the mean of plain BERT gains 8 points of Spearman; a trained model should gain hardly any. The
    network reads whole texts; only the mean leaves tokens out. Frequencies are those in the pairs' own texts, as
    they enter the network, special tokens among them. A text that would lose all its tokens keeps them all.

    Args:
        model: A model whose pooler is a mean over tokens.
        pairs: Scored pairs, as ``data.read_pairs`` gives them.
        removed: How many tokens are left out each time; numbers that would leave none are dropped.

    Returns:
        For each number the Spearman correlation of cosine and gold score, times 100.

    Raises:
        ValueError: A pooler that takes no mean.
    """
    scored = STSPairs.of_table(pairs)
    texts = [*scored.first, *scored.second]
    fewer = [number for number in removed if number < int((token_counts(model, texts) > 0).sum())]
    found = scores_without(model, {"pairs": scored}, fewer, corpus=texts)
    return [(number, score.score) for number, (score,) in found.items()]


def scores_without(
    model: SentenceEncoder,
    tasks: Mapping[str, STSPairs | str],
    removed: Sequence[int],
    corpus: Iterable[str] | None = None,
    setting: str = "all",
) -> dict[int, list[TaskScore]]:
    """Returns the scores of the STS tasks without the most frequent tokens in the mean.

    Yan et al. 2021 (ConSERT, https://arxiv.org/abs/2105.11741), figure 4: the average over the tasks against the
    number of tokens; plain BERT-base has 53.86 with all and 61.66 without 34. The tasks' texts go through the
    network once. See ``frequency_bias``.

    Args:
        model: A model whose pooler is a mean over tokens.
        tasks: As ``find_sts`` gives them.
        removed: How many tokens are left out each time, 0 for none.
        corpus: Texts whose tokens are counted; None for those of the tasks.
        setting: How the subsets of a year are joined; see ``aggregate``.

    Returns:
        For each number a score a task, in the order of the tasks.

    Raises:
        ValueError: A pooler that takes no mean, or a number below 0, given twice, or as large as that of the
            different tokens.
    """
    if not takes_mean(model):
        raise InvalidValueError(
            "frequency: expected a pooler that takes the mean over tokens, of which some can be left out, "
            f"got {type(model.pooler).__name__}"
        )
    found = [pairs for pairs in tasks.values() if isinstance(pairs, STSPairs)]
    texts = list(dict.fromkeys(text for pairs in found for text in (*pairs.first, *pairs.second)))
    counts = token_counts(model, texts if corpus is None else corpus)
    different = int((counts > 0).sum())
    if len({*removed}) < len(removed) or not all(0 <= number < different for number in removed):
        raise InvalidValueError(
            f"frequency: expected different numbers of tokens from 0 to {different - 1:,}, of the {different:,} "
            f"that occur, got {', '.join(map(str, removed))}"
        )
    places = {text: i for i, text in enumerate(texts)}

    def known(vectors: Tensor) -> Embed:
        return lambda some: vectors[[places[text] for text in some]]

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
    """Returns a table of the STS tasks, with a row for each model and number; see ``scores_without``."""
    rows = {
        f"{name} without {number}": scores
        for name, embed in embeds.items()
        for number, scores in scores_without(embed.model, tasks, removed, corpus, setting).items()
    }
    counted = "the tasks' texts" if corpus is None else f"{len(corpus):,} texts"
    return ScoreTable(f"Spearman x 100, {setting}, without the most frequent tokens of {counted}", rows)


def token_counts(model: SentenceEncoder, texts: Iterable[str]) -> Tensor:
    """Returns how often each token occurs in texts as they enter the network, special ones too, (V,)."""
    counts, frame = torch.zeros(0, dtype=torch.long), model.prompts.frame(None, model.tokenizer)
    left = iter(texts)
    while some := list(islice(left, _COUNTED)):
        ids = collate_texts(model.tokenizer, model.tokenizer.framed(some, frame)).ids
        new = torch.bincount(ids, minlength=len(counts))
        counts = torch.cat([counts, counts.new_zeros(len(new) - len(counts))]) + new
    return counts


@torch.inference_mode()
def vectors_without(
    model: SentenceEncoder, texts: Sequence[str], removed: Sequence[int], counts: Tensor
) -> dict[int, Tensor]:
    """Returns for each number the texts' vectors without so many of the most frequent tokens, (N, D) each.

    The texts go through the network once; see ``frequency_bias``.

    Args:
        model: A model whose pooler is a mean over tokens.
        texts: N texts.
        removed: The numbers.
        counts: How often each token occurs, as ``token_counts`` gives it, (V,).
    """
    frame = model.prompts.frame(None, model.tokenizer)
    batch = collate_texts(model.tokenizer, model.tokenizer.framed(texts, frame), frame.unpooled)
    counts = torch.cat([counts, counts.new_zeros(max(int(batch.ids.max()) + 1 - len(counts), 0))])
    places = counts.argsort(descending=True, stable=True).argsort().to(model.device)  # of equal ones the first id
    groups = Embedder(model.encoder, model.pooler, chunk_tokens=_AT_ONCE).groups(batch)
    vectors: dict[int, list[Tensor]] = {number: [] for number in removed}
    with evaluating(model):
        for group in groups:
            rows = group.batch.to(model.device)
            hidden = model.encoder(rows, layers=model.pooler.layers)
            place = pad(places[rows.ids], hidden.mask, fill=0)
            (hidden,) = [hidden] if rows.unpooled is None else pooled_part([hidden], rows.unpooled)
            for number, found in vectors.items():
                kept = hidden.mask & (place >= number)
                kept = torch.where(kept.any(dim=1, keepdim=True), kept, hidden.mask)
                pooled = model.pooler(replace(hidden, mask=kept))
                found.append(model.from_pooled(pooled)[:, : model.truncate_dim])
    return {number: in_order(found, groups).cpu() for number, found in vectors.items()}


LIMIT = 20_000
"""Texts that are measured at most: all pairs of them count, 20 seconds of one processor."""

ANISOTROPIC = 0.5
"""Mean cosine above which vectors lie in a cone: plain encoders have 0.5 and more (Ethayarajh 2019, figure 1),
trained ones less."""

HUBS = 4.0
"""Skewness of the k-occurrences above which few texts are neighbors of many; sentence encoders have 1 to 2."""

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
    """Figures of the geometry of the vectors of some texts.

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
        orphans: Share of the texts that are among no other's 10 neighbors, 0 to 1.
        spectrum: Singular values as shares of their sum, largest first; see ``metrics.spectrum``.
        spearman: Correlation of cosine and gold score, times 100; None without pairs or if all have one score.
        frequency: The same without the k most frequent tokens in the mean, for several k; None where ``spearman``
            is, or for a pooler that takes no mean. See ``frequency_bias``.
        guide_agreement: Share of the texts whose nearest other one is the same by a guide, 0 to 1; None without a
            guide. See ``metrics.neighbor_overlap`` with k = 1, ``metrics.guide_agreement``.
        warnings: A sentence for each problem; empty if there is none.
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
    """Measures the geometry of the vectors that a model gives texts.

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
    at_least("diagnose.limit", limit, 2)
    distinct = list(dict.fromkeys(texts))
    if len(distinct) < 2:
        raise InvalidValueError(
            f"diagnose.texts: expected two different texts or more, got {len(distinct)} among {len(texts):,}; "
            "give some 1,000 texts as the model will meet them"
        )
    drawn = drawn_texts(distinct, limit, seed)
    vectors = embed(drawn)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*spearman: all")  # equal vectors get a verdict
        scored = None if pairs is None else _pair_figures(embed, pairs, limit, seed)
    hubs = metrics.hubness(vectors, k=min(NEIGHBORS, len(vectors) - 1))
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
        guide_agreement=None if guide is None else float(metrics.neighbor_overlap(vectors, guide(drawn), k=1)),
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
    """Returns a sentence for each problem. A collapse hides all others, which follow from it."""
    if collapsed := collapse(found.mean_cosine, found.effective_rank, min(found.texts, found.features)):
        return [collapsed]
    near = 1 - NEAR * (1 - found.mean_cosine)
    duplicates = float((nearest >= near).double().mean())
    verdicts = [
        (
            found.mean_cosine >= ANISOTROPIC,
            f"the space is anisotropic: two texts have cosine {found.mean_cosine:.2f} on average, so a cosine by "
            "itself tells little, though rankings may be right; contrastive training spreads the vectors, and so "
            "does contrastive-text postprocess",
        ),
        (
            found.hubness >= HUBS,
            f"hubs: the skewness of neighborhoods is {found.hubness:.1f}, and {found.orphans:.0%} of the texts "
            "are among no other's neighbors; a search gives a few texts again and again",
        ),
        *([] if of_pairs is None else _pair_verdicts(of_pairs)),
        (
            duplicates >= NEAR_SHARE,
            f"near-duplicates: {duplicates:.0%} of the texts have another with cosine {near:.3f} or more; in "
            "training they count as each other's negatives",
        ),
        (
            found.texts < found.features,
            f"few texts: {found.texts:,} of them can't fill {found.features:,} directions, so that effective "
            "rank and isotropy are low for want of texts; give several times as many",
        ),
    ]
    return [words for applies, words in verdicts if applies]


def _pair_verdicts(found: _PairFigures) -> list[tuple[bool, str]]:
    """Returns sentences about the pairs, and whether each applies."""
    frequency = found.frequency or [(0, 0.0)]
    (_, whole), (number, best) = frequency[0], max(frequency, key=lambda pair: pair[1])
    return [
        (
            found.alignment < TRIVIAL,
            f"positives are trivial: alignment {found.alignment:.4f}, so that both texts of a pair have nearly "
            "one vector; they may be copies of each other",
        ),
        (
            found.alignment >= NOT_ALIGNED * found.apart,
            f"positives are hardly nearer than any two texts of the pairs: alignment {found.alignment:.2f} "
            f"against {found.apart:.2f}; the model doesn't know what makes these pairs alike",
        ),
        (
            best >= whole + FREQUENT * max(1.0, math.sqrt(1000 / found.pairs)),
            f"frequent tokens pull the mean: without the {number} most frequent ones Spearman x 100 is "
            f"{best:.1f} in place of {whole:.1f}",
        ),
    ]
