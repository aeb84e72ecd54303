"""Semantic textual similarity: cosine of two texts against a gold score."""

from __future__ import annotations

import math
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

from torch import Tensor

from contrastive_text.core.errors import InvalidValueError
from contrastive_text.data import Table
from contrastive_text.data.prompts import DOCUMENT, QUERY
from contrastive_text.evaluation.cached import CachedEncoder
from contrastive_text.evaluation.results import TaskScore
from contrastive_text.evaluation.sts.data import STSPairs, find_sts
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.metrics import exact_similarity, pearson, spearman

Embed: TypeAlias = Callable[[Sequence[str]], Tensor]
"""From N texts to their vectors, (N, D): a ``CachedEncoder``, or what else knows them."""

SETTINGS = ("all", "mean", "wmean")
"""How the sub-sets of a year become one score: see ``aggregate``."""


def pair_vectors(embed: Embed, pairs: STSPairs) -> tuple[Tensor, Tensor]:
    """Returns the vectors of the first texts and of the second, (n, D) each, encoded together if they can be."""
    if pairs.by_column and isinstance(embed, CachedEncoder):
        prompts = embed.model.prompts
        if prompts.of_kind(QUERY) != prompts.of_kind(DOCUMENT):
            return embed(pairs.first, QUERY), embed(pairs.second, DOCUMENT)
        embed = partial(embed, kind=QUERY) if prompts else embed
    vectors = embed([*pairs.first, *pairs.second])
    return vectors[: len(pairs)], vectors[len(pairs) :]


def pair_cosines(embed: Embed, pairs: STSPairs) -> Tensor:
    """Returns the cosine of the two vectors of each pair, (n,), float64."""
    return exact_similarity(*pair_vectors(embed, pairs))


