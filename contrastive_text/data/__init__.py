"""Data: file readers, tokenization, the collator and the order of an epoch. Lightning is imported on demand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contrastive_text.core.libraries import lazy_getattr
from contrastive_text.core.storage.text_files import SizeLimits
from contrastive_text.data.collator import Collator, KeyedRow
from contrastive_text.data.files.readers import Table, read_pairs, read_rows
from contrastive_text.data.mixture import (
    AllTasks,
    BatchRoundRobin,
    EpochRoundRobin,
    Fusion,
    Mixture,
    Proportional,
    Rounds,
    Step,
    Steps,
    TaskSize,
    consecutive_steps,
)
from contrastive_text.data.prompts import Prompts
from contrastive_text.data.retrieval import Retrieval, RetrievalSet, read_beir, read_pair_corpus
from contrastive_text.data.tasks import Clean, TextTask
from contrastive_text.data.tokenizing import TextTokenizer, learn_vocabulary

if TYPE_CHECKING:
    from contrastive_text.data.datamodule import TextDataModule

__all__ = [
    "AllTasks",
    "BatchRoundRobin",
    "Clean",
    "Collator",
    "EpochRoundRobin",
    "Fusion",
    "KeyedRow",
    "Mixture",
    "Prompts",
    "Proportional",
    "Retrieval",
    "RetrievalSet",
    "Rounds",
    "SizeLimits",
    "Step",
    "Steps",
    "Table",
    "TaskSize",
    "TextDataModule",
    "TextTask",
    "TextTokenizer",
    "consecutive_steps",
    "learn_vocabulary",
    "read_beir",
    "read_pair_corpus",
    "read_pairs",
    "read_rows",
]


__getattr__ = lazy_getattr(__name__)  # TextDataModule needs Lightning
