"""Evaluation on semantic textual similarity (STS), by the cosine or by a trained regressor."""

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

from contrastive_text.core.errors import InvalidValueError, one_of
from contrastive_text.data import Table
from contrastive_text.data.prompts import DOCUMENT, QUERY
from contrastive_text.evaluation.cached import CachedEncoder
from contrastive_text.evaluation.results import TaskScore
from contrastive_text.evaluation.sts_data import STSPairs, find_pairs, find_sts
from contrastive_text.inference.sentence_encoder import SentenceEncoder
from contrastive_text.metrics import exact_similarity, pearson, spearman

Embed: TypeAlias = Callable[[Sequence[str]], Tensor]
"""Function from N texts to their vectors, (N, D), such as a ``CachedEncoder``."""

SETTINGS = ("all", "mean", "wmean")
"""Name of the way to combine the subsets of an STS year into one score; see ``aggregate``."""


def pair_vectors(embed: Embed, pairs: STSPairs) -> tuple[Tensor, Tensor]:
    """Returns the vectors of the first and of the second texts of pairs, (n, D) each.

    All texts are encoded together, unless first and second texts have different prompts or encoders.
    """
    if pairs.by_column and isinstance(embed, CachedEncoder):
        prompts = embed.model.prompts
        if prompts.has_retrieval_prompts or embed.model.encoder.pools:
            return embed(pairs.first, QUERY), embed(pairs.second, DOCUMENT)
        embed = partial(embed, prompt_name=QUERY) if prompts else embed
    vectors = embed([*pairs.first, *pairs.second])
    return vectors[: len(pairs)], vectors[len(pairs) :]


def pair_cosines(embed: Embed, pairs: STSPairs) -> Tensor:
    """Returns the cosine of the two vectors of each pair, (n,), float64."""
    return exact_similarity(*pair_vectors(embed, pairs))


