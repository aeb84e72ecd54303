"""STS-B and SICK-R as SentEval scores them: a regressor is trained on the vectors of the training pairs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from contrastive_text.evaluation.cached import CachedEncoder
from contrastive_text.evaluation.results import TaskScore
from contrastive_text.evaluation.sts.cosine import pair_vectors, warnings_named
from contrastive_text.evaluation.sts.data import STSPairs, find_pairs
from contrastive_text.metrics import spearman

TRAINED_TASKS = {"STS-B (trained)": "STS-B", "SICK-R (trained)": "SICK-R"}
"""Name of a trained task -> the task of its data."""
SPLITS = ("train", "dev", "test")
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


def find_trained(folder: str | Path) -> dict[str, dict[str, STSPairs | str]]:
    """Returns for each task its splits: the pairs, or what is missing; see ``sts_data.find_pairs``.

    Raises:
        FileNotFoundError: No such folder.
        ValueError: A damaged file.
    """
    return {
        name: {split: find_pairs(task, folder, split) for split in SPLITS} for name, task in TRAINED_TASKS.items()
    }


def score_trained(embed: CachedEncoder, tasks: Mapping[str, Mapping[str, STSPairs | str]]) -> list[TaskScore]:
    """Returns the scores of tasks that ``find_trained`` has found."""
    return [_task_score(embed, name, splits) for name, splits in tasks.items()]


def _task_score(embed: CachedEncoder, name: str, splits: Mapping[str, STSPairs | str]) -> TaskScore:
    if missing := [pairs for pairs in splits.values() if isinstance(pairs, str)]:
        return TaskScore.absent(name, "spearman", missing[0])
    found = (splits[split] for split in SPLITS)
    train, dev, test = ((features(embed, pairs), pairs.gold) for pairs in found if isinstance(pairs, STSPairs))
    regressor, chosen_by = fit_regressor(*train, *dev)
    predicted, gold = regressor(test[0]), test[1]
    with warnings_named(name):
        score = 100 * float(spearman(predicted, gold))
    parts = {"dev pearson": 100 * chosen_by, "test pearson": 100 * _pearson(predicted, gold)}
    return TaskScore(name, "spearman", score, size=len(gold), parts=parts)


def features(embed: CachedEncoder, pairs: STSPairs) -> Tensor:
    """Returns [|u - v|, u * v] of each pair, (n, 2 D), float32."""
    u, v = pair_vectors(embed, pairs)
    return torch.cat([(u - v).abs(), u * v], dim=1)


class Regressor:
    """Scores pairs by the mean of the classes 1 to 5 under a softmax of a linear layer.

    Args:
        weight: (5, 2 D).
        bias: (5,).
    """

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self.weight = weight
        self.bias = bias

    def probabilities(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias).softmax(dim=1)

    def __call__(self, x: Tensor) -> Tensor:
        """Returns scores, (n,), float64, for features (n, 2 D)."""
        with torch.no_grad():
            return self.probabilities(x).double() @ CLASSES.double()


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
) -> tuple[Regressor, float]:
    """Trains a softmax over the classes 1 to 5 on the squared error of their probabilities.

    Adam with a rate of 0.001, 64 pairs a step, no weight decay. Every 50 epochs the Pearson correlation of the
    dev pairs is measured; training ends when it has not grown four times in all, or after 1,050 epochs.

    Args:
        x: Features of the training pairs, (n, F), float32.
        gold: Their scores, (n,), 0 to 5.
        dev_x: Features of the dev pairs.
        dev_gold: Their scores.
        seed: Of the first weights and of the order of the pairs.

    Returns:
        The regressor with the best correlation, and the correlation, in [-1, 1].
    """
    generator = torch.Generator().manual_seed(seed)
    bound = x.shape[1] ** -0.5  # as torch.nn.Linear begins
    weight = torch.empty(len(CLASSES), x.shape[1]).uniform_(-bound, bound, generator=generator)
    bias = torch.empty(len(CLASSES)).uniform_(-bound, bound, generator=generator)
    model = Regressor(weight.requires_grad_(), bias.requires_grad_())
    optimizer = torch.optim.Adam([weight, bias], lr=1e-3)
    wanted = score_classes(gold)
    best, chosen_by, failures = model, -math.inf, 0
    for epoch in range(1, _EPOCHS + 1):
        for batch in torch.split(torch.randperm(len(x), generator=generator), _BATCH):
            optimizer.zero_grad()
            torch.autograd.backward(F.mse_loss(model.probabilities(x[batch]), wanted[batch]))
            optimizer.step()
        if epoch % _ROUND == 0:
            correlation = _pearson(model(dev_x), dev_gold)
            if correlation > chosen_by:
                best, chosen_by = Regressor(weight.detach().clone(), bias.detach().clone()), correlation
            elif (failures := failures + 1) == _FAILURES:
                break
    return best, chosen_by


def _pearson(x: Tensor, y: Tensor) -> float:
    """Returns Pearson's correlation; 0 where a side has one value only."""
    return float(torch.corrcoef(torch.stack([x, y.double()]))[0, 1].nan_to_num())
