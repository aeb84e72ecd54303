"""Semantic textual similarity: cosines against gold scores, and the trained regressor of SentEval."""

from __future__ import annotations

import math
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from contrastive_text.core.checks import one_of
from contrastive_text.core.errors import InvalidValueError
from contrastive_text.data import Table
from contrastive_text.data.prompts import DOCUMENT, QUERY
from contrastive_text.evaluation.cached import CachedEncoder
from contrastive_text.evaluation.results import TaskScore
from contrastive_text.evaluation.sts_data import STSPairs, find_pairs, find_sts
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.metrics import exact_similarity, pearson, spearman

Embed: TypeAlias = Callable[[Sequence[str]], Tensor]
"""From N texts to their vectors, (N, D): a ``CachedEncoder``, or what else knows them."""

SETTINGS = ("all", "mean", "wmean")
"""Ways to combine the subsets of a year into one score; see ``aggregate``."""


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
    """Returns the score of a task, and of each of its subsets.

    ``all`` is one Spearman correlation over all pairs together (SBERT, SimCSE, ConSERT), ``mean`` the mean of the
    subsets' correlations (SentEval, DeCLUTR), ``wmean`` their mean weighted by pairs (SentEval). They differ by
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
        ValueError: Another setting, or a mean over subsets that have no names or a single pair.

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
            f"aggregate.pairs: expected two pairs or more in each subset for the setting {setting}, got one in "
            f"{single[0]}; take the setting all"
        )
    weights = {name: len(group) if setting == "wmean" else 1 for name, group in groups.items()}
    return sum(weights[name] * part for name, part in parts.items()) / sum(weights.values()), parts


def check_setting(setting: str, tasks: Iterable[STSPairs]) -> None:
    """Checks the name of a setting, and that the pairs name the subsets that it reads (ValueError)."""
    one_of("setting", setting, SETTINGS, "the papers mostly have all")
    for pairs in tasks:
        if setting != "all" and "" in pairs.subsets:
            raise InvalidValueError(
                f"setting: expected pairs whose subsets are named for {setting}, got "
                f"{pairs.understood or 'pairs without names'}; take all, or files with a column subset"
            )


def sts_scores(embed: CachedEncoder, folder: str | Path, setting: str = "all") -> list[TaskScore]:
    """Returns the scores of STS12 to STS16, STS-B and SICK-R: Spearman of cosine and gold score, times 100.

    No task trains anything: STS-B and SICK-R are scored on their test pairs as the years are. The tasks of the
    same data that train a regressor are those of ``trained_sts_scores``.

    Args:
        embed: The encoder.
        folder: Where the data sets are; see ``sts_data.find_pairs``.
        setting: How the subsets of a year are joined; see ``aggregate``.

    Returns:
        The seven tasks in the papers' order; one that isn't found has no score and says where to get it.
        ``parts`` has the subsets of a year.

    Raises:
        FileNotFoundError: No such folder.
        ValueError: A damaged file or model, another setting, or a mean over subsets without names.

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
    """Adds the name of the task to the front of a warning. Shows the first of several, as of each subset."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        yield
    if said:
        warnings.warn(f"{task}: {said[0].message}", stacklevel=3)


class PairScore(NamedTuple):
    """The correlation over some pairs.

    Args:
        subset: Name of the subset, ``all`` for the whole file.
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
    """Returns the correlation over all pairs together, then over each subset if there are several.

    The first is the setting ``all`` of SBERT, SimCSE and ConSERT: one correlation over the subsets'
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
            f"{where}: expected pairs labeled 0 or 1 for an accuracy, got {others[0]}; leave --threshold out"
        )


TRAINED_TASKS = {"STS-B (trained)": "STS-B", "SICK-R (trained)": "SICK-R"}
"""Name of a trained task -> the task of its data."""
CLASSES = torch.arange(1.0, 6.0)
"""The scores that the regressor gives probabilities: 1 to 5 for both data sets, as in SentEval."""
_BATCH = 64
_ROUND = 50
_EPOCHS = 1050
_FAILURES = 4
"""Pairs a step; epochs between two looks at the dev pairs; most epochs; looks without a gain before the end."""


def trained_sts_scores(embed: CachedEncoder, folder: str | Path) -> list[TaskScore]:
    """Returns the scores of STS-B and SICK-R with a trained regressor: Spearman on the test pairs, times 100.

    The protocol of SentEval (Conneau and Kiela 2018, https://arxiv.org/abs/1803.05449; its
    ``senteval/tools/relatedness.py``), which DeCLUTR's tables follow. It measures what a regressor can read from
    the vectors, the cosine how they lie: a plain pretrained encoder may be good at the one and poor at the other,
    so these tasks have names of their own.

    Args:
        embed: The encoder.
        folder: Where train, dev and test pairs are; see ``sts_data.find_pairs``.

    Returns:
        Both tasks; one with a split missing has no score and says where to get it. ``parts`` has ``dev pearson``,
        by which the regressor is chosen, and ``test pearson``.

    Raises:
        FileNotFoundError: No such folder.
        ValueError: A damaged file or model.
    """
    return score_trained(embed, find_trained(folder))


class TrainedPairs(NamedTuple):
    """Pairs of a task that trains a regressor: training, development and test pairs."""

    train: STSPairs
    dev: STSPairs
    test: STSPairs

    @property
    def understood(self) -> str:
        """A line for each split: how its file was understood."""
        return "\n".join(pairs.understood for pairs in self)


def find_trained(folder: str | Path) -> dict[str, TrainedPairs | str]:
    """Returns the pairs of each trained task, or what is missing; see ``sts_data.find_pairs``.

    Raises:
        FileNotFoundError: No such folder.
        ValueError: A damaged file.
    """
    tasks: dict[str, TrainedPairs | str] = {}
    for name, task in TRAINED_TASKS.items():
        splits = [find_pairs(task, folder, split) for split in TrainedPairs._fields]
        missing = [pairs for pairs in splits if isinstance(pairs, str)]
        tasks[name] = missing[0] if missing else TrainedPairs._make(splits)
    return tasks


def score_trained(embed: CachedEncoder, tasks: Mapping[str, TrainedPairs | str]) -> list[TaskScore]:
    """Returns the scores of tasks that ``find_trained`` has found."""
    return [
        TaskScore.absent(name, "spearman", pairs)
        if isinstance(pairs, str)
        else _trained_score(embed, name, pairs)
        for name, pairs in tasks.items()
    ]


def _trained_score(embed: CachedEncoder, name: str, splits: TrainedPairs) -> TaskScore:
    train, dev, (x, gold) = ((features(embed, pairs), pairs.gold) for pairs in splits)
    regressor, chosen_by = fit_regressor(*train, *dev)
    predicted = regressor(x)
    with warnings_named(name):
        score = 100 * float(spearman(predicted, gold))
    parts = {"dev pearson": 100 * chosen_by, "test pearson": 100 * _pearson(predicted, gold)}
    return TaskScore(name, "spearman", score, size=len(gold), parts=parts)


def features(embed: CachedEncoder, pairs: STSPairs) -> Tensor:
    """Returns [|u - v|, u * v] of each pair, (n, 2 D), float32."""
    u, v = pair_vectors(embed, pairs)
    return torch.cat([(u - v).abs(), u * v], dim=1)


def score_classes(gold: Tensor) -> Tensor:
    """Returns each score as shares of the two classes around it, (n,) -> (n, 5), float32.

    After Tai, Socher and Manning 2015, https://arxiv.org/abs/1503.00075, section 4.2. A score below 1 has its own
    size as the share of class 1 and no other, as in SentEval, where STS-B has no class 0.

    Example:
        >>> score_classes(torch.tensor([2.25, 5.0, 0.4]))
        tensor([[0.0000, 0.7500, 0.2500, 0.0000, 0.0000],
                [0.0000, 0.0000, 0.0000, 0.0000, 1.0000],
                [0.4000, 0.0000, 0.0000, 0.0000, 0.0000]])
    """
    return (1 - (gold.double()[:, None] - CLASSES.double()).abs()).clamp(min=0).float()


def fit_regressor(
    x: Tensor, gold: Tensor, dev_x: Tensor, dev_gold: Tensor, seed: int = 1111
) -> tuple[Callable[[Tensor], Tensor], float]:
    """Trains a softmax over the classes 1 to 5 on the squared error of their probabilities.

    Adam with a rate of 0.001, 64 pairs a step, no weight decay. Every 50 epochs the Pearson correlation of the
    dev pairs is measured. The training ends when it has not grown four times in all, or after 1,050 epochs.

    Args:
        x: Features of the training pairs, (n, F), float32.
        gold: Gold scores of the training pairs, (n,), 0 to 5.
        dev_x: Features of the dev pairs, (m, F).
        dev_gold: Gold scores of the dev pairs, (m,).
        seed: Seed of the initial weights and of the order of the pairs.

    Returns:
        The regressor with the best correlation, from features (n, F) to scores (n,), float64: the mean of the
        classes under the softmax. And the correlation, in [-1, 1].
    """
    generator = torch.Generator().manual_seed(seed)
    bound = x.shape[1] ** -0.5  # as torch.nn.Linear begins
    weight = torch.empty(len(CLASSES), x.shape[1]).uniform_(-bound, bound, generator=generator)
    bias = torch.empty(len(CLASSES)).uniform_(-bound, bound, generator=generator)
    optimizer = torch.optim.Adam([weight.requires_grad_(), bias.requires_grad_()], lr=1e-3)
    wanted = score_classes(gold)
    best, chosen_by, failures = partial(_score, weight=weight, bias=bias), -math.inf, 0
    for epoch in range(1, _EPOCHS + 1):
        for batch in torch.split(torch.randperm(len(x), generator=generator), _BATCH):
            optimizer.zero_grad()
            chances = F.linear(x[batch], weight, bias).softmax(dim=1)
            torch.autograd.backward(F.mse_loss(chances, wanted[batch]))
            optimizer.step()
        if epoch % _ROUND == 0:
            correlation = _pearson(_score(dev_x, weight, bias), dev_gold)
            if correlation > chosen_by:
                chosen_by = correlation
                best = partial(_score, weight=weight.detach().clone(), bias=bias.detach().clone())
            elif (failures := failures + 1) == _FAILURES:
                break
    return best, chosen_by


@torch.no_grad()
def _score(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.linear(x, weight, bias).softmax(dim=1).double() @ CLASSES.double()


def _pearson(x: Tensor, y: Tensor) -> float:
    """Returns Pearson's correlation; 0 where a side has one value only."""
    return float(torch.corrcoef(torch.stack([x, y.double()]))[0, 1].nan_to_num())
