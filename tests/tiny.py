"""Models, texts and trainers small enough for a test: 1 to 2 layers of 16 features, some 40 short texts."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import pytorch_lightning as pl
import torch
from torch import nn
from transformers import BertConfig, BertForMaskedLM, BertModel

from contrastive_text.core.storage.manifests import MANIFEST
from contrastive_text.data import TextTask, learn_vocabulary, loader
from contrastive_text.data.datamodule import TextDataModule
from contrastive_text.encoders import LoRA, TransformerEncoder
from contrastive_text.training import Optimizer
from contrastive_text.training.module import ContrastiveModule

_WHO = ("an old bird", "the young woman", "a small dog", "the tall man", "one quiet child")
_WHAT = (
    "sings in the green tree",
    "walks along the cold river",
    "reads a long book",
    "plays the guitar in the street",
    "runs after a red ball",
    "waits for the train to the north",
    "sleeps under the table all day",
    "opens the door and looks outside",
)
TEXTS = tuple(f"{who} {what}" for who in _WHO for what in _WHAT)
"""Forty different sentences of 6 to 10 tokens."""

TASK_OPTIONS = {*vars(TextTask())} - {*inspect.signature(TextDataModule).parameters}
"""Arguments of ``TextTask`` that ``TextDataModule`` has not itself."""

CONFIG: dict[str, Any] = {
    "model_type": "bert",
    "vocab_size": 300,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 32,
}
"""A random BERT as ``TransformerEncoder(config=...)`` takes it."""


def save_bert(folder: Path, texts: tuple[str, ...] = TEXTS, seed: int = 0, **changes: Any) -> str:
    """Saves a random BERT with a tokenizer learned from the texts; gives the folder's name."""
    learn_vocabulary(texts, vocabulary_size=CONFIG["vocab_size"]).save_pretrained(folder)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        BertModel(_bert_config(changes), add_pooling_layer=False).save_pretrained(folder)
    return str(folder)


def save_masked_lm(folder: Path, texts: tuple[str, ...] = TEXTS, **changes: Any) -> str:
    """Saves a random BERT with its head and a tokenizer learned from the texts; gives the folder's name."""
    learn_vocabulary(texts, vocabulary_size=CONFIG["vocab_size"]).save_pretrained(folder)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        BertForMaskedLM(_bert_config(changes)).save_pretrained(folder)
    return str(folder)


def _bert_config(changes: Mapping[str, Any]) -> BertConfig:
    # Weights of standard deviation 0.3: with BERT's 0.02 all texts have nearly the same vector.
    return BertConfig(**{**CONFIG, "initializer_range": 0.3, **changes})


def by_hand(folder: Path) -> Path:
    """Returns a saved model's folder without its manifest, as one is left that was changed by hand."""
    (folder / MANIFEST).unlink()
    return folder


def write_texts(path: Path, texts: tuple[str, ...] = TEXTS) -> str:
    """Writes a line for each text; gives the file's name."""
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return str(path)


def scored_pairs(count: int = 12, start: int = 0) -> list[tuple[str, str, float]]:
    """Returns pairs of the texts and their scores, up to forty.

    None comes twice, nor turned about: rounding would order the equal cosines of the two, and a rank correlation
    would follow it. Those of the random BERT are at least 0.0006 apart.
    """
    return [(TEXTS[(start + i) % 40], TEXTS[(start + 3 * i + 9) % 40], float(i % 6)) for i in range(count)]


def write_pairs(path: Path, count: int = 12, start: int = 0) -> str:
    """Writes scored pairs of the texts as ``.tsv``; gives the file's name."""
    rows = [f"{first}\t{second}\t{score:g}" for first, second, score in scored_pairs(count, start)]
    lines = ["sentence1\tsentence2\tscore", *rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def write_triples(path: Path) -> str:
    """Writes pairs with a hard negative as ``.jsonl``; gives the file's name."""
    rows = [{"anchor": TEXTS[i], "positive": TEXTS[i + 8], "negative": TEXTS[(i + 20) % 40]} for i in range(24)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return str(path)


def write_scored(path: Path) -> str:
    """Writes queries with one to three hard negatives and teacher scores as ``.jsonl``; gives the file's name.

    Queries recur, and hard negatives may be positives of other rows.
    """
    rows = [
        {
            "query": TEXTS[i % 12],
            "pos": [TEXTS[i + 8]],
            "neg": [TEXTS[(i + j) % 40] for j in (14, 20, 27)[: 1 + i % 3]],
            "pos_scores": [3.0],
            "neg_scores": [float((i + j) % 5) for j in range(1 + i % 3)],
        }
        for i in range(24)
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return str(path)


def module(
    folder: str, dropout: float | None = None, adapters: LoRA | None = None, **parts: Any
) -> ContrastiveModule:
    """Returns a module around a saved encoder."""
    if adapters is not None or not Path(folder).is_dir():
        return ContrastiveModule(TransformerEncoder(folder, dropout=dropout, adapters=adapters), **parts)
    times = tuple((path.name, path.stat().st_mtime_ns) for path in sorted(Path(folder).iterdir()))
    return ContrastiveModule(deepcopy(_loaded(folder, dropout, times)), **parts)


@cache
def _loaded(folder: str, dropout: float | None, times: object) -> TransformerEncoder:  # noqa: ARG001  # of the files
    """Loads an encoder once; a copy takes a seventh of the time."""
    return TransformerEncoder(folder, dropout=dropout)


def data(train: Any, **options: Any) -> TextDataModule:  # Any: rows too
    """Returns training data without worker processes, eight rows a step; options of a task go to the task."""
    own = {name: options.pop(name) for name in [*options] if name in TASK_OPTIONS}
    return TextDataModule(
        **{"train": train, "task": TextTask(**own), "batch_size": 8, "num_workers": 0, **options}
    )


@contextmanager
def computed_above(rows: int | None) -> Iterator[None]:
    """Lowers the number of rows above which an order of an epoch is computed; None leaves it."""
    with mock.patch.object(loader, "PERMUTATION_ROWS", loader.PERMUTATION_ROWS if rows is None else rows):
        yield


def trainer(folder: Path, **options: Any) -> pl.Trainer:
    """Returns a silent trainer on the CPU that takes two steps."""
    quiet: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": 1,
        "default_root_dir": folder,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        "use_distributed_sampler": False,
        "max_steps": 2,
    }
    return pl.Trainer(**{**quiet, **options})


class SGD(Optimizer):
    """Plain gradient descent with rate 1: a step takes off the gradient itself."""

    def build(self, parameters: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
        return torch.optim.SGD([parameter for _, parameter in parameters], lr=1.0)


def merged(results: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Returns the scores of all loaders in one dictionary."""
    return {name: score for result in results for name, score in result.items()}