Correlation: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Correlation of two tensors: ``metrics.spearman`` or ``metrics.pearson``."""


def aggregate(
    similarities: Tensor, pairs: STSPairs, setting: str, correlation: Correlation = spearman
) -> tuple[float, dict[str, float]]:
    """Returns the score of an STS task and of each subset of the task.

    ``all`` is one Spearman correlation over all pairs together (SBERT, SimCSE, ConSERT). ``mean`` is the mean of
    the subsets' correlations (SentEval, DeCLUTR), and ``wmean`` their mean weighted by numbers of pairs
    (SentEval). The settings differ by several points: see SimCSE (Gao et al. 2021,
    https://aclanthology.org/2021.emnlp-main.552), appendix B.

    Args:
        similarities: Similarity of each pair, (n,).
        pairs: The pairs.
        setting: ``all``, ``mean`` or ``wmean``.
        correlation: Correlation of similarities and gold scores.

    Returns:
        Correlations times 100. A correlation is 0, with a warning, if all similarities are equal, and NaN for a
        single pair.

    Raises:
        ValueError: The setting is unknown, or averages subsets without names or with a single pair.

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
    for row, subset in enumerate(pairs.subsets):
        groups[subset].append(row)

    def of(values: Tensor, gold: Tensor) -> float:
        return 100 * float(correlation(values.double(), gold)) if len(gold) > 1 else math.nan

    total = of(similarities, pairs.gold) if setting == "all" else math.nan
    parts = {name: of(similarities[group], pairs.gold[group]) for name, group in groups.items()}
    if setting == "all":
        return total, parts
    if single := [name for name, group in groups.items() if len(group) < 2]:
        raise InvalidValueError(
            f"aggregate.pairs: expected two pairs or more in each subset for the setting {setting}, got one in "
            f"{single[0]}; take the setting all"
        )
    weights = {name: len(group) if setting == "wmean" else 1 for name, group in groups.items()}
    return sum(weights[name] * part for name, part in parts.items()) / sum(weights.values()), parts


def check_setting(setting: str, tasks: Iterable[STSPairs]) -> None:
    """Checks the name of a setting that combines subsets, and that the pairs name their subsets.

    Raises:
        ValueError: The setting is unknown, or the pairs of a task have no subsets.
    """
    one_of("setting", setting, SETTINGS, "the papers mostly have all")
    for pairs in tasks:
        if setting != "all" and "" in pairs.subsets:
            raise InvalidValueError(
                f"setting: expected pairs whose subsets are named for {setting}, got "
                f"{pairs.description or 'pairs without names'}; take all, or files with a column subset"
            )


def sts_scores(embed: CachedEncoder, folder: str | Path, setting: str = "all") -> list[TaskScore]:
    """Returns the Spearman correlation of cosine and gold score on STS12 to STS16, STS-B and SICK-R, times 100.

    No task trains a classifier: STS-B and SICK-R are scored on their test pairs, like STS12 to STS16.
    ``trained_sts_scores`` trains a regressor on STS-B and SICK-R instead.

    Args:
        embed: The encoder.
        folder: Folder that holds the data sets; see ``sts_data.find_pairs``.
        setting: Way to combine the subsets of a year; see ``aggregate``.

    Returns:
        Scores of the seven tasks in the order of the papers, with the subsets of a year in ``parts``. A task
        without data has no score and names the missing files.

    Raises:
        FileNotFoundError: The folder doesn't exist.
        ValueError: A file is damaged, a vector has NaN, the setting is unknown, or subsets to average have no
            names.

    Example:
        >>> [(score.task, score.score) for score in sts_scores(embed, "data")]  # doctest: +SKIP
        [('STS12', 72.37), ('STS13', 80.6), ...]
    """
    return score_tasks(embed, find_sts(folder), setting)


def score_tasks(
    embed: Embed, tasks: Mapping[str, STSPairs | str], setting: str, correlation: Correlation = spearman
) -> list[TaskScore]:
    """Returns the scores of STS tasks, as ``find_sts`` returns them. The metric is the correlation's name."""
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
    """Puts the name of a task before a warning. Of several warnings, such as one per subset, issues the first."""
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always")
        yield
    if records:
        warnings.warn(f"{task}: {records[0].message}", stacklevel=3)


class PairScore(NamedTuple):
    """Correlation of cosine and gold score over the pairs of a file or a subset.

    Args:
        subset: Name of the subset; ``all`` for the whole file.
        pairs: Number of pairs.
        spearman: Spearman correlation, times 100; NaN for a single pair.
        pearson: Pearson correlation, times 100; NaN for a single pair.
        accuracy: Share of the pairs that a threshold classifies correctly, times 100: pairs with a cosine above
            it are predicted as label 1, all others as 0. None without a threshold.

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
    """Returns the correlation over all pairs of a table, followed by each subset if there are several.

    The first score is the setting ``all`` of SBERT, SimCSE and ConSERT: one correlation over all pairs, not the
    mean of the subsets' correlations.

    Args:
        model: The encoder.
        table: Scored pairs, as ``data.read_pairs`` returns them.
        batch_size: Number of texts per batch.
        show_progress_bar: Whether to show a progress bar.

    Raises:
        ValueError: A vector has NaN or infinity.
    """
    return score_table(CachedEncoder(model, batch_size=batch_size, show_progress_bar=show_progress_bar), table)


def score_table(embed: CachedEncoder, table: Table, threshold: float | None = None) -> list[PairScore]:
    """Returns the scores of ``evaluate_pairs`` with a cached encoder, whose vectors several tables can share.

    First texts get the model's query prompt and second texts its document prompt, as in validation.

    Args:
        embed: The encoder.
        table: Scored pairs.
        threshold: Cosine above which a pair is predicted as label 1, as by ``CosineScorer``; None to compute no
            accuracies.
    """
    pairs = STSPairs.of_table(table, by_column=True)
    cosines, sizes = pair_cosines(embed, pairs), Counter(pairs.subsets)
    totals, parts = zip(
        *(aggregate(cosines, pairs, "all", correlation) for correlation in (spearman, pearson)), strict=True
    )
    subsets = list(parts[0]) if len(sizes) > 1 else []
    scores = [
        PairScore("all", len(pairs), *totals),
        *(PairScore(name, sizes[name], *(part[name] for part in parts)) for name in subsets),
    ]
    if threshold is None:
        return scores
    correct = ((cosines > threshold) == (pairs.gold == 1)).double()
    by_score = [correct, *(correct[[subset == name for subset in pairs.subsets]] for name in subsets)]
    return [
        score._replace(accuracy=100 * float(rows.mean())) for score, rows in zip(scores, by_score, strict=True)
    ]


def check_labels(where: str, table: Table) -> None:
    """Checks that the gold scores of pairs are labels 0 and 1.

    Raises:
        ValueError: A gold score is neither 0 nor 1.
    """
    scores = [row["target"] for row in table if row["target"] not in (0.0, 1.0)]
    if scores:
        raise InvalidValueError(
            f"{where}: expected pairs labeled 0 or 1 for an accuracy, got {scores[0]}; remove --threshold"
        )


TRAINED_TASKS = {"STS-B (trained)": "STS-B", "SICK-R (trained)": "SICK-R"}
"""Task of the data of each trained task, by the name of the trained task."""
CLASSES = torch.arange(1.0, 6.0)
"""Scores that are the classes of the STS regressor: 1 to 5 for both data sets, as in SentEval."""
_BATCH = 64
"""Number of pairs per step of the regressor's training."""
_ROUND = 50
"""Number of epochs between two evaluations on the dev pairs."""
_EPOCHS = 1050
"""Largest number of epochs of the regressor's training."""
_FAILURES = 4
"""Number of evaluations without a gain that end the regressor's training."""


def trained_sts_scores(embed: CachedEncoder, folder: str | Path) -> list[TaskScore]:
    """Returns the Spearman correlation of a trained regressor on the test pairs of STS-B and SICK-R, times 100.

    The protocol is SentEval's (Conneau and Kiela 2018, https://arxiv.org/abs/1803.05449; its
    ``senteval/tools/relatedness.py``), which DeCLUTR's tables use. It measures which information a regressor can
    read from the vectors. A plain pretrained encoder may score high here and low by cosine, so these tasks have
    other names.

    Args:
        embed: The encoder.
        folder: Folder that holds train, dev and test pairs; see ``sts_data.find_pairs``.

    Returns:
        Scores of both tasks, with ``dev pearson``, which selects the regressor, and ``test pearson`` in
        ``parts``. A task without a split has no score and names the missing files.

    Raises:
        FileNotFoundError: The folder doesn't exist.
        ValueError: A file is damaged, or a vector has NaN.
    """
    return score_trained(embed, find_trained(folder))


class TrainedPairs(NamedTuple):
    """Pairs of a task that trains a regressor: training, development and test pairs."""

    train: STSPairs
    dev: STSPairs
    test: STSPairs

    @property
    def description(self) -> str:
        """Returns one line for each split that says how its file was understood."""
        return "\n".join(pairs.description for pairs in self)


def find_trained(folder: str | Path) -> dict[str, TrainedPairs | str]:
    """Returns the pairs of each trained task, or a text that names missing files; see ``sts_data.find_pairs``.

    Raises:
        FileNotFoundError: The folder doesn't exist.
        ValueError: A file is damaged.
    """
    tasks: dict[str, TrainedPairs | str] = {}
    for name, task in TRAINED_TASKS.items():
        splits = [find_pairs(task, folder, split) for split in TrainedPairs._fields]
        missing = [pairs for pairs in splits if isinstance(pairs, str)]
        tasks[name] = missing[0] if missing else TrainedPairs._make(splits)
    return tasks


def score_trained(embed: CachedEncoder, tasks: Mapping[str, TrainedPairs | str]) -> list[TaskScore]:
    """Trains a regressor for each task that ``find_trained`` returns, and returns the scores."""
    return [
        TaskScore.absent(name, "spearman", pairs)
        if isinstance(pairs, str)
        else _trained_score(embed, name, pairs)
        for name, pairs in tasks.items()
    ]


def _trained_score(embed: CachedEncoder, name: str, splits: TrainedPairs) -> TaskScore:
    train, dev, (x, gold) = ((features(embed, pairs), pairs.gold) for pairs in splits)
    regressor, dev_pearson = fit_regressor(*train, *dev)
    predicted = regressor(x)
    with warnings_named(name):
        score = 100 * float(spearman(predicted, gold))
    parts = {"dev pearson": 100 * dev_pearson, "test pearson": 100 * _pearson(predicted, gold)}
    return TaskScore(name, "spearman", score, size=len(gold), parts=parts)


def features(embed: CachedEncoder, pairs: STSPairs) -> Tensor:
    """Returns the regressor's features of pairs, [|u - v|, u * v] of the vectors u and v, (n, 2 D), float32."""
    u, v = pair_vectors(embed, pairs)
    return torch.cat([(u - v).abs(), u * v], dim=1)


def score_classes(gold: Tensor) -> Tensor:
    """Converts gold scores to probabilities of the two classes around each score, (n,) -> (n, 5), float32.

    Source: Tai, Socher and Manning 2015, https://arxiv.org/abs/1503.00075, section 4.2. A score s below 1 gives
    class 1 the probability s and all other classes 0, as in SentEval, where STS-B has no class 0.

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
    """Trains a softmax over the classes 1 to 5 on the squared error of the classes' probabilities.

    The optimizer is Adam with learning rate 0.001, 64 pairs per step and no weight decay. Every 50 epochs the
    Pearson correlation on the dev pairs is measured. The training ends after four measurements without a new
    best correlation, or after 1,050 epochs.

    Args:
        x: Features of the training pairs, (n, F), float32.
        gold: Gold scores of the training pairs, (n,), 0 to 5.
        dev_x: Features of the dev pairs, (m, F).
        dev_gold: Gold scores of the dev pairs, (m,).
        seed: Seed of the initial weights and of the order of the pairs.

    Returns:
        The regressor with the best correlation, and this correlation, in [-1, 1]. The regressor maps features
        (n, F) to scores (n,), float64, which are the mean of the classes under the softmax.
    """
    generator = torch.Generator().manual_seed(seed)
    bound = x.shape[1] ** -0.5  # initialization of torch.nn.Linear
    weight = torch.empty(len(CLASSES), x.shape[1]).uniform_(-bound, bound, generator=generator)
    bias = torch.empty(len(CLASSES)).uniform_(-bound, bound, generator=generator)
    optimizer = torch.optim.Adam([weight.requires_grad_(), bias.requires_grad_()], lr=1e-3)
    targets = score_classes(gold)
    best, best_correlation, failures = partial(_score, weight=weight, bias=bias), -math.inf, 0
    for epoch in range(1, _EPOCHS + 1):
        for batch in torch.split(torch.randperm(len(x), generator=generator), _BATCH):
            optimizer.zero_grad()
            probabilities = F.linear(x[batch], weight, bias).softmax(dim=1)
            torch.autograd.backward(F.mse_loss(probabilities, targets[batch]))
            optimizer.step()
        if epoch % _ROUND == 0:
            correlation = _pearson(_score(dev_x, weight, bias), dev_gold)
            if correlation > best_correlation:
                best_correlation = correlation
                best = partial(_score, weight=weight.detach().clone(), bias=bias.detach().clone())
            elif (failures := failures + 1) == _FAILURES:
                break
    return best, best_correlation


@torch.no_grad()
def _score(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Returns the scores that a regressor predicts, (n, F) -> (n,), float64."""
    return F.linear(x, weight, bias).softmax(dim=1).double() @ CLASSES.double()


def _pearson(x: Tensor, y: Tensor) -> float:
    """Returns the Pearson correlation, or 0 if all values of ``x`` or of ``y`` are equal."""
    return float(torch.corrcoef(torch.stack([x, y.double()]))[0, 1].nan_to_num())
