"""A tiny run over three data sets: sentiment of texts, paraphrases, and similarity."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import tiny
import torch

from contrastive_text.data import Mixture, TextTask
from contrastive_text.data.datamodule import TextDataModule
from contrastive_text.heads import MLPHead
from contrastive_text.objectives import (
    BilinearScorer,
    Contrastive,
    Objective,
    PairClassification,
    PairRegression,
    TextClassification,
)
from contrastive_text.pairings import Given
from contrastive_text.training import Combine
from contrastive_text.training.module import ContrastiveModule

SIZES = {"sst": 24, "quora": 40, "sts": 18}


def write_tasks(folder: Path) -> dict[str, TextTask]:
    """Writes the three files, with ``SIZES`` rows, and gives their tasks."""
    folder.mkdir(exist_ok=True)
    pairs = [(tiny.TEXTS[i % 40], tiny.TEXTS[(7 * i + 3) % 40]) for i in range(40)]
    lines = {
        "sst": ["label\ttext", *(f"{i % 3}\t{tiny.TEXTS[i]}" for i in range(SIZES["sst"]))],
        "quora": ["label\tsentence1\tsentence2", *(f"{i % 2}\t{a}\t{b}" for i, (a, b) in enumerate(pairs))],
        "sts": [
            "label\tsentence1\tsentence2",
            *(f"{i % 6}\t{a}\t{b}" for i, (b, a) in enumerate(pairs[: SIZES["sts"]])),
        ],
    }
    for name, each in lines.items():
        (folder / f"{name}.tsv").write_text("\n".join(each) + "\n", encoding="utf-8")
    files = {name: str(folder / f"{name}.tsv") for name in lines}
    return {
        "sst": TextTask(train=files["sst"]),
        "quora": TextTask(train=files["quora"], pairing=Given()),
        "sts": TextTask(train=files["sts"], pairing=Given()),
    }


def fewer(tasks: dict[str, TextTask]) -> dict[str, TextTask]:
    """Returns the tasks with five rows of the first, which come again, and other halves of the second."""
    few, half = replace(tasks["sst"], limit=5, repeat=3), replace(tasks["quora"], fraction=0.5)
    return {**tasks, "sst": few, "quora": half}


def objectives(dropout: float = 0.0, contrastive: Contrastive | None = None) -> dict[str, Objective]:
    """Returns a supervised objective for each task, two with a layer in common, and a contrastive one."""

    def pair_head() -> MLPHead:
        return MLPHead(dropout=dropout, share="pairs", shared_layers=1)

    return {
        "sentiment": TextClassification(3, head=MLPHead(out_features=3, dropout=dropout), task="sst"),
        "paraphrase": PairClassification(2, scorer=BilinearScorer(), head=pair_head(), task="quora"),
        "similarity": PairRegression(head=pair_head(), task="sts"),
        "contrastive": contrastive or Contrastive(task="sst"),
    }


def module(
    folder: str,
    dropout: float = 0.0,
    combine: Combine | None = None,
    contrastive: Contrastive | None = None,
    **parts: Any,
) -> ContrastiveModule:
    """Returns a module with the four objectives; its weights are the same every time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        each = objectives(dropout, contrastive)
        return tiny.module(folder, dropout=dropout, objectives=each, combine=combine, **parts)


def data(tasks: dict[str, TextTask], mixture: Mixture | None = None, **options: Any) -> TextDataModule:
    """Returns the data of the three tasks, six rows of each a step."""
    return TextDataModule(tasks=tasks, mixture=mixture, **{"batch_size": 6, "num_workers": 0, **options})