Correlation: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""``spearman`` or ``pearson`` of ``metrics``."""


def aggregate(
    similarities: Tensor, pairs: STSPairs, setting: str, correlation: Correlation = spearman
) -> tuple[float, dict[str, float]]:
    """Returns the score of a task, and of each of its sub-sets.

    ``all`` is one Spearman correlation over all pairs together (SBERT, SimCSE, ConSERT), ``mean`` the mean of the
    sub-sets' correlations (SentEval, DeCLUTR), ``wmean`` their mean weighted by pairs (SentEval). They differ by
    several points: see SimCSE (Gao et al. 2021, https://aclanthology.org/2021.emnlp-main.552), appendix B.

    Args:
        similarities: Of each pair, (n,).
        pairs: The pairs.
        setting: ``all``, ``mean`` or ``wmean``.
        correlation: Of similarities and gold scores.

    Returns:
        Correlations times 100. Where all similarities are equal one is 0, with a warning; of a single
        pair it is NaN.

    Raises:
        ValueError: Another setting, or a mean over sub-sets that have no names or a single pair.

    Example:
        >>> import torch
        >>> gold = torch.tensor([1.0, 2, 3, 0, 1])
        >>> pairs = STSPairs(first=[""] * 5, second=[""] * 5, gold=gold, subsets=["a", "a", "a", "b", "b"])
        >>> mean, parts = aggregate(torch.tensor([0.1, 0.3, 0.2, 0.9, 0.8]), pairs, "mean")
        >>> round(mean), {name: round(part) for name, part in parts.items()}
        (-25, {'a': 50, 'b': -100})
    """
    check_setting(setting, [pairs])
    groups: defaultdict[str, list[int]] = defaultdict(list)
    for place, subset in enumerate(pairs.subsets):
        groups[subset].append(place)

    def of(values: Tensor, gold: Tensor) -> float:
        return 100 * float(correlation(values.double(), gold)) if len(gold) > 1 else math.nan

    whole = of(similarities, pairs.gold) if setting == "all" else math.nan
    parts = {name: of(similarities[group], pairs.gold[group]) for name, group in groups.items()}
    if setting == "all":
        return whole, parts
    if single := [name for name, group in groups.items() if len(group) < 2]:
        raise InvalidValueError(
            f"aggregate.pairs: expected two pairs or more in each sub-set for the setting {setting}, got one in "
            f"{single[0]}; take the setting all"
        )
    weights = {name: len(group) if setting == "wmean" else 1 for name, group in groups.items()}
    return sum(weights[name] * part for name, part in parts.items()) / sum(weights.values()), parts


def check_setting(setting: str, tasks: Iterable[STSPairs]) -> None:
    """Checks that a setting is one, and that sub-sets are known where it asks for them (ValueError)."""
    if setting not in SETTINGS:
        raise InvalidValueError(
            f"setting: expected {', '.join(SETTINGS)}, got {setting!r}; the papers mostly have all"
        )
    for pairs in tasks:
        if setting != "all" and "" in pairs.subsets:
            raise InvalidValueError(
                f"setting: expected pairs whose sub-sets are named for {setting}, got "
                f"{pairs.understood or 'pairs without names'}; take all, or files with a column subset"
            )


def sts_scores(embed: CachedEncoder, folder: str | Path, setting: str = "all") -> list[TaskScore]:
    """Returns the scores of STS12 to STS16, STS-B and SICK-R: Spearman of cosine and gold score, times 100.

    No task trains anything: STS-B and SICK-R are scored on their test pairs as the years are. The tasks of the
    same data that train a regressor are in ``trained_sts``.

    Args:
        embed: The encoder.
        folder: Where the data sets are; see ``sts_data.find_pairs``.
        setting: How the sub-sets of a year are joined; see ``aggregate``.

    Returns:
        The seven tasks in the papers' order; one that isn't found has no score and says where to get it.
        ``parts`` has the sub-sets of a year.

    Raises:
        FileNotFoundError: No such folder.
        ValueError: A damaged file or model, another setting, or a mean over sub-sets without names.

    Example:
        >>> [(score.task, score.score) for score in sts_scores(embed, "data")]  # doctest: +SKIP
        [('STS12', 72.37), ('STS13', 80.6), ...]
    """
    return score_tasks(embed, find_sts(folder), setting)


def score_tasks(
    embed: Embed, tasks: Mapping[str, STSPairs | str], setting: str, correlation: Correlation = spearman
) -> list[TaskScore]:
    """Returns the scores of tasks that ``find_sts`` has found; their metric is the correlation's name."""
    check_setting(setting, [pairs for pairs in tasks.values() if isinstance(pairs, STSPairs)])
    return [
        TaskScore.absent(task, correlation.__name__, pairs)
        if isinstance(pairs, str)
        else _task_score(embed, task, pairs, setting, correlation)
        for task, pairs in tasks.items()
    ]


def _task_score(embed: Embed, task: str, pairs: STSPairs, setting: str, correlation: Correlation) -> TaskScore:
    cosines = pair_cosines(embed, pairs)
    with warnings_named(task):
        score, parts = aggregate(cosines, pairs, setting, correlation)
    parts = parts if len(parts) > 1 else {}
    return TaskScore(task, correlation.__name__, score, size=len(pairs), parts=parts)


@contextmanager
def warnings_named(task: str) -> Iterator[None]:
    """Puts the name of the task before a warning; of several, such as each sub-set's of collapse, the first."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        yield
    if said:
        warnings.warn(f"{task}: {said[0].message}", stacklevel=3)


class PairScore(NamedTuple):
    """The correlation over some pairs.

    Args:
        subset: Name of the sub-set, ``all`` for the whole file.
        pairs: Number of pairs.
        spearman: Spearman correlation of cosine and gold score, times 100; NaN for a single pair.
        pearson: Pearson correlation of the same.
        accuracy: Share of the pairs, times 100, whose label is 1 where their cosine is above a threshold and 0
            elsewhere; None without a threshold.

    Example:
        >>> PairScore("all", pairs=1_500, spearman=81.2, pearson=80.4).spearman
        81.2
    """

    subset: str
    pairs: int
    spearman: float
    pearson: float
    accuracy: float | None = None


def evaluate_pairs(
    model: SentenceEncoder, table: Table, batch_size: int = 64, show_progress_bar: bool = False
) -> list[PairScore]:
    """Returns the correlation over all pairs together, then over each sub-set if there are several.

    The first is the setting ``all`` of SBERT, SimCSE and ConSERT: one correlation over the sub-sets'
    concatenation, not a mean of theirs.

    Args:
        model: The encoder.
        table: Scored pairs, as ``data.read_pairs`` gives them.
        batch_size: Texts at once.
        show_progress_bar: Whether to draw a bar.

    Raises:
        ValueError: A vector with NaN or infinity.
    """
    return score_table(CachedEncoder(model, batch_size=batch_size, show_progress_bar=show_progress_bar), table)


def score_table(embed: CachedEncoder, table: Table, threshold: float | None = None) -> list[PairScore]:
    """Returns what ``evaluate_pairs`` does, with vectors that several tables share.

    First texts have the model's prompt of queries, second ones that of documents, as in validation.

    Args:
        embed: The encoder.
        table: Scored pairs.
        threshold: The cosine above which a pair is predicted to be of label 1, as by ``CosineScorer``; None for
            no accuracies.
    """
    pairs = STSPairs.of_table(table, by_column=True)
    cosines, sizes = pair_cosines(embed, pairs), Counter(pairs.subsets)
    whole, parts = zip(
        *(aggregate(cosines, pairs, "all", correlation) for correlation in (spearman, pearson)), strict=True
    )
    subsets = list(parts[0]) if len(sizes) > 1 else []
    scores = [
        PairScore("all", len(pairs), *whole),
        *(PairScore(name, sizes[name], *(part[name] for part in parts)) for name in subsets),
    ]
    if threshold is None:
        return scores
    right = ((cosines > threshold) == (pairs.gold == 1)).double()
    rows = [right, *(right[[each == name for each in pairs.subsets]] for name in subsets)]
    return [score._replace(accuracy=100 * float(of.mean())) for score, of in zip(scores, rows, strict=True)]


def check_labels(where: str, table: Table) -> None:
    """Checks that the gold scores of pairs are labels, 0 or 1 (ValueError)."""
    others = [row["target"] for row in table if row["target"] not in (0.0, 1.0)]
    if others:
        raise InvalidValueError(
            f"{where}: expected pairs labelled 0 or 1 for an accuracy, got {others[0]}; leave --threshold out"
        )
