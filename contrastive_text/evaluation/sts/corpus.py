"""The texts of the STS data sets without their scores, on which ConSERT trains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from contrastive_text.evaluation.sts.data import STS_TASKS, STSPairs, find_pairs, sts_splits

PUBLISHED: Mapping[str, int] = {
    "STS12": 6216, "STS13": 3000, "STS14": 7500, "STS15": 17000, "STS16": 18366, "STS-B": 17256, "SICK-R": 19854,
}  # fmt: skip
"""Data set -> its texts in table 1 of ConSERT, 89,192 in all."""


@dataclass(frozen=True, slots=True)
class CorpusPart:
    """The texts of one data set.

    Args:
        texts: Both texts of each pair, one after the other, each on one line; repeated as often as they occur.
        missing: For each split that isn't there, where it was looked for and where to get it.
    """

    texts: list[str]
    missing: list[str]


def consert_corpus(folder: str | Path) -> dict[str, CorpusPart]:
    """Returns the texts on which ConSERT trains, by data set: all seven STS tasks, whatever is there of each.

    Yan et al. 2021 (https://arxiv.org/abs/2105.11741), table 1: both texts of every line of STS12 to STS16, with
    a score or without, and of training, development and test set of STS-B and SICK; 89,192 with duplicates. The
    texts of the test sets are among them. SentEval's files have them all; tables made for evaluation may lack the
    13,497 lines of STS15 and STS16 without a score, which the counts show.

    Args:
        folder: As ``find_pairs`` takes it.

    Raises:
        FileNotFoundError: No such folder.
        ValueError: A file that is not what it should be; the message names the line.
        ImportError: The hub without the library ``datasets``.
    """
    return {task: _part(task, folder) for task in STS_TASKS}


def _part(task: str, folder: str | Path) -> CorpusPart:
    found = [find_pairs(task, folder, split, scored=False) for split in sts_splits(task)]
    pairs = [
        pair for each in found if isinstance(each, STSPairs) for pair in zip(each.first, each.second, strict=True)
    ]
    return CorpusPart(
        texts=[" ".join(text.split()) for pair in pairs for text in pair],
        missing=[each for each in found if isinstance(each, str)],
    )
